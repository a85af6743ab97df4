"""Rows of blocks as Arrow batches: the columns of `wal.kernel`, no row touched by itself.

What is read together is a *group*: the rows of some blocks that stand one behind the other, as one
buffer with one table of columns. Numbers become Arrow arrays as they are; slices of bytes are put
one behind the other by `pipeline.kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import CorruptBlock
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline import kernel
from logweir.pipeline.cells import gathered, json_texts, numbers, repeated, texts
from logweir.pipeline.columns import arrow_schema
from logweir.pipeline.options import ScanOptions
from logweir.wal.columns import ABSENT, ODD, RowColumns
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType, type_name

Numbers = np.ndarray[Any, np.dtype[np.uint64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


_RANGES: Final = {"int16": 2**15, "int32": 2**31, "int64": 2**63}
_MICROSECONDS: Final = 2.0**63 / 1e6
_CONSTANTS: Final = 8  # more are not kept


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group comes from. `name`: what the column `file` holds; `path`: for errors;
    `has_blocks`: it is a file, not a connection."""

    name: str
    path: str
    number: int
    is_log: bool
    has_blocks: bool = True

    @property
    def kind(self) -> str:
        """What the column `kind` holds."""
        return "xlog" if self.is_log else "snap"


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
        return self.by_row(np.arange(len(self.firsts)))

    def spans(self, name: str) -> Numbers:
        """Of each row: where key, tuple or operations begin and, 2^32 times, end; 0 for none."""
        return self._split[name] if name in ("tuple", "ops") else self.number(name)

    @cached_property
    def _split(self) -> dict[str, Numbers]:
        columns = self.columns
        tuples, ops = np.empty((2, len(self)), np.uint64)
        kernel.split_updates(
            *(columns.type, RowType.UPDATE, columns.tuple_span, columns.ops_span),
            *(tuples.data, ops.data),
        )
        return {"tuple": tuples, "ops": ops}

    def by_row(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """For each row what `values` has for its block."""
        return np.repeat(values, np.diff(self.firsts, append=len(self)))

    def where(self, row: int) -> str:
        """A row's place, for errors."""
        return f"replica {self.columns.replica_id[row]} lsn {self.columns.lsn[row]}"


class BatchBuilder:
    """Makes batches of the columns and rows that the options ask for.

    `spaces`: ids of the wanted spaces, empty for all.
    """

    def __init__(self, options: ScanOptions, spaces: frozenset[int] = frozenset()) -> None:
        self._typed = None
        if options.space:
            from logweir.pipeline.typedrows import typed_rows  # with it come definitions of spaces

            self._typed = typed_rows(options)
        self.schema = self._typed.schema if self._typed else arrow_schema(options.columns)
        self._options = options
        self._spaces = np.array(sorted(spaces), dtype=np.uint64)
        self._types = np.array(options.types, dtype=np.uint64)
        self._after = _lsns(options.vclock_from)
        self._upto = _lsns(options.vclock_to)
        self._constants: dict[tuple[Any, pa.DataType], pa.Array] = {}

    def build(self, group: Group) -> Iterator[pa.RecordBatch]:
        """The batches of one group, of at most `batch_rows` rows each.

        Raises `CorruptBlock` where a row has a number that its column cannot hold.
        """
        chosen = self.choose(group)
        rows = None if chosen is None else np.flatnonzero(chosen)
        count = len(group) if rows is None else len(rows)
        # Parts of about one size, so that none is a small rest.
        step = -(-count // -(-count // self._options.batch_rows)) if count else 1
        for first in range(0, count, step):
            last = min(first + step, count)
            taken = Taken(group, slice(first, last) if rows is None else rows[first:last], self)
            if self._typed is not None:
                arrays = self._typed.arrays(taken)
            else:
                arrays = [taken.array(name) for name in self._options.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def constant(self, value: Any, kind: pa.DataType, count: int) -> pa.Array:
        """The same value so many times."""
        made = self._constants.get((value, kind))
        if made is None or len(made) < count:
            if len(self._constants) >= _CONSTANTS:
                self._constants.clear()  # names of files that are read by now
            made = self._constants[value, kind] = repeated(value, kind, count)
        return made.slice(0, count)

    def damage(self, place: Place, offset: int, message: str) -> Iterator[pa.RecordBatch]:
        """A damaged place as a batch of one row."""
        known: dict[str, Any] = {
            "file": place.name,
            "file_seq": place.number,
            "kind": place.kind,
            "block_offset": offset,
            "crc_ok": False,
            "damage": message,
        }
        arrays = [pa.array([known.get(one.name)], one.type) for one in self.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left to be handed on behind the last group: nothing."""
        return iter(())

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


class Taken:
    """Some rows of a group, a column at a time. `rows`: their numbers, or from where to where."""

    def __init__(self, group: Group, rows: Indices | slice, builder: BatchBuilder) -> None:
        self._group = group
        self._rows = rows
        self._builder = builder
        self._count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def data(self) -> bytes:
        """The buffer that the spans are of."""
        return self._group.columns.data

    def array(self, name: str) -> pa.Array:
        """One column of the format."""
        return _MAKERS[name](self)

    def _take(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values[self._rows]

    def _row(self, number: int) -> int:
        """The number in the group of one of these rows."""
        rows = self._rows
        return rows.start + number if isinstance(rows, slice) else int(rows[number])

    def constant(self, value: Any, kind: pa.DataType) -> pa.Array:
        """The same value in every row."""
        return self._builder.constant(value, kind, len(self))

    def number(self, name: str, column: str, kind: str) -> pa.Array:
        """A column of the kernel as signed numbers."""
        values = self._take(self._group.number(name))
        return self._fit(values, column, kind)

    def _fit(self, values: Numbers, column: str, kind: str) -> pa.Array:
        if len(values) and int(values.max()) >= _RANGES[kind]:
            at = int(np.argmax(values))
            row = self._row(at)
            group = self._group
            raise CorruptBlock(
                f"{column} {values[at]} of the row of {group.where(row)} does not fit its column.",
                path=group.place.path,
                offset=int(group.offsets[group.block[row]]),
                hint="no known program writes it; read the columns `header` and `body` instead",
            )
        return numbers(values.view(np.int64) if kind == "int64" else values.astype(kind))

    def flags(self) -> pa.Array:
        """Bit 0 and what else the header says."""
        values = self._take(self._group.number("flags"))
        plain = values & np.uint64(ODD - 1)
        odd = np.flatnonzero(values & np.uint64(ODD)).tolist()
        for at in odd:
            row = self._group.columns.row(self._row(at))
            plain[at] = row.flags | (FLAG_COMMIT if row.commit else 0)
        return self._fit(plain, "flags", "int16")

    def space_id(self) -> pa.Array:
        """Null where the body names none."""
        values = self._take(self._group.number("space_id"))
        absent = values == np.uint64(ABSENT)
        if not absent.any():
            return self._fit(values, "space_id", "int64")
        fitted = self._fit(np.where(absent, np.uint64(0), values), "space_id", "int64")
        return numbers(fitted.to_numpy(), absent=absent)

    def seconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """`ts`."""
        return self._take(self._group.number("timestamp").view(np.float64))

    def time(self) -> pa.Array:
        """`ts` as a timestamp."""
        seconds = self.seconds()
        fits = np.abs(seconds) < _MICROSECONDS  # false for NaN
        whole = np.where(fits, np.round(seconds * 1e6), 0.0).astype(np.int64)
        return numbers(whole, pa.timestamp("us", tz="UTC"), absent=~fits)

    def block_offset(self) -> pa.Array:
        """Of the row's block."""
        group = self._group
        if not group.place.has_blocks:
            return pa.nulls(len(self), pa.int64())
        return numbers(self._take(group.by_row(group.offsets.view(np.int64))))

    def row_in_block(self) -> pa.Array:
        """From 0."""
        group = self._group
        if not group.place.has_blocks:
            return pa.nulls(len(self), pa.int32())
        rows = np.arange(len(group), dtype=np.int32) - group.by_row(group.firsts.astype(np.int32))
        return numbers(self._take(rows))

    def span(self, name: str) -> Numbers:
        """A body value's start and, 2^32 times, its end; 0 where it is absent."""
        return self._take(self._group.spans(name))

    def part(self, name: str) -> pa.Array:
        """Key, tuple or operations."""
        return self.values(self.span(name))

    def values(self, spans: Numbers) -> pa.Array:
        """What stands at these spans of the buffer; null where a span is 0."""
        return gathered(self.data, spans, pa.binary())

    def size(self) -> pa.Array:
        """Bytes of key, tuple and operations."""
        half = np.uint64(32)
        spans = (self.span(name) for name in ("key", "tuple", "ops"))
        ends = sum(((one >> half) - (one & np.uint64(2**32 - 1)) for one in spans), np.uint64(0))
        return numbers(ends.astype(np.int64))

    def header(self) -> pa.Array:
        """The row's first map."""
        starts = self._take(self._group.number("row_offset"))
        return self.values(starts | self._take(self._group.number("body_offset")) << np.uint64(32))

    def body(self) -> pa.Array:
        """The row's second map; empty for a NOP."""
        starts = self._take(self._group.number("body_offset"))
        return self.values(starts | self._take(self._group.ends) << np.uint64(32))

    def json(self, name: str) -> pa.Array:
        """Key, tuple or operations as JSON text."""
        return json_texts(self.data, self.span(name))

    def type_name(self) -> pa.Array:
        """The name of the type."""
        types = self._take(self._group.number("type"))
        names = _names()
        if not len(types) or int(types.max()) < len(names):
            return names.take(numbers(types))
        return texts(map(type_name, types.tolist()))


@cache
def _names() -> pa.Array:
    """Of all types below 256."""
    return texts(map(type_name, range(256)))


_MAKERS: Final[dict[str, Callable[[Taken], pa.Array]]] = {
    "file": lambda one: one.constant(one._group.place.name, pa.string()),
    "block_offset": Taken.block_offset,
    "row_in_block": Taken.row_in_block,
    "type": lambda one: one.number("type", "type", "int16"),
    "replica_id": lambda one: one.number("replica_id", "replica_id", "int32"),
    "lsn": lambda one: one.number("lsn", "lsn", "int64"),
    "tsn": lambda one: one.number("tsn", "tsn", "int64"),
    "ts": lambda one: numbers(one.seconds()),
    "flags": Taken.flags,
    "space_id": Taken.space_id,
    "index_base": lambda one: one.number("index_base", "index_base", "int16"),
    "key": lambda one: one.part("key"),
    "tuple": lambda one: one.part("tuple"),
    "ops": lambda one: one.part("ops"),
    "kind": lambda one: one.constant(one._group.place.kind, pa.string()),
    "file_seq": lambda one: one.constant(one._group.place.number, pa.int32()),
    "group_id": lambda one: one.number("group_id", "group_id", "int32"),
    "index_id": lambda one: one.number("index_id", "index_id", "int32"),
    "time": Taken.time,
    "type_name": Taken.type_name,
    "size": Taken.size,
    "header": Taken.header,
    "body": Taken.body,
    "key_json": lambda one: one.json("key"),
    "tuple_json": lambda one: one.json("tuple"),
    "ops_json": lambda one: one.json("ops"),
    "crc_ok": lambda one: one.constant(True, pa.bool_()),
    "damage": lambda one: pa.nulls(len(one), pa.string()),
}
