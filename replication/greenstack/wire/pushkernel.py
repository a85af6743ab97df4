# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Greenstack's streams: rows and tuples as pushed frames.

Compiled or plain Python, as `wal.kernel` is. It checks lengths and tables as that does.
`greenstack.push.pushing` is its face; `kernel` has it write the documents of answers; nothing else
calls it. Frames are specified in `codec` and `stream`, payloads in `messages`, tuples in
`replication.bucket.item`.

What is pushed are rows of the log (`pushes`) or tuples (`documents`). Of the log, whole
transactions of INSERT, REPLACE, and of REPLACE by a tombstone with its DELETE behind it. Whatever
else is done to a wanted space, or is not as `pack_item` writes it, is *odd*: its transaction goes
the ordinary way, all before it being written.

Most rows differ from the one before in lsn and tuple only. The first of such rows is the *model*:
what has the same bytes before the tuple, but those of the lsn, reads the same, and its frame
begins as the model's does but for some numbers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import logweir.replication.bucket.kernel as items
import logweir.replication.stream.kernel as models
import logweir.wal.kernel as rows
from logweir.replication.greenstack.wire.messages import DOCUMENT_HEAD, REMOVE_HEAD

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `pushes` and `documents` read and write, and how they ended.
AT, BYTES, OPAQUE_NEXT, FRAMES = range(4)
DONE, STOPPED, ODD = range(3)

_BAD = -1
_AT, _BYTES, _OPAQUE_NEXT, _FRAMES = range(4)
_DONE, _STOPPED, _ODD = range(3)
_INSERT, _REPLACE, _DELETE = 2, 3, 5  # wal.xrow.RowType
_TRUNCATE = 330  # store.definition.SystemSpace
_COMMIT = 1
_LOCAL = 1
_REPLICAS = 32
_VBUCKETS = 1 << 16
_ONES = 2**64 - 1
_FRAME_ROOM = 320  # of a pushed frame, without its names, key and value
_MORE = 8
_FLAGS_AT = 10  # of a frame
_FRONT_AT = 15  # of a frame with flex entries: the first of them
_TIME_END = 9.0e12  # seconds; a time that is no date is not for C to make a number of
_document_head = DOCUMENT_HEAD
_DOCUMENT_BYTES = len(DOCUMENT_HEAD)
_remove_head = REMOVE_HEAD
_REMOVE_BYTES = len(REMOVE_HEAD)
DOCUMENT = _document_head
REMOVE = _remove_head

