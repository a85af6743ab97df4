"""LMDB, as the store knows it: the one way by which anything here opens an environment.

Two things may stand behind these names. `lmdbkernel` calls the system's LMDB from C, gives up the
interpreter's lock only for what takes long, and can be called by other kernels without it; it is
there where the package was built beside LMDB's headers. Else it is py-lmdb, which gives up the lock
at each key. Only one of them is ever loaded: LMDB's locks belong to the process, so that two copies
with one environment open would take each other's away. `BINDING` says which one runs;
LOGWEIR_LMDB=py-lmdb in the environment takes py-lmdb although the other one is there.

What both do alike is what these classes have in `lmdbkernel.pyi`, named as in py-lmdb, with keys
and values that come as copies, `bytes`. Whatever is used after its end raises `Error`, and a
transaction that is collected is aborted. One thread begins and ends a transaction that writes.

The files are the same (data version 1; no other is opened, though py-lmdb 3.0 knows that of LMDB
1.0): what either has written the other opens. py-lmdb brings an LMDB of its own, 0.9.36 in release
3.0, with checks of single pages that LMDB as released lacks: with those a damaged page is a
`CorruptedError`, without them it may end the process. So a state that cannot be trusted is looked
at by `store.state.lmdbfile` before either of them sees it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from logweir.store.state.lmdbkernel import (
        CorruptedError,
        Cursor,
        Database,
        DbsFullError,
        DiskError,
        Environment,
        Error,
        LockError,
        MapFullError,
        MemoryError,
        ReadonlyError,
        Transaction,
    )

__all__ = [
    "BINDING",
    "VERSION",
    "CorruptedError",
    "Cursor",
    "Database",
    "DbsFullError",
    "DiskError",
    "Environment",
    "Error",
    "LockError",
    "MapFullError",
    "MemoryError",
    "ReadonlyError",
    "Transaction",
]


def _library() -> Any:
    """What stands behind the names here."""
    if os.environ.get("LOGWEIR_LMDB") != "py-lmdb":
        try:
            from logweir.store.state import lmdbkernel
        except ImportError:
            pass
        else:
            return lmdbkernel
    import lmdb

    return lmdb


_LIBRARY: Final = _library()

BINDING: Final = "py-lmdb" if _LIBRARY.__name__ == "lmdb" else "compiled"
"""What calls LMDB: "compiled" or "py-lmdb"."""

VERSION: Final[tuple[int, int, int]] = _LIBRARY.version()
"""The version of LMDB."""

if not TYPE_CHECKING:
    Database = _LIBRARY._Database if BINDING == "py-lmdb" else _LIBRARY.Database
    globals().update({name: getattr(_LIBRARY, name) for name in __all__ if name not in globals()})
    if hasattr(Environment, "lib_version"):  # py-lmdb brings LMDB 1.0 too, which has other files
        Environment = partial(Environment, lib_version=0)
