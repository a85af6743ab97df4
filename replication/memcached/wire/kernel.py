# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of memcached's commands: runs of them, what they store, and their answers.

Compiled or plain Python, as `wal.kernel` is. It checks lengths and tables as that does.
`memcached.serve.runs` is its face, `pushkernel` is for what goes out; nothing else calls it.
Packets are specified in `memcached.wire.codec`, what commands do in `memcached.serve.commands`,
tuples in `replication.bucket.item`, what reads and writes them in `replication.bucket.kernel`.

A *run* is whole, well-formed requests about items one behind the other, with their quiet and K
forms, NOOP and VERSION; one alone is a run. `statements` makes changes of items of them
(`replication.bucket.change`), `answers` what is told of those; both stop before a request that
needs
more than they know: a vbucket that is not active, an item that is not written as `pack_item` does.
Every number is an unsigned 64-bit one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.bucket.kernel as bucket
import logweir.wal.kernel as rows
from logweir.replication.memcached.wire.codec import SERVER_VERSION, TEXTS

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `statements` and `answers` are given and write.
AT, USED, COUNT, NOW = range(4)

# What `tally` counts of each opcode: requests, those of them with a CAS, answers by status, and
# those with any further status.
TALLY_REQUESTS, TALLY_CAS, TALLY_ANSWERS, TALLY_OTHER = 0, 1, 2, 8
TALLY_WIDTH = 9

# How they ended.
DONE, NEED_STATE, NO_ROOM, ODD = range(4)

ITEM_BYTES = 96  # of a tuple and a key, without the bytes of keys and values
WIDTH, RESULTS = 13, 10  # of a statement, of what came of it: store.engine.statementkernel

# The same for C, which alone then sees them.
_RUN_STOP, _RUN_CHANGES = range(2)
_AT, _USED, _COUNT, _NOW = range(4)
_DONE, _NEED_STATE, _NO_ROOM, _ODD = range(4)
_ITEM_BYTES = ITEM_BYTES
_TALLY_REQUESTS, _TALLY_CAS, _TALLY_ANSWERS, _TALLY_OTHER = 0, 1, 2, 8
_TALLY_WIDTH = TALLY_WIDTH
_WIDTH, _RESULTS = WIDTH, RESULTS

# Kinds of requests: but for the simple one, without an item, and the last those of
# replication.bucket.change.
_GET, _SET, _ADD, _REPLACE, _DELETE, _APPEND, _PREPEND, _INCREMENT, _DECREMENT, _TOUCH = range(
    1, 11
)
_SIMPLE, _FETCH, _MARK, _VISIT = range(12, 16)  # a visit is a FETCH that says more
_NO_CREATE = 0x100
_RETIME = 0x800
_OLDER = 0x8000
_SAYS = 0x7800  # what a visit may say: RETIME, FIRST_RETIME, RECACHE, CREATE
_SETM = 0xE6
_WON = 4  # beside the marks of an item
_OWN = 0xE0  # opcodes from here on also tell when the item expires
_NEVER = 0xFFFF_FFFF  # expiry of a counter that is not to be made

# Of a statement, and of its result.
(_KIND, _FIRST, _FIRST_END, _LAST, _EXPECT, _FIELD, _VALUE) = (0, 4, 5, 8, 9, 10, 11)
(_STATUS, _CODE, _TOLD, _NUMBER, _OLD, _OLD_END, _NEW, _NEW_END) = range(8)
_COMPUTED, _ROW_REPLACE, _ROW_DELETE = 4, 3, 5
_REFUSED, _INTERNAL = 1, 0x84
_HEADER = 24
_REQUEST = 0x80  # the first byte of a header
_KEY_MAX = 250  # limits.TAP_KEY_BYTES
_STATES = 1 << 16  # bucket.VBUCKETS: one byte for each
_ACTIVE = 1
_MISSING = 1  # Status

