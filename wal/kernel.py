# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of the log: block bytes → columns, columns → rows, rows → replication packets.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `kernel.pxd`. `COMPILED` says which one runs. `wal.columns` is its face for rows;
`wal.mp`, `wal.block`, `wal.walk` and protocols call one function each, other kernels many, as C.

Buffers of bytes are `bytes`, those that are written `bytearray`: their memory is used as it is.
Every number is an unsigned 64-bit one. A *table* is one flat buffer of them (format "Q") that
holds `capacity` numbers for each column of `COLUMNS`: column k begins at k x capacity.

==============  ================================================================================
column          holds
==============  ================================================================================
type … lsn      header keys 00, 02, 07, 03; 0 where absent
timestamp       the 64 bits of the float of key 04; 0 where absent
tsn             transaction id, absolute: lsn - key 08 modulo 2^64; the lsn where 08 is absent
flags           key 09; bit 0 (COMMIT) also where key 08 is absent, and then bit 63 (ALONE) too;
                bit 62 (ODD): the header says more than the columns do (unknown keys, flags that
                these bits displace)
space_id        body key 10; 2^64-1 where absent
index_base      body key 15; 0 where absent
row_offset      where the row begins in the block; entry i + 1 is where row i ends
body_offset     where its body map begins; where the row ends if it is a NOP
key, tuple,     body keys 20, 21, 28: where the value begins, and 2^32 x where it ends; 0 where
ops             absent
index_id        body key 11; 0 where absent
==============  ================================================================================

A key that stands twice counts as its last one does. What is accepted is what `wal.xrow.decode_row`
and `decode_body` accept. Nothing here recurses or believes a length: every read and write is
checked against the ends of its buffer first, since the compiled one would not notice. A table of
the caller's own that is too short is an `IndexError`, and nothing else raises.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    Buffer = bytes | bytearray | memoryview
    Table = array[int] | memoryview

COLUMNS = (
    *("type", "replica_id", "group_id", "lsn", "timestamp", "tsn", "flags"),
    *("space_id", "index_base", "row_offset", "body_offset", "key", "tuple", "ops", "index_id"),
)

# Numbers of columns, and of the fields of one row; C does not see them in the tuple above.
TYPE, REPLICA_ID, GROUP_ID, LSN, TIMESTAMP, TSN, FLAGS = range(7)
SPACE_ID, INDEX_BASE, ROW_OFFSET, BODY_OFFSET, KEY, TUPLE, OPS, INDEX_ID = range(7, 15)
OTHER = 255

ONES = 2**64 - 1
COMMIT = 1
ALONE = 2**63
ODD = 2**62
NOP = 12
LOCAL = 1
DEPTH = 512  # limits.MSGPACK_DEPTH; the room for it stands in kernel.pxd too
HEADER_ROOM = 81  # the longest header that is written: 1, then eight times 1 + 9
HEADER_BYTES = HEADER_ROOM
PACKET_BYTES = 5
FIXHEADER_BYTES = 19
HALF = 2**32 - 1
REPLICAS = 32  # limits.VCLOCK_COMPONENTS

# A new buffer; compiled, `fresh` is C and leaves it as the memory was: see kernel.pxd.
globals()["fresh"] = bytearray
# And the bits of a float.
globals()["bits_of"] = lambda value: struct.unpack("Q", struct.pack("d", value))[0]

# Bytes of a value by its first byte; 0 where a length field or items follow, and for c1.
_sizes = bytes(
    [1] * 128
    + [0] * 32
    + list(range(1, 33))
    + [1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18]
    + [0] * 7
    + [1] * 32
)
SIZES = _sizes

# Field of a row by header key 00 … 09, and by body key 00 … 28.
_header_fields = bytes([0, 255, 1, 3, 4, 255, 255, 2, 5, 6])
_body_fields = bytes(
    [255] * 16 + [7, 14] + [255] * 3 + [8] + [255] * 10 + [11, 12] + [255] * 6 + [13]
)
HEADER_FIELDS = _header_fields
BODY_FIELDS = _body_fields


