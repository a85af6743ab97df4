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

_INDEX_BITS: Final = 12
_REGISTERS: Final = 1 << _INDEX_BITS
_REST_BITS: Final = 64 - _INDEX_BITS
_FEW: Final = 5 * _REGISTERS // 2  # below it empty registers tell more
_BIAS: Final = 0.7213 / (1 + 1.079 / _REGISTERS)
_ODD_A, _ODD_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


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
    encoded = [batch.column(name).dictionary_encode(null_encoding="encode") for name in COUNTED[:3]]
    group = np.zeros(batch.num_rows, np.int64)
    for one in encoded:
        group = group * max(len(one.dictionary), 1) + one.indices.to_numpy()
    tally = np.bincount(group)
    there = np.flatnonzero(tally)
    rows = tally[there]
    count = len(there)
    group = (np.cumsum(tally > 0) - 1)[group]
    sizes = batch.column("size").fill_null(0).to_numpy()
    size = np.zeros(count, np.int64)
    np.add.at(size, group, sizes)
    lsns, times = (_ends(batch.column(name), group, count) for name in ("lsn", "ts"))
    registers = _registers(batch.column("key"), group, count)
    for number, code in enumerate(there):
        key = []
        left = int(code)
        for one in reversed(encoded):
            left, place = divmod(left, len(one.dictionary))
            key.append(one.dictionary[place].as_py())
        yield (
            (key[2], key[1], key[0]),
            _Count(
                int(rows[number]), int(size[number]), registers[number], *lsns[number],
                *times[number],
            ),
        )  # fmt: skip


def _ends(column: pa.Array, group: Numbers, count: int) -> list[tuple[Any, Any]]:
    """The least and the largest value of each group; None where it has none."""
    if column.null_count:
        group = group[column.is_valid().to_numpy(zero_copy_only=False)]
        column = column.drop_null()
    values = column.to_numpy()
    some = np.zeros(count, np.bool_)
    some[group] = True
    first = np.zeros(count, values.dtype)
    first[group] = values  # any of them, to begin with
    last = first.copy()
    np.fmin.at(first, group, values)
    np.maximum.at(last, group, values)
    return [
        (low, high) if is_there else (None, None)
        for low, high, is_there in zip(first.tolist(), last.tolist(), some.tolist(), strict=True)
    ]


def _registers(keys: pa.Array, group: Numbers, count: int) -> list[Numbers | None]:
    """The registers of each group; None where no row has a key."""
    if keys.null_count == len(keys):
        return [None] * count
    group = group[keys.is_valid().to_numpy(zero_copy_only=False)]
    hashes = _hashes(keys.drop_null())
    rest = (hashes & np.uint64((1 << _REST_BITS) - 1)).astype(np.float64)  # exact
    ranks = (_REST_BITS + 1 - np.frexp(rest)[1]).astype(np.uint8)
    found = np.zeros(count * _REGISTERS, np.uint8)
    places = group * _REGISTERS + (hashes >> np.uint64(_REST_BITS)).astype(np.int64)
    np.maximum.at(found, places, ranks)
    some = np.zeros(count, np.bool_)
    some[group] = True
    apart = found.reshape(count, _REGISTERS)
    return [apart[number] if some[number] else None for number in range(count)]


def _hashes(keys: pa.Array) -> Numbers:
    """A 64-bit number for the bytes of each key, the same in every process."""
    data, bounds = packed(keys)
    room = np.frombuffer(data + bytes(8), np.uint8)
    words: Numbers = np.ndarray((len(data) + 1,), "<u8", room, strides=(1,))
    starts = bounds[:-1].astype(np.int64)
    sizes = np.diff(bounds).astype(np.int64)
    found: Numbers = sizes.astype(np.uint64) * _ODD_A
    longer = np.arange(len(sizes))
    at = 0
    while len(longer):
        left = np.minimum(sizes[longer] - at, 8)
        mask = ~np.uint64(0) >> ((8 - left) * 8 % 64).astype(np.uint64)
        mask[left == 0] = 0
        word = words[starts[longer] + at] & mask
        found[longer] = _mixed(found[longer] ^ word)
        at += 8
        longer = longer[sizes[longer] > at]
    return found


def _mixed(values: Numbers) -> Numbers:
    values = (values ^ values >> np.uint64(30)) * _ODD_B
    values = (values ^ values >> np.uint64(27)) * _ODD_A
    mixed: Numbers = values ^ values >> np.uint64(31)
    return mixed


def _estimate(registers: Numbers | None) -> int:
    """About how many different keys made these registers."""
    if registers is None:
        return 0
    found = _BIAS * _REGISTERS**2 / float(np.exp2(-registers.astype(np.float64)).sum())
    empty = int((registers == 0).sum())
    if found <= _FEW and empty:
        found = _REGISTERS * math.log(_REGISTERS / empty)
    return round(found)
