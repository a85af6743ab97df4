# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Greenstack: runs of MUTATIONs, their answers, and rows as pushed frames.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `replication.greenstack.runs` is its face for
what comes in, `pushing` for what goes out; nothing else calls it. Frames are specified in `codec`
and `stream`, payloads in `flat` and `messages`, tuples in `replication.bucket`.

A *run* is whole MUTATION requests of one lane, one behind the other, each with operation Set, no
CAS, no expiration, no compression, a datatype of 0 or 1, with no flag but flex and quiet, and with
no entries but perhaps the lane and, behind it, the vbucket. What is not of that form, or is wrong
in any way, ends the run and goes the ordinary way. `tuples` makes of a run what is stored where
nothing has to be looked at, and `successes` the answers. Else each becomes a SET of memcached's
binary protocol (`sets`), a quiet one a SETQ, whose opaque is its number in the run, and what is
answered to those `answers` translates.

What is pushed are rows of the log (`pushes`) or tuples (`documents`). Of the log, whole
transactions of INSERT, REPLACE, and of REPLACE by a tombstone with its DELETE behind it. Whatever
else is done to a wanted space, or is not as `pack_item` writes it, is *odd*: its transaction goes
the ordinary way, all before it being written.

Nothing here raises, recurses or believes a length: every read and write is checked against the
ends of its buffer first, since the compiled one would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.tap.kernel as items
import logweir.store.kernel as keys
import logweir.wal.kernel as rows
from logweir.replication.greenstack.messages import DOCUMENT_HEAD, REMOVE_HEAD

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `take_run` writes: where the run stops, bytes of its keys and of its values, where the lane's
# id stands, how many requests are not quiet, the vbucket of all, or `MIXED`.
(RUN_STOP, RUN_KEYS, RUN_VALUES, RUN_LANE_AT, RUN_LANE_BYTES, RUN_HAS_LANE) = range(6)
RUN_LOUD, RUN_VBUCKET, RUN_NUMBERS = 6, 7, 8
MIXED = 1 << 16

# What is kept of each request. Traits: bit 0 quiet, 8 … 15 datatype, 16 … 31 vbucket, 32 … flags.
OPAQUE, TRAITS, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, WIDTH = range(7)
SET_BYTES = 32  # of a SET, without its key and value
TUPLE_BYTES = 32  # of a tuple, without them
ANSWER_HEAD = b"\x14\0\0\0\0\0\0\0\x0c\0$\0\x1c\0\x18\0\x0c\0\x04\0\x0c\0\0\0"
"""MutationResponse with all its slots: what stands before the first number."""

# What `pushes` and `documents` read and write, and how they ended.
ROW, BYTES, OPAQUE_NEXT, FRAMES = range(4)
DONE, STOPPED, ODD = range(3)

ANSWER_BYTES = 77  # of an answer, without the lane's id
(_RUN_STOP, _RUN_KEYS, _RUN_VALUES, _RUN_LANE_AT, _RUN_LANE_BYTES, _RUN_HAS_LANE) = range(6)
_RUN_LOUD, _RUN_VBUCKET = 6, 7
_MIXED = MIXED
_REQ_OPAQUE, _REQ_TRAITS, _REQ_KEY_AT, _REQ_KEY_BYTES, _REQ_VALUE_AT, _REQ_VALUE_BYTES = range(6)
_ANSWER_BYTES = ANSWER_BYTES
_SET_BYTES = SET_BYTES
_TUPLE_BYTES = TUPLE_BYTES
_HEADER = 24
_FRAME_MIN = 21  # a request whose entries are a vbucket, without payload
_ID_MAX = 250  # limits.GREENSTACK_ID_BYTES
_LANE_MAX = 255  # limits.GREENSTACK_LANE_BYTES
_MUTATION = 0x0405
_SET = 2  # messages.Operation
_BAD = -1
_WIDTH = WIDTH
_PAYLOAD_BYTES = 56

