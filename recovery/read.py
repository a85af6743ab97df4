"""Reading rows from files and folders without a store: nothing is locked, nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from logweir.errors import CorruptFile
from logweir.recovery.chain import (
    border,
    foreign_tail,
    is_bad_tail,
    missing_begin,
    missing_end,
    own_mark,
)
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.directory import LogFile, no_store, scan_directory
from logweir.wal.endmark import load_end_mark
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.lease import leased
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row

Tell = Callable[[Damage], None]


def read(
    path: str | os.PathLike[str],
    *,
    on_damage: Tell | None = None,
    filesystem: FileSystem = OS,
) -> Iterator[Row]:
    """The rows of an xlog or snap file, or of all of a folder, oldest file first.

    `path`: a file or folder, ours or a Tarantool's; `on_damage`: called for each damaged place,
    and reading goes on behind it; without it `CorruptBlock` is raised there (an unfinished last
    write is an ending, not damage). Rows that are missing between the files of a folder, or behind
    the newest log, are damage too, as for `logweir cat`. Memory is constant. Raises `CorruptFile`,
    `WalError`.
    """
    start = Path(path)
    with leased(start):
        if _is_folder(start, filesystem):
            yield from _folder(start, filesystem, on_damage)
        else:
            with WalReader(start, filesystem=filesystem, skip_damage=on_damage is not None) as file:
                yield from _rows(file, on_damage)


def _folder(path: Path, filesystem: FileSystem, on_damage: Tell | None) -> Iterator[Row]:
    said = load_end_mark(path, filesystem)  # before the folder is listed
    index = scan_directory(path, filesystem)
    mark, _ = own_mark(said, index)
    if not index.files and not index.damage and mark is None:
        raise no_store(path)
    for damage in index.damage:
        if on_damage is None:
            raise CorruptFile(damage.message, path=damage.file, hint=damage.hint)
        on_damage(damage)
    tell = on_damage or _raise
    newest = index.newest_snap()
    if newest and index.xlogs and not index.xlogs_after(newest.vclock):
        tell(missing_begin(newest.vclock, index.xlogs[0]))
    before: tuple[LogFile, VClock, int] | None = None
    end = VClock()
    for file in index.files:
        if file.suffix == "vylog":
            continue
        with WalReader(
            file.path, filesystem=filesystem, skip_damage=on_damage is not None
        ) as reader:
            if file.suffix == "snap":
                yield from _rows(reader, on_damage)
                end = end.merge(file.vclock)
                continue
            if before is not None and (found := border(*before, file)) is not None:
                tell(found)
            yield from _rows(reader, on_damage)
            before = file, reader.vclock, reader.end_offset
            end = end.merge(reader.vclock)
    if (lost := missing_end(mark, index, end)) is not None:
        tell(lost)


def _rows(reader: WalReader, on_damage: Tell | None) -> Iterator[Row]:
    for item in reader.blocks():
        if not isinstance(item, Damage):
            yield from item.rows()
            continue
        is_bad = is_bad_tail(item, reader.meta)
        damage = foreign_tail(item) if is_bad else item
        if on_damage is not None:
            on_damage(damage)
        elif is_bad or item.kind not in TAIL_KINDS:
            raise damage.to_error()


def _raise(damage: Damage) -> None:
    raise damage.to_error()


def _is_folder(path: Path, filesystem: FileSystem) -> bool:
    try:
        filesystem.list_directory(path)
    except OSError:
        return False  # a file, or something that opening it says more about
    return True
