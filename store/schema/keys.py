"""Memcomparable keys: values of index parts → bytes that compare as Tarantool compares them.

Keys are internal: they stand in the materialised state only, which can always be made anew from
the log. `KEY_VERSION` is to be kept with it; where it differs, the state is rebuilt.

The key of a tuple or of a request is the concatenation of its parts' keys. Each begins with a
class byte and tells by itself where it ends, so the keys that begin with the key of the first n
parts are those whose first n parts are equal.

=====================  ==========  ==============================================================
part                   class byte  then
=====================  ==========  ==============================================================
nil or absent          10          nothing
false, true            20          00, 01
integer < 0            30          its 64 bits, big-endian   (parts of type unsigned or integer)
integer >= 0           31          its 64 bits, big-endian   (parts of type unsigned or integer)
number                 38          8 bytes: F in order; then 00 if the number equals F, else 01
                                   and the exact number      (all other types of parts)
string                 40          its bytes or its sort key, 00 as `00 ff`; then `00 00`
varbinary              50          its bytes, 00 as `00 ff`; then `00 00`
uuid                   60          its 16 bytes
=====================  ==========  ==============================================================

Numbers. F is the largest 64-bit float that does not exceed the number. In order means: the bits
of a float inverted if its sign is set, else only the sign inverted; -0 is 0; a NaN comes before
all, 00…00 if signalling, 00…01 if quiet. So 1, 1.0 and decimal 1.00 have the same key. A float
with a fraction, or beyond ±2^64, counts as the shortest decimal that reads back as that float: so
float 0.1 equals decimal 0.1, as it does for Tarantool, and floats keep their own order. The exact
number is written as decimal: one byte 80 + exponent of the first digit, the digits in pairs from
the first that is not 0, each pair + 1, 00; all of that inverted if it is negative.

Where Tarantool 2.6.0 orders otherwise, and why we do not follow:

* It compares a decimal with a float by 15 digits of the float, so that two floats which differ in
  the 16th equal the same decimal but not each other: that is no order. We differ from it in floats
  that need 16 or 17 digits, next to decimals of about the same value.
* It compares `double` parts with NaN as equal to all, and decimals with infinities as garbage.
* In `unsigned` parts an integer that is sent wider than needed is another key for it than the
  same one in its shortest form; in HASH indexes also 1 and decimal 1, or decimals 1 and 1.0. Here
  equal numbers are equal.

Keys of requests are checked as it does: 18 type of a part (from 0), 19 count of parts where all
are needed, 31 more parts than the index has, 136 fewer than a HASH index has.
Source: Tarantool 2.6.0, `tuple_compare.cc`, `index.cc`, observed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

from logweir.errors import DecodeError, ErrorCode, RequestError
from logweir.store.schema import collation, jsonpath
from logweir.store.schema.definition import IndexDef, IndexType, PartDef
from logweir.store.schema.fieldtype import FieldType, MpType, admits, mp_type
from logweir.store.schema.refused import refused
from logweir.store.schema.values import (
    go_to,
    invalid_msgpack,
    read_array,
    read_bytes,
    read_int,
    skip,
)
from logweir.wal.mp import unpack_at

KEY_VERSION: Final = 1
"""Of the encoding. A state with keys of another version is to be rebuilt."""

_NIL: Final = b"\x10"
_BOOL: Final = (b"\x20\x00", b"\x20\x01")
_NEGATIVE: Final = b"\x30"
_POSITIVE: Final = b"\x31"
_NUMBER: Final = b"\x38"
_STRING: Final = b"\x40"
_BINARY: Final = b"\x50"
_UUID: Final = b"\x60"
KEY_END: Final = b"\x00\x00"
"""Of a string or of bytes, behind all of it."""
_SIGN: Final = 1 << 63
_ONES: Final = (1 << 64) - 1
_INFINITE: Final = 0x7FF << 52
_QUIET: Final = 1 << 51
_EXPONENT_MIN: Final = -38
_EXPONENT_MAX: Final = 37


# --- values ---------------------------------------------------------------------------------------
def _escape(raw: bytes) -> bytes:
    return raw.replace(b"\0", b"\0\xff") + KEY_END


def _float_image(bits: int) -> bytes:
    magnitude = bits & (_SIGN - 1)
    if magnitude > _INFINITE:
        image = 1 if bits & _QUIET else 0
    elif bits & _SIGN and magnitude:
        image = bits ^ _ONES
    else:
        image = magnitude | _SIGN
    return image.to_bytes(8, "big")


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def _float_value(value: float) -> Decimal:
    """What a finite float counts as."""
    if value.is_integer() and -(2.0**64) < value < 2.0**64:
        return Decimal(int(value))
    return Decimal(repr(value))


def _floor_float(value: Decimal) -> float:
    """The largest float that does not exceed a decimal of at most 38 digits."""
    near = float(value)
    return near if _float_value(near) <= value else math.nextafter(near, -math.inf)


def _exact(value: Decimal) -> bytes:
    """A decimal that is not zero, in an order that holds among numbers of one sign."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    first = exponent + len(digits) - 1 - (len(digits) - len(text))
    text = text.rstrip("0")
    text += "0" * (len(text) % 2)
    pairs = bytes(int(text[at : at + 2]) + 1 for at in range(0, len(text), 2))
    key = bytes((0x80 + first, *pairs, 0))
    return bytes(255 - byte for byte in key) if sign else key