def load(data: bytes, at: int, width: int) -> int:
    """The big-endian number of `width` bytes (1, 2, 4 or 8) at `at`. Unchecked."""
    value = 0
    if width == 1:
        value = data[at]
    elif width == 2:
        for i in range(2):
            value = value << 8 | data[at + i]
    elif width == 4:
        for i in range(4):
            value = value << 8 | data[at + i]
    else:
        for i in range(8):
            value = value << 8 | data[at + i]
    return value


def uint_end(data: bytes, at: int, end: int) -> int:
    """Where the unsigned integer at `at` ends; -1 if it is none or cut short."""
    if at >= end:
        return -1
    first = data[at]
    if first < 0x80:
        return at + 1
    if first < 0xCC or first > 0xCF:
        return -1
    stop = at + 1 + (1 << (first - 0xCC))
    return stop if stop <= end else -1


def uint(data: bytes, at: int, stop: int) -> int:
    """The unsigned integer that `uint_end` found to stand from `at` to `stop`."""
    return data[at] if stop == at + 1 else load(data, at + 1, stop - at - 1)


def map_end(data: bytes, at: int, end: int) -> int:
    """Where the items of the map at `at` begin; -1 if it is none or cut short."""
    if at >= end:
        return -1
    first = data[at]
    if 0x80 <= first < 0x90:
        return at + 1
    stop = at + 3 if first == 0xDE else at + 5
    return stop if first in (0xDE, 0xDF) and stop <= end else -1


def map_count(data: bytes, at: int, stop: int) -> int:
    """How many items the map has that `map_end` found to have them from `stop` on."""
    return data[at] & 0x0F if stop == at + 1 else load(data, at + 1, stop - at - 1)


def is_array(data: bytes, at: int) -> bool:
    """Whether an array begins at `at`."""
    return 0x90 <= data[at] < 0xA0 or data[at] == 0xDC or data[at] == 0xDD


def skip_value(data: bytes, at: int, end: int, owed: list[int], depth: int) -> int:
    """Where the MsgPack value at `at` ends; -1 if it is cut short, invalid or nested too deep.

    `owed`: room for `DEPTH` numbers, the items still to come of each open array or map;
    `depth`: how many are open around it.
    """
    bottom = depth
    left = 1
    while True:
        if at >= end:
            return -1
        first = data[at]
        size = SIZES[first]
        left -= 1
        items = 0
        if size:
            at += size
        elif first < 0xA0:
            at += 1
            items = (first & 0x0F) << 1 if first < 0x90 else first & 0x0F
        elif first >= 0xDC:  # array 16, 32; map 16, 32
            size = 4 if first & 1 else 2
            if end - at <= size:
                return -1
            items = load(data, at + 1, size)
            if first >= 0xDE:
                items = items << 1
            at += 1 + size
        elif first == 0xC1:
            return -1
        else:  # bin c4 … c6, ext c7 … c9 (and its type), str d9 … db
            size = 1 << ((first - 0xC4) % 3 if first < 0xD9 else first - 0xD9)
            if end - at <= size:
                return -1
            items = load(data, at + 1, size)
            if items > end - at:
                return -1
            at += 1 + size + items + (1 if 0xC7 <= first <= 0xC9 else 0)
            items = 0
        if items:
            if at > end or items > end - at or depth == DEPTH:
                return -1
            owed[depth] = left
            depth += 1
            left = items
        while left == 0:
            if depth == bottom:
                return at if at <= end else -1
            depth -= 1
            left = owed[depth]


def skip(data: bytes, at: int) -> int:
    """Where the MsgPack value at `at` ends; -1 as `skip_value`."""
    raw = data
    owed = [0] * 512
    return skip_value(raw, at, len(data), owed, 0) if at >= 0 else -1


