# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of Synapse's lines on their way out: MsgPack → JSON, tuples → RDATA lines.

Compiled or plain Python, as `wal.kernel` is. `rows` is its face; nothing else calls it. What is not
plain here is *odd*, and goes the ordinary way (`codec.row_text`): binary, extensions, 32-bit
floats, numbers that are none, values nested deeper than `DEPTH`, maps of more than `KEYS` keys or
with keys that are not strings or begin with `$`, and strings that are not UTF-8; in `changes` also
rows with operations. What is not odd gives the text that the ordinary way gives.

No length is believed: nothing is read behind the end that is given, and what does not end there is
odd. A table of the caller's own that is too short, or whose numbers contradict one another, is an
`IndexError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import logweir.wal.kernel as packed_rows

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview[int]

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
LEFT = 1
LAST_LEFT = LEFT - 1
KIND = LEFT + DEPTH
LAST_KIND = KIND - 1
KEYS = 16  # of one map
ONES = 2**64 - 1
NUL = 0
EACH = 0x0101010101010101
SPACES, QUOTES, SLASHES, HIGHS = 0x20 * EACH, 0x22 * EACH, 0x5C * EACH, 0x80 * EACH
_digits = b"0123456789abcdef"
DIGITS = _digits
_null = b"null"
_false = b"false"
_true = b"true"
_batch = b"batch"
WORD_NULL = _null
WORD_FALSE = _false
WORD_TRUE = _true
WORD_BATCH = _batch
_open, _insert, _replace, _delete = b' ["', b"insert", b"replace", b"delete"
OPEN, OP_INSERT, OP_REPLACE, OP_DELETE = _open, _insert, _replace, _delete
INSERT = 2
REPLACE = 3
UPDATE = 4
DELETE = 5
UPSERT = 9


def put_escaped(code: int, to: bytearray, used: int) -> int:
    """`\\uXXXX`. Returns where it ends."""
    to[used] = 0x5C
    to[used + 1] = 0x75
    for i in range(4):
        to[used + 2 + i] = DIGITS[code >> (12 - 4 * i) & 15]
    return used + 6


def put_chunk(data: bytes, at: int, count: int, to: bytearray, used: int) -> bool:
    """Copy 8 bytes. Returns whether one of the first `count` of them, 1 … 8, does not stand for
    itself in a JSON string.

    All are looked at together, as one number: its lowest byte that does not sets its highest bit in
    one of five ways (not ASCII, below a space, `"`, `\\`, DEL); higher ones may then be wrong.
    """
    word = NUL
    for i in range(8):
        byte = data[at + i]
        word = word | byte << (8 * i)
    for i in range(8):
        to[used + i] = word >> (8 * i) & 0xFF
    odd = (word - SPACES) | ((word ^ QUOTES) - EACH) | ((word ^ SLASHES) - EACH) | (word + EACH)
    return ((odd | word) & HIGHS & (ONES >> (64 - 8 * count))) != 0


def put_string(
    data: bytes, at: int, stop: int, end: int, to: bytearray, used: int, is_strict: bool
) -> int:
    """UTF-8 as a JSON string of ASCII. Returns where it ends, -1 where it is not UTF-8; a lone
    surrogate in three bytes stays one, unless `is_strict`. `end`: up to where may be read."""
    to[used] = 0x22
    used += 1
    plain = at  # from here on nothing was escaped
    slow = at  # up to here something is to be
    while at < stop:
        if at >= slow:
            left = min(stop - at, 8)
            back = 0 if end - at >= 8 else 8 - left
            if back <= at - plain:
                if not put_chunk(data, at - back, back + left, to, used - back):
                    at += left
                    used += left
                    continue
                slow = at + left
        byte = data[at]
        at += 1
        if 0x20 <= byte < 0x7F:
            if byte == 0x22 or byte == 0x5C:
                to[used] = 0x5C
                used += 1
            to[used] = byte
            used += 1
            if byte == 0x22 or byte == 0x5C:
                plain = at
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
            plain = at
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
        plain = at
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


def put_bytes(found: bytes, size: int, to: bytearray, used: int) -> int:
    """The first `size` bytes as they are. Returns where they end."""
    for i in range(size):
        to[used + i] = found[i]
    return used + size


def put_comma(to: bytearray, used: int, byte: int, form: int) -> int:
    """`,` or `:`, with a space behind it in the spaced form. Returns where it ends."""
    to[used] = byte
    if form != SPACED:
        return used + 1
    to[used + 1] = 0x20
    return used + 2


def text_start(first: int, at: int) -> int:
    """Where the text of the string at `at` begins; -1 where there is none. `first`: its byte."""
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


def put_plain(data: bytes, at: int, end: int, to: bytearray, used: int, found: list[int]) -> int:
    """The number, boolean or nil at `at`, before `end`. Returns where it ends in `to`; -1 where it
    is odd.

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
        return put_bytes(WORD_NULL, 4, to, used)
    if first == 0xC2:
        return put_bytes(WORD_FALSE, 5, to, used)
    if first == 0xC3:
        return put_bytes(WORD_TRUE, 4, to, used)
    if 0xCC <= first <= 0xD3:
        width = 1 << (first & 3)
        if end - at < width:
            return -1
        bits = big(data, at, at + width)
        found[0] = at + width
        if first >= 0xD0 and data[at] >= 0x80:
            bits = ((bits ^ (ONES >> (64 - 8 * width))) + 1) & ONES
            to[used] = 0x2D
            used += 1
        return put_decimal(bits, to, used)
    if first != 0xCB or end - at < 8:
        return -1
    (number,) = struct.unpack(">d", data[at : at + 8])
    found[0] = at + 8
    if number - number != 0:
        return -1
    shown = repr(number).encode()
    return put_bytes(shown, len(shown), to, used)


