# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of buckets: the tuple of an item, read and written, and numbers in network order.

Compiled or plain Python, as `wal.kernel` is. It checks lengths as that does. The kernels of the
protocols that serve buckets call it, nothing else does. Tuples are specified in
`replication.bucket.item`. What is called unchecked is checked by who calls it.
"""

from __future__ import annotations

import logweir.wal.kernel as rows

COMPILED = not __file__.endswith(".py")

_KEY_MAX = 250  # limits.TAP_KEY_BYTES

# Of an item: numbers, and where its parts stand in its tuple.
(_VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE) = range(5)
(_KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END) = range(5, 10)
(_FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL) = range(10, 16)
(_COMPRESSION, _DATE_AT, _MARKS) = (16, 17, 18)


def load2(data: bytes, at: int) -> int:
    """The big-endian number of two bytes. Unchecked."""
    return data[at] << 8 | data[at + 1]


def load4(data: bytes | bytearray, at: int) -> int:
    """The big-endian number of four bytes. Unchecked."""
    value = 0
    for i in range(4):
        value = value << 8 | data[at + i]
    return value


def put2(out: bytearray, at: int, value: int) -> int:
    """Write two bytes, big-endian. Where they end. Unchecked."""
    out[at] = value >> 8 & 0xFF
    out[at + 1] = value & 0xFF
    return at + 2


def put4(out: bytearray, at: int, value: int) -> int:
    """Write four bytes, big-endian. Where they end. Unchecked."""
    for i in range(4):
        out[at + i] = value >> (24 - 8 * i) & 0xFF
    return at + 4


def put8(out: bytearray, at: int, value: int) -> int:
    """Write eight bytes, big-endian. Where they end. Unchecked."""
    for i in range(8):
        out[at + i] = value >> (56 - 8 * i) & 0xFF
    return at + 8


def uint_stop(data: bytes, at: int, end: int) -> int:
    """Where the unsigned integer at `at` ends; -1 if it is none, or longer than it need be."""
    stop = rows.uint_end(data, at, end)
    width = stop - at
    if width == 2:
        return stop if data[at + 1] >= 0x80 else -1
    if width == 3:
        return stop if data[at + 1] else -1
    if width == 5:
        return stop if load2(data, at + 1) else -1
    if width == 9:
        return stop if load4(data, at + 1) else -1
    return stop


def bin_start(data: bytes, at: int, end: int) -> int:
    """Where the content of the bin at `at` begins; -1 if it is none, or not in shortest form."""
    if end - at < 2:
        return -1
    first = data[at]
    if first == 0xC4:
        return at + 2
    if first == 0xC5:
        return at + 3 if end - at >= 3 and data[at + 1] else -1
    if first == 0xC6 and end - at >= 5:
        return at + 5 if load2(data, at + 1) else -1
    return -1


def take_uint(data: bytes, at: int, end: int, fields: list[int], place: int) -> int:
    """Read an unsigned integer into a field. Where it ends; -1 if it is none, or longer than it
    need be."""
    if at < end and data[at] < 0x80:
        fields[place] = data[at]
        return at + 1
    stop = uint_stop(data, at, end)
    if stop >= 0:
        fields[place] = rows.uint(data, at, stop)
    return stop


def take_bin(data: bytes, at: int, end: int, fields: list[int], place: int) -> int:
    """Put where a bin's content begins and ends into two fields. Where it ends; -1 if it is none,
    or not in shortest form."""
    start = bin_start(data, at, end)
    if start < 0:
        return -1
    size = data[at + 1] if start == at + 2 else rows.load(data, at + 1, start - at - 1)
    if size > end - start:
        return -1
    fields[place] = start
    fields[place + 1] = start + size
    return start + size


def item_end(data: bytes, at: int, end: int, fields: list[int]) -> int:
    """Read the tuple of an item that begins at `at`. Returns where it ends, at most `end`; -1 where
    it is not as `pack_item` writes it.

    `fields`: takes its numbers, and its places in `data`.
    """
    if end <= at or data[at] < 0x9A or data[at] > 0x9C:
        return -1
    more = data[at] - 0x9A
    at = take_bin(data, at + 1, end, fields, _KEY_AT)
    if at < 0:
        return -1
    at = take_uint(data, at, end, fields, _VBUCKET)
    if at < 0:
        return -1
    fields[_HEAD_END] = at
    at = take_bin(data, at, end, fields, _VALUE_AT)
    if at < 0:
        return -1
    fields[_FLAGS_AT] = at
    for field in range(_FLAGS, _DATATYPE + 1):
        at = take_uint(data, at, end, fields, field)
        if at < 0:
            return -1
        if field == _FLAGS:
            fields[_FLAGS_END] = at
        elif field == _ITEM_CAS:
            fields[_TAIL_AT] = at
    at = take_uint(data, at, end, fields, _COMPRESSION)
    if at < 0 or at >= end or not 0xA0 <= data[at] < 0xC0:
        return -1
    fields[_DATE_AT] = at
    at = take_bin(data, at + 1 + (data[at] & 0x1F), end, fields, _META_AT)
    if at < 0:
        return -1
    fields[_TTL] = 255
    fields[_MARKS] = 0
    if more:
        at = take_uint(data, at, end, fields, _TTL)
        if at < 0 or fields[_TTL] > 253 + more:
            return -1
    if more > 1:
        at = take_uint(data, at, end, fields, _MARKS)
        if at < 0 or fields[_MARKS] == 0 or fields[_MARKS] > 3:
            return -1
    if (
        fields[_VBUCKET] > 0xFFFF
        or fields[_FLAGS] >> 32  # for C a constant of 32 bits would be an object
        or fields[_EXPIRY] >> 32
        or fields[_DATATYPE] > 0xFF
        or not 0 < fields[_KEY_END] - fields[_KEY_AT] <= _KEY_MAX
    ):
        return -1
    return at


def read_item(data: bytes, at: int, end: int, fields: list[int]) -> bool:
    """`item_end` of a tuple from `at` to `end`: whether it is one of an item."""
    return item_end(data, at, end, fields) == end


def dated(tuples: list[bytes]) -> list[bytes]:
    """Those tuples of items that have an expiry, and those that are not as `pack_item` writes
    them."""
    fields = [0] * 19
    found = []
    for data in tuples:
        raw = data
        if not read_item(raw, 0, len(data), fields) or fields[_EXPIRY]:
            found.append(data)
    return found


def put_bin(data: bytes, start: int, stop: int, out: bytearray, at: int) -> int:
    """Write bytes as a bin in its shortest form. Returns where it ends. Unchecked."""
    size = stop - start
    if size <= 0xFF:
        out[at] = 0xC4
        out[at + 1] = size
        at += 2
    elif size <= 0xFFFF:
        out[at] = 0xC5
        at = put2(out, at + 1, size)
    else:
        out[at] = 0xC6
        at = put4(out, at + 1, size)
    return rows.copy(data, start, stop, out, at)
