"""Tuples of a space ↔ typed columns, from the space's own format. Arrow in and out; no Spark.

======================  ==================  ====================================================
field type              column              a value in it
======================  ==================  ====================================================
unsigned, integer       DECIMAL(20,0)       exact up to 2^64-1; BIGINT with `integers="long"`
string                  STRING
boolean                 BOOLEAN
varbinary               BINARY
double                  DOUBLE
decimal, uuid           STRING              its text: no decimal column holds every decimal; with
                                            `decimals=SCALE` a decimal is DECIMAL(38, SCALE)
number, scalar, any,    STRING              JSON (`wal.render`), so that 1, 1.0 and "1" differ
array, map
======================  ==================  ====================================================

Columns are named as fields are; Spark's names do not tell upper from lower case, so a second name
that differs in case only gets `_2`. Behind them stands `_rest`: a JSON object, field number →
value, of what the columns could not hold: fields beyond the format, a string that is not UTF-8, an
integer over 2^63-1 in a BIGINT, a decimal that is not exactly one of its DECIMAL, a value of
another type than the format now says. Nothing is cut or lost; `from_columns` makes the same tuple
again, integers and floats of every width in their shortest form, and the decimals of a DECIMAL with
zeros up to its scale.
"""

from __future__ import annotations

import json
import uuid
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import ConfigError, DecodeError, LogweirError
from logweir.limits import DECIMAL_DIGITS
from logweir.pipeline import typedkernel
from logweir.pipeline.cells import Cells, Spans, placed
from logweir.pipeline.columns import arrow_schema
from logweir.pipeline.options import check_decimals
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.named import REST
from logweir.wal.mp import Value, unpack
from logweir.wal.render import dumps, from_json

_JSON: Final = ("STRING", pa.string(), "json")
_TYPES: Final = {
    FieldType.UNSIGNED: ("DECIMAL(20,0)", pa.decimal128(20, 0), "decimal"),
    FieldType.INTEGER: ("DECIMAL(20,0)", pa.decimal128(20, 0), "decimal"),
    FieldType.STRING: ("STRING", pa.string(), "string"),
    FieldType.BOOLEAN: ("BOOLEAN", pa.bool_(), "boolean"),
    FieldType.VARBINARY: ("BINARY", pa.binary(), "binary"),
    FieldType.DOUBLE: ("DOUBLE", pa.float64(), "double"),
    FieldType.DECIMAL: ("STRING", pa.string(), "decimal text"),
    FieldType.UUID: ("STRING", pa.string(), "uuid text"),
}
_LONG: Final = ("BIGINT", pa.int64(), "long")
_NO_FIELD: Final = 2**63


def _names(fields: Iterable[str], reserved: Iterable[str]) -> list[str]:
    names: list[str] = []
    taken = {REST, *reserved}
    for number, name in enumerate(fields):
        shown = name or f"field_{number}"
        again = 1
        while shown.lower() in taken:
            again += 1
            shown = f"{name}_{again}"
        taken.add(shown.lower())
        names.append(shown)
    return names


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: FieldType
    ddl: str
    arrow: pa.DataType
    kind: str


def _column(name: str, kind: FieldType, integers: str, decimals: str) -> _Column:
    if integers == "long" and kind in (FieldType.UNSIGNED, FieldType.INTEGER):
        return _Column(name, kind, *_LONG)
    if decimals != "string" and kind is FieldType.DECIMAL:
        arrow = pa.decimal128(DECIMAL_DIGITS, int(decimals))
        ddl = f"DECIMAL({DECIMAL_DIGITS},{decimals})"
        return _Column(name, kind, ddl, arrow, f"fixed {decimals}")
    return _Column(name, kind, *_TYPES.get(kind, _JSON))


