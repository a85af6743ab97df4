"""Data folders of a Tank broker, read for import. Nothing in them is changed.

::

    <base>/.cleanup.log                     compaction marks: topic str8, partition u16, number u64
    <base>/.<topic>/                        a topic being created: not read
    <base>/<topic>/config                   optional
    <base>/<topic>/<partition>/config       optional, overrides the topic's
    <base>/<topic>/<partition>/
        <first>-<last>[_<frozen>].ilog      immutable segment
        <first>[_<created>].log             active segment
        <first>.index, <first>_64.index     hints that can be rebuilt: not read
        *.cleaned *.swap *.old              left by an interrupted compaction

`<first>`, `<last>` are numbers of messages in decimal, `<frozen>`, `<created>` Unix seconds. A
segment is nothing but `varint length` and bundle, repeated. Its first bundle begins at `<first>`,
each ordinary one goes on at the last number + 1, a sparse one says its own. Where that begins among
numbers that were taken, its messages above them are new ones. A bundle that runs past the end of
the active segment is a torn write, at the end of an immutable one it is damage.
Partitions are numbered from 0 without holes.

If a `.cleaned` file is there the compaction had not finished: it and `.swap` files do not count and
`.old` files do, under their names without it. Else `.swap` files count and `.old` ones do not.

A broker stores bundles unseen, so a folder may hold some that no client can read: they are reported
with the numbers they take, and left out. Only if a length cannot be, the rest of the segment is
reported as lost. A topic whose folder cannot be (a hole in the partitions, two active segments) is
told with its reason, without partitions; the others are read.

Source: Tank 4.0, observed, and read in its storage code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from logweir.errors import CorruptFile, DecodeError, LimitExceeded
from logweir.limits import TANK_FRAME_BYTES, TANK_PARTITIONS
from logweir.replication.tank.follow.cursor import ReceivedBundle
from logweir.replication.topic.bundle import check_bundle, numbers_of, read_varint

_IMMUTABLE: Final = re.compile(r"(\d{1,20})-(\d{1,20})(?:_\d+)?\.ilog")
_ACTIVE: Final = re.compile(r"(\d{1,20})(?:_\d+)?\.log")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_LENGTH_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class StoredBundle(ReceivedBundle):
    """One sound bundle. `offset`: of its length in `path`."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class FolderProblem:
    """Bytes that are not imported. `kind`: `torn`, `unsound`, `lost` or `short`.

    `first`, `last`: the numbers that are missing with them, None if they cannot be told.
    """

    kind: str
    path: Path
    offset: int
    size_bytes: int
    first: int | None
    last: int | None
    message: str


@dataclass(frozen=True, slots=True)
class _Segment:
    path: Path
    first: int
    last: int | None  # None: the active one


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """One partition. `config`: its own configuration, None if it has none."""

    partition: int
    path: Path
    config: str | None
    segments: tuple[_Segment, ...]

    def bundles(self, report: Callable[[FolderProblem], None]) -> Iterator[StoredBundle]:
        """Every sound bundle in order of last numbers; what is wrong goes to `report`."""
        last = 0
        for segment in self.segments:
            for bundle in _bundles(segment, report):
                if bundle.last <= last:
                    report(_unsound(bundle, f"its numbers are below {last + 1}"))
                    continue
                last = bundle.last
                yield bundle


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """One topic. `config`: its configuration, None if it has none; `problem`: why it cannot be
    read, then it has no partitions."""

    name: str
    path: Path
    config: str | None
    partitions: tuple[PartitionFolder, ...]
    problem: str = ""


def _unsound(bundle: StoredBundle, message: str) -> FolderProblem:
    where = (bundle.path, bundle.offset, len(bundle.data))
    return FolderProblem("unsound", *where, bundle.first, bundle.last, message)


def _read_length(file: BinaryIO, offset: int) -> tuple[int, int] | None:
    """Length of the bundle at `offset` and how many bytes it is written in; None at a torn one."""
    file.seek(offset)
    data = file.read(_LENGTH_BYTES)
    try:
        return read_varint(data, 0)
    except DecodeError:
        if len(data) == _LENGTH_BYTES:
            raise
        return None


