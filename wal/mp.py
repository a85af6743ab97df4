"""MsgPack values: bytes ↔ Python objects, as Tarantool uses them. No I/O.

========================  ==============================================================
MsgPack                   Python
========================  ==============================================================
nil, bool, int, float     None, bool, int (−2^63 … 2^64−1), float (32-bit floats widen)
str                       str; bytes that are not UTF-8 become lone surrogates, and back
bin                       bytes
array, map                list, dict (`MapPairs` where a key cannot be hashed)
ext 1                     decimal.Decimal
ext 2                     uuid.UUID
other ext                 Ext (a `msgpack.ExtType` of any code, -1 included)
========================  ==============================================================

Decimal (ext 1): one MsgPack integer *scale*, then packed BCD, most significant digit first, sign
in the last nibble (c plus, d minus). 1 = ``01 00 1c``, 2.50 = ``01 02 25 0c``. UUID (ext 2): 16
bytes, big-endian. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import DECIMAL_DIGITS, MSGPACK_DEPTH
from logweir.wal import kernel

Value = Any
"""What `unpack` returns and `pack` takes: the Python column of the table above."""

DECIMAL_SCALE: Final = 2 * DECIMAL_DIGITS
EXT_DECIMAL: Final = 1
EXT_UUID: Final = 2


class Ext(msgpack.ExtType):  # type: ignore[misc]
    """An extension value. `code`: -128 … 127 (msgpack's own stops at 0); `data`: bytes."""

    __slots__ = ()

    def __new__(cls, code: int, data: bytes) -> Ext:
        if not -128 <= code <= 127:
            raise ValueError(f"extension type {code} is not in -128 … 127")
        return tuple.__new__(cls, (code, data))


class MapPairs:
    """A map that a dict cannot hold (a key is an array, or 1 and 1.0 are both keys).

    `pairs`: its keys and values, in the order of the bytes.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        self.pairs = tuple(pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapPairs) and self.pairs == other.pairs

    def __hash__(self) -> int:
        return hash(MapPairs)

    def __repr__(self) -> str:
        return f"MapPairs({self.pairs!r})"


def map_of(pairs: list[tuple[Value, Value]]) -> dict[Value, Value] | MapPairs:
    """A map of these keys and values: a dict where that can hold them all."""
    try:
        whole = dict(pairs)
    except TypeError:
        return MapPairs(pairs)
    return whole if len(whole) == len(pairs) else MapPairs(pairs)


def encode_decimal(value: Decimal) -> bytes:
    """The payload of ext 1.

    Raises `ValueError` for NaN, infinities, more than 38 digits and a scale beyond ±76.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a finite decimal")
    if abs(exponent) > DECIMAL_SCALE:
        raise ValueError(f"{value} has a scale of {-exponent}, the largest is {DECIMAL_SCALE}")
    text = "".join(map(str, digits)).lstrip("0") or "0"
    if len(text) > DECIMAL_DIGITS:
        raise ValueError(f"{value} has more than {DECIMAL_DIGITS} digits")
    nibbles = text + ("d" if sign else "c")
    scale: bytes = msgpack.packb(-exponent)
    return scale + bytes.fromhex(nibbles.rjust(len(nibbles) + len(nibbles) % 2, "0"))


def decode_decimal(data: bytes) -> Decimal:
    """The reverse of `encode_decimal`. Raises `DecodeError`."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:9])
    try:
        scale = unpacker.unpack()
    except (msgpack.UnpackException, ValueError) as error:
        raise DecodeError(f"decimal has no scale: {data[:16].hex()}") from error
    nibbles = data[unpacker.tell() :].hex()
    digits, sign = nibbles[:-1], nibbles[-1:]
    if (
        not isinstance(scale, int)
        or isinstance(scale, bool)
        or not digits.isdigit()
        or sign not in ("a", "b", "c", "d", "e", "f")
        or len(digits.lstrip("0")) > DECIMAL_DIGITS
        or abs(scale) > DECIMAL_SCALE
    ):
        raise DecodeError(f"decimal is malformed: {data[:32].hex()}")
    number = tuple(map(int, digits.lstrip("0") or "0"))
    return Decimal((1 if sign in "bd" else 0, number, -scale))


class _HoldsPairs(Exception):
    """Inside a value stands a `MapPairs`, which the C packer cannot write."""


def _default(value: Value) -> Value:
    if isinstance(value, Decimal):
        return msgpack.ExtType(EXT_DECIMAL, encode_decimal(value))
    if isinstance(value, uuid.UUID):
        return msgpack.ExtType(EXT_UUID, value.bytes)
    if isinstance(value, MapPairs):
        raise _HoldsPairs
    if isinstance(value, int):
        raise OverflowError(f"{value} is not in -2^63 … 2^64-1")
    raise TypeError(f"a value of type {type(value).__name__} has no MsgPack form: {value!r:.60}")


def decode_ext(code: int, data: bytes) -> Value:
    """An extension value: Decimal, UUID or `Ext`. Raises `DecodeError` for a malformed decimal."""
    if code == EXT_DECIMAL:
        return decode_decimal(data)
    if code == EXT_UUID and len(data) == 16:
        return uuid.UUID(bytes=data)
    return Ext(code, data)


def packer(*, strict_text: bool = False, room_bytes: int = 256 * 1024) -> Callable[[Value], bytes]:
    """A function that packs as `pack` does, faster in a loop; for one thread only.

    `strict_text`: faster still, but text with lone surrogates raises `UnicodeEncodeError`;
    `room_bytes`: of its buffer at first, which grows.
    """
    pack_one = _pack_one(strict_text=strict_text, room_bytes=room_bytes)

    def pack_any(value: Value) -> bytes:
        try:
            return pack_one(value)
        except _HoldsPairs:
            return _pack_with_pairs(value)

    return pack_any


def _pack_one(*, strict_text: bool, room_bytes: int) -> Callable[[Value], bytes]:
    made: Callable[[Value], bytes] = msgpack.Packer(
        default=_default,
        use_bin_type=True,
        strict_types=False,
        unicode_errors=None if strict_text else "surrogateescape",
        buf_size=room_bytes,
    ).pack
    return made


_packers: Final[list[Callable[[Value], bytes]]] = []  # of `pack`, that nobody uses


def pack(value: Value) -> bytes:
    """One value in its shortest MsgPack form.

    Raises `TypeError` for a type that is not in the table above, `OverflowError` for an integer
    out of range, `ValueError` for a decimal that has no form (`encode_decimal`) or nested too deep.
    """
    try:
        pack_one = _packers.pop()  # nobody else has it now
    except IndexError:
        pack_one = _pack_one(strict_text=False, room_bytes=_SMALL_ROOM_BYTES)
    try:
        packed = pack_one(value)
    except _HoldsPairs:
        return _pack_with_pairs(value)
    if len(packed) <= _SMALL_ROOM_BYTES:  # its buffer has not grown
        _packers.append(pack_one)
    return packed


def _pack_with_pairs(value: Value) -> bytes:
    packer = msgpack.Packer()
    if isinstance(value, list | tuple):
        header: bytes = packer.pack_array_header(len(value))
        return header + b"".join(map(pack, value))
    pairs = value.pairs if isinstance(value, MapPairs) else tuple(value.items())
    header = packer.pack_map_header(len(pairs))
    return header + b"".join(pack(one) for pair in pairs for one in pair)


def encode_uint(value: int) -> bytes:
    """An unsigned integer (0 … 2^64-1) in its shortest form. Raises `OverflowError`."""
    if 0 <= value < 0x80:
        return bytes((value,))
    for first, width in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        if 0 <= value < 1 << 8 * width:
            return bytes((first,)) + value.to_bytes(width, "big")
    raise OverflowError(f"{value} is not in 0 … 2^64-1")


def encode_array_header(count: int) -> bytes:
    """What stands before the items of an array of `count` items (0 … 2^32-1)."""
    header: bytes = msgpack.Packer().pack_array_header(count)
    return header


def decode_uint(data: bytes | memoryview, offset: int) -> tuple[int, int] | None:
    """The unsigned integer (any width) at `offset` and where it ends; None if it is none or cut."""
    if offset >= len(data):
        return None
    first = data[offset]
    if first < 0x80:
        return first, offset + 1
    if not 0xCC <= first <= 0xCF:
        return None
    end = offset + 1 + (1 << first - 0xCC)
    if end > len(data):
        return None
    return int.from_bytes(data[offset + 1 : end], "big"), end


_SMALL_ROOM_BYTES: Final = 512
_OPTIONS: Final[dict[str, Any]] = {
    "raw": False,
    "strict_map_key": False,
    "unicode_errors": "surrogateescape",
    "ext_hook": decode_ext,
    "object_pairs_hook": map_of,
}
# msgpack makes time stamps of ext -1 and asks nobody; this finds what may be one.
_EXT_MINUS_1: Final = re.compile(rb"[\xd4-\xd8]\xff|\xc7.\xff|\xc8..\xff|\xc9....\xff", re.DOTALL)


def _unpack_each(data: bytes, at: int) -> tuple[Value, int]:
    """The whole value at `at` and where it ends, ext -1 as `Ext`: slow, one by one."""
    first = data[at]
    if not (0x80 <= first < 0xA0 or 0xDC <= first <= 0xDF):
        end = skip(data, at)
        is_ext = 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8
        code_at = at + (1 if first >= 0xD4 else 1 + (1 << first - 0xC7)) if is_ext else 0
        if is_ext and data[code_at] == 0xFF:
            return Ext(-1, data[code_at + 1 : end]), end
        return msgpack.unpackb(data[at:end], **_OPTIONS), end
    if first < 0xA0:
        count, at = first & 0x0F, at + 1
    else:
        width = 4 if first & 1 else 2
        count, at = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    is_map = first < 0x90 or first >= 0xDE
    items: list[Value] = []
    for _ in range(2 * count if is_map else count):
        item, at = _unpack_each(data, at)
        items.append(item)
    return (map_of(list(zip(items[::2], items[1::2], strict=True))) if is_map else items), at


_FAILURES = (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError)


def unpack(data: bytes | bytearray | memoryview) -> Value:
    """The one value that fills `data`.

    Raises `DecodeError` if it is cut short, malformed or followed by something, and
    `LimitExceeded` if it nests deeper than `limits.MSGPACK_DEPTH`.
    """
    value, end = unpack_at(data, 0)
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes follow the MsgPack value", offset=end)
    return value


def unpack_at(data: bytes | bytearray | memoryview, offset: int) -> tuple[Value, int]:
    """The value that begins at `offset`, and where it ends. Errors as `unpack`."""
    end = skip(data, offset)
    part = bytes(data[offset:end])
    try:
        if b"\xff" in part and _EXT_MINUS_1.search(part):
            return _unpack_each(part, 0)[0], end
        return msgpack.unpackb(part, **_OPTIONS), end
    except DecodeError:
        raise
    except _FAILURES as error:
        reason = f"MsgPack value cannot be read: {type(error).__name__} {error}"
        raise DecodeError(reason.strip(), offset=offset) from error


def skip(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Where the value that begins at `offset` ends; nothing is built, nothing recurses.

    Raises `DecodeError` for a cut or invalid value, `LimitExceeded` for one nested too deep.
    """
    if kernel.COMPILED and isinstance(data, bytes) and offset >= 0:
        found = kernel.skip(data, offset)
        if found >= 0:
            return found  # else: find out what is wrong, and where
    end = len(data)
    owed = [1]  # values still owed by each open array or map
    at = offset
    while owed:
        if owed[-1] == 0:
            owed.pop()
            continue
        owed[-1] -= 1
        if at >= end:
            raise DecodeError("MsgPack value is cut short", offset=at)
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            continue
        children = 0
        if first < 0x90:
            children = 2 * (first & 0x0F)
        elif first < 0xA0:
            children = first & 0x0F
        elif first < 0xC0:
            at += first & 0x1F
        else:
            width, fixed, factor = _FORMS[first - 0xC0]
            if fixed < 0:
                raise DecodeError("MsgPack byte c1 is never used", offset=at - 1)
            if at + width > end:
                raise DecodeError("MsgPack value is cut short", offset=at)
            size = int.from_bytes(data[at : at + width], "big")
            at += width + fixed
            if factor:
                children = size * factor
            else:
                at += size
        if at > end:
            raise DecodeError("MsgPack value is cut short", offset=end)
        if children > end - at:
            raise DecodeError("MsgPack value declares more items than there are bytes", offset=at)
        if children:
            if len(owed) > MSGPACK_DEPTH:
                raise LimitExceeded("MSGPACK_DEPTH", MSGPACK_DEPTH, len(owed))
            owed.append(children)
    return at


# For first bytes c0 … df: (bytes of length field, fixed bytes after it, children per count).
# A length field with factor 0 counts bytes. Source: the MessagePack specification.
_FORMS: Final[tuple[tuple[int, int, int], ...]] = (
    (0, 0, 0),  # c0 nil
    (0, -1, 0),  # c1 never used
    (0, 0, 0),
    (0, 0, 0),  # c2, c3 bool
    (1, 0, 0),
    (2, 0, 0),
    (4, 0, 0),  # c4 … c6 bin
    (1, 1, 0),
    (2, 1, 0),
    (4, 1, 0),  # c7 … c9 ext
    (0, 4, 0),
    (0, 8, 0),  # ca, cb float
    (0, 1, 0),
    (0, 2, 0),
    (0, 4, 0),
    (0, 8, 0),  # cc … cf uint
    (0, 1, 0),
    (0, 2, 0),
    (0, 4, 0),
    (0, 8, 0),  # d0 … d3 int
    (0, 2, 0),
    (0, 3, 0),
    (0, 5, 0),
    (0, 9, 0),
    (0, 17, 0),  # d4 … d8 fixext
    (1, 0, 0),
    (2, 0, 0),
    (4, 0, 0),  # d9 … db str
    (2, 0, 1),
    (4, 0, 1),  # dc, dd array
    (2, 0, 2),
    (4, 0, 2),  # de, df map
)
