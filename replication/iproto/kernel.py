# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of iproto: a run of pipelined INSERT or REPLACE requests, and its answers.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `replication.iproto.runs` is its face;
nothing else calls it.

A *run* is requests one behind the other that differ in sync and tuple only: the same type (2 or 3),
space and schema version; header keys 00, 01, 05 and body keys 10, 21 and no others, each once;
well-formed. What is not of that form ends the run and goes the ordinary way, also if it is merely
odd. Every number is an unsigned 64-bit one.

Nothing here raises, recurses or believes a length: every read and write is checked against the
ends of its buffer first, since the compiled one would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `take_run` writes before the columns.
RUN_TYPE = 0
RUN_SPACE = 1
RUN_VERSION = 2
RUN_STOP = 3
RUN_BYTES = 4
RUN_HEAD = 5

ANSWER_BYTES = 35  # of an answer before its tuple: 5 length, 23 header, 7 start of the body

_RUN_TYPE = RUN_TYPE
_RUN_SPACE = RUN_SPACE
_RUN_VERSION = RUN_VERSION
_RUN_STOP = RUN_STOP
_RUN_BYTES = RUN_BYTES
_RUN_HEAD = RUN_HEAD
_ANSWER_BYTES = ANSWER_BYTES


def read_store(data: bytes, at: int, end: int, fields: list[int], owed: list[int]) -> bool:
    """Read the payload of one request from `at` to `end` into `fields`.

    `fields`: type, sync, version, space, start and end of the tuple. Returns False where it is not
    of a run's form.
    """
    stop = rows.map_end(data, at, end)
    if stop < 0:
        return False
    left = rows.map_count(data, at, stop)
    at = stop
    seen = 0
    fields[1] = fields[2] = 0
    while left:
        left -= 1
        if at >= end:
            return False
        key = data[at]
        if key == 0:
            place = 0
        elif key == 1:
            place = 1
        elif key == 5:
            place = 2
        else:
            return False
        if seen & (1 << place):
            return False
        seen |= 1 << place
        stop = rows.uint_end(data, at + 1, end)
        if stop < 0:
            return False
        fields[place] = rows.uint(data, at + 1, stop)
        at = stop
    if not seen & 1 or at >= end or data[at] != 0x82:
        return False
    at += 1
    for _ in range(2):
        if at >= end:
            return False
        key = data[at]
        at += 1
        if key == 0x10 and not seen & 8:
            seen |= 8
            stop = rows.uint_end(data, at, end)
            if stop < 0:
                return False
            fields[3] = rows.uint(data, at, stop)
        elif key == 0x21 and not seen & 16:
            seen |= 16
            if at >= end or not rows.is_array(data, at):
                return False
            stop = rows.skip_value(data, at, end, owed, 1)
            if stop < 0:
                return False
            fields[4] = at
            fields[5] = stop
        else:
            return False
        at = stop
    return at == end


def take_run(data: bytes, at: int, table: Table, capacity: int, out: bytearray) -> int:
    """Find the run that begins at `at`. Returns how many requests it has.

    `table`: RUN_HEAD numbers (type, space, version, where the run stops, bytes of all tuples), then
    `capacity` syncs, then capacity + 1 boundaries of the tuples, which are copied to `out`, one
    behind the other. `out`: at least as long as `data`.
    """
    raw = data
    to = out
    owed = [0] * 512
    fields = [0] * 6
    end = len(data)
    room = len(out)
    count = 0
    size = 0
    syncs = _RUN_HEAD
    bounds = _RUN_HEAD + capacity
    table[_RUN_TYPE] = 0
    table[_RUN_STOP] = at
    table[bounds] = 0
    while count < capacity:
        stop = rows.uint_end(raw, at, end)
        if stop < 0:
            break
        length = rows.uint(raw, at, stop)
        if length > end - stop:
            break
        last = stop + length
        if not read_store(raw, stop, last, fields, owed):
            break
        if count == 0:
            if fields[0] != 2 and fields[0] != 3:
                break
            table[_RUN_TYPE] = fields[0]
            table[_RUN_SPACE] = fields[3]
            table[_RUN_VERSION] = fields[2]
        elif (
            fields[0] != table[_RUN_TYPE]
            or fields[3] != table[_RUN_SPACE]
            or fields[2] != table[_RUN_VERSION]
        ):
            break
        start = fields[4]
        stop = fields[5]
        if stop - start > room - size:
            break
        for i in range(stop - start):
            to[size + i] = raw[start + i]
        size += stop - start
        table[syncs + count] = fields[1]
        count += 1
        table[bounds + count] = size
        at = last
    table[_RUN_STOP] = at
    table[_RUN_BYTES] = size
    return count


def answers(
    table: Table, capacity: int, count: int, packed: bytes, version: int, out: bytearray
) -> int:
    """Write the answers to a run: each with its sync and its tuple. Returns how many bytes.

    `table`: as `take_run` filled it; `packed`: the tuples; `out`: room for ANSWER_BYTES and the
    tuple of each. Returns -1 where it is too small.
    """
    raw = packed
    to = out
    at = 0
    room = len(out)
    syncs = _RUN_HEAD
    bounds = _RUN_HEAD + capacity
    for row in range(count):
        start = table[bounds + row]
        stop = table[bounds + row + 1]
        if start > stop or stop > len(packed) or _ANSWER_BYTES + (stop - start) > room - at:
            return -1
        length = _ANSWER_BYTES - 5 + (stop - start)
        sync = table[syncs + row]
        to[at] = 0xCE
        put(to, at + 1, length, 4)
        to[at + 5] = 0x83
        to[at + 6] = 0x00
        to[at + 7] = 0xCE
        put(to, at + 8, 0, 4)
        to[at + 12] = 0x01
        to[at + 13] = 0xCF
        put(to, at + 14, sync, 8)
        to[at + 22] = 0x05
        to[at + 23] = 0xCE
        put(to, at + 24, version, 4)
        to[at + 28] = 0x81
        to[at + 29] = 0x30
        to[at + 30] = 0xDD
        put(to, at + 31, 1, 4)
        at += _ANSWER_BYTES
        for i in range(stop - start):
            to[at + i] = raw[start + i]
        at += stop - start
    return at


def put(out: bytearray, at: int, value: int, width: int) -> None:
    """Write a big-endian number of `width` bytes. Unchecked."""
    for i in range(width):
        out[at + width - 1 - i] = value & 0xFF
        value = value >> 8
