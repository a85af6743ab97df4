"""logweir: a durable, append-only change log with a Tarantool-format write-ahead log.

::

    import logweir

    with logweir.open("data") as log:
        log.create_space("orders", format=[("id", "unsigned"), ("what", "string")])
        log.insert("orders", (1, "ten bolts"))          # on disk when this returns
        print(log.get("orders", 1))

    for row in logweir.read("data"):                     # any xlog, snap or folder, only reads
        print(row.type_name, row.lsn, row.decoded())

Asyncio: `logweir.aio`. Errors: `logweir.errors`. Limits: `logweir.limits`.
"""

from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    CorruptFile,
    DecodeError,
    DirectoryLocked,
    ErrorCode,
    LimitExceeded,
    LogweirError,
    PositionUnavailable,
    RecoveryRefused,
    RequestError,
    WalError,
    WriteFailed,
    WriterPoisoned,
)
from logweir.store import Log, Transaction, open
from logweir.wal.read import read
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
    "LogweirError",
    "PositionUnavailable",
    "RecoveryRefused",
    "RequestError",
    "Row",
    "Transaction",
    "VClock",
    "WalError",
    "WriteFailed",
    "WriterPoisoned",
    "__version__",
    "open",
    "read",
]
