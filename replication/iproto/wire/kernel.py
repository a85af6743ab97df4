# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of iproto: pipelined requests as columns of statements, and their answers; the rows
of a block as packets for a replica.

Compiled or plain Python, as `wal.kernel` is. It checks lengths as that does. `iproto.wire.runs` and
`packets` are its face; nothing else calls it. Nothing but `relay` raises.

A *run* is requests one behind the other: SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT on spaces
that are not the system's, `SPACES` different ones at most; header keys 00, 01, 05, 0a and body keys
10 to 15, 20, 21, 28, of a SELECT 1f, 2e, 2f too, and 5e, 5f in the place of 10, 11, and no others,
each at most once, those that the type needs and no others of keys, tuples and operations; one
position at most; the schema version asked for, or none; well-formed. What is not of that form ends
the run and goes the ordinary way, also if it is merely odd. Every number is an unsigned 64-bit one.

Names are made into ids here: `ids(of, name)` tells that of the space of a name (`of`: -1), or of
the index of the space `of`, and -1 where there is none. A name is a MsgPack str.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.stream.kernel as models
import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    Ids = Callable[[int, bytes], int]
    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

SPACES = 16

# What `take_run` writes before the columns.
RUN_STOP = 0
RUN_SPACES = 1
RUN_USES = 2 + SPACES
RUN_NAMES = 2 + 2 * SPACES
RUN_STREAMS = 3 + 2 * SPACES
RUN_HEAD = 4 + 2 * SPACES
USED_TO_READ = 1
USED_TO_WRITE = 2

WIDTH = 13  # store.statementkernel.COLUMNS
RESULTS = 10  # store.statementkernel.RESULTS
FREE = 1
BOUND = 2

ANSWER_BYTES = 35  # of an answer before its tuple: 5 length, 23 header, 7 start of the body

_ARRAY_AT = 30  # where in an answer the array of its tuples is
_HEAD = 5 + 81  # room for a length and a header: rows.PACKET_BYTES, rows.HEADER_ROOM
_REPLICAS = 32
_LSN_END = 2**63
_ONES = 2**64 - 1
_SPACES = SPACES
_RUN_STOP = RUN_STOP
_RUN_SPACES = RUN_SPACES
_RUN_USES = RUN_USES
_RUN_NAMES = RUN_NAMES
_RUN_STREAMS = RUN_STREAMS
_RUN_HEAD = RUN_HEAD
_WIDTH = WIDTH
_RESULTS = RESULTS
_FREE = FREE
_ANSWER_BYTES = ANSWER_BYTES
_SYSTEM_END = 512
_SELECT = 1
_UPSERT = 9
_ITERATORS = 7
_U32 = 0xFFFFFFFF
_NAMES = 2 * SPACES

# Of `fields`, and bits of what was seen.
_TYPE = 0
_SYNC = 1
_VERSION = 2
_SPACE = 3
_INDEX = 4
_BASE = 5
_KEY = 6
_TUPLE = 8
_OPS = 10
_LIMIT = 12
_OFFSET = 13
_ITERATOR = 14
_STREAM = 15
_FETCH = 16
_AFTER = 17
_SPACE_NAME = 19
_INDEX_NAME = 21
_FIELDS = 23

# Which of them the body keys 10 … 5f are; `_FIELDS`: none.
_places = bytes(
    [_SPACE, _INDEX, _LIMIT, _OFFSET, _ITERATOR, _BASE]
    + [_FIELDS] * 9
    + [_FETCH, _KEY, _TUPLE]
    + [_FIELDS] * 6
    + [_OPS]
    + [_FIELDS] * 5
    + [_AFTER, _AFTER]
    + [_FIELDS] * 46
    + [_SPACE_NAME, _INDEX_NAME]
)
PLACES = _places


