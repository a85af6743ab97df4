"""Rows of blocks as Arrow batches: the columns of `wal.kernel`, no row touched by itself.

What is read together is a *group*: the rows of some blocks that stand one behind the other, as one
buffer with one table of columns. Numbers become Arrow arrays as they are; a slice of bytes is
taken out of the buffer by Arrow itself: the starts and ends of the slices, alternating, are the
offsets of a binary array over the whole buffer, of which every second element is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import CorruptBlock
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.columns import arrow_schema
from logweir.pipeline.options import ScanOptions
from logweir.wal.columns import ABSENT, ODD, RowColumns
from logweir.wal.render import value_json
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType

__all__ = ["BatchBuilder", "Group", "Place"]

Numbers = np.ndarray[Any, np.dtype[np.uint64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]

_TYPE_NAMES: Final = {int(kind): kind.name for kind in RowType}
_RANGES: Final = {"int16": 2**15, "int32": 2**31, "int64": 2**63}
_MICROSECONDS: Final = 2.0**63 / 1e6


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group comes from. `name`: what the column `file` holds; `path`: for errors;
    `has_blocks`: it is a file, not a connection."""

    name: str
    path: str
    number: int
    is_log: bool
    has_blocks: bool = True


class Group:
    """Rows of some blocks. `offsets`: of each block in its file; `firsts`: its first row here."""

    def __init__(
        self, place: Place, columns: RowColumns, offsets: Numbers, firsts: Indices
    ) -> None:
        self.place = place
        self.columns = columns
        self.offsets = offsets
        self.firsts = firsts

    def __len__(self) -> int:
        return len(self.columns)

    def number(self, name: str) -> Numbers:
        """One column of `wal.kernel`."""
        return np.frombuffer(self.columns.column(name), dtype=np.uint64)

    @cached_property
    def ends(self) -> Numbers:
        """Where each row ends in the buffer."""
        return np.frombuffer(self.columns.end_offset, dtype=np.uint64)

    @cached_property
    def block(self) -> Indices:
        """The number of each row's block in the group."""
        counts = np.diff(self.firsts, append=len(self))
        return np.repeat(np.arange(len(self.firsts)), counts)

    def where(self, row: int) -> str:
        """A row's place, for errors."""
        return f"replica {self.columns.replica_id[row]} lsn {self.columns.lsn[row]}"


