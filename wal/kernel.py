# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of the log: block bytes → columns, columns → rows, rows → replication packets.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `kernel.pxd`. `COMPILED` says which one runs. `wal.columns` is its face; nothing else calls it.

Buffers of bytes are `bytes`, those that are written `bytearray`: their memory is used as it is.
Every number is an unsigned 64-bit one. A *table* is one flat buffer of them (format "Q") that
holds `capacity` numbers for each column of `COLUMNS`: column k begins at k x capacity.

==============  ================================================================================
column          holds
==============  ================================================================================
type … lsn      header keys 00, 02, 07, 03; 0 where absent
timestamp       the 64 bits of the float of key 04; 0 where absent
tsn             transaction id, absolute: lsn - key 08 modulo 2^64; the lsn where 08 is absent
flags           key 09; bit 0 (COMMIT) also where key 08 is absent, and then bit 63 (ALONE) too
space_id        body key 10; 2^64-1 where absent
index_base      body key 15; 0 where absent
row_offset      where the row begins in the block; entry i + 1 is where row i ends
body_offset     where its body map begins; where the row ends if it is a NOP
key, tuple,     body keys 20, 21, 28: where the value begins, and 2^32 x where it ends; 0 where
ops             absent
==============  ================================================================================

A key that stands twice counts as its last one does. What is accepted is what `wal.xrow.decode_row`
and `decode_body` accept. Nothing here raises, recurses or believes a length: every read and write
is checked against the ends of its buffer first, since the compiled one would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COLUMNS = (
    "type",
    "replica_id",
    "group_id",
    "lsn",
    "timestamp",
    "tsn",
    "flags",
    "space_id",
    "index_base",
    "row_offset",
    "body_offset",
    "key",
    "tuple",
    "ops",
)

ONES = 2**64 - 1
COMMIT = 1
ALONE = 2**63
NOP = 12
DEPTH = 512  # limits.MSGPACK_DEPTH: C needs the size of its stack when it is compiled
HEADER_ROOM = 82  # the longest header: 1, then eight keys of one byte, values of at most nine
HEADER_BYTES = HEADER_ROOM
PACKET_BYTES = 5
REPLICAS = 32  # limits.VCLOCK_COMPONENTS

# Bytes of a value by its first byte: 0 where a length field follows, or items, or for c1.
_sizes = bytes(
    [1] * 128
    + [0] * 32
    + list(range(1, 33))
    + [1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18]
    + [0] * 7
    + [1] * 32
)
SIZES = _sizes


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
    return skip_value(raw, at, len(data), owed, 0)


def scan(data: bytes, table: Table, capacity: int) -> int:
    """Read the rows of a block into `table`. Returns how many there are.

    `data`: the block's bytes, less than 2^32; `capacity`: at least 1. It stops at the end of
    `data`, before a row that is malformed, or when capacity - 1 rows are in; the entry of
    `row_offset` that comes after the last row tells where it stopped.
    """
    raw = data
    owed = [0] * 512
    end = len(data)
    at = 0
    row = 0
    rows_at = 9 * capacity
    table[rows_at] = 0
    while at < end and row + 1 < capacity:
        # The header.
        here = row
        stop = map_end(raw, at, end)
        if stop < 0:
            break
        left = map_count(raw, at, stop)
        at = stop
        kind = replica_id = group_id = lsn = timestamp = tsn = flags = 0
        has_kind = has_tsn = False
        while left:
            left -= 1
            stop = uint_end(raw, at, end)
            if stop < 0:
                break
            key = uint(raw, at, stop)
            at = stop
            if key == 0x04:
                if end - at < 9 or raw[at] != 0xCB:
                    stop = -1
                    break
                timestamp = load(raw, at + 1, 8)
                at += 9
                continue
            if key > 0x09 or key == 0x01 or key == 0x05 or key == 0x06:
                stop = skip_value(raw, at, end, owed, 1) if key < 0x53 else -1
                if stop < 0:
                    break
                at = stop
                continue
            stop = uint_end(raw, at, end)
            if stop < 0:
                break
            value = uint(raw, at, stop)
            at = stop
            if key == 0x03:
                lsn = value
            elif key == 0x00:
                kind = value
                has_kind = True
            elif key == 0x02:
                replica_id = value
            elif key == 0x08:
                tsn = value
                has_tsn = True
            elif key == 0x09:
                flags = value
            else:
                group_id = value
        if stop < 0 or not has_kind:
            break
        flags &= ALONE - 1
        table[here] = kind
        here += capacity
        table[here] = replica_id
        here += capacity
        table[here] = group_id
        here += capacity
        table[here] = lsn
        here += capacity
        table[here] = timestamp
        here += capacity
        table[here] = (lsn - tsn) & ONES
        here += capacity
        table[here] = flags if has_tsn else flags | COMMIT | ALONE
        here += capacity
        # The body.
        space_id = ONES
        body_at = at
        index_base = key_at = tuple_at = ops_at = 0
        if kind != NOP:
            stop = map_end(raw, at, end)
            if stop < 0:
                break
            left = map_count(raw, at, stop)
            at = stop
            while left:
                left -= 1
                stop = uint_end(raw, at, end)
                if stop < 0:
                    break
                key = uint(raw, at, stop)
                at = stop
                if key == 0x10 or key == 0x11 or key == 0x15:
                    stop = uint_end(raw, at, end)
                    if stop < 0:
                        break
                    if key == 0x10:
                        space_id = uint(raw, at, stop)
                    elif key == 0x15:
                        index_base = uint(raw, at, stop)
                    at = stop
                    continue
                stop = skip_value(raw, at, end, owed, 1)
                if stop < 0:
                    break
                if key == 0x20 or key == 0x21 or key == 0x28:
                    if not is_array(raw, at):
                        stop = -1
                        break
                    value = stop
                    value = value << 32 | at
                    if key == 0x21:
                        tuple_at = value
                    elif key == 0x20:
                        key_at = value
                    else:
                        ops_at = value
                at = stop
            if stop < 0:
                break
        table[here] = space_id
        here += capacity
        table[here] = index_base
        here += 2 * capacity
        table[here] = body_at
        here += capacity
        table[here] = key_at
        here += capacity
        table[here] = tuple_at
        here += capacity
        table[here] = ops_at
        row += 1
        table[rows_at + row] = at
    return row


