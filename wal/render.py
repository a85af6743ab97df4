"""MsgPack values as JSON, as all commands, reports and streams show them.

==============================================  =============================================
value (the Python column of `wal.mp`)           JSON
==============================================  =============================================
None, bool, int, finite float, list             the same; integers stay integers beyond 2^53
str that is UTF-8                               string
str that is not UTF-8                           ``{"$str": base64}``
bytes                                           ``{"$bin": base64}``
Decimal                                         ``{"$decimal": "1.50"}``, scale kept
UUID                                            ``{"$uuid": "…"}``, lower case
other extension                                 ``{"$ext": [type, base64]}``
NaN, infinities                                 ``{"$float": "nan"}``, ``"inf"``, ``"-inf"``
map whose keys are all different UTF-8 strings  object
any other map                                   ``{"$map": [[key, value], …]}``
==============================================  =============================================

So that none of these can be mistaken, a map of one key that begins with ``$`` is written in the
``$map`` form too. Base64 is the standard alphabet with padding. `from_json` is the exact reverse:
it gives the value that `mp.unpack` gave (the sign and payload of a NaN are not kept).

A row is one object; see `row_fields`. Text is JSON without line breaks, letters beyond ASCII as
they are.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]

from logweir.errors import DecodeError, LogweirError
from logweir.wal import kernel
from logweir.wal.columns import ABSENT, RowColumns
from logweir.wal.mp import Ext, MapPairs, Value, decode_ext, map_of, unpack
from logweir.wal.xrow import FLAG_COMMIT, Row, RowType, decode_body, type_name

if TYPE_CHECKING:  # who shows values reads no log
    from logweir.wal.reader import Block

Json = Any
"""None, bool, int, float, str, list, dict with str keys."""

_PLAIN: Final = frozenset({int, bool, type(None)})
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _text(value: str) -> Json:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": _base64(value.encode("utf-8", "surrogateescape"))}
    return value


def _number(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _items(value: list[Value] | tuple[Value, ...]) -> Json:
    return [item if type(item) in _PLAIN else to_json(item) for item in value]


def _is_object(keys: Sequence[Value]) -> bool:
    """Whether a map of these keys is written as a JSON object."""
    if not all(type(key) is str for key in keys):
        return False
    if len(keys) == 1 and keys[0].startswith("$"):
        return False
    return all(key.isascii() or isinstance(_text(key), str) for key in keys)


def _dict(value: dict[Value, Value]) -> Json:
    if _is_object(tuple(value)):
        return {key: to_json(item) for key, item in value.items()}
    return {"$map": [[to_json(key), to_json(item)] for key, item in value.items()]}


_CONVERT: Final[dict[type, Callable[[Any], Json]]] = {
    str: _text,
    float: _number,
    list: _items,
    tuple: _items,
    dict: _dict,
    bytes: lambda value: {"$bin": _base64(value)},
    Decimal: lambda value: {"$decimal": str(value)},
    uuid.UUID: lambda value: {"$uuid": str(value)},
    Ext: lambda value: {"$ext": [value.code, _base64(value.data)]},
    MapPairs: lambda value: {"$map": [[to_json(k), to_json(v)] for k, v in value.pairs]},
}


def to_json(value: Value) -> Json:
    """A value of `wal.mp` as what the `json` module takes. Raises `TypeError` for anything else."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    convert = _CONVERT.get(kind)
    if convert is None:
        raise TypeError(f"a {kind.__name__} has no JSON form: {value!r:.60}")
    return convert(value)


def _bytes(payload: Json) -> bytes:
    return b64decode(payload, validate=True)


def _reverse_float(payload: Json) -> float:
    if payload not in ("nan", "inf", "-inf"):
        raise ValueError("not nan, inf or -inf")
    return float(payload)


def _reverse_ext(payload: Json) -> Ext:
    code, data = payload
    return Ext(code, _bytes(data))


_REVERSE: Final[dict[str, Callable[[Json], Value]]] = {
    "$bin": _bytes,
    "$str": lambda payload: _bytes(payload).decode("utf-8", "surrogateescape"),
    "$decimal": Decimal,
    "$uuid": uuid.UUID,
    "$ext": _reverse_ext,
    "$float": _reverse_float,
    "$map": lambda payload: map_of([(from_json(key), from_json(item)) for key, item in payload]),
}


def from_json(value: Json) -> Value:
    """The reverse of `to_json`. Raises `DecodeError` for an object with an unknown ``$`` key."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, payload),) = value.items()
        if key.startswith("$"):
            try:
                return _REVERSE[key](payload)
            except KeyError as error:
                raise DecodeError(f"JSON object with the unknown key {key[:40]!r}") from error
            except (ValueError, TypeError, AttributeError, InvalidOperation) as error:
                raise DecodeError(f"JSON {key} does not hold what it should: {error}") from error
    return {key: from_json(item) for key, item in value.items()}


def dumps(value: Value) -> str:
    """A value of `wal.mp` as JSON text. Raises `TypeError` as `to_json`."""
    return _encode(to_json(value))


def load_json(text: str | bytes) -> Json:
    """JSON text as what `from_json` takes. Raises `DecodeError` where it is none; NaN and Infinity,
    which only some programs write, are none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error.msg}", offset=error.pos) from error
    except ValueError as error:
        raise DecodeError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise too_deep() from error


def too_deep() -> DecodeError:
    """The error for JSON that nests deeper than is followed."""
    return DecodeError("the JSON value is nested too deep")