_extras = bytes((0, 0, 8, 8, 8, 0, 0, 0, 20, 20, 4, 0, 0, 0, 4, 16))  # bytes of them, by kind
EXTRAS = _extras
_kind_of = bytearray(256)
_quiet_of = bytearray(256)
for _opcode, _quiet, _kind in (
    *((0x00, 0x09, _GET), (0x0C, 0x0D, _GET), (0x01, 0x11, _SET), (0x02, 0x12, _ADD)),
    *((0x03, 0x13, _REPLACE), (0x04, 0x14, _DELETE)),
    *((0x0A, 0x0A, _SIMPLE), (0x0B, 0x0B, _SIMPLE)),
    *((0x05, 0x15, _INCREMENT), (0x06, 0x16, _DECREMENT), (0x0E, 0x19, _APPEND)),
    *((0x0F, 0x1A, _PREPEND), (0x1C, 0x1C, _TOUCH), (0x1D, 0x1E, _TOUCH), (0x23, 0x24, _TOUCH)),
    *((0xE0, 0xE0, _FETCH), (0xE1, 0xE1, _VISIT), (0xE4, 0xE4, _VISIT), (0xE7, 0xE7, _GET)),
    *((0xE2, 0xE2, _INCREMENT), (0xE3, 0xE3, _DECREMENT)),
    *((0xE5, 0xE5, _MARK), (0xE6, 0xE6, _SET)),
):
    _kind_of[_opcode] = _kind_of[_quiet] = _kind
    if _quiet != _opcode:
        _quiet_of[_quiet] = 1
_gets_of = bytearray(256)  # 1: the answer holds an item, 2: with its key
for _opcode in (0x00, 0x09, 0x1D, 0x1E):
    _gets_of[_opcode] = 1
for _opcode in (0x0C, 0x0D, 0x23, 0x24, 0xE0, 0xE1, 0xE4, 0xE7):
    _gets_of[_opcode] = 2
_kinds = bytes(_kind_of)
_quiets = bytes(_quiet_of)
_gets = bytes(_gets_of)
KINDS = _kinds
QUIETS = _quiets
GETS = _gets
_TEXT_ROOM = 64
_slots = bytearray(256 * _TEXT_ROOM)  # of each status its length and its text
for _status, _said in TEXTS.items():
    _slots[_TEXT_ROOM * _status] = len(_said)
    _slots[_TEXT_ROOM * _status + 1 : _TEXT_ROOM * _status + 1 + len(_said)] = _said
_texts = bytes(_slots)
SAID = _texts
_version = SERVER_VERSION[:_TEXT_ROOM]
_version_bytes = len(_version)
VERSION = _version
_VERSION = 0x0B

