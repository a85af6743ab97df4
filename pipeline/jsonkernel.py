# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of texts: MsgPack values → JSON as `wal.render` writes it, decimals and UUIDs.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `jsonkernel.pxd`. `COMPILED` says which one runs. `pipeline.typedkernel` calls it.

`Texts` grows as it is written to: what writes asks for room first, with `reserve`, and for as much
as the longest text of its value takes: 6 bytes for one of a string, 2 for one of what becomes
base64, and `MORE` for all that is around. Values are whole: `wal.kernel.skip_value` has found where
they end, or the caller has checked it. What is too seldom for a place here, and what is malformed,
goes to `show`, which has the JSON text of any value, or raises.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from collections.abc import Callable

ONES = 2**64 - 1
DEPTH = 64  # of what nests deeper
KEYS = 32  # and of maps with more; the room for them stands in `map` and jsonkernel.pxd too
MORE = 160
NIL, FALSE, TRUE = 0xC0, 0xC2, 0xC3
EXT_DECIMAL, EXT_UUID = 1, 2
DIGITS, SCALE = 38, 76  # limits.DECIMAL_DIGITS, and twice as much

# Bytes as C has them; it does not see those of the tuples.
_letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_hex = b"0123456789abcdef"
_words = b'nulltruefalse{"$float": "{"$bin": "{"$str": "{"$uuid": "{"$decimal": "{"$ext": [\\u00"]}'
_escapes = bytes(8) + b"btn" + bytes(1) + b"fr" + bytes(18)
LETTERS, HEX, WORDS, ESCAPES = _letters, _hex, _words, _escapes
W_NULL, W_TRUE, W_FALSE, W_FLOAT, W_BIN, W_STR = 0, 4, 8, 13, 25, 35
W_UUID, W_DECIMAL, W_EXT, W_ESCAPE, W_CLOSE = 45, 56, 70, 80, 84


def _is_text(data: bytes, start: int, stop: int) -> bool:
    try:
        data[start:stop].decode()
    except UnicodeDecodeError:
        return False
    return True


def _put_float(out: bytearray, at: int, bits: int) -> int:
    text = repr(struct.unpack("d", struct.pack("Q", bits))[0]).encode()
    out[at : at + len(text)] = text
    return at + len(text)


def _widened(bits: int) -> int:
    value = struct.unpack("f", struct.pack("I", bits))[0]
    found: int = struct.unpack("Q", struct.pack("d", value))[0]
    return found


# Whether bytes are UTF-8; a float's shortest text; the bits of a 32-bit float as one of 64.
# Compiled, these are C: see jsonkernel.pxd.
globals().update(is_text=_is_text, put_float=_put_float, widened=_widened)


def string_head(data: bytes, start: int, stop: int) -> int:
    """Where the bytes of the string that goes from `start` to `stop` begin; -1 if it is none."""
    first = data[start]
    head = start + 1 + (1 << (first - 0xD9)) if 0xD9 <= first <= 0xDB else start + 1
    return head if 0xA0 <= first < 0xC0 or (head > start + 1 and head <= stop) else -1


def binary_head(data: bytes, start: int, stop: int) -> int:
    """The same of a binary."""
    first = data[start]
    head = start + 1 + (1 << (first - 0xC4)) if 0xC4 <= first <= 0xC6 else start
    return head if start < head <= stop else -1


def extension_head(data: bytes, start: int, stop: int) -> int:
    """The same of an extension; its type is the byte in front."""
    first = data[start]
    head = start + 2 if 0xD4 <= first <= 0xD8 else start
    if 0xC7 <= first <= 0xC9:
        head = start + 2 + (1 << (first - 0xC7))
    return head if start < head <= stop else -1


