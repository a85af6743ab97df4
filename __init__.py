"""logweir: a durable, append-only change log with a Tarantool-format write-ahead log.

::

    import logweir

    with logweir.open("data") as log:
        log.create_space("orders", format=[("id", "unsigned"), ("what", "string")])
        log.insert("orders", (1, "ten bolts"))          # on disk when this returns
        print(log.get("orders", 1))

    for row in logweir.read("data"):                     # any xlog, snap or folder, only reads
        print(row.type_name, row.lsn, row.decoded())

Asyncio: `logweir.aio`. Errors: `logweir.errors`. Limits: `logweir.limits`. What needs the store or
the log is imported when it is first used, so that a program that only reads loads no store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from logweir.compiled import FINDER
from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    CorruptFile,
    DecodeError,
    DirectoryLocked,
    ErrorCode,
    LimitExceeded,
    LogStopped,
    LogweirError,
    PositionUnavailable,
    RecoveryRefused,
    RequestError,
    StateFailed,
    UsedAfterFork,
    WalError,
    WriteFailed,
    WriterPoisoned,
)
from logweir.lazy import lazily

if TYPE_CHECKING:
    from logweir.recovery.read import read
    from logweir.replication.capture.following import follow
    from logweir.replication.capture.stream import capture
    from logweir.store import Log, Transaction, open
    from logweir.wal.vclock import VClock
    from logweir.wal.writer import VERSION as __version__
    from logweir.wal.xrow import Row

__all__ = [
    "ChainGap",
    "ConfigError",
    "CorruptBlock",
    "CorruptFile",
    "DecodeError",
    "DirectoryLocked",
    "ErrorCode",
    "LimitExceeded",
    "Log",
    "LogStopped",
    "LogweirError",
    "PositionUnavailable",
    "RecoveryRefused",
    "RequestError",
    "Row",
    "StateFailed",
    "Transaction",
    "UsedAfterFork",
    "VClock",
    "WalError",
    "WriteFailed",
    "WriterPoisoned",
    "__version__",
    "capture",
    "follow",
    "open",
    "read",
]

_HOMES: Final = {
    "Log": "logweir.store",
    "Row": "logweir.wal.xrow",
    "Transaction": "logweir.store",
    "VClock": "logweir.wal.vclock",
    "__version__": "logweir.wal.writer:VERSION",
    "capture": "logweir.replication.capture.stream",
    "follow": "logweir.replication.capture.following",
    "open": "logweir.store",
    "read": "logweir.recovery.read",
}
_MODULES: Final = ("aio", "limits")
_named = lazily(__name__, _HOMES)
FINDER.install()


def __getattr__(name: str) -> Any:
    """A name of `__all__` that is not loaded yet, or a module of the package."""
    return import_module(f"logweir.{name}") if name in _MODULES else _named(name)


def __dir__() -> list[str]:
    """What `dir(logweir)` shows."""
    return sorted({*globals(), *__all__, *_MODULES})