def read_request(data: bytes, at: int, end: int, fields: list[int], owed: list[int]) -> bool:
    """Read the payload of one request from `at` to `end` into `fields`.

    `fields`: type, sync, version, space, index, base; start and end of key, tuple, operations, both
    0 where there is none; limit, offset, iterator, stream, whether a position is wanted; start and
    end of what it goes on behind, of the names of space and index. Returns False where it is not of
    a run's form.
    """
    stop = rows.map_end(data, at, end)
    if stop < 0:
        return False
    left = rows.map_count(data, at, stop)
    at = stop
    seen = 0
    for place in range(_FIELDS):
        fields[place] = 0
    while left:
        left -= 1
        if at >= end:
            return False
        key = data[at]
        if key == 0:
            place = _TYPE
        elif key == 1:
            place = _SYNC
        elif key == 5:
            place = _VERSION
        elif key == 10:
            place = _STREAM
        else:
            return False
        stop = rows.uint_end(data, at + 1, end)
        if seen & (1 << place) or stop < 0:
            return False
        seen |= 1 << place
        fields[place] = rows.uint(data, at + 1, stop)
        at = stop
    if not seen & 1 << _TYPE or at >= end:
        return False
    stop = rows.map_end(data, at, end)
    if stop < 0:
        return False
    left = rows.map_count(data, at, stop)
    at = stop
    while left:
        left -= 1
        if at >= end:
            return False
        key = data[at]
        at += 1
        place = PLACES[key - 0x10] if 0x10 <= key <= 0x5F else _FIELDS
        if place == _FIELDS or at >= end:
            return False
        if seen & (1 << place):
            return False
        seen |= 1 << place
        if place == _FETCH:
            if data[at] >> 1 != 0x61:
                return False
            fields[place] = data[at] & 1
            stop = at + 1
        elif place < _KEY or _LIMIT <= place <= _ITERATOR:
            stop = rows.uint_end(data, at, end)
            if stop < 0:
                return False
            fields[place] = rows.uint(data, at, stop)
        else:
            is_text = place >= _SPACE_NAME or key == 0x2E
            if is_text != is_str(data, at) or (not is_text and not rows.is_array(data, at)):
                return False
            stop = rows.skip_value(data, at, end, owed, 1)
            if stop < 0 or (key == 0x2E and not is_ascii(data, at, stop)):
                return False
            fields[place] = at
            fields[place + 1] = stop
        at = stop
    if at != end or ((seen >> _SPACE) ^ (seen >> _SPACE_NAME)) & 1 == 0:
        return False
    if (seen >> _INDEX) & (seen >> _INDEX_NAME) & 1:
        return False
    kind = fields[_TYPE]
    seen &= ~((1 << _STREAM) | (1 << _SPACE_NAME) | (1 << _INDEX_NAME) | (1 << _INDEX) | 15)
    if kind == _SELECT:
        seen &= ~((1 << _OFFSET) | (1 << _ITERATOR) | (1 << _FETCH) | (1 << _AFTER))
        return seen == (1 << _KEY) | (1 << _LIMIT) and fields[_ITERATOR] < _ITERATORS
    seen &= ~(1 << _BASE)
    if kind == 2 or kind == 3:
        return seen == 1 << _TUPLE
    if kind == 4:
        return seen == (1 << _KEY) | (1 << _TUPLE)
    if kind == 5:
        return seen == 1 << _KEY
    return kind == _UPSERT and seen == (1 << _TUPLE) | (1 << _OPS)


def is_str(data: bytes, at: int) -> bool:
    """Whether a MsgPack str begins there. Unchecked."""
    return data[at] >> 5 == 5 or 0xD9 <= data[at] <= 0xDB


def is_ascii(data: bytes, at: int, stop: int) -> bool:
    """Whether a MsgPack str has only such letters. Unchecked."""
    at += 1 if data[at] >> 5 == 5 else 1 + (1 << (data[at] - 0xD9))
    while at < stop:
        if data[at] >= 0x80:
            return False
        at += 1
    return True


def frames_end(data: bytes, at: int, count: int) -> int:
    """Where the last of `count` frames ends that begin at `at`; -1 if they are not all whole."""
    raw = data
    end = len(data)
    while at >= 0 and count > 0:
        stop = rows.uint_end(raw, at, end)
        if stop < 0 or rows.uint(raw, at, stop) > end - stop:
            return -1
        at = stop + rows.uint(raw, at, stop)
        count -= 1
    return at


def frames(data: bytes, at: int, most: int) -> int:
    """How many whole frames begin at `at`, `most` at most, up to the first that shows in its first
    bytes that it is of no run."""
    raw = data
    end = len(data)
    count = 0
    while at >= 0 and count < most:
        stop = rows.uint_end(raw, at, end)
        if stop < 0:
            break
        length = rows.uint(raw, at, stop)
        if length > end - stop:
            break
        if length > 2 and raw[stop] >> 4 == 8 and raw[stop + 1] == 0:
            kind = raw[stop + 2]
            if kind < _SELECT or (kind > 5 and kind != _UPSERT):
                break
        at = stop + length
        count += 1
    return count


