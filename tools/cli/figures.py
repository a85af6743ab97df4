"""What rows come to, counted along with reading: over time, by type and space, by size, by key.

Everything is bounded, whatever the rows hold. Times are counted in at most `INTERVALS` intervals,
which get longer when rows lie farther apart. Types and spaces: `GROUPS` pairs of them, the rows of
others together. Sizes by powers of two. The keys that change most often are found by the counters
of Misra and Gries, of which there are `KEYS`: when twice as many are held, those at the bottom go,
and what they had is taken off the others. A count is never too high, and too low by `too_low` at
most. Source: Misra, Gries: Finding repeated elements, 1982; Agarwal and others: Mergeable
summaries, 2012.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Final, Generic, TypeVar

from logweir.errors import LogweirError
from logweir.store.commit.applying import APPLIED
from logweir.store.engine.engine import key_of
from logweir.store.recover.defined import Defined
from logweir.store.schema.definition import IndexDef
from logweir.wal.columns import RowColumns
from logweir.wal.reader import Block

INTERVALS: Final = 240
GROUPS: Final = 4096
KEYS: Final = 2048
KEY_BYTES: Final = 256
"""Longer keys are not counted one by one."""

_WIDTHS_MS: Final = (
    *(1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000),
    *(604_800_000 * 10**power for power in range(7)),
)
"""Lengths of intervals in milliseconds; each is a multiple of the one before."""
_LAST_TIME: Final = 253_402_300_800.0  # the year 10000

T = TypeVar("T", bound=Hashable)

Sums = dict[int, list[int]]
"""Rows and bytes by a number."""


@dataclass(slots=True)
class Intervals:
    """Rows and bytes over time. `width_ms`: of an interval; `sums`: by its number since the epoch;
    `untimed_rows`: whose time is none (0, or no date)."""

    width_ms: int = _WIDTHS_MS[0]
    sums: Sums = field(default_factory=dict)
    untimed_rows: int = 0

    def add(self, times: Sequence[float], sizes: Sequence[int]) -> None:
        """Count rows. `times`: seconds since the epoch; `sizes`: bytes."""
        first, last = min(times), max(times)
        total = sum(times)
        if total == total and _is_time(first) and _is_time(last):  # none of them is a NaN
            number = int(first * 1000) // self.width_ms
            if number == int(last * 1000) // self.width_ms:
                self._put(number, len(times), sum(sizes))
                return
        for time, size in zip(times, sizes, strict=True):
            if _is_time(time):
                self._put(int(time * 1000) // self.width_ms, 1, size)
            else:
                self.untimed_rows += 1

    def _put(self, number: int, rows: int, size: int) -> None:
        found = self.sums.get(number)
        if found is not None:
            found[0] += rows
            found[1] += size
            return
        self.sums[number] = [rows, size]
        while max(self.sums) - min(self.sums) >= INTERVALS:
            self._widen()

    def _widen(self) -> None:
        width_ms = next(width for width in _WIDTHS_MS if width > self.width_ms)
        times = width_ms // self.width_ms
        wider: Sums = {}
        for number, (rows, size) in self.sums.items():
            into = wider.setdefault(number // times, [0, 0])
            into[0] += rows
            into[1] += size
        self.width_ms, self.sums = width_ms, wider


def _is_time(seconds: float) -> bool:
    return 0 < seconds < _LAST_TIME


class Frequent(Generic[T]):
    """What occurs most often in a stream, by counters of Misra and Gries. `capacity`: how many are
    kept; `too_low`: no count lacks more than that, and what has none did not occur more often."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.too_low = 0
        self.counted = 0
        self._counts: Counter[T] = Counter()

    def add(self, things: Iterable[T]) -> None:
        """Count some things, at most as many as fit into memory beside the counters."""
        counts = self._counts
        before = len(counts)
        counts.update(things)
        if len(counts) == before or len(counts) < 2 * self.capacity:
            return
        ordered = sorted(counts.values(), reverse=True)
        least = ordered[self.capacity]
        self.too_low += least
        self._counts = Counter(
            {thing: count - least for thing, count in counts.items() if count > least}
        )

    def most(self, count: int) -> list[tuple[T, int]]:
        """The things with the highest counts, and these."""
        return self._counts.most_common(count)