_answer_head = ANSWER_HEAD
HEAD = _answer_head


_ROW, _BYTES, _OPAQUE_NEXT, _FRAMES = range(4)
_DONE, _STOPPED, _ODD = range(3)
_INSERT, _REPLACE, _DELETE = 2, 3, 5  # wal.xrow.RowType
_TRUNCATE = 330  # store.definition.SystemSpace
_COMMIT = 1
_LOCAL = 1
_REPLICAS = 32
_FRAME_ROOM = 320  # of a pushed frame, without its names, key and value
_MORE = 8
_FLAGS_AT = 10  # of a frame
_TIME_END = 9.0e12  # seconds; a time that is no date is not for C to make a number of
_document_head = DOCUMENT_HEAD
_DOCUMENT_BYTES = len(DOCUMENT_HEAD)
_remove_head = REMOVE_HEAD
_REMOVE_BYTES = len(REMOVE_HEAD)
DOCUMENT = _document_head
REMOVE = _remove_head

# Columns of `wal.kernel`, and what `tap.kernel.read_item` finds.
(_TYPE, _REPLICA_ID, _GROUP_ID, _LSN, _TIMESTAMP, _TSN, _FLAGS) = range(7)
(_SPACE_ID, _INDEX_BASE, _ROW_OFFSET, _BODY_OFFSET, _KEY, _TUPLE) = range(7, 13)
(_VBUCKET, _ITEM_FLAGS, _EXPIRY, _CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
_TAIL_AT = 12
(_COMPRESSION, _DATE) = (16, 17)  # what `read_document` adds; a date: 1


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


def vtable(data: bytes, begin: int, table: int, end: int) -> int:
    """Where the vtable of the table at `table` is; -1: it cannot be."""
    back = little4(data, table)
    found = table - back + (back >> 31 << 32)  # a signed number
    if found < begin or found > end - 4:
        return _BAD
    size = data[found] | data[found + 1] << 8
    if size < 4 or size & 1 or size > end - found:
        return _BAD
    return found


def slot(data: bytes, names: int, table: int, end: int, number: int) -> int:
    """Where a field of a table stands; 0: it is left out; -1: it cannot be. `names`: its vtable."""
    if 6 + 2 * number > (data[names] | data[names + 1] << 8):
        return 0
    place = data[names + 4 + 2 * number] | data[names + 5 + 2 * number] << 8
    if place == 0:
        return 0
    return table + place if place < end - table else _BAD


def text(data: bytes, names: int, table: int, end: int, number: int) -> int:
    """Where the text in a slot of a table begins, at its length; 0: left out; -1: it is none."""
    place = slot(data, names, table, end, number)
    if place <= 0:
        return place
    place = target(data, place, end)
    if place < 0:
        return _BAD
    size = little4(data, place)
    if size >= end - place - 4 or data[place + 4 + size]:
        return _BAD
    return place


def small(data: bytes, names: int, table: int, end: int, number: int, default: int) -> int:
    """The byte in a slot of a table; -1: it cannot be."""
    place = slot(data, names, table, end, number)
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


def read_set(data: bytes, begin: int, end: int, value_max: int, fields: list[int]) -> bool:
    """Read the payload from `begin` to `end`. False: it is not of the form of a run.

    `fields`: takes its traits, without vbucket, and the places and lengths of key and value.
    """
    root = target(data, begin, end)
    names = vtable(data, begin, root, end) if root >= 0 else _BAD
    if names < 0 or small(data, names, root, end, 1, _SET) != _SET:
        return False
    document = slot(data, names, root, end, 0)
    if document <= 0:
        return False
    document = target(data, document, end)
    names = vtable(data, begin, document, end) if document >= 0 else _BAD
    if names < 0:
        return False
    info = slot(data, names, document, end, 0)
    value = slot(data, names, document, end, 1)
    if info <= 0 or value <= 0:
        return False
    info = target(data, info, end)
    value = target(data, value, end)
    names = vtable(data, begin, info, end) if info >= 0 else _BAD
    if names < 0 or value < 0:
        return False
    value_bytes = little4(data, value)
    if value_bytes > end - value - 4 or value_bytes > value_max:
        return False
    key = text(data, names, info, end, 0)
    expiration = text(data, names, info, end, 2)
    datatype = small(data, names, info, end, 4, 0)
    flags = slot(data, names, info, end, 1)
    cas = slot(data, names, info, end, 5)
    if key <= 0 or expiration < 0 or flags < 0 or cas < 0 or datatype < 0 or datatype > 1:
        return False
    if small(data, names, info, end, 3, 0) or (expiration and little4(data, expiration)):
        return False
    if (flags and end - flags < 4) or (cas and end - cas < 8):
        return False
    if cas and (little4(data, cas) or little4(data, cas + 4)):
        return False
    key_bytes = little4(data, key)
    if key_bytes == 0 or key_bytes > _ID_MAX:
        return False
    for i in range(key + 4, key + 4 + key_bytes):
        if data[i] == 0:
            return False
    traits = little4(data, flags) if flags else 0
    fields[_REQ_TRAITS] = traits << 32 | datatype << 8
    fields[_REQ_KEY_AT] = key + 4
    fields[_REQ_KEY_BYTES] = key_bytes
    fields[_REQ_VALUE_AT] = value + 4
    fields[_REQ_VALUE_BYTES] = value_bytes
    return True


def take_run(
    data: bytes, at: int, count_max: int, value_max: int, found: Table, table: Table
) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, at most `count_max`.

    `value_max`: longest value; `found`: takes `RUN_NUMBERS` numbers; `table`: `WIDTH` of each
    request.
    """
    raw = data
    fields = [0] * 6
    end = len(data)
    count = loud = all_in = all_keys = all_values = 0
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
        if not read_set(raw, payload, stop, value_max, fields):
            break
        vbucket = big2(raw, place + 4)
        if count == 0:
            all_in = vbucket
        elif vbucket != all_in:
            all_in = _MIXED
        traits = fields[_REQ_TRAITS] | vbucket << 16
        if flags & 16:
            traits |= 1
        else:
            loud += 1
        row = count * _WIDTH
        table[row] = big4(raw, at + 4)
        table[row + _REQ_TRAITS] = traits
        for i in range(_REQ_KEY_AT, _REQ_VALUE_BYTES + 1):
            table[row + i] = fields[i]
        all_keys += fields[_REQ_KEY_BYTES]
        all_values += fields[_REQ_VALUE_BYTES]
        at = stop
        count += 1
    found[_RUN_STOP] = at
    found[_RUN_KEYS] = all_keys
    found[_RUN_VALUES] = all_values
    found[_RUN_LANE_AT] = lane_at
    found[_RUN_LANE_BYTES] = lane_bytes
    found[_RUN_HAS_LANE] = has_lane
    found[_RUN_LOUD] = loud
    found[_RUN_VBUCKET] = all_in
    return count


def sets(data: bytes, table: Table, count: int, out: bytearray) -> int:
    """Write the SETs of a run in `data`. Returns the bytes used of `out`, -1: it does not fit."""
    raw, to = data, out
    end = len(data)
    room = len(out)
    used = 0
    for i in range(count):
        row = i * _WIDTH
        traits = table[row + _REQ_TRAITS]
        key_at = table[row + _REQ_KEY_AT]
        key_bytes = table[row + _REQ_KEY_BYTES]
        value_at = table[row + _REQ_VALUE_AT]
        value_bytes = table[row + _REQ_VALUE_BYTES]
        if key_bytes > end or value_bytes > end:
            return _BAD
        if key_at > end - key_bytes or value_at > end - value_bytes:
            return _BAD
        if _SET_BYTES + key_bytes + value_bytes > room - used:
            return _BAD
        to[used] = 0x80
        to[used + 1] = 0x11 if traits & 1 else 0x01
        to[used + 2] = key_bytes >> 8 & 0xFF
        to[used + 3] = key_bytes & 0xFF
        to[used + 4] = 8
        to[used + 5] = traits >> 8 & 0xFF
        to[used + 6] = traits >> 24 & 0xFF
        to[used + 7] = traits >> 16 & 0xFF
        used = put4(to, put4(to, used + 8, 8 + key_bytes + value_bytes), i)
        used = put4(to, put4(to, used, 0), 0)  # the CAS
        used = put4(to, put4(to, used, traits >> 32), 0)
        used = rows.copy(raw, key_at, key_at + key_bytes, to, used)
        used = rows.copy(raw, value_at, value_at + value_bytes, to, used)
    return used


def tuples(
    data: bytes,
    table: Table,
    count: int,
    cas: int,
    out: bytearray,
    bounds: Table,
    entries: bytearray,
    entry_bounds: Table,
    first: int,
) -> int:
    """Write what a run in `data` stores, as `replication.bucket` packs it, and its entries in the
    first index.

    The CAS values begin with `cas`. Tuple i is written to `out` from bounds[first + i] to
    bounds[first + i + 1], which is set; its entry likewise. Returns where the last tuple ends, -1
    where something does not fit.
    """
    raw, to, to_entries = data, out, entries
    end = len(data)
    room = len(out)
    entries_room = len(entries)
    if first < 0 or first + count >= min(len(bounds), len(entry_bounds)):
        return _BAD
    used = bounds[first]
    entry = entry_bounds[first]
    for i in range(count):
        row = i * _WIDTH
        traits = table[row + _REQ_TRAITS]
        key_at = table[row + _REQ_KEY_AT]
        key_bytes = table[row + _REQ_KEY_BYTES]
        value_at = table[row + _REQ_VALUE_AT]
        value_bytes = table[row + _REQ_VALUE_BYTES]
        if key_bytes > end or value_bytes > end:
            return _BAD
        if key_at > end - key_bytes or value_at > end - value_bytes:
            return _BAD
        if _TUPLE_BYTES + key_bytes + value_bytes > room - used:
            return _BAD
        if 2 * key_bytes + 3 > entries_room - entry:
            return _BAD
        to[used] = 0x9A
        used = items.put_bin(raw, key_at, key_at + key_bytes, to, used + 1)
        used = rows.put_uint(to, used, traits >> 16 & 0xFFFF)
        used = items.put_bin(raw, value_at, value_at + value_bytes, to, used)
        used = rows.put_uint(to, used, traits >> 32)
        to[used] = 0x00  # expiry
        used = rows.put_uint(to, used + 1, cas + i)
        to[used] = traits >> 8 & 0x01
        to[used + 1] = 0x00
        to[used + 2] = 0xA0
        to[used + 3] = 0xC4
        to[used + 4] = 0x00
        used += 5
        bounds[first + i + 1] = used
        to_entries[entry] = keys.KEY_BINARY
        entry = keys.put_raw(raw, key_at, key_bytes, to_entries, entry + 1)
        entry_bounds[first + i + 1] = entry
    return used


def successes(table: Table, count: int, head: bytes, lsn: int, cas: int, out: bytearray) -> int:
    """Write the answers to a run that went well, those to quiet requests left out.

    `head`: an answer whose opaque, lsn, size and CAS are to be written; `lsn`, `cas`: of the first
    request, quiet or not. Returns the bytes used of `out`, -1 where they do not fit.
    """
    to, form = out, head
    size = len(head)
    room = len(out)
    used = 0
    if size < _PAYLOAD_BYTES + 8:
        return _BAD
    for i in range(count):
        row = i * _WIDTH
        if table[row + _REQ_TRAITS] & 1:
            continue
        if room - used < size:
            return _BAD
        rows.copy(form, 0, size, to, used)
        put4(to, used + 4, table[row])
        used += size
        put_little(to, used - 24, lsn + i, 8)
        put_little(to, used - 12, table[row + _REQ_VALUE_BYTES], 4)
        put_little(to, used - 8, cas + i, 8)
    return used


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

    `replies`: memcached's answers, in order, where there are any; their status is already one of
    Greenstack's.
    `lane_bytes`: -1 for no lane. `marks`: pairs of a request's number and its lsn, ascending, the
    first for number 0; those between have the lsns that follow. A number of 2^64-1 ends them.
    """
    raw, to, name, head = replies, out, lane, HEAD
    end = len(replies)
    room = len(out)
    used = at = mark = 0
    for i in range(count):
        is_quiet = table[i * _WIDTH + _REQ_TRAITS] & 1 != 0
        if end - at < _HEADER or big4(raw, at + 12) != i:
            if is_quiet:
                continue
            return _BAD
        body = big4(raw, at + 8)
        if room - used < _ANSWER_BYTES + lane_bytes or body > end - at - _HEADER:
            return _BAD
        while marks[2 * mark + 2] <= i:
            mark += 1
        status = big2(raw, at + 6)
        opaque = table[i * _WIDTH]
        if status:
            used = put_head(to, used, 0, opaque, status, name, lane_bytes)
        elif not is_quiet:
            used = put_head(to, used, _PAYLOAD_BYTES, opaque, 0, name, lane_bytes)
            for j in range(24):
                to[used + j] = head[j]
            put_little(to, used + 24, uuid, 8)
            put_little(to, used + 32, marks[2 * mark + 1] + i - marks[2 * mark], 8)
            put_little(to, used + 40, 0, 4)
            put_little(to, used + 44, table[i * _WIDTH + _REQ_VALUE_BYTES], 4)
            for j in range(8):
                to[used + 48 + j] = raw[at + 23 - j]
            used += _PAYLOAD_BYTES
        at += _HEADER + body
    return used


# --- what is pushed -------------------------------------------------------------------------------


def put_big(out: bytearray, at: int, value: int, width: int) -> int:
    """Write a number, the highest byte first. Returns where it ends. Unchecked."""
    for i in range(width):
        out[at + i] = value >> (8 * (width - 1 - i)) & 0xFF
    return at + width


def put_digits(out: bytearray | list[int], at: int, value: int, width: int) -> int:
    """Write a number in decimal. Returns where it ends. Unchecked."""
    for i in range(width):
        out[at + width - 1 - i] = 48 + value % 10
        value = value // 10
    return at + width


def put_date(out: bytearray | list[int], at: int, seconds: int) -> int:
    """Write a Unix time as `YYYY-MM-DDThh:mm:ssZ`. Returns where it ends. Unchecked.

    Days are counted from 1 March of year 0, in eras of 400 years, so that a leap day is the last
    of its year; 153 days are the five months from March on, and again.
    """
    days = seconds // 86400 + 719468
    era = days // 146097
    day = days - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day = day - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    year = year + era * 400
    month = month + 3
    if month > 12:
        month = month - 12
        year = year + 1
    seconds = seconds % 86400
    at = put_digits(out, at, year, 4)
    out[at] = 45
    at = put_digits(out, at + 1, month, 2)
    out[at] = 45
    at = put_digits(out, at + 1, day, 2)
    out[at] = 84
    at = put_digits(out, at + 1, seconds // 3600, 2)
    out[at] = 58
    at = put_digits(out, at + 1, seconds // 60 % 60, 2)
    out[at] = 58
    at = put_digits(out, at + 1, seconds % 60, 2)
    out[at] = 90
    return at + 1


def read_document(data: bytes, at: int, end: int, fields: list[int], scratch: list[int]) -> bool:
    """Read the tuple of an item from `at` to `end`. False where it is odd.

    `fields`: takes its numbers and places, those of `read_item` first; `scratch`: room for a date.
    """
    if not items.read_item(data, at, end, fields):
        return False
    stop = items.uint_stop(data, fields[_TAIL_AT], end)
    at = items.uint_stop(data, stop, end)
    compression = rows.uint(data, stop, at)
    if compression > 127:
        return False
    if compression == 0 and fields[_DATATYPE] & 2:
        compression = 1
    fields[_COMPRESSION] = compression
    fields[_DATE] = 1 if fields[_EXPIRY] else 0
    size = data[at] & 0x1F
    if fields[_EXPIRY] and size:
        if size != 20:
            return False
        put_date(scratch, 0, fields[_EXPIRY])
        for i in range(20):
            if data[at + 1 + i] != scratch[i]:
                return False
    return True


def put_start(
    out: bytearray,
    used: int,
    opaque: int,
    opcode: int,
    front: bytes,
    front_bytes: int,
    vbucket: int,
    lsn: int,
    origin: int,
    time_us: int,
    names: bytes,
    name_at: int,
    name_end: int,
) -> int:
    """Write a pushed frame up to its payload; its length is not known yet. Returns where it ends.

    `front`: the entries before the vbucket's; `names`: the bucket's entry in it. An `lsn` of 0 and
    what belongs to it is left out. Unchecked.
    """
    used = put_big(out, used + 4, opaque, 4)
    used = put_big(out, used, opcode, 2)
    out[used] = 0x12
    head = used + 1
    used = rows.copy(front, 0, front_bytes, out, head + 4)
    used = put_big(out, put_big(out, used, 0x00070002, 4), vbucket, 2)
    if lsn:
        used = put_big(out, put_big(out, used, 0x80010008, 4), lsn, 8)
        used = put_big(out, put_big(out, used, 0x80020004, 4), origin, 4)
        used = put_big(out, put_big(out, used, 0x80030008, 4), time_us, 8)
    used = rows.copy(names, name_at, name_end, out, used)
    put_big(out, head, used - head - 4, 4)
    return used


def put_text(data: bytes, start: int, stop: int, out: bytearray, at: int) -> int:
    """Write a text with its length, its NUL and what fills up to four. Unchecked."""
    put_little(out, at, stop - start, 4)
    at = rows.copy(data, start, stop, out, at + 4)
    for _ in range(4 - ((stop - start) & 3)):
        out[at] = 0
        at += 1
    return at


def put_document(data: bytes, fields: list[int], out: bytearray, used: int) -> int:
    """Write a document as `Document.encode` does. Returns where it ends. Unchecked."""
    key_end = (fields[_KEY_END] - fields[_KEY_AT] + 8) & ~3
    text_end = 28 if fields[_DATE] else 8
    at = rows.copy(DOCUMENT, 0, _DOCUMENT_BYTES, out, used)
    put_little(out, used + 40, key_end + text_end + 48, 4)
    put_little(out, used + 64, fields[_CAS], 8)
    put_little(out, used + 76, fields[_ITEM_FLAGS], 4)
    put_little(out, used + 80, key_end + 8, 4)
    out[used + 84] = fields[_COMPRESSION]
    out[used + 85] = fields[_DATATYPE] & 1
    at = put_text(data, fields[_KEY_AT], fields[_KEY_END], out, at)
    if fields[_DATE]:
        put_little(out, at, 20, 4)
        at = put_date(out, at + 4, fields[_EXPIRY])
        put_little(out, at, 0, 4)
        at += 4
    else:
        put_little(out, at, 0, 8)
        at += 8
    put_little(out, at, fields[_VALUE_END] - fields[_VALUE_AT], 4)
    return rows.copy(data, fields[_VALUE_AT], fields[_VALUE_END], out, at + 4)


def put_remove(data: bytes, fields: list[int], out: bytearray, used: int) -> int:
    """Write a removal as `encode_remove` does. Returns where it ends. Unchecked."""
    at = rows.copy(REMOVE, 0, _REMOVE_BYTES, out, used)
    put_little(out, used + 16, fields[_CAS], 8)
    put_little(out, at, fields[_KEY_END] - fields[_KEY_AT], 4)
    at = rows.copy(data, fields[_KEY_AT], fields[_KEY_END], out, at + 4)
    out[at] = 0
    return at + 1


def is_key(data: bytes, at: int, end: int, fields: list[int]) -> bool:
    """Whether the primary key from `at` to `end` is that of the item that was read last."""
    size = fields[_KEY_END] - fields[_KEY_AT]
    if end - at < 3 or data[at] != 0x91:
        return False
    start = items.bin_start(data, at + 1, end)
    if start < 0 or end - start != size:
        return False
    own = fields[_KEY_AT]
    for i in range(size):  # noqa: SIM110 - one expression would be a generator for C
        if data[start + i] != data[own + i]:
            return False
    return True


def find(spaces: Table, number: int) -> int:
    """The place of a number in ascending ones; -1: it is not there."""
    low = 0
    high = len(spaces)
    while low < high:
        middle = (low + high) // 2
        if spaces[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(spaces) and spaces[low] == number else _BAD


def microseconds(seconds: float) -> int:
    """A Unix time in microseconds; -1 where it is no date."""
    if seconds >= 0.0 and seconds < _TIME_END:
        return int(seconds * 1000000.0)
    return _BAD


def pushes(
    data: bytes,
    table: Table,
    times: memoryview[float],
    capacity: int,
    count: int,
    lsns: Table,
    spaces: Table,
    bounds: Table,
    names: bytes,
    front: bytes,
    limit: int,
    numbers: Table,
    out: bytearray,
) -> int:
    """Write the rows of a block as pushed frames, transaction by transaction. How it ended.

    `table`, `times`: the columns of `data`, and the same memory as floats; `lsns`: by replica id,
    what was had already, raised; `spaces`: the wanted ones, ascending; names[bounds[i]:
    bounds[i + 1]]: the flex entry with the name of the i-th; `front`: the entries before that of
    the vbucket. A transaction is begun only while fewer than `limit` bytes are written.
    `numbers`: the row to begin with, bytes used of `out`, the next opaque, frames written so far.
    ODD: the transaction of the row that is next is.
    """
    raw, to, before, named = data, out, front, names
    fields = [0] * 18
    saved = [0] * 32
    scratch = [0] * 24
    room = len(out)
    front_bytes = len(front)
    row = numbers[_ROW]
    used = numbers[_BYTES]
    opaque = numbers[_OPAQUE_NEXT]
    frames = numbers[_FRAMES]
    how = _DONE
    while row < count:
        if used >= limit:
            how = _STOPPED
            break
        first, start, sent = row, used, 0
        last = put = put_space = _BAD
        for i in range(_REPLICAS):
            saved[i] = lsns[i]
        has_more = True
        while has_more and row < count:
            has_more = table[_FLAGS * capacity + row] & _COMMIT == 0
            origin = table[_REPLICA_ID * capacity + row]
            lsn = table[_LSN * capacity + row]
            if origin >= _REPLICAS:
                how = _ODD
                break
            if lsn <= lsns[origin]:
                row += 1
                continue
            lsns[origin] = lsn
            space = table[_SPACE_ID * capacity + row]
            if space == _TRUNCATE:
                how = _ODD
                break
            place = find(spaces, space)
            if place < 0:
                row += 1
                continue
            kind = table[_TYPE * capacity + row]
            span = table[(_KEY if kind == _DELETE else _TUPLE) * capacity + row]
            end = span >> 32
            at = span - (span >> 32 << 32)
            time_us = microseconds(times[_TIMESTAMP * capacity + row])
            name_end = bounds[place + 1]
            is_local = origin == 0 or table[_GROUP_ID * capacity + row] == _LOCAL
            if is_local or time_us < 0 or span == 0:
                how = _ODD
                break
            if kind == _DELETE:
                if put < 0 or put_space != place or not is_key(raw, at, end, fields):
                    how = _ODD
                    break
                if fields[_CAS] == 0:
                    how = _ODD
                    break
                used = put
                opaque -= 1
                sent -= 1
            elif kind in (_INSERT, _REPLACE):
                if not read_document(raw, at, end, fields, scratch):
                    how = _ODD
                    break
            else:
                how = _ODD
                break
            if end - at + front_bytes + name_end - bounds[place] + _FRAME_ROOM > room - used:
                how = _STOPPED
                break
            last = used
            used = put_start(
                to, used, opaque, 0x0C02 if kind == _DELETE else 0x0405, before, front_bytes,
                fields[_VBUCKET], lsn, origin, time_us, named, bounds[place], name_end,
            )  # fmt: skip
            if kind == _DELETE:
                used = put_remove(raw, fields, to, used)
                put = _BAD
            else:
                used = put_document(raw, fields, to, used)
                put, put_space = last, place
            put_big(to, last, used - last - 4, 4)
            to[last + _FLAGS_AT] = 0x12 | _MORE
            opaque += 1
            sent += 1
            row += 1
        if how != _DONE:
            row, used = first, start
            opaque -= sent
            for i in range(_REPLICAS):
                lsns[i] = saved[i]
            if how == _STOPPED and used == numbers[_BYTES]:
                how = _ODD  # too large for the room there is
            break
        if last >= 0:
            to[last + _FLAGS_AT] = 0x12
        frames += sent
    numbers[_ROW] = row
    numbers[_BYTES] = used
    numbers[_OPAQUE_NEXT] = opaque
    numbers[_FRAMES] = frames
    return how


def documents(
    tuples: list[bytes],
    wanted: bytes,
    now: int,
    name: bytes,
    front: bytes,
    limit: int,
    numbers: Table,
    out: bytearray,
) -> int:
    """Write the tuples of a bucket as pushed frames of a snapshot. How it ended.

    `wanted`: one byte for each vbucket, 0 where its items are left out, as those are that are
    expired at `now`; `name`: the flex entry with the bucket's name; the rest as `pushes` has it,
    each tuple a transaction.
    """
    to, before, named, chosen = out, front, name, wanted
    fields = [0] * 18
    scratch = [0] * 24
    front_bytes = len(front)
    name_bytes = len(name)
    room = len(out)
    row = numbers[_ROW]
    used = numbers[_BYTES]
    opaque = numbers[_OPAQUE_NEXT]
    frames = numbers[_FRAMES]
    count = len(tuples)
    how = _DONE
    while row < count:
        tuple_ = tuples[row]
        item = tuple_
        size = len(tuple_)
        if not read_document(item, 0, size, fields, scratch):
            how = _ODD
            break
        if not chosen[fields[_VBUCKET]] or 0 < fields[_EXPIRY] <= now:
            row += 1
            continue
        is_large = size + front_bytes + name_bytes + _FRAME_ROOM > room - used
        if used >= limit or is_large:
            how = _ODD if used == numbers[_BYTES] and used < limit else _STOPPED
            break
        last = used
        used = put_start(
            to, used, opaque, 0x0405, before, front_bytes, fields[_VBUCKET], 0, 0, 0, named, 0,
            name_bytes,
        )  # fmt: skip
        used = put_document(item, fields, to, used)
        put_big(to, last, used - last - 4, 4)
        opaque += 1
        frames += 1
        row += 1
    numbers[_ROW] = row
    numbers[_BYTES] = used
    numbers[_OPAQUE_NEXT] = opaque
    numbers[_FRAMES] = frames
    return how
