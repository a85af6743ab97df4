# cython: boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""The hot loop over the messages of a Tank bundle. Compiled where possible, same file interpreted.

`walk` follows one message set from its first byte to its last. The layout is in
`logweir.replication.tank.bundle`. It checks what a reader depends on: that there are as many
messages as announced, that each field lies within the bytes, that the numbers of a sparse set rise
from the first to the last announced, and that nothing is left over. It takes types from
`kernel.pxd`; without a compiler it runs as it stands.
"""

from __future__ import annotations

from typing import Any

__all__ = ["compiled", "walk"]

_HAS_KEY = 1
_SAME_TIME = 2
_NEXT_NUMBER = 4

OK = 0
TRUNCATED = 1
BAD_VARINT = 2
LEFT_OVER = 3
BAD_NUMBER = 4


def compiled() -> bool:
    """Whether this module runs as machine code."""
    return not __file__.endswith(".py")


def varint(source: bytes | memoryview, position: int, end: int) -> int:
    """The varint at `position`: its value and, above 32 bits, its length; or minus a reason."""
    value = 0
    size = 0
    while size < 5:
        if position + size >= end:
            return -TRUNCATED
        byte = source[position + size]
        value |= (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            return -BAD_VARINT if value >> 32 else size << 32 | value
    return -BAD_VARINT


def walk(
    data: bytes | memoryview,
    source: bytes | memoryview,
    position: int,
    count: int,
    sparse: bool,
    first: int,
    last: int,
    out: list[Any] | None,
) -> tuple[int, int, int]:
    """Follow `count` messages from byte `position` to the end of `source`.

    `data`: what parts are cut from, `source` again (the compiled code reads the one, cuts the
    other).
    `first`, `last`: the numbers announced (for an ordinary set: the base, and what the count
    makes of it). `out`: where (number, timestamp in ms, key or None, content) tuples go, or None
    to check only. Returns (0 or a reason, byte where it stopped, time of the first message).
    """
    end = len(source)
    number = first
    time = 0
    first_time = 0
    index = 0
    while index < count:
        if position >= end:
            return TRUNCATED, position, first_time
        flags = source[position]
        position += 1
        if index != 0:
            if not sparse:
                number += 1
            elif number >= last:
                return BAD_NUMBER, position, first_time
            elif index == count - 1:
                if flags & _NEXT_NUMBER:
                    return BAD_NUMBER, position, first_time
                number = last
            elif flags & _NEXT_NUMBER:
                number += 1
            else:
                found = varint(source, position, end)
                if found < 0:
                    return -found, position, first_time
                value = found - (found >> 32 << 32)
                position += found >> 32
                if value >= last - number:
                    return BAD_NUMBER, position, first_time
                number += value + 1
        elif sparse and flags & _NEXT_NUMBER:
            return BAD_NUMBER, position, first_time
        if not flags & _SAME_TIME:
            if end - position < 8:
                return TRUNCATED, position, first_time
            time = 0
            shift = 0
            while shift < 64:
                byte = source[position]
                time |= byte << shift
                position += 1
                shift += 8
        if index == 0:
            first_time = time
        key_start = -1
        key_end = -1
        if flags & _HAS_KEY:
            if position >= end:
                return TRUNCATED, position, first_time
            key_start = position + 1
            key_end = key_start + source[position]
            if key_end > end:
                return TRUNCATED, position, first_time
            position = key_end
        if position < end and source[position] < 0x80:
            value = source[position]
            position += 1
        else:
            found = varint(source, position, end)
            if found < 0:
                return -found, position, first_time
            value = found - (found >> 32 << 32)
            position += found >> 32
        if value > end - position:
            return TRUNCATED, position, first_time
        size = value
        if out is not None:
            key = None
            if key_start >= 0:
                key = bytes(data[key_start:key_end])
            out.append((number, time, key, bytes(data[position : position + size])))
        position += size
        index += 1
    if position != end:
        return LEFT_OVER, position, first_time
    return OK, position, first_time
