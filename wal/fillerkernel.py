# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The checksum of zeros that stand behind something, without looking at them.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `fillerkernel.pxd`. `wal.crc32c` is its face; nothing else calls it.

A checksum is a polynomial over GF(2) modulo the one of CRC-32C, its highest power in the lowest
bit. One more zero byte multiplies it by x^8, n of them by x^(8 n): squares and products, about two
for each bit of n. Source: Ross N. Williams, "A painless guide to CRC error detection algorithms".
"""

from __future__ import annotations

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
