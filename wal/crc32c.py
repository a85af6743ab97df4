"""The checksum of blocks: CRC-32C in Tarantool's variant.

Reflected polynomial 0x82F63B78 (normal form 0x1EDC6F41), register starts at **0**, **no final
inversion**. So it is not the customary CRC-32C: leading zero bytes do not change it, and the value
of nothing, or of any run of zeros, is 0. ``123456789`` gives 58e3fa20.
Source: `crc32_calc(0, …)` in `xlog.c` of Tarantool 2.6.0; checked on every block of the samples.

`wal/crckernel.pyx` computes it; `SOURCE` says whether it is there. `crcmod` is the definition, and
does it where nothing is compiled.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence

from logweir.wal import fillerkernel

Buffer = bytes | bytearray | memoryview


@functools.cache
def _by_crcmod() -> Callable[[Buffer, int], int]:
    import crcmod  # type: ignore[import-untyped]  # slow to load, and mostly not asked for

    found: Callable[[Buffer, int], int] = crcmod.mkCrcFun(
        0x11EDC6F41, initCrc=0, rev=True, xorOut=0
    )
    return found


def reference_checksum(data: Buffer, before: int = 0, /) -> int:
    """The definition, by `crcmod`. `data`: any bytes; `before`: the checksum of what stands in
    front of them, to go on from. Returns 0 … 2^32-1; raises `OverflowError` for another one."""
    if not 0 <= before < 2**32:
        raise OverflowError(f"{before} is no checksum of 32 bits")
    return _by_crcmod()(data, before)


def reference_first_wrong(
    data: bytes, table: array[int], stride: int, count: int, header: int, /
) -> int:
    """As `first_wrong`, a block at a time."""
    if not 0 <= count <= stride or header < 0 or stride > len(table) // 3:
        raise IndexError("the table is shorter than it should be")
    view = memoryview(data)
    for block in range(count):
        start = table[block] + header
        size = table[stride + block]
        if start + size > len(data):
            raise IndexError("a block ends behind the data")
        if checksum(view[start : start + size]) != table[2 * stride + block]:
            return block
    return count


checksum: Callable[..., int]
"""CRC-32C in Tarantool's variant: of bytes, and the checksum of what stands in front of them, 0 if
that is nothing. Returns 0 … 2^32-1."""

first_wrong: Callable[[bytes, array[int], int, int, int], int]
"""Which of the blocks in `data` is the first whose payload has another checksum than its header
says; `count` if none. `table`: columns of `stride` numbers: where a block begins, the bytes of its
payload, its checksum; `count`: how many blocks; `header`: bytes in front of a payload. Raises
`IndexError` for a block that ends behind the data, and a table that is too short."""

SOURCE: str
"""What computes `checksum`: "kernel" or "crcmod"."""

try:
    from logweir.wal.crckernel import checksum as checksum
    from logweir.wal.crckernel import first_wrong as first_wrong
except ImportError:
    SOURCE = "crcmod"
    checksum = reference_checksum
    first_wrong = reference_first_wrong
else:
    SOURCE = "kernel"


def checksums(parts: Sequence[Buffer], zeros: int) -> list[int] | None:
    """Of what stands up to the end of each part, one behind the other; None where one of them has
    so many zeros in a row."""
    return fillerkernel.running(checksum, parts, zeros)
