# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loop of memcached's text protocol: binary answers, as lines for clients.

Compiled or plain Python, as `wal.kernel` is. It checks lengths as that does. `memcached.wire.text`
is its face, nothing else calls it. Answers are specified in `memcached.wire.codec`; their opaques,
which say how they are told, in `memcached.wire.textforms`. A part of an answer, or of a record, is
an `IndexError`, and nothing else raises.
"""

from __future__ import annotations

import logweir.replication.bucket.kernel as bucket
import logweir.wal.kernel as rows
from logweir.replication.memcached.wire import textforms as forms

COMPILED = not __file__.endswith(".py")

# What `write` is given and writes: where the next answer begins, bytes used of `out`, with what
# status an item of the `get` that is under way was refused, 0: none; where the next record begins;
# Unix seconds; so much room is wanted.
_AT, _USED, _FAILED, _TOLD, _NOW, _ABOUT = range(6)

# How it ended: with all answers, or before one that wants more room.
_DONE, _NO_ROOM = range(2)

_HEADER = 24
_TEXT_ROOM = 512  # of a line, beside its keys and values
_FLAG_ROOM = 22  # of what is told for a byte of a record
_ROOM = 1024
_FORMS = 32
_MISSING, _EXISTS, _TOO_BIG, _NOT_STORED = 1, 2, 3, 5
_ADD, _REPLACE, _APPEND, _PREPEND = 2, 3, 0x0E, 0x0F
_QUIET_BIT, _VALUE_BIT, _BINARY_BIT = 1, 2, 4
_LINE, _VALUE, _VALUE_CAS, _END = forms.LINE, forms.VALUE, forms.VALUE_CAS, forms.END
_LAST, _END_LINE = forms.LAST, forms.line_number(b"END")
_COUNT, _STAT, _VERSION = forms.COUNT, forms.STAT, forms.VERSION
_META_GET, _META_SET, _META_DELETE = forms.META_GET, forms.META_SET, forms.META_DELETE
_META_COUNT, _META_DEBUG = forms.META_COUNT, forms.META_DEBUG
_SLOT = forms.SLOT_BYTES
_lines = forms.LINE_SLOTS
_refusals = forms.REFUSALS
_told = forms.TOLD
LINES = _lines
REFUSALS = _refusals
SAID = _told
_words = b"VALUE STAT VERSION "
_codes = b"HDVAENNFEXNSME"
_debug = b" exp= la=0 cas= fetch=no cls=1 size="
_marks = b"\2Z\1X\4W"  # bits (`kernel`) and letters
WORDS = _words
CODES = _codes
DEBUG = _debug
MARKS = _marks
_HD, _VA, _EN, _NF, _EX, _NS, _ME = range(0, 14, 2)


def put_decimal(value: int, out: bytearray, at: int) -> int:
    """Write a number. Returns where it ends. Unchecked."""
    size = digits_of(value)
    for i in range(size):
        out[at + size - 1 - i] = 0x30 + value % 10
        value //= 10
    return at + size


def digits_of(value: int) -> int:
    """How many digits a number has."""
    size = 1
    while value >= 10:
        value //= 10
        size += 1
    return size


def put_slot(slots: bytes, number: int, out: bytearray, at: int) -> int:
    """Write the line of a number. Returns where it ends. Unchecked."""
    slot = number * _SLOT
    return rows.copy(slots, slot + 1, slot + 1 + slots[slot], out, at)


def put_end(out: bytearray, at: int) -> int:
    """End a line. Unchecked."""
    out[at] = 0x0D
    out[at + 1] = 0x0A
    return at + 2


def put_get_end(failed: int, out: bytearray, at: int) -> int:
    """End what a `get` is told; `failed`: with what an item was refused, 0: none was. Unchecked."""
    if failed:
        return put_slot(REFUSALS, failed & 0xFF, out, at)
    return put_slot(LINES, _END_LINE, out, at)


def put_value(raw: bytes, at: int, with_cas: bool, out: bytearray, used: int) -> int:
    """Write the item that the answer at `at` holds. Returns where it ends. Unchecked."""
    key_bytes = bucket.load2(raw, at + 2)
    extras_bytes = raw[at + 4]
    key_at = at + _HEADER + extras_bytes
    stop = at + _HEADER + bucket.load4(raw, at + 8)
    used = rows.copy(WORDS, 0, 6, out, used)
    used = rows.copy(raw, key_at, key_at + key_bytes, out, used)
    out[used] = 0x20
    used = put_decimal(bucket.load4(raw, at + _HEADER), out, used + 1)
    out[used] = 0x20
    used = put_decimal(stop - key_at - key_bytes, out, used + 1)
    if with_cas:
        out[used] = 0x20
        used = put_decimal(rows.load(raw, at + 16, 8), out, used + 1)
    used = put_end(out, used)
    used = rows.copy(raw, key_at + key_bytes, stop, out, used)
    return put_end(out, used)


def put_statistic(raw: bytes, at: int, out: bytearray, used: int) -> int:
    """Write the name and the text of one statistic. Returns where it ends. Unchecked."""
    name_at = at + _HEADER
    text_at = name_at + bucket.load2(raw, at + 2)
    stop = at + _HEADER + bucket.load4(raw, at + 8)
    used = rows.copy(WORDS, 6, 11, out, used)
    used = rows.copy(raw, name_at, text_at, out, used)
    out[used] = 0x20
    used = rows.copy(raw, text_at, stop, out, used + 1)
    return put_end(out, used)


def code_of(form: int, opcode: int, status: int, has_value: bool) -> int:
    """What a meta command is answered with, as a place in `CODES`; -1: a line of its own."""
    if status == 0:
        if form == _META_DEBUG:
            return _ME
        return _VA if has_value and form in (_META_GET, _META_COUNT) else _HD
    if form in (_META_GET, _META_DEBUG):
        return _EN if status == _MISSING else -1
    if status == _MISSING:
        return _NS if opcode == _REPLACE else _NF
    if status == _EXISTS:
        return _NS if opcode == _ADD else _EX
    if status == _NOT_STORED or (status == _TOO_BIG and opcode in (_APPEND, _PREPEND)):
        return _NS
    return -1


def put_left(expiry: int, now: int, out: bytearray, at: int) -> int:
    """Write how many seconds are left. Returns where it ends. Unchecked."""
    if expiry == 0:
        out[at] = 0x2D
        out[at + 1] = 0x31
        return at + 2
    return put_decimal(expiry - now if expiry > now else 0, out, at)


def put_debug(raw: bytes, at: int, expiry: int, now: int, out: bytearray, used: int) -> int:
    """Write what `me` tells behind the key. Returns where it ends. Unchecked."""
    size = bucket.load4(raw, at + 8) - raw[at + 4]
    used = rows.copy(DEBUG, 0, 5, out, used)
    used = put_left(expiry, now, out, used)
    used = rows.copy(DEBUG, 5, 15, out, used)
    used = put_decimal(rows.load(raw, at + 16, 8), out, used)
    used = rows.copy(DEBUG, 15, 36, out, used)
    return put_decimal(size, out, used)


def put_flags(
    raw: bytes,
    at: int,
    records: bytearray,
    first: int,
    stop: int,
    now: int,
    out: bytearray,
    used: int,
) -> int:
    """Write what a record asks for of the answer at `at`. Returns where it ends. Unchecked."""
    status = bucket.load2(raw, at + 6)
    form = raw[at + 12]
    extras_bytes = raw[at + 4]
    expiry = 0
    if extras_bytes >= 4:
        expiry = bucket.load4(raw, at + _HEADER + extras_bytes - 4)
    key_bytes = bucket.load2(raw, at + 2)
    is_found = status == 0 and form in (_META_GET, _META_COUNT)
    bits = records[first]
    place = first + 2 + records[first + 1]
    while place < stop:
        letter = records[place]
        place += 1
        if letter == 0x4F:  # O
            size = records[place]
            if place + 1 + size > stop:
                break
            out[used] = 0x20
            used = rows.copy(records, place + 1, place + 1 + size, out, used + 1)
            place += 1 + size
            continue
        if letter == 0x6B:  # k
            out[used] = 0x20
            out[used + 1] = 0x6B
            used = rows.copy(records, first + 2, first + 2 + records[first + 1], out, used + 2)
            if bits & _BINARY_BIT:
                out[used] = 0x20
                out[used + 1] = 0x62
                used += 2
            continue
        if not (is_found or (letter == 0x63 and form == _META_SET)):
            continue
        if form == _META_COUNT and letter not in (0x63, 0x74):
            continue
        out[used] = 0x20
        out[used + 1] = letter
        used += 2
        if letter == 0x63:  # c
            used = put_decimal(rows.load(raw, at + 16, 8), out, used)
        elif letter == 0x74:  # t
            used = put_left(expiry, now, out, used)
        elif letter == 0x66:  # f
            used = put_decimal(bucket.load4(raw, at + _HEADER), out, used)
        elif letter == 0x73:  # s
            size = bucket.load4(raw, at + 8) - key_bytes - extras_bytes
            used = put_decimal(size, out, used)
        else:  # h l: it is not kept when an item was asked for
            used = put_decimal(0, out, used)
    return put_marks(raw[at + 5], out, used) if status == 0 and form == _META_GET else used


def put_marks(marks: int, out: bytearray, at: int) -> int:
    """Write what is told of an item's marks: Z, X and W. Unchecked."""
    for i in range(3):
        if marks & MARKS[2 * i]:
            out[at] = 0x20
            out[at + 1] = MARKS[2 * i + 1]
            at += 2
    return at


