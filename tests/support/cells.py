"""Typed columns cell by cell, one Python object each: what the kernel is compared with."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa

from logweir.pipeline.jobs.typed import TypedColumns
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.wal.mp import Value, unpack
from logweir.wal.render import dumps, to_json


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Value) -> bool:
    return isinstance(value, str) and (value.isascii() or isinstance(to_json(value), str))


_INTEGERS: Final = (FieldType.UNSIGNED, FieldType.INTEGER)
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
_AS_THEY_ARE: Final = frozenset(_FITS) - {FieldType.DECIMAL, FieldType.UUID}


def keyed(space: SpaceDef, key: bytes) -> list[Value]:
    """A tuple of which the fields of the primary key alone are known."""
    parts = space.primary.parts if space.primary is not None else ()
    out: list[Value] = [None] * (max((part.field_no for part in parts), default=-1) + 1)
    for part, value in zip(parts, unpack(key), strict=False):
        if part.path is None:
            out[part.field_no] = value
    return out


def of_keys(
    typed: TypedColumns, keys: Iterable[bytes | None], tuples: Iterable[bytes | None]
) -> list[pa.Array]:
    """The columns of rows of a log: of the tuple, or with the fields of the key only."""
    rows = [
        unpack(data) if data is not None else None if key is None else keyed(typed.space, key)
        for key, data in zip(keys, tuples, strict=True)
    ]
    return of_values(typed, rows)


def of_values(typed: TypedColumns, rows: Iterable[Sequence[Value] | None]) -> list[pa.Array]:
    """The columns of unpacked tuples."""
    kinds = [one.type for one in typed.columns]
    is_number = typed.decimals != "string"
    cells: list[list[Any]] = [[] for _ in kinds]
    rest: list[str | None] = []
    for row in rows:
        values = () if row is None else row
        others: dict[str, Any] = {}
        for number, kind in enumerate(kinds):
            value = values[number] if number < len(values) else None
            fits = value is None or kind not in _FITS or _FITS[kind](value)
            if fits and kind in _INTEGERS and value is not None:
                fits = typed.integers == "decimal" or value < 2**63
            if fits and kind is FieldType.DECIMAL and value is not None and is_number:
                scaled = _scaled(value, int(typed.decimals))
                fits, value = scaled is not None, value if scaled is None else scaled
            if not fits:
                others[str(number)] = to_json(value)
                value = None
            cells[number].append(None if value is None else _shown(kind, value, is_number))
        for number in range(len(kinds), len(values)):
            others[str(number)] = to_json(values[number])
        rest.append(json.dumps(others, ensure_ascii=False) if others else None)
    made = [pa.array(cell, one.arrow) for cell, one in zip(cells, typed.columns, strict=True)]
    return [*made, pa.array(rest, pa.string())]


def _scaled(value: Value, scale: int) -> Decimal | None:
    """The decimal with so many digits behind the point; None where it is not that exactly, or has
    more than 38 digits then."""
    assert isinstance(value, Decimal)
    exact = Fraction(value) * 10**scale
    if exact.denominator != 1 or abs(exact.numerator) >= 10**38:
        return None
    digits = tuple(map(int, str(abs(exact.numerator))))
    return Decimal((exact.numerator < 0, digits, -scale))


def _shown(kind: FieldType, value: Value, is_number: bool) -> Any:
    if kind in _AS_THEY_ARE or (kind is FieldType.DECIMAL and is_number):
        return value
    return str(value) if kind in _FITS else dumps(value)
