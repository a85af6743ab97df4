"""Walking over MsgPack bytes without making objects of them. Bytes in, places out; no I/O.

What `wal.mp` does for whole values, this does for the parts of one: headers of arrays and maps,
strings, and integers in place. Bytes that end too early or are not MsgPack raise `RequestError`
20, since they came in a request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from logweir.errors import ErrorCode, RequestError
from logweir.store.schema import jsonpath
from logweir.store.schema.fieldtype import MpType, mp_type
from logweir.store.schema.refused import no_array
from logweir.wal import kernel
from logweir.wal.mp import pack


class LargeTuple(NamedTuple):
    """A tuple in MsgPack, in two parts: `payload` is the data of its last field, a bin."""

    head: bytes
    payload: bytes | memoryview

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.head) + len(self.payload)

    def joined(self) -> bytes:
        """The tuple in one piece."""
        return b"".join(self)


def invalid_msgpack(what: str = "packet body") -> RequestError:
    """The error for bytes that are not MsgPack, or not what must stand there."""
    return RequestError(ErrorCode.INVALID_MSGPACK, f"Invalid MsgPack - {what}")


def skip(data: bytes, at: int) -> int:
    """Where the value at `at` ends."""
    end: int = kernel.skip(data, at)
    if end < 0:
        raise invalid_msgpack()
    return end


def _length(data: bytes, at: int, width: int) -> int:
    field = data[at + 1 : at + 1 + width]
    if len(field) < width:
        raise invalid_msgpack()
    return int.from_bytes(field, "big")


def read_array(data: bytes, at: int) -> tuple[int, int]:
    """How many items the array at `at` has, and where they begin. Raises 22 if it is none."""
    first = data[at] if at < len(data) else 0
    if 0x90 <= first < 0xA0:
        return first & 0x0F, at + 1
    if first not in (0xDC, 0xDD):
        raise no_array()
    width = 2 if first == 0xDC else 4
    return _length(data, at, width), at + 1 + width


def read_map(data: bytes, at: int) -> tuple[int, int]:
    """How many pairs the map at `at`, which must be one, has, and where they begin."""
    first = data[at]
    if first < 0x90:
        return first & 0x0F, at + 1
    width = 2 if first == 0xDE else 4
    return _length(data, at, width), at + 1 + width


def read_bytes(data: bytes, at: int) -> tuple[int, int]:
    """Where the bytes of the str or bin at `at`, which must be one, begin and end."""
    first = data[at]
    if first < 0xC0:
        begin, size = at + 1, first & 0x1F
    else:
        width = 1 << (first - 0xC4 if first < 0xD9 else first - 0xD9)
        begin, size = at + 1 + width, _length(data, at, width)
    if begin + size > len(data):
        raise invalid_msgpack()
    return begin, begin + size


_SIGNED: Final = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def read_int(data: bytes, at: int) -> int:
    """The integer at `at`, which must be one."""
    first = data[at]
    if first < 0x80:
        return first
    if first >= 0xE0:
        return first - 0x100
    if first in _SIGNED:
        width = _SIGNED[first]
        return int.from_bytes(data[at + 1 : at + 1 + width], "big", signed=True)
    return _length(data, at, 1 << (first - 0xCC))


def go_to(data: bytes, at: int, step: jsonpath.Step) -> int:
    """Where the value one step into the value at `at` begins; -1 if there is none.

    A number is an element of an array, or in a map the integer key that is one more.
    """
    kind = mp_type(data, at)
    if isinstance(step, int) and kind is MpType.ARRAY:
        count, at = read_array(data, at)
        if step >= count:
            return -1
        for _ in range(step):
            at = skip(data, at)
        return at
    if kind is not MpType.MAP:
        return -1
    count, at = read_map(data, at)
    for _ in range(count):
        key = at
        at = skip(data, at)
        if isinstance(step, bytes):
            if mp_type(data, key) is MpType.STR:
                begin, end = read_bytes(data, key)
                if data[begin:end] == step:
                    return at
        elif (
            isinstance(step, int)
            and mp_type(data, key) in (MpType.UINT, MpType.INT)
            and read_int(data, key) == step + 1
        ):
            return at
        at = skip(data, at)
    return -1


def map_header(count: int) -> bytes:
    """What stands before the pairs of a map of `count` pairs."""
    header: bytes = msgpack.Packer().pack_map_header(count)
    return header


def string(value: bytes) -> bytes:
    """A str value, in its shortest form."""
    return pack(value.decode("utf-8", "surrogateescape"))