# What `bucket.kernel.item_end` finds of an item.
(_VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
(_FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL) = range(10, 16)
(_COMPRESSION, _DATE_AT, _MARKS) = (16, 17, 18)


def take_run(data: bytes, at: int, most: int, value_max: int, found: Table) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, at most `most`.

    `value_max`: longest value; `found`: takes where the run stops, and how many requests may change
    something.
    """
    raw = data
    end = len(data)
    count = changes = 0
    if at < 0 or len(found) <= _RUN_CHANGES:
        raise IndexError("take_run: no room for what is found")
    while count < most and end - at >= _HEADER and raw[at] == 0x80:
        kind = KINDS[raw[at + 1]]
        key_bytes = bucket.load2(raw, at + 2)
        extras_bytes = raw[at + 4]
        body = bucket.load4(raw, at + 8)
        if kind == 0 or body > end - at - _HEADER or extras_bytes + key_bytes > body:
            break
        if kind == _SIMPLE:
            if body:
                break
        else:
            value_bytes = body - extras_bytes - key_bytes
            if key_bytes == 0 or key_bytes > _KEY_MAX or value_bytes > value_max:
                break
            if extras_bytes != EXTRAS[kind]:
                break
            if value_bytes and kind not in (_SET, _ADD, _REPLACE, _APPEND, _PREPEND):
                break
            if kind not in (_GET, _FETCH):
                changes += 1
        at += _HEADER + body
        count += 1
    found[_RUN_STOP] = at
    found[_RUN_CHANGES] = changes
    return count


def put_answer(
    out: bytearray, at: int, opcode: int, status: int, opaque: int, cas: int, body: int
) -> int:
    """Write the header of an answer without key, extras and data type. Unchecked."""
    out[at] = 0x81
    out[at + 1] = opcode
    bucket.put4(out, at + 2, 0)
    bucket.put2(out, at + 6, status)
    bucket.put4(out, at + 8, body)
    bucket.put4(out, at + 12, opaque)
    return bucket.put8(out, at + 16, cas)


def put_simple(out: bytearray, at: int, opcode: int, opaque: int) -> int:
    """Write the answer to a request that needs no item. Unchecked."""
    size = _version_bytes if opcode == _VERSION else 0
    at = put_answer(out, at, opcode, 0, opaque, 0, size)
    return rows.copy(VERSION, 0, size, out, at)


def put_refusal(out: bytearray, at: int, opcode: int, status: int, opaque: int) -> int:
    """Write an answer that says why not. Unchecked."""
    slot = _TEXT_ROOM * (status & 0xFF)
    size = SAID[slot]
    at = put_answer(out, at, opcode, status, opaque, 0, size)
    return rows.copy(SAID, slot + 1, slot + 1 + size, out, at)


def put_missing(
    data: bytes, key_at: int, key_bytes: int, opcode: int, opaque: int, out: bytearray, at: int
) -> int:
    """Write the answer to a request for an item that there is none: of a quiet one nothing, of a K
    form the key. Unchecked."""
    if QUIETS[opcode]:
        return at
    if GETS[opcode] == 1:
        return put_refusal(out, at, opcode, _MISSING, opaque)
    head = at
    at = put_answer(out, at, opcode, _MISSING, opaque, 0, key_bytes)
    bucket.put2(out, head + 2, key_bytes)
    return rows.copy(data, key_at, key_at + key_bytes, out, at)


def put_item(
    out: bytearray, at: int, opcode: int, opaque: int, item: bytes, fields: list[int], won: int
) -> int:
    """Write the answer to GET or GAT that holds an item. `won`: whether it tells to make another
    value. Unchecked."""
    head = at
    key_bytes = 0
    extras_bytes = 8 if opcode >= _OWN else 4
    if GETS[opcode] == 2:
        key_bytes = fields[_KEY_END] - fields[_KEY_AT]
    body = extras_bytes + key_bytes + (fields[_VALUE_END] - fields[_VALUE_AT])
    at = put_answer(out, at, opcode, 0, opaque, fields[_ITEM_CAS], body)
    bucket.put2(out, head + 2, key_bytes)
    out[head + 4] = extras_bytes
    out[head + 5] = fields[_DATATYPE]
    at = bucket.put4(out, at, fields[_FLAGS])
    if extras_bytes == 8:
        out[head + 5] = fields[_MARKS] & 1 | _WON if won else fields[_MARKS]
        at = bucket.put4(out, at, fields[_EXPIRY])
    if key_bytes:
        at = rows.copy(item, fields[_KEY_AT], fields[_KEY_END], out, at)
    return rows.copy(item, fields[_VALUE_AT], fields[_VALUE_END], out, at)


def absolute(expiry: int, now: int) -> int:
    """The Unix time of a client's expiry; 0 for never."""
    return expiry + now if 0 < expiry <= 2592000 else expiry  # bucket.RELATIVE_SECONDS


def put_given(
    data: bytes, at: int, kind: int, key_bytes: int, body: int, now: int, out: bytearray, used: int
) -> int:
    """Write the tuple that the request at `at` gives: see `replication.bucket.change`. Returns
    where it ends. Unchecked."""
    extras_bytes = EXTRAS[kind]
    key_at = at + _HEADER + extras_bytes
    flags = expiry = 0
    if extras_bytes:
        expiry = absolute(bucket.load4(data, key_at - 4), now)
    if extras_bytes == 8:
        flags = bucket.load4(data, at + _HEADER)
    out[used] = 0x9A
    used = bucket.put_bin(data, key_at, key_at + key_bytes, out, used + 1)
    used = rows.put_uint(out, used, bucket.load2(data, at + 6))
    if extras_bytes == 20:
        used = put_number(rows.load(data, at + _HEADER + 8, 8), out, used)
    else:
        used = bucket.put_bin(data, key_at + key_bytes, at + _HEADER + body, out, used)
    used = rows.put_uint(out, used, flags)
    used = rows.put_uint(out, used, expiry)
    used = rows.put_uint(out, used, rows.load(data, at + 16, 8))
    used = rows.put_uint(out, used, data[at + 5] if extras_bytes == 8 else 0)
    out[used] = 0x00
    out[used + 1] = 0xA0
    out[used + 2] = 0xC4
    out[used + 3] = 0x00
    return used + 4


def put_number(number: int, out: bytearray, used: int) -> int:
    """Write a number as text in a bin. Returns where it ends. Unchecked."""
    size = 1
    rest = number // 10
    while rest:
        size += 1
        rest //= 10
    out[used] = 0xC4
    out[used + 1] = size
    used += 2 + size
    for i in range(size):
        out[used - 1 - i] = 0x30 + number % 10
        number //= 10
    return used


def statements(
    data: bytes,
    stop: int,
    most: int,
    numbers: Table,
    states: bytearray,
    out: bytearray,
    columns: Table,
) -> int:
    """Make statements of the requests of a run up to `stop`, of `most` of them at most. Returns how
    it ended.

    `numbers`: where the next request begins; bytes used of `out`; statements made so far; the time,
    in whole Unix seconds. `states`: one byte for each vbucket, 0: not asked yet, else its state,
    255 if there is none. `columns`: takes `WIDTH` numbers of each statement; all zeros behind those
    that there are.
    """
    raw, to, known = data, out, states
    if len(numbers) <= _NOW or len(states) < _STATES:
        raise IndexError("statements: a table is too short")
    at = numbers[_AT]
    used = numbers[_USED]
    count = numbers[_COUNT]
    now = numbers[_NOW]
    room = len(out)
    if at < 0 or used < 0 or used > room or stop > len(data):
        raise IndexError("statements: numbers beyond their buffers")
    if count < 0 or count > len(columns):
        raise IndexError("statements: numbers beyond their buffers")
    how = _DONE
    while at < stop and most:
        if stop - at < _HEADER:
            raise IndexError("statements: a part of a request")
        kind = KINDS[raw[at + 1]]
        body = bucket.load4(raw, at + 8)
        key_bytes = bucket.load2(raw, at + 2)
        if body > stop - at - _HEADER or key_bytes + raw[at + 4] > body:
            raise IndexError("statements: a part of a request")
        if kind == _SIMPLE:
            at += _HEADER + body
            continue
        vbucket = bucket.load2(raw, at + 6)
        if known[vbucket] != _ACTIVE:
            how = _NEED_STATE if known[vbucket] == 0 else _ODD
            break
        if kind == 0 or key_bytes > _KEY_MAX or raw[at + 4] != EXTRAS[kind]:
            how = _ODD  # `take_run` gives no such one
            break
        row = count * _WIDTH
        if _ITEM_BYTES + body + key_bytes > room - used or row + 2 * _WIDTH > len(columns):
            how = _NO_ROOM
            break
        columns[row] = _ROW_REPLACE
        columns[row + _FIRST] = used
        used = put_given(raw, at, kind, key_bytes, body, now, to, used)
        columns[row + _FIRST_END] = used
        columns[row + _LAST] = 1
        columns[row + _EXPECT] = _COMPUTED
        columns[row + _FIELD] = kind
        if kind == _VISIT:
            place = at + _HEADER
            columns[row + _FIELD] = _FETCH | bucket.load4(raw, place + 8) & _SAYS
            columns[row + _VALUE] = absolute(bucket.load4(raw, place + 4), now)
            columns[row + _VALUE] = columns[row + _VALUE] << 32
            columns[row + _VALUE] |= absolute(bucket.load4(raw, place), now)
        elif kind == _MARK and raw[at + 5] & 1:
            columns[row + _FIELD] = kind | _RETIME
        elif raw[at + 1] == _SETM:
            columns[row + _FIELD] = kind | _OLDER
        elif kind in (_INCREMENT, _DECREMENT):
            columns[row + _VALUE] = rows.load(raw, at + _HEADER, 8)
            if bucket.load4(raw, at + _HEADER + 16) == _NEVER:
                columns[row + _FIELD] = kind | _NO_CREATE
            if raw[at + 1] >= _OWN:
                if raw[at + 5] & 1:
                    columns[row + _FIELD] |= _RETIME
                if raw[at + 5] & 2:
                    columns[row + _FIELD] |= _NO_CREATE
        count += 1
        if kind == _DELETE:
            columns[row + _LAST] = 0
            row += _WIDTH
            columns[row] = _ROW_DELETE
            columns[row + _FIRST] = used
            to[used] = 0x91
            used = bucket.put_bin(raw, at + _HEADER, at + _HEADER + key_bytes, to, used + 1)
            columns[row + _FIRST_END] = used
            columns[row + _LAST] = 1
            count += 1
        at += _HEADER + body
        most -= 1
    numbers[_AT] = at
    numbers[_USED] = used
    numbers[_COUNT] = count
    return how


def answers(
    data: bytes, stop: int, numbers: Table, results: Table, made: bytes, out: bytearray
) -> int:
    """Write the answers to the requests of a run up to `stop`, as far as their statements were
    executed. Returns how it ended.

    `numbers`: where the next request begins; bytes used of `out`; the number of its first
    statement. `results`: of all that were executed; `made`: the bytes in which they point.
    """
    raw, to, tuples = data, out, made
    fields = [0] * 19
    if len(numbers) <= _COUNT:
        raise IndexError("answers: a table is too short")
    at = numbers[_AT]
    said = numbers[_USED]
    number = numbers[_COUNT]
    room = len(out)
    end = len(made)
    total = len(results) // _RESULTS
    if at < 0 or said < 0 or number < 0 or said > room or stop > len(data):
        raise IndexError("answers: numbers beyond their buffers")
    how = _DONE
    while at < stop:
        if stop - at < _HEADER:
            raise IndexError("answers: a part of a request")
        opcode = raw[at + 1]
        kind = KINDS[opcode]
        body = bucket.load4(raw, at + 8)
        key_bytes = bucket.load2(raw, at + 2)
        if body > stop - at - _HEADER or key_bytes + raw[at + 4] > body:
            raise IndexError("answers: a part of a request")
        opaque = bucket.load4(raw, at + 12)
        if room - said < _HEADER + _KEY_MAX + _TEXT_ROOM or key_bytes > _KEY_MAX:
            how = _NO_ROOM
            break
        if kind == _SIMPLE:
            said = put_simple(to, said, opcode, opaque)
            at += _HEADER + body
            continue
        wanted = 2 if kind == _DELETE else 1
        if wanted > total - number:
            break
        row = number * _RESULTS
        status = results[row + _STATUS]
        if status == 3 and kind == _DELETE:
            status = results[row + _RESULTS]  # undone with the DELETE behind it
        if status:
            code = _INTERNAL if status == _REFUSED else results[row + _CODE]
            if code == _MISSING and GETS[opcode]:
                key_at = at + _HEADER + raw[at + 4]
                said = put_missing(raw, key_at, key_bytes, opcode, opaque, to, said)
            else:
                said = put_refusal(to, said, opcode, code, opaque)
        elif kind in (_GET, _TOUCH, _FETCH, _VISIT):
            place = row + (_NEW if results[row + _NEW_END] else _OLD)
            start, close = results[place], results[place + 1]
            if start > close or close > end:
                raise IndexError("answers: a tuple beyond its buffer")
            if not bucket.read_item(tuples, start, close, fields):
                how = _ODD
                break
            if room - said < _HEADER + 4 + (close - start):
                how = _NO_ROOM
                break
            if GETS[opcode]:
                won = results[row + _NUMBER]
                said = put_item(to, said, opcode, opaque, tuples, fields, won)
            else:
                head = said
                said = put_answer(to, said, opcode, 0, opaque, fields[_ITEM_CAS], 4)
                to[head + 4] = 4
                said = bucket.put4(to, said, fields[_FLAGS])
        elif not QUIETS[opcode]:
            cas = 0 if kind == _DELETE else results[row + _TOLD]
            if opcode >= _OWN and kind in (_INCREMENT, _DECREMENT):
                start, close = results[row + _NEW], results[row + _NEW_END]
                if start > close or close > end:
                    raise IndexError("answers: a tuple beyond its buffer")
                if not bucket.read_item(tuples, start, close, fields):
                    fields[_EXPIRY] = 0
                head = said
                said = put_answer(to, said, opcode, 0, opaque, cas, 12)
                to[head + 4] = 4
                said = bucket.put4(to, said, fields[_EXPIRY])
                said = bucket.put8(to, said, results[row + _NUMBER])
            elif kind in (_INCREMENT, _DECREMENT):
                said = put_answer(to, said, opcode, 0, opaque, cas, 8)
                said = bucket.put8(to, said, results[row + _NUMBER])
            else:
                said = put_answer(to, said, opcode, 0, opaque, cas, 0)
        number += wanted
        at += _HEADER + body
    numbers[_AT] = at
    numbers[_USED] = said
    numbers[_COUNT] = number
    return how


def tally(data: bytes, at: int, stop: int, counts: Table) -> int:
    """Count the requests, or the answers, of `data` from `at` to `stop` in `counts`:
    `TALLY_WIDTH` numbers for each opcode. Returns how many there were."""
    raw = data
    count = 0
    if len(counts) < 256 * TALLY_WIDTH or at < 0 or stop > len(data):
        raise IndexError("tally: a table is too short")
    while at < stop:
        if stop - at < _HEADER or bucket.load4(raw, at + 8) > stop - at - _HEADER:
            raise IndexError("tally: a part of a packet")
        row = raw[at + 1] * _TALLY_WIDTH
        if raw[at] == _REQUEST:
            counts[row + _TALLY_REQUESTS] += 1
            if bucket.load4(raw, at + 16) or bucket.load4(raw, at + 20):
                counts[row + _TALLY_CAS] += 1
        else:
            status = bucket.load2(raw, at + 6)
            column = _TALLY_ANSWERS + status
            counts[row + (column if column < _TALLY_OTHER else _TALLY_OTHER)] += 1
        at += _HEADER + bucket.load4(raw, at + 8)
        count += 1
    return count
