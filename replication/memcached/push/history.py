"""Places in the log by what old clients know: a signature, or a time.

Both read the log's files from their ends backwards, only as far as needed. None if the log does
not reach back so far, or has not come so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from logweir.store.log import Log
from logweir.wal.damage import Damage
from logweir.wal.directory import LogFile, scan_directory
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock


def position_at_signature(log: Log, signature: int) -> VClock | None:
    """The position with that signature, or the last one below it."""
    if signature == log.applied.signature:
        return log.applied
    if signature > log.applied.signature:
        return None
    for file in reversed(_files(log)):
        if file.vclock.signature <= signature:
            return _walk(log, file, signature)
    return None


def _walk(log: Log, file: LogFile, signature: int) -> VClock:
    reached = dict(file.vclock)
    with WalReader(file.path, filesystem=log.inner.filesystem) as reader:
        for block in reader.blocks():
            if isinstance(block, Damage):
                break
            for row in block.rows():
                before = reached.get(row.replica_id, 0)
                if sum(reached.values()) - before + row.lsn > signature:
                    return VClock(reached)
                reached[row.replica_id] = max(row.lsn, before)
    return VClock(reached)


def position_at_time(log: Log, seconds: float) -> VClock | None:
    """A position before which every row is older than `seconds`, in Unix time."""
    for file in reversed(_files(log)):
        with WalReader(file.path, filesystem=log.inner.filesystem) as reader:
            first = next(reader.blocks(), None)
        if first is None or isinstance(first, Damage) or not len(first.columns):
            continue
        if first.columns.timestamp[0] <= seconds:
            return file.vclock
    return None


def _files(log: Log) -> Sequence[LogFile]:
    return scan_directory(log.path, log.inner.filesystem).xlogs
