# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Greenstack: runs of MUTATIONs, and their answers.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `replication.greenstack.runs` is its face;
nothing else calls it. Frames are specified in `codec`, payloads in `flat` and `messages`.

A *run* is whole MUTATION requests of one lane, one behind the other, each with operation Set, no
CAS, no expiration, no compression, a datatype of 0 or 1, with no flag but flex and quiet, and with
no entries but perhaps the lane and, behind it, the vbucket. What is not of that form, or is wrong
in any way, ends the run and goes the ordinary way. Each becomes a SET of memcached's binary
protocol, whose opaque is its number in the run: so there is one place that stores runs.

Nothing here raises, recurses or believes a length: every read and write is checked against the
ends of its buffer first, since the compiled one would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `take_run` writes.
RUN_STOP, RUN_BYTES, RUN_VALUES, RUN_LANE_AT, RUN_LANE_BYTES, RUN_HAS_LANE = range(6)

# What is kept of each request.
OPAQUE, VALUE_BYTES, IS_QUIET, WIDTH = range(4)

ANSWER_BYTES = 77  # of an answer, without the lane's id
_RUN_STOP, _RUN_BYTES, _RUN_VALUES, _RUN_LANE_AT, _RUN_LANE_BYTES, _RUN_HAS_LANE = range(6)
_ANSWER_BYTES = ANSWER_BYTES
_HEADER = 24
_FRAME_MIN = 21  # a request whose entries are a vbucket, without payload
_ID_MAX = 250  # limits.GREENSTACK_ID_BYTES
_LANE_MAX = 255  # limits.GREENSTACK_LANE_BYTES
_MUTATION = 0x0405
_SET = 2  # messages.Operation
_BAD = -1
_WIDTH = WIDTH
_PAYLOAD_BYTES = 56

# MutationResponse with all its slots: what stands before the first number.
_answer_head = b"\x14\0\0\0\0\0\0\0\x0c\0$\0\x1c\0\x18\0\x0c\0\x04\0\x0c\0\0\0"
HEAD = _answer_head


def big2(data: bytes, at: int) -> int:
    """Two bytes, the first the highest. Unchecked."""
    return data[at] << 8 | data[at + 1]


def big4(data: bytes, at: int) -> int:
    """Four bytes, the first the highest. Unchecked."""
    word = data[at]
    word = word << 8 | data[at + 1]
    word = word << 8 | data[at + 2]
    return word << 8 | data[at + 3]


def little4(data: bytes, at: int) -> int:
    """Four bytes, the first the lowest. Unchecked."""
    word = data[at + 3]
    word = word << 8 | data[at + 2]
    word = word << 8 | data[at + 1]
    return word << 8 | data[at]


def target(data: bytes, at: int, end: int) -> int:
    """Where the reference at `at` leads: four bytes can be read there; -1 if not."""
    if end - at < 4:
        return _BAD
    step = little4(data, at)
    if step > end - at - 4:
        return _BAD
    return at + step


def slot(data: bytes, begin: int, table: int, end: int, number: int) -> int:
    """Where a field of the table at `table` stands; 0: it is left out; -1: it cannot be."""
    back = little4(data, table)
    if back >= 0x80000000:
        back -= 0x100000000
    vtable = table - back
    if vtable < begin or vtable > end - 4:
        return _BAD
    size = data[vtable] | data[vtable + 1] << 8
    if size < 4 or size & 1 or size > end - vtable:
        return _BAD
    if 6 + 2 * number > size:
        return 0
    place = data[vtable + 4 + 2 * number] | data[vtable + 5 + 2 * number] << 8
    if place == 0:
        return 0
    return table + place if place < end - table else _BAD


def text(data: bytes, begin: int, table: int, end: int, number: int) -> int:
    """Where the text in a slot of a table begins, at its length; 0: left out; -1: it is none."""
    place = slot(data, begin, table, end, number)
    if place <= 0:
        return place
    place = target(data, place, end)
    if place < 0:
        return _BAD
    size = little4(data, place)
    if size >= end - place - 4 or data[place + 4 + size]:
        return _BAD
    return place


