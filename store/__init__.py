"""The embedded store: `open` a folder, change it, read it, follow it.

Its names are imported when they are first used, so that who needs definitions or requests alone, to
talk to a server, loads no store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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
    "Change": "recover.history",
    "CheckpointOptions": "recover.checkpoint",
    "Durability": "commit.committer",
    "Log": "log",
    "Transaction": "transaction",
    "TypedSpace": "typed",
    "open": "entry",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__` that is not loaded yet."""
    if name not in _HOMES:
        raise AttributeError(f"module 'logweir.store' has no attribute {name!r}")
    value = getattr(import_module(f"logweir.store.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
