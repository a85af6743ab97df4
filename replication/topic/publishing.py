"""Bundles on their way into the log: what the event loop and the committing thread tell each other.

What a connection publishes is a `Publication`; the committing thread gives each bundle its numbers
(`Writing` knows the last ones) and gathers the tuples of each space in a `Run`. What became of each
bundle comes back as an `Outcome`; those of a partition that just came are its `News`, from which
consumers that wait are answered without reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logweir.errors import LimitExceeded
from logweir.limits import TANK_BUNDLE_BYTES
from logweir.replication.logs import SparingLog
from logweir.replication.topic import kernel
from logweir.replication.topic.partition import Append, Chunk, ChunkMaker
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.spaces import TopicDef, bundle_tuple, last_number, place_bundle
from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.schema.values import LargeTuple
from logweir.wal.vclock import VClock


class Outcome(NamedTuple):
    """What became of one append. `size_bytes`: of the stored bundle with its length; `data`: it."""

    result: PublishResult
    first: int = 0
    last: int = 0
    size_bytes: int = 0
    data: bytes | memoryview = b""


FAILED: Final = Outcome(PublishResult.FAILED)
_STORED: Final = PublishResult.STORED  # to look up members of an enumeration takes time


@dataclass(frozen=True, slots=True)
class News:
    """Bundles that came just now to a partition whose last number was `before`."""

    before: int
    bundles: list[Outcome]

    def chunk(self, limit_bytes: int) -> Chunk:
        """The first of them, and those after it that fit too."""
        made = ChunkMaker(limit_bytes)
        for each in self.bundles:
            if not made.add(each.first, each.data):
                break
        return made.chunk()


@dataclass(frozen=True, slots=True)
class Run:
    """New tuples of one space, and where their outcomes stand: from a place of a list on, so
    many. `told`: of what is refused."""

    told: SparingLog
    tuples: list[LargeTuple] = field(default_factory=list)
    places: list[tuple[list[Outcome], int, int]] = field(default_factory=list)

    def add(
        self, topic: str, appends: list[Append], end: int, last: int, outcomes: list[Outcome]
    ) -> int:
        """Give numbers to bundles of one partition after number `last`: those that have no outcome
        yet, to before `end`. Returns the last number then."""
        at = len(outcomes)
        while True:
            start = at
            at, last = kernel.place(
                *(appends, at, end, last, TANK_BUNDLE_BYTES),
                *(_STORED, LargeTuple, self.tuples, Outcome, outcomes),
            )
            self.places.append((outcomes, start, at - start))
            if at == end:
                return last
            outcomes.append(self._add_one(topic, appends[at], last))
            if outcomes[at].result is _STORED:
                self.places.append((outcomes, at, 1))
                last = outcomes[at].last
            at += 1

    def _add_one(self, topic: str, append: Append, last: int) -> Outcome:
        """One that is refused, or whose bytes change."""
        placed = place_bundle(append.bundle, append.head, last, append.first)
        if isinstance(placed, PublishResult):
            return Outcome(placed)
        size = len(placed.data)
        if size > TANK_BUNDLE_BYTES:
            error = LimitExceeded("TANK_BUNDLE_BYTES", TANK_BUNDLE_BYTES, size)
            self.told.warning("publish.refused", topic=topic, error=str(error))
            return FAILED
        self.tuples.append(bundle_tuple(append.partition, placed, append.time_ms))
        return Outcome(_STORED, placed.first, placed.last, framed_bytes(size), placed.data)


@dataclass(slots=True)
class Publication:
    """Bundles that came together. `spans`: where each run of bundles of one partition ends, and
    the topic as it was when they came; `done`: told the results, which stand in `outcomes` once
    they are known."""

    appends: list[Append]
    spans: Sequence[tuple[int, TopicDef | None]]
    done: Callable[[list[PublishResult]], None]
    outcomes: list[Outcome] = field(default_factory=list)


class Writing:
    """What the committing thread knows: the last numbers of partitions, as of a position of the
    log, in groups that are not durable yet, too; and how many rows of a group are ours."""

    def __init__(self, log: Log) -> None:
        self._told = self._at = log.vclock.signature
        self._known: dict[tuple[int, int], int] = {}
        self._group: Group | None = None  # with jobs of ours, until it is durable
        self._rows = 0  # of ours in it

    def begin(self, group: Group) -> tuple[int, int]:
        """A job of ours runs in `group`. Returns what `rollback` takes."""
        signature = group.vclock.signature
        is_same = group is self._group
        # A group that was not told to be durable was dropped.
        if signature != self._at or not (is_same or self._group is None):
            self._known.clear()  # others wrote what it is made on
        if not is_same:
            self._group, self._rows = group, 0
        self._at = signature
        return signature, self._rows

    def rollback(self, mark: tuple[int, int]) -> None:
        """The job failed and leaves nothing in its group."""
        self._known.clear()
        self._at, self._rows = mark

    def last(self, group: Group, space_id: int, partition: int) -> int:
        """The last number of a partition as `group` sees it."""
        found = self._known.get((space_id, partition))
        if found is None:
            found = last_number(group.engine, space_id, partition)
        return found

    def wrote(self, space_id: int, partition: int, last: int, rows: int) -> None:
        """So many rows of ours went into the group."""
        self._known[space_id, partition] = last
        self._at += rows
        self._rows += rows

    def forget(self, space_id: int, rows: int) -> None:
        """Rows of a space that were counted did not go into the group."""
        self._at -= rows
        self._rows -= rows
        for key in [key for key in self._known if key[0] == space_id]:
            del self._known[key]

    def committed(self, vclock: VClock) -> bool:
        """A group is durable, also one of others, while the next is made. Returns whether all rows
        since the last one were ours."""
        group, rows = self._group, 0
        if group is not None and group.done:
            self._group, rows = None, self._rows
        before, self._told = self._told, vclock.signature
        return self._told - before == rows


def framed_bytes(size: int) -> int:
    """Of a bundle of `size` bytes with its length."""
    return size + (max(size.bit_length(), 1) + 6) // 7