def number_key(value: int | Decimal) -> bytes:
    """The key of an integer of -2^63 … 2^64-1 or a decimal among numbers of any kind."""
    exact = Decimal(value)
    if not exact:
        return _NUMBER + _float_image(0) + b"\0"
    floor = _floor_float(exact)
    head = _NUMBER + _float_image(_bits(floor))
    return head + b"\0" if _float_value(floor) == exact else head + b"\x01" + _exact(exact)


def _float_key(data: bytes, at: int) -> bytes:
    if data[at] == 0xCB:
        bits = int.from_bytes(data[at + 1 : at + 9], "big")
    else:
        raw = int.from_bytes(data[at + 1 : at + 5], "big")
        if raw & 0x7FFFFFFF > 0x7F800000:
            bits = _INFINITE | _QUIET  # widening makes a signalling NaN quiet
        else:
            bits = _bits(struct.unpack_from(">f", data, at + 1)[0])
    return _NUMBER + _float_image(bits) + b"\0"


def _decimal_key(data: bytes, at: int) -> bytes:
    try:
        value, _ = unpack_at(data, at)
    except DecodeError:
        raise invalid_msgpack("decimal") from None
    exponent = value.as_tuple().exponent if isinstance(value, Decimal) else None
    if not isinstance(exponent, int) or not _EXPONENT_MIN <= exponent <= _EXPONENT_MAX:
        raise invalid_msgpack("decimal")
    return number_key(value)


def _value_key(part: PartDef, data: bytes, at: int) -> bytes:
    """The key of the value at `at`, which the part's type admits."""
    kind = mp_type(data, at)
    if kind in (MpType.UINT, MpType.INT):
        value = read_int(data, at)
        if part.type not in (FieldType.UNSIGNED, FieldType.INTEGER):
            return number_key(value)
        return (_NEGATIVE if value < 0 else _POSITIVE) + (value & _ONES).to_bytes(8, "big")
    if kind is MpType.STR:
        begin, end = read_bytes(data, at)
        raw = data[begin:end]
        if part.collation is not None:
            raw = collation.sort_key_maker(part.collation)(raw)
        return _STRING + _escape(raw)
    if kind in (MpType.FLOAT, MpType.DOUBLE):
        return _float_key(data, at)
    if kind is MpType.BIN:
        begin, end = read_bytes(data, at)
        return _BINARY + _escape(data[begin:end])
    if kind is MpType.BOOL:
        return _BOOL[data[at] & 1]
    if kind is MpType.NIL:
        return _NIL
    if part.type is FieldType.UUID:
        end = skip(data, at)
        if end - at not in (18, 19, 20, 22):
            raise invalid_msgpack("uuid")
        return _UUID + data[end - 16 : end]
    return _decimal_key(data, at)


# --- keys of tuples -------------------------------------------------------------------------------
def field_places(data: bytes, upto: int) -> list[int]:
    """Where the first fields of a tuple begin, as many as there are, at most `upto`."""
    count, at = read_array(data, 0)
    places = []
    for _ in range(min(count, upto)):
        places.append(at)
        at = skip(data, at)
    return places


def step_into(data: bytes, at: int, steps: Sequence[jsonpath.Step]) -> int:
    """Where the value some steps into the one at `at` begins; -1 if there is none, or was none."""
    for step in steps:
        if at < 0:
            break
        at = go_to(data, at, step)
    return at


