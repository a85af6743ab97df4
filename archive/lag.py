"""How far an archive is behind its store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from logweir.archive.catalog import Catalog
from logweir.errors import WalError
from logweir.wal.damage import Damage
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.lease import leased
from logweir.wal.reader import WalReader


@dataclass(frozen=True, slots=True)
class Lag:
    """What is in a store's logs and not archived. `bytes`: of whole blocks; `seconds`: since the
    first such row was written, 0 without any."""

    rows: int
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """In plain values."""
        return asdict(self)


def lag_of(
    directory: Path,
    catalog: Catalog,
    *,
    filesystem: FileSystem = OS,
    clock: Callable[[], float] = time.time,
) -> Lag:
    """Read what is behind the archive's end in a folder, which may be in use. Raises `WalError`."""
    logs = catalog.logs()
    newest = logs[-1] if logs else None
    rows = size = 0
    first: float | None = None
    with leased(directory):
        for log in scan_directory(directory, filesystem).xlogs:
            name = log.path.name
            offset = None
            if newest is not None and name <= newest.file:
                if name < newest.file or newest.is_whole:
                    continue
                offset = newest.end
            try:
                reader = WalReader(log.path, filesystem=filesystem)
            except WalError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            with reader:
                for item in reader.blocks(offset, is_live=True):
                    if isinstance(item, Damage):
                        break
                    rows += len(item.columns)
                    size += item.end - item.offset
                    first = min(item.columns.timestamp) if first is None else first
    return Lag(rows, size, 0.0 if first is None else max(clock() - first, 0.0))