class Texts:
    """Texts one behind the other in `out`, of which `at` bytes are written. `data`: the values."""

    def __init__(self, data: bytes, room: int, show: Callable[[bytes], bytes]) -> None:
        self.data = data
        self.raw = data
        self.out = bytearray(room)
        self.to = self.out
        self.room = room
        self.at = 0
        self.show = show

    def written(self) -> bytearray:
        """The texts; nothing more is written."""
        del self.out[self.at :]
        return self.out

    def reserve(self, size: int) -> int:
        """Make room for so many more bytes, and `MORE`."""
        if self.room - self.at < size + MORE:
            self.out.extend(bytes(self.room + size + MORE))
            self.to = self.out
            self.room = len(self.out)
        return 0

    def json(self, at: int, stop: int, depth: int) -> int:
        """Write the whole value that goes from `at` to `stop`. `depth`: it is in so many others."""
        self.reserve(0)
        raw = self.raw
        first = raw[at]
        if first < 0x80:
            self.number(first)
        elif 0xA0 <= first < 0xC0 or 0xD9 <= first <= 0xDB:
            self.string(at, stop)
        elif first >= 0xE0:
            self.byte(0x2D)
            self.number(256 - first)
        elif 0x90 <= first < 0xA0 or first == 0xDC or first == 0xDD:
            self.array(at, stop, depth)
        elif first < 0x90 or first >= 0xDE:
            if not self.map(at, stop, depth):
                self.shown(at, stop)
        elif first == NIL:
            self.word(W_NULL, 4)
        elif first == FALSE:
            self.word(W_FALSE, 5)
        elif first == TRUE:
            self.word(W_TRUE, 4)
        elif 0xCC <= first <= 0xD3:
            value = rows.load(raw, at + 1, stop - at - 1)
            bits = 8 * (stop - at - 1)
            if first >= 0xD0 and value >> (bits - 1):
                self.byte(0x2D)
                value = (ONES >> (64 - bits)) - value + 1
            self.number(value)
        elif first == 0xCA or first == 0xCB:
            self.floating(at, stop)
        elif 0xC4 <= first <= 0xC6:
            self.word(W_BIN, 10)
            self.base64(binary_head(raw, at, stop), stop)
            self.word(W_CLOSE, 1)
            self.byte(0x7D)
        else:
            self.extension(at, stop)
        return 0

    def floating(self, at: int, stop: int) -> int:
        """A float."""
        value = rows.load(self.raw, at + 1, stop - at - 1)
        if self.raw[at] == 0xCA:
            value = widened(value)  # type: ignore[name-defined]  # noqa: F821
        if value >> 52 & 0x7FF == 0x7FF:
            self.word(W_FLOAT, 12)
            self.at = put_float(self.to, self.at, value)  # type: ignore[name-defined]  # noqa: F821
            self.word(W_CLOSE, 1)
            self.byte(0x7D)
        else:
            self.at = put_float(self.to, self.at, value)  # type: ignore[name-defined]  # noqa: F821
        return 0

    def string(self, at: int, stop: int) -> int:
        """A string: UTF-8 or not."""
        head = string_head(self.raw, at, stop)
        if is_text(self.raw, head, stop):  # type: ignore[name-defined]  # noqa: F821
            self.quoted(head, stop)
        else:
            self.word(W_STR, 10)
            self.base64(head, stop)
            self.word(W_CLOSE, 1)
            self.byte(0x7D)
        return 0

    def extension(self, at: int, stop: int) -> int:
        """A decimal, a UUID, or any other."""
        raw = self.raw
        began = self.at
        head = extension_head(raw, at, stop)
        if head < 0:
            return self.shown(at, stop)
        code = raw[head - 1]
        if code == EXT_UUID and stop - head == 16:
            self.word(W_UUID, 11)
            self.uuid(head)
        elif code == EXT_DECIMAL:
            self.word(W_DECIMAL, 14)
            if not self.decimal(head, stop):
                self.at = began
                return self.shown(at, stop)
        else:
            self.word(W_EXT, 10)
            if code > 127:
                self.byte(0x2D)
            self.number(256 - code if code > 127 else code)
            self.byte(0x2C)
            self.byte(0x20)
            self.byte(0x22)
            self.base64(head, stop)
            self.word(W_CLOSE, 3)
            return 0
        self.word(W_CLOSE, 1)
        self.byte(0x7D)
        return 0

    def array(self, at: int, stop: int, depth: int) -> int:
        """An array."""
        if depth == DEPTH:
            return self.shown(at, stop)
        owed = [0] * 512
        items = rows.map_count(self.raw, at, head_end(self.raw, at))
        at = head_end(self.raw, at)
        self.byte(0x5B)
        for number in range(items):
            if number:
                self.reserve(0)
                self.byte(0x2C)
                self.byte(0x20)
            end = rows.skip_value(self.raw, at, stop, owed, 0)
            self.json(at, end, depth + 1)
            at = end
        self.reserve(0)
        self.byte(0x5D)
        return 0

    def map(self, at: int, stop: int, depth: int) -> bool:
        """A map. False, and nothing is written, where it is no JSON object (`wal.render` says
        which), has more than `KEYS` keys or stands in too many others."""
        began = self.at
        owed = [0] * 512
        keys = [0] * 64
        raw = self.raw
        items = rows.map_count(raw, at, head_end(raw, at))
        if depth == DEPTH or items > KEYS:
            return False
        at = head_end(raw, at)
        self.byte(0x7B)
        for number in range(items):
            end = rows.skip_value(raw, at, stop, owed, 0)
            head = string_head(raw, at, end)
            is_key = head >= 0 and is_text(raw, head, end)  # type: ignore[name-defined]  # noqa: F821
            if is_key and items == 1 and end > head and raw[head] == 0x24:
                is_key = False
            for other in range(number if is_key else 0):
                if is_same(raw, head, end, keys[2 * other], keys[2 * other + 1]):
                    is_key = False
                    break
            if not is_key:
                self.at = began
                return False
            keys[2 * number] = head
            keys[2 * number + 1] = end
            if number:
                self.reserve(0)
                self.byte(0x2C)
                self.byte(0x20)
            self.quoted(head, end)
            self.byte(0x3A)
            self.byte(0x20)
            at = rows.skip_value(raw, end, stop, owed, 0)
            self.json(end, at, depth + 1)
        self.reserve(0)
        self.byte(0x7D)
        return True

    def item(self, number: int, at: int, stop: int, is_first: bool) -> int:
        """An item of an object: a number as its key, and the value, null where there is none."""
        self.reserve(0)
        if is_first:
            self.byte(0x7B)
        else:
            self.byte(0x2C)
            self.byte(0x20)
        self.byte(0x22)
        self.number(number)
        self.byte(0x22)
        self.byte(0x3A)
        self.byte(0x20)
        if at < stop:
            return self.json(at, stop, 0)
        self.word(W_NULL, 4)
        return 0

    def shown(self, at: int, stop: int) -> int:
        """What `show` makes of a value."""
        text = self.show(self.data[at:stop])
        self.reserve(len(text))
        self.at = rows.copy(text, 0, len(text), self.to, self.at)
        return 0

    # --- pieces; those that do not reserve are within `MORE` --------------------------------------

    def byte(self, value: int) -> None:
        """One byte."""
        self.to[self.at] = value
        self.at += 1

    def word(self, start: int, size: int) -> None:
        """Some of `WORDS`."""
        for i in range(size):
            self.to[self.at + i] = WORDS[start + i]
        self.at += size

    def number(self, value: int) -> None:
        """An unsigned 64-bit number in decimal."""
        size = 1
        left = value // 10
        while left:
            size += 1
            left = left // 10
        self.at += size
        for i in range(size):
            self.to[self.at - 1 - i] = 48 + value % 10
            value = value // 10

    def quoted(self, start: int, stop: int) -> int:
        """UTF-8 as a string of JSON."""
        self.reserve(6 * (stop - start))
        raw, to, at = self.raw, self.to, self.at
        to[at] = 0x22
        at += 1
        for i in range(start, stop):
            byte = raw[i]
            if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
                to[at] = byte
                at += 1
            elif byte >= 0x20 or ESCAPES[byte]:
                to[at] = 0x5C
                to[at + 1] = byte if byte >= 0x20 else ESCAPES[byte]
                at += 2
            else:
                for k in range(4):
                    to[at + k] = WORDS[W_ESCAPE + k]
                to[at + 4] = HEX[byte >> 4]
                to[at + 5] = HEX[byte & 0x0F]
                at += 6
        to[at] = 0x22
        self.at = at + 1
        return 0

    def base64(self, start: int, stop: int) -> int:
        """Bytes in base64: the standard alphabet, with padding."""
        self.reserve(2 * (stop - start))
        raw, to, at = self.raw, self.to, self.at
        while start < stop:
            left = stop - start
            bits = raw[start] << 16
            if left > 1:
                bits |= raw[start + 1] << 8
            if left > 2:
                bits |= raw[start + 2]
            to[at] = LETTERS[bits >> 18]
            to[at + 1] = LETTERS[bits >> 12 & 63]
            to[at + 2] = LETTERS[bits >> 6 & 63] if left > 1 else 0x3D
            to[at + 3] = LETTERS[bits & 63] if left > 2 else 0x3D
            start += 3
            at += 4
        self.at = at
        return 0

    def uuid(self, start: int) -> None:
        """The text of the UUID whose 16 bytes stand there."""
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                self.byte(0x2D)
            self.byte(HEX[self.raw[start + i] >> 4])
            self.byte(HEX[self.raw[start + i] & 0x0F])

    def decimal(self, start: int, stop: int) -> bool:
        """The text that Python has for a decimal (`wal.mp` has its bytes). False, and nothing is
        written, where it is malformed."""
        raw = self.raw
        digits = decimal_digits(raw, start, stop)
        if digits < 0:
            return False
        end = integer_end(raw, start, stop)
        scale = small_integer(raw, start, end)
        count = 2 * (stop - end) - 1
        sign = raw[stop - 1] & 0x0F
        if sign == 11 or sign == 13:
            self.byte(0x2D)
        if digits == 0:
            digits = 1
        point = digits - scale  # so many digits stand in front of the point
        shown = point if scale >= 0 and point > -6 else 1
        if shown <= 0:
            self.byte(0x30)
            self.byte(0x2E)
            for _ in range(-shown):
                self.byte(0x30)
        for i in range(count - digits, count):
            if shown > 0 and i == count - digits + shown:
                self.byte(0x2E)
            self.byte(0x30 + (raw[end + (i >> 1)] >> (0 if i & 1 else 4) & 0x0F))
        if point != shown:
            self.byte(0x45)
            self.byte(0x2D if point < shown else 0x2B)
            self.number(shown - point if point < shown else point - shown)
        return True


