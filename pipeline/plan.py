"""Which bytes of which files a scan reads, and in which tasks. Reads headers only, and, where a log
is missing behind another one, that one to its end.

Whether the newest rows are gone is known by the end mark beside the logs, and by names and sizes.

A *range* is a part of one file: the blocks whose first byte lies in it. A *split* is what one task
reads: one range of a large file, or several small files. Splits are in the order of reading: files
by signature, a snapshot before the log of the same one, ranges by offset.

Which files are left out: an xlog whose header's vclock is V holds rows after V, and all it holds
are in the `VClock` W of the next one in its folder. It is left out where the lower bound holds W,
or V is at or above the upper bound in every component that the upper bound has; components are
compared one by one, never their sums. Rows that are missing in front of a log count as part of it,
so that it is there to tell. The newest file has no known end: no lower bound leaves it
out. Times leave nothing out: clocks step back, and a header has none. Snapshots are never left out
by vclock or lsn: their lsns are row numbers (Tarantool 2.6.0, observed).

Where a file is cut (`split_mode`): `exact` reads the headers of all blocks and cuts at a block;
`resync` cuts anywhere, and the task looks for the first block in its range by magic, header and
checksum, which a stored value that holds a whole block would deceive; `none` does not cut.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from logweir.errors import ConfigError, CorruptFile, WalError
from logweir.limits import PIPELINE_OPENING_BYTES, PIPELINE_SPLIT_BYTES
from logweir.pipeline.missing import (
    gap_before,
    is_outside,
    lost_behind,
    missing_begins,
    reached,
)
from logweir.pipeline.options import ORIGIN, ScanOptions, shown
from logweir.pipeline.storage import CutFile, open_storage
from logweir.recovery.chain import own_mark
from logweir.store.engine.settling import SEARCH_BYTES, is_said, judged, may_wait
from logweir.wal.crc32c import checksum
from logweir.wal.damage import Damage, DamageKind
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.endmark import EndMark, load_end_mark
from logweir.wal.filesystem import OS, FileSystem, each, explain
from logweir.wal.lease import leased
from logweir.wal.meta import FileKind
from logweir.wal.reader import Block, WalReader
from logweir.wal.settled import ALL_SETTLED, Settled
from logweir.wal.spacenames import SpaceNames
from logweir.wal.vclock import VClock
from logweir.wal.walk import walk_blocks

Item = TypeVar("Item")
_HEADS_BYTES: Final = 4096
_NO_FOLDER: Final = (errno.ENOTDIR, errno.ENOENT, errno.ELOOP)
"""What the system says of a file, of what has gone, and of a link that leads nowhere."""


class Source(NamedTuple):
    """One file to read. `location`: the folder's or file's path or URL as it was given; `path`:
    in its file system; `following`: the `VClock` of the next log of its folder, None if it is the
    newest; `gap`: what its header says of a log before it that is not there, "" if none is missing;
    `lost`: rows that are gone behind it, where it is the last file of its folder; `size`: bytes of
    data when it was planned; `first_block`: where its header ends; `settled`: what of its rows is
    wanted; `looked`: it was looked for rows that make a space synchronous: `settled` says what
    follows; `head`: checksum of its header, None if that is not known; `mark`: the end mark beside
    it, if it is of this file."""

    location: str
    path: str
    number: int
    kind: FileKind
    vclock: VClock
    following: VClock | None
    size: int
    first_block: int
    gap: str = ""
    lost: Damage | None = None
    settled: Settled = ALL_SETTLED
    looked: bool = True
    head: int | None = None
    mark: EndMark | None = None


class Range(NamedTuple):
    """The blocks of `source` that begin in `start` … `end` - 1. `exact`: `start` is a block's."""

    source: Source
    start: int
    end: int
    exact: bool = True

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads, in this order. `damage`: files that cannot be read, to be listed."""

    ranges: tuple[Range, ...]
    damage: tuple[Damage, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(one.size for one in self.ranges)


@dataclass(frozen=True, slots=True)
class Plan:
    """A scan. `spaces`: ids of the wanted spaces, empty for all."""

    sources: tuple[Source, ...]
    splits: tuple[Split, ...]
    spaces: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(split.size for split in self.splits)


def plan(options: ScanOptions, *, waits: bool = False, looks: bool = True) -> Plan:
    """Plan a scan of `options.paths`. `waits`: it is known that there are synchronous spaces;
    `looks`: look for them in logs that will be read, too, which unpacks these once more.

    Raises `WalError` and its kinds for what is missing, foreign, mixed or has no usable header,
    `ConfigError` for a space name that no file defines.
    """
    with _UNCOLLECTED:
        return _plan(options, waits, looks)


class _Uncollected:
    """Around plans. Nothing of one is garbage, but the collector would look at all of it again and
    again: a fifth of the time of 100,000 files. It comes back with the end of the last plan, if it
    was there before the first one."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._plans = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._plans:
                self._was_enabled = gc.isenabled()
            self._plans += 1
            gc.disable()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._plans -= 1
            if self._was_enabled and not self._plans:
                gc.enable()


