# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Greenstack's requests: runs of them, what they store, and their answers.

Compiled or plain Python, as `wal.kernel` is. It checks lengths and tables as that does.
`greenstack.serve.runs` is its face, `pushkernel` is for what goes out; nothing else calls it.
Frames are specified in `codec`, payloads in `flat` and `messages`, tuples in
`replication.bucket.item`.

A *run* is whole requests of one lane, one behind the other, either GETs or MUTATIONs, with no flag
but flex and quiet, and with no entries but perhaps the lane and, behind it, the vbucket; each
MUTATION with operation Set or Replace, or Add without a CAS, no expiration, no compression and a
datatype of 0 or 1. What is not of that form, or is wrong in any way, ends the run. `statements`
makes changes of items of them (`replication.bucket.change`), `answers` what is told of those; the
first stops before a request of a vbucket that is not active, the second before an item that is not
written as `pack_item` does.

A client's requests are often alike: they differ in their opaque, and in what the key and the value
hold, but not in length. Then reading one again gives what reading the one before it gave, as long
as nothing that was read stood inside its key or value (`apart`): that is compared instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.bucket.kernel as bucket
import logweir.replication.greenstack.wire.pushkernel as documents
import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# How many numbers `take_run` writes: where the run stops; bytes of its keys, of its values; where
# the lane's id stands, its bytes, if there is one; how many requests are loud; the opcode of all.
RUN_NUMBERS = 8

# What is kept of each request. Traits: bit 0 quiet, 1 … 2 operation, of a GET 0, 8 … 15 datatype,
# 16 … 31 vbucket, 32 … flags.
OPAQUE, TRAITS, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, CAS, WIDTH = range(8)

# What `statements` and `answers` are given and write, and how they ended.
AT, USED, COUNT, LSN, FAILED = range(5)
DONE, NEED_STATE, NO_ROOM, ODD = range(4)

ITEM_BYTES = 64  # of a tuple, without key and value
COLUMNS, RESULTS = 13, 10  # of a statement, of what came of it: store.engine.statementkernel
_answer_head = b"\x14\0\0\0\0\0\0\0\x0c\0$\0\x1c\0\x18\0\x0c\0\x04\0\x0c\0\0\0"
"""MutationResponse with all its slots: what stands before the first number."""

ANSWER_BYTES = 77  # of an answer, without the lane's id
DOCUMENT_BYTES = 160  # of the answer to a GET so much more, without the item's tuple
(_RUN_STOP, _RUN_KEYS, _RUN_VALUES, _RUN_LANE_AT, _RUN_LANE_BYTES, _RUN_HAS_LANE) = range(6)
_RUN_LOUD, _RUN_OPCODE = 6, 7
_REQ_OPAQUE, _REQ_TRAITS, _REQ_KEY_AT, _REQ_KEY_BYTES, _REQ_VALUE_AT, _REQ_VALUE_BYTES = range(6)
_REQ_CAS = 6
_ANSWER_BYTES, _DOCUMENT_BYTES = ANSWER_BYTES, DOCUMENT_BYTES
_AT, _USED, _COUNT, _LSN, _FAILED = range(5)
_DONE, _NEED_STATE, _NO_ROOM, _ODD = range(4)
_ITEM_BYTES = ITEM_BYTES
_COLUMNS, _RESULTS = COLUMNS, RESULTS
(_FIRST, _FIRST_END, _LAST, _EXPECT, _FIELD) = (4, 5, 8, 9, 10)  # of a statement
_OLD, _OLD_END = 4, 5  # of its result
_COMPUTED, _ROW_REPLACE = 4, 3
_LOOK = 1  # bucket.change
_STATES = 1 << 16  # bucket.VBUCKETS: one byte for each
_ACTIVE = 1
_FRAME_MIN = 21  # a request whose entries are a vbucket, without payload
_ID_MAX = 250  # limits.GREENSTACK_ID_BYTES
_LANE_MAX = 255  # limits.GREENSTACK_LANE_BYTES
_MUTATION, _GET = 0x0405, 0x0406
_ADD, _SET, _REPLACE = 1, 2, 3  # messages.Operation
_BAD = -1
_WIDTH = WIDTH
_PAYLOAD_BYTES = 56

HEAD = _answer_head


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


