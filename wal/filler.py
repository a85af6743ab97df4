"""The filler: the block behind the last real one, which stands for zeros written ahead.

Overwriting zeros that are on the disk costs a sync half of what appending costs, as the file's size
need not be written too. So the log's writer writes zeros before it needs them. A reader of the
format would take them for a damaged block, a Tarantool refuses them (`invalid magic: 0x0`). So
behind the last real block stands the head of one more, 27 bytes:

======  ======  ====================================================================================
at      bytes   holds
======  ======  ====================================================================================
0       19      fixheader (`wal.block`) with the magic of a compressed block, d5ba0bba
19      4       50 2a 4d 18: a zstd frame that is to be skipped (RFC 8878, section 3.1.2)
23      4       how many zeros follow, little-endian
======  ======  ====================================================================================

Head and zeros are one whole block, with a right checksum, that holds no row. The next real block is
written over the head, with a new head behind it. Each state in which a killed process can leave the
file is one that Tarantool 2.6.0 opens (observed): where one write is not enough, a filler that is
one byte longer than the file stands there first, which every reader takes for the unfinished last
write of a log.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from logweir.errors import DecodeError
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader
from logweir.wal.filesystem import FileSystem, ReadFile
from logweir.wal.fillerkernel import filler_head as encode_filler

__all__ = [
    "FILLER_BYTES",
    "encode_filler",
    "filler_before",
    "filler_zeros",
    "has_spare",
    "last_nonzero",
    "may_end_filler",
]

FILLER_BYTES: Final = 27
_SKIPPED: Final = bytes.fromhex("502a4d18")
_LENGTH: Final = struct.Struct("<I")
_STEP_BYTES: Final = 64 * 1024
_SPARE_TIMES: Final = 16


def filler_zeros(data: bytes | memoryview) -> int | None:
    """How many zeros the filler says follow that `data` begins with; None if it is none."""
    head = bytes(data[:FILLER_BYTES])
    if len(head) < FILLER_BYTES or head[FIXHEADER_BYTES : FIXHEADER_BYTES + 4] != _SKIPPED:
        return None
    zeros = int(_LENGTH.unpack_from(head, FIXHEADER_BYTES + 4)[0])
    try:
        decode_fixheader(head[:FIXHEADER_BYTES])
    except DecodeError:
        return None
    return zeros if head == encode_filler(zeros) else None


def may_end_filler(rest: bytes) -> bool:
    """Whether `rest`, of less than 27 bytes, can be the end of a filler's 27."""
    return _SKIPPED.endswith(rest[: -_LENGTH.size][-len(_SKIPPED) :])


def last_nonzero(file: ReadFile, size: int) -> int:
    """Where the last byte of the first `size` stands that is not zero; -1 where there is none."""
    while size > 0:
        start = max(0, size - _STEP_BYTES)
        left = file.read(size - start, start).rstrip(b"\0")
        if left:
            return start + len(left) - 1
        size = start
    return -1


def filler_before(file: ReadFile, size: int) -> int | None:
    """Where the filler begins that is the last thing in the first `size` bytes but for zeros."""
    last = last_nonzero(file, size)
    start = max(last - FILLER_BYTES + 1, 0)
    data = file.read(2 * FILLER_BYTES, start)
    # Its last byte that is not zero is one of its last 5.
    for at in range(min(5, last - start + 1)):
        if filler_zeros(data[at:]) is not None:
            return start + at
    return None


def has_spare(filesystem: FileSystem, log: Path, count: int) -> bool:
    """Whether there are that many zeros to write, 1 or more, and the disk can spare them: others
    want what is left of it, too. If it does not say, the write will."""
    try:
        free = filesystem.free_bytes(log.parent)
    except OSError:
        free = None
    return count > 0 and (free is None or free >= _SPARE_TIMES * count)