def _elements(part: PartDef, data: bytes, places: list[int]) -> int:
    """How many elements the array has that a multikey part goes through."""
    if part.field_no >= len(places):
        return 0
    steps = part.steps[: jsonpath.multikey_prefix(part.steps)]
    at = step_into(data, places[part.field_no], steps)
    return read_array(data, at)[0] if at >= 0 and mp_type(data, at) is MpType.ARRAY else 0


def _walk(data: bytes, parts: Sequence[PartDef]) -> Iterator[list[bytes]]:
    """The keys of these parts of a tuple: once, or for each element of a multikey array."""
    places = field_places(data, max(part.field_no for part in parts) + 1)
    many = next((part for part in parts if jsonpath.ANY in part.steps), None)
    for element in range(1 if many is None else _elements(many, data, places)):
        keys = []
        for part in parts:
            at = places[part.field_no] if part.field_no < len(places) else -1
            steps = [element if step is jsonpath.ANY else step for step in part.steps]
            at = step_into(data, at, steps)
            keys.append(_NIL if at < 0 else _value_key(part, data, at))
        yield keys


def tuple_key(data: bytes, index: IndexDef) -> bytes:
    """The key of a tuple in an index that is not multikey: that of its own parts.

    `data`: a tuple that its space's format has accepted.
    """
    (keys,) = _walk(data, index.parts)
    return b"".join(keys)


def index_keys(data: bytes, index: IndexDef) -> list[bytes]:
    """What a tuple is kept under in an index, each different from every other tuple's.

    A unique index: the key of its parts. An index that is not unique, or a unique one whose key
    holds nil (nil is not equal to nil there): the key of `index.sort_parts`, in which the parts of
    the primary index follow. In a multikey index one for each element of the array, those that
    are equal once; else just one.
    """
    own = len(index.parts)
    found: dict[bytes, None] = {}
    for keys in _walk(data, index.sort_parts):
        wanted = keys[:own] if index.is_unique and _NIL not in keys[:own] else keys
        found[b"".join(wanted)] = None
    return list(found)


# --- keys of requests -----------------------------------------------------------------------------
def _parts_of(key: bytes) -> tuple[int, int]:
    if skip(key, 0) != len(key):
        raise invalid_msgpack()
    return read_array(key, 0)


def _encode(key: bytes, at: int, count: int, index: IndexDef, nullable: bool) -> bytes:
    """The first `count` parts of a request's key. Raises 18."""
    keys = []
    for number, part in enumerate(index.parts[:count]):
        if not admits(part.type, key, at, nullable and part.nullable_action == "none"):
            raise refused(ErrorCode.KEY_PART_TYPE, part=number, type=part.type.label)
        keys.append(_value_key(part, key, at))
        at = skip(key, at)
    return b"".join(keys)


def search_key(key: bytes, index: IndexDef, *, all_allowed: bool = True) -> tuple[bytes, int]:
    """The key of a SELECT request, which may be of the first parts only in a TREE index.

    `key`: the request's MsgPack array; `all_allowed`: whether an empty key of a HASH index means
    everything (iterators ALL and GT). Returns the key, a prefix of all that it selects, and its
    count of parts. Raises `RequestError` 22, 20, 31, 136, 18.
    """
    count, at = _parts_of(key)
    if count == 0 and (index.type is IndexType.TREE or all_allowed):
        return b"", 0
    if count > len(index.parts):
        raise refused(ErrorCode.KEY_PART_COUNT, wanted=len(index.parts), count=count)
    if index.type is not IndexType.TREE and count < len(index.parts):
        raise RequestError(
            ErrorCode.PARTIAL_KEY,
            f"{index.type.name} index  does not support selects via a partial key (expected "
            f"{len(index.parts)} parts, got {count}). Please Consider changing index type to TREE.",
        )
    return _encode(key, at, count, index, nullable=True), count


def exact_key(key: bytes, index: IndexDef) -> bytes:
    """The key of a request that names one tuple: GET, UPDATE, DELETE. nil is in none.

    Raises `RequestError` 22, 20, 19, 18. That the index is unique (41) is for the caller.
    """
    count, at = _parts_of(key)
    if count != len(index.parts):
        raise refused(ErrorCode.EXACT_MATCH, wanted=len(index.parts), count=count)
    return _encode(key, at, count, index, nullable=False)