def reach(data: bytes, names: int, table: int, widths: int) -> int:
    """Where ends what is read of a table and its vtable. `widths`: in bytes, of what is read of its
    slots, four bits each, the lowest of slot 0."""
    size = data[names] | data[names + 1] << 8
    found = max(names + size, table + 4)
    at = names + 4
    while widths and at < names + size:
        place = data[at] | data[at + 1] << 8
        found = max(found, table + place + (widths & 15))
        widths >>= 4
        at += 2
    return found


def apart(used: int, empty: int, fields: list[int]) -> bool:
    """Whether what was read ends at `used`, with key and value behind it and one another, but for
    an empty text at `empty`, in neither of them; 0: there is none."""
    first, first_bytes = fields[_REQ_KEY_AT], fields[_REQ_KEY_BYTES] + 1  # with the zero behind it
    second, second_bytes = fields[_REQ_VALUE_AT], fields[_REQ_VALUE_BYTES]
    if first > second:
        first, first_bytes, second, second_bytes = second, second_bytes, first, first_bytes
    if empty and not (
        empty + 5 <= first
        or (empty >= first + first_bytes and empty + 5 <= second)
        or empty >= second + second_bytes
    ):
        return False
    return used <= first - 4 and first_bytes <= second - 4 - first


def alike(data: bytes, one: int, other: int, stop: int, fields: list[int]) -> bool:
    """Whether the frame from `other` to `stop` differs from that at `one`, whose key and value
    stand where `fields` says, only in its opaque and in what those hold, and has no zero in its
    key. Both have the same length, and what was read of the one is `apart`."""
    step = other - one
    key = fields[_REQ_KEY_AT] + step
    value = fields[_REQ_VALUE_AT] + step
    key_end = key + fields[_REQ_KEY_BYTES]
    value_end = value + fields[_REQ_VALUE_BYTES]
    first, first_end = min(key, value), min(key_end, value_end)
    second, second_end = max(key, value), max(key_end, value_end)
    bits = 0
    for i in range(other + 8, first):
        bits |= data[i] ^ data[i - step]
    for i in range(first_end, second):
        bits |= data[i] ^ data[i - step]
    for i in range(second_end, stop):
        bits |= data[i] ^ data[i - step]
    for i in range(key, key_end):
        bits |= data[i] == 0
    return bits == 0


def read_key(data: bytes, at: int, fields: list[int]) -> bool:
    """Take the text at `at` for the key. False: it can be none."""
    key_bytes = little4(data, at)
    if key_bytes == 0 or key_bytes > _ID_MAX:
        return False
    for i in range(at + 4, at + 4 + key_bytes):
        if data[i] == 0:
            return False
    fields[_REQ_KEY_AT] = at + 4
    fields[_REQ_KEY_BYTES] = key_bytes
    return True


def read_get(data: bytes, begin: int, end: int, fields: list[int]) -> int:
    """Read the payload of a GET from `begin` to `end`. 0: it is not of the form of a run; else 1.

    `fields`: see `read_set`.
    """
    root = target(data, begin, end)
    names = vtable(data, begin, root, end) if root >= 0 else _BAD
    key = text(data, names, root, end, 0) if names >= 0 else _BAD
    if key <= 0 or not read_key(data, key, fields):
        return 0
    fields[_REQ_TRAITS] = 0
    fields[_REQ_VALUE_AT] = key
    fields[_REQ_VALUE_BYTES] = 0
    fields[_REQ_CAS] = 0
    return 1


def read_many(data: bytes, begin: int, end: int, number: int, fields: list[int]) -> int:
    """Read the id of that number of a GET_MANY, if there are so many, as `read_get` that of a GET.
    Returns how many ids there are; -1: it is not of that form."""
    root = target(data, begin, end)
    names = vtable(data, begin, root, end) if root >= 0 else _BAD
    ids = slot(data, names, root, end, 0) if names >= 0 else _BAD
    at = target(data, ids, end) if ids > 0 else _BAD
    count = little4(data, at) if at >= 0 else 0
    if count > (end - at) // 4 - 1 or number >= count:
        return count if at >= 0 and number >= count else _BAD
    at = target(data, at + 4 + 4 * number, end)
    size = end - at - 5 if at >= 0 else _BAD
    if size < 0 or little4(data, at) > size or data[at + 4 + little4(data, at)]:
        return _BAD
    return count if read_key(data, at, fields) else _BAD