@dataclass
class TypedColumns:
    """The columns of one space. `integers`: `decimal` or `long`; `decimals`: `string`, or how many
    digits stand behind the point of a DECIMAL, 0 … 38, as text; `reserved`: names that a field does
    not get, as other columns have them. Raises `ConfigError`."""

    space: SpaceDef
    integers: str = "decimal"
    decimals: str = "string"
    reserved: tuple[str, ...] = ()
    columns: list[_Column] = field(init=False)

    def __post_init__(self) -> None:
        if self.integers not in ("decimal", "long"):
            raise ConfigError("integers", f"{self.integers!r} is not decimal or long")
        check_decimals("decimals", self.decimals)
        fields = self.space.fields
        names = _names((one.name for one in fields), self.reserved)
        self.columns = [
            _column(name, one.type, self.integers, self.decimals)
            for name, one in zip(names, fields, strict=True)
        ]

    @property
    def types(self) -> dict[str, str]:
        """The columns' names and their types in Spark's DDL."""
        return {**{one.name: one.ddl for one in self.columns}, REST: "STRING"}

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow's."""
        return arrow_schema(tuple(self.types), self.types)

    # --- tuples → columns -------------------------------------------------------------------------

    def of(self, tuples: Iterable[bytes | None]) -> list[pa.Array]:
        """The columns of tuples (MsgPack); null where there is none. Raises `DecodeError`."""
        return self.of_spans(*placed(tuples))

    def of_spans(
        self,
        data: bytes,
        tuples: Spans,
        keys: Spans | None = None,
        *,
        only: Sequence[str] | None = None,
    ) -> list[pa.Array]:
        """The columns of the tuples that stand at these places of a buffer; if there is none,
        with the fields of the key alone. `only`: names of the wanted columns, in their order, else
        all. Raises `DecodeError` for a tuple that is malformed."""
        if keys is None:
            keys = np.zeros_like(tuples)
        parts, keyed = self._key
        width = max(len(self.columns), keyed)
        table = np.empty((width + 1) * len(tuples), np.uint64)
        cells = Cells(data, table, len(tuples))
        try:
            found = typedkernel.split(
                data, tuples.data, keys.data, parts.data, keyed, width, table.data
            )
            if found < 0:
                raise DecodeError(f"the tuple of row {-1 - found} is no array")
            made = {
                one.name: cells.column(number, one.kind, one.arrow)
                for number, one in enumerate(self.columns)
                if only is None or one.name in only or REST in only
            }
            if only is None or REST in only:
                made[REST] = cells.rest(len(self.columns), width)
            return [*made.values()] if only is None else [made[name] for name in only]
        except LogweirError:
            for span in np.where(tuples, tuples, keys).tolist():
                unpack(data[span & 0xFFFFFFFF : span >> 32] if span else b"\xc0")
            raise

    @cached_property
    def _key(self) -> tuple[Spans, int]:
        """The field of each part of the primary key, and how many fields these reach over."""
        parts = self.space.primary.parts if self.space.primary is not None else ()
        fields = [_NO_FIELD if part.path is not None else part.field_no for part in parts]
        return np.array(fields, np.uint64), max((part.field_no + 1 for part in parts), default=0)

    def told(self) -> tuple[list[str], list[int]]:
        """The kind of each field, and the field of each part of the primary key, -1 for none."""
        fields = self._key[0].tolist()
        return [one.kind for one in self.columns], [-1 if n == _NO_FIELD else n for n in fields]

    # --- columns → tuples -------------------------------------------------------------------------

    def from_columns(self, batch: pa.RecordBatch, *, is_base64: bool = False) -> list[list[Value]]:
        """The tuples of a batch whose columns are named as ours; absent ones are nil.
        `is_base64`: what text for a varbinary field is, else its bytes are taken.

        Columns may be of other types than ours where a value can be made of theirs: a JSON column
        takes plain numbers, a string column text. Trailing nils are left out as far as the format
        allows. Raises `ConfigError` for a column that no field has, `DecodeError` for a value.
        """
        known = {one.name.lower(): number for number, one in enumerate(self.columns)}
        places = []
        for name in batch.schema.names:
            if name != REST and name.lower() not in known:
                raise ConfigError(
                    "column",
                    f"{name!r} is no field of space {self.space.name!r}",
                    hint="fields are " + ", ".join(one.name for one in self.columns),
                )
            places.append(-1 if name == REST else known[name.lower()])
        out = []
        columns = [column.to_pylist() for column in batch.columns]
        for cells in zip(*columns, strict=True):
            values: list[Value] = [None] * len(self.columns)
            others: dict[str, Any] = {}
            for place, cell in zip(places, cells, strict=True):
                if place < 0:
                    others = {} if cell is None else json.loads(cell)
                elif cell is not None:
                    values[place] = self._value(self.columns[place], cell, is_base64)
            for number, value in sorted((int(key), value) for key, value in others.items()):
                values.extend([None] * (number + 1 - len(values)))
                values[number] = from_json(value)
            out.append(self._trimmed(values))
        return out

    def _trimmed(self, values: list[Value]) -> list[Value]:
        least = self.space.field_count or self._needed()
        while len(values) > least and values[-1] is None:
            values.pop()
        return values

    def _needed(self) -> int:
        numbers = [n for n, one in enumerate(self.space.fields, 1) if not one.is_nullable]
        parts = self.space.primary.parts if self.space.primary is not None else ()
        return max([0, *numbers, *(part.field_no + 1 for part in parts)])

    def _value(self, column: _Column, cell: Any, is_base64: bool) -> Value:
        kind = column.type
        try:
            if kind in (FieldType.UNSIGNED, FieldType.INTEGER):
                return _integer(cell)
            if kind is FieldType.DOUBLE:
                return float(cell)
            if kind is FieldType.DECIMAL:
                return Decimal(str(cell))
            if kind is FieldType.UUID:
                return cell if isinstance(cell, uuid.UUID) else uuid.UUID(str(cell))
            if kind is FieldType.VARBINARY:
                if isinstance(cell, bytes):
                    return cell
                return b64decode(cell, validate=True) if is_base64 else str(cell).encode()
            if kind is FieldType.STRING:
                return cell if isinstance(cell, str) else str(cell)
            if kind is FieldType.BOOLEAN:
                return _boolean(cell)
            return from_json(json.loads(cell)) if isinstance(cell, str) else plain(cell)
        except (ValueError, InvalidOperation, TypeError) as error:
            raise DecodeError(
                f"column {column.name!r} has {cell!r:.60}, which is no {kind.label}",
                hint="cast it, or import into a space whose field has another type",
            ) from error


