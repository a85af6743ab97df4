# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of iproto: a run of pipelined INSERT or REPLACE requests, and its answers; the
rows of a block as packets for a replica.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `replication.iproto.runs` and `packets` are
its face; nothing else calls it.

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

_HEAD = 5 + 81  # room for a length and a header: rows.PACKET_BYTES, rows.HEADER_ROOM
_REPLICAS = 32
_LSN_END = 2**63
_ONES = 2**64 - 1
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
        at = put_answer(to, at, table[syncs + row], version, raw, start, stop)
    return at


def put_answer(
    out: bytearray, at: int, sync: int, version: int, data: bytes, start: int, stop: int
) -> int:
    """Write an answer with the tuple from `start` to `stop`. Returns its end. Unchecked."""
    out[at] = 0xCE
    put(out, at + 1, _ANSWER_BYTES - 5 + (stop - start), 4)
    out[at + 5] = 0x83
    out[at + 6] = 0x00
    out[at + 7] = 0xCE
    put(out, at + 8, 0, 4)
    out[at + 12] = 0x01
    out[at + 13] = 0xCF
    put(out, at + 14, sync, 8)
    out[at + 22] = 0x05
    out[at + 23] = 0xCE
    put(out, at + 24, version, 4)
    out[at + 28] = 0x81
    out[at + 29] = 0x30
    out[at + 30] = 0xDD
    put(out, at + 31, 1, 4)
    return rows.copy(data, start, stop, out, at + _ANSWER_BYTES)


def put(out: bytearray, at: int, value: int, width: int) -> None:
    """Write a big-endian number of `width` bytes. Unchecked."""
    for i in range(width):
        out[at + width - 1 - i] = value & 0xFF
        value = value >> 8


def relay(
    data: bytes, after: Table, upto: Table, sync: int, lsns: Table, out: bytearray, at: int
) -> int:
    """Write all rows of a block as `rows.packets` does, to `out` from `at` on. Where they end.

    `rows.scan`, `rows.transactions` and `rows.highest_lsns` (of `lsns`) in the same pass. Returns
    -1, with `lsns` raised in part, where one of them or `rows.packets` refuses the block, or an lsn
    is over 2^63-1.

    Most rows differ from the one before in lsn and tuple only. The first of such rows is the
    *model*: what has the same bytes before the tuple, but those of the lsn, reads the same.
    """
    raw = data
    to = out
    owed = [0] * 512
    fields = [0] * 15
    end = len(data)
    room = len(out) - _HEAD
    start = 0
    model = place = width = tuple_at = distance = 0
    tsn = 0
    open_ = True
    while start < end:
        stop = -1
        if width and alike(raw, start, end, model, place, width, tuple_at):
            stop = start + tuple_at
            fields[3] = rows.load(raw, start + place, width)
            fields[5] = (fields[3] - distance) & _ONES
            stop = rows.skip_value(raw, stop, end, owed, 1) if rows.is_array(raw, stop) else -1
        else:
            stop = rows.read_header(raw, start, end, fields, owed)
            if stop < 0:
                return -1
            model = start
            distance = (fields[3] - fields[5]) & _ONES
            place = lsn_place(raw, start, stop, owed)
            stop = rows.read_body(raw, stop, end, fields, owed)
            width = 0
            if place and stop >= 0 and fields[12] >> 32 == stop:
                width = 1 << (raw[start + place - 1] - 0xCC)
                tuple_at = (fields[12] & 0xFFFFFFFF) - start
        replica_id = fields[1]
        lsn = fields[3]
        if stop < 0 or replica_id >= _REPLICAS or lsn >= _LSN_END:
            return -1
        if open_ and start and fields[5] != tsn:
            return -1
        tsn = fields[5]
        open_ = fields[6] & 1 == 0
        if lsn > lsns[replica_id]:
            lsns[replica_id] = lsn
        if replica_id and after[replica_id] < lsn <= upto[replica_id]:
            if stop - start > room - at:
                return -1
            if fields[2] == 1:
                width = 0  # `put_packet` changes `fields`
            at = rows.put_packet(raw, start, stop, fields, sync, to, at)
            if at < 0:
                return -1
        start = stop
    return -1 if open_ else at


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
