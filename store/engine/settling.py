"""What of a log is settled, for those who show its contents: see `wal.settled`.

A `Judge` goes along with rows and knows, as the state does but without any tuples, which spaces are
synchronous, what waits and what was undone. It begins where nothing waits: at a snapshot.

A `Settlement` is that of a store that is open. From where its state stood at the opening on it is
told everything by what is applied. A reader that begins before that has the log looked through once
for a ROLLBACK, and only if there is one are the rows before it judged.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from logweir.errors import DecodeError, LimitExceeded, RequestError, WalError
from logweir.store.engine.synchro import DECISIONS, Decision, Entry, SynchroQueue
from logweir.store.engine.update import apply_update
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.schema import Schema
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, MAGIC_ZSTD, decompress
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.filesystem import FileSystem, each
from logweir.wal.follow import Follower
from logweir.wal.mp import unpack
from logweir.wal.reader import Block, WalReader
from logweir.wal.settled import Settled, Span
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType

SAYS: Final = b"is_sync"
"""Stands in every row that makes a space synchronous."""

SEARCH_BYTES: Final = 1536 * 1024
"""A search of a log asks for so much at a time: `_SEARCHES` may be under way at once, and each has
two of them in memory."""

_SEARCHES: Final = 16

_OPTIONS: Final = 5
"""The field of a tuple of `_space` that says `is_sync`."""


class Judge:
    """What waits and what was undone at a place of the log. `start`: the position of that place,
    if nothing waits."""

    def __init__(self, start: VClock) -> None:
        self._queue = SynchroQueue()
        self._lsns = array("Q", start.lsns())
        self._definition = Schema().space(SystemSpace.SPACE)
        self._tuples: dict[int, bytes] = {}  # of `_space`
        self._synchronous: set[int] = set()

    @property
    def settled(self) -> Settled:
        """What is settled of the rows up to here."""
        return Settled(self._queue.limit).with_undone(self._queue.undone)

    def take(self, columns: RowColumns) -> None:
        """Go along with the rows of the log that come next."""
        kinds, spaces, replicas = columns.type, columns.space_id, columns.replica_id
        if self._is_calm(columns):
            columns.raise_lsns(self._lsns)
            return
        first = 0
        for row, flags in enumerate(columns.flags):
            if not flags & FLAG_COMMIT:
                continue
            last = row + 1
            if kinds[row] in DECISIONS:
                decided = Decision.of(columns, row)
                for entry in self._queue.decide(decided, self._synchronous.__contains__):
                    self.define(entry.columns())
            elif self._queue or not self._synchronous.isdisjoint(spaces[first:last]):
                entry = Entry.of(columns, first, last, VClock(dict(enumerate(self._lsns))))
                defines = SystemSpace.SPACE in entry.spaces
                self._queue.hold(entry if defines else entry.without_rows())
            else:
                self.define(columns, first, last)
            for row in range(first, last):
                self._lsns[replicas[row]] = columns.lsn[row]
            first = last

    def _is_calm(self, columns: RowColumns) -> bool:
        spaces = columns.space_id.tolist()
        return (
            not self._queue
            and SystemSpace.SPACE not in spaces
            and DECISIONS.isdisjoint(columns.type)
            and self._synchronous.isdisjoint(spaces)
        )

    def define(self, columns: RowColumns, first: int = 0, last: int | None = None) -> None:
        """Learn from the definitions among rows which spaces are synchronous."""
        for row in range(first, len(columns) if last is None else last):
            if columns.space_id[row] == SystemSpace.SPACE and not columns.index_id(row):
                self._define_by(columns, row)

    def _define_by(self, columns: RowColumns, row: int) -> None:
        kind, data, key = columns.type[row], columns.tuple_bytes(row), columns.key_bytes(row)
        space_id: int = unpack(key or data or b"\x91\x00")[0]
        ops, old = columns.ops_bytes(row), self._tuples.get(space_id)
        if kind == RowType.DELETE:
            self._tuples.pop(space_id, None)
        elif ops is None or old is None:
            self._tuples[space_id] = data or b"\x90"
        else:  # an UPSERT of a space that is there does what an UPDATE does
            base = columns.index_base[row]
            with contextlib.suppress(RequestError):  # it is in the snapshot's tuple already
                self._tuples[space_id] = apply_update(
                    old, ops, index_base=base, space=self._definition
                )
        fields = unpack(self._tuples.get(space_id, b"\x90"))
        options = fields[_OPTIONS] if len(fields) > _OPTIONS else {}
        if isinstance(options, dict) and options.get("is_sync"):
            self._synchronous.add(space_id)
        else:
            self._synchronous.discard(space_id)


def judge_at(path: Path, before: VClock, filesystem: FileSystem) -> tuple[Judge, VClock]:
    """A judge at the newest snapshot of a folder that `before` covers, and its position. Where the
    logs reach back further than the snapshots it begins at the oldest log, with the definitions of
    the oldest snapshot. Raises `WalError`."""
    index = scan_directory(path, filesystem)
    snap = next((file for file in reversed(index.snaps) if before.covers(file.vclock)), None)
    start = before if snap is None else snap.vclock
    if index.xlogs and (snap is None or not start.covers(index.xlogs[0].vclock)):
        start = index.xlogs[0].vclock
    made = Judge(start)
    if snap is None:
        if not index.snaps:
            return made, start
        snap = index.snaps[0]
    with WalReader(snap.path, filesystem=filesystem) as reader:
        for item in reader.blocks():
            if isinstance(item, Damage):
                raise item.to_error()
            made.define(item.columns)
            if item.columns.space_id[-1] > SystemSpace.SPACE:
                break  # in a snapshot the system's spaces come first, by id
    return made, start


def judged(
    path: Path,
    after: VClock,
    filesystem: FileSystem,
    *,
    upto: VClock | None = None,
    tolerant: bool = False,
) -> Settled:
    """What is settled of the log of a folder behind a position, as far as whole blocks are there,
    or up to another position. `tolerant`: as far as it can be read; else raises what reading it
    raises."""
    judge, start = judge_at(path, after, filesystem)
    try:
        for columns in _rows(path, start, filesystem, upto):
            judge.take(columns)
    except WalError:
        if not tolerant:
            raise
    return judge.settled


def may_wait(
    path: Path,
    filesystem: FileSystem,
    besides: Container[str] = (),
    *,
    index: DirectoryIndex | None = None,
) -> bool:
    """Whether something says that a space of a folder is, or was, synchronous: a snapshot, or the
    logs behind the newest one, `besides` those of which that is known, or found out anyway; as many
    of them at once as there are processors, since others may run while a block is searched. What
    can not be read says nothing. `index`: of the folder, where it is there."""
    index = scan_directory(path, filesystem) if index is None else index
    for snap in index.snaps:
        with WalReader(snap.path, filesystem=filesystem, skip_damage=True) as reader:
            for item in reader.blocks():
                if isinstance(item, Damage):
                    continue
                if SAYS in item.data:
                    return True
                if item.columns.space_id[-1] > SystemSpace.SPACE:
                    break
    logs = [log.path for log in logs_that_say(index) if str(log.path) not in besides]

    def look(log: Path) -> bool:
        with WalReader(log, filesystem=filesystem, skip_damage=True) as reader:
            return is_said(reader)

    return any(each(filesystem, look, logs, at_once=min(processors(), _SEARCHES)))


def processors() -> int:
    """How many this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def logs_that_say(index: DirectoryIndex) -> list[LogFile]:
    """The logs of a folder that `may_wait` looks at: those behind the newest snapshot."""
    return index.xlogs_after(index.snaps[-1].vclock) if index.snaps else index.xlogs


