# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Synapse's lines on their way out: MsgPack → JSON, tuples → RDATA lines.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `linekernel.pxd`. `COMPILED` says which one runs. `rows` is its face; nothing else calls it. What
is not plain here is *odd*, and goes the ordinary way (`codec.row_text`): binary, extensions, 32-bit
floats, numbers that are none, values nested deeper than `DEPTH`, maps of more than `KEYS` keys or
with keys that are not strings or begin with `$`, and strings that are not UTF-8. What is not odd
gives the text that the ordinary way gives.

Every value is first walked through by `wal.kernel`, which believes no length; only whole ones get
here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import logweir.wal.kernel as packed_rows

if TYPE_CHECKING:
    from array import array

    Table = array[int]

# Forms of what is written, for who uses it, and the same for C, which alone then sees them.
FORMS = {"compact": 0, "spaced": 1, "strict": 2}
TEXT_ROOM_BYTES = 64  # JSON has at most so many bytes more than eight times those of its MsgPack
SPACED = 1
STRICT = 2
ROOM = 64

# Places in a container that is being written.
ITEMS_FIRST = 0
ITEMS = 1
KEYS_FIRST = 2
KEYS_MORE = 3
OF_KEY = 4
NO_KIND = 5

DEPTH = 32  # containers in one another
KEYS = 16  # of one map
ONES = 2**64 - 1
NUL = 0
_digits = b"0123456789abcdef"
DIGITS = _digits


def put_escaped(code: int, to: bytearray, used: int) -> int:
    """`\\uXXXX`. Returns where it ends."""
    to[used] = 0x5C
    to[used + 1] = 0x75
    for i in range(4):
        to[used + 2 + i] = DIGITS[code >> (12 - 4 * i) & 15]
    return used + 6


def put_string(data: bytes, at: int, stop: int, to: bytearray, used: int, is_strict: bool) -> int:
    """UTF-8 as a JSON string of ASCII. Returns where it ends, -1 where it is not UTF-8; a lone
    surrogate in three bytes stays one, unless `is_strict`."""
    to[used] = 0x22
    used += 1
    while at < stop:
        byte = data[at]
        at += 1
        if 0x20 <= byte < 0x7F:
            if byte == 0x22 or byte == 0x5C:
                to[used] = 0x5C
                used += 1
            to[used] = byte
            used += 1
            continue
        if byte < 0x80:
            short = 0
            if byte == 10:
                short = 0x6E
            elif byte == 13:
                short = 0x72
            elif byte == 9:
                short = 0x74
            elif byte == 8:
                short = 0x62
            elif byte == 12:
                short = 0x66
            if short:
                to[used] = 0x5C
                to[used + 1] = short
                used += 2
            else:
                used = put_escaped(byte, to, used)
            continue
        more = 1 if 0xC2 <= byte < 0xE0 else 2 if 0xE0 <= byte < 0xF0 else 3
        if byte < 0xC2 or byte > 0xF4 or stop - at < more:
            return -1
        code = byte & (0x3F >> more)
        for i in range(more):
            byte = data[at + i]
            if byte & 0xC0 != 0x80:
                return -1
            code = code << 6 | (byte & 0x3F)
        at += more
        if (more == 2 and code < 0x800) or (more == 3 and (code < 0x10000 or code > 0x10FFFF)):
            return -1
        if is_strict and 0xD800 <= code < 0xE000:
            return -1
        if code < 0x10000:
            used = put_escaped(code, to, used)
        else:
            code -= 0x10000
            used = put_escaped(0xD800 | code >> 10, to, used)
            used = put_escaped(0xDC00 | (code & 0x3FF), to, used)
    to[used] = 0x22
    return used + 1


def put_decimal(value: int, to: bytearray, used: int) -> int:
    """An unsigned integer in decimal digits. Returns where it ends."""
    count = 1
    rest = value
    while rest >= 10:
        rest = rest // 10
        count += 1
    at = used + count
    while at > used:
        at -= 1
        to[at] = 0x30 + value % 10
        value = value // 10
    return used + count


