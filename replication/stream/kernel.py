# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Rows that look alike: most rows of a block differ from the one before in lsn and tuple only.

The first of such rows is the *model*: what has the same bytes before the tuple, but those of the
lsn, reads the same. Compiled or plain Python, as `wal.kernel` is. The kernels that send rows of the
log to followers call it, nothing else does.
"""

from __future__ import annotations

import logweir.wal.kernel as rows

COMPILED = not __file__.endswith(".py")


def alike(
    data: bytes, at: int, end: int, model: int, place: int, width: int, tuple_at: int
) -> bool:
    """Whether the bytes from `at` on are those of the model up to its tuple, but for its lsn."""
    if tuple_at >= end - at:
        return False
    i = 0
    while i < place and data[at + i] == data[model + i]:
        i += 1
    if i < place:
        return False
    i += width
    while i < tuple_at and data[at + i] == data[model + i]:
        i += 1
    return i == tuple_at


def lsn_place(data: bytes, at: int, end: int, owed: list[int]) -> int:
    """Where in the header from `at` to `end` the bytes of the lsn are, behind the first byte of the
    number; 0 where they may stand elsewhere too, or are none."""
    place = 0
    start = rows.map_end(data, at, end)
    while start < end:
        stop = rows.skip_value(data, start, end, owed, 1)
        if data[start] >= 0x80:
            return 0  # any key may be written so
        if data[start] == 3:
            if place or data[stop] < 0xCC:
                return 0
            place = stop + 1 - at
        start = rows.skip_value(data, stop, end, owed, 1)
    return place