def small(data: bytes, begin: int, table: int, end: int, number: int, default: int) -> int:
    """The byte in a slot of a table; -1: it cannot be."""
    place = slot(data, begin, table, end, number)
    if place < 0:
        return _BAD
    return data[place] if place else default


def put4(out: bytearray, at: int, value: int) -> int:
    """Write four bytes, the highest first. Returns where they end. Unchecked."""
    out[at] = value >> 24 & 0xFF
    out[at + 1] = value >> 16 & 0xFF
    out[at + 2] = value >> 8 & 0xFF
    out[at + 3] = value & 0xFF
    return at + 4


def put_little(out: bytearray, at: int, value: int, width: int) -> None:
    """Write a number, the lowest byte first. Unchecked."""
    for i in range(width):
        out[at + i] = value & 0xFF
        value >>= 8


def put_set(
    data: bytes,
    begin: int,
    end: int,
    vbucket: int,
    number: int,
    value_max: int,
    out: bytearray,
    used: int,
    room: int,
) -> int:
    """Write the SET of the payload from `begin` to `end`. Returns where it ends; -1: it cannot."""
    root = target(data, begin, end)
    if root < 0 or small(data, begin, root, end, 1, _SET) != _SET:
        return _BAD
    document = slot(data, begin, root, end, 0)
    if document <= 0:
        return _BAD
    document = target(data, document, end)
    if document < 0:
        return _BAD
    info = slot(data, begin, document, end, 0)
    value = slot(data, begin, document, end, 1)
    if info <= 0 or value <= 0:
        return _BAD
    info = target(data, info, end)
    value = target(data, value, end)
    if info < 0 or value < 0:
        return _BAD
    value_bytes = little4(data, value)
    if value_bytes > end - value - 4 or value_bytes > value_max:
        return _BAD
    key = text(data, begin, info, end, 0)
    expiration = text(data, begin, info, end, 2)
    datatype = small(data, begin, info, end, 4, 0)
    flags = slot(data, begin, info, end, 1)
    cas = slot(data, begin, info, end, 5)
    if key <= 0 or expiration < 0 or flags < 0 or cas < 0 or datatype < 0 or datatype > 1:
        return _BAD
    if small(data, begin, info, end, 3, 0) or (expiration and little4(data, expiration)):
        return _BAD
    if (flags and end - flags < 4) or (cas and end - cas < 8):
        return _BAD
    if cas and (little4(data, cas) or little4(data, cas + 4)):
        return _BAD
    key_bytes = little4(data, key)
    body = 8 + key_bytes + value_bytes
    if key_bytes == 0 or key_bytes > _ID_MAX or _HEADER + body > room - used:
        return _BAD
    out[used] = 0x80
    out[used + 1] = 0x01
    out[used + 2] = key_bytes >> 8
    out[used + 3] = key_bytes & 0xFF
    out[used + 4] = 8
    out[used + 5] = datatype
    out[used + 6] = vbucket >> 8
    out[used + 7] = vbucket & 0xFF
    used = put4(out, put4(out, used + 8, body), number)
    for _ in range(8):
        out[used] = 0
        used += 1
    used = put4(out, put4(out, used, little4(data, flags) if flags else 0), 0)
    for i in range(key + 4, key + 4 + key_bytes):
        if data[i] == 0:
            return _BAD
        out[used] = data[i]
        used += 1
    for i in range(value + 4, value + 4 + value_bytes):
        out[used] = data[i]
        used += 1
    return used