def read_header(data: bytes, at: int, end: int, fields: list[int], owed: list[int]) -> int:
    """Read the header at `at` into fields `TYPE` … `FLAGS`. Where it ends; -1: malformed."""
    stop = map_end(data, at, end)
    if stop < 0:
        return -1
    left = map_count(data, at, stop)
    at = stop
    for field in range(FLAGS + 1):
        fields[field] = 0
    seen = 0
    odd = False
    while left:
        left -= 1
        stop = uint_end(data, at, end)
        if stop < 0:
            return -1
        key = uint(data, at, stop)
        at = stop
        field = HEADER_FIELDS[key] if key < 0x0A else OTHER
        if field == TIMESTAMP:
            if end - at < 9 or data[at] != 0xCB:
                return -1
            fields[TIMESTAMP] = load(data, at + 1, 8)
            at += 9
        elif field == OTHER:
            at = skip_value(data, at, end, owed, 1) if key < 0x53 else -1
            if at < 0:
                return -1
            odd = True
        else:
            stop = uint_end(data, at, end)
            if stop < 0:
                return -1
            fields[field] = uint(data, at, stop)
            seen |= 1 << field
            at = stop
    if not seen & 1 << TYPE:
        return -1
    fields[TSN] = (fields[LSN] - fields[TSN]) & ONES
    flags = fields[FLAGS] & (ODD - 1)
    if flags != fields[FLAGS]:
        odd = True
    if not seen & 1 << TSN:
        if flags & COMMIT:
            odd = True
        flags |= COMMIT | ALONE
    fields[FLAGS] = flags | ODD if odd else flags
    return at


def read_body(data: bytes, at: int, end: int, fields: list[int], owed: list[int]) -> int:
    """Read the body at `at` into fields `SPACE_ID` … `OPS`. Where it ends; -1: malformed."""
    fields[SPACE_ID] = ONES
    fields[INDEX_BASE] = fields[KEY] = fields[TUPLE] = fields[OPS] = fields[INDEX_ID] = 0
    fields[BODY_OFFSET] = at
    if fields[TYPE] == NOP:
        return at
    stop = map_end(data, at, end)
    if stop < 0:
        return -1
    left = map_count(data, at, stop)
    at = stop
    while left:
        left -= 1
        stop = uint_end(data, at, end)
        if stop < 0:
            return -1
        key = uint(data, at, stop)
        at = stop
        field = BODY_FIELDS[key] if key < 0x29 else OTHER
        if field in (SPACE_ID, INDEX_BASE, INDEX_ID):
            stop = uint_end(data, at, end)
            if stop < 0:
                return -1
            fields[field] = uint(data, at, stop)
        else:
            stop = skip_value(data, at, end, owed, 1)
            if stop < 0:
                return -1
            if field != OTHER:
                if not is_array(data, at):
                    return -1
                fields[field] = stop
                fields[field] = fields[field] << 32 | at
        at = stop
    return at


def check_table(table: Table, columns: int, capacity: int, rows: int) -> None:
    """See that a table has `columns` columns, and room for `rows` rows in each."""
    if rows < 0 or rows > capacity or capacity > len(table) // columns:
        raise IndexError("a table of rows is too short")


def check_slices(table: Table, first: int, last: int, starts_at: int, stops_at: int) -> None:
    """See that a table has the bounds of slices first … last - 1."""
    room = len(table) - last
    if first < 0 or starts_at < 0 or stops_at < 0 or starts_at > room or stops_at > room:
        raise IndexError("a table of slices is too short")


def blank(numbers: int) -> bytearray:
    """Room for so many numbers, with whatever is in it."""
    out: bytearray = fresh(numbers * 8)  # type: ignore[name-defined]  # noqa: F821
    return out


def scan(data: bytes, table: Table, capacity: int) -> int:
    """Read the rows of a block into `table`. Returns how many there are.

    `data`: the block's bytes, less than 2^32; `capacity`: at least 1. It stops at the end of
    `data`, before a row that is malformed, or when capacity - 1 rows are in; the entry of
    `row_offset` that comes after the last row tells where it stopped.
    """
    check_table(table, 15, capacity, 0)
    raw = data
    owed = [0] * 512
    fields = [0] * 15
    end = len(data)
    at = 0
    row = 0
    while at >= 0 and row < capacity:
        fields[ROW_OFFSET] = at
        table[ROW_OFFSET * capacity + row] = at
        if at == end or row + 1 == capacity:
            break
        at = read_header(raw, at, end, fields, owed)
        if at >= 0:
            at = read_body(raw, at, end, fields, owed)
        if at >= 0:
            for column in range(15):
                table[column * capacity + row] = fields[column]
            row += 1
    return row