def read_set(data: bytes, begin: int, end: int, value_max: int, fields: list[int]) -> int:
    """Read the payload of a MUTATION from `begin` to `end`. 0: it is not of the form of a run; else
    1, or 2 where what was read is `apart`.

    `fields`: takes its traits, without vbucket, and the places and lengths of key and value.
    """
    root = target(data, begin, end)
    names = vtable(data, begin, root, end) if root >= 0 else _BAD
    operation = small(data, names, root, end, 1, _SET) if names >= 0 else _BAD
    if operation < _ADD or operation > _REPLACE:
        return 0
    used = reach(data, names, root, 0x14)
    document = slot(data, names, root, end, 0)
    if document <= 0:
        return 0
    document = target(data, document, end)
    names = vtable(data, begin, document, end) if document >= 0 else _BAD
    if names < 0:
        return 0
    used = max(used, reach(data, names, document, 0x44))
    info = slot(data, names, document, end, 0)
    value = slot(data, names, document, end, 1)
    if info <= 0 or value <= 0:
        return 0
    info = target(data, info, end)
    value = target(data, value, end)
    names = vtable(data, begin, info, end) if info >= 0 else _BAD
    if names < 0 or value < 0:
        return 0
    value_bytes = little4(data, value)
    if value_bytes > end - value - 4 or value_bytes > value_max:
        return 0
    key = text(data, names, info, end, 0)
    expiration = text(data, names, info, end, 2)
    datatype = small(data, names, info, end, 4, 0)
    flags = slot(data, names, info, end, 1)
    cas = slot(data, names, info, end, 5)
    if key <= 0 or expiration < 0 or flags < 0 or cas < 0 or datatype < 0 or datatype > 1:
        return 0
    if small(data, names, info, end, 3, 0) or (expiration and little4(data, expiration)):
        return 0
    if (flags and end - flags < 4) or (cas and end - cas < 8):
        return 0
    fields[_REQ_CAS] = little4(data, cas) | little4(data, cas + 4) << 32 if cas else 0
    if operation == _ADD and fields[_REQ_CAS]:
        return 0
    if not read_key(data, key, fields):
        return 0
    traits = little4(data, flags) if flags else 0
    fields[_REQ_TRAITS] = traits << 32 | datatype << 8 | operation << 1
    fields[_REQ_VALUE_AT] = value + 4
    fields[_REQ_VALUE_BYTES] = value_bytes
    used = max(used, reach(data, names, info, 0x811444))
    return 2 if apart(used, expiration, fields) else 1


