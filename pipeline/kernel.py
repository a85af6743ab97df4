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
    Numbers = array[float] | memoryview[float]

HALF = 2**32 - 1
OFFSET_MAX = 2**31 - 1
SHORT = 16  # stands in `copy_short` too
ONES = 2**64 - 1
ODD_A = 0x9E3779B97F4A7C15
ODD_B = 0xBF58476D1CE4E5B9
INDEX_BITS = 12
REST_BITS = 64 - INDEX_BITS


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


def mixed(value: int) -> int:
    """A 64-bit number of which each bit depends on all of `value`."""
    value = ((value ^ value >> 30) * ODD_B) & ONES
    value = ((value ^ value >> 27) * ODD_A) & ONES
    return value ^ value >> 31


def hashed(data: bytes, start: int, stop: int) -> int:
    """A 64-bit number for some bytes, the same in every process. Unchecked."""
    raw = data
    found = ((stop - start) * ODD_A) & ONES
    at = start
    while True:
        word = 0
        shift = 0
        while at < stop and shift < 64:
            byte = raw[at]
            word |= byte << shift
            shift += 8
            at += 1
        found = mixed(found ^ word)
        if at >= stop:
            return found


def tally(
    data: bytes,
    chosen: bytes,
    types: Spans,
    update: int,
    spaces: Spans,
    lsns: Spans,
    times: Numbers,
    keys: Spans,
    tuples: Spans,
    ops: Spans,
    first: int,
    known: Spans,
    sums: Spans,
    ends: Numbers,
    registers: bytearray,
) -> int:
    """Count rows from number `first` on by space and type: what `pipeline.counting` tells of each
    group.

    `chosen`: of each row whether it counts, empty for all; `keys`, `tuples`, `ops`: spans of
    `data`, and those of a row of type `update` as in `split_updates`. Of each group, all zeros to
    begin with: `known`: space and type; `sums`: rows, bytes, the least lsn, the largest; `ends`:
    the least time, NaN only if there is no other, and the largest, which NaN is; `registers`: of
    HyperLogLog, 2^12, all zeros while no row has a key.
    Returns the number of the first row that is not counted, for which there is no room, or how
    many rows there are; -1 where a buffer is of another length or a span ends too early.
    """
    of, seen = chosen, registers
    count = len(types)
    most = len(known) // 2
    found = 0
    group = 0
    if not count == len(spaces) == len(lsns) == len(times):
        return -1
    if not count == len(keys) == len(tuples) == len(ops) or len(chosen) not in (0, count):
        return -1
    if len(sums) != 4 * most or len(ends) != 2 * most or len(registers) != most << INDEX_BITS:
        return -1
    if first < 0:
        return -1
    every = len(chosen) == 0
    while found < most and sums[4 * found]:
        found += 1
    for i in range(first, count):
        if not every and not of[i]:
            continue
        space = spaces[i]
        kind = types[i]
        if found == 0 or known[2 * group] != space or known[2 * group + 1] != kind:
            group = 0
            while group < found:
                if known[2 * group] == space and known[2 * group + 1] == kind:
                    break
                group += 1
            if group == found:
                if found == most:
                    return i
                known[2 * group] = space
                known[2 * group + 1] = kind
                found += 1
        key = keys[i]
        start = key & HALF
        stop = key >> 32
        if start > stop or stop > len(data):
            return -1
        span = tuples[i]
        size = stop - start + (span >> 32) - (span & HALF)
        if kind != update or span == 0:
            span = ops[i]
            size += (span >> 32) - (span & HALF)
        at = 4 * group
        is_first = sums[at] == 0
        sums[at] += 1
        sums[at + 1] = (sums[at + 1] + size) & ONES
        lsn = lsns[i]
        if is_first or lsn < sums[at + 2]:
            sums[at + 2] = lsn
        if lsn > sums[at + 3]:
            sums[at + 3] = lsn
        time = times[i]
        if is_first or time < ends[2 * group] or ends[2 * group] != ends[2 * group]:
            ends[2 * group] = time
        if is_first or time > ends[2 * group + 1] or time != time:
            ends[2 * group + 1] = time
        if key:
            value = hashed(data, start, stop)
            rank = 1
            bit = REST_BITS - 1
            while bit >= 0 and not value >> bit & 1:
                rank += 1
                bit -= 1
            place = (group << INDEX_BITS) + (value >> REST_BITS)
            if rank > seen[place]:
                seen[place] = rank
    return max(first, count)


COMPILED = not __file__.endswith(".py")
