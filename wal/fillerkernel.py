# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Heads of blocks, and what they need: where many zeros stand one behind the other, and the
checksum of those that stand behind something, without looking at them.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `fillerkernel.pxd`. Its faces are `wal.crc32c`, `wal.block` and `wal.filler`.

A checksum is a polynomial over GF(2) modulo the one of CRC-32C, its highest power in the lowest
bit. One more zero byte multiplies it by x^8, n of them by x^(8 n): a product for each bit of n that
is set. Source: Ross N. Williams, "A painless guide to CRC error detection algorithms".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

POLYNOMIAL = 0x82F63B78
BYTE = 2**23  # x^8, where x^0 is the highest of 32 bits
POWERS = 64
HEAD = 19  # block.FIXHEADER_BYTES
SECTOR = 512  # block._SECTOR_BYTES
ZSTD = 0xBA  # the last byte of block.MAGIC_ZSTD
FILLER = 27  # filler.FILLER_BYTES
SKIPPED = 0x184D2A50  # what follows its fixheader, little-endian


def products() -> list[int]:
    """For each power 1, 2, 4, … 2^63 of x^8 what each of 16 values of each four bits is times it:
    128 products, of the lowest four bits first."""
    found: list[int] = []
    power = BYTE
    while len(found) < POWERS * 128:
        of_bits = [0] * 32
        bit, product = 32, power
        while bit:
            bit -= 1
            of_bits[bit] = product
            product = (product >> 1) ^ POLYNOMIAL if product & 1 else product >> 1
        squared, bit = 0, 0
        while bit < 32:
            if power >> bit & 1:
                squared ^= of_bits[bit]
            if bit & 3 == 0:
                made = [0]
                for one in of_bits[bit : bit + 4]:
                    made += [other ^ one for other in made]
                found += made
            bit += 1
        power = squared
    return found


PRODUCTS = products()


def times(crc: int, power: int) -> int:
    """A polynomial times x^8 to the 2^power."""
    at = power * 128
    product = 0
    while crc:
        product ^= PRODUCTS[at + (crc & 15)]
        crc >>= 4
        at += 16
    return product


def behind_zeros(crc: int, count: int) -> int:
    """The checksum `crc` of something after `count` (less than 2^64) zero bytes more.

    Takes about as long for a mebibyte of zeros as for one.
    """
    power = 0
    while count:
        if count & 1:
            crc = times(crc, power)
        power += 1
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


def ends_in_zeros(data: Buffer, offset: int) -> bool:
    """Whether the part of a sector in which `data` ends would be zeros only, where it stands at
    `offset`. No, if that holds none of it, or more than it."""
    size = len(data)
    last = (offset + size) % SECTOR
    if not 0 < last <= size:
        return False
    at = size - last
    while at < size:
        if data[at]:
            return False
        at += 1
    return True


def block_head(kind: int, find: Any, data: Buffer, unsynced: int, offset: int) -> bytearray | None:
    """The fixheader of a block of the payload `data` that will stand at `offset`; None if one of
    its sectors, or the part of one that it ends in, would be zeros only. `find`: gives checksums;
    the rest as for `put_fixheader`."""
    size = len(data)
    if size and data[size - 1] == 0 and ends_in_zeros(data, offset + HEAD):
        return None
    if size >= SECTOR and has_zeros(data, SECTOR):
        return None
    out = bytearray(HEAD)
    rows.put_fixheader(kind, size, unsynced, find(data), out)
    return out


def filler_head(zeros: int) -> bytes:
    """The head of a filler in front of so many zeros, which are less than 2^31 - 8."""
    out = bytearray(FILLER)
    to = out
    at, left = HEAD, zeros << 32 | SKIPPED
    while at < FILLER:
        to[at] = left & 0xFF
        left >>= 8
        at += 1
    crc = times(times(SKIPPED, 2) ^ zeros, 2)  # four bytes more are four of x^8
    rows.put_fixheader(ZSTD, FILLER - HEAD + zeros, 0, behind_zeros(crc, zeros), out)
    return bytes(out)