def take_run(
    data: bytes, at: int, count_max: int, value_max: int, found: Table, table: Table
) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, at most `count_max`.

    `value_max`: longest value; `found`: takes `RUN_NUMBERS` numbers; `table`: `WIDTH` of each
    request, of no more than it has room for.
    """
    raw = data
    fields = [0] * 7
    end = len(data)
    if at < 0 or len(found) <= _RUN_OPCODE:
        raise IndexError("take_run: no room for what is found")
    count_max = min(count_max, len(table) // _WIDTH)
    count = loud = all_keys = all_values = traits = 0
    lane_at = lane_bytes = has_lane = opcode = 0
    before = before_size = how = 0
    while count < count_max and end - at >= _FRAME_MIN:
        size = bucket.load4(raw, at)
        if size > end - at - 4 or size < _FRAME_MIN - 4:
            break
        if count == 0:
            opcode = bucket.load2(raw, at + 8)
        if bucket.load2(raw, at + 8) != opcode or (opcode != _GET and opcode != _MUTATION):
            break
        stop = at + 4 + size
        row = count * _WIDTH
        if how == 2 and size == before_size and alike(raw, before, at, stop, fields):
            fields[_REQ_KEY_AT] += at - before
            fields[_REQ_VALUE_AT] += at - before
        else:
            flags = raw[at + 10]
            entries = bucket.load4(raw, at + 11)
            if (flags & ~16) != 2 or entries < 6 or entries > stop - at - 15:
                break
            place = at + 15
            payload = place + entries
            own = 0
            own_bytes = 0
            if entries != 6:
                own_bytes = bucket.load2(raw, place + 2)
                if bucket.load2(raw, place) or entries != 10 + own_bytes or own_bytes > _LANE_MAX:
                    break
                own = 1
                place += 4 + own_bytes
            if bucket.load4(raw, place) != 0x00070002:
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
            if opcode == _GET:
                how = read_get(raw, payload, stop, fields)
            else:
                how = read_set(raw, payload, stop, value_max, fields)
            if how == 0:
                break
            traits = fields[_REQ_TRAITS] | bucket.load2(raw, place + 4) << 16 | flags >> 4
        loud += 1 - (traits & 1)
        table[row] = bucket.load4(raw, at + 4)
        table[row + _REQ_TRAITS] = traits
        for i in range(_REQ_KEY_AT, _REQ_CAS + 1):
            table[row + i] = fields[i]
        all_keys += fields[_REQ_KEY_BYTES]
        all_values += fields[_REQ_VALUE_BYTES]
        before, before_size = at, size
        at = stop
        count += 1
    found[_RUN_STOP] = at
    found[_RUN_KEYS] = all_keys
    found[_RUN_VALUES] = all_values
    found[_RUN_LANE_AT] = lane_at
    found[_RUN_LANE_BYTES] = lane_bytes
    found[_RUN_HAS_LANE] = has_lane
    found[_RUN_LOUD] = loud
    found[_RUN_OPCODE] = opcode
    return count


def statements(
    data: bytes,
    table: Table,
    stop: int,
    most: int,
    numbers: Table,
    states: bytearray,
    out: bytearray,
    columns: Table,
) -> int:
    """Make statements of the requests of a run up to number `stop`, of `most` of them at most.
    Returns how it ended.

    `numbers`: the next request; bytes used of `out`; statements made so far. `states`: one byte for
    each vbucket, 0: not asked yet, else its state, 255 if there is none. `columns`: takes `COLUMNS`
    numbers of each statement; all zeros behind those that there are.
    """
    raw, to, known = data, out, states
    end = len(data)
    room = len(out)
    if len(numbers) <= _COUNT or len(states) < _STATES or stop > len(table) // _WIDTH:
        raise IndexError("statements: a table is too short")
    at = numbers[_AT]
    used = numbers[_USED]
    count = numbers[_COUNT]
    if at < 0 or used < 0 or used > room or at > stop or count < 0 or count > len(columns):
        raise IndexError("statements: numbers beyond their buffers")
    how = _DONE
    while at < stop and most:
        row = at * _WIDTH
        traits = table[row + _REQ_TRAITS]
        vbucket = traits >> 16 & 0xFFFF
        if known[vbucket] != _ACTIVE:
            how = _NEED_STATE if known[vbucket] == 0 else _ODD
            break
        key_at = table[row + _REQ_KEY_AT]
        key_bytes = table[row + _REQ_KEY_BYTES]
        value_at = table[row + _REQ_VALUE_AT]
        value_bytes = table[row + _REQ_VALUE_BYTES]
        if key_bytes > end or value_bytes > end:
            raise IndexError("statements: a part of a request")
        if key_at > end - key_bytes or value_at > end - value_bytes:
            raise IndexError("statements: a part of a request")
        column = count * _COLUMNS
        if _ITEM_BYTES + key_bytes + value_bytes > room - used or column + _COLUMNS > len(columns):
            how = _NO_ROOM
            break
        columns[column] = _ROW_REPLACE
        columns[column + _FIRST] = used
        to[used] = 0x9A
        used = bucket.put_bin(raw, key_at, key_at + key_bytes, to, used + 1)
        used = rows.put_uint(to, used, vbucket)
        used = bucket.put_bin(raw, value_at, value_at + value_bytes, to, used)
        used = rows.put_uint(to, used, traits >> 32)
        to[used] = 0x00
        used = rows.put_uint(to, used + 1, table[row + _REQ_CAS])
        to[used] = traits >> 8 & 0xFF  # 0 or 1
        to[used + 1] = 0x00
        to[used + 2] = 0xA0
        to[used + 3] = 0xC4
        to[used + 4] = 0x00
        used += 5
        columns[column + _FIRST_END] = used
        columns[column + _LAST] = 1
        columns[column + _EXPECT] = _COMPUTED
        operation = traits >> 1 & 3
        if operation == 0:
            columns[column + _FIELD] = _LOOK
        else:
            columns[column + _FIELD] = 3 if operation == _ADD else 2 if operation == _SET else 4
        count += 1
        at += 1
        most -= 1
    numbers[_AT] = at
    numbers[_USED] = used
    numbers[_COUNT] = count
    return how


def put_head(
    out: bytearray,
    used: int,
    size: int,
    opaque: int,
    opcode: int,
    status: int,
    lane: bytes,
    lane_bytes: int,
) -> int:
    """Write the begin of an answer of a payload of `size` bytes. `lane_bytes`: -1 for no lane."""
    extra = 8 + lane_bytes if lane_bytes >= 0 else 0
    used = bucket.put4(out, bucket.put4(out, used, 9 + extra + size), opaque)
    out[used] = opcode >> 8
    out[used + 1] = opcode & 0xFF
    out[used + 2] = 3 if lane_bytes >= 0 else 1
    out[used + 3] = status >> 8
    out[used + 4] = status & 0xFF
    used += 5
    if lane_bytes >= 0:
        used = bucket.put4(out, bucket.put4(out, used, 4 + lane_bytes), lane_bytes)
        for i in range(lane_bytes):
            out[used] = lane[i]
            used += 1
    return used


def status_of(code: int) -> int:
    """Greenstack's status (`codec.Status`) of what became of an item (`bucket.change`)."""
    if code == 1:
        return 0x08
    if code == 2:
        return 0x0D
    return 0x0E if code == 3 else 0x02


