"""The tail of a live folder: from one vclock to the next, block by block. Nothing of Spark.

A position is a vclock at which a block ends, so that no transaction is divided. `advance` goes on
from a position by whole blocks, at least one, as far as the caps allow; `ranges` gives the bytes
between two positions, and is a function of the two alone: asked again after a restart it names the
same rows, as long as the logs are there. What `advance` went over is remembered, so that the
usual question costs nothing.

Only whole blocks with the right checksum count, as `wal.follow` says; and what is given as a
position is on stable storage, also where the writer has not synced it. A log that was collected is
`PositionUnavailable`, or, with `fail_on_data_loss=false`, passed over.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from logweir.errors import PositionUnavailable, WalError
from logweir.pipeline.missing import lost_behind
from logweir.pipeline.options import ScanOptions, shown
from logweir.pipeline.plan import Range, Source, Split
from logweir.pipeline.storage import open_storage
from logweir.store.engine.settling import judge_at
from logweir.wal.directory import scan_directory
from logweir.wal.endmark import load_end_mark
from logweir.wal.filesystem import FileSystem, explain
from logweir.wal.follow import Follower
from logweir.wal.reader import Block
from logweir.wal.settled import ALL_SETTLED, Settled
from logweir.wal.vclock import VClock

_REMEMBERED: Final = 64


@dataclass(frozen=True, slots=True)
class Caps:
    """How far one step goes at most; None: no matter."""

    rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None


NO_CAPS: Final = Caps()


@dataclass(slots=True)
class _Segment:
    """Blocks of one file, one behind the other."""

    path: str
    start: int
    end: int


class _Cursor:
    """A place in the log that goes on block by block and can look one ahead."""

    def __init__(
        self,
        directory: Path,
        filesystem: FileSystem,
        start: VClock,
        is_settled: Callable[[Block], bool],
    ) -> None:
        self.position = start
        self._is_settled = is_settled
        self._follower = Follower(directory, start, filesystem=filesystem)
        self._polled: Iterator[Block] = iter(())
        self._held: Block | None = None
        self._filesystem = filesystem
        self._unsettled: set[Path] = set()

    def peek(self) -> Block | None:
        """The next block, None if there is none yet, or rows of it wait."""
        if self._held is None:
            self._held = next(self._polled, None)
        if self._held is None:
            self._polled = self._follower.poll()
            self._held = next(self._polled, None)
        return self._held if self._held is None or self._is_settled(self._held) else None

    def take(self) -> None:
        """Go over the block that was looked at."""
        assert self._held is not None
        self.position = self.position.merge(self._held.columns.last_lsns())
        self._unsettled.add(Path(self._held.path))
        self._held = None

    def settle(self) -> None:
        """Have everything up to the position on stable storage, whoever wrote it: its writer may
        not have synced it yet, and would begin before the position after a power cut. Raises
        `WalError`."""
        for path in self._unsettled:
            try:
                self._filesystem.sync_file(path)
                self._filesystem.sync_directory(path.parent)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.ENOENT):
                    raise explain(error, str(path)) from error
        self._unsettled.clear()

    def close(self) -> None:
        """Close its file."""
        self._follower.close()


class _Settling:
    """What is settled of a folder that somebody else writes, from a position on."""

    def __init__(self, directory: Path, filesystem: FileSystem, start: VClock) -> None:
        self._judge, begin = judge_at(directory, start, filesystem)
        self._follower = Follower(directory, begin, filesystem=filesystem)
        self.settled = ALL_SETTLED

    def close(self) -> None:
        """Close its file, until it is asked again."""
        self._follower.close()

    def covers(self, block: Block) -> bool:
        """Whether all rows of a block that is there are settled."""
        if self._is_limit_behind(block):
            return True
        for ahead in self._follower.poll():
            self._judge.take(ahead.columns)
        self.settled = self._judge.settled
        return self._is_limit_behind(block)

    def _is_limit_behind(self, block: Block) -> bool:
        reached = self.settled.limit or self._follower.vclock
        return reached.covers(block.columns.last_lsns())


class Tail:
    """One folder. `options`: as of the format; keeps files open, so it is made where it is used."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._location = options.paths[0]
        self._filesystem, self._directory = open_storage(self._location)
        self._instance: UUID | None = None
        self._cursor: _Cursor | None = None
        self._end: _Cursor | None = None
        self._begun = VClock()  # what is settled is known from here on
        self._settling: _Settling | None = None
        self._went: OrderedDict[tuple[VClock, VClock], list[_Segment]] = OrderedDict()

    def close(self) -> None:
        """Close the files."""
        for one in (self._cursor, self._end, self._settling):
            if one is not None:
                one.close()
        self._cursor = self._end = self._settling = None

    @property
    def instance(self) -> str:
        """Whose folder it is, "" as long as nothing in it says so."""
        if self._instance is None:
            self._instance = scan_directory(self._directory, self._filesystem).instance
        return str(self._instance or "")

    def oldest(self) -> VClock:
        """The first position that the folder has. Raises `WalError` where it has none."""
        index = scan_directory(self._directory, self._filesystem)
        if index.xlogs:
            return index.xlogs[0].vclock
        snap = index.newest_snap()
        if snap is None:
            raise WalError(
                "holds no log and no snapshot, so there is nothing to follow.",
                path=shown(self._location),
                hint="name the folder of a store that has been started once",
            )
        return snap.vclock

    def newest(self) -> VClock:
        """The position behind the last whole block. Raises `CorruptBlock` where the newest rows are
        gone when it is first asked."""
        if self._end is None:
            said = load_end_mark(self._directory, self._filesystem)
            index = scan_directory(self._directory, self._filesystem)
            lost = lost_behind(said, index, self._filesystem, self._options)
            if lost is not None and self._options.fail_on_data_loss:
                raise lost.to_error()
            start = index.xlogs[-1].vclock if index.xlogs else self.oldest()
            self._end = self._open(start)
        while self._end.peek() is not None:
            self._end.take()
        self._end.settle()
        return self._end.position

    def advance(self, start: VClock, caps: Caps = NO_CAPS, upto: VClock | None = None) -> VClock:
        """The position that a step from `start` reaches; `start` if there is nothing new.

        `upto`: a position not to go beyond. Raises `PositionUnavailable`, `CorruptBlock`,
        `ChainGap`.
        """
        cursor = self._cursor
        if cursor is None or cursor.position != start:
            if cursor is not None:
                cursor.close()
            self._cursor = cursor = self._open(self._after_loss(start))
        segments: list[_Segment] = []
        rows = size = 0
        files: set[str] = set()
        while upto is None or not cursor.position.covers(upto):
            block = cursor.peek()
            if block is None:
                break
            rows += len(block.columns)
            size += block.end - block.offset
            files.add(block.path)
            if segments and (
                (caps.rows is not None and rows > caps.rows)
                or (caps.size_bytes is not None and size > caps.size_bytes)
                or (caps.files is not None and len(files) > caps.files)
            ):
                break
            self._extend(segments, block)
            cursor.take()
        cursor.settle()
        self._remember(start, cursor.position, segments)
        return cursor.position

    def splits(self, start: VClock, end: VClock) -> list[Split]:
        """What lies between two positions, as work for tasks. Raises as `advance`."""
        segments = self._went.get((start, end))
        if segments is None:
            segments = self._walk(start, end)
        numbers = {
            path: number for number, path in enumerate(dict.fromkeys(s.path for s in segments))
        }
        return [
            Split((self._range(segment, numbers[segment.path], start, end),))
            for segment in segments
        ]

    def _range(self, segment: _Segment, number: int, start: VClock, end: VClock) -> Range:
        settled = self._settling.settled if self._settling is not None else ALL_SETTLED
        source = Source(
            location=self._location,
            path=segment.path,
            number=number,
            kind="XLOG",
            vclock=start,
            following=None,
            size=segment.end,
            first_block=segment.start,
            settled=Settled(undone=settled.within(start, end).undone),
        )
        return Range(source, segment.start, segment.end)

    def _walk(self, start: VClock, end: VClock) -> list[_Segment]:
        cursor = self._open(self._after_loss(start))
        segments: list[_Segment] = []
        try:
            while not cursor.position.covers(end):
                block = cursor.peek()
                if block is None:
                    raise PositionUnavailable(
                        end,
                        start,
                        cursor.position,
                        hint=f"{shown(self._location)} ends before what the checkpoint says was "
                        "read: it is another folder, or its newest logs were removed",
                    )
                self._extend(segments, block)
                cursor.take()
        finally:
            cursor.close()
            if self._settling is not None and self._cursor is None:
                self._settling.close()
        return segments

    def _extend(self, segments: list[_Segment], block: Block) -> None:
        last = segments[-1] if segments else None
        if (
            last is not None
            and last.path == block.path
            and last.end == block.offset
            and block.end - last.start <= self._options.split_bytes
        ):
            last.end = block.end
        else:
            segments.append(_Segment(block.path, block.offset, block.end))

    def _remember(self, start: VClock, end: VClock, segments: list[_Segment]) -> None:
        if segments:
            self._went[start, end] = segments
            if len(self._went) > _REMEMBERED:
                self._went.popitem(last=False)

    def _open(self, start: VClock) -> _Cursor:
        if self._settling is not None and not start.covers(self._begun):
            self._settling.close()
            self._settling = None
        if self._settling is None:
            self._begun = start
        return _Cursor(self._directory, self._filesystem, start, self._is_settled)

    def _is_settled(self, block: Block) -> bool:
        if not self._options.settled:
            return True
        if self._settling is None:
            self._settling = _Settling(self._directory, self._filesystem, self._begun)
        return self._settling.covers(block)

    def _after_loss(self, start: VClock) -> VClock:
        """`start`, or, where its log is gone and that is allowed, where the logs begin."""
        index = scan_directory(self._directory, self._filesystem)
        try:
            index.check_start(start)
        except PositionUnavailable as error:
            oldest = index.xlogs[0]
            if not self._options.fail_on_data_loss:
                return start.merge(oldest.vclock)
            raise PositionUnavailable(
                start,
                error.oldest,
                error.newest,
                hint=f"{oldest.path} is the oldest log that is left, those before it were removed: "
                "begin with a new checkpoint (and a snapshot), or set fail_on_data_loss=false to "
                "go on without the missing rows",
            ) from error
        return start