def transactions(table: Table, capacity: int, count: int, ends: Table) -> int:
    """Write to `ends` the row after the last one of each transaction. Returns how many there are.

    `ends`: room for `count` numbers. Returns -1 - r where row r belongs to another transaction
    than the unfinished one before it, or where r is `count` and the last one is not finished.
    """
    check_table(table, FLAGS + 1, capacity, count)
    if len(ends) < count:
        raise IndexError("no room for the ends of transactions")
    tsns = 5 * capacity
    flags = 6 * capacity
    found = 0
    open_ = False
    for row in range(count):
        if open_ and table[tsns + row] != table[tsns + row - 1]:
            return -1 - row
        open_ = table[flags + row] & COMMIT == 0
        if not open_:
            ends[found] = row + 1
            found += 1
    return -1 - count if open_ else found


def copy(source: bytes | bytearray, start: int, stop: int, out: bytearray, at: int) -> int:
    """Copy bytes. Returns where the copy ends. Unchecked."""
    for i in range(stop - start):
        out[at + i] = source[start + i]
    return at + (stop - start)


def put_number(out: bytearray, at: int, value: int, width: int) -> int:
    """Write the low `width` (1, 2, 4 or 8) bytes of a number, big-endian. Where it ends.
    Unchecked."""
    if width == 1:
        out[at] = value & 0xFF
    elif width == 2:
        out[at] = value >> 8 & 0xFF
        out[at + 1] = value & 0xFF
    elif width == 4:
        for i in range(4):
            out[at + i] = value >> (24 - 8 * i) & 0xFF
    else:
        for i in range(8):
            out[at + i] = value >> (56 - 8 * i) & 0xFF
    return at + width


def put_uint(out: bytearray, at: int, value: int) -> int:
    """Write an unsigned integer in its shortest form. Returns where it ends. Unchecked."""
    if value < 0x80:
        out[at] = value
        return at + 1
    if value <= 0xFF:
        out[at] = 0xCC
        return put_number(out, at + 1, value, 1)
    if value <= 0xFFFF:
        out[at] = 0xCD
        return put_number(out, at + 1, value, 2)
    if value >> 32 == 0:  # for C a constant of 32 bits would be an object
        out[at] = 0xCE
        return put_number(out, at + 1, value, 4)
    out[at] = 0xCF
    return put_number(out, at + 1, value, 8)


def uint_room(value: int) -> int:
    """How many bytes `put_uint` writes."""
    if value < 0x80:
        return 1
    if value <= 0xFF:
        return 2
    if value <= 0xFFFF:
        return 3
    return 5 if value >> 32 == 0 else 9


def room_end(value: int) -> int:
    """Up to where numbers from `value` on take as many bytes as it, that one left out."""
    if value < 0x80:
        return 0x80
    if value <= 0xFF:
        return 0x100
    if value <= 0xFFFF:
        return 0x10000
    return ONES if value >> 32 else 0xFFFFFFFF + 1


def put_header(out: bytearray, at: int, fields: list[int], sync: int) -> int:
    """Write a row's header map (at most `HEADER_BYTES`) as `xrow.encode_row` would. Unchecked.

    `fields`: `TYPE` … `FLAGS`; `sync`: of the request that the row answers (key 01), 0 none.
    Returns where it ends.
    """
    head = at
    items = 1
    out[at + 1] = 0x00
    at = put_uint(out, at + 2, fields[TYPE])
    if sync:
        items += 1
        out[at] = 0x01
        at = put_uint(out, at + 1, sync)
    if fields[REPLICA_ID]:
        items += 1
        out[at] = 0x02
        at = put_uint(out, at + 1, fields[REPLICA_ID])
    if fields[GROUP_ID]:
        items += 1
        out[at] = 0x07
        at = put_uint(out, at + 1, fields[GROUP_ID])
    if fields[LSN]:
        items += 1
        out[at] = 0x03
        at = put_uint(out, at + 1, fields[LSN])
    if fields[TIMESTAMP] & (ALONE - 1):
        items += 1
        out[at] = 0x04
        out[at + 1] = 0xCB
        at = put_number(out, at + 2, fields[TIMESTAMP], 8)
    flags = fields[FLAGS] & (ODD - 2)
    if fields[TSN] != fields[LSN] or not fields[FLAGS] & COMMIT:
        items += 1
        out[at] = 0x08
        at = put_uint(out, at + 1, (fields[LSN] - fields[TSN]) & ONES)
        flags |= fields[FLAGS] & COMMIT
    if flags:
        items += 1
        out[at] = 0x09
        at = put_uint(out, at + 1, flags)
    out[head] = 0x80 + items
    return at


