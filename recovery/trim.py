"""Cutting logs back to their data: a folder that any program takes for one with plain files.

A writer that was killed leaves zeros behind the last block of its newest log, and a filler for them
(`wal.filler`). Tarantool 2.6.0 reads that as it is. After a power cut in the middle of a write it
does not, until the folder was opened or trimmed once: an unfinished write over zeros is no longer
the end of the file.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from logweir.errors import WriteFailed
from logweir.recovery.chain import is_bad_tail
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.directory import LogFile, scan_directory
from logweir.wal.filesystem import OS, FileSystem, explaining
from logweir.wal.lease import LOCK_NAME
from logweir.wal.reader import WalReader


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A log that was cut: `path`; `size`: bytes that are left; `cut_bytes`: those that went."""

    path: Path
    size: int
    cut_bytes: int


def trim(
    directory: Path, *, dry_run: bool = False, filesystem: FileSystem = OS
) -> tuple[Trimmed, ...]:
    """Cut every log of a folder that was not closed behind its last whole block. `dry_run`: only
    say what would be cut.

    What goes are zeros written ahead, and writes that were never finished. Returns what was cut,
    oldest first. Raises `DirectoryLocked` while a writer has the folder, `CorruptBlock` where a log
    is damaged (nothing of that log is cut then) or cannot be used at all (nothing is cut),
    `WriteFailed`, `WalError`.
    """
    directory = Path(directory)
    index = scan_directory(directory, filesystem)
    if not index.files:
        raise index.unusable()
    with explaining(directory), filesystem.lock(directory / LOCK_NAME) as held:
        index = scan_directory(directory, held)
        passed = {str(log.path) for log in index.files}
        for damage in index.damage:
            if damage.file.endswith(".xlog") and damage.file not in passed:
                raise damage.to_error()
        found = [_trimmed(log, held, dry_run) for log in index.xlogs]
    return tuple(one for one in found if one is not None)


def _trimmed(log: LogFile, filesystem: FileSystem, dry_run: bool) -> Trimmed | None:
    end = _end(log, filesystem)
    if end == log.size:
        return None
    if dry_run:
        return Trimmed(log.path, end, log.size - end)
    try:
        with closing(filesystem.open_append(log.path)) as file:
            file.truncate(end)
            file.sync()
    except OSError as error:
        raise WriteFailed(
            "the log cannot be cut.", path=str(log.path), offset=end, errno=error.errno or 0
        ) from error
    return Trimmed(log.path, end, log.size - end)


def _end(log: LogFile, filesystem: FileSystem) -> int:
    """Where the log is to end, in bytes."""
    with WalReader(log.path, filesystem=filesystem) as reader:
        if reader.is_closed:
            return reader.size
        for item in reader.blocks():
            if isinstance(item, Damage) and (
                item.kind not in TAIL_KINDS or is_bad_tail(item, reader.meta)
            ):
                raise item.to_error()
        return reader.end_offset
