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

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    Spans = array[int] | memoryview
    Offsets = array[int] | memoryview

HALF = 2**32 - 1
OFFSET_MAX = 2**31 - 1
SHORT = 16  # stands in `copy_short` too


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


def copy_short(source: bytes, start: int, out: bytearray, at: int) -> None:
    """Copy `SHORT` bytes, of which not all need be wanted: that takes less than to count them.
    Unchecked."""
    for i in range(16):
        out[at + i] = source[start + i]


def gather(data: bytes, spans: Spans, offsets: Offsets, valid: bytearray) -> bytearray | None:
    """The values one behind the other.

    Where each begins is written to `offsets`, signed 32-bit numbers, one more than there are
    spans; and to `valid`, of one bit per span and all zeros, which there are, the first in bit 0.
    None where `span_bytes` finds a span that is not in `data`, or one of these has too little
    room.
    """
    source = data
    bits = valid
    count = len(spans)
    size = span_bytes(spans, len(data))
    if size < 0 or len(offsets) != count + 1 or len(valid) * 8 < count:
        return None
    out: bytearray = rows.fresh(size + SHORT)  # type: ignore[attr-defined]
    to = out
    at = 0
    short_until = len(data) - SHORT
    for i in range(count):
        span = spans[i]
        start = span & HALF
        stop = span >> 32
        offsets[i] = at
        bits[i >> 3] |= (span != 0) << (i & 7)
        if stop - start <= SHORT and start <= short_until:
            copy_short(source, start, to, at)
            at += stop - start
        else:
            at = rows.copy(source, start, stop, to, at)
    offsets[count] = at
    del out[size:]
    return out


def split_updates(
    types: Spans, update: int, tuples: Spans, ops: Spans, tuples_out: Spans, ops_out: Spans
) -> bool:
    """Tell tuples from operations: what stands as the tuple of a row of type `update` is its
    operations, unless it has some of its own only. All of one length; False where they are not."""
    count = len(types)
    if not count == len(tuples) == len(ops) == len(tuples_out) == len(ops_out):
        return False
    for i in range(count):
        span = tuples[i]
        if types[i] != update:
            tuples_out[i] = span
            ops_out[i] = ops[i]
        else:
            tuples_out[i] = 0
            ops_out[i] = span if span else ops[i]
    return True


COMPILED = not __file__.endswith(".py")
