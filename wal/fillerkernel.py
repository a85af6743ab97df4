# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Zeros: where many stand one behind the other, and the checksum of those that stand behind
something, without looking at them.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `fillerkernel.pxd`. `wal.crc32c` is its face; only it and `wal.block` call it.

A checksum is a polynomial over GF(2) modulo the one of CRC-32C, its highest power in the lowest
bit. One more zero byte multiplies it by x^8, n of them by x^(8 n): squares and products, about two
for each bit of n. Source: Ross N. Williams, "A painless guide to CRC error detection algorithms".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

POLYNOMIAL = 0x82F63B78
TOP = 2**31  # x^0
BYTE = 2**23  # x^8


def times(one: int, other: int) -> int:
    """The product of two polynomials."""
    product = 0
    bit = TOP
    while bit:
        if one & bit:
            product ^= other
        other = (other >> 1) ^ POLYNOMIAL if other & 1 else other >> 1
        bit >>= 1
    return product


def behind_zeros(crc: int, count: int) -> int:
    """The checksum `crc` of something after `count` zero bytes more."""
    power = BYTE
    while count:
        if count & 1:
            crc = times(crc, power)
        power = times(power, power)
        count >>= 1
    return crc


def has_zeros(data: Buffer, count: int) -> bool:
    """Whether `count` (at least 1) zeros stand one behind the other.

    So many hold one of any places that are `count` apart: only these are looked at first.
    """
    size = len(data)
    if count < 1:
        raise IndexError("no zeros are looked for")
    at = count - 1
    while at < size:
        if data[at] == 0:
            start = at
            while start > 0 and data[start - 1] == 0:
                start -= 1
            at += 1
            while at < size and data[at] == 0:
                at += 1
            if at - start >= count:
                return True
        at += count
    return False


def running(find: Any, parts: Sequence[Buffer], zeros: int) -> list[int] | None:
    """What `find` gives for each part and what it gave for the one before, first 0. None where a
    part has `zeros` zeros one behind the other."""
    found: list[int] = []
    crc = 0
    for part in parts:
        if len(part) >= zeros and has_zeros(part, zeros):
            return None
        crc = find(part, crc)
        found.append(crc)
    return found