_UNCOLLECTED: Final = _Uncollected()


def _plan(options: ScanOptions, waits: bool, looks: bool) -> Plan:
    sources: list[Source] = []
    damage: list[Damage] = []
    folders: list[tuple[str, DirectoryIndex]] = []
    for location in options.paths:
        for folder in _folders(location, options, damage):
            said = load_end_mark(folder.path, folder.filesystem)  # before the folder is listed
            says = _says_from(folder) if _searches(options, waits, looks) else None
            most = SEARCH_BYTES if folder.filesystem.readers == 1 else None
            look = partial(_looked_in, says=says, most=most)
            with leased(folder.path) if folder.filesystem is OS else nullcontext():
                index, wanted = _index(folder, options, look)
                found = _sources(folder, index, wanted, options, len(sources), waits, looks)
            if found and "xlog" in options.kinds:
                lost = lost_behind(said, index, folder.filesystem, options)
                found[-1] = found[-1]._replace(lost=lost)
                mark, _ = own_mark(said, index)
                if mark is not None and lost is None:
                    found = [
                        one._replace(mark=mark) if one.path.endswith(mark.file) else one
                        for one in found
                    ]
            sources += found
            damage += index.damage
            if not folder.is_file:
                folders.append((location, index))
    gaps = missing_begins(folders)
    if gaps:
        sources = [one._replace(gap=gaps.get(one[:2], one.gap)) for one in sources]
    ranges = [one for source in sources for one in _cut(source, options)]
    tasks = together(ranges, lambda one: one.size, options.split_bytes)
    splits = [Split(some) for some in tasks]
    if damage and options.on_error == "report":
        splits.append(Split((), tuple(damage)))
    return Plan(tuple(sources), tuple(splits), space_ids(options))


def space_ids(options: ScanOptions, *, awaited: bool = False) -> frozenset[int]:
    """The ids of `options.spaces`; names are looked up in the logs and snapshots.

    `awaited`: names that none of them defines are left out. Raises `ConfigError` for one otherwise,
    and where an id that a name has in one store is that of another name in another store.
    """
    wanted = {one for one in options.spaces if isinstance(one, str)}
    ids = {one for one in options.spaces if isinstance(one, int)}
    found: dict[int, str] = {}
    stores: list[tuple[UUID | None, Path, SpaceNames]] = []
    for location in options.paths if wanted else ():
        for folder in _folders(location, options, []):
            instance, names = _names(folder)
            stores.append((instance, folder.path, names))
            found |= {number: name for number, name in names.items() if name in wanted}
    missing = wanted - set(found.values())
    if missing and not awaited:
        raise ConfigError(
            "spaces",
            f"{min(missing)!r} is no space of this log.",
            origin=ORIGIN,
            hint="names are those of `logweir info`; a number is always taken",
        )
    for number in found.keys() - ids:
        # Of one store it may be the same space, renamed in between.
        alike = {one for one, _, names in stores if names.get(number) in wanted}
        for instance, path, names in stores:
            if number in names and instance not in alike:
                text = f"{found[number]!r} is space {number}, which is {names[number]!r} in "
                text += f"{path}, of another store."
                hint = "read one store; or name the number, if all that it means is wanted"
                raise ConfigError("spaces", text, origin=ORIGIN, hint=hint)
    return frozenset(ids | found.keys())


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Folder:
    location: str
    filesystem: FileSystem
    path: Path
    is_file: bool

    @property
    def real(self) -> str:
        """The path without links, where there are any."""
        return os.path.realpath(self.path) if self.filesystem is OS else str(self.path)