def may_select(data: bytes) -> bool:
    """Whether the first frame may be a SELECT: its first bytes do not show that it is none."""
    raw = data
    end = len(data)
    stop = rows.uint_end(raw, 0, end)
    if stop < 0 or end - stop < 3:
        return False
    return raw[stop] >> 4 != 8 or raw[stop + 1] != 0 or raw[stop + 2] == _SELECT


def request_end(
    data: bytes,
    at: int,
    end: int,
    version: int,
    fields: list[int],
    owed: list[int],
    names: list[int],
    ids: Ids,
) -> int:
    """Read the request whose frame begins at `at` as `read_request` does, with ids in the place of
    names. Returns where it ends; -1 if it is not whole, not of a run's form, about a system space
    or what `ids` does not know, or for definitions of another `version`. `names`: those known
    before, see `find_name`. Raises what `ids` raises."""
    stop = rows.uint_end(data, at, end)
    if stop < 0:
        return -1
    length = rows.uint(data, at, stop)
    if length > end - stop or not read_request(data, stop, stop + length, fields, owed):
        return -1
    if fields[_VERSION] and fields[_VERSION] != version:
        return -1
    if fields[_SPACE_NAME]:
        number = find_name(data, fields[_SPACE_NAME], fields[_SPACE_NAME + 1], -1, names, ids)
        if number < 0:
            return -1
        fields[_SPACE] = number
    if fields[_SPACE] < _SYSTEM_END:
        return -1
    kind = fields[_TYPE]
    if fields[_INDEX_NAME] and (kind == _SELECT or kind == 4 or kind == 5):
        if fields[_SPACE] > _U32:
            return -1
        number = fields[_SPACE]
        number = find_name(data, fields[_INDEX_NAME], fields[_INDEX_NAME + 1], number, names, ids)
        if number < 0:
            return -1
        fields[_INDEX] = number
    return stop + length


def find_name(data: bytes, start: int, stop: int, of: int, names: list[int], ids: Ids) -> int:
    """`ids(of, name)` of the name that stands there. `names`: how many are known, then of each
    `of`, start, end and id; of those in `data`, 2 * `SPACES` at most. Raises what `ids` raises."""
    for at in range(1, 4 * names[0], 4):
        size = names[at + 2] - names[at + 1]
        if names[at] != of or size != stop - start:
            continue
        if models.alike(data, start, stop + 1, names[at + 1], 0, 0, size):
            return names[at + 3]
    number = ids(of, data[start:stop])
    if number >= 0 and names[0] < _NAMES:
        at = 1 + 4 * names[0]
        names[at] = of
        names[at + 1] = start
        names[at + 2] = stop
        names[at + 3] = number
        names[0] += 1
    return number


