# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of memcached and TAP: runs of commands, and items as packets of a stream.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `replication.tap.runs` is its face; nothing
else calls it. Packets are specified in `replication.tap.codec`, what commands do in
`replication.tap.commands`, tuples in `replication.bucket`,
what reads and writes them in `replication.bucketkernel`.

A *run* is whole, well-formed requests one behind the other: GET, SET, ADD, REPLACE, DELETE with
their quiet and K forms, and NOOP. What is not of that form ends the run and goes the ordinary way,
also if it is merely odd. `execute` stops before a request that needs more than it knows: a vbucket
that is not active, an item that is expired, of another vbucket or not written as `pack_item` does,
a key that LMDB would not take as it is. Every number is an unsigned 64-bit one.

Nothing here recurses or believes a length: every read and write is checked against the ends of its
buffer first, since the compiled one would not notice. A table of the caller's own that is too short
is an `IndexError`, and nothing else raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import logweir.replication.bucketkernel as bucket
import logweir.store.schema.kernel as keys
import logweir.wal.kernel as rows
from logweir.replication.tap.codec import TEXTS, Status

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `take_run` writes.
RUN_STOP, RUN_CHANGES, RUN_BYTES = range(3)

# What `execute` reads and writes.
AT, ANSWERS, BODIES, ROWS, NOW, CAS = range(6)

# How `execute` ended.
DONE, NEED_STATE, NO_ROOM, ODD = range(4)

# Kinds of rows that `execute` writes.
PUT, TOMBSTONE, REMOVAL = range(3)

ITEM_BYTES = 64  # of a tuple, or of the rows of a removal, without keys and values

# The same for C, which alone then sees them.
_RUN_STOP, _RUN_CHANGES, _RUN_BYTES = range(3)
_AT, _ANSWERS, _BODIES, _ROWS, _NOW, _CAS = range(6)
_DONE, _NEED_STATE, _NO_ROOM, _ODD = range(4)
_PUT, _TOMBSTONE, _REMOVAL = range(3)
_ITEM_BYTES = ITEM_BYTES

_GET, _SET, _ADD, _REPLACE, _DELETE, _NOOP = range(1, 7)
_HEADER = 24
_KEY_MAX = 250  # limits.TAP_KEY_BYTES
_STATES = 1 << 16  # bucket.VBUCKETS: one byte for each
_SCRATCH = 600  # an index entry of any key of `_KEY_MAX` bytes fits behind that of its vbucket
_ENTRY_MAX = 509  # longest entry of an index that the state keeps as it is
_PLACE = 9  # of the second index's entry before the key's: the vbucket
_ACTIVE = 1
_MISSING, _EXISTS = 1, 2  # Status
_PRIVATE, _AGE = 9, 2  # bytes, and the last of them where they are made here

_kind_of = bytearray(256)
_quiet_of = bytearray(256)
for _opcode, _quiet, _kind in (
    *((0x00, 0x09, _GET), (0x0C, 0x0D, _GET), (0x01, 0x11, _SET), (0x02, 0x12, _ADD)),
    *((0x03, 0x13, _REPLACE), (0x04, 0x14, _DELETE), (0x0A, 0x0A, _NOOP)),
):
    _kind_of[_opcode] = _kind_of[_quiet] = _kind
    _quiet_of[_quiet] = 1
_kinds = bytes(_kind_of)
_quiets = bytes(_quiet_of)
KINDS = _kinds
QUIETS = _quiets
_missing_text = TEXTS[Status.NOT_FOUND]
_exists_text = TEXTS[Status.EXISTS]
TEXT_BYTES = len(_exists_text)
_MISSING_BYTES = len(_missing_text)
_EXISTS_BYTES = len(_exists_text)
MISSING_TEXT = _missing_text
EXISTS_TEXT = _exists_text