def transactions(table: Table, capacity: int, count: int, ends: Table) -> int:
    """Write to `ends` the row after the last one of each transaction. Returns how many there are.

    `ends`: room for `count` numbers. Returns -1 - r where row r belongs to another transaction
    than the unfinished one before it, or where r is `count` and the last one is not finished.
    """
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


def copy(source: bytes, start: int, stop: int, out: bytearray, at: int) -> int:
    """Copy bytes. Returns where the copy ends. Unchecked."""
    for i in range(stop - start):
        out[at + i] = source[start + i]
    return at + (stop - start)


def put_uint(out: bytearray, at: int, value: int) -> int:
    """Write an unsigned integer in its shortest form. Returns where it ends. Unchecked."""
    if value < 0x80:
        out[at] = value
        return at + 1
    high = value >> 32
    if high:
        out[at] = 0xCF
        for i in range(8):
            out[at + 1 + i] = value >> (56 - 8 * i) & 0xFF
        return at + 9
    if value > 0xFFFF:
        out[at] = 0xCE
        for i in range(4):
            out[at + 1 + i] = value >> (24 - 8 * i) & 0xFF
        return at + 5
    if value > 0xFF:
        out[at] = 0xCD
        out[at + 1] = value >> 8 & 0xFF
        out[at + 2] = value & 0xFF
        return at + 3
    out[at] = 0xCC
    out[at + 1] = value
    return at + 2


def put_header(
    out: bytearray,
    at: int,
    kind: int,
    sync: int,
    replica_id: int,
    group_id: int,
    lsn: int,
    timestamp: int,
    tsn: int,
    flags: int,
) -> int:
    """Write a row's header map (at most `HEADER_BYTES`) as `xrow.encode_row` would. Unchecked.

    `sync`: of the request that the row answers (key 01), 0 none. Returns where it ends.
    """
    head = at
    items = 1
    out[at + 1] = 0x00
    at = put_uint(out, at + 2, kind)
    if sync:
        items += 1
        out[at] = 0x01
        at = put_uint(out, at + 1, sync)
    if replica_id:
        items += 1
        out[at] = 0x02
        at = put_uint(out, at + 1, replica_id)
    if group_id:
        items += 1
        out[at] = 0x07
        at = put_uint(out, at + 1, group_id)
    if lsn:
        items += 1
        out[at] = 0x03
        at = put_uint(out, at + 1, lsn)
    if timestamp & (ALONE - 1):
        items += 1
        out[at] = 0x04
        out[at + 1] = 0xCB
        for i in range(8):
            out[at + 2 + i] = timestamp >> (56 - 8 * i) & 0xFF
        at += 10
    if tsn == lsn and flags & COMMIT:
        flags &= ALONE - 2
    else:
        flags &= ALONE - 1
        items += 1
        out[at] = 0x08
        at = put_uint(out, at + 1, (lsn - tsn) & ONES)
    if flags:
        items += 1
        out[at] = 0x09
        at = put_uint(out, at + 1, flags)
    out[head] = 0x80 + items
    return at


