"""Rows of a scan counted where they are read: by kind of file, space and type of row.

A task hands on one row per such group (`COUNTS`) and no row of the log; whoever puts those of all
tasks together has what `stats` shows. How many different keys there are is estimated by
HyperLogLog with 4096 registers, of which each task has its own: a standard error of 1.6 %.
Source: Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, 2007.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.pipeline import kernel
from logweir.pipeline.arrow import BatchBuilder, Group, Place
from logweir.pipeline.columns import arrow_schema
from logweir.pipeline.options import ScanOptions
from logweir.wal.columns import ABSENT
from logweir.wal.xrow import RowType, type_name

_FITTED: Final = ("space_id", "type", "lsn")
_LARGEST: Final = (2**63 - 1, 2**15 - 1, 2**63 - 1)
"""Numbers that the columns of a scan hold: space, type, lsn."""

_GROUP: Final = {"kind": "STRING", "space_id": "BIGINT"}
_ENDS: Final = {"first_lsn": "BIGINT", "last_lsn": "BIGINT", "first_ts": "DOUBLE"}
COUNTS: Final = {
    **_GROUP,
    **{"type": "SMALLINT", "rows": "BIGINT", "bytes": "BIGINT", "keys": "BINARY"},
    **_ENDS,
    "last_ts": "DOUBLE",
}
"""What a task hands on: names and types. `keys`: the registers."""

TOTALS: Final = {
    **_GROUP,
    **{"type_name": "STRING", "rows": "BIGINT", "bytes": "BIGINT", "keys": "BIGINT"},
    **_ENDS,
    "last_ts": "DOUBLE",
}
"""What is shown: names and types. `keys`: about how many different ones."""

Numbers = np.ndarray[Any, Any]

_REGISTERS: Final = 1 << 12  # as `pipeline.kernel.tally` has them
_GROUPS: Final = 8  # for so many there is room at once
_FEW: Final = 5 * _REGISTERS // 2  # below it empty registers tell more
_BIAS: Final = 0.7213 / (1 + 1.079 / _REGISTERS)


@dataclass(slots=True)
class _Count:
    """One group so far. `registers`: None where no row has a key; the ends None without a value."""

    rows: int = 0
    size: int = 0
    registers: Numbers | None = None
    first_lsn: int | None = None
    last_lsn: int | None = None
    first_ts: float | None = None
    last_ts: float | None = None

    def add(self, other: _Count) -> None:
        self.rows += other.rows
        self.size += other.size
        if self.registers is None:
            self.registers = other.registers
        elif other.registers is not None:
            self.registers = np.maximum(self.registers, other.registers)
        for name in ("first_lsn", "first_ts"):
            setattr(self, name, _chosen(np.fmin, getattr(self, name), getattr(other, name)))
        for name in ("last_lsn", "last_ts"):
            setattr(self, name, _chosen(np.maximum, getattr(self, name), getattr(other, name)))


def _chosen(choose: Any, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other).item()


_Key = tuple[str | None, int | None, int | None]


class Counter(BatchBuilder):
    """Counts the rows of a task instead of making batches of them: see `counts`."""

    def __init__(self, options: ScanOptions, spaces: frozenset[int] = frozenset()) -> None:
        super().__init__(replace(options, columns=_FITTED), spaces)
        self._tallies: dict[bool, _Tally] = {}
        self._damaged: dict[_Key, _Count] = {}

    def build(self, group: Group) -> Iterator[pa.RecordBatch]:
        """Count one group; no batch. Raises `CorruptBlock` as scans do."""
        tally = self._tallies.setdefault(group.place.is_log, _Tally())
        chosen = self.choose(group)
        tally.add(group, b"" if chosen is None else chosen.tobytes())
        if tally.is_beyond:
            for _ in super().build(group):
                pass  # which says where the number stands
        return iter(())

    def damage(self, place: Place, offset: int, message: str) -> Iterator[pa.RecordBatch]:
        """Count a damaged place as a row of no space and no type."""
        key = (place.kind, None, None)
        self._damaged.setdefault(key, _Count()).add(_Count(1))
        return iter(())

    def rest(self) -> Iterator[pa.RecordBatch]:
        """One batch of `COUNTS`; none where there was no row."""
        found = dict(self._damaged)
        for is_log, tally in self._tallies.items():
            found |= dict(tally.groups(Place("", "", 0, is_log).kind))
        if found:
            rows = [
                (
                    *(*key, one.rows, one.size),
                    None if one.registers is None else one.registers.tobytes(),
                    *(one.first_lsn, one.last_lsn, one.first_ts, one.last_ts),
                )
                for key, one in found.items()
            ]
            yield _batch(rows, COUNTS)


def totals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch of `TOTALS`, in order, for those of all tasks; none where there is no row."""
    found: dict[_Key, _Count] = {}
    for batch in batches:
        for kind, space_id, number, rows, size, keys, *ends in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            registers = None if keys is None else np.frombuffer(keys, np.uint8)
            one = _Count(rows, size, registers, *ends)
            found.setdefault((kind, space_id, number), _Count()).add(one)
    named = [
        ((kind, space_id, _type_name(number)), one)
        for (kind, space_id, number), one in found.items()
    ]
    named.sort(key=lambda item: [(part is not None, part) for part in item[0]])
    if named:
        rows = [
            (
                *(*key, one.rows, one.size, _estimate(one.registers)),
                *(one.first_lsn, one.last_lsn, one.first_ts, one.last_ts),
            )
            for key, one in named
        ]
        yield _batch(rows, TOTALS)