# What `bucketkernel.item_end` finds of an item.
(_VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
(_FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL) = range(10, 16)
(_COMPRESSION, _DATE_AT) = (16, 17)


def take_run(data: bytes, at: int, most: int, value_max: int, found: Table) -> int:
    """Find the run that begins at `at`. Returns how many requests it has, at most `most`.

    `value_max`: longest value; `found`: takes where the run stops, how many requests may change
    something, and the bytes of their keys and values.
    """
    raw = data
    end = len(data)
    count = changes = size = 0
    if at < 0 or len(found) <= _RUN_BYTES:
        raise IndexError("take_run: no room for what is found")
    while count < most and end - at >= _HEADER and raw[at] == 0x80:
        kind = KINDS[raw[at + 1]]
        key_bytes = bucket.load2(raw, at + 2)
        extras_bytes = raw[at + 4]
        body = bucket.load4(raw, at + 8)
        if kind == 0 or body > end - at - _HEADER or extras_bytes + key_bytes > body:
            break
        if kind == _NOOP:
            if body:
                break
        else:
            if key_bytes == 0 or key_bytes > _KEY_MAX:
                break
            if kind in (_GET, _DELETE):
                if body != key_bytes:
                    break
            elif extras_bytes != 8 or body - 8 - key_bytes > value_max:
                break
            if kind != _GET:
                changes += 1
                size += body
        at += _HEADER + body
        count += 1
    found[_RUN_STOP] = at
    found[_RUN_CHANGES] = changes
    found[_RUN_BYTES] = size
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


def put_refusal(out: bytearray, at: int, opcode: int, status: int, opaque: int) -> int:
    """Write the answer that there is no such item, or that it is there. Unchecked."""
    if status == _MISSING:
        at = put_answer(out, at, opcode, status, opaque, 0, _MISSING_BYTES)
        return rows.copy(MISSING_TEXT, 0, _MISSING_BYTES, out, at)
    at = put_answer(out, at, opcode, status, opaque, 0, _EXISTS_BYTES)
    return rows.copy(EXISTS_TEXT, 0, _EXISTS_BYTES, out, at)


def put_item(
    out: bytearray, at: int, opcode: int, opaque: int, item: bytes, fields: list[int]
) -> int:
    """Write the answer to GET that holds an item. Unchecked."""
    head = at
    key_bytes = 0
    if opcode >= 0x0C:
        key_bytes = fields[_KEY_END] - fields[_KEY_AT]
    body = 4 + key_bytes + (fields[_VALUE_END] - fields[_VALUE_AT])
    at = put_answer(out, at, opcode, 0, opaque, fields[_ITEM_CAS], body)
    bucket.put2(out, head + 2, key_bytes)
    out[head + 4] = 4
    out[head + 5] = fields[_DATATYPE]
    at = bucket.put4(out, at, fields[_FLAGS])
    if key_bytes:
        at = rows.copy(item, fields[_KEY_AT], fields[_KEY_END], out, at)
    return rows.copy(item, fields[_VALUE_AT], fields[_VALUE_END], out, at)


def put_new(
    data: bytes, at: int, key_bytes: int, body: int, now: int, cas: int, out: bytearray, used: int
) -> int:
    """Write the tuple that the request at `at` stores. Returns where it ends. Unchecked."""
    key_at = at + _HEADER + 8
    expiry = bucket.load4(data, at + 28)
    if 0 < expiry <= 2592000:  # bucket.RELATIVE_SECONDS
        expiry += now
    out[used] = 0x9A
    used = bucket.put_bin(data, key_at, key_at + key_bytes, out, used + 1)
    used = rows.put_uint(out, used, bucket.load2(data, at + 6))
    used = bucket.put_bin(data, key_at + key_bytes, at + _HEADER + body, out, used)
    used = rows.put_uint(out, used, bucket.load4(data, at + 24))
    used = rows.put_uint(out, used, expiry)
    used = rows.put_uint(out, used, cas)
    used = rows.put_uint(out, used, data[at + 5])
    out[used] = 0x00
    out[used + 1] = 0xA0
    out[used + 2] = 0xC4
    out[used + 3] = 0x00
    return used + 4


def put_tombstone(
    item: bytes, end: int, fields: list[int], cas: int, out: bytearray, used: int
) -> int:
    """Write the tombstone of an item of `end` bytes. Returns where it ends. Unchecked."""
    out[used] = 0x9A  # it may go as far as what is written here
    used = rows.copy(item, 1, fields[_HEAD_END], out, used + 1)
    out[used] = 0xC4
    out[used + 1] = 0x00
    used = rows.copy(item, fields[_FLAGS_AT], fields[_FLAGS_END], out, used + 2)
    out[used] = 0x00
    used = rows.put_uint(out, used + 1, cas)
    return rows.copy(item, fields[_TAIL_AT], fields[_META_END], out, used)


def verdict(kind: int, wanted: int, is_there: bool, cas: int) -> int:
    """The status of a change. `wanted`: CAS of the request; `cas`: of the item that is there."""
    if not is_there:
        return _MISSING if wanted or kind in (_REPLACE, _DELETE) else 0
    if wanted:
        return 0 if wanted == cas else _EXISTS
    return _EXISTS if kind == _ADD else 0


def execute(
    data: bytes,
    stop: int,
    numbers: Table,
    states: bytearray,
    get: Callable[[bytes], bytes | None],
    latest: dict[bytes, bytes | None] | None,
    born: dict[bytes, bytes] | None,
    gone: dict[bytes, bytes] | None,
    scratch: bytearray,
    answers: bytearray,
    bodies: bytearray,
    bounds: Table,
    kinds: bytearray,
) -> int:
    """Run the requests of a run up to `stop`. Returns how it ended.

    `numbers`: where the next request begins; bytes used of `answers` and `bodies`; rows made so
    far; the time, in whole Unix seconds; the next CAS. `states`: one byte for each vbucket, 0: not
    asked yet, else its state, 255 if there is none; `get(entry)`: the tuple with that
    entry in the first index; `scratch`: room for `_PLACE` and two entries. `latest`: what the run
    has changed so far, tuple or None by entry; `born`, `gone`: by entry in the first index the
    entry in the second of what it has made and removed; all None: the run changes nothing.

    Row i stands in `bodies` from bounds[i] to bounds[i + 1], of kind kinds[i]: the tuple of a put
    or tombstone, the key of a removal. All have room for 2 rows for each request.
    """
    raw, out, to, place = data, answers, bodies, scratch
    fields = [0] * 18
    known = states
    if len(numbers) <= _CAS:
        raise IndexError("execute: a table is too short")
    at = numbers[_AT]
    said = numbers[_ANSWERS]
    used = numbers[_BODIES]
    row = numbers[_ROWS]
    cas = numbers[_CAS]
    now = numbers[_NOW]
    room = len(answers)
    bodies_room = len(bodies)
    how = _DONE
    if len(states) < _STATES or len(scratch) < _SCRATCH or at < 0 or stop > len(data):
        raise IndexError("execute: a table is too short")
    if said < 0 or used < 0 or row < 0 or used > bodies_room:
        raise IndexError("execute: numbers beyond their buffers")
    place[0] = keys.KEY_POSITIVE
    place[_PLACE] = keys.KEY_BINARY
    while at < stop:
        if stop - at < _HEADER:
            raise IndexError("execute: a part of a request")
        opcode = raw[at + 1]
        kind = KINDS[opcode]
        body = bucket.load4(raw, at + 8)
        if body > stop - at - _HEADER or bucket.load2(raw, at + 2) + raw[at + 4] > body:
            raise IndexError("execute: a part of a request")
        opaque = bucket.load4(raw, at + 12)
        if room - said < _HEADER + _KEY_MAX + 32:
            how = _NO_ROOM
            break
        if kind == _NOOP:
            said = put_answer(out, said, opcode, 0, opaque, 0, 0)
            at += _HEADER
            continue
        vbucket = bucket.load2(raw, at + 6)
        if known[vbucket] != _ACTIVE:
            how = _NEED_STATE if known[vbucket] == 0 else _ODD
            break
        key_bytes = bucket.load2(raw, at + 2)
        has_item = kind in (_SET, _ADD, _REPLACE)
        if kind == 0 or key_bytes > _KEY_MAX or (has_item and raw[at + 4] != 8):
            how = _ODD  # `take_run` gives no such one
            break
        key_at = at + _HEADER + raw[at + 4]
        bucket.put8(place, 1, vbucket)
        end = keys.put_raw(raw, key_at, key_bytes, place, _PLACE + 1)
        if end > _ENTRY_MAX:
            how = _ODD
            break
        entry = bucket.piece(place, _PLACE, end)
        is_known = latest is not None and entry in latest
        old = latest[entry] if latest is not None and is_known else get(entry)
        old_bytes = 0
        item = raw
        if old is not None:
            tuple_ = old
            item = tuple_
            old_bytes = len(tuple_)
            if (
                not bucket.read_item(item, 0, old_bytes, fields)
                or fields[_VBUCKET] != vbucket
                or 0 < fields[_EXPIRY] <= now
            ):
                how = _ODD
                break
        if kind == _GET:
            if old is not None:
                if room - said < _HEADER + 4 + old_bytes:
                    how = _NO_ROOM
                    break
                said = put_item(out, said, opcode, opaque, item, fields)
            elif opcode == 0x00:
                said = put_refusal(out, said, opcode, _MISSING, opaque)
            elif opcode == 0x0C:
                head = said
                said = put_answer(out, said, opcode, _MISSING, opaque, 0, key_bytes)
                bucket.put2(out, head + 2, key_bytes)
                said = rows.copy(raw, key_at, key_at + key_bytes, out, said)
            at += _HEADER + body
            continue
        if latest is None or born is None or gone is None:
            how = _ODD
            break
        status = verdict(kind, rows.load(raw, at + 16, 8), old is not None, fields[_ITEM_CAS])
        if status:
            said = put_refusal(out, said, opcode, status, opaque)
            at += _HEADER + body
            continue
        if bodies_room - used < _ITEM_BYTES + body + (old_bytes if kind == _DELETE else 0):
            how = _NO_ROOM
            break
        if row + 2 > len(kinds) or row + 2 >= len(bounds):
            raise IndexError("execute: no room for its rows")
        if kind == _DELETE:
            if cas == fields[_ITEM_CAS]:
                cas += 1
            used = put_tombstone(item, old_bytes, fields, cas, to, used)
            kinds[row] = _TOMBSTONE
            bounds[row + 1] = used
            to[used] = 0x91
            used = bucket.put_bin(raw, key_at, key_at + key_bytes, to, used + 1)
            kinds[row + 1] = _REMOVAL
            bounds[row + 2] = used
            row += 2
            latest[entry] = None
            if entry in born:
                del born[entry]
            else:
                gone[entry] = bucket.piece(place, 0, end)
        else:
            start = used
            used = put_new(raw, at, key_bytes, body, now, cas, to, used)
            kinds[row] = _PUT
            bounds[row + 1] = used
            row += 1
            latest[entry] = bucket.piece(to, start, used)
            if old is None:
                born[entry] = bucket.piece(place, 0, end)
        if not QUIETS[opcode]:
            said = put_answer(out, said, opcode, 0, opaque, 0 if kind == _DELETE else cas, 0)
        cas += 1
        at += _HEADER + body
    numbers[_AT] = at
    numbers[_ANSWERS] = said
    numbers[_BODIES] = used
    numbers[_ROWS] = row
    numbers[_CAS] = cas
    return how


def mutations(
    items: list[bytes],
    first: int,
    wanted: bytes,
    now: int,
    form: int,
    numbers: Table,
    out: bytearray,
    ends: Table,
) -> int:
    """Write the items from number `first` on as TAP_MUTATION. Returns the number of the first that
    is not done: it is odd, does not fit, or there are enough.

    `wanted`: one byte for each vbucket, not 0 where its items are sent; what is expired at `now`
    is left out. `form`: bit 0: values are left out, bit 1: item flags in network order, bit 2: with
    private bytes: the item's own if they are 9, else its CAS and an age. `numbers`: bytes used of
    `out`, the last opaque, packets written so far; then how many may be written, and how many bytes
    all of them but the last. `ends`: takes where each packet ends and the number of its item.
    """
    to, chosen = out, wanted
    fields = [0] * 18
    room = len(out)
    if len(numbers) < 5 or len(wanted) < _STATES:
        raise IndexError("mutations: a table is too short")
    at = numbers[0]
    opaque = numbers[1]
    sent = numbers[2]
    most = numbers[3]
    room_but_last = numbers[4]
    last = at
    count = len(items)
    row = first
    if at < 0 or row < 0:
        raise IndexError("mutations: numbers beyond their buffers")
    while row < count:
        tuple_ = items[row]
        item = tuple_
        size = len(tuple_)
        if not bucket.read_item(item, 0, size, fields) or size + 64 > room - at:
            break
        if sent >= most or (sent > 0 and last >= room_but_last) or len(ends) // 2 <= sent:
            break
        row += 1
        if not chosen[fields[_VBUCKET]] or 0 < fields[_EXPIRY] <= now or not fields[_TTL]:
            continue
        key_bytes = fields[_KEY_END] - fields[_KEY_AT]
        value_bytes = 0 if form & 1 else fields[_VALUE_END] - fields[_VALUE_AT]
        private_bytes = _PRIVATE if form & 4 else 0
        last = at
        opaque = opaque + 1 if (opaque + 1) >> 32 == 0 else 1
        to[at] = 0x80
        to[at + 1] = 0x41
        at = bucket.put2(to, at + 2, key_bytes)
        to[at] = 16
        to[at + 1] = fields[_DATATYPE]
        at = bucket.put2(to, at + 2, fields[_VBUCKET])
        at = bucket.put4(to, at, 16 + private_bytes + key_bytes + value_bytes)
        at = bucket.put4(to, at, opaque)
        at = bucket.put8(to, at, fields[_ITEM_CAS])
        at = bucket.put2(to, at, private_bytes)
        at = bucket.put2(to, at, (form & 1) << 1 | (form & 2) << 1)
        at = bucket.put4(to, at, fields[_TTL] << 24)
        flags = fields[_FLAGS]
        if not form & 2:
            flags = flags >> 24 | flags >> 8 & 0xFF00 | (flags & 0xFF00) << 8 | (flags & 0xFF) << 24
        at = bucket.put4(to, at, flags)
        at = bucket.put4(to, at, fields[_EXPIRY])
        if private_bytes:
            if fields[_META_END] - fields[_META_AT] == _PRIVATE:
                at = rows.copy(item, fields[_META_AT], fields[_META_END], to, at)
            else:
                at = bucket.put8(to, at, fields[_ITEM_CAS])
                to[at] = _AGE
                at += 1
        at = rows.copy(item, fields[_KEY_AT], fields[_KEY_END], to, at)
        if value_bytes:
            at = rows.copy(item, fields[_VALUE_AT], fields[_VALUE_END], to, at)
        ends[2 * sent] = at
        ends[2 * sent + 1] = row - 1
        sent += 1
    numbers[0] = at
    numbers[1] = opaque
    numbers[2] = sent
    return row


def touched(items: list[bytes], wanted: bytes, table: bytearray) -> int:
    """Set the byte in `table` of each vbucket of which `mutations` would send an item. Returns how
    many items were looked at: all, or those before the first that is odd."""
    chosen, to = wanted, table
    fields = [0] * 18
    count = len(items)
    row = 0
    if len(table) < _STATES or len(wanted) < _STATES:
        raise IndexError("touched: a table is too short")
    while row < count:
        tuple_ = items[row]
        item = tuple_
        if not bucket.read_item(item, 0, len(tuple_), fields):
            break
        if chosen[fields[_VBUCKET]] and fields[_TTL]:
            to[fields[_VBUCKET]] = 1
        row += 1
    return row
