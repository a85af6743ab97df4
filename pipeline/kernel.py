# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of the pipeline: values of rows → buffers of Arrow.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `pipeline.arrow` is its face.

A *span* is a value's place in a buffer as `wal.kernel` gives it: where it begins, and 2^32 x where
it ends; 0 where there is none. Nothing here raises or believes a span: every one is checked
against the ends of the buffers first, since the compiled one would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    Spans = array[int] | memoryview
    Offsets = array[int] | memoryview

HALF = 2**32 - 1
OFFSET_MAX = 2**31 - 1


def span_bytes(spans: Spans, limit: int) -> int:
    """How many bytes the values have; -1 - i where span i ends before it begins or over `limit`,
    or where there are more bytes than Arrow counts with 32 bits."""
    total = 0
    for i in range(len(spans)):
        span = spans[i]
        start = span & HALF
        stop = span >> 32
        if start > stop or stop > limit:
            return -1 - i
        total += stop - start
        if total > OFFSET_MAX:
            return -1 - i
    return total


def gather(data: bytes, spans: Spans, offsets: Offsets, out: bytearray) -> int:
    """Write the values one behind the other to `out`, and where each begins to `offsets`.

    `offsets`: signed 32-bit numbers, one more than there are spans. Returns how many bytes;
    -1 - i where span i is not in `data`, or its value or offset has no room.
    """
    source, to = data, out
    size = len(data)
    room = len(out)
    at = 0
    count = len(spans)
    if room > OFFSET_MAX or len(offsets) != count + 1:
        return -1
    for i in range(count):
        span = spans[i]
        start = span & HALF
        stop = span >> 32
        if start > stop or stop > size or stop - start > room - at:
            return -1 - i
        offsets[i] = at
        length = stop - start
        for j in range(length):
            to[at + j] = source[start + j]
        at += length
    offsets[count] = at
    return at


COMPILED = not __file__.endswith(".py")
