"""The checksum of blocks: CRC-32C in Tarantool's variant.

Reflected polynomial 0x82F63B78 (normal form 0x1EDC6F41), register starts at **0**, **no final
inversion**. So it is not the customary CRC-32C: leading zero bytes do not change it, and the value
of nothing, or of any run of zeros, is 0. ``123456789`` gives 58e3fa20.
Source: `crc32_calc(0, …)` in `xlog.c` of Tarantool 2.6.0; checked on every block of the samples.

`crcmod` is the definition, and the fallback where the `crc32c` package is absent; `SOURCE` says
which one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import crcmod  # type: ignore[import-untyped]

from logweir.wal import fillerkernel

__all__ = [
    "CHECKSUM",
    "CHECKSUM_INVERTED",
    "SOURCE",
    "behind_zeros",
    "checksum",
    "checksums",
    "reference_checksum",
]

Buffer = bytes | bytearray | memoryview

_ONES: Final = 0xFFFFFFFF

reference_checksum: Final[Callable[..., int]] = crcmod.mkCrcFun(
    0x11EDC6F41, initCrc=0, rev=True, xorOut=0
)
"""The definition, by `crcmod`. `data`: any bytes; `before`: the checksum of what stands in front
of them, to go on from. Returns 0 … 2^32-1."""

CHECKSUM: Callable[..., int]
CHECKSUM_INVERTED: int
"""For kernels: the register after `data` is CHECKSUM(data, register), both with these bits
changed."""

SOURCE: str
"""What computes `checksum`: "crc32c" (hardware where there is any) or "crcmod"."""

try:
    import crc32c as _hardware
except ImportError:
    SOURCE = "crcmod"
    CHECKSUM, CHECKSUM_INVERTED = reference_checksum, 0
    checksum = reference_checksum
else:
    SOURCE = "crc32c"
    CHECKSUM, CHECKSUM_INVERTED = _hardware.crc32c, _ONES

    def checksum(data: Buffer, before: int = 0) -> int:
        """CRC-32C of `data` in Tarantool's variant, going on from `before`. Returns 0 … 2^32-1."""
        return _hardware.crc32c(data, before ^ _ONES) ^ _ONES


def checksums(parts: Sequence[Buffer], zeros: int) -> list[int] | None:
    """Of what stands up to the end of each part, one behind the other; None where one of them has
    so many zeros in a row."""
    return fillerkernel.running(CHECKSUM, CHECKSUM_INVERTED, CHECKSUM_INVERTED, parts, zeros)


def behind_zeros(before: int, count: int) -> int:
    """The checksum of something and `count` (at least 0) zero bytes behind it; `before`: its own.

    Takes about as long for a mebibyte of zeros as for one.
    """
    return int(fillerkernel.behind_zeros(before, count))