def _folders(location: str, options: ScanOptions, damage: list[Damage]) -> Iterator[_Folder]:
    """The folder of that name, and those below it; to `damage` come those that cannot be listed,
    unless that is to be an error."""
    filesystem, path = open_storage(location)
    try:
        names = filesystem.list_directory(path)
    except NotADirectoryError:
        yield _Folder(location, filesystem, path, True)
        return
    except OSError as error:
        raise explain(error, shown(location)) from error
    found = _Folder(location, filesystem, path, False)
    yield found
    if options.recursive:
        unread = None if options.on_error == "fail" else damage
        yield from _below(found, names, {found.real}, unread)


def _below(
    folder: _Folder, names: Iterable[str], seen: set[str], unread: list[Damage] | None
) -> Iterator[_Folder]:
    """The folders below one, each once, whatever links lead there. `names`: what stands in it;
    `seen`: those that are known, to which these come; `unread`: to which those come that cannot be
    listed. Raises `WalError` for one where it is None."""
    for name in names:
        path = folder.path / name
        if name.startswith(".") or path.suffix in (".xlog", ".snap", ".vylog"):
            continue
        try:
            inside = folder.filesystem.list_directory(path)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                continue
            told = explain(error, shown(str(path)))
            if unread is None:
                raise told from error
            text, hint = told.reason, told.hint
            unread.append(Damage(DamageKind.UNREADABLE, str(path), 0, 0, text, hint=hint))
            continue
        found = _Folder(folder.location, folder.filesystem, path, False)
        if found.real not in seen:
            seen.add(found.real)
            yield found
            yield from _below(found, inside, seen, unread)


def _index(
    folder: _Folder, options: ScanOptions, look: Callable[[WalReader], object]
) -> tuple[DirectoryIndex, list[LogFile]]:
    """The index of the folder, and those of its files that are of the wanted kinds."""
    if folder.is_file:
        index = replace(scan_directory(folder.path.parent, folder.filesystem), damage=[])
        wanted = [file for file in index.files if file.path.name == folder.path.name]
        if not wanted:
            wanted = [_single(folder)]
    else:
        index = scan_directory(folder.path, folder.filesystem, look)
        for damage in index.damage:
            if options.on_error == "fail":
                raise CorruptFile(damage.message, path=damage.file, hint=damage.hint)
        files = index.files
        if not files and not options.recursive:
            raise WalError(
                "holds no log or snapshot.",
                path=shown(folder.location),
                hint="name the folder that has the .xlog and .snap files, or use recursive",
            )
        wanted = [file for file in files if file.suffix in options.kinds]
    return index, wanted


def _single(folder: _Folder) -> LogFile:
    """A file under a name that no index takes. Raises what a reader of it raises."""
    with WalReader(folder.path, filesystem=folder.filesystem) as reader:
        suffix = "snap" if reader.meta.kind == "SNAP" else "xlog"
        return LogFile(
            folder.path,
            suffix,  # type: ignore[arg-type]
            reader.meta.vclock.signature,
            reader.meta,
            reader.data_end,
        )