def _refuse(word: str) -> Json:
    raise ValueError(f'{word} is written {{"$float": …}}')


def loads(text: str | bytes) -> Value:
    """The reverse of `dumps`. Raises `DecodeError`."""
    try:
        return from_json(load_json(text))
    except RecursionError as error:
        raise too_deep() from error


# The same from MsgPack bytes, without a detour where nothing unusual is in them: the unpacker's
# hooks make what JSON takes, and what they cannot make raises and goes the way of `dumps`.


def _quick_map(pairs: list[tuple[Value, Json]]) -> Json:
    if _is_object([key for key, _ in pairs]):
        whole = dict(pairs)
        if len(whole) == len(pairs):
            return whole
    raise ValueError("not an object")


def _quick_ext(code: int, data: bytes) -> Json:
    return to_json(decode_ext(code, data))


def _quick_default(value: object) -> Json:
    if isinstance(value, bytes):
        return {"$bin": _base64(value)}
    raise TypeError("not a value that the unpacker gives")


_quick_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, default=_quick_default
).encode


def value_json(data: bytes) -> str:
    """The one MsgPack value that fills `data` as JSON text. Raises what `mp.unpack` raises."""
    if kernel.skip(data, 0) == len(data):
        try:
            value = msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=False,
                ext_hook=_quick_ext,
                object_pairs_hook=_quick_map,
            )
            return _quick_encode(value)
        except (ValueError, TypeError, LogweirError):
            pass  # a NaN, text that is not UTF-8, a map that is no object, …
    return dumps(unpack(data))


_PARTS: Final = ("key", "tuple", "ops")


def row_fields(
    row: Row, *, file: str, offset: int, row_index: int, space: str | None = None, raw: bool = False
) -> dict[str, Json]:
    """One row as the object that `cat` prints.

    `file`: the file's name; `offset`: of its block, in bytes; `row_index`: its number in the
    block, from 0; `space`: the space's name, where it is known; `raw`: with `key_mp`, `tuple_mp`
    and `ops_mp`, the exact bytes in hexadecimal. `ops` are the operations of UPDATE and UPSERT,
    `index_base` stands beside them. What is absent in the row is left out; a row that names no
    space has its whole `body` instead. Raises `DecodeError` where the body is malformed.
    """
    fields: dict[str, Json] = {
        "file": file,
        "offset": offset,
        "row": row_index,
        "type": row.type_name,
        "replica_id": row.replica_id,
        "lsn": row.lsn,
        "timestamp": _number(row.timestamp),
        "tsn": row.tsn,
        "commit": row.commit,
        "group_id": row.group_id,
    }
    if not row.body:
        return fields
    body = decode_body(row.body)
    if body.space_id is None:
        return fields | {"body": to_json(unpack(row.body))}
    fields["space_id"] = body.space_id
    if space is not None:
        fields["space"] = _text(space)
    is_update = row.type == RowType.UPDATE and body.tuple is not None
    parts = (
        body.key,
        None if is_update else body.tuple,
        body.tuple if is_update else body.ops,
    )
    if body.index_base or parts[2] is not None:
        fields["index_base"] = body.index_base
    found = [(name, part) for name, part in zip(_PARTS, parts, strict=True) if part is not None]
    fields.update((name, to_json(unpack(part))) for name, part in found)
    if raw:
        fields.update((f"{name}_mp", part.hex()) for name, part in found)
    return fields


@lru_cache(maxsize=1)
def _numbers(columns: RowColumns) -> list[list[int]]:
    return [columns.column(name).tolist() for name in kernel.COLUMNS]


def row_line(block: Block, number: int, names: Mapping[int, str], *, raw: bool = False) -> str:
    """One row of a block as a line of `cat`: the text of `row_fields`, without a `Row` between.

    `number`: of the row in the block, from 0; `names`: of spaces by id.
    """
    columns = block.columns
    kind, replica_id, group_id, lsn, _, tsn, flags, space_id, base, _, _, *spans, _ = (
        column[number] for column in _numbers(columns)
    )
    line = (
        f'{{"file": {json.dumps(os.path.basename(block.path))}, "offset": {block.offset}, '
        f'"row": {number}, "type": "{type_name(kind)}", "replica_id": {replica_id}, '
        f'"lsn": {lsn}, "timestamp": {dumps(columns.timestamp[number])}, "tsn": {tsn}, '
        f'"commit": {"true" if flags & FLAG_COMMIT else "false"}, "group_id": {group_id}'
    )
    if space_id == ABSENT:
        body = columns.body_bytes(number)
        return f'{line}, "body": {value_json(body)}}}' if body else line + "}"
    line += f', "space_id": {space_id}'
    if space_id in names:
        line += f', "space": {dumps(names[space_id])}'
    if kind == RowType.UPDATE and spans[1]:
        spans = [spans[0], 0, spans[1]]
    if base or spans[2]:
        line += f', "index_base": {base}'
    data = columns.data
    found = [
        (name, data[span & 0xFFFFFFFF : span >> 32])
        for name, span in zip(_PARTS, spans, strict=True)
        if span
    ]
    for name, part in found:
        line += f', "{name}": {value_json(part)}'
    if raw:
        for name, part in found:
            line += f', "{name}_mp": "{part.hex()}"'
    return line + "}"


def words(count: int, noun: str) -> str:
    """A number and its noun: 1 row, 2 rows."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