def _bundles(segment: _Segment, report: Callable[[FolderProblem], None]) -> Iterator[StoredBundle]:
    path = segment.path
    end = path.stat().st_size
    offset = 0
    number = segment.first

    def lost(kind: str, message: str) -> None:
        report(FolderProblem(kind, path, offset, end - offset, number, segment.last, message))

    with path.open("rb") as file:
        while offset < end:
            try:
                found = _read_length(file, offset)
                size, head_bytes = found or (0, 0)
                if found is None or offset + head_bytes + size > end:
                    kind = "torn" if segment.last is None else "lost"
                    lost(kind, "the last bundle runs past the end of the file")
                    return
                if size > TANK_FRAME_BYTES:
                    raise LimitExceeded("TANK_FRAME_BYTES", TANK_FRAME_BYTES, size)
                file.seek(offset + head_bytes)
                data = file.read(size)
            except (DecodeError, LimitExceeded) as error:
                lost("lost", f"the numbers from here on cannot be told: {error}")
                return
            first, last, is_certain = numbers_of(data, number)
            bundle = StoredBundle(first, last, data, path, offset)
            offset += head_bytes + size
            if first <= last < number:
                report(_unsound(bundle, f"its numbers are below {number}"))
                continue
            number = last + 1
            try:
                check_bundle(data)
            except (DecodeError, LimitExceeded) as error:
                guess = "" if is_certain else "; how many numbers it takes is not certain"
                if first <= last:
                    report(_unsound(bundle, f"{error}{guess}"))
                continue
            yield bundle
    if segment.last is not None and number != segment.last + 1:
        lost("short", f"it ends with number {number - 1}, its name says {segment.last}")


def _effective_names(folder: Path) -> dict[str, Path]:
    """Names of segment files with the files that count for them after a crash."""
    files = [path for path in folder.iterdir() if path.is_file()]
    counted, ignored = ".swap", ".old"
    if any(path.name.endswith(".cleaned") for path in files):
        counted, ignored = ".old", ".swap"
    names = {path.name: path for path in files}
    for path in files:
        if path.name.endswith(counted):
            names[path.name.removesuffix(counted)] = path
    return {
        name: path
        for name, path in names.items()
        if not name.endswith((counted, ignored, ".cleaned"))
    }


def _segments(folder: Path) -> tuple[_Segment, ...]:
    immutable = []
    active = []
    for name, path in _effective_names(folder).items():
        if match := _IMMUTABLE.fullmatch(name):
            immutable.append(_Segment(path, int(match[1]), int(match[2])))
        elif match := _ACTIVE.fullmatch(name):
            active.append(_Segment(path, int(match[1]), None))
    if len(active) > 1:
        raise CorruptFile(
            f"{len(active)} active segments: {', '.join(sorted(s.path.name for s in active))}",
            path=str(folder),
            hint="a partition has one; move away the one that is not part of it",
        )
    return (*sorted(immutable, key=lambda segment: segment.first), *active)


def _config(folder: Path) -> str | None:
    path = folder / "config"
    return path.read_text(errors="replace") if path.is_file() else None


def _topic(folder: Path) -> TopicFolder | None:
    numbers = sorted(
        int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()
    )
    if not numbers:
        return None
    if numbers != list(range(len(numbers))) or len(numbers) > TANK_PARTITIONS:
        missing = next((i for i, number in enumerate(numbers) if i != number), TANK_PARTITIONS)
        raise CorruptFile(
            f"partition {missing} is missing below {numbers[-1]}",
            path=str(folder),
            hint="partitions are numbered from 0 without holes; restore or renumber them",
        )
    paths = [folder / str(number) for number in numbers]
    partitions = tuple(
        PartitionFolder(number, path, _config(path), _segments(path))
        for number, path in enumerate(paths)
    )
    return TopicFolder(folder.name, folder, _config(folder), partitions)


def read_folder(base: Path) -> tuple[TopicFolder, ...]:
    """The topics of a broker's data folder, by name, also those that have a `problem`.

    Raises `CorruptFile` if there is no topic at all, `OSError` if the folder cannot be read.
    """
    found = []
    for folder in sorted(base.iterdir()):
        if folder.is_dir() and _NAME.fullmatch(folder.name):
            try:
                topic = _topic(folder)
            except CorruptFile as error:
                topic = TopicFolder(folder.name, folder, None, (), str(error))
            if topic is not None:
                found.append(topic)
    if not found:
        raise CorruptFile(
            "no topic in it", path=str(base), hint="give the folder that the broker has as -p"
        )
    return tuple(found)
