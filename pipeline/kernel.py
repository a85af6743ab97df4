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
HAS_KEY, HAS_LSN, HAS_TIME, HAS_GROUP = 1, 2, 4, 8 + 16 + 32  # kind, space, type
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
    has: bytes,
    kinds: bytes,
    kind_offsets: Offsets,
    spaces: Spans,
    types: Spans,
    sizes: Spans,
    lsns: Spans,
    times: Numbers,
    data: bytes,
    offsets: Offsets,
    known: Spans,
    sums: Spans,
    ends: Numbers,
    registers: bytearray,
) -> int:
    """Count rows by kind of file, space and type: what `pipeline.counting` tells of each group.

    Of each row: `has`: bits of what it has (`HAS_KEY` …); `kinds`, `kind_offsets`: of the kind, of
    which 8 bytes count; `data`, `offsets`: of the key. Of each group, all zeros to begin with:
    `known`: kind, space and type, and which of these it has; `sums`: rows, bytes, what its rows
    have, the least lsn, the largest; `ends`: the least time, NaN only if there is no other, and the
    largest, which NaN is; `registers`: of HyperLogLog, 2^12.
    Returns how many groups there are; -1 where a buffer is of another length or ends too early, -2
    where there is no room for the groups.
    """
    named, of, seen = kinds, has, registers
    count = len(has)
    most = len(known) // 4
    found = 0
    group = 0
    if not count == len(spaces) == len(types) == len(sizes) == len(lsns) == len(times):
        return -1
    if not count == len(offsets) - 1 == len(kind_offsets) - 1:
        return -1
    if len(sums) != 5 * most or len(ends) != 2 * most or len(registers) != most << INDEX_BITS:
        return -1
    for i in range(count):
        start = offsets[i]
        stop = offsets[i + 1]
        first = kind_offsets[i]
        last = kind_offsets[i + 1]
        if not 0 <= start <= stop <= len(data) or not 0 <= first <= last <= len(kinds):
            return -1
        kind = 0
        for k in range(first, min(last, first + 8)):
            byte = named[k]
            kind |= byte << 8 * (k - first)
        those = of[i] & HAS_GROUP
        at = 4 * group
        if found == 0 or not (
            known[at] == kind
            and known[at + 1] == spaces[i]
            and known[at + 2] == types[i]
            and known[at + 3] == those
        ):
            group = 0
            while group < found:
                at = 4 * group
                if (
                    known[at + 2] == types[i]
                    and known[at + 1] == spaces[i]
                    and known[at] == kind
                    and known[at + 3] == those
                ):
                    break
                group += 1
            if group == found:
                if found == most:
                    return -2
                at = 4 * group
                known[at] = kind
                known[at + 1] = spaces[i]
                known[at + 2] = types[i]
                known[at + 3] = those
                found += 1
        at = 5 * group
        there = sums[at + 2]
        sums[at] += 1
        sums[at + 1] += sizes[i]
        sums[at + 2] = there | of[i]
        if of[i] & HAS_LSN:
            lsn = lsns[i]
            if not there & HAS_LSN or lsn < sums[at + 3]:
                sums[at + 3] = lsn
            if lsn > sums[at + 4]:
                sums[at + 4] = lsn
        if of[i] & HAS_TIME:
            time = times[i]
            is_first = not there & HAS_TIME
            if is_first or time < ends[2 * group] or ends[2 * group] != ends[2 * group]:
                ends[2 * group] = time
            if is_first or time > ends[2 * group + 1] or time != time:
                ends[2 * group + 1] = time
        if of[i] & HAS_KEY:
            value = hashed(data, start, stop)
            rank = 1
            bit = REST_BITS - 1
            while bit >= 0 and not value >> bit & 1:
                rank += 1
                bit -= 1
            place = (group << INDEX_BITS) + (value >> REST_BITS)
            if rank > seen[place]:
                seen[place] = rank
    return found


COMPILED = not __file__.endswith(".py")