def encode(
    table: Table,
    count: int,
    starts_at: int,
    stops_at: int,
    source: bytes,
    prefix: bytes,
    out: bytearray,
) -> int:
    """Write the `count` rows of a table of that capacity to `out`. Returns how many bytes.

    Columns `type` … `flags` give the headers. The body of row i is `prefix` and the bytes of
    `source` from table[starts_at + i] to table[stops_at + i]; a NOP has none. Returns -1 - i
    where these do not lie in `source`, or row i does not fit.
    """
    check_table(table, FLAGS + 1, count, 0)
    check_slices(table, 0, count, starts_at, stops_at)
    to, body, front = out, source, prefix
    fields = [0] * 15
    size = len(source)
    room = len(out) - HEADER_BYTES - len(prefix)
    at = 0
    for row in range(count):
        start = table[starts_at + row]
        stop = table[stops_at + row]
        if start > stop or stop > size:
            return -1 - row
        length = stop - start
        if length > room - at:
            return -1 - row
        for field in range(FLAGS + 1):
            fields[field] = table[field * count + row]
        at = put_header(to, at, fields, 0)
        if fields[TYPE] != NOP:
            at = copy(front, 0, len(prefix), to, at)
            at = copy(body, start, stop, to, at)
    return at


def run_bytes(kind: int, replica_id: int, group_id: int, last_lsn: int, count: int) -> int:
    """At most so many bytes are the heads of `count` rows of a run that ends at `last_lsn`.

    With what `encode_run` wants to see free behind the last row.
    """
    head = 16 + uint_room(kind) + uint_room(last_lsn) + uint_room(count)
    if replica_id:
        head += 1 + uint_room(replica_id)
    if group_id:
        head += 1 + uint_room(group_id)
    return head * count + HEADER_BYTES


def encode_run(
    kind: int,
    replica_id: int,
    group_id: int,
    first_lsn: int,
    timestamp: int,
    together: bool,
    source: bytes,
    bounds: Table,
    prefix: bytes,
) -> bytearray | None:
    """The bytes of rows with consecutive lsns; None where a body is not a slice of `source`.

    `kind` … `timestamp`: fields of the first row; `together`: one transaction, else each row
    alone. The body of row i is `prefix` and the bytes of `source` from bounds[i] to bounds[i + 1].
    """
    count = len(bounds) - 1
    size = len(source)
    if count < 0 or bounds[0] > bounds[count] or bounds[count] > size:
        return None
    last_lsn = first_lsn + count if ONES - first_lsn > count else ONES
    length = bounds[count] - bounds[0]
    room = run_bytes(kind, replica_id, group_id, last_lsn, count) + count * len(prefix) + length
    out: bytearray = fresh(room)  # type: ignore[name-defined]  # noqa: F821
    to, body, front = out, source, prefix
    room -= HEADER_BYTES + len(prefix)
    fields = [kind, replica_id, group_id, first_lsn, timestamp, first_lsn, 0]
    at = alike = model = head = lsn_place = tsn_place = 0
    for row in range(count):
        start = bounds[row]
        stop = bounds[row + 1]
        if start > stop or stop > size:
            return None
        length = stop - start
        if length > room - at:
            return None
        begin = at
        if row < alike:  # its head differs in two numbers only, of the same width
            at = copy(to, model, model + head, to, at)
            put_uint(to, begin + lsn_place, fields[LSN])
            if together:
                put_uint(to, begin + tsn_place, (fields[LSN] - fields[TSN]) & ONES)
        else:
            if not together:
                fields[TSN] = fields[LSN]
            fields[FLAGS] = COMMIT if not together or row + 1 == count else 0
            at = put_header(to, at, fields, 0)
            tsn_place = at - begin
            at = copy(front, 0, len(prefix), to, at)
            if fields[LSN]:
                model = begin
                head = at - begin
                lsn_place = 3 + uint_room(fields[TYPE])
                if fields[REPLICA_ID]:
                    lsn_place += 1 + uint_room(fields[REPLICA_ID])
                if fields[GROUP_ID]:
                    lsn_place += 1 + uint_room(fields[GROUP_ID])
                left = room_end(fields[LSN]) - fields[LSN]
                if together:
                    value = (fields[LSN] - fields[TSN]) & ONES
                    tsn_place -= uint_room(value)
                    left = min(left, room_end(value) - value)
                alike = row + min(left, count - row)
                if together:
                    alike = min(alike, count - 1)
        at = copy(body, start, stop, to, at)
        fields[LSN] = (fields[LSN] + 1) & ONES
    del out[at:]
    return out