def take_run(
    data: bytes,
    at: int,
    count_max: int,
    value_max: int,
    found: Table,
    table: Table,
    sets: bytearray,
) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, at most `count_max`.

    `value_max`: longest value; `found`: takes where the run stops, the bytes used of `sets`, those
    of ids and values, and where the lane's id stands; `table`: takes `WIDTH` numbers per request.
    """
    raw, out = data, sets
    end = len(data)
    room = len(sets)
    used = count = values = 0
    lane_at = lane_bytes = has_lane = 0
    while count < count_max and end - at >= _FRAME_MIN:
        size = big4(raw, at)
        if size > end - at - 4 or size < _FRAME_MIN - 4 or big2(raw, at + 8) != _MUTATION:
            break
        stop = at + 4 + size
        flags = raw[at + 10]
        entries = big4(raw, at + 11)
        if (flags & ~16) != 2 or entries < 6 or entries > stop - at - 15:
            break
        place = at + 15
        payload = place + entries
        own = 0
        own_bytes = 0
        if entries != 6:
            own_bytes = big2(raw, place + 2)
            if big2(raw, place) or entries != 10 + own_bytes or own_bytes > _LANE_MAX:
                break
            own = 1
            place += 4 + own_bytes
        if big4(raw, place) != 0x00070002:
            break
        if count == 0:
            has_lane, lane_bytes, lane_at = own, own_bytes, at + 19
        elif own != has_lane or own_bytes != lane_bytes:
            break
        else:
            i = 0
            while i < own_bytes and raw[at + 19 + i] == raw[lane_at + i]:
                i += 1
            if i < own_bytes:
                break
        vbucket = big2(raw, place + 4)
        after = put_set(raw, payload, stop, vbucket, count, value_max, out, used, room)
        if after < 0:
            break
        table[count * _WIDTH] = big4(raw, at + 4)
        table[count * _WIDTH + 1] = (
            after - used - _HEADER - 8 - (out[used + 2] << 8 | out[used + 3])
        )
        table[count * _WIDTH + 2] = flags & 16
        values += after - used
        used = after
        at = stop
        count += 1
    found[_RUN_STOP] = at
    found[_RUN_BYTES] = used
    found[_RUN_VALUES] = values
    found[_RUN_LANE_AT] = lane_at
    found[_RUN_LANE_BYTES] = lane_bytes
    found[_RUN_HAS_LANE] = has_lane
    return count


def put_head(
    out: bytearray, used: int, size: int, opaque: int, status: int, lane: bytes, lane_bytes: int
) -> int:
    """Write the begin of an answer of a payload of `size` bytes. `lane_bytes`: -1 for no lane."""
    extra = 8 + lane_bytes if lane_bytes >= 0 else 0
    used = put4(out, put4(out, used, 9 + extra + size), opaque)
    out[used] = 0x04
    out[used + 1] = 0x05
    out[used + 2] = 3 if lane_bytes >= 0 else 1
    out[used + 3] = status >> 8
    out[used + 4] = status & 0xFF
    used += 5
    if lane_bytes >= 0:
        used = put4(out, put4(out, used, 4 + lane_bytes), lane_bytes)
        for i in range(lane_bytes):
            out[used] = lane[i]
            used += 1
    return used


def answers(
    replies: bytes,
    table: Table,
    count: int,
    lane: bytes,
    lane_bytes: int,
    uuid: int,
    marks: Table,
    out: bytearray,
) -> int:
    """Write the answers to a run. Returns the bytes used of `out`, -1 where it does not fit.

    `replies`: memcached's answers, in order; their status is already one of Greenstack's.
    `lane_bytes`: -1 for no lane. `marks`: pairs of a request's number and its lsn, ascending, the
    first for number 0; those between have the lsns that follow. A number of 2^64-1 ends them.
    """
    raw, to, name, head = replies, out, lane, HEAD
    end = len(replies)
    room = len(out)
    used = at = mark = 0
    for i in range(count):
        if end - at < _HEADER or room - used < _ANSWER_BYTES + lane_bytes:
            return _BAD
        body = big4(raw, at + 8)
        if body > end - at - _HEADER:
            return _BAD
        while marks[2 * mark + 2] <= i:
            mark += 1
        status = big2(raw, at + 6)
        opaque = table[i * _WIDTH]
        if status:
            used = put_head(to, used, 0, opaque, status, name, lane_bytes)
        elif not table[i * _WIDTH + 2]:
            used = put_head(to, used, _PAYLOAD_BYTES, opaque, 0, name, lane_bytes)
            for j in range(24):
                to[used + j] = head[j]
            put_little(to, used + 24, uuid, 8)
            put_little(to, used + 32, marks[2 * mark + 1] + i - marks[2 * mark], 8)
            put_little(to, used + 40, 0, 4)
            put_little(to, used + 44, table[i * _WIDTH + 1], 4)
            for j in range(8):
                to[used + 48 + j] = raw[at + 23 - j]
            used += _PAYLOAD_BYTES
        at += _HEADER + body
    return used