class BatchBuilder:
    """Makes batches of the columns and rows that the options ask for.

    `spaces`: ids of the wanted spaces, empty for all.
    """

    def __init__(self, options: ScanOptions, spaces: frozenset[int] = frozenset()) -> None:
        self.schema = arrow_schema(options.columns)
        self._options = options
        self._spaces = np.array(sorted(spaces), dtype=np.uint64)
        self._types = np.array(options.types, dtype=np.uint64)
        self._after = _lsns(options.vclock_from)
        self._upto = _lsns(options.vclock_to)

    def build(self, group: Group) -> Iterator[pa.RecordBatch]:
        """The batches of one group, of at most `batch_rows` rows each.

        Raises `CorruptBlock` where a row has a number that its column cannot hold.
        """
        chosen = self.choose(group)
        rows = np.arange(len(group)) if chosen is None else np.flatnonzero(chosen)
        if not len(rows):
            return
        taken = _Taken(group, rows, whole=len(rows) == len(group))
        arrays = [taken.array(name) for name in self._options.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        step = self._options.batch_rows
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)

    def damage(self, place: Place, offset: int, message: str) -> pa.RecordBatch:
        """A damaged place as a batch of one row."""
        known: dict[str, Any] = {
            "file": place.name,
            "file_seq": place.number,
            "kind": _kind(place),
            "block_offset": offset,
            "crc_ok": False,
            "damage": message,
        }
        arrays = [pa.array([known.get(one.name)], one.type) for one in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def choose(self, group: Group) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which rows are wanted; None for all."""
        options = self._options
        masks = []
        if group.place.is_log:
            replica = group.number("replica_id")
            lsn = group.number("lsn")
            if options.vclock_from is not None:
                masks.append(lsn > self._after[replica])
            if options.vclock_to is not None:
                masks.append(lsn <= self._upto[replica])
            if options.replica_id is not None:
                masks.append(replica == options.replica_id)
            if options.lsn_from is not None:
                masks.append(lsn >= options.lsn_from)
            if options.lsn_to is not None:
                masks.append(lsn <= options.lsn_to)
        seconds = group.number("timestamp").view(np.float64)
        if options.time_from is not None:
            masks.append(seconds >= options.time_from)
        if options.time_to is not None:
            masks.append(seconds <= options.time_to)
        if len(self._spaces):
            masks.append(np.isin(group.number("space_id"), self._spaces))
        if len(self._types):
            masks.append(np.isin(group.number("type"), self._types))
        return np.logical_and.reduce(masks) if masks else None


def _lsns(vclock: VClock | None) -> Numbers:
    lsns = (vclock or VClock()).lsn
    return np.array([lsns(i) for i in range(VCLOCK_COMPONENTS)], dtype=np.uint64)


def _kind(place: Place) -> str:
    return "xlog" if place.is_log else "snap"


class _Taken:
    """Some rows of a group, a column at a time."""

    def __init__(self, group: Group, rows: Indices, *, whole: bool) -> None:
        self._group = group
        self._rows = rows
        self._whole = whole

    def array(self, name: str) -> pa.Array:
        """One column of the format."""
        return _MAKERS[name](self)

    def _take(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values if self._whole else values[self._rows]

    def constant(self, value: Any, kind: pa.DataType) -> pa.Array:
        """The same value in every row."""
        return pa.repeat(pa.scalar(value, kind), len(self._rows))

    def number(self, name: str, column: str, kind: str) -> pa.Array:
        """A column of the kernel as signed numbers."""
        values = self._take(self._group.number(name))
        return self._fit(values, column, kind)

    def _fit(self, values: Numbers, column: str, kind: str) -> pa.Array:
        if len(values) and int(values.max()) >= _RANGES[kind]:
            at = int(np.argmax(values))
            row = int(self._rows[at])
            group = self._group
            raise CorruptBlock(
                f"{column} {values[at]} of the row of {group.where(row)} does not fit its column.",
                path=group.place.path,
                offset=int(group.offsets[group.block[row]]),
                hint="no known program writes it; read the columns `header` and `body` instead",
            )
        return pa.array(values.astype(kind))

    def flags(self) -> pa.Array:
        """Bit 0 and what else the header says."""
        values = self._take(self._group.number("flags"))
        plain = values & np.uint64(ODD - 1)
        odd = np.flatnonzero(values & np.uint64(ODD))
        for at in odd:
            row = self._group.columns.row(int(self._rows[at]))
            plain[at] = row.flags | (FLAG_COMMIT if row.commit else 0)
        return self._fit(plain, "flags", "int16")

    def space_id(self) -> pa.Array:
        """Null where the body names none."""
        values = self._take(self._group.number("space_id"))
        absent = values == np.uint64(ABSENT)
        if not absent.any():
            return self._fit(values, "space_id", "int64")
        fitted = self._fit(np.where(absent, np.uint64(0), values), "space_id", "int64")
        return pa.array(fitted.to_numpy(), mask=absent)

    def seconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """`ts`."""
        return self._take(self._group.number("timestamp").view(np.float64))

    def time(self) -> pa.Array:
        """`ts` as a timestamp."""
        seconds = self.seconds()
        fits = np.abs(seconds) < _MICROSECONDS  # false for NaN
        whole = np.where(fits, np.round(seconds * 1e6), 0.0).astype(np.int64)
        return pa.array(whole, pa.timestamp("us", tz="UTC"), mask=~fits)

    def block_offset(self) -> pa.Array:
        """Of the row's block."""
        group = self._group
        if not group.place.has_blocks:
            return pa.nulls(len(self._rows), pa.int64())
        return pa.array(group.offsets[self._take(group.block)].astype(np.int64))

    def row_in_block(self) -> pa.Array:
        """From 0."""
        group = self._group
        if not group.place.has_blocks:
            return pa.nulls(len(self._rows), pa.int32())
        return pa.array((self._rows - group.firsts[self._take(group.block)]).astype(np.int32))

    def span(self, name: str) -> Numbers:
        """A body value's start and, 2^32 times, its end; 0 where it is absent."""
        if name == "ops" or name == "tuple":
            updates = self._group.number("type") == RowType.UPDATE
            if updates.any():
                tuples = self._group.number("tuple")
                if name == "tuple":
                    return self._take(np.where(updates, np.uint64(0), tuples))
                ops = self._group.number("ops")
                return self._take(np.where(updates & (tuples != 0), tuples, ops))
        return self._take(self._group.number(name))

    def part(self, name: str) -> pa.Array:
        """Key, tuple or operations."""
        span = self.span(name)
        return self.slices(span & np.uint64(0xFFFFFFFF), span >> np.uint64(32), span == 0)

    def slices(
        self, starts: Numbers, stops: Numbers, absent: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> pa.Array:
        """Slices of the buffer, ascending; null where `absent`."""
        count = len(starts)
        present = np.flatnonzero(~absent)
        if not len(present):
            return pa.nulls(count, pa.binary())
        edges = np.empty(2 * len(present), dtype=np.int32)
        edges[0::2] = starts[present]
        edges[1::2] = stops[present]
        whole = pa.BinaryArray.from_buffers(
            pa.binary(),
            len(edges) - 1,
            [None, pa.py_buffer(edges), pa.py_buffer(self._group.columns.data)],
        )
        if len(present) == count:
            return whole.take(pa.array(np.arange(0, 2 * count, 2)))
        order = np.cumsum(~absent, dtype=np.int64) * 2 - 2
        return whole.take(pa.array(order, mask=absent))

    def header(self) -> pa.Array:
        """The row's first map."""
        starts = self._take(self._group.number("row_offset"))
        stops = self._take(self._group.number("body_offset"))
        return self.slices(starts, stops, np.zeros(len(starts), dtype=np.bool_))

    def body(self) -> pa.Array:
        """The row's second map; empty for a NOP."""
        starts = self._take(self._group.number("body_offset"))
        stops = self._take(self._group.ends)
        return self.slices(starts, stops, np.zeros(len(starts), dtype=np.bool_))

    def json(self, name: str) -> pa.Array:
        """Key, tuple or operations as JSON text."""
        parts = self.part(name).to_pylist()
        return pa.array([None if one is None else value_json(one) for one in parts], pa.string())

    def type_name(self) -> pa.Array:
        """The name of the type."""
        types = self._take(self._group.number("type")).tolist()
        return pa.array([_TYPE_NAMES.get(one, str(one)) for one in types], pa.string())


_MAKERS: Final[dict[str, Callable[[_Taken], pa.Array]]] = {
    "file": lambda one: one.constant(one._group.place.name, pa.string()),
    "block_offset": _Taken.block_offset,
    "row_in_block": _Taken.row_in_block,
    "type": lambda one: one.number("type", "type", "int16"),
    "replica_id": lambda one: one.number("replica_id", "replica_id", "int32"),
    "lsn": lambda one: one.number("lsn", "lsn", "int64"),
    "tsn": lambda one: one.number("tsn", "tsn", "int64"),
    "ts": lambda one: pa.array(one.seconds()),
    "flags": _Taken.flags,
    "space_id": _Taken.space_id,
    "index_base": lambda one: one.number("index_base", "index_base", "int16"),
    "key": lambda one: one.part("key"),
    "tuple": lambda one: one.part("tuple"),
    "ops": lambda one: one.part("ops"),
    "kind": lambda one: one.constant(_kind(one._group.place), pa.string()),
    "file_seq": lambda one: one.constant(one._group.place.number, pa.int32()),
    "group_id": lambda one: one.number("group_id", "group_id", "int32"),
    "index_id": lambda one: one.number("index_id", "index_id", "int32"),
    "time": _Taken.time,
    "type_name": _Taken.type_name,
    "header": _Taken.header,
    "body": _Taken.body,
    "key_json": lambda one: one.json("key"),
    "tuple_json": lambda one: one.json("tuple"),
    "ops_json": lambda one: one.json("ops"),
    "crc_ok": lambda one: one.constant(True, pa.bool_()),
    "damage": lambda one: pa.nulls(len(one._rows), pa.string()),
}