def _type_name(number: int | None) -> str | None:
    return None if number is None else type_name(number)


def _batch(rows: list[tuple[Any, ...]], types: dict[str, str]) -> pa.RecordBatch:
    schema = arrow_schema(tuple(types), types)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- one task -------------------------------------------------------------------------------------


class _Tally:
    """The groups of one kind of file so far, as `pipeline.kernel.tally` has them."""

    def __init__(self) -> None:
        self._known = np.zeros((0, 2), np.uint64)
        self._sums = np.zeros((0, 4), np.uint64)
        self._ends: Any = np.zeros((0, 2))
        self._registers = bytearray()

    def add(self, group: Group, chosen: bytes) -> None:
        """Count those rows of a group that are `chosen`, empty for all."""
        columns = group.columns
        done = 0
        while done < len(group):
            done = kernel.tally(
                columns.data, chosen, columns.type, RowType.UPDATE, columns.space_id,
                columns.lsn, columns.timestamp,
                columns.key_span, columns.tuple_span, columns.ops_span, done,
                self._known.reshape(-1).data, self._sums.reshape(-1).data,
                self._ends.reshape(-1).data, self._registers,
            )  # fmt: skip
            assert done >= 0, "the columns of a group are not of one length"
            if done < len(group):
                self._grow()

    def _grow(self) -> None:
        more = max(_GROUPS, 7 * len(self._known))
        self._known, self._sums, self._ends = (
            np.concatenate([one, np.zeros((more, one.shape[1]), one.dtype)])
            for one in (self._known, self._sums, self._ends)
        )
        self._registers = self._registers + bytes(more * _REGISTERS)

    @property
    def is_beyond(self) -> bool:
        """Whether a number is larger than the columns of a scan hold."""
        spaces, types = self._known[:, 0], self._known[:, 1]
        return any(
            bool((values > np.uint64(most)).any())
            for values, most in zip(
                (spaces[spaces != np.uint64(ABSENT)], types, self._sums[:, 3]),
                _LARGEST,
                strict=True,
            )
        )

    def groups(self, kind: str) -> Iterator[tuple[_Key, _Count]]:
        """What was counted."""
        raised = np.frombuffer(bytes(self._registers), np.uint8).reshape(-1, _REGISTERS)
        for known, sums, ends, registers in zip(
            self._known.tolist(), self._sums.tolist(), self._ends.tolist(), raised, strict=True
        ):
            if sums[0]:
                space = None if known[0] == ABSENT else known[0]
                has_key = bool(registers.any())
                rows, size, *lsns = sums
                one = _Count(rows, size, registers if has_key else None, *lsns, *ends)
                yield (kind, space, known[1]), one


def _estimate(registers: Numbers | None) -> int:
    """About how many different keys made these registers."""
    if registers is None:
        return 0
    found = _BIAS * _REGISTERS**2 / float(np.exp2(-registers.astype(np.float64)).sum())
    empty = int((registers == 0).sum())
    if found <= _FEW and empty:
        found = _REGISTERS * math.log(_REGISTERS / empty)
    return round(found)
