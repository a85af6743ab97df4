# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Synapse's lines on their way in: lines → rows as MsgPack → tuples.

Compiled or plain Python, as `wal.kernel` is. It checks lengths as that does. `rows` is its face;
nothing else calls it. JSON and lines are specified in `codec`; what is not plain here is *odd*, and
goes the ordinary way there: bytes outside ASCII, values nested deeper than `DEPTH`, numbers of more
than 18 digits, objects of more than `KEYS` keys or with equal ones, arrays of more than 65535
items, and everything that is malformed. What is not odd gives the bytes that the ordinary way
gives. A table of the caller's own that is too short, or whose numbers are not in its buffers, is an
`IndexError`, and nothing else raises.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import logweir.wal.kernel as packed_rows

if TYPE_CHECKING:
    from array import array

    Table = array[int]

# Places of a value that is being read.
VALUE = 0
KEY = 1
AFTER = 2

# For who uses it, and the same for C, which alone then sees them.
ROOM_BYTES = 64  # MsgPack has at most so many bytes more than three times those of its JSON
BATCH = 2**64 - 1  # the token of a `batch` row

DEPTH = 32  # containers in one another
KEYS = 16  # of one object
OPEN_KEYS = 128  # of all objects that are open
ROOM = 64
ONES = 2**64 - 1
NUL = 0

_hex = bytes([next((v for v in range(16) if chr(c) in f"{v:x}{v:X}"), 255) for c in range(256)])
HEX = _hex
_short = bytes(
    [
        {0x22: 0x22, 0x5C: 0x5C, 0x2F: 0x2F, 0x62: 8, 0x66: 12, 0x6E: 10, 0x72: 13, 0x74: 9}.get(
            c, 0
        )
        for c in range(256)
    ]
)
SHORT = _short


# --- JSON → MsgPack -------------------------------------------------------------------------------
def blank(data: bytes, at: int, end: int) -> int:
    """Where the white space from `at` on ends."""
    while at < end and (data[at] == 32 or data[at] == 13 or data[at] == 9 or data[at] == 10):
        at += 1
    return at


def hex4(data: bytes, at: int, end: int) -> int:
    """Four hexadecimal digits; -1 where they are none."""
    if end - at < 4:
        return -1
    code = 0
    for i in range(4):
        digit = HEX[data[at + i]]
        if digit > 15:
            return -1
        code = code << 4 | digit
    return code


def measure(data: bytes, at: int, end: int, found: list[int]) -> int:
    """How many bytes the string from `at` on, behind its quote, has as UTF-8; -1 where it is odd.

    `found`: takes where its closing quote is.
    """
    size = 0
    while at < end:
        byte = data[at]
        if byte == 0x22:
            found[0] = at
            return size
        if byte < 0x20 or byte >= 0x80:
            return -1
        at += 1
        if byte != 0x5C:
            size += 1
            continue
        if at >= end:
            return -1
        byte = data[at]
        at += 1
        if byte != 0x75:
            if SHORT[byte] == 0:
                return -1
            size += 1
            continue
        code = hex4(data, at, end)
        if code < 0:
            return -1
        at += 4
        if 0xD800 <= code < 0xDC00 and at + 1 < end and data[at] == 0x5C and data[at + 1] == 0x75:
            low = hex4(data, at + 2, end)
            if low < 0:
                return -1
            if 0xDC00 <= low < 0xE000:
                size += 4
                at += 6
                continue
        size += 1 if code < 0x80 else 2 if code < 0x800 else 3
    return -1


def put_size(to: bytearray, used: int, size: int) -> int:
    """The header of a string of `size` bytes. Returns where it ends."""
    if size < 32:
        to[used] = 0xA0 | size
        return used + 1
    if size < 0x100:
        to[used] = 0xD9
        to[used + 1] = size
        return used + 2
    if size < 0x10000:
        to[used] = 0xDA
        to[used + 1] = size >> 8
        to[used + 2] = size & 0xFF
        return used + 3
    to[used] = 0xDB
    for i in range(4):
        to[used + 1 + i] = size >> (24 - 8 * i) & 0xFF
    return used + 5