def is_said(reader: WalReader) -> bool:
    """Whether a block of a log may say it. Of blocks whose headers are in order only the bytes are
    searched: whoever reads the rows looks at the rest; the reader, which skips damage, has what
    comes behind them."""
    at = reader.first_block
    rest = reader.held(at)
    if len(rest) == reader.size - at and SAYS not in rest and MAGIC_ZSTD not in rest:
        return False  # whatever its blocks are, their rows stand in the file as they are
    try:
        for walked in reader.walked(at, SEARCH_BYTES):
            if walked.holds(SAYS):
                return True
            window = memoryview(walked.window)
            for number in walked.odd(walked.blocks, SAYS):
                start = walked.table[number] + FIXHEADER_BYTES
                if SAYS in decompress(window[start : walked.table[number + 1]]):
                    return True
            at = walked.end
    except (DecodeError, LimitExceeded):
        pass  # the reader says which block it is, and goes on behind it
    if at == reader.size - len(EOF_MARKER) and reader.is_closed:
        return False
    return any(SAYS in item.data for item in reader.blocks(at) if isinstance(item, Block))


def _rows(
    path: Path, after: VClock, filesystem: FileSystem, upto: VClock | None
) -> Iterator[RowColumns]:
    with Follower(path, after, filesystem=filesystem) as follower:
        for block in follower.poll():
            yield block.columns
            if upto is not None and follower.vclock.covers(upto):
                return


class Settlement:
    """What is settled of the log of an open store. `since`: from where on `tell` is told all.

    Safe to use from several threads.
    """

    def __init__(
        self, path: Path, filesystem: FileSystem, since: VClock, queue: SynchroQueue
    ) -> None:
        self._path = path
        self._filesystem = filesystem
        self._since = since
        self._looking = threading.Lock()
        self._lock = threading.Lock()  # while `_settled` is changed
        self._settled = Settled(queue.limit).with_undone(queue.undone)

    def tell(self, queue: SynchroQueue) -> None:
        """What waits now, and what was undone lately."""
        known = self._settled
        if known.limit is not None or queue or queue.undone:
            with self._lock:
                self._settled = Settled(queue.limit, self._settled.undone).with_undone(queue.undone)

    def above(self, position: VClock) -> Settled:
        """What is settled above a position. The first time that one is asked for from before the
        opening this may take as long as reading the log from there. Raises what that raises."""
        if not self.knows(position):
            self._look_back(position)
        return self._settled

    def knows(self, position: VClock) -> bool:
        """Whether `above` has nothing to look at."""
        return position.covers(self._since)

    def _look_back(self, position: VClock) -> None:
        with self._looking:
            since = self._since
            start = VClock({i: min(lsn, since.lsn(i)) for i, lsn in position.items()})
            undone: tuple[Span, ...] = ()
            rows = _rows(self._path, start, self._filesystem, since)
            if any(RowType.ROLLBACK in columns.type for columns in rows):
                undone = judged(self._path, start, self._filesystem, upto=since).undone
            with self._lock:
                self._settled = self._settled.with_undone(undone)
            self._since = start