def answers(
    table: Table,
    stop: int,
    numbers: Table,
    results: Table,
    made: bytes,
    lane: bytes,
    lane_bytes: int,
    uuid: int,
    out: bytearray,
) -> int:
    """Write the answers to the requests of a run up to number `stop`, as far as their statements
    were executed. Returns how it ended: `ODD` before an item that is not as `pack_item` writes it.

    `numbers`: the next request; bytes used of `out`; the number of its statement; the lsn of the
    last row; how many have failed. `made`: the bytes in which `results` point; `lane_bytes`: -1 for
    no lane.
    """
    to, name, head, tuples = out, lane, HEAD, made
    fields = [0] * 20
    scratch = [0] * 24
    room = len(out)
    end = len(made)
    if len(numbers) <= _FAILED or stop > len(table) // _WIDTH or not -1 <= lane_bytes <= len(lane):
        raise IndexError("answers: a table is too short")
    at = numbers[_AT]
    used = numbers[_USED]
    number = numbers[_COUNT]
    if at < 0 or used < 0 or number < 0 or used > room:
        raise IndexError("answers: numbers beyond their buffers")
    total = len(results) // _RESULTS
    how = _DONE
    while at < stop and number < total:
        if room - used < _ANSWER_BYTES + lane_bytes:
            how = _NO_ROOM
            break
        row = number * _RESULTS
        opaque = table[at * _WIDTH]
        traits = table[at * _WIDTH + _REQ_TRAITS]
        opcode = _MUTATION if traits >> 1 & 3 else _GET
        status = results[row]
        if status:
            status = 0x84 if status == 1 else status_of(results[row + 1])
            used = put_head(to, used, 0, opaque, opcode, status, name, lane_bytes)
            numbers[_FAILED] += 1
        elif opcode == _GET:
            start, close = results[row + _OLD], results[row + _OLD_END]
            if start > close or close > end:
                raise IndexError("answers: a tuple beyond its buffer")
            if documents.document_end(tuples, start, close, fields, scratch) != close:
                how = _ODD
                break
            if room - used - _ANSWER_BYTES - lane_bytes < _DOCUMENT_BYTES + close - start:
                how = _NO_ROOM
                break
            if not traits & 1:
                first = used
                used = put_head(to, used, 0, opaque, _GET, 0, name, lane_bytes)
                used = documents.put_whole(tuples, fields, to, used)
                bucket.put4(to, first, used - first - 4)
        else:
            numbers[_LSN] += 1
            if not traits & 1:
                used = put_head(to, used, _PAYLOAD_BYTES, opaque, opcode, 0, name, lane_bytes)
                for j in range(24):
                    to[used + j] = head[j]
                documents.put_little(to, used + 24, uuid, 8)
                documents.put_little(to, used + 32, numbers[_LSN], 8)
                documents.put_little(to, used + 40, 0, 4)
                documents.put_little(to, used + 44, table[at * _WIDTH + _REQ_VALUE_BYTES], 4)
                documents.put_little(to, used + 48, results[row + 2], 8)
                used += _PAYLOAD_BYTES
        number += 1
        at += 1
    numbers[_AT] = at
    numbers[_USED] = used
    numbers[_COUNT] = number
    return how
