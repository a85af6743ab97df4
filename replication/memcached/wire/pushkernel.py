# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of TAP's streams: items as packets.

Compiled or plain Python, as `wal.kernel` is. It checks lengths and tables as that does.
`memcached.wire.mutations` is its face; nothing else calls it. Packets are specified in
`memcached.wire.codec`, tuples in `replication.bucket.item`, what reads them in
`replication.bucket.kernel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.bucket.kernel as bucket
import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

_STATES = 1 << 16  # bucket.VBUCKETS: one byte for each
_PRIVATE, _AGE = 9, 2  # bytes, and the last of them where they are made here

# What `bucket.kernel.item_end` finds of an item.
(_VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
(_FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL) = range(10, 16)


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
    fields = [0] * 19
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
    fields = [0] * 19
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
