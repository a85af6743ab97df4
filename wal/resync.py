"""Making stable what a process that ended left at the end of a log.

What can be read of a log need not be on stable storage: its writer may have been killed between a
write and the sync, or the sync failed. After a sync that failed Linux takes the pages for clean:
programs go on seeing them, and the next sync saves nothing of them and says that all is well. So
before anything is built on such bytes they are written once more, over themselves, and synced.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import FileSystem, explain

_PIECE_BYTES: Final = 1024 * 1024


class Unsynced(NamedTuple):
    """The end of a log that may not be on stable storage, in bytes of `path`. `is_known`: all
    before `start` is stable."""

    path: Path
    start: int
    stop: int
    is_known: bool


def resync(end: Unsynced, filesystem: FileSystem, *, whole: bool) -> None:
    """Have the end of a log on stable storage when this returns; `whole`: everything up to there.
    What is read does not change, wherever this is stopped. Raises `WalError`."""
    at = 0 if whole else end.start
    if at >= end.stop:
        return
    failpoint("wal.before_resync")
    try:
        with (
            closing(filesystem.open_read(end.path)) as source,
            closing(filesystem.open_append(end.path)) as target,
        ):
            while piece := source.read(min(_PIECE_BYTES, end.stop - at), at):
                target.put([piece], at)
                at += len(piece)
            target.sync()
    except OSError as error:
        raise explain(error, str(end.path), at) from error