def head_end(data: bytes, at: int) -> int:
    """Where the items of an array or map begin."""
    first = data[at]
    return at + 1 if first < 0xA0 else at + (5 if first & 1 else 3)


def integer_end(data: bytes, at: int, stop: int) -> int:
    """Where the integer at `at` ends; -1 where there is none before `stop`."""
    if at >= stop:
        return -1
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    end = at + 1 + (1 << (first & 3))
    return end if 0xCC <= first <= 0xD3 and end <= stop else -1


def small_integer(data: bytes, at: int, end: int) -> int:
    """The integer that goes from `at` to `end`; one that is far from 0 becomes 127 or -128."""
    first = data[at]
    if end == at + 1:
        return first if first < 0x80 else first - 256
    bits = 8 * (end - at - 1)
    value = rows.load(data, at + 1, end - at - 1)
    if first >= 0xD0 and value >> (bits - 1):
        value = (ONES >> (64 - bits)) - value + 1
        return -value if value < 128 else -128
    return value if value < 127 else 127


def decimal_digits(data: bytes, start: int, stop: int) -> int:
    """How many digits that decimal has, zeros in front left out; -1 where it is malformed."""
    end = integer_end(data, start, stop)
    if end < 0 or end >= stop:
        return -1
    scale = small_integer(data, start, end)
    digits = 0
    for i in range(2 * (stop - end) - 1):
        nibble = data[end + (i >> 1)] >> (0 if i & 1 else 4) & 0x0F
        if nibble > 9:
            return -1
        if digits or nibble:
            digits += 1
    if data[stop - 1] & 0x0F < 10 or digits > DIGITS or scale > SCALE or scale < -SCALE:
        return -1
    return digits


def is_same(data: bytes, start: int, stop: int, other: int, end: int) -> bool:
    """Whether the bytes of two places are the same."""
    if stop - start != end - other:
        return False
    size = 0
    while start + size < stop and data[start + size] == data[other + size]:
        size += 1
    return start + size == stop


COMPILED = "is_same" not in globals()  # compiled, it is a C function that Python does not see
