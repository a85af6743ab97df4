"""Which rows a scan asks for that none of its files has, as headers and end marks tell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from logweir.pipeline.options import ScanOptions
from logweir.recovery.chain import missing_begin, missing_end, own_mark
from logweir.wal.damage import Damage
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.endmark import EndMark
from logweir.wal.filesystem import FileSystem
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock


def reached(path: Path, filesystem: FileSystem) -> VClock:
    """The vclock at the end of a file, or in front of the first damage in it."""
    with WalReader(path, filesystem=filesystem) as reader:
        for item in reader.blocks():
            if isinstance(item, Damage):
                break
        return reader.vclock


def gap_before(file: LogFile, before: LogFile) -> str:
    """What is missing in front of a log, by the headers of it and the one before it."""
    previous = file.meta.prev_vclock
    if previous is None or previous == before.vclock:
        return ""
    return (
        f"a log is missing before this one: it follows the log that begins at {previous}; "
        f"{before.path.name} begins at {before.vclock}"
    )


def missing_begins(folders: Iterable[tuple[str, DirectoryIndex]]) -> dict[tuple[str, str], str]:
    """What is missing in front of the oldest log of a folder, by its location and path: it begins
    behind the newest snapshot, of the folder or else its store, and no folder has what is between.
    """
    stores: dict[UUID | None, list[tuple[str, DirectoryIndex]]] = {}
    for one in folders:
        stores.setdefault(one[1].instance, []).append(one)
    gaps = {}
    for own in stores.values():
        snaps = [index.snaps[-1] for _, index in own if index.snaps]
        begins = [index.xlogs[0].vclock for _, index in own if index.xlogs]
        for location, index in own if snaps else ():
            snap = (index.snaps or [max(snaps, key=lambda one: one.signature)])[-1]
            if index.xlogs and not any(map(snap.vclock.covers, begins)):
                oldest = index.xlogs[0]
                gaps[location, str(oldest.path)] = missing_begin(snap.vclock, oldest).message
    return gaps


def lost_behind(
    said: EndMark | str | None, index: DirectoryIndex, filesystem: FileSystem, options: ScanOptions
) -> Damage | None:
    """What is missing behind the newest log, where it is wanted. `said`: what `load_end_mark` gave
    before the folder was listed."""
    mark, _ = own_mark(said, index)
    if mark is None or any(
        file.path.name == mark.file and file.size >= mark.offset for file in reversed(index.files)
    ):
        return None
    end = VClock()
    for file in (*index.snaps, *index.xlogs):
        end = end.merge(file.vclock)
    if index.xlogs and not end.covers(mark.vclock):
        end = end.merge(reached(index.xlogs[-1].path, filesystem))
    return None if is_outside(end, None, options) else missing_end(mark, index, end)


def lost_within(
    path: Path, mark: EndMark | None, filesystem: FileSystem, options: ScanOptions
) -> Damage | None:
    """What is missing of a log that has the size which `mark` says, but not the blocks."""
    end = reached(path, filesystem)
    if is_outside(end, None, options):
        return None
    return missing_end(mark, scan_directory(path.parent, filesystem), end)


def begins_behind(end: VClock, options: ScanOptions) -> bool:
    """Whether no row up to `end` is wanted."""
    if options.vclock_from is not None and options.vclock_from.covers(end):
        return True
    if options.replica_id is None or options.lsn_from is None:
        return False
    return end.lsn(options.replica_id) < options.lsn_from


def is_outside(begin: VClock, after: LogFile | None, options: ScanOptions) -> bool:
    """Whether no row behind `begin`, and in front of the log `after`, is wanted."""
    if after is not None:
        if begins_behind(after.vclock, options):
            return True
        replica = options.replica_id
        if replica is not None and after.vclock.lsn(replica) == begin.lsn(replica):
            return True
    if options.vclock_to is not None and begin.covers(options.vclock_to):
        return True
    if options.replica_id is not None and options.lsn_to is not None:
        return begin.lsn(options.replica_id) >= options.lsn_to
    return False