# Fields of `wal.kernel`, and what `bucket.kernel.item_end` finds.
(_TYPE, _REPLICA_ID, _GROUP_ID, _LSN, _TIMESTAMP, _TSN, _FLAGS) = range(7)
(_SPACE_ID, _INDEX_BASE, _ROW_OFFSET, _BODY_OFFSET, _KEY, _TUPLE) = range(7, 13)
(_VBUCKET, _ITEM_FLAGS, _EXPIRY, _CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
(_COMPRESSION, _DATE_AT) = (16, 17)
_DATE = 19  # what `document_end` adds: whether the expiry is sent as a date

# What a row of the log is here.
_SKIPPED, _PUT, _REMOVED, _STRANGE = range(4)

# Of which replica ids the lsns are kept that were had before a transaction.
_NOTHING, _ONE, _ALL = range(3)


def _as_float(bits: int) -> float:
    number: float = struct.unpack("d", struct.pack("Q", bits))[0]
    return number


# The float that has these 64 bits; compiled, `as_float` is C: see pushkernel.pxd.
globals()["as_float"] = _as_float


def put_big(out: bytearray, at: int, value: int, width: int) -> int:
    """Write a number, the highest byte first. Returns where it ends. Unchecked."""
    for i in range(width):
        out[at + i] = value >> (8 * (width - 1 - i)) & 0xFF
    return at + width


def put_little(out: bytearray, at: int, value: int, width: int) -> None:
    """Write a number, the lowest byte first. Unchecked."""
    for i in range(width):
        out[at + i] = value >> (8 * i) & 0xFF


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


def document_end(data: bytes, at: int, end: int, fields: list[int], scratch: list[int]) -> int:
    """Read the tuple of an item that begins at `at`. Returns where it ends; -1 where it is odd.

    `fields`: takes its numbers and places, those of `item_end` first; `scratch`: room for a date.
    """
    stop = items.item_end(data, at, end, fields)
    if stop < 0 or fields[_COMPRESSION] > 127:
        return _BAD
    if fields[_COMPRESSION] == 0 and fields[_DATATYPE] & 2:
        fields[_COMPRESSION] = 1
    fields[_DATE] = 0
    if fields[_EXPIRY]:
        fields[_DATE] = 1
        at = fields[_DATE_AT]
        size = data[at] & 0x1F
        if size:
            if size != 20:
                return _BAD
            put_date(scratch, 0, fields[_EXPIRY])
            for i in range(20):
                if data[at + 1 + i] != scratch[i]:
                    return _BAD
    return stop


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
    """Write a document as `Document.encode` does. Its `DOCUMENT_HEAD` stands at `used`; numbers are
    filled in there. Returns where it ends. Unchecked."""
    key_end = (fields[_KEY_END] - fields[_KEY_AT] + 8) & ~3
    text_end = 28 if fields[_DATE] else 8
    at = used + _DOCUMENT_BYTES
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


def put_whole(data: bytes, fields: list[int], out: bytearray, used: int) -> int:
    """Write a document with its `DOCUMENT_HEAD`. Returns where it ends. Unchecked."""
    used = rows.copy(DOCUMENT, 0, _DOCUMENT_BYTES, out, used) - _DOCUMENT_BYTES
    return put_document(data, fields, out, used)


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


def is_chosen(
    data: bytes, fields: list[int], prefix: bytes, prefix_bytes: int, wanted: bytes
) -> bool:
    """Whether the item that was read last is of a wanted vbucket, and its key begins so."""
    own = fields[_KEY_AT]
    if not wanted[fields[_VBUCKET]] or fields[_KEY_END] - own < prefix_bytes:
        return False
    for i in range(prefix_bytes):  # noqa: SIM110 - one expression would be a generator for C
        if data[own + i] != prefix[i]:
            return False
    return True


def microseconds(seconds: float) -> int:
    """A Unix time in microseconds; -1 where it is no date."""
    if seconds >= 0.0 and seconds < _TIME_END:
        return int(seconds * 1000000.0)
    return _BAD


def nature(row: list[int], bucket: int) -> int:
    """What a row is here, but for its tuple. `row`: its fields; `bucket`: its space's place in the
    wanted ones, -1: it is not among them."""
    kind = row[_TYPE]
    if row[_SPACE_ID] == _TRUNCATE:
        return _STRANGE
    if bucket < 0:
        return _SKIPPED
    if row[_REPLICA_ID] == 0 or row[_GROUP_ID] == _LOCAL:
        return _STRANGE
    if kind in (_INSERT, _REPLACE):
        return _PUT if row[_TUPLE] else _STRANGE
    return _REMOVED if kind == _DELETE and row[_KEY] else _STRANGE


def save(lsns: Table, saved: list[int], has_more: bool, origin: int) -> int:
    """Keep the lsns that the rows of a transaction may raise. Returns of which replica ids."""
    if not has_more:
        saved[origin] = lsns[origin]
        return _ONE
    for i in range(_REPLICAS):
        saved[i] = lsns[i]
    return _ALL


def restore(lsns: Table, saved: list[int], kept: int, origin: int) -> None:
    """Set back what was kept."""
    if kept == _ALL:
        for i in range(_REPLICAS):
            lsns[i] = saved[i]
    elif kept == _ONE:
        lsns[origin] = saved[origin]


def begin(
    lsns: Table, spaces: Table, bounds: Table, names: bytes, wanted: bytes, numbers: Table
) -> int:
    """Check the tables that `pushes` is given. Returns where it is to begin."""
    if len(wanted) < _VBUCKETS:
        raise IndexError("pushes: a table is too short")
    if len(numbers) <= _FRAMES or len(lsns) < _REPLICAS or len(bounds) <= len(spaces):
        raise IndexError("pushes: a table is too short")
    if numbers[_AT] >> 62 or numbers[_BYTES] >> 62:
        raise IndexError("pushes: numbers beyond their buffers")
    size = len(names)
    for i in range(len(spaces)):
        if bounds[i] > bounds[i + 1] or bounds[i + 1] > size:
            raise IndexError("pushes: a name beyond the names")
    return numbers[_AT]


def pushes(
    data: bytes,
    lsns: Table,
    spaces: Table,
    bounds: Table,
    names: bytes,
    wanted: bytes,
    prefix: bytes,
    keys_only: bool,
    front: bytes,
    limit: int,
    numbers: Table,
    out: bytearray,
) -> int:
    """Write the rows of a block as pushed frames, transaction by transaction. How it ended.

    `data`: the block's bytes; `lsns`: by replica id, what was had already, raised; `spaces`: the
    wanted ones, ascending; names[bounds[i]:bounds[i + 1]]: the flex entry with the name of the
    i-th; `wanted`: one byte for each vbucket, 0 where its items are left out, as those are whose
    keys do not begin with `prefix`; `keys_only`: values are left out; `front`: the entries before
    that of the vbucket. A transaction is begun only while fewer
    than `limit` bytes are written. `numbers`: where the transaction begins that is next, bytes used
    of `out`, the next opaque, frames written so far. ODD: the transaction that is next is, or no
    whole rows that `rows.scan` and `rows.transactions` take.
    """
    raw, to, before, named, chosen, begins = data, out, front, names, wanted, prefix
    owed = [0] * 512
    row = [0] * 15
    fields = [0] * 20
    saved = [0] * 32
    scratch = [0] * 24
    end = len(data)
    room = len(out)
    front_bytes, prefix_bytes = len(front), len(prefix)
    at = begin(lsns, spaces, bounds, names, wanted, numbers)
    used = numbers[_BYTES]
    opaque = numbers[_OPAQUE_NEXT]
    frames = numbers[_FRAMES]
    model = place = width = tuple_at = head_bytes = bucket = kind = origin = 0
    distance = time_us = tsn = 0
    framed = _BAD
    how = _DONE
    while at < end:
        if used >= limit:
            how = _STOPPED
            break
        first, start, sent = at, used, 0
        last, put, put_bucket = _BAD, 0, _BAD
        kept = _NOTHING
        has_more, is_left = True, False
        while has_more:
            how = _ODD
            stop = _BAD
            if width and models.alike(raw, at, end, model, place, width, tuple_at):
                row[_LSN] = rows.load(raw, at + place, width)
                row[_TSN] = (row[_LSN] - distance) & _ONES
                spot, edge = at + tuple_at, end
            else:
                body = rows.read_header(raw, at, end, row, owed)
                if body < 0:
                    break
                stop = rows.read_body(raw, body, end, row, owed)
                if stop < 0:
                    break
                edge = row[_TUPLE] >> 32
                spot = row[_TUPLE] - (row[_TUPLE] >> 32 << 32)
                model, width, framed = at, 0, _BAD
                place = models.lsn_place(raw, at, body, owed)
                if place and edge == stop:
                    width = 1 << (raw[at + place - 1] - 0xCC)
                    tuple_at = spot - at
                distance = (row[_LSN] - row[_TSN]) & _ONES
                bucket = find(spaces, row[_SPACE_ID])
                time_us = microseconds(as_float(row[_TIMESTAMP]))  # type: ignore[name-defined]  # noqa: F821
                kind = nature(row, bucket)
                if time_us < 0 and kind != _SKIPPED:
                    kind = _STRANGE
            origin, lsn = row[_REPLICA_ID], row[_LSN]
            if origin >= _REPLICAS or lsn >> 63 or (at > first and row[_TSN] != tsn):
                break
            tsn = row[_TSN]
            has_more = row[_FLAGS] & _COMMIT == 0
            if kept == _NOTHING:
                kept = save(lsns, saved, has_more, origin)
            is_new = lsn > lsns[origin]
            if not is_new or kind == _SKIPPED:
                if stop < 0 and rows.is_array(raw, spot):
                    stop = rows.skip_value(raw, spot, end, owed, 1)
                if stop < 0:
                    break
            elif kind == _PUT:
                spot_end = document_end(raw, spot, edge, fields, scratch)
                if spot_end < 0 or (stop >= 0 and spot_end != edge):
                    break
                if stop < 0:
                    stop = spot_end
                is_left = not is_chosen(raw, fields, begins, prefix_bytes, chosen)
                if is_left:
                    put_bucket = bucket
                if keys_only:
                    fields[_VALUE_AT] = fields[_VALUE_END]
            elif kind == _REMOVED:
                edge = row[_KEY] >> 32
                spot = row[_KEY] - (row[_KEY] >> 32 << 32)
                is_here = put_bucket == bucket and fields[_CAS] != 0
                if not is_here or not is_key(raw, spot, edge, fields):
                    break
                put_bucket = _BAD
                if not is_left:
                    used = put
                    opaque -= 1
                    sent -= 1
            else:
                break
            how = _DONE
            if is_new:
                lsns[origin] = lsn
            if is_new and kind != _SKIPPED and not is_left:
                name_at, name_end = bounds[bucket], bounds[bucket + 1]
                if stop - at + front_bytes + name_end - name_at + _FRAME_ROOM > room - used:
                    how = _STOPPED
                    break
                last = used
                if framed >= 0:
                    used = rows.copy(to, framed, framed + head_bytes, to, used)
                    put_big(to, last + 4, opaque, 4)
                    put_big(to, last + _FRONT_AT + front_bytes + 4, fields[_VBUCKET], 2)
                    put_big(to, last + _FRONT_AT + front_bytes + 10, lsn, 8)
                else:
                    used = put_start(
                        to, used, opaque, 0x0C02 if kind == _REMOVED else 0x0405, before,
                        front_bytes, fields[_VBUCKET], lsn, origin, time_us, named, name_at,
                        name_end,
                    )  # fmt: skip
                    if kind == _PUT:
                        framed = last
                        used = rows.copy(DOCUMENT, 0, _DOCUMENT_BYTES, to, used)
                        head_bytes = used - last
                if kind == _PUT:
                    used = put_document(raw, fields, to, used - _DOCUMENT_BYTES)
                    put, put_bucket = last, bucket
                else:
                    used = put_remove(raw, fields, to, used)
                put_big(to, last, used - last - 4, 4)
                to[last + _FLAGS_AT] = 0x12 | _MORE
                opaque += 1
                sent += 1
            at = stop
        if how != _DONE:
            at, used = first, start
            opaque -= sent
            restore(lsns, saved, kept, origin)
            if how == _STOPPED and used == numbers[_BYTES]:
                how = _ODD  # too large for the room there is
            break
        if last >= 0:
            to[last + _FLAGS_AT] = 0x12
        frames += sent
    numbers[_AT] = at
    numbers[_BYTES] = used
    numbers[_OPAQUE_NEXT] = opaque
    numbers[_FRAMES] = frames
    return how


def documents(
    tuples: list[bytes],
    wanted: bytes,
    prefix: bytes,
    keys_only: bool,
    now: int,
    name: bytes,
    front: bytes,
    limit: int,
    numbers: Table,
    out: bytearray,
) -> int:
    """Write the tuples of a bucket as pushed frames of a snapshot. How it ended.

    What is expired at `now` is left out; `name`: the flex entry with the bucket's name; the rest as
    `pushes` has it, each tuple a transaction.
    """
    to, before, named, chosen, begins = out, front, name, wanted, prefix
    fields = [0] * 20
    scratch = [0] * 24
    front_bytes = len(front)
    name_bytes = len(name)
    prefix_bytes = len(prefix)
    room = len(out)
    if len(numbers) <= _FRAMES or len(wanted) < _VBUCKETS:
        raise IndexError("documents: a table is too short")
    row = numbers[_AT]
    used = numbers[_BYTES]
    opaque = numbers[_OPAQUE_NEXT]
    frames = numbers[_FRAMES]
    count = len(tuples)
    how = _DONE
    if row < 0 or used < 0:
        raise IndexError("documents: numbers beyond their buffers")
    while row < count:
        tuple_ = tuples[row]
        item = tuple_
        size = len(tuple_)
        if document_end(item, 0, size, fields, scratch) != size:
            how = _ODD
            break
        is_here = is_chosen(item, fields, begins, prefix_bytes, chosen)
        if not is_here or 0 < fields[_EXPIRY] <= now:
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
        if keys_only:
            fields[_VALUE_AT] = fields[_VALUE_END]
        used = put_whole(item, fields, to, used)
        put_big(to, last, used - last - 4, 4)
        opaque += 1
        frames += 1
        row += 1
    numbers[_AT] = row
    numbers[_BYTES] = used
    numbers[_OPAQUE_NEXT] = opaque
    numbers[_FRAMES] = frames
    return how