def encode(
    table: Table,
    capacity: int,
    first: int,
    last: int,
    starts_at: int,
    stops_at: int,
    source: bytes,
    prefix: bytes,
    out: bytearray,
) -> int:
    """Write rows first … last - 1 of a table to `out`. Returns how many bytes.

    Columns `type` … `flags` give the headers. The body of row i is `prefix` and the bytes of
    `source` from table[starts_at + i] to table[stops_at + i]; a NOP has none. Returns -1 - i
    where these do not lie in `source`, or row i does not fit.
    """
    to = out
    body = source
    front = prefix
    at = 0
    size = len(out)
    source_size = len(source)
    prefix_size = len(prefix)
    for row in range(first, last):
        kind = table[row]
        start = table[starts_at + row]
        stop = table[stops_at + row]
        if start > stop or stop > source_size:
            return -1 - row
        length = stop - start
        if HEADER_BYTES + prefix_size + length > size - at:
            return -1 - row
        at = put_header(
            to,
            at,
            kind,
            0,
            table[capacity + row],
            table[2 * capacity + row],
            table[3 * capacity + row],
            table[4 * capacity + row],
            table[5 * capacity + row],
            table[6 * capacity + row],
        )
        if kind != NOP:
            at = copy(front, 0, prefix_size, to, at)
            at = copy(body, start, stop, to, at)
    return at


def encode_run(
    kind: int,
    replica_id: int,
    group_id: int,
    lsn: int,
    timestamp: int,
    together: bool,
    source: bytes,
    bounds: Table,
    count: int,
    prefix: bytes,
    out: bytearray,
) -> int:
    """Write `count` rows with consecutive lsns. Returns how many bytes; -1 - i as `encode`.

    `together`: one transaction, else each alone. The body of row i is `prefix` and the bytes of
    `source` from bounds[i] to bounds[i + 1].
    """
    to = out
    body = source
    front = prefix
    at = 0
    size = len(out)
    source_size = len(source)
    prefix_size = len(prefix)
    tsn = lsn
    for row in range(count):
        start = bounds[row]
        stop = bounds[row + 1]
        if start > stop or stop > source_size:
            return -1 - row
        length = stop - start
        if HEADER_BYTES + prefix_size + length > size - at:
            return -1 - row
        if not together:
            tsn = lsn
        flags = COMMIT if not together or row + 1 == count else 0
        at = put_header(to, at, kind, 0, replica_id, group_id, lsn, timestamp, tsn, flags)
        at = copy(front, 0, prefix_size, to, at)
        at = copy(body, start, stop, to, at)
        lsn = (lsn + 1) & ONES
    return at


def slices(table: Table, first: int, last: int, starts_at: int, stops_at: int, limit: int) -> int:
    """How many bytes the slices of rows first … last - 1 have; -1 - i where one is not valid.

    Slice i goes from table[starts_at + i] to table[stops_at + i], both at most `limit`.
    """
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
    raw = data
    to = out
    at = 0
    size = len(out)
    for row in range(first, last):
        replica_id = table[capacity + row]
        if replica_id == 0:
            continue
        if replica_id >= REPLICAS:
            return -1 - row
        lsn = table[3 * capacity + row]
        if lsn <= after[replica_id] or lsn > upto[replica_id]:
            continue
        start = table[9 * capacity + row]
        stop = table[9 * capacity + row + 1]
        if PACKET_BYTES + HEADER_BYTES + (stop - start) > size - at:
            return -1 - row
        head = at
        at += PACKET_BYTES
        if table[2 * capacity + row] == 1:
            at = put_header(
                to,
                at,
                NOP,
                sync,
                replica_id,
                0,
                lsn,
                table[4 * capacity + row],
                table[5 * capacity + row],
                table[6 * capacity + row],
            )
        else:
            if sync:
                items_at = map_end(raw, start, stop)
                items = map_count(raw, start, items_at) + 1
                if items > 0xFFFF:
                    return -1 - row
                start = items_at
                if items < 16:
                    to[at] = 0x80 + items
                    at += 1
                else:
                    to[at] = 0xDE
                    to[at + 1] = items >> 8
                    to[at + 2] = items & 0xFF
                    at += 3
                to[at] = 0x01
                at = put_uint(to, at + 1, sync)
            at = copy(raw, start, stop, to, at)
        length = at - head - PACKET_BYTES
        to[head] = 0xCE
        for i in range(4):
            to[head + 1 + i] = length >> (24 - 8 * i) & 0xFF
    return at


def highest_lsns(table: Table, capacity: int, count: int, lsns: Table) -> int:
    """Raise `lsns`, one number per replica id, to the highest lsn that the rows have of each.

    Returns the first row whose lsn is not above what `lsns` had of its replica id by then, `count`
    if there is none; -1 - row where a replica id is over 31.
    """
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
