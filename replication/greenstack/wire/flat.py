"""FlatBuffers, as far as Greenstack's payloads need them: checked before use, with bounded work.

A payload begins with a u32: where its root table is. All numbers are little-endian.

==========  ========================================================================================
table       i32 how far before it its vtable is; then fields, where the vtable says
vtable      u16 its size, u16 size of the table, then a u16 per slot: the field's place after the
            table's begin, 0 for a field that is left out and has its default
reference   u32, how far behind itself the value is
text        u32 length, bytes, a NUL
vector      u32 count, elements: u8, u16, or references to texts or tables
==========  ========================================================================================

`Table` declares the slots of one table; `read` returns their values, `write` makes the bytes of a
payload whose root it is. What is read is inside the payload, or `DecodeError` is raised. Each slot
is looked at once and tables nest at most `_DEPTH` deep, so a payload that refers to itself or has
its values overlap costs no more than one that does not; vectors of references are bounded by the
slot's `limit`, and by the bytes that all their values have together. Places need not be aligned
when read; what is written is. Source: the FlatBuffers format; the readers of both reference
libraries take what is written, observed.

Why not with the `flatbuffers` package: its Python has no verifier and follows offsets blindly. It
is what the tests compare with, both ways.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from logweir.errors import DecodeError
from logweir.replication.packing import I32_LOW, U16_LOW, U32_LOW, U64_LOW

_DEPTH: Final = 4


class Kind(IntEnum):
    """What a slot holds. Python values: int, bool, bytes (TEXT and BYTES), tuples of these."""

    BOOL = 0
    I8 = 1
    U16 = 2
    U32 = 3
    U64 = 4
    TEXT = 5
    BYTES = 6
    U16S = 7
    TEXTS = 8
    TABLE = 9
    TABLES = 10


_SCALARS: Final = {
    Kind.BOOL: struct.Struct("<B"),
    Kind.I8: struct.Struct("<b"),
    Kind.U16: U16_LOW,
    Kind.U32: U32_LOW,
    Kind.U64: U64_LOW,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One field. `default`: what it has if it is left out; `limit`: most elements of a vector
    of references; `table`: of a TABLE or of each of TABLES; `shown`, `kept`: make the value that is
    given of the one that is written, and the reverse; also of the default."""

    name: str
    kind: Kind
    default: Any = None
    required: bool = False
    limit: int = 0
    table: Table | None = None
    shown: Callable[[Any], Any] | None = None
    kept: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `slots`: by their numbers."""

    name: str
    slots: tuple[Slot, ...]


class _Reader:
    """One payload. `left`: bytes that values in vectors of references may still have."""

    __slots__ = ("data", "left", "size")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.left = len(data)

    def number(self, form: struct.Struct, at: int) -> int:
        if at < 0 or at + form.size > self.size:
            raise DecodeError("a field lies outside the payload", offset=at)
        value: int = form.unpack_from(self.data, at)[0]
        return value

    def span(self, at: int, width: int) -> tuple[int, int]:
        """Begin and end of a vector's elements."""
        count = self.number(U32_LOW, at)
        end = at + 4 + count * width
        if end > self.size:
            raise DecodeError(f"a vector of {count} elements passes the payload's end", offset=at)
        return at + 4, end

    def text(self, at: int) -> bytes:
        begin, end = self.span(at, 1)
        if end >= self.size or self.data[end]:
            raise DecodeError("a text without its NUL", offset=end)
        return self.data[begin:end]

    def table(self, table: Table, at: int, depth: int) -> tuple[Any, ...]:
        if depth > _DEPTH:
            raise DecodeError("tables that are nested too deep", offset=at)
        vtable = at - self.number(I32_LOW, at)
        size = self.number(U16_LOW, vtable)
        self.number(U16_LOW, vtable + 2)
        if size < 4 or size & 1 or vtable + size > self.size:
            raise DecodeError(f"a vtable of {size} bytes", offset=vtable)
        values = []
        for i, slot in enumerate(table.slots):
            place = self.number(U16_LOW, vtable + 4 + 2 * i) if 4 + 2 * i < size else 0
            if not place and slot.required:
                raise DecodeError(f"{table.name} without {slot.name}", offset=at)
            value = self.value(slot, at + place, depth) if place else slot.default
            values.append(value if slot.shown is None else slot.shown(value))
        return tuple(values)

    def value(self, slot: Slot, at: int, depth: int) -> Any:
        form = _SCALARS.get(slot.kind)
        if form is not None:
            number = self.number(form, at)
            return bool(number) if slot.kind is Kind.BOOL else number
        at += self.number(U32_LOW, at)
        match slot.kind:
            case Kind.TEXT:
                return self.text(at)
            case Kind.BYTES:
                begin, end = self.span(at, 1)
                return self.data[begin:end]
            case Kind.U16S:
                begin, end = self.span(at, 2)
                return struct.unpack(f"<{(end - begin) // 2}H", self.data[begin:end])
            case Kind.TABLE:
                assert slot.table is not None
                return self.table(slot.table, at, depth + 1)
        return self.references(slot, at, depth)

    def references(self, slot: Slot, at: int, depth: int) -> tuple[Any, ...]:
        begin, end = self.span(at, 4)
        if (end - begin) // 4 > slot.limit:
            raise DecodeError(f"more than {slot.limit} elements in {slot.name}", offset=at)
        steps = struct.unpack_from(f"<{(end - begin) // 4}I", self.data, begin)
        places = map(int.__add__, range(begin, end, 4), steps)
        if slot.kind is Kind.TEXTS:
            return self.texts(slot, places)
        assert slot.table is not None
        return tuple([self.table(slot.table, place, depth + 1) for place in places])

    def texts(self, slot: Slot, places: Iterable[int]) -> tuple[bytes, ...]:
        """As `text` for each place. There may be many: nothing is called for one of them."""
        data, size, left = self.data, self.size, self.left
        values = []
        for at in places:
            begin = at + 4
            end = begin + int.from_bytes(data[at:begin], "little")
            if end >= size or data[end]:
                self.text(at)  # which says what is wrong with it
            left -= end - begin
            if left < 0:
                raise DecodeError(f"texts in {slot.name} that overlap", offset=at)
            values.append(data[begin:end])
        self.left = left
        return tuple(values)