def put_text(data: bytes, at: int, stop: int, to: bytearray, used: int) -> int:
    """The text of a string that was measured, without escapes. Returns where it ends."""
    while at < stop:
        byte = data[at]
        at += 1
        if byte != 0x5C:
            to[used] = byte
            used += 1
            continue
        byte = data[at]
        at += 1
        if byte != 0x75:
            to[used] = SHORT[byte]
            used += 1
            continue
        code = hex4(data, at, stop)
        at += 4
        if 0xD800 <= code < 0xDC00 and at + 1 < stop and data[at] == 0x5C and data[at + 1] == 0x75:
            low = hex4(data, at + 2, stop)
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
        if code < 0x80:
            to[used] = code
            used += 1
        elif code < 0x800:
            to[used] = 0xC0 | code >> 6
            to[used + 1] = 0x80 | (code & 0x3F)
            used += 2
        elif code < 0x10000:
            to[used] = 0xE0 | code >> 12
            to[used + 1] = 0x80 | (code >> 6 & 0x3F)
            to[used + 2] = 0x80 | (code & 0x3F)
            used += 3
        else:
            to[used] = 0xF0 | code >> 18
            to[used + 1] = 0x80 | (code >> 12 & 0x3F)
            to[used + 2] = 0x80 | (code >> 6 & 0x3F)
            to[used + 3] = 0x80 | (code & 0x3F)
            used += 4
    return used


def put_negative(value: int, to: bytearray, used: int) -> int:
    """Minus `value`, which is not 0, in the fewest bytes. Returns where it ends."""
    bits = (ONES - value) + 1
    if value <= 32:
        to[used] = bits & 0xFF
        return used + 1
    width = 1 if value <= 0x80 else 2 if value <= 0x8000 else 4 if (value - 1) >> 31 == 0 else 8
    to[used] = 0xD0 if width == 1 else 0xD1 if width == 2 else 0xD2 if width == 4 else 0xD3
    for i in range(width):
        to[used + 1 + i] = bits >> (8 * (width - 1 - i)) & 0xFF
    return used + 1 + width


def digits_end(data: bytes, at: int, end: int) -> int:
    """Where the decimal digits from `at` on end."""
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    return at


def put_number(data: bytes, at: int, end: int, to: bytearray, used: int, found: list[int]) -> int:
    """The number at `at`. Returns where it ends in `to`, -1 where it is odd.

    `found`: takes where it ends in `data`.
    """
    start = at
    if data[at] == 0x2D:
        at += 1
    first = at
    at = digits_end(data, at, end)
    count = at - first
    if count == 0 or (count > 1 and data[first] == 0x30):
        return -1
    if at == end or (data[at] != 0x2E and data[at] != 0x65 and data[at] != 0x45):
        if count > 18:
            return -1
        value = NUL
        for i in range(first, at):
            value = value * 10 + (data[i] - 0x30)
        found[0] = at
        if first > start and value != 0:
            return put_negative(value, to, used)
        return packed_rows.put_uint(to, used, value)
    if data[at] == 0x2E:
        first = at + 1
        at = digits_end(data, first, end)
        if at == first:
            return -1
    if at < end and (data[at] == 0x65 or data[at] == 0x45):
        at += 1
        if at < end and (data[at] == 0x2B or data[at] == 0x2D):
            at += 1
        first = at
        at = digits_end(data, first, end)
        if at == first:
            return -1
    found[0] = at
    bits = struct.pack(">d", float(data[start:at]))
    to[used] = 0xCB
    for i in range(8):
        to[used + 1 + i] = bits[i]
    return used + 9


def word(data: bytes, at: int, end: int) -> int:
    """The first byte of `true`, `false` or `null` in MsgPack; -1 where it is none of them."""
    size = 5 if data[at] == 0x66 else 4
    if end - at < size:
        return -1
    if size == 5:
        if (
            data[at + 1] == 97
            and data[at + 2] == 108
            and data[at + 3] == 115
            and data[at + 4] == 101
        ):
            return 0xC2
    elif data[at] == 0x74:
        if data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
            return 0xC3
    elif data[at] == 0x6E and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return 0xC0
    return -1


def close(to: bytearray, start: int, count: int, is_map: int, used: int) -> int:
    """Write the header of a container whose items stand behind one byte of room for it.

    Returns where it ends then, -1 where it has too many items.
    """
    if count < 16:
        to[start] = (0x80 if is_map else 0x90) | count
        return used
    if count >= 0x10000:
        return -1
    at = used
    while at > start + 1:
        at -= 1
        to[at + 2] = to[at]
    to[start] = 0xDE if is_map else 0xDC
    to[start + 1] = count >> 8
    to[start + 2] = count & 0xFF
    return used + 2


def same_key(to: bytearray, keys: list[int], first: int, last: int) -> bool:
    """Whether two of the keys first … last - 1 are equal: pairs of where each begins and ends."""
    for i in range(first, last):
        size = keys[2 * i + 1] - keys[2 * i]
        for j in range(first, i):
            if keys[2 * j + 1] - keys[2 * j] == size:
                at = 0
                while at < size and to[keys[2 * i] + at] == to[keys[2 * j] + at]:
                    at += 1
                if at == size:
                    return True
    return False