def put_fixheader(kind: int, stored: int, unsynced: int, crc: int, out: bytearray) -> bool:
    """Begin `out` with the fixheader of a block, of 19 bytes; False where it is shorter.

    `kind`: the last byte of the magic; the numbers are of at most 32 bits.
    """
    if len(out) < FIXHEADER_BYTES:
        return False
    to = out
    to[0] = 0xD5
    to[1] = 0xBA
    to[2] = 0x0B
    to[3] = kind
    at = put_uint(to, put_uint(to, put_uint(to, 4, stored & HALF), unsynced & HALF), crc & HALF)
    if at < FIXHEADER_BYTES:
        to[at] = 0xA0 + FIXHEADER_BYTES - 1 - at
        at += 1
    while at < FIXHEADER_BYTES:
        to[at] = 0
        at += 1
    return True


def slices(table: Table, first: int, last: int, starts_at: int, stops_at: int, limit: int) -> int:
    """How many bytes the slices of rows first … last - 1 have; -1 - i where one is not valid.

    Slice i goes from table[starts_at + i] to table[stops_at + i], both at most `limit`.
    """
    check_slices(table, first, last, starts_at, stops_at)
    total = 0
    for row in range(first, last):
        start = table[starts_at + row]
        stop = table[stops_at + row]
        if start > stop or stop > limit:
            return -1 - row
        total += stop - start
    return total


def packets(
    data: bytes,
    table: Table,
    capacity: int,
    first: int,
    last: int,
    after: Table,
    upto: Table,
    sync: int,
    out: bytearray,
) -> int:
    """Write rows first … last - 1 as replication packets. Returns how many bytes.

    A packet is `ce`, 4 bytes of length and the stored row. A row goes out where after[id] < its
    lsn <= upto[id] for its replica id; one with replica id 0 never; one of group 1 (local, but
    signed) as a NOP of the same position. `sync`, unless 0, is put into every header as key 01.
    `after`, `upto`: `REPLICAS` numbers. Returns -1 - i where row i does not fit, or has a replica
    id or a header that no vclock or packet can hold.
    """
    check_table(table, ROW_OFFSET + 1, capacity, last + 1)
    if first < 0 or len(after) < REPLICAS or len(upto) < REPLICAS:
        raise IndexError("a table of lsns is too short")
    raw, to = data, out
    size = len(data)
    room = len(out) - PACKET_BYTES - HEADER_BYTES
    fields = [0] * 15
    at = 0
    for row in range(first, last):
        replica_id = table[REPLICA_ID * capacity + row]
        lsn = table[LSN * capacity + row]
        if replica_id >= REPLICAS:
            return -1 - row
        if replica_id == 0 or lsn <= after[replica_id] or lsn > upto[replica_id]:
            continue
        start = table[ROW_OFFSET * capacity + row]
        stop = table[ROW_OFFSET * capacity + row + 1]
        if start > stop or stop > size:
            return -1 - row
        length = stop - start
        if length > room - at:
            return -1 - row
        fields[GROUP_ID] = table[GROUP_ID * capacity + row]
        if fields[GROUP_ID] == LOCAL:
            for field in range(FLAGS + 1):
                fields[field] = table[field * capacity + row]
        at = put_packet(raw, start, stop, fields, sync, to, at)
        if at < 0:
            return -1 - row
    return at