def item(
    data: bytes, at: int, end: int, to: bytearray, used: int, form: int, found: list[int]
) -> int:
    """The MsgPack value at `at`, which must end at or before `end`, as JSON from to[used] on.

    Returns where it ends in `to`; -1 where it is odd. `found`: takes where it ends in `data`, and
    behind that it has room for two numbers per open container: items to come, and `ITEMS` ….
    `form`: COMPACT; SPACED, with a space behind `,` and `:`; STRICT, compact, and a lone surrogate
    is odd. `to` has room for eight times as many bytes, and `ROOM` more.
    """
    depth = 0
    while at < end:
        kind = NO_KIND
        if depth:
            kind = found[LAST_KIND + depth]
            found[LAST_LEFT + depth] -= 1
            if kind in (ITEMS, KEYS_MORE):
                used = put_comma(to, used, 0x2C, form)
            kind_then = KEYS_MORE if kind == OF_KEY else OF_KEY
            found[LAST_KIND + depth] = ITEMS if kind <= ITEMS else kind_then
        first = data[at]
        start = text_start(first, at)
        if start >= 0:
            if start > end:
                return -1
            size = first & 0x1F if first < 0xC0 else big(data, at + 1, start)
            if size > end - start:
                return -1
            if (kind in (KEYS_FIRST, KEYS_MORE)) and size and data[start] == 0x24:
                return -1
            at = start + size
            used = put_string(data, start, at, end, to, used, form == STRICT)
            if used < 0:
                return -1
            if kind in (KEYS_FIRST, KEYS_MORE):
                used = put_comma(to, used, 0x3A, form)
                continue  # its value is still to come
        elif kind in (KEYS_FIRST, KEYS_MORE):
            return -1
        elif 0x80 <= first < 0xA0 or 0xDC <= first < 0xE0:
            is_map = 1 if first < 0x90 or first >= 0xDE else 0
            start = at + 1
            if first >= 0xA0:
                start = at + 3 if first & 1 == 0 else at + 5
            if start > end or depth == DEPTH:
                return -1
            count = first & 0x0F if first < 0xA0 else big(data, at + 1, start)
            if count > end - start or (is_map and count > KEYS):
                return -1
            to[used] = 0x7B if is_map else 0x5B
            used += 1
            found[KIND + depth] = KEYS_FIRST if is_map else ITEMS_FIRST
            found[LEFT + depth] = 2 * count if is_map else count
            depth += 1
            at = start
        else:
            used = put_plain(data, at, end, to, used, found)
            if used < 0:
                return -1
            at = found[0]
        while depth and found[LAST_LEFT + depth] == 0:
            depth -= 1
            to[used] = 0x5D if found[KIND + depth] <= ITEMS else 0x7D
            used += 1
        if depth == 0:
            found[0] = at
            return used
    return -1