def put_bytes(found: bytes, to: bytearray, used: int) -> int:
    """Bytes as they are. Returns where they end."""
    for i in range(len(found)):
        to[used + i] = found[i]
    return used + len(found)


def put_comma(to: bytearray, used: int, byte: int, form: int) -> int:
    """`,` or `:`, with a space behind it in the spaced form. Returns where it ends."""
    to[used] = byte
    if form != SPACED:
        return used + 1
    to[used + 1] = 0x20
    return used + 2


def text_start(data: bytes, at: int) -> int:
    """Where the text of the string at `at` begins; -1 where there is none."""
    first = data[at]
    if 0xA0 <= first < 0xC0:
        return at + 1
    if first == 0xD9 or first == 0xDA or first == 0xDB:
        return at + 1 + (1 << (first - 0xD9))
    return -1


def big(data: bytes, at: int, stop: int) -> int:
    """The number in data[at:stop], big-endian."""
    value = NUL
    while at < stop:
        value = value << 8 | data[at]
        at += 1
    return value


def put_plain(data: bytes, at: int, to: bytearray, used: int, found: list[int]) -> int:
    """The number, boolean or nil at `at`. Returns where it ends in `to`; -1 where it is odd.

    `found`: takes where it ends in `data`.
    """
    first = data[at]
    at += 1
    found[0] = at
    if first < 0x80:
        return put_decimal(first, to, used)
    if first >= 0xE0:
        to[used] = 0x2D
        return put_decimal(0x100 - first, to, used + 1)
    if first == 0xC0:
        return put_bytes(b"null", to, used)
    if first == 0xC2:
        return put_bytes(b"false", to, used)
    if first == 0xC3:
        return put_bytes(b"true", to, used)
    if 0xCC <= first <= 0xD3:
        width = 1 << (first & 3)
        bits = big(data, at, at + width)
        found[0] = at + width
        if first >= 0xD0 and data[at] >= 0x80:
            bits = ((bits ^ (ONES >> (64 - 8 * width))) + 1) & ONES
            to[used] = 0x2D
            used += 1
        return put_decimal(bits, to, used)
    if first != 0xCB:
        return -1
    (number,) = struct.unpack(">d", data[at : at + 8])
    found[0] = at + 8
    if number - number != 0:
        return -1
    return put_bytes(repr(number).encode(), to, used)


def item(data: bytes, at: int, end: int, to: bytearray, used: int, form: int) -> int:
    """The MsgPack value in data[at:end], which is whole, as JSON from to[used] on.

    Returns where it ends; -1 where it is odd. `form`: COMPACT; SPACED, with a space behind `,` and
    `:`; STRICT, compact, and a lone surrogate is odd. `to` has room for eight times as many bytes,
    and `ROOM` more.
    """
    left = [0] * 32
    kinds = [0] * 32
    found = [0] * 1
    depth = 0
    while True:
        while depth and left[depth - 1] == 0:
            depth -= 1
            to[used] = 0x5D if kinds[depth] <= ITEMS else 0x7D
            used += 1
        if at >= end:
            return used if depth == 0 else -1
        kind = NO_KIND
        if depth:
            kind = kinds[depth - 1]
            left[depth - 1] -= 1
            if kind in (ITEMS, KEYS_MORE):
                used = put_comma(to, used, 0x2C, form)
            kinds[depth - 1] = ITEMS if kind <= ITEMS else KEYS_MORE if kind == OF_KEY else OF_KEY
        start = text_start(data, at)
        if start >= 0:
            first = data[at]
            size = first & 0x1F if first < 0xC0 else big(data, at + 1, start)
            if (kind in (KEYS_FIRST, KEYS_MORE)) and size and data[start] == 0x24:
                return -1
            at = start + size
            used = put_string(data, start, at, to, used, form == STRICT)
            if used < 0:
                return -1
            if kind in (KEYS_FIRST, KEYS_MORE):
                used = put_comma(to, used, 0x3A, form)
            continue
        if kind in (KEYS_FIRST, KEYS_MORE):
            return -1
        first = data[at]
        if 0x80 <= first < 0xA0 or 0xDC <= first < 0xE0:
            is_map = 1 if first < 0x90 or first >= 0xDE else 0
            start = at + 1
            if first >= 0xA0:
                start = at + 3 if first & 1 == 0 else at + 5
            count = first & 0x0F if first < 0xA0 else big(data, at + 1, start)
            if depth == DEPTH or (is_map and count > KEYS):
                return -1
            to[used] = 0x7B if is_map else 0x5B
            used += 1
            kinds[depth] = KEYS_FIRST if is_map else ITEMS_FIRST
            left[depth] = 2 * count if is_map else count
            depth += 1
            at = start
            continue
        used = put_plain(data, at, to, used, found)
        if used < 0:
            return -1
        at = found[0]


