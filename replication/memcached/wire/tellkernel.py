# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loop of memcached's text protocol: binary answers, as lines for clients.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `tellkernel.pxd`. `COMPILED` says which one runs. `memcached.wire.text` is its face,
nothing else calls it. Answers are specified in `memcached.wire.codec`; their opaques, which say how
they are told, in `memcached.wire.textforms`.

Nothing here recurses or believes a length: every read and write is checked against the ends of its
buffer first, since the compiled one would not notice. A table of the caller's own that is too short
is an `IndexError`, and nothing else raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.replication.bucket.kernel as bucket
import logweir.wal.kernel as rows
from logweir.replication.memcached.wire import textforms as forms

if TYPE_CHECKING:
    from array import array

    Table = array[int] | memoryview

COMPILED = not __file__.endswith(".py")

# What `tell` is given and writes: where the next answer begins, bytes used of `out`, and with what
# status an item of the `get` that is under way was refused, 0: none.
AT, USED, FAILED = range(3)

# How it ended: with all answers, or before one that wants so much room as stands in ABOUT.
DONE, NO_ROOM = range(2)
ABOUT = 3

# The same for C, which alone then sees them.
_AT, _USED, _FAILED, _ABOUT = range(4)
_DONE, _NO_ROOM = range(2)

_HEADER = 24
_TEXT_ROOM = 512  # of a line, beside its keys and values
_MISSING = 1
_LINE, _VALUE, _VALUE_CAS, _END = forms.LINE, forms.VALUE, forms.VALUE_CAS, forms.END
_COUNT, _STAT, _VERSION = forms.COUNT, forms.STAT, forms.VERSION
_SLOT = forms.SLOT_BYTES
_lines = forms.LINE_SLOTS
_refusals = forms.REFUSALS
_told = forms.TOLD
LINES = _lines
REFUSALS = _refusals
TOLD = _told
_words = b"VALUE STAT VERSION "
WORDS = _words


def put_decimal(value: int, out: bytearray, at: int) -> int:
    """Write a number. Returns where it ends. Unchecked."""
    size = 1
    rest = value // 10
    while rest:
        size += 1
        rest //= 10
    for i in range(size):
        out[at + size - 1 - i] = 0x30 + value % 10
        value //= 10
    return at + size


def put_slot(slots: bytes, number: int, out: bytearray, at: int) -> int:
    """Write the line of a number. Returns where it ends. Unchecked."""
    slot = number * _SLOT
    return rows.copy(slots, slot + 1, slot + 1 + slots[slot], out, at)


def put_end(out: bytearray, at: int) -> int:
    """End a line. Unchecked."""
    out[at] = 0x0D
    out[at + 1] = 0x0A
    return at + 2


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


def tell(answers: bytes, numbers: Table, out: bytearray) -> int:
    """Write what clients are told of answers. Returns how it ended.

    `answers`: whole ones; `numbers`: see above.
    """
    raw, to = answers, out
    if len(numbers) <= _ABOUT:
        raise IndexError("tell: a table is too short")
    at = numbers[_AT]
    used = numbers[_USED]
    failed = numbers[_FAILED]
    end = len(answers)
    room = len(out)
    if at < 0 or used < 0 or used > room:
        raise IndexError("tell: numbers beyond their buffers")
    how = _DONE
    while at < end:
        if end - at < _HEADER:
            raise IndexError("tell: a part of an answer")
        body = bucket.load4(raw, at + 8)
        if body > end - at - _HEADER or bucket.load2(raw, at + 2) + raw[at + 4] > body:
            raise IndexError("tell: a part of an answer")
        if body + _TEXT_ROOM > room - used:
            numbers[_ABOUT] = body + _TEXT_ROOM
            how = _NO_ROOM
            break
        status = bucket.load2(raw, at + 6)
        opaque = bucket.load4(raw, at + 12)
        form = opaque >> 24
        is_quiet = opaque >> 23 & 1
        line = TOLD[8 * form + status] if form < 16 and status < 8 else 0
        if form in (_VALUE, _VALUE_CAS):
            if status == 0 and raw[at + 4] >= 4:
                used = put_value(raw, at, form == _VALUE_CAS, to, used)
            elif status > _MISSING:
                failed = status
        elif form == _END and failed:
            used = put_slot(REFUSALS, failed & 0xFF, to, used)
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
    return how