def put_packet(
    data: bytes, start: int, stop: int, fields: list[int], sync: int, out: bytearray, at: int
) -> int:
    """Write one row as a packet. Returns where it ends; -1 where its header is too large for that.
    Unchecked.

    `fields`: `TYPE` … `FLAGS` of a row of group 1, of any other one `GROUP_ID` alone.
    """
    head = at
    at += PACKET_BYTES
    if fields[GROUP_ID] == LOCAL:
        fields[TYPE] = NOP
        fields[GROUP_ID] = 0
        at = put_header(out, at, fields, sync)
    else:
        if sync:
            body = map_end(data, start, stop)
            items = map_count(data, start, body) + 1 if body >= 0 else 0x10000
            start = body
            if items > 0xFFFF:
                return -1
            if items < 0x10:
                out[at] = 0x80 + items
                at += 1
            else:
                out[at] = 0xDE
                at = put_number(out, at + 1, items, 2)
            out[at] = 0x01
            at = put_uint(out, at + 1, sync)
        at = copy(data, start, stop, out, at)
    out[head] = 0xCE
    put_number(out, head + 1, at - head - PACKET_BYTES, 4)
    return at


def walk(data: bytes, table: Table, capacity: int) -> int:
    """Read the headers of the blocks that stand one behind the other from byte 0 of `data`.

    Writes four columns of `capacity` numbers: where a block begins, how many payload bytes
    follow its 19 bytes of header, their checksum, and 1 if they are compressed. Returns how many
    blocks there are; the entry of the first column behind the last one tells where it stopped:
    before the end of `data`, before what is not a header as Tarantool writes it, or when
    capacity - 1 are in. The payload of the last one may pass the end of `data`.
    """
    check_table(table, 4, capacity, 1)
    raw = data
    end = len(data)
    at = 0
    block = 0
    while True:
        table[block] = at
        if block + 1 == capacity or at > end or end - at < 19:
            return block
        if raw[at] != 0xD5 or raw[at + 1] != 0xBA or raw[at + 2] != 0x0B:
            return block
        kind = raw[at + 3]
        if kind != 0xAB and kind != 0xBA:
            return block
        head = at + 19
        start = at + 4
        for column in range(3):
            stop = uint_end(raw, start, head)
            if stop < 0:
                return block
            value = uint(raw, start, stop)
            if value >> 32:
                return block
            if column == 0:
                if value > 0x80000000:
                    return block
                table[capacity + block] = value
            elif column == 2:
                table[2 * capacity + block] = value
            start = stop
        if start != head and raw[start] != 0xA0 + head - start - 1:
            return block
        table[3 * capacity + block] = 1 if kind == 0xBA else 0
        at = head + table[capacity + block]
        block += 1


def highest_lsns(table: Table, capacity: int, count: int, lsns: Table) -> int:
    """Raise `lsns`, one number per replica id, to the highest lsn that the rows have of each.

    Returns the first row whose lsn is not above what `lsns` had of its replica id by then, `count`
    if there is none; -1 - row where a replica id is over 31.
    """
    check_table(table, LSN + 1, capacity, count)
    if len(lsns) < REPLICAS:
        raise IndexError("a table of lsns is too short")
    odd = count
    for row in range(count):
        replica_id = table[capacity + row]
        lsn = table[3 * capacity + row]
        if replica_id >= REPLICAS:
            return -1 - row
        if lsn > lsns[replica_id]:
            lsns[replica_id] = lsn
        elif odd == count:
            odd = row
    return odd


COMPILED = "put_header" not in globals()  # compiled, it is a C function that Python does not see