def read(table: Table, payload: bytes) -> tuple[Any, ...]:
    """The values of the root table's slots. Bytes after the tables are not looked at.

    Raises `DecodeError`.
    """
    reader = _Reader(payload)
    return reader.table(table, reader.number(U32_LOW, 0), 0)


# --- writing --------------------------------------------------------------------------------------


def write(table: Table, values: Sequence[Any]) -> bytes:
    """The payload whose root is a `table` with those values; a None, and a default, is left out."""
    out = bytearray(4)
    U32_LOW.pack_into(out, 0, _put_table(out, table, values))
    return bytes(out)


def _pad(out: bytearray, width: int) -> None:
    out += bytes(-len(out) % width)


def _put_table(out: bytearray, table: Table, values: Sequence[Any]) -> int:
    kept = []
    for i, (slot, value) in enumerate(zip(table.slots, values, strict=True)):
        stored = value if slot.kept is None else slot.kept(value)
        if stored is not None and (slot.required or stored != slot.default):
            kept.append((i, slot, stored))
    kept.sort(key=lambda one: -_width(one[1].kind))
    is_wide = bool(kept) and _width(kept[0][1].kind) == 8
    count = max((i for i, _, _ in kept), default=-1) + 1
    vtable = [0] * count
    size = 4
    for i, slot, _ in kept:
        vtable[i] = size
        size += _width(slot.kind)
    head = 4 + 2 * count
    _pad(out, 2)
    while (len(out) + head) % (8 if is_wide else 4) != (4 if is_wide else 0):
        out += b"\0\0"
    out += struct.pack(f"<{count + 2}H", head, size, *vtable)
    at = len(out)
    out += bytes(size)
    I32_LOW.pack_into(out, at, head)
    for i, slot, value in kept:
        place = at + vtable[i]
        form = _SCALARS.get(slot.kind)
        if form is not None:
            form.pack_into(out, place, value)
        else:
            U32_LOW.pack_into(out, place, _put_value(out, slot, value) - place)
    return at


def _width(kind: Kind) -> int:
    form = _SCALARS.get(kind)
    return 4 if form is None else form.size


def _put_value(out: bytearray, slot: Slot, value: Any) -> int:
    if slot.kind is Kind.TABLE:
        assert slot.table is not None
        return _put_table(out, slot.table, value)
    _pad(out, 4)
    at = len(out)
    out += U32_LOW.pack(len(value))
    if slot.kind is Kind.TEXT:
        out += value
        out += b"\0"
    elif slot.kind is Kind.BYTES:
        out += value
    elif slot.kind is Kind.U16S:
        out += struct.pack(f"<{len(value)}H", *value)
    else:
        out += bytes(4 * len(value))
        each = Slot(slot.name, Kind.TEXT) if slot.kind is Kind.TEXTS else slot
        for i, one in enumerate(value):
            place = at + 4 + 4 * i
            if slot.kind is Kind.TEXTS:
                target = _put_value(out, each, one)
            else:
                assert slot.table is not None
                target = _put_table(out, slot.table, one)
            U32_LOW.pack_into(out, place, target - place)
    return at