def _sources(
    folder: _Folder,
    index: DirectoryIndex,
    wanted: list[LogFile],
    options: ScanOptions,
    first: int,
    waits: bool,
    looks: bool,
) -> list[Source]:
    logs = index.xlogs
    number = {id(log): at for at, log in enumerate(logs)}
    found: list[Source] = []
    kept: list[tuple[LogFile, LogFile | None, str]] = []
    for file in wanted:
        gap, begin, after = "", file.vclock, None
        if (at := number.get(id(file))) is not None:
            after = logs[at + 1] if at + 1 < len(logs) else None
            if at and (gap := gap_before(file, logs[at - 1])):
                begin = reached(logs[at - 1].path, folder.filesystem)  # what is missing counts
            elif not at and index.snaps:
                begin = min(begin, index.snaps[-1].vclock, key=lambda one: one.signature)
        if file.suffix != "xlog" or not is_outside(begin, after, options):
            kept.append((file, after, gap))
    look = partial(_looked_at, filesystem=folder.filesystem)
    looked_at = list(each(folder.filesystem, look, [file for file, _, _ in kept]))
    if looks:
        known = [(file, file.looked) for file in index.xlogs if isinstance(file.looked, _Looked)]
        besides = {str(file.path) for file, one in known if one.is_searched}
        waits = waits or any(one.is_said for _, one in known)
    else:  # whoever reads them looks
        besides = {str(file.path) for file, _, _ in kept}
    settled, looked = _settled(folder, index, wanted, options, waits, besides, looks)
    for (file, after, gap), at_it in zip(kept, looked_at, strict=True):
        own = ALL_SETTLED
        if file.suffix == "xlog":
            if settled.limit is not None and not settled.limit.covers(file.vclock):
                continue
            own = settled.within(file.vclock, after.vclock if after else None)
            after = after if own.limit is None else None
        found.append(
            Source(
                location=folder.location,
                path=str(file.path),
                number=first + len(found),
                kind=file.meta.kind,
                vclock=file.vclock,
                following=after.vclock if after else None,
                size=at_it.size,
                first_block=at_it.first_block,
                gap=gap,
                settled=own,
                looked=looked,
                head=at_it.head,
            )
        )
    return found


class _Looked(NamedTuple):
    """What a look into a file found: see `Source`, and `settling.is_said`, if it `is_searched`."""

    size: int
    first_block: int
    head: int
    is_said: bool
    is_searched: bool

    @classmethod
    def into(cls, reader: WalReader, is_searched: bool) -> _Looked:
        """Look into an open file. Raises `WalError`."""
        head = checksum(reader.bytes_at(0, reader.first_block))  # it is in the window now
        is_found = is_searched and is_said(reader)
        return cls(reader.data_end, reader.first_block, head, is_found, is_searched)


def _searches(options: ScanOptions, waits: bool, looks: bool) -> bool:
    """Whether logs are searched for rows that make a space synchronous."""
    return options.settled and looks and not waits and "xlog" in options.kinds


def _says_from(folder: _Folder) -> int:
    """The number of the first log to search, by names: see `logs_that_say`."""
    found: dict[str, list[int]] = {"snap": [], "xlog": []}
    for name in () if folder.is_file else folder.filesystem.list_directory(folder.path):
        stem, _, suffix = name.rpartition(".")
        if suffix in found and stem.isdecimal():
            found[suffix].append(int(stem))
    newest = max(found["snap"], default=0)
    return max((one for one in found["xlog"] if one <= newest), default=0)


def _looked_in(reader: WalReader, says: int | None, most: int | None) -> _Looked | None:
    """A look at a file that the index has open; None where it cannot be read, which whoever opens
    it again tells. `says`: the number of the first log to search; `most`: not of more bytes, since
    those are searched side by side."""
    stem, _, suffix = reader.path.name.rpartition(".")
    is_wanted = says is not None and suffix == "xlog" and int(stem) >= says
    is_wanted &= most is None or reader.size <= most
    try:
        return _Looked.into(reader, is_wanted)
    except WalError:
        return None


