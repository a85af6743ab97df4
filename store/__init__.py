"""The embedded store: `open` a folder, change it, read it, follow it.

Its names are imported when they are first used, so that who needs definitions or requests alone, to
talk to a server, loads no store.
"""

from typing import TYPE_CHECKING, Final

from logweir.lazy import lazily

if TYPE_CHECKING:
    from logweir.store.commit.committer import Durability
    from logweir.store.entry import open
    from logweir.store.log import Log
    from logweir.store.recover.checkpoint import CheckpointOptions
    from logweir.store.recover.history import Change
    from logweir.store.transaction import Transaction
    from logweir.store.typed import TypedSpace

__all__ = [
    "Change",
    "CheckpointOptions",
    "Durability",
    "Log",
    "Transaction",
    "TypedSpace",
    "open",
]

_HOMES: Final = {
    "Change": "logweir.store.recover.history",
    "CheckpointOptions": "logweir.store.recover.checkpoint",
    "Durability": "logweir.store.commit.committer",
    "Log": "logweir.store.log",
    "Transaction": "logweir.store.transaction",
    "TypedSpace": "logweir.store.typed",
    "open": "logweir.store.entry",
}

__getattr__ = lazily(__name__, _HOMES)