def put_meta(
    raw: bytes,
    at: int,
    records: bytearray,
    first: int,
    stop: int,
    now: int,
    out: bytearray,
    used: int,
) -> int:
    """Write what a meta command is answered; `first`, `stop`: where its record stands. Returns
    where it ends. Unchecked."""
    form = raw[at + 12]
    status = bucket.load2(raw, at + 6)
    key_bytes = bucket.load2(raw, at + 2)
    begin = at + _HEADER + raw[at + 4] + key_bytes
    end = at + _HEADER + bucket.load4(raw, at + 8)
    bits = records[first]
    if first + 2 + records[first + 1] > stop:
        return used
    code = code_of(form, raw[at + 1], status, bits & _VALUE_BIT != 0)
    if status == 0 and (form in (_META_GET, _META_DEBUG) and raw[at + 4] < 8):
        code = -1
    if status == 0 and (form == _META_COUNT and (raw[at + 4] < 4 or end - begin < 8)):
        code = -1
    if code < 0:
        return put_slot(REFUSALS, status & 0xFF, out, used)
    if bits & _QUIET_BIT and (code == _EN or (code < _EN and form != _META_GET)):
        return used
    used = rows.copy(CODES, code, code + 2, out, used)
    if code == _ME:
        out[used] = 0x20
        used = rows.copy(records, first + 2, first + 2 + records[first + 1], out, used + 1)
        used = put_debug(raw, at, bucket.load4(raw, begin - key_bytes - 4), now, out, used)
        return put_end(out, used)
    number = 0
    if code == _VA:
        out[used] = 0x20
        if form == _META_COUNT:
            number = rows.load(raw, begin, 8)
            used = put_decimal(digits_of(number), out, used + 1)
        else:
            used = put_decimal(end - begin, out, used + 1)
    if form != _META_DEBUG:
        used = put_flags(raw, at, records, first, stop, now, out, used)
    used = put_end(out, used)
    if code != _VA:
        return used
    if form == _META_COUNT:
        used = put_decimal(number, out, used)
    else:
        used = rows.copy(raw, begin, end, out, used)
    return put_end(out, used)