@dataclass(slots=True)
class Keys:
    """The keys that change most often in the logs after a snapshot. `defined`: what the snapshot
    defines, and the rows since; `why_not`: why no more are counted, "" while they are; `rows`: that
    were counted; `left_out`: whose key is longer than `KEY_BYTES`, or
    not in the tuple."""

    defined: Defined | None
    why_not: str = ""
    rows: int = 0
    left_out: int = 0
    frequent: Frequent[tuple[int, bytes]] = field(default_factory=lambda: Frequent(KEYS))

    def add(self, block: Block) -> None:
        """Count the rows of a block of the log."""
        if self.defined is None:
            return
        try:
            self.defined.go_on(block)
        except LogweirError as error:
            self.defined = None
            self.why_not = f"definitions of spaces end before the rows do: {error.message}"
            return
        found = list(self._keys(block.columns))
        self.rows += len(found)
        self.frequent.add(found)

    def _keys(self, columns: RowColumns) -> Iterable[tuple[int, bytes]]:
        assert self.defined is not None
        schema = self.defined.engine.schema
        primaries: dict[int, IndexDef | None] = {}
        kinds, spaces = columns.type.tolist(), columns.space_id.tolist()
        for row, (kind, space_id) in enumerate(zip(kinds, spaces, strict=True)):
            if kind not in APPLIED:
                continue
            if space_id not in primaries:
                space = schema.get(space_id)
                primaries[space_id] = None if space is None else space.primary
            primary = primaries[space_id]
            if primary is None or columns.index_id(row):
                continue
            data = columns.tuple_bytes(row)
            try:
                key = columns.key_bytes(row) if data is None else key_of(primary, data)
            except (LogweirError, IndexError, TypeError):  # a tuple that does not fit its space
                key = None
            if key is None or len(key) > KEY_BYTES:
                self.left_out += 1
            else:
                yield space_id, key


@dataclass(slots=True)
class Figures:
    """What blocks come to. `changes`: rows and bytes by type and space (`columns.ABSENT`: none);
    `others`: of the pairs that are too many; `sizes`: rows by the bits of their size in bytes;
    `transactions`: by the bits of their number of rows; `largest`: rows of the largest one."""

    intervals: Intervals = field(default_factory=Intervals)
    changes: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    others: list[int] = field(default_factory=lambda: [0, 0])
    sizes: Counter[int] = field(default_factory=Counter)
    transactions: Counter[int] = field(default_factory=Counter)
    largest: int = 0

    def add(self, columns: RowColumns) -> None:
        """Count the rows of a block."""
        if not len(columns):
            return
        sizes = list(map(sub, columns.end_offset.tolist(), columns.row_offset.tolist()))
        self.sizes.update(map(int.bit_length, sizes))
        self.intervals.add(columns.timestamp.tolist(), sizes)
        ends = columns.transaction_ends().tolist()
        lengths = list(map(sub, ends, [0, *ends[:-1]]))
        self.transactions.update(map(int.bit_length, lengths))
        self.largest = max(self.largest, *lengths)
        kinds, spaces = columns.type.tolist(), columns.space_id.tolist()
        first = kinds[0], spaces[0]
        if kinds.count(first[0]) == spaces.count(first[1]) == len(kinds):
            self._change(first, len(kinds), sum(sizes))
            return
        for kind, space_id, size in zip(kinds, spaces, sizes, strict=True):
            self._change((kind, space_id), 1, size)

    def _change(self, group: tuple[int, int], rows: int, size: int) -> None:
        found = self.changes.get(group)
        if found is None:
            found = self.others
            if len(self.changes) < GROUPS:
                found = self.changes[group] = [0, 0]
        found[0] += rows
        found[1] += size