def text(data: bytes, form: int, out: bytearray) -> int:
    """One MsgPack value as JSON at the beginning of `out`. Returns its size; -1 where it is odd,
    malformed, or `out` too short."""
    size = len(data)
    if 8 * size + ROOM > len(out):
        return -1
    raw, to = data, out
    owed = [0] * 512
    if size == 0 or packed_rows.skip_value(raw, 0, size, owed, 0) != size:
        return -1
    return item(raw, 0, size, to, 0, form)


def parts(data: bytes, at: int, size: int, owed: list[int], found: list[int]) -> bool:
    """Find place and row of a stream space's tuple whose token is at `at`; False where it is none.

    `found`: takes where they begin.
    """
    if size <= at or data[0] != 0x94:
        return False
    place = packed_rows.skip_value(data, at, size, owed, 0)
    if place < 0:
        return False
    row = packed_rows.skip_value(data, place, size, owed, 0)
    if row < 0 or packed_rows.skip_value(data, row, size, owed, 0) != size:
        return False
    found[0] = place
    found[1] = row
    return True


def is_alike(data: bytes, other: bytes, size: int, at: int, stop: int) -> bool:
    """Whether data[at:stop] is other[at:stop]. `size`: of `other`."""
    if size < stop:
        return False
    while at < stop:
        if data[at] != other[at]:
            return False
        at += 1
    return True


def lines(
    found: list[bytes],
    first: int,
    head: bytes,
    form: int,
    out: bytearray,
    label_size: int,
    limit: int,
    ends: Table,
) -> int:
    """Tuples of a stream space, of one writer, from `first` on, as RDATA lines.

    `head`: everything before a line's token; `label_size`: bytes of the writer's label as MsgPack.
    A token's rows are one unit: `batch` but for the last. `ends`: takes where each unit that was
    written ends in `out`, and how many tuples are done then; two numbers. Returns how many units,
    all whole: less than there are where one is odd, has a line of more than `limit` bytes, or `out`
    is full. The last of `found` ends its unit.
    """
    to, start_of_line = out, head
    room = len(out)
    head_size = len(head)
    owed = [0] * 512
    where = [0] * 2
    token_at = 1 + label_size
    count = len(found)
    used = 0
    made = 0
    row = first
    while row < count:
        packed: Any = found[row]
        raw = packed
        size = len(packed)
        if 8 * size + ROOM + head_size > room - used:
            break
        if not parts(raw, token_at, size, owed, where):
            break
        is_last = 1
        row += 1
        if row < count:
            after: Any = found[row]
            other = after
            is_last = 0 if is_alike(raw, other, len(after), token_at, where[0]) else 1
        begun = used
        for i in range(head_size):
            to[used + i] = start_of_line[i]
        used += head_size
        if is_last:
            used = item(raw, token_at, where[0], to, used, form)
        else:
            used = put_bytes(b"batch", to, used)
        if used < 0:
            break
        to[used] = 0x20
        used = item(raw, where[1], size, to, used + 1, form)
        if used < 0 or used - begun > limit:
            break
        to[used] = 0x0A
        used += 1
        if is_last:
            ends[2 * made] = used
            ends[2 * made + 1] = row
            made += 1
    return made


COMPILED = "put_string" not in globals()  # compiled, it is a C function that Python does not see
