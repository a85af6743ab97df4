"""What of a log is settled: will stay as it is, and was not undone.

Behind a change that waits for its CONFIRM everything waits, so what is settled ends at a position;
and what a ROLLBACK has undone before that is a few runs of lsns. Who shows the contents of a log
reads up to the one and takes the others for NOPs: they keep their places, so that every position
and number is the same before and after. What decides is told in `logweir.store.engine.synchro`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType, encode_row

Span = tuple[int, int, int]
"""Rows of one instance: replica id, first and last lsn."""


@dataclass(frozen=True, slots=True)
class Settled:
    """`limit`: the position before the first row that waits, None: none does; `undone`: the rows
    that were rolled back, in any order."""

    limit: VClock | None = None
    undone: tuple[Span, ...] = ()
    _runs: Mapping[int, tuple[list[int], list[int]]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_runs", _by_replica(self.undone))

    @property
    def is_all(self) -> bool:
        """Whether everything is settled, and nothing was undone."""
        return self.limit is None and not self.undone

    def with_undone(self, spans: Iterable[Span]) -> Settled:
        """The same with more rows that were rolled back."""
        joined = tuple(
            (replica_id, first, last)
            for replica_id, runs in _by_replica((*self.undone, *spans)).items()
            for first, last in zip(*runs, strict=True)
        )
        return replace(self, undone=joined)

    def is_all_above(self, position: VClock) -> bool:
        """Whether every row above a position is settled, and none was rolled back."""
        if self.limit is not None:
            return False
        return all(
            runs[1][-1] <= position.lsn(replica_id) for replica_id, runs in self._runs.items()
        )

    def count(self, columns: RowColumns) -> int:
        """How many of the first rows of a block are settled: whole transactions."""
        if self.limit is None or self.limit.covers(columns.last_lsns()):
            return len(columns)
        lsns = self.limit.lsns()
        for row, (replica_id, lsn) in enumerate(zip(columns.replica_id, columns.lsn, strict=True)):
            if lsn > lsns[replica_id]:
                return row
        return len(columns)

    def within(self, start: VClock, end: VClock | None) -> Settled:
        """As far as it is about rows after a position, and up to another one."""
        if self.is_all:
            return self
        undone = tuple(
            (replica_id, first, last)
            for replica_id, first, last in self.undone
            if last > start.lsn(replica_id) and (end is None or first <= end.lsn(replica_id))
        )
        limit = None if end is not None and self.limit and self.limit.covers(end) else self.limit
        return Settled(limit, undone)

    def is_undone(self, replica_id: int, lsn: int) -> bool:
        """Whether that row was rolled back."""
        runs = self._runs.get(replica_id)
        if runs is None:
            return False
        firsts, lasts = runs
        at = bisect_right(firsts, lsn)
        return at > 0 and lsn <= lasts[at - 1]

    def shown(self, columns: RowColumns) -> RowColumns:
        """The rows of a block, a NOP in the place of each that was rolled back. The very same where
        none was."""
        if not self.undone:
            return columns
        places = zip(columns.replica_id, columns.lsn, strict=True)
        undone = {row for row, place in enumerate(places) if self.is_undone(*place)}
        if not undone:
            return columns
        rows = [
            encode_row(replace(columns.row(row), type=RowType.NOP, body=b""))
            if row in undone
            else columns.row_bytes(row)
            for row in range(len(columns))
        ]
        return RowColumns.scan(b"".join(rows))


def _by_replica(spans: Iterable[Span]) -> dict[int, tuple[list[int], list[int]]]:
    """First and last lsns of the runs of each replica id, rising, those joined that touch."""
    runs: dict[int, tuple[list[int], list[int]]] = {}
    for replica_id, first, last in sorted(spans):
        firsts, lasts = runs.setdefault(replica_id, ([], []))
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return runs


ALL_SETTLED: Final = Settled()
