"""The contract of a reader of the log: each row above its position once, whatever the others do."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from logweir.errors import ChainGap, PositionUnavailable
from logweir.replication.stream import hub as hub_module
from logweir.replication.stream.hub import Hub, Reader, Window
from logweir.replication.stream.places import Places
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.follow import Follower
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Row, encode_row

INSTANCE = uuid.UUID("11111111-1111-4111-8111-111111111111")
IDS = (0, 1, 2, 3)
STEP_BYTES = 150

Lsns = dict[int, int]
Given = tuple[int, int]  # replica id and lsn
Changes = list[tuple[int, list[int], int]]  # of a transaction: origin, lsn gaps, local rows


@dataclass(eq=False)
class Taken:
    """A reader, and what the model knows of it. `at`: the next transaction; `had`: its position."""

    reader: Reader
    had: Lsns
    at: int = 0
    gone: list[Given] = field(default_factory=list)


class RowTaker:
    """Takes blocks, as `wal.reader.Taker`. `refuses`: how many it takes before it can no more."""

    def __init__(self, counts_all: bool, refuses: int) -> None:
        self.counts_all = counts_all
        self.written_bytes = 0
        self.rows: list[Given] = []
        self._left = refuses
        self._lsns = array("Q", bytes(256))
        self._last: Lsns = {}

    def begin(self, lsns: array[int]) -> None:
        self._lsns = lsns[:]

    def add(self, data: bytes) -> bool:
        if not self._left:
            return False
        self._left -= 1
        self.written_bytes += len(data)
        columns = RowColumns.scan(data)
        for replica_id, lsn in zip(columns.replica_id, columns.lsn, strict=True):
            if lsn > self._lsns[replica_id]:
                self._lsns[replica_id] = lsn
                self.rows.append((replica_id, lsn))
            elif not self.counts_all:
                continue
            self._last[replica_id] = max(lsn, self._last.get(replica_id, 0))
        return True

    def last_lsns(self) -> Mapping[int, int]:
        return self._last


def rows_of(window: Window) -> list[Given]:
    found = []
    for block in window.blocks:
        block.columns.transaction_ends()  # raises where one is not whole
        found += list(zip(block.columns.replica_id, block.columns.lsn, strict=True))
    return found


def above(had: Mapping[int, int], transactions: Sequence[list[Given]]) -> Iterator[list[Given]]:
    """The rows of each transaction that are above a position."""
    for rows in transactions:
        yield [(i, lsn) for i, lsn in rows if lsn > had.get(i, 0)]


class ReaderContract(RuleBasedStateMachine):
    """A log with rows of several replicas, gaps between their lsns, and local rows; readers that
    join anywhere and read in any way, while it is written, synced, rotated, shortened, and its
    server restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = (hub_module.HUB_STEP_BYTES, hub_module.HUB_WINDOWS_BYTES)
        hub_module.HUB_STEP_BYTES, hub_module.HUB_WINDOWS_BYTES = STEP_BYTES, 4 * STEP_BYTES
        self.folder = Path(tempfile.mkdtemp(prefix="logweir-reader-"))
        self.lsns: Lsns = {}
        self.log: list[list[Given]] = []  # transactions
        self.synced = 0  # of them
        self.writer = WalWriter(
            self.folder, INSTANCE, AppendPoint(VClock()), options=WriterOptions(max_bytes=1000)
        )
        self.taken: list[Taken] = []
        self.begin()

    def begin(self) -> None:
        self.places = Places()
        self.writer.write([self.transaction(1, [1], 0)], VClock(self.lsns))
        self.sync()
        self.hub = asyncio.run(self.make_hub())

    async def make_hub(self) -> Hub:
        return Hub(self.follow)

    def follow(self, after: VClock) -> Follower:
        place = self.places.before(after)
        where = None if place is None else (place.path, place.offset, place.vclock)
        return Follower(self.folder, after, durable=lambda: self.durable, place=where)

    def teardown(self) -> None:
        try:
            for taken in list(self.taken):
                self.drain(taken)
        finally:
            self.hub.close()
            self.writer.abandon()
            shutil.rmtree(self.folder)
            hub_module.HUB_STEP_BYTES, hub_module.HUB_WINDOWS_BYTES = self.limits

    # --- the log ----------------------------------------------------------------------------------

    def transaction(self, origin: int, gaps: Sequence[int], local: int) -> bytes:
        """Rows of one origin whose lsns are `gaps` apart, then `local` ones of replica id 0."""
        found: list[Given] = []
        for replica_id, gap in [*((origin, gap) for gap in gaps), *((0, 1) for _ in range(local))]:
            self.lsns[replica_id] = self.lsns.get(replica_id, 0) + gap
            found.append((replica_id, self.lsns[replica_id]))
        self.log.append(found)
        last = len(found) - 1
        return b"".join(
            encode_row(
                Row(2, i, lsn, 1.5, found[0][1], row == last, 0 if i else 1, body=b"\x81\x10\x05")
            )
            for row, (i, lsn) in enumerate(found)
        )

    @rule(
        groups=st.lists(
            st.lists(
                st.tuples(
                    st.sampled_from(IDS),
                    st.lists(st.sampled_from((1, 1, 1, 4)), min_size=1, max_size=3),
                    st.integers(0, 1),
                ),
                min_size=1,
                max_size=3,
            ),
            min_size=1,
            max_size=4,
        ),
        synced=st.sampled_from((True, True, False)),
        order=st.randoms(use_true_random=False),
    )
    def write(self, groups: list[Changes], synced: bool, order: Random) -> None:
        """And have some readers take what there is then, in any order."""
        for group in groups:
            block = b"".join(self.transaction(*one) for one in group)
            self.writer.write([block], VClock(self.lsns))
        if synced:
            self.sync()
        some = [taken for taken in self.taken if order.random() < 0.7]
        order.shuffle(some)
        for taken in some:
            self.drain(taken)

    def sync(self) -> None:
        self.writer.sync()
        if self.writer.end is not None:  # something was written since the last rotation
            self.durable = self.writer.end
            self.synced = len(self.log)
            self.places.note(VClock(self.lsns), *self.durable)

    @rule(
        what=st.sampled_from(("rotate", "rotate", "rotate", "collect", "collect", "restart")),
        data=st.data(),
    )
    def disturb(self, data: st.DataObject, what: str) -> None:
        if what == "rotate":
            self.sync()
            self.writer.rotate()
        elif what == "collect":
            self.collect(data.draw(st.integers(1, 4)))
        else:
            self.restart(data.draw(st.booleans()), data.draw(st.booleans()))

    def collect(self, keep: int) -> None:
        """Remove old logs; who still needs rows in them is told."""
        files = scan_directory(self.folder).xlogs
        if len(files) <= keep:
            return
        gone = files[-keep].vclock
        for file in files[:-keep]:
            file.path.unlink()
        for taken in self.taken:
            taken.gone += self.rest(taken, gone)

    def restart(self, closed: bool, rejoin: bool) -> None:
        self.sync()
        self.hub.close()
        self.writer.close() if closed else self.writer.abandon()
        point = AppendPoint(VClock(self.lsns), VClock())
        self.writer = WalWriter(self.folder, INSTANCE, point, options=WriterOptions(max_bytes=1000))
        left, self.taken = self.taken, []
        self.begin()
        for taken in left if rejoin else ():
            self.join(taken.reader.vclock, STEP_BYTES)

    # --- readers ----------------------------------------------------------------------------------

    @rule(
        back=st.sampled_from((0, 0, 1, 5, 30)),
        ahead=st.dictionaries(st.sampled_from((*IDS, 7)), st.integers(-5, 12), max_size=3),
        step_bytes=st.sampled_from((1, STEP_BYTES, 10**6)),
        how=st.sampled_from(("drain", "drain", "skip", "wait")),
    )
    def join_anywhere(self, back: int, ahead: dict[int, int], step_bytes: int, how: str) -> None:
        """At a place in the log, but further or less far in some components."""
        had: Lsns = {}
        for rows in self.log[: max(0, len(self.log) - back)]:
            had.update(rows)
        for replica_id, more in ahead.items():
            had[replica_id] = max(0, had.get(replica_id, 0) + more)
        self.join(VClock(had), step_bytes)
        if how == "drain":
            self.drain(self.taken[-1])
        elif how == "skip":
            self.skip(self.taken[-1])

    def join(self, position: VClock, step_bytes: int) -> None:
        taken = Taken(self.hub.reader(position, step_bytes=step_bytes), dict(position))
        oldest = scan_directory(self.folder).xlogs[0].vclock
        taken.gone += self.rest(taken, oldest)
        self.taken.append(taken)

    def rest(self, taken: Taken, upto: VClock) -> list[Given]:
        """What the reader has still to be given, up to a place in the log."""
        return [
            (i, lsn)
            for rows in above(taken.had, self.log[taken.at :])
            for i, lsn in rows
            if lsn <= upto.lsn(i)
        ]

    def given(self, taken: Taken, rows: list[Given]) -> None:
        """They are the next rows above its position, in the log's order, whole transactions."""
        while rows:
            assert taken.at < self.synced, f"never committed, or given before: {rows}"
            (wanted,) = above(taken.had, self.log[taken.at : taken.at + 1])
            assert rows[: len(wanted)] == wanted, f"wanted {wanted} of {self.log[taken.at]}"
            taken.had.update(wanted)
            taken.at += 1
            del rows[: len(wanted)]
        self.check_position(taken)

    def check_position(self, taken: Taken) -> None:
        """It has what was asked for and what was given, and beyond that only what was read."""
        position = taken.reader.vclock
        assert position.covers({i: lsn for i, lsn in taken.had.items() if lsn})
        assert VClock(taken.had).merge(self.lsns).covers(position)
        assert list(above(position, self.log[taken.at :])) == list(
            above(taken.had, self.log[taken.at :])
        )

    def take(self, taken: Taken) -> bool:
        """Whether there may be more."""
        before = taken.reader.vclock
        try:
            window = taken.reader.take()
        except (ChainGap, PositionUnavailable):
            assert taken.gone, "refused though the log holds what it wants"
            self.taken.remove(taken)
            taken.reader.close()
            return False
        if window is None:
            missing = above(taken.had, self.log[taken.at : self.synced])
            assert not any(missing), "missing at the end"
            return False
        assert (window.start, window.end) == (before, taken.reader.vclock)
        self.given(taken, rows_of(window))
        return True

    def drain(self, taken: Taken) -> None:
        while self.take(taken):
            pass

    def skip(self, taken: Taken) -> None:
        """Before anything was taken."""
        try:
            taken.reader.skip()
        except (ChainGap, PositionUnavailable):
            assert taken.gone, "refused though the log holds what it wants"
            self.taken.remove(taken)
            taken.reader.close()

    @precondition(lambda self: self.taken)
    @rule(
        data=st.data(),
        how=st.sampled_from(("take", "drain", "pack", "pack", "park", "leave")),
        counts_all=st.booleans(),
        refuses=st.sampled_from((0, 1, 2, 100)),
    )
    def use(self, data: st.DataObject, how: str, counts_all: bool, refuses: int) -> None:
        taken = data.draw(st.sampled_from(self.taken))
        if how == "take":
            self.take(taken)
        elif how == "drain":
            self.drain(taken)
        elif how == "park":
            taken.reader.park()
        elif how == "leave":
            self.taken.remove(taken)
            taken.reader.close()
        else:
            taker = RowTaker(counts_all, refuses)
            assert taken.reader.pack(taker) == (taker.written_bytes > 0)
            self.given(taken, taker.rows)


TestReaderContract = ReaderContract.TestCase
TestReaderContract.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
