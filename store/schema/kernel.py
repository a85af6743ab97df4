# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of the store: find tuples, check their fields, make their sorting keys.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `kernel.pxd`. `COMPILED` says which one runs. `store.schema.bulk` is its face; nothing else
calls it. The encoding of keys is specified in `store.schema.keys`, the checks in
`store.schema.format`.

Every number is an unsigned 64-bit one. A *plan* is an array of them (format "Q"), made once for
an index of a space:

============  ====================================================================================
at            holds
============  ====================================================================================
0             exact field count of a tuple, 0 for any
1             F: number of top-level fields that are checked
2             largest length of a tuple, in bytes
3             P: number of key parts
4             U: so many of them are written, and the others only where one of these is nil
5 + 2i        field i: bit set of the MsgPack kinds that may stand there (`fieldtype.MpType`)
6 + 2i        field i: bit set of the extension types; bit 32 if the field may be absent
5 + 2F + 2k   part k: field number, less than `PLACES`
6 + 2F + 2k   part k: field type; 256 is added where strings are ordered by a collation
============  ====================================================================================

Nothing here recurses or believes a length: every read and write is checked against the
ends of its buffer first, since the compiled one would not notice. A table of the caller's own that
is too short, or whose numbers contradict one another, is an `IndexError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

# How a loop over tuples ended.
DONE = 0
NO_ROOM = 1
ODD = 2
BAD = 3

# For who makes plans, and the same for C, which alone then sees them.
PLACES = 64  # parts of an index lie within so many leading fields; C needs it when it is compiled
ABSENT_BIT = 32
COLLATED = 256
_PLACES = PLACES
_ABSENT_BIT = ABSENT_BIT
_COLLATED = COLLATED
PLAN_FIELDS = 5
PART_BYTES = 20  # the key of a part is at most so much longer than twice its value

# Kinds of values, as `fieldtype.MpType`, and types of parts, as `fieldtype.FieldType`.
NIL, UINT, INT, STR, BIN, ARRAY, MAP, BOOL, FLOAT, DOUBLE, EXT = range(11)
UNSIGNED = 1
INTEGER = 5

# First bytes of the keys of parts.
KEY_NIL = 0x10
KEY_BOOL = 0x20
KEY_NEGATIVE = 0x30
KEY_POSITIVE = 0x31
KEY_NUMBER = 0x38
KEY_STRING = 0x40
KEY_BINARY = 0x50
KEY_UUID = 0x60

EXT_UUID = 2

# Parts of the 64 bits of a float.
ONES = 2**64 - 1
SIGN = 2**63
FRACTION = 2**52 - 1
INFINITE = 0x7FF << 52
QUIET = 2**51
EXACT_END = 2**53 + 1  # integers from here on need not have a float of their own

# The kind of a value by its first byte; 31, which no field admits, for c1.
_kinds = bytes(
    [UINT] * 128
    + [MAP] * 16
    + [ARRAY] * 16
    + [STR] * 32
    + [NIL, 31, BOOL, BOOL, BIN, BIN, BIN, EXT, EXT, EXT, FLOAT, DOUBLE]
    + [UINT] * 4
    + [INT] * 4
    + [EXT] * 5
    + [STR] * 3
    + [ARRAY, ARRAY, MAP, MAP]
    + [INT] * 32
)
KINDS = _kinds


def split(data: bytes, at: int, end: int, offsets: Table) -> int:
    """Find the values that stand one behind the other from `at` to `end`. Returns how many.

    `offsets`: takes where each begins and, behind that, where the last ends; it has room for at
    least one value. It stops when that is full, or before a value that is cut, malformed or too
    deep: where it stopped is the last number written.
    """
    if not len(offsets) or at < 0 or end > len(data):
        raise IndexError("split: values that are not in the buffer, or no room for their places")
    raw = data
    owed = [0] * 512
    count = 0
    room = len(offsets) - 1
    offsets[0] = at
    while at < end and count < room:
        at = rows.skip_value(raw, at, end, owed, 0)
        if at < 0:
            break
        count += 1
        offsets[count] = at
    return count


def items_at(data: bytes, at: int, end: int) -> int:
    """Where the items of the array at `at` begin; -1 if it is none or cut short."""
    if at >= end:
        return -1
    first = data[at]
    if 0x90 <= first < 0xA0:
        return at + 1
    if first != 0xDC and first != 0xDD:
        return -1
    stop = at + 3 if first == 0xDC else at + 5
    return stop if stop <= end else -1


def check(data: bytes, at: int, end: int, plan: Table, places: list[int], owed: list[int]) -> int:
    """Check one tuple against a plan. Returns its field count, -1 where it fails.

    `places`: takes where its first `PLACES` fields begin.
    """
    stop = items_at(data, at, end)
    if stop < 0 or end - at > plan[2]:
        return -1
    count = data[at] & 0x0F if stop == at + 1 else rows.load(data, at + 1, stop - at - 1)
    at = stop
    if plan[0] != 0 and count != plan[0]:
        return -1
    checked = plan[1]
    for i in range(count):
        if at >= end:
            return -1
        if i < _PLACES:
            places[i] = at
        first = data[at]
        stop = at + 1 if first < 0x80 else rows.skip_value(data, at, end, owed, 1)
        if stop < 0:
            return -1
        if i < checked:
            kind = KINDS[first]
            if kind == EXT:
                code = data[at + 1] if first >= 0xD4 else data[at + 1 + (1 << (first - 0xC7))]
                if code >= 128 or plan[PLAN_FIELDS + 1 + 2 * i] >> (code & 31) & 1 == 0:
                    return -1
            elif plan[PLAN_FIELDS + 2 * i] >> kind & 1 == 0:
                return -1
        at = stop
    for i in range(count, checked):
        if plan[PLAN_FIELDS + 1 + 2 * i] >> _ABSENT_BIT & 1 == 0:
            return -1
    return count if at == end else -1


def alike(plan: Table) -> int:
    """How many parts of an index at most are of one field: one with a collation may have the same
    field as one of the primary index. Raises IndexError for a plan that contradicts itself."""
    room = len(plan) - PLAN_FIELDS
    if room < 0 or plan[1] > room // 2 or plan[3] > room // 2 - plan[1]:
        raise IndexError("a plan is too short")
    first = PLAN_FIELDS + 2 * plan[1]
    most = 1
    for k in range(plan[3]):
        field = plan[first + 2 * k]
        if field >= _PLACES:
            raise IndexError("a plan looks too far into tuples")
        count = 1
        for i in range(k):
            if plan[first + 2 * i] == field:
                count += 1
        most = max(most, count)
    return most


def keys(
    data: bytes, offsets: Table, row: int, count: int, plan: Table, out: bytearray, ends: Table
) -> int:
    """Check the tuples `row` … `count` - 1 and write their keys one behind the other.

    `offsets[r]` … `offsets[r + 1]`: where tuple r stands in `data`. `ends[r]` … `ends[r + 1]`:
    where its key stands in `out`; `ends[row]` is given. Returns 4 x r + how it ended: `DONE`;
    `NO_ROOM`: `out` is too short for the key of r; `ODD`: tuple r needs the ordinary path
    (a decimal, a collation, an integer without a float of its own among numbers); `BAD`: it
    fails a check, the ordinary path tells which.
    """
    raw = data
    to = out
    places = [0] * 64
    owed = [0] * 512
    size = len(data)
    room = len(out)
    most = alike(plan)
    parts = plan[3]
    if row < 0 or count >= len(offsets) or count >= len(ends):
        raise IndexError("keys: a table is too short")
    while row < count:
        at = offsets[row]
        end = offsets[row + 1]
        used = ends[row]
        if end > size or at > end:
            return 4 * row + BAD
        if used > room or 2 * (end - at) * most + PART_BYTES * parts > room - used:
            return 4 * row + NO_ROOM
        found = check(raw, at, end, plan, places, owed)
        if found < 0:
            return 4 * row + BAD
        stop = put_key(raw, places, found, plan, to, used)
        if stop < 0:
            return 4 * row + ODD
        row += 1
        ends[row] = stop
    return 4 * row + DONE


def put_key(
    data: bytes, places: list[int], found: int, plan: Table, out: bytearray, used: int
) -> int:
    """Write the key of a tuple that was checked, of whose fields the first `found` stand at
    `places`. Returns its end; -1 if a part is odd. Unchecked."""
    parts_at = PLAN_FIELDS + 2 * plan[1]
    parts = plan[3]
    wanted = plan[4]
    for k in range(parts):
        if k == wanted:
            break
        number = plan[parts_at + 2 * k]
        if number >= found or data[places[number]] == 0xC0:
            out[used] = KEY_NIL
            used += 1
            wanted = parts
            continue
        used = put_part(data, places[number], plan[parts_at + 1 + 2 * k], out, used)
        if used < 0:
            return -1
    return used


def put_part(data: bytes, at: int, part: int, out: bytearray, used: int) -> int:
    """Write the key of a value, not nil, that its part admits. Returns its end; -1 if it is odd."""
    first = data[at]
    kind = KINDS[first]
    if kind in (UINT, INT):
        return put_integer(data, at, part, out, used)
    if kind == STR:
        if part >= _COLLATED:
            return -1
        out[used] = KEY_STRING
        return put_bytes(data, at, out, used + 1)
    if kind == BIN:
        out[used] = KEY_BINARY
        return put_bytes(data, at, out, used + 1)
    if kind == BOOL:
        out[used] = KEY_BOOL
        out[used + 1] = first & 1
        return used + 2
    if kind == DOUBLE:
        return put_float(rows.load(data, at + 1, 8), out, used)
    if kind == FLOAT:
        return put_float(widen(rows.load(data, at + 1, 4)), out, used)
    if first != 0xD8 or data[at + 1] != EXT_UUID:
        return -1
    out[used] = KEY_UUID
    for i in range(16):
        out[used + 1 + i] = data[at + 2 + i]
    return used + 17


def put_integer(data: bytes, at: int, part: int, out: bytearray, used: int) -> int:
    """An integer: nine bytes where the part holds only such, else as the float that it equals."""
    first = data[at]
    is_negative = False
    if first < 0x80:
        bits = first
    elif first >= 0xE0:
        is_negative = True
        bits = 0x100 - first
    elif first < 0xD0:
        bits = rows.load(data, at + 1, 1 << (first - 0xCC))
    else:
        width = 1 << (first - 0xD0)
        bits = rows.load(data, at + 1, width)
        if data[at + 1] >= 0x80:
            is_negative = True
            bits = ((bits ^ (ONES >> (64 - 8 * width))) + 1) & ONES
    if part in (UNSIGNED, INTEGER):
        out[used] = KEY_NEGATIVE if is_negative else KEY_POSITIVE
        return put_u64((ONES - bits) + 1 if is_negative else bits, out, used + 1)
    if bits >= EXACT_END:
        return -1
    bits = float_of(bits)
    return put_float(bits | SIGN if is_negative else bits, out, used)


def float_of(value: int) -> int:
    """The bits of the float that equals an integer of 0 … 2^53."""
    if value == 0:
        return 0
    digits = 0
    rest = value >> 1
    while rest:
        rest = rest >> 1
        digits += 1
    exponent = 1023 + digits
    if digits == 53:
        return exponent << 52
    return exponent << 52 | (value << (52 - digits) & FRACTION)


def widen(bits: int) -> int:
    """The bits of the 64-bit float that equals a 32-bit one; a signalling NaN becomes quiet."""
    sign = bits >> 31 << 63
    exponent = bits >> 23 & 0xFF
    fraction = bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign | INFINITE | (fraction << 29 | QUIET if fraction else 0)
    if exponent == 0:
        if fraction == 0:
            return sign
        exponent = 897
        while fraction & 0x800000 == 0:
            fraction = fraction << 1
            exponent -= 1
        fraction = fraction & 0x7FFFFF
    else:
        exponent += 896
    return sign | exponent << 52 | fraction << 29


def put_float(bits: int, out: bytearray, used: int) -> int:
    """A float: its class, eight bytes in its order, 00. NaNs come first, quiet ones second."""
    magnitude = bits & (SIGN - 1)
    if magnitude > INFINITE:
        image = 1 if bits & QUIET else 0
    elif bits & SIGN and magnitude != 0:
        image = bits ^ ONES
    else:
        image = magnitude | SIGN
    out[used] = KEY_NUMBER
    used = put_u64(image, out, used + 1)
    out[used] = 0
    return used + 1


def put_u64(value: int, out: bytearray, used: int) -> int:
    """Eight bytes, big-endian. Returns where they end."""
    for i in range(8):
        out[used + i] = value >> (56 - 8 * i) & 0xFF
    return used + 8


def put_bytes(data: bytes, at: int, out: bytearray, used: int) -> int:
    """The bytes of a str or bin: 00 as 00 ff, behind the last 00 00. Returns where they end."""
    first = data[at]
    if first < 0xC0:
        size = first & 0x1F
        at += 1
    else:
        width = 1 << (first - 0xC4 if first < 0xD9 else first - 0xD9)
        size = rows.load(data, at + 1, width)
        at += 1 + width
    for i in range(size):
        byte = data[at + i]
        out[used] = byte
        used += 1
        if byte == 0:
            out[used] = 0xFF
            used += 1
    out[used] = 0
    out[used + 1] = 0
    return used + 2


def parts(packed: bytes, bounds: Table) -> list[bytes]:
    """The slices of `packed` between one bound and the next, each as bytes of its own."""
    found: list[bytes] = []
    raw = packed
    size = len(packed)
    if not len(bounds):
        raise IndexError("there are no boundaries")
    start = bounds[0]
    for row in range(len(bounds) - 1):
        end = bounds[row + 1]
        if not start <= end <= size:
            raise IndexError("a boundary is not in its buffer")
        found.append(raw[start:end])
        start = end
    return found


COMPILED = "put_bytes" not in globals()  # compiled, it is a C function that Python does not see