def _looked_at(file: LogFile, filesystem: FileSystem) -> _Looked:
    if isinstance(file.looked, _Looked):
        return file.looked
    with WalReader(file.path, filesystem=filesystem, skip_damage=True) as reader:
        return _Looked.into(reader, False)


def _settled(
    folder: _Folder,
    index: DirectoryIndex,
    wanted: list[LogFile],
    options: ScanOptions,
    waits: bool,
    besides: set[str],
    looks: bool,
) -> tuple[Settled, bool]:
    """What is settled of the logs of a folder, and whether that is known; `besides`: files that
    `waits` tells of, if something `looks`, else those that are read."""
    logs = [file.vclock for file in wanted if file.suffix == "xlog"]
    path = folder.path.parent if folder.is_file else folder.path
    if not (options.settled and logs):
        return ALL_SETTLED, True
    if not (waits or may_wait(path, folder.filesystem, besides, index=index)):
        return ALL_SETTLED, looks or not besides
    tolerant = options.on_error != "fail"
    return judged(path, logs[0], folder.filesystem, tolerant=tolerant), True


def _names(folder: _Folder) -> tuple[UUID | None, SpaceNames]:
    """Whose the folder is, and the names of its spaces, by id."""
    path = folder.path.parent if folder.is_file else folder.path
    index = scan_directory(path, folder.filesystem)
    if not index.files:
        return None, SpaceNames()
    newest = index.files[-1].path
    names = SpaceNames.before(newest, folder.filesystem)
    with WalReader(newest, filesystem=folder.filesystem, skip_damage=True) as reader:
        for item in reader.blocks():
            if isinstance(item, Block):
                names.learn(item.columns)
    return index.instance, names


# --- ranges ---------------------------------------------------------------------------------------


def _cut(source: Source, options: ScanOptions) -> list[Range]:
    start, end, step = source.first_block, source.size, options.split_bytes
    if options.split_mode == "none" or end - start <= step + step // 8:
        return [Range(source, start, end)]
    if options.split_mode == "resync":
        cuts = list(range(start + step, end - step // 8, step))
        edges = [start, *cuts, end]
        return [Range(source, one, other, exact=one == start) for one, other in pairwise(edges)]
    filesystem, _ = open_storage(source.location)
    edges = [start, *_block_cuts(source, filesystem, step), end]
    return [Range(source, one, other) for one, other in pairwise(edges)]


def _block_cuts(source: Source, filesystem: FileSystem, step: int) -> Iterator[int]:
    """Blocks at which the file is cut into parts of about `step` bytes."""
    try:
        opened = filesystem.open_read(Path(source.path))
    except OSError as error:
        raise explain(error, source.path) from error
    file = CutFile(opened, source.size)
    try:
        target = source.first_block + step
        # An object store takes as long for little as for much.
        least = _HEADS_BYTES if filesystem.readers == 1 else None
        for walked in walk_blocks(file, source.first_block, source.size, least=least):
            while target < walked.end:
                index = bisect_left(walked.table, target - walked.at, 0, walked.blocks)
                if index == walked.blocks:
                    break
                cut = walked.at + walked.table[index]
                if source.size - cut < step // 8:
                    return
                yield cut
                target = cut + step
    except OSError as error:
        raise explain(error, source.path) from error
    finally:
        file.close()


def together(
    items: Iterable[Item], size: Callable[[Item], int], most: int = PIPELINE_SPLIT_BYTES
) -> Iterator[tuple[Item, ...]]:
    """Small neighbours together, so that tasks are of about one size. `size`: bytes of an item, to
    which its opening comes; `most`: of those that are put together."""
    pending: list[Item] = []
    total = 0
    for one in items:
        cost = size(one) + PIPELINE_OPENING_BYTES
        if pending and total + cost > most:
            yield tuple(pending)
            pending, total = [], 0
        pending.append(one)
        total += cost
    if pending:
        yield tuple(pending)