def take_run(data: bytes, at: int, version: int, table: Table, capacity: int, ids: Ids) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, `capacity` at most.

    `version`: of the schema; `table`: RUN_HEAD numbers (where the run stops, how many spaces, the
    id of each, for what each is used, whether there are names, and streams), then `capacity` syncs,
    then the columns of as many statements, their spans counted from `at`, then as many streams.
    """
    raw = data
    owed = [0] * 512
    fields = [0] * 23
    names = [0] * 129
    end = len(data)
    count = 0
    spaces = 0
    start = at
    room = len(table) - _RUN_HEAD
    if at < 0 or room < 0 or capacity > room // (_WIDTH + 2):
        return 0
    column = _RUN_HEAD + capacity
    streams = column + capacity * _WIDTH
    names[0] = 0
    table[_RUN_STOP] = at
    table[_RUN_NAMES] = 0
    table[_RUN_STREAMS] = 0
    while count < capacity:
        last = request_end(raw, at, end, version, fields, owed, names, ids)
        if last < 0:
            break
        place = 0
        while place < spaces and table[2 + place] != fields[_SPACE]:
            place += 1
        if place == _SPACES:
            break
        if place == spaces:
            table[2 + place] = fields[_SPACE]
            table[_RUN_USES + place] = 0
            spaces += 1
        kind = fields[_TYPE]
        table[_RUN_USES + place] |= 1 if kind == _SELECT else 2
        first = _KEY if kind == 4 or kind == 5 or kind == _SELECT else _TUPLE
        ops = _TUPLE if kind == 4 else _AFTER if kind == _SELECT else _OPS
        table[column] = kind
        table[column + 1] = place
        table[column + 2] = fields[_INDEX]
        table[column + 3] = fields[_ITERATOR] if kind == _SELECT else fields[_BASE]
        table[column + 4] = fields[first] - start
        table[column + 5] = fields[first + 1] - start
        if fields[ops]:
            table[column + 6] = fields[ops] - start
            table[column + 7] = fields[ops + 1] - start
        table[column + 8] = 1
        table[column + 10] = fields[_LIMIT] & _U32
        table[column + 11] = fields[_OFFSET] & _U32
        table[column + 12] = fields[_FETCH]
        table[_RUN_HEAD + count] = fields[_SYNC]
        table[streams + count] = fields[_STREAM]
        if fields[_STREAM]:
            table[_RUN_STREAMS] = 1
        if fields[_SPACE_NAME] or fields[_INDEX_NAME]:
            table[_RUN_NAMES] = 1
        count += 1
        column += _WIDTH
        at = last
        table[_RUN_STOP] = at
    table[_RUN_SPACES] = spaces
    return count


def answers(
    columns: Table,
    syncs: Table,
    results: Table,
    source: bytes,
    first: int,
    last: int,
    version: int,
    out: bytearray,
    which: int = 0,
) -> int:
    """Write the answers to requests that are done, `first` … `last` - 1 of a run. Returns how many
    bytes they take, also where they take more than there is room for, and nothing is whole then.

    `columns`: as `take_run` made them; `results`, `source`: as they were executed: see
    `store.engine.statementkernel`. `which`: 0 all; `FREE`: of the SELECTs that saw nothing of the
    changes; `BOUND`: of all others.
    """
    raw = source
    to = out
    at = 0
    room = len(out)
    if first < 0 or last > len(syncs):
        return 0
    if last * _WIDTH > len(columns) or last * _RESULTS > len(results):
        return 0
    for row in range(first, last):
        kind = columns[row * _WIDTH]
        is_free = kind == _SELECT and results[row * _RESULTS + 1] == 1
        if which and is_free != (which == _FREE):
            continue
        place = row * _RESULTS + (4 if kind == 5 else 6)
        start = results[place]
        stop = results[place + 1]
        if kind == _UPSERT or start > stop or stop > len(source):
            start = stop = 0
        # The array of a SELECT has its own header, and a position may be behind it.
        head = _ARRAY_AT if kind == _SELECT and start < stop else _ANSWER_BYTES
        size = head + (stop - start)
        place = row * _RESULTS + 4
        has_more = head == _ARRAY_AT and 0 < results[place + 1] <= len(source)
        if has_more and results[place] < results[place + 1]:
            size += 1 + (results[place + 1] - results[place])
        else:
            has_more = False
        if at + size <= room:
            put_answer(to, at, head, syncs[row], version, raw, start, stop)
            if has_more:
                put_head(to, at, size, syncs[row], version)
                put_position(to, at, head + (stop - start))
                rows.copy(
                    raw, results[place], results[place + 1], to, at + head + (stop - start) + 1
                )
        at += size
    return at


def put_answer(
    out: bytearray,
    at: int,
    head: int,
    sync: int,
    version: int,
    data: bytes,
    start: int,
    stop: int,
) -> int:
    """Write an answer with what stands from `start` to `stop`: a tuple, none where there are no
    bytes, or, where `head` leaves no room for that, with the array around it. Returns its end.
    Unchecked."""
    put_head(out, at, head + (stop - start), sync, version)
    if head == _ANSWER_BYTES:
        out[at + 30] = 0xDD
        put(out, at + 31, 1 if stop > start else 0, 4)
    return rows.copy(data, start, stop, out, at + head)


def put_head(out: bytearray, at: int, size: int, sync: int, version: int) -> None:
    """Write what stands before the array in an answer of `size` bytes. Unchecked."""
    out[at] = 0xCE
    put(out, at + 1, size - 5, 4)
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


def put_position(out: bytearray, at: int, size: int) -> None:
    """Say in the answer that begins at `at` that behind its first `size` bytes, and the one that is
    written there, a position comes. Unchecked."""
    out[at + 28] = 0x82
    out[at + size] = 0x35


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
    is over 2^63-1. Raises IndexError where there is not a number of each replica id in a table.

    Most rows differ from the one before in lsn and tuple only. The first of such rows is the
    *model*: what has the same bytes before the tuple, but those of the lsn, reads the same.
    """
    if at < 0 or len(after) < _REPLICAS or len(upto) < _REPLICAS or len(lsns) < _REPLICAS:
        raise IndexError("relay: a table is too short")
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
        if width and models.alike(raw, start, end, model, place, width, tuple_at):
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
            place = models.lsn_place(raw, start, stop, owed)
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