def write(answers: bytes, records: bytearray, numbers: list[int], out: bytearray) -> int:
    """Write what clients are told of answers. Returns how it ended.

    `answers`: whole ones; `records`: of meta commands, those of these answers and behind them;
    `numbers`: see above.
    """
    raw, to, record = answers, out, records
    at = numbers[_AT]
    used = numbers[_USED]
    failed = numbers[_FAILED]
    told = numbers[_TOLD]
    end = len(answers)
    room = len(out)
    how = _DONE
    while at < end:
        if end - at < _HEADER:
            raise IndexError("write: a part of an answer")
        body = bucket.load4(raw, at + 8)
        if body > end - at - _HEADER or bucket.load2(raw, at + 2) + raw[at + 4] > body:
            raise IndexError("write: a part of an answer")
        status = bucket.load2(raw, at + 6)
        opaque = bucket.load4(raw, at + 12)
        form = opaque >> 24
        size = opaque & 0xFFFF if form >= _META_GET else 0
        need = body + _TEXT_ROOM + _FLAG_ROOM * size
        if need > room - used:
            numbers[_ABOUT] = need
            how = _NO_ROOM
            break
        is_quiet = opaque >> 23 & 1
        line = SAID[8 * form + status] if form < _FORMS and status < 8 else 0
        if form in (_VALUE, _VALUE_CAS):
            if status == 0 and raw[at + 4] >= 4:
                used = put_value(raw, at, form == _VALUE_CAS, to, used)
            elif status > _MISSING:
                failed = status
            if opaque & _LAST:
                used = put_get_end(failed, to, used)
                failed = 0
        elif form >= _META_GET:
            if size < 2 or size > len(records) - told:
                raise IndexError("write: a record is missing")
            used = put_meta(raw, at, record, told, told + size, numbers[_NOW], to, used)
            told += size
        elif form == _END:
            used = put_get_end(failed if failed else status, to, used)
            failed = 0
        elif is_quiet:
            pass
        elif form == _LINE and status == 0:
            used = put_slot(LINES, opaque & 0xFF, to, used)
        elif form == _COUNT and status == 0 and body >= 8:
            used = put_decimal(rows.load(raw, at + _HEADER, 8), to, used)
            used = put_end(to, used)
        elif form == _STAT and status == 0 and body:
            used = put_statistic(raw, at, to, used)
        elif form == _VERSION and status == 0:
            used = rows.copy(WORDS, 11, 19, to, used)
            used = rows.copy(raw, at + _HEADER, at + _HEADER + body, to, used)
            used = put_end(to, used)
        elif line:
            used = put_slot(LINES, line, to, used)
        else:
            used = put_slot(REFUSALS, status & 0xFF, to, used)
        at += _HEADER + body
    numbers[_AT] = at
    numbers[_USED] = used
    numbers[_FAILED] = failed
    numbers[_TOLD] = told
    return how


class Teller:
    """What one connection is told. `records`: of meta commands that are not answered yet;
    `failed`: with what status an item of the `get` that is under way was refused, 0: none was."""

    def __init__(self, records: bytearray) -> None:
        self._records = records
        self.failed = 0

    def tell(self, answers: bytes, now: float) -> bytes:
        """What the client is told of whole answers. `now`: Unix seconds."""
        numbers = [0, 0, self.failed, 0, 0, 0]
        numbers[_NOW] = int(now)
        parts = []
        how = _NO_ROOM
        while how == _NO_ROOM:
            left = len(answers) - numbers[_AT] + len(self._records) - numbers[_TOLD]
            out = bytearray(numbers[_ABOUT] + 2 * left + _ROOM)
            numbers[_USED] = 0
            how = write(answers, self._records, numbers, out)
            to = out
            parts.append(bytes(to[: numbers[_USED]]))
        self.failed = numbers[_FAILED]
        if numbers[_TOLD]:
            del self._records[: numbers[_TOLD]]
        return b"".join(parts)
