"""Rows of a scan counted where they are read: by kind of file, space and type of row.

A task hands on one row per such group (`COUNTS`) and no row of the log; whoever puts those of all
tasks together has what `stats` shows. How many different keys there are is estimated by
HyperLogLog with 4096 registers, of which each task has its own: a standard error of 1.6 %.
Source: Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, 2007.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.pipeline import kernel
from logweir.pipeline.cells import packed
from logweir.pipeline.columns import arrow_schema
from logweir.wal.xrow import type_name

COUNTED: Final = ("kind", "space_id", "type", "lsn", "ts", "key", "size")
"""The columns that `counts` reads."""

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
_GROUPS: Final = 32  # for so many of one batch there is room at once
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


def counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch of `COUNTS` for batches of `COUNTED`; none where there is no row."""
    found: dict[_Key, _Count] = {}
    for batch in batches:
        for key, one in _grouped(batch):
            found.setdefault(key, _Count()).add(one)
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


# --- one batch ------------------------------------------------------------------------------------


def _grouped(batch: pa.RecordBatch) -> Iterator[tuple[_Key, _Count]]:
    """The groups of one batch."""
    has = np.zeros(batch.num_rows, np.uint8)
    for bit, name in enumerate(("key", "lsn", "ts", *COUNTED[:3])):
        has |= _valid(batch.column(name)) << bit
    kinds, kind_offsets = packed(batch.column("kind"))
    data, offsets = packed(batch.column("key"))
    spaces, types, sizes = (_numbers(batch, name) for name in ("space_id", "type", "size"))
    lsns, times = _numbers(batch, "lsn"), _numbers(batch, "ts")
    found, room = -2, _GROUPS
    while found == -2:
        known, sums = np.zeros(4 * room, np.uint64), np.zeros(5 * room, np.uint64)
        ends: Any = np.zeros(2 * room)
        registers = bytearray(room * _REGISTERS)
        found = kernel.tally(
            has.tobytes(), kinds, kind_offsets.data, spaces, types, sizes, lsns, times, data,
            offsets.data, known.data, sums.data, ends.data, registers,
        )  # fmt: skip
        room *= 8
    assert found >= 0, "the columns of a batch are not of one length"
    raised = np.frombuffer(registers, np.uint8)
    for group in range(found):
        kind, space_id, number, named = known[4 * group : 4 * group + 4].tolist()
        rows, size, seen, *reach = sums[5 * group : 5 * group + 5].tolist()
        yield (
            (
                kind.to_bytes(8, "little").rstrip(b"\0").decode() if named & 8 else None,
                space_id if named & 16 else None,
                number if named & 32 else None,
            ),
            _Count(
                *(rows, size),
                raised[group * _REGISTERS : (group + 1) * _REGISTERS] if seen & 1 else None,
                *(reach if seen & 2 else (None, None)),
                *(ends[2 * group : 2 * group + 2].tolist() if seen & 4 else (None, None)),
            ),
        )


def _valid(column: pa.Array) -> Numbers:
    """1 for each value that is there, else 0."""
    if not column.null_count:
        return np.ones(len(column), np.uint8)
    valid: Numbers = column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return valid


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    """A column of numbers as the kernel takes it."""
    values = batch.column(name).fill_null(0).to_numpy()
    return (values if values.dtype == np.float64 else values.astype(np.uint64)).data


def _estimate(registers: Numbers | None) -> int:
    """About how many different keys made these registers."""
    if registers is None:
        return 0
    found = _BIAS * _REGISTERS**2 / float(np.exp2(-registers.astype(np.float64)).sum())
    empty = int((registers == 0).sum())
    if found <= _FEW and empty:
        found = _REGISTERS * math.log(_REGISTERS / empty)
    return round(found)