def text(data: bytes, form: int, out: bytearray) -> int:
    """One MsgPack value as JSON at the beginning of `out`. Returns its size; -1 where it is odd,
    malformed, or `out` too short."""
    size = len(data)
    if 8 * size + ROOM > len(out):
        return -1
    raw, to = data, out
    found = [0] * 65
    used = item(raw, 0, size, to, 0, form, found)
    return used if found[0] == size else -1


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
    or `ends` is full. The last of `found` ends its unit.
    """
    to, start_of_line = out, head
    room = len(out)
    head_size = len(head)
    owed = [0] * 512
    ended = [0] * 65
    token_at = 1 + label_size
    if first < 0 or label_size < 0:
        raise IndexError("lines: numbers beyond their buffers")
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
        if size <= token_at or raw[0] != 0x94:
            break
        place = packed_rows.skip_value(raw, token_at, size, owed, 0)
        at = packed_rows.skip_value(raw, place, size, owed, 0) if place > 0 else -1
        if at < 0:
            break
        is_last = 1
        row += 1
        if row < count:
            after: Any = found[row]
            other = after
            is_last = 0 if is_alike(raw, other, len(after), token_at, place) else 1
        begun = used
        used = put_bytes(start_of_line, head_size, to, used)
        if is_last:
            used = item(raw, token_at, place, to, used, form, ended)
        else:
            used = put_bytes(WORD_BATCH, 5, to, used)
        if used < 0:
            break
        to[used] = 0x20
        used = item(raw, at, size, to, used + 1, form, ended)
        if used < 0 or used - begun > limit or ended[0] != size:
            break
        if is_last and 2 * made + 2 > len(ends):
            break
        to[used] = 0x0A
        used += 1
        if is_last:
            ends[2 * made] = used
            ends[2 * made + 1] = row
            made += 1
    return made


def is_run(replicas: Table, lsns: Table, count: int) -> bool:
    """Whether these rows are of one replica, and their lsns follow one another."""
    if count > len(replicas) or count > len(lsns):
        raise IndexError("is_run: a column is too short")
    row = 1
    while row < count and replicas[row] == replicas[0] and lsns[row] == lsns[row - 1] + 1:
        row += 1
    return row >= count


def gather(
    data: bytes,
    types: Table,
    spaces: Table,
    spans: Table,
    lsns: Table,
    ends: Table,
    wanted: list[int],
    found: list[bytes],
    signatures: Table,
) -> int:
    """Tuples that were inserted in one space, from a row on; up to one with another label.

    The columns are those of a block; `ends`: its transactions. `wanted`: space, first row, and what
    an lsn lacks to the signature. `found`: takes the tuples, `signatures` that of each one's
    transaction. Returns the row to go on with.
    """
    count = len(types)
    if len(wanted) < 3 or min(len(spaces), len(spans), len(lsns)) < count:
        raise IndexError("gather: a table is too short")
    space_id, row, missing, made = wanted[0], wanted[1], wanted[2], 0
    if row < 0:
        raise IndexError("gather: numbers beyond their buffers")
    owed = [0] * 512
    raw = data
    size = len(data)
    transaction = 0
    first = -1
    label = 0
    while row < count:
        if spaces[row] == space_id and types[row] == INSERT:
            at = spans[row] & 0xFFFFFFFF
            stop = spans[row] >> 32
            if at >= stop or stop > size:
                break
            if first < 0:
                first = at
                label = packed_rows.skip_value(raw, at + 1, stop, owed, 0) - at
            elif stop - at < label or is_other(raw, at, first, label):
                break
            while transaction < len(ends) and ends[transaction] <= row:
                transaction += 1
            if transaction == len(ends) or ends[transaction] > count or made == len(signatures):
                raise IndexError("gather: a table is too short")
            found.append(data[at:stop])
            signatures[made] = missing + lsns[ends[transaction] - 1]
            made += 1
        row += 1
    return row


def is_other(data: bytes, at: int, other: int, size: int) -> bool:
    """Whether the `size` bytes at `at` are not those at `other`."""
    i = 0
    while i < size and data[at + i] == data[other + i]:
        i += 1
    return i < size


def put_key(
    data: bytes, at: int, end: int, fields: Table, to: bytearray, used: int, found: list[int]
) -> int:
    """The key of the tuple at `at` as a JSON array. Returns where it ends; -1 where it is odd.

    `fields`: the numbers of the key's fields, in the order of its parts.
    """
    owed = [0] * 512
    to[used] = 0x5B
    used += 1
    if at >= end:
        return -1
    first = data[at]
    if not 0x90 <= first < 0xA0 and first != 0xDC and first != 0xDD:
        return -1
    start = at + 1 if first < 0xA0 else at + 3 if first == 0xDC else at + 5
    for i in range(len(fields)):
        at = start
        for _ in range(fields[i]):
            at = packed_rows.skip_value(data, at, end, owed, 0)
            if at < 0:
                return -1
        if i:
            to[used] = 0x2C
            used += 1
        used = item(data, at, end, to, used, STRICT, found)
        if used < 0:
            return -1
    to[used] = 0x5D
    return used + 1


def has_twice(fields: Table) -> bool:
    """Whether a field is there twice."""
    for i in range(len(fields)):
        for j in range(i):
            if fields[i] == fields[j]:
                return True
    return False


def is_span(span: int, size: int) -> bool:
    """Whether a span is in a buffer of that size."""
    stop = span >> 32
    return span - (stop << 32) <= stop <= size


def changes(
    data: bytes,
    types: Table,
    spaces: Table,
    keys: Table,
    tuples: Table,
    lsns: Table,
    ends: Table,
    wanted: list[int],
    fields: Table,
    head: bytes,
    out: bytearray,
    limit: int,
    told: Table,
) -> int:
    """Changes of one space as RDATA lines with `[op, key, tuple]`, whole transactions.

    The columns are those of a block; `ends`: its transactions. `wanted`: space, first transaction,
    what an lsn lacks to the signature; `fields`: of the key. `told`: takes how many bytes and lines
    were written, and the first and the last signature. Returns the transaction to go on with: the
    first that is odd, has a line of more than `limit` bytes, or for which `out` is too short.
    """
    rows = len(types)
    if min(len(spaces), len(keys), len(tuples), len(lsns)) < rows:
        raise IndexError("changes: a column is too short")
    if len(wanted) < 3 or len(told) < 4:
        raise IndexError("changes: a table is too short")
    space_id, transaction, missing = wanted[0], wanted[1], wanted[2]
    if transaction < 0 or has_twice(fields):
        raise IndexError("changes: numbers that cannot be")
    to, start_of_line, raw = out, head, data
    room, head_size, size = len(out), len(head), len(data)
    found = [0] * 65
    used = 0
    made = 0
    first_token = NUL
    token = NUL
    count = len(ends)
    while transaction < count:
        row = ends[transaction - 1] if transaction else 0
        stop = ends[transaction]
        if row < 0 or stop < row or stop > rows:
            raise IndexError("changes: a transaction is not in its block")
        last = stop - 1
        while last >= row and (spaces[last] != space_id or not is_change(types[last])):
            last -= 1
        begun = used
        written = 0
        while row <= last:
            kind = types[row]
            if spaces[row] != space_id or not is_change(kind):
                row += 1
                continue
            key, span = keys[row], tuples[row]
            if kind in (UPDATE, UPSERT):
                break
            if not (is_span(key, size) and is_span(span, size)):
                break
            whole = (key >> 32) - (key & 0xFFFFFFFF)
            whole += 2 * ((span >> 32) - (span & 0xFFFFFFFF))
            if 8 * whole + 2 * ROOM + head_size > room - used:
                break
            line = used
            used = put_bytes(start_of_line, head_size, to, used)
            if row == last:
                used = put_decimal(missing + lsns[stop - 1], to, used)
            else:
                used = put_bytes(WORD_BATCH, 5, to, used)
            used = put_op(kind, to, used)
            used = put_change(raw, key, span, fields, to, used, found)
            if used < 0 or used - line > limit:
                break
            to[used] = 0x0A
            used += 1
            written += 1
            row += 1
        if row <= last:
            used = begun
            break
        if written:
            token = missing + lsns[stop - 1]
            if made == 0:
                first_token = token
            made += written
        transaction += 1
    told[0] = used
    told[1] = made
    told[2] = first_token
    told[3] = token
    return transaction


def put_change(
    data: bytes, key: int, span: int, fields: Table, to: bytearray, used: int, found: list[int]
) -> int:
    """`key,tuple]`, `null` for no tuple. Returns where it ends; -1 where it is odd."""
    if key:
        used = item(data, key & 0xFFFFFFFF, key >> 32, to, used, STRICT, found)
    else:
        used = put_key(data, span & 0xFFFFFFFF, span >> 32, fields, to, used, found)
    if used < 0:
        return -1
    to[used] = 0x2C
    if span:
        used = item(data, span & 0xFFFFFFFF, span >> 32, to, used + 1, STRICT, found)
    else:
        used = put_bytes(WORD_NULL, 4, to, used + 1)
    if used < 0:
        return -1
    to[used] = 0x5D
    return used + 1


def is_change(kind: int) -> bool:
    """Whether a row of that type changes a tuple."""
    return INSERT <= kind <= DELETE or kind == UPSERT


def put_op(kind: int, to: bytearray, used: int) -> int:
    """` ["<op>",`. Returns where it ends."""
    used = put_bytes(OPEN, 3, to, used)
    if kind == INSERT:
        used = put_bytes(OP_INSERT, 6, to, used)
    elif kind == REPLACE:
        used = put_bytes(OP_REPLACE, 7, to, used)
    else:
        used = put_bytes(OP_DELETE, 6, to, used)
    to[used] = 0x22
    to[used + 1] = 0x2C
    return used + 2


COMPILED = "put_string" not in globals()  # compiled, it is a C function that Python does not see
