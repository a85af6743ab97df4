# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Words of memcached's text protocol, read, and binary requests, written.

Compiled or plain Python, as `wal.kernel` is. `linekernel` and `metakernel` call it, nothing else
does. Words are divided by blanks; numbers are read as C's `strtol` and `strtoull` read them.
Source: memcached 1.6.18, its source and observed.

What is called here is unchecked: who calls it has checked.
"""

from __future__ import annotations

import logweir.replication.bucket.kernel as bucket
from logweir.replication.memcached.wire import textforms as forms

COMPILED = not __file__.endswith(".py")

_ALL = 0xFFFF_FFFF_FFFF_FFFF
_LOW = 0xFFFF_FFFF
_PAST = 2592001  # an expiry that is over
_NOOP_OPCODE = 10
_LINE = forms.LINE


def is_blank(one: int) -> bool:
    """Whether C's `isspace` says so."""
    return one == 0x20 or 0x09 <= one <= 0x0D


def read_number(raw: bytes, at: int, stop: int, found: list[int]) -> bool:
    """The number at the beginning of a word, and whether it has a minus. False: it has none, or one
    of more than 64 bits. Unchecked."""
    value = 0
    found[1] = 0
    while at < stop and is_blank(raw[at]):
        at += 1
    if at < stop and (raw[at] == 0x2B or raw[at] == 0x2D):
        found[1] = raw[at] == 0x2D
        at += 1
    if at == stop or not 0x30 <= raw[at] <= 0x39:
        return False
    while at < stop and 0x30 <= raw[at] <= 0x39:
        digit = raw[at] - 0x30
        if value > (_ALL - digit) // 10:
            return False
        value = value * 10 + digit
        at += 1
    found[0] = value
    return at == stop or is_blank(raw[at])


def read_long(raw: bytes, at: int, stop: int, found: list[int]) -> bool:
    """As `safe_strtoull` of memcached reads it: a number of 64 bits. Unchecked."""
    if not read_number(raw, at, stop, found):
        return False
    if found[1]:
        found[0] = (_ALL - found[0] + 1) & _ALL
        return found[0] >> 63 == 0
    return True


def read_short(raw: bytes, at: int, stop: int, found: list[int]) -> bool:
    """As `safe_strtol` reads it: the low 32 bits of a signed number. Unchecked."""
    if not read_number(raw, at, stop, found) or found[0] > (_ALL >> 1) + found[1]:
        return False
    if found[1]:
        found[0] = (_ALL - found[0] + 1) & _ALL
    found[0] = found[0] & _LOW
    return True


def read_expiry(raw: bytes, at: int, stop: int, found: list[int]) -> bool:
    """The expiry of a word; a negative one is over. Unchecked."""
    if not read_short(raw, at, stop, found):
        return False
    if found[0] >> 31:
        found[0] = _PAST
    return True


def is_word(raw: bytes, at: int, stop: int, word: bytes, first: int, size: int) -> bool:
    """Whether a word is that one. Unchecked."""
    if stop - at != size:
        return False
    same = 0
    while same < size and raw[at + same] == word[first + same]:
        same += 1
    return same == size


def split(raw: bytes, at: int, stop: int, most: int, words: list[int]) -> int:
    """Find the words of a line, `most` at most; their places stand in `words`, and behind them
    where the next begins. Returns how many. What stands at `stop` is below a blank. Unchecked."""
    count = 0
    while count < most:
        while raw[at] == 0x20:
            at += 1
        if at == stop:
            break
        words[2 * count] = at
        while raw[at] > 0x20:
            at += 1
        while at < stop and raw[at] != 0x20:
            at += 1
        words[2 * count + 1] = at
        count += 1
    words[2 * count] = at
    return count


def put_request(
    out: bytearray,
    at: int,
    opcode: int,
    key_bytes: int,
    extras_bytes: int,
    value_bytes: int,
    opaque: int,
    cas: int,
) -> int:
    """Write the header of a request. Returns where it ends. Unchecked."""
    out[at] = 0x80
    out[at + 1] = opcode
    bucket.put2(out, at + 2, key_bytes)
    out[at + 4] = extras_bytes
    out[at + 5] = 0
    bucket.put2(out, at + 6, 0)
    bucket.put4(out, at + 8, key_bytes + extras_bytes + value_bytes)
    bucket.put4(out, at + 12, opaque)
    return bucket.put8(out, at + 16, cas)


def put_line(out: bytearray, at: int, number: int, quiet: int) -> int:
    """Write what stands for an answer of one line, where the client wants it. Unchecked."""
    if quiet:
        return at
    return put_request(out, at, _NOOP_OPCODE, 0, 0, 0, _LINE << 24 | number, 0)
