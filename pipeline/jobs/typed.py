"""Tuples of a space ↔ typed columns, from the space's own format. Arrow in and out; no Spark.

======================  ==================  ====================================================
field type              column              a value in it
======================  ==================  ====================================================
unsigned, integer       DECIMAL(20,0)       exact up to 2^64-1; BIGINT with `integers="long"`
string                  STRING
boolean                 BOOLEAN
varbinary               BINARY
double                  DOUBLE
decimal, uuid           STRING              its text: no decimal column holds every decimal
number, scalar, any,    STRING              JSON (`wal.render`), so that 1, 1.0 and "1" differ
array, map
======================  ==================  ====================================================

Columns are named as fields are; Spark's names do not tell upper from lower case, so a second name
that differs in case only gets `_2`. Behind them stands `_rest`: a JSON object, field number →
value, of what the columns could not hold: fields beyond the format, a string that is not UTF-8, an
integer over 2^63-1 in a BIGINT, a value of another type than the format now says. Nothing is cut or
lost; `from_columns` makes the same tuple again, integers and floats of every width in their
shortest form.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from logweir.errors import ConfigError, DecodeError
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.named import REST
from logweir.wal.mp import Value, unpack
from logweir.wal.render import dumps, from_json, to_json

__all__ = ["TypedColumns", "json_line"]

_TYPES: Final = {
    FieldType.STRING: ("STRING", pa.string()),
    FieldType.BOOLEAN: ("BOOLEAN", pa.bool_()),
    FieldType.VARBINARY: ("BINARY", pa.binary()),
    FieldType.DOUBLE: ("DOUBLE", pa.float64()),
}
_LONG: Final = ("BIGINT", pa.int64())
_DECIMAL: Final = ("DECIMAL(20,0)", pa.decimal128(20, 0))
_JSON: Final = ("STRING", pa.string())


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Value) -> bool:
    return isinstance(value, str) and (value.isascii() or isinstance(to_json(value), str))


_FITS: Final[dict[FieldType, Callable[[Value], bool]]] = {
    FieldType.UNSIGNED: _is_integer,
    FieldType.INTEGER: _is_integer,
    FieldType.STRING: _is_text,
    FieldType.BOOLEAN: lambda value: isinstance(value, bool),
    FieldType.VARBINARY: lambda value: isinstance(value, bytes),
    FieldType.DOUBLE: lambda value: isinstance(value, float),
    FieldType.DECIMAL: lambda value: isinstance(value, Decimal),
    FieldType.UUID: lambda value: isinstance(value, uuid.UUID),
}


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
    fits: Callable[[Value], bool]
    show: Callable[[Value], Any]


def _column(name: str, kind: FieldType, integers: str) -> _Column:
    fits = _FITS.get(kind, lambda value: value is not None)
    show: Callable[[Value], Any] = lambda value: value  # noqa: E731
    if kind in (FieldType.UNSIGNED, FieldType.INTEGER):
        ddl, arrow = _LONG if integers == "long" else _DECIMAL
        if integers == "long":
            fits = lambda value: _is_integer(value) and value < 2**63  # noqa: E731
    elif kind in _TYPES:
        ddl, arrow = _TYPES[kind]
    else:
        ddl, arrow = _JSON
        show = str if kind in (FieldType.DECIMAL, FieldType.UUID) else dumps
    return _Column(name, kind, ddl, arrow, fits, show)


@dataclass(slots=True)
class TypedColumns:
    """The columns of one space. `integers`: `decimal` or `long`; `reserved`: names that a field
    does not get, as other columns have them. Raises `ConfigError`."""

    space: SpaceDef
    integers: str = "decimal"
    reserved: tuple[str, ...] = ()
    columns: list[_Column] = field(init=False)

    def __post_init__(self) -> None:
        if self.integers not in ("decimal", "long"):
            raise ConfigError("integers", f"{self.integers!r} is not decimal or long")
        fields = self.space.fields
        names = _names((one.name for one in fields), self.reserved)
        self.columns = [
            _column(name, one.type, self.integers) for name, one in zip(names, fields, strict=True)
        ]

    @property
    def ddl(self) -> str:
        """The columns as Spark's DDL."""
        shown = [f"`{one.name.replace('`', '``')}` {one.ddl}" for one in self.columns]
        return ", ".join([*shown, f"`{REST}` STRING"])

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow's."""
        fields = [pa.field(one.name, one.arrow) for one in self.columns]
        return pa.schema([*fields, pa.field(REST, pa.string())])

    # --- tuples → columns -------------------------------------------------------------------------

    def of(self, tuples: Iterable[bytes | None]) -> list[pa.Array]:
        """The columns of tuples (MsgPack); null in all where there is none."""
        return self.of_values(None if data is None else unpack(data) for data in tuples)

    def of_keys(
        self, keys: Iterable[bytes | None], tuples: Iterable[bytes | None]
    ) -> list[pa.Array]:
        """The columns of rows of a log: of the tuple, or with the fields of the key only."""
        return self.of_values(
            unpack(data) if data is not None else None if key is None else self._keyed(key)
            for key, data in zip(keys, tuples, strict=True)
        )

    def _keyed(self, key: bytes) -> list[Value]:
        parts = self.space.primary.parts if self.space.primary is not None else ()
        values = unpack(key)
        out: list[Value] = [None] * (max((part.field_no for part in parts), default=-1) + 1)
        for part, value in zip(parts, values, strict=False):
            if part.path is None:
                out[part.field_no] = value
        return out

    def of_values(self, rows: Iterable[Sequence[Value] | None]) -> list[pa.Array]:
        """The columns of unpacked tuples."""
        columns = self.columns
        cells: list[list[Any]] = [[] for _ in columns]
        rest: list[str | None] = []
        for row in rows:
            values = () if row is None else row
            others: dict[str, Any] = {}
            for number, column in enumerate(columns):
                value = values[number] if number < len(values) else None
                if value is not None and not column.fits(value):
                    others[str(number)] = to_json(value)
                    value = None
                cells[number].append(None if value is None else column.show(value))
            for number in range(len(columns), len(values)):
                others[str(number)] = to_json(values[number])
            rest.append(json.dumps(others, ensure_ascii=False) if others else None)
        made = [pa.array(cell, column.arrow) for cell, column in zip(cells, columns, strict=True)]
        return [*made, pa.array(rest, pa.string())]

    # --- columns → tuples -------------------------------------------------------------------------

    def from_columns(self, batch: pa.RecordBatch) -> list[list[Value]]:
        """The tuples of a batch whose columns are named as ours; absent ones are nil.

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
                    values[place] = self._value(self.columns[place], cell)
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

    def _value(self, column: _Column, cell: Any) -> Value:
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
                return cell if isinstance(cell, bytes) else str(cell).encode()
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