def _integer(cell: Any) -> int:
    number = int(cell)
    if isinstance(cell, float | Decimal) and cell != number:
        raise ValueError("not whole")
    return number


def _boolean(cell: Any) -> bool:
    if isinstance(cell, bool):
        return cell
    if str(cell).lower() in ("true", "false"):
        return str(cell).lower() == "true"
    raise ValueError("not true or false")


def plain(cell: Any) -> Value:
    """A value of Arrow as one of MsgPack: times as text, lists and structs as they are."""
    if isinstance(cell, list | tuple):
        if cell and all(isinstance(one, tuple) and len(one) == 2 for one in cell):
            return {plain(key): plain(value) for key, value in cell}  # Arrow's maps
        return [plain(one) for one in cell]
    if isinstance(cell, dict):
        return {key: plain(value) for key, value in cell.items()}
    if hasattr(cell, "isoformat"):
        return cell.isoformat()
    return cell


def json_line(row: dict[str, Any], names: dict[int, str]) -> str:
    """A row of a scan as a line of `logweir cat`.

    `row`: file, block_offset, row_in_block, type_name, replica_id, lsn, ts, tsn, flags, group_id,
    space_id, index_base, key_json, tuple_json, ops_json, body; `names`: of spaces by id.
    """
    kind = row["type_name"]
    line = (
        f'{{"file": {json.dumps(row["file"])}, "offset": {row["block_offset"]}, '
        f'"row": {row["row_in_block"]}, "type": {kind if kind.isdigit() else json.dumps(kind)}, '
        f'"replica_id": {row["replica_id"]}, "lsn": {row["lsn"]}, '
        f'"timestamp": {dumps(row["ts"])}, "tsn": {row["tsn"]}, '
        f'"commit": {"true" if row["flags"] & 1 else "false"}, "group_id": {row["group_id"]}'
    )
    space_id = row["space_id"]
    if space_id is None:
        body = row["body"]
        return f'{line}, "body": {dumps(unpack(body))}}}' if body else line + "}"
    line += f', "space_id": {space_id}'
    if space_id in names:
        line += f', "space": {dumps(names[space_id])}'
    if row["index_base"] or row["ops_json"] is not None:
        line += f', "index_base": {row["index_base"]}'
    for name in ("key", "tuple", "ops"):
        if row[f"{name}_json"] is not None:
            line += f', "{name}": {row[f"{name}_json"]}'
    return line + "}"
