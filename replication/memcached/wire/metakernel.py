# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Meta commands of memcached's text protocol: their flags, and the binary requests they become.

Compiled or plain Python, as `wal.kernel` is. `linekernel` calls it, nothing else does. What is told
of an answer stands in a *record*: a byte of bits (1: quiet, 2: with the value, 4: the key is in
base64), the length of the key and the key as it came (none where it is not told), then the flags
that are told, in their order: a letter, an O with the length of what stands behind it and that.

The flags and what is wrong with them: memcached 1.6.18, its source and observed.

What is called here is unchecked: who calls it has checked, and gives room for `_TOLD_ROOM` bytes of
a record.
"""

from __future__ import annotations

import logweir.replication.bucket.kernel as bucket
import logweir.replication.memcached.wire.wordkernel as words_of
import logweir.wal.kernel as rows
from logweir.replication.memcached.wire import textforms as forms

COMPILED = not __file__.endswith(".py")

# What flags say. Of numbers that are wanted: what they are, and whether they were given.
(_BITS, _KEY_TOLD, _EXPIRY, _HAS_EXPIRY, _FIRST_EXPIRY, _CREATES, _FLAGS) = range(7)
(_CAS, _HAS_CAS, _DELTA, _INITIAL, _MODE, _SIZE, _RECACHE, _SAYS) = range(7, 15)

_QUIET_BIT, _VALUE_BIT, _BINARY_BIT = 1, 2, 4
_KEY_MAX = 250  # limits.TAP_KEY_BYTES
_FLAGS_MAX = 19  # words of a line
_OPAQUE_MAX = 32
_ALL = 0xFFFF_FFFF_FFFF_FFFF  # the CAS of no item
_ONE = 1
_LOW = 0xFFFF_FFFF
_LONGEST = 0x7FFF_FFFF - 2
_GETM, _GATM, _INCREMENTM, _DECREMENTM, _DELETE = 0xE0, 0xE1, 0xE2, 0xE3, 4
_GETR, _MARKM, _SETM, _PEEKM = 0xE4, 0xE5, 0xE6, 0xE7
# Bits of `_SAYS`: those of a visit (`kernel`), and I.
_RETIME, _FIRST_RETIME, _RECACHES, _CREATE, _IS_STALE = 0x800, 0x1000, 0x2000, 0x4000, 0x8000
_VISITS = 0x7800
_SET, _ADD, _REPLACE, _APPEND, _PREPEND = 1, 2, 3, 0x0E, 0x0F
_META_GET, _META_SET, _META_DELETE = forms.META_GET, forms.META_SET, forms.META_DELETE
_META_COUNT, _META_DEBUG = forms.META_COUNT, forms.META_DEBUG

_ERROR = forms.line_number(b"ERROR")
_BAD_FORMAT = forms.line_number(b"CLIENT_ERROR bad command line format")
_MANY_ARE = forms.line_number(b"CLIENT_ERROR options flags are too long")
_MANY = forms.line_number(b"CLIENT_ERROR options flags too long")
_TWICE = forms.line_number(b"CLIENT_ERROR duplicate flag")
_UNKNOWN = forms.line_number(b"CLIENT_ERROR invalid flag")
_BAD_FLAG = forms.line_number(b"CLIENT_ERROR invalid or duplicate flag")
_BAD_KEY = forms.line_number(b"CLIENT_ERROR error decoding key")
_BAD_TOKEN = forms.line_number(b"CLIENT_ERROR bad token in command line format")
_BAD_MODE = forms.line_number(b"CLIENT_ERROR incorrect length for M token")
_BAD_INITIAL = forms.line_number(b"CLIENT_ERROR invalid numeric initial value")
_BAD_DELTA = forms.line_number(b"CLIENT_ERROR invalid numeric delta value")
_BAD_OPAQUE = forms.line_number(b"CLIENT_ERROR opaque token too long")
_NO_SET_MODE = forms.line_number(b"CLIENT_ERROR invalid mode for ms M token")
_NO_COUNT_MODE = forms.line_number(b"CLIENT_ERROR invalid mode for ma M token")

# By letter: 1 a flag that is known, 2 one that is told, too, 3 one that is only told.
_kind_of = bytearray(128)
for _letter in bytearray(b"bNTRlOPLkstcfvhuqFCMJDI"):
    _kind_of[_letter] = 1
for _letter in bytearray(b"lOkstcfh"):
    _kind_of[_letter] = 2 if _letter in b"Ok" else 3
_kinds = bytes(_kind_of)
KINDS = _kinds
_value_of = bytearray(b"\x80" * 256)
for _digit, _letter in enumerate(
    bytearray(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
):
    _value_of[_letter] = _digit
_value_of[0x3D] = 0
_digits = bytes(_value_of)
DIGITS = _digits


def is_key(raw: bytes, at: int, stop: int) -> bool:
    """Whether what stands there is a key in base64. Unchecked."""
    count = pad = block = 0
    for i in range(at, stop):
        if DIGITS[raw[i]] == 0x80:
            continue
        if raw[i] == 0x3D and (pad == 0 or count // 4 == block):
            block = count // 4  # the first one with any, with which the key ends
            pad += 1
        count += 1
    return count > 0 and count % 4 == 0 and pad < 3


def decode_key(raw: bytes, at: int, stop: int, out: bytearray, used: int) -> int:
    """Write the key that stands in base64. Returns where it ends. Unchecked."""
    count = pad = block = 0
    for i in range(at, stop):
        digit = DIGITS[raw[i]]
        if digit == 0x80:
            continue
        if raw[i] == 0x3D:
            pad += 1
        block = block << 6 | digit
        count += 1
        if count == 4:
            out[used] = block >> 16 & 0xFF
            out[used + 1] = block >> 8 & 0xFF
            out[used + 2] = block & 0xFF
            used += 3
            count = block = 0
            if pad:
                break
    return used - pad


def read_flag(raw: bytes, at: int, stop: int, fields: list[int]) -> int:
    """Take what a flag says into `fields`. Returns the number of a line that says what is wrong
    with it, 0: nothing. Unchecked."""
    found = [0, 0]
    letter = raw[at]
    if letter == 0x76:  # v
        fields[_BITS] |= _VALUE_BIT
    elif letter == 0x6B:  # k
        fields[_KEY_TOLD] = 1
    elif letter == 0x71:  # q
        fields[_BITS] |= _QUIET_BIT
    elif letter == 0x4F:  # O
        if stop - at > _OPAQUE_MAX:
            return _BAD_OPAQUE
    elif letter in (0x4E, 0x52, 0x54):  # N R T
        if not words_of.read_expiry(raw, at + 1, stop, found):
            return _BAD_TOKEN
        if letter == 0x54:
            fields[_EXPIRY] = found[0]
            fields[_HAS_EXPIRY] = 1
            if fields[_CREATES]:
                fields[_FIRST_EXPIRY] = found[0]  # the later one counts
            if fields[_SAYS] & _RECACHES == 0:
                fields[_SAYS] |= _FIRST_RETIME
            fields[_SAYS] |= _RETIME
        elif letter == 0x52:
            fields[_RECACHE] = found[0]
            fields[_SAYS] |= _RECACHES
        else:
            fields[_FIRST_EXPIRY] = found[0]
            fields[_CREATES] = 1
            fields[_SAYS] |= _CREATE
    elif letter == 0x49:  # I
        fields[_SAYS] |= _IS_STALE
    elif letter == 0x46:  # F
        if not words_of.read_long(raw, at + 1, stop, found):
            return _BAD_FORMAT
        fields[_FLAGS] = found[0] & _LOW
    elif letter == 0x43:  # C
        if not words_of.read_long(raw, at + 1, stop, found):
            return _BAD_TOKEN
        fields[_CAS] = found[0]
        fields[_HAS_CAS] = 1
    elif letter == 0x4D:  # M
        if stop - at != 2:
            return _BAD_MODE
        fields[_MODE] = raw[at + 1]
    elif letter == 0x4A:  # J
        if not words_of.read_long(raw, at + 1, stop, found):
            return _BAD_INITIAL
        fields[_INITIAL] = found[0]
    elif letter == 0x44:  # D
        if not words_of.read_long(raw, at + 1, stop, found):
            return _BAD_DELTA
        fields[_DELTA] = found[0]
    elif letter == 0x62:  # b
        fields[_BITS] |= _BINARY_BIT
    return 0


def read_flags(raw: bytes, words: list[int], first: int, count: int, fields: list[int]) -> int:
    """Take what the flags of a line say. Returns as `read_flag`, of the last one that is wrong.
    Unchecked."""
    wrong = 0
    seen = 0
    for field in range(16):
        fields[field] = 0
    fields[_DELTA] = 1
    for i in range(first, count):
        letter = raw[words[2 * i]]
        if letter >= 127:
            return _TWICE
        if KINDS[letter] == 0:
            return _UNKNOWN
        if seen >> (letter - 0x40) & 1:  # those that are known are between 0x40 and 0x7F
            return _TWICE
        seen |= _ONE << (letter - 0x40)
        if KINDS[letter] == 3:
            continue
        found = read_flag(raw, words[2 * i], words[2 * i + 1], fields)
        if letter == 0x62 and not is_key(raw, words[2], words[3]):  # b
            found = _BAD_KEY
        if found == 0 or (found == _BAD_OPAQUE and wrong):
            continue
        if found == _BAD_FORMAT and wrong not in (0, _BAD_OPAQUE):
            continue  # memcached says nothing of its own of a wrong F
        wrong = found
    return wrong


def put_record(
    raw: bytes, words: list[int], first: int, count: int, fields: list[int], out: bytearray, at: int
) -> int:
    """Write what is to be told of an answer. Returns where it ends. Unchecked."""
    out[at] = fields[_BITS]
    out[at + 1] = 0
    begin = at
    at += 2
    if fields[_KEY_TOLD]:
        out[begin + 1] = words[3] - words[2]
        at = rows.copy(raw, words[2], words[3], out, at)
    for i in range(first, count):
        start, stop = words[2 * i], words[2 * i + 1]
        if KINDS[raw[start]] > 1:
            out[at] = raw[start]
            at += 1
            if raw[start] == 0x4F:
                out[at] = stop - start
                at = rows.copy(raw, start, stop, out, at + 1)
    return at


def put_key(
    raw: bytes, words: list[int], fields: list[int], rest: int, out: bytearray, head: int, at: int
) -> int:
    """Write the key of the request whose header stands at `head`, and say there how long it is,
    with the `rest` of its body. Returns where it ends. Unchecked."""
    if fields[_BITS] & _BINARY_BIT:
        stop = decode_key(raw, words[2], words[3], out, at)
    else:
        stop = rows.copy(raw, words[2], words[3], out, at)
    bucket.put2(out, head + 2, stop - at)
    bucket.put4(out, head + 8, rest + stop - at)
    return stop


def mode_of(letter: int, mode: int) -> int:
    """The opcode of a mode of `ms` or `ma`, by the second letter of the command; 0: there is no
    such mode. Commands without modes take any."""
    if letter == 0x73:  # s
        if mode in (0, 0x53):  # S
            return _SET
        if mode == 0x45:  # E
            return _ADD
        if mode == 0x41:  # A
            return _APPEND
        if mode == 0x50:  # P
            return _PREPEND
        return _REPLACE if mode == 0x52 else 0  # R
    if letter != 0x61 or mode in (0, 0x49, 0x2B):  # a; I +
        return _INCREMENTM
    return _DECREMENTM if mode in (0x44, 0x2D) else 0  # D -


def check(raw: bytes, letter: int, words: list[int], count: int, fields: list[int]) -> int:
    """Read a meta command. Returns the number of a line that says what is wrong, 0: nothing.
    `fields`: takes what its flags say; of `ms` also the length of the value, or all ones where that
    is not known. Unchecked."""
    found = [0, 0]
    first = 3 if letter == 0x73 else 2  # s
    fields[_SIZE] = _ALL
    if letter == 0x65:  # e
        if count < 2 or words[3] - words[2] > _KEY_MAX:
            return _BAD_FORMAT
        fields[_BITS] = 0
        if count > 2 and words[5] - words[4] == 1 and raw[words[4]] == 0x62:
            if not is_key(raw, words[2], words[3]):
                return _BAD_FORMAT
            fields[_BITS] = _BINARY_BIT
        fields[_KEY_TOLD] = 1
        return 0
    if count < 2:
        return _ERROR
    if words[3] - words[2] > _KEY_MAX or (letter == 0x73 and count == 2):
        return _BAD_FORMAT
    if count > _FLAGS_MAX:
        return _MANY_ARE if letter == 0x67 else _MANY  # g
    size = _ALL
    if letter == 0x73:
        if not words_of.read_short(raw, words[4], words[5], found) or found[0] > _LONGEST:
            return _BAD_FORMAT
        size = found[0]
    wrong = read_flags(raw, words, first, count, fields)
    fields[_SIZE] = size
    if wrong and letter in (0x64, 0x61) and wrong != _BAD_OPAQUE:  # d a
        return _BAD_FLAG
    if wrong in (0, _BAD_OPAQUE) and mode_of(letter, fields[_MODE]) == 0:
        return _NO_SET_MODE if letter == 0x73 else _NO_COUNT_MODE
    return wrong


def put_meta(
    raw: bytes,
    letter: int,
    words: list[int],
    count: int,
    fields: list[int],
    value_at: int,
    out: bytearray,
    used: int,
    told: bytearray,
    places: list[int],
) -> int:
    """Write the request of a meta command, and its record. Returns where it ends.

    `places`: where the record is to begin, and takes where it ends. Unchecked.
    """
    head = used
    first = 3 if letter == 0x73 else 2
    if letter == 0x65:
        first = count
    cas = fields[_CAS]
    if letter in (0x73, 0x64) and fields[_HAS_CAS] and cas == 0:  # s d
        cas = _ALL
    opcode = _GETM
    form = _META_GET
    extras = 0
    value_bytes = 0
    if letter in (0x67, 0x65):  # g e
        cas = 0
        if letter == 0x65:
            opcode, form = _PEEKM, _META_DEBUG
        elif fields[_SAYS] & _VISITS:
            opcode, extras = _GATM if fields[_HAS_EXPIRY] else _GETR, 16
    elif letter == 0x64:
        opcode, form = _DELETE, _META_DELETE
        if fields[_SAYS] & _IS_STALE:
            opcode, extras = _MARKM, 4
    elif letter == 0x61:
        opcode, form, extras = mode_of(letter, fields[_MODE]), _META_COUNT, 20
    else:
        opcode, form = mode_of(letter, fields[_MODE]), _META_SET
        value_bytes = fields[_SIZE]
        if opcode in (_SET, _ADD, _REPLACE):
            extras = 8
        if opcode == _REPLACE and fields[_HAS_CAS]:
            opcode = _SET
        if opcode == _SET and fields[_HAS_CAS] and fields[_SAYS] & _IS_STALE:
            opcode = _SETM
        elif opcode == _ADD:
            cas = 0
        elif extras == 0:
            cas = fields[_CAS]
    at = put_record(raw, words, first, count, fields, told, places[0])
    opaque = form << 24 | (at - places[0])
    used = words_of.put_request(out, used, opcode, 0, extras, value_bytes, opaque, cas)
    if extras == 20:
        used = bucket.put8(out, used, fields[_DELTA])
        used = bucket.put8(out, used, fields[_INITIAL])
        if fields[_HAS_EXPIRY]:
            used = bucket.put4(out, used, fields[_EXPIRY])
            out[head + 5] = 1 if fields[_CREATES] else 3
        else:
            used = bucket.put4(out, used, fields[_FIRST_EXPIRY] if fields[_CREATES] else _LOW)
    elif extras:
        if extras == 8:
            used = bucket.put4(out, used, fields[_FLAGS])
        elif extras == 16:
            used = bucket.put4(out, used, fields[_RECACHE])
            used = bucket.put4(out, used, fields[_FIRST_EXPIRY])
            used = bucket.put4(out, used, fields[_SAYS] & _VISITS)
        elif opcode == _MARKM:
            out[head + 5] = fields[_HAS_EXPIRY]
        used = bucket.put4(out, used, fields[_EXPIRY])
    used = put_key(raw, words, fields, extras + value_bytes, out, head, used)
    places[0] = at
    return rows.copy(raw, value_at, value_at + value_bytes, out, used)