def transcode(data: bytes, at: int, end: int, to: bytearray, used: int) -> int:
    """The one JSON value in data[at:end] as MsgPack from to[used] on. Returns where it ends; -1
    where it is odd. `to` has room for three times as many bytes, and `ROOM` more."""
    starts = [0] * 32
    counts = [0] * 32
    kinds = [0] * 32
    bases = [0] * 32
    keys = [0] * 256
    found = [0] * 1
    open_keys = 0
    depth = 0
    need = VALUE
    while True:
        at = blank(data, at, end)
        if need == AFTER:
            if depth == 0:
                return used if at == end else -1
            if at >= end:
                return -1
            byte = data[at]
            at += 1
            top = depth - 1
            if byte == 0x2C:
                need = KEY if kinds[top] else VALUE
                continue
            if byte != (0x7D if kinds[top] else 0x5D):
                return -1
            if kinds[top]:
                if same_key(to, keys, bases[top], open_keys):
                    return -1
                open_keys = bases[top]
            used = close(to, starts[top], counts[top], kinds[top], used)
            if used < 0:
                return -1
            depth = top
            continue
        if at >= end:
            return -1
        byte = data[at]
        if byte == 0x22:
            size = measure(data, at + 1, end, found)
            if size < 0:
                return -1
            start = used
            used = put_text(data, at + 1, found[0], to, put_size(to, used, size))
            at = found[0] + 1
            if need == VALUE:
                if depth:
                    counts[depth - 1] += 1
                need = AFTER
                continue
            if open_keys - bases[depth - 1] >= KEYS or open_keys >= OPEN_KEYS:
                return -1
            keys[2 * open_keys] = start
            keys[2 * open_keys + 1] = used
            open_keys += 1
            at = blank(data, at, end)
            if at >= end or data[at] != 0x3A:
                return -1
            at += 1
            need = VALUE
            continue
        if need == KEY:
            return -1
        if depth:
            counts[depth - 1] += 1
        need = AFTER
        if byte == 0x5B or byte == 0x7B:
            if depth == DEPTH:
                return -1
            starts[depth] = used
            counts[depth] = 0
            kinds[depth] = 1 if byte == 0x7B else 0
            bases[depth] = open_keys
            depth += 1
            used += 1
            at = blank(data, at + 1, end)
            if at >= end or data[at] != byte + 2:
                need = KEY if byte == 0x7B else VALUE
        elif byte == 0x2D or 0x30 <= byte <= 0x39:
            used = put_number(data, at, end, to, used, found)
            if used < 0:
                return -1
            at = found[0]
        else:
            size = word(data, at, end)
            if size < 0:
                return -1
            to[used] = size
            used += 1
            at += 5 if byte == 0x66 else 4


def encode(text: bytes, out: bytearray) -> int:
    """One JSON text as MsgPack at the beginning of `out`. Returns its size; -1 where it is odd or
    `out` too short."""
    size = len(text)
    if 3 * size + ROOM > len(out):
        return -1
    raw, to = text, out
    return transcode(raw, 0, size, to, 0)


# --- lines → rows ---------------------------------------------------------------------------------
def starts_rdata(data: bytes, at: int, end: int) -> bool:
    """Whether `RDATA ` stands at `at`."""
    return (
        end - at > 6
        and data[at] == 0x52
        and data[at + 1] == 0x44
        and data[at + 2] == 0x41
        and data[at + 3] == 0x54
        and data[at + 4] == 0x41
        and data[at + 5] == 0x20
    )


def token_at(data: bytes, at: int, end: int, found: list[int]) -> int:
    """The token at `at`, `ONES` for `batch`. `found`: takes where the row behind it begins, 0 where
    the token is odd."""
    found[0] = 0
    if end - at > 6 and data[at] == 0x62 and data[at + 1] == 97 and data[at + 2] == 116:
        if data[at + 3] == 99 and data[at + 4] == 104 and data[at + 5] == 0x20:
            found[0] = at + 6
        return ONES
    stop = digits_end(data, at, end)
    if stop == at or stop - at > 18 or stop >= end or data[stop] != 0x20:
        return NUL
    found[0] = stop + 1
    token = NUL
    for i in range(at, stop):
        token = token * 10 + (data[i] - 0x30)
    return token


def head_end(data: bytes, at: int, end: int, words: int) -> int:
    """Where `words` words, none empty, and the space behind them end; -1 where they do not."""
    start = at
    while at < end:
        byte = data[at]
        at += 1
        if byte == 0x20:
            if at - start == 1:
                return -1
            words -= 1
            if words == 0:
                return at
            start = at
    return -1


def scan(
    data: bytes,
    at: int,
    words: int,
    heads: dict[bytes, int],
    limit: int,
    out: bytearray,
    flows: Table,
    tokens: Table,
    bounds: Table,
) -> tuple[int, int]:
    """Read RDATA lines from `at` on, up to the first that is odd, unknown or unfinished.

    `words`: of a line behind `RDATA` and before its token; `heads`: them with their spaces → the
    number that `flows` takes; `limit`: bytes of a line; `tokens`: takes `ONES` for `batch`; row i
    is out[bounds[i]:bounds[i + 1]]. Returns how many rows, and where it stopped.
    """
    raw, to = data, out
    end = len(data)
    room = len(out)
    capacity = len(flows)
    if at < 0 or len(tokens) < capacity or len(bounds) <= capacity:
        raise IndexError("scan: a table is too short")
    found = [0] * 1
    rows = 0
    used = 0
    known = 0
    known_size = 0
    flow = 0
    bounds[0] = 0
    while rows < capacity:
        stop = at
        while stop < end and raw[stop] != 0x0A:
            stop += 1
        size = stop - at
        if stop == end or size > limit or 3 * size + ROOM > room - used:
            break
        if not starts_rdata(raw, at, stop):
            break
        head = at + 6
        first = head_end(raw, head, stop, words)
        if first < 0:
            break
        size = first - head
        same = size == known_size
        i = 0
        while same and i < size:
            same = raw[head + i] == raw[known + i]
            i += 1
        if not same:
            number = heads.get(data[head:first])
            if number is None:
                break
            flow = number
            known = head
            known_size = size
        token = token_at(raw, first, stop, found)
        if found[0] == 0:
            break
        written = transcode(raw, found[0], stop, to, used)
        if written < 0:
            break
        flows[rows] = flow
        tokens[rows] = token
        rows += 1
        bounds[rows] = written
        used = written
        at = stop + 1
    return rows, at


def units(
    flows: Table,
    tokens: Table,
    bounds: Table,
    rows: int,
    flow: int,
    source: bytes,
    last: int,
    joins: bool,
    out: bytearray,
    row_bounds: Table,
    ends: Table,
    unit_tokens: Table,
) -> tuple[int, int]:
    """The rows of one flow, and how they make units with tokens that rise above `last`.

    Row i of the flow is out[row_bounds[i]:row_bounds[i + 1]]; unit u ends before row ends[u] and
    has unit_tokens[u]. `joins`: rows that follow with the token of a unit belong to it. Returns how
    many rows and units; rows behind the last unit are unfinished; (0, 0) where a token does not
    rise.
    """
    if rows < 0 or rows > len(flows) or rows > len(tokens) or rows >= len(bounds):
        raise IndexError("units: a table of rows is too short")
    if rows >= len(row_bounds) or rows > len(ends) or rows > len(unit_tokens):
        raise IndexError("units: a table of what is found is too short")
    raw, to = source, out
    size, room = len(source), len(out)
    count = 0
    made = 0
    used = 0
    row_bounds[0] = 0
    for row in range(rows):
        if flows[row] != flow:
            continue
        at = bounds[row]
        stop = bounds[row + 1]
        if at < 0 or stop < at or stop > size or stop - at > room - used:
            raise IndexError("units: a row that is not in its buffer, or has no room")
        used = packed_rows.copy(raw, at, stop, to, used)
        count += 1
        row_bounds[count] = used
        token = tokens[row]
        if token == ONES:
            continue
        if token > last:
            last = token
            ends[made] = count
            unit_tokens[made] = token
            made += 1
        elif joins and made and token == last:
            ends[made - 1] = count
        else:
            return 0, 0
    return count, made


# --- rows → tuples --------------------------------------------------------------------------------
def tuples(
    source: bytes,
    bounds: Table,
    ends: Table,
    tokens: Table,
    label: bytes,
    out: bytearray,
    tuple_bounds: Table,
) -> int:
    """Tuples of a stream space: [label, token, place, row], one behind the other. Returns their
    bytes. `label`: MsgPack; `out` has room for 20 bytes and the label more per row."""
    raw, to, name = source, out, label
    name_size = len(label)
    size, room = len(source), len(out)
    used = 0
    row = 0
    if not len(tuple_bounds) or len(ends) < len(tokens):
        raise IndexError("tuples: a table is too short")
    tuple_bounds[0] = 0
    for unit in range(len(tokens)):
        place = NUL
        end = ends[unit]
        if end >= len(bounds) or end >= len(tuple_bounds):
            raise IndexError("tuples: a table is too short")
        while row < end:
            at = bounds[row]
            stop = bounds[row + 1]
            if at < 0 or stop < at or stop > size or stop - at > room - used - 20 - name_size:
                raise IndexError("tuples: a row that is not in its buffer, or has no room")
            to[used] = 0x94
            used = packed_rows.copy(name, 0, name_size, to, used + 1)
            used = packed_rows.put_uint(to, used, tokens[unit])
            used = packed_rows.put_uint(to, used, place)
            used = packed_rows.copy(raw, at, stop, to, used)
            place += 1
            row += 1
            tuple_bounds[row] = used
    return used


COMPILED = "put_text" not in globals()  # compiled, it is a C function that Python does not see
