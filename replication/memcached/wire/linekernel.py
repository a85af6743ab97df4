# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loop of memcached's text protocol: lines of clients, as binary requests.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `linekernel.pxd`. `COMPILED` says which one runs. `memcached.wire.text` is its face,
nothing else calls it. The requests are specified in `memcached.wire.codec`; the forms of their
answers, which are their opaques, in `memcached.wire.textforms`.

A line ends with a line feed, with or without a carriage return before it, or with a zero byte; its
words are divided by blanks. Numbers are read as C's `strtol` and `strtoull` read them. Source:
memcached 1.6.18, its source and observed.

Nothing here recurses or believes a length: every read and write is checked against the ends of its
buffer first, since the compiled one would not notice.
"""

from __future__ import annotations

import logweir.replication.bucket.kernel as bucket
import logweir.replication.memcached.wire.metakernel as meta
import logweir.replication.memcached.wire.wordkernel as words_of
import logweir.wal.kernel as rows
from logweir.replication.memcached.wire import textforms as forms

COMPILED = not __file__.endswith(".py")

# How it ended: nothing whole is left, `about` bytes have to be there, 0: not known; so much room is
# wanted; a line that is not for here, and where it ends; so many bytes of a value are still to be
# passed over.
WAITS, NO_ROOM, OTHER, PASSES = range(4)

# The same for C, which alone then sees them; and what `make` is given and writes: where the next
# line begins, bytes used of `out` and of `told`, and a number that how it ended is about.
_AT, _USED, _TOLD, _ABOUT = range(4)
_WAITS, _NO_ROOM, _OTHER, _PASSES = range(4)

_HEADER = 24
_OPAQUE = 12  # where it stands in a header
_KEY_MAX = 250  # limits.TAP_KEY_BYTES
_LINE_ROOM = 512  # for the requests of a line, beside its own bytes
_KEY_ROOM = 16  # times the bytes of a line of keys are its requests at most
_META_SIZE = 12  # metakernel._SIZE
_TOLD_ROOM = 512  # for the record of a meta command
_RECORDS_MAX = 64 * 1024
_ROOM = 1024
_WORDS_MAX = 23
_ALL = 0xFFFF_FFFF_FFFF_FFFF  # the CAS of no item
_LOW = 0xFFFF_FFFF
_PAST = 2592001  # an expiry that is over
_LONGEST = 0x7FFF_FFFF - 2

(_GET, _GETS, _BGET, _GAT, _GATS, _SET, _ADD, _REPLACE, _APPEND, _PREPEND, _CAS) = range(1, 12)
(_INCR, _DECR, _TOUCH, _DELETE, _VERSION, _VERBOSITY) = range(12, 18)
_NAME_BYTES = 16
_name_slots = bytearray(18 * _NAME_BYTES)
for _number, _name in enumerate(
    (
        *(b"get", b"gets", b"bget", b"gat", b"gats", b"set", b"add", b"replace", b"append"),
        *(b"prepend", b"cas", b"incr", b"decr", b"touch", b"delete"),
        *(b"version", b"verbosity"),
    ),
    1,
):
    _name_slots[_number * _NAME_BYTES] = len(_name)
    _name_slots[_number * _NAME_BYTES + 1 : _number * _NAME_BYTES + 1 + len(_name)] = _name
_names = bytes(_name_slots)
NAMES = _names
_noreply = b"noreply"
NOREPLY = _noreply

# By number of the command: its opcode, and the form of its answer.
_opcodes = bytes((0, 12, 12, 12, 0x23, 0x23, 1, 2, 3, 0x0E, 0x0F, 1, 5, 6, 0x1C, 4))
OPCODES = _opcodes
_forms = bytes(
    (
        *(0, forms.VALUE, forms.VALUE_CAS, forms.VALUE, forms.VALUE, forms.VALUE_CAS, forms.STORE),
        *(forms.KEEP, forms.KEEP, forms.KEEP, forms.KEEP, forms.CAS, forms.COUNT, forms.COUNT),
        *(forms.TOUCH, forms.DELETE),
    )
)
FORMS = _forms
_NOOP_OPCODE, _VERSION_OPCODE = 10, 11
_VERSION_FORM = forms.VERSION
_LINE, _END, _QUIET = forms.LINE, forms.END, forms.QUIET
_LAST_BIT = forms.LAST >> 16  # in the second byte of an opaque
_ERROR = forms.line_number(b"ERROR")
_BAD_FORMAT = forms.line_number(b"CLIENT_ERROR bad command line format")
_BAD_CHUNK = forms.line_number(b"CLIENT_ERROR bad data chunk")
_BAD_EXPIRY = forms.line_number(b"CLIENT_ERROR invalid exptime argument")
_BAD_DELTA = forms.line_number(b"CLIENT_ERROR invalid numeric delta argument")
_BAD_DELETE = forms.line_number(
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"
)
_TOO_LARGE = forms.line_number(b"SERVER_ERROR object too large for cache")
_MN, _OK = forms.line_number(b"MN"), forms.line_number(b"OK")


def command_of(raw: bytes, at: int, stop: int) -> int:
    """The number of a command, of a meta command its second letter; 0: it is not for here.
    Unchecked."""
    if stop - at == 2 and raw[at] == 0x6D:  # m
        return raw[at + 1] if raw[at + 1] in (0x67, 0x73, 0x64, 0x61, 0x65, 0x6E) else 0  # gsdaen
    for number in range(1, _VERBOSITY + 1):
        slot = number * _NAME_BYTES
        if raw[at] == NAMES[slot + 1] and words_of.is_word(
            raw, at, stop, NAMES, slot + 1, NAMES[slot]
        ):
            return number
    return 0


def take_gets(
    raw: bytes, command: int, words: list[int], stop: int, out: bytearray, used: int
) -> int:
    """The requests of a line that wants items: one for each, of which the last is marked, or one
    for the end of none. Behind a key that is too long nothing is asked for. Unchecked."""
    found = [0, 0]
    begin = used
    last = -1
    expiry = 0
    extras_bytes = 0
    at = words[2]
    if command >= _GAT:
        if not words_of.read_expiry(raw, words[2], words[3], found):
            return words_of.put_line(out, used, _BAD_EXPIRY, 0)
        extras_bytes = 4
        expiry = found[0]
        at = words[3]
    while True:
        while at < stop and raw[at] == 0x20:
            at += 1
        if at == stop:
            break
        key_at = at
        while at < stop and raw[at] != 0x20:
            at += 1
        if at - key_at > _KEY_MAX:
            if not extras_bytes:
                used = begin
            while begin < used:  # what stands before it is touched, and not told
                out[begin + 1] = OPCODES[_TOUCH]
                bucket.put4(out, begin + _OPAQUE, FORMS[_TOUCH] << 24 | _QUIET)
                begin += _HEADER + bucket.load4(out, begin + 8)
            return words_of.put_line(out, used, _BAD_FORMAT, 0)
        opaque = FORMS[command] << 24
        last = used
        used = words_of.put_request(
            out, used, OPCODES[command], at - key_at, extras_bytes, 0, opaque, 0
        )
        if extras_bytes:
            used = bucket.put4(out, used, expiry)
        used = rows.copy(raw, key_at, at, out, used)
    if last < 0:
        return words_of.put_request(out, used, _NOOP_OPCODE, 0, 0, 0, _END << 24, 0)
    out[last + _OPAQUE + 1] |= _LAST_BIT
    return used


def take_short(
    raw: bytes, command: int, words: list[int], count: int, out: bytearray, used: int
) -> int:
    """The request of a line about one item, without a value. Unchecked."""
    found = [0, 0]
    quiet = 0
    if count > 2 and words_of.is_word(
        raw, words[2 * count - 2], words[2 * count - 1], NOREPLY, 0, 7
    ):
        quiet = _QUIET
    if command == _DELETE and count > 2:
        has_zero = words[5] - words[4] == 1 and raw[words[4]] == 0x30
        if not (has_zero or quiet) or (count == 4 and not (has_zero and quiet)):
            return words_of.put_line(out, used, _BAD_DELETE, quiet)
    key_bytes = words[3] - words[2]
    if key_bytes > _KEY_MAX:
        return words_of.put_line(out, used, _BAD_FORMAT, quiet)
    opaque = FORMS[command] << 24 | quiet
    opcode = OPCODES[command]
    if command == _DELETE:
        used = words_of.put_request(out, used, opcode, key_bytes, 0, 0, opaque, 0)
    elif command == _TOUCH:
        if not words_of.read_expiry(raw, words[4], words[5], found):
            return words_of.put_line(out, used, _BAD_EXPIRY, quiet)
        used = words_of.put_request(out, used, opcode, key_bytes, 4, 0, opaque, 0)
        used = bucket.put4(out, used, found[0])
    else:
        if not words_of.read_long(raw, words[4], words[5], found):
            return words_of.put_line(out, used, _BAD_DELTA, quiet)
        used = words_of.put_request(out, used, opcode, key_bytes, 20, 0, opaque, 0)
        used = bucket.put8(out, used, found[0])
        used = bucket.put8(out, used, 0)
        used = bucket.put4(out, used, _LOW)
    return rows.copy(raw, words[2], words[3], out, used)


def take_verbosity(raw: bytes, words: list[int], count: int, out: bytearray, used: int) -> int:
    """What stands for the answer to a level, which nothing is made of. Unchecked."""
    found = [0, 0]
    quiet = words_of.is_word(raw, words[2 * count - 2], words[2 * count - 1], NOREPLY, 0, 7)
    is_level = words_of.read_long(raw, words[2], words[3], found)
    return words_of.put_line(out, used, _OK if is_level else _BAD_FORMAT, quiet)


def read_store(raw: bytes, command: int, words: list[int], count: int, numbers: list[int]) -> int:
    """The numbers of a line that stores: flags, expiry, length of the value, CAS, whether it is
    quiet. Returns the number of a line that says what is wrong, 0: nothing. Unchecked."""
    found = [0, 0]
    numbers[4] = 0
    numbers[3] = 0
    if words_of.is_word(raw, words[2 * count - 2], words[2 * count - 1], NOREPLY, 0, 7):
        numbers[4] = _QUIET
    if words[3] - words[2] > _KEY_MAX or not words_of.read_long(raw, words[4], words[5], found):
        return _BAD_FORMAT
    numbers[0] = found[0] & _LOW
    if not words_of.read_expiry(raw, words[6], words[7], found):
        return _BAD_FORMAT
    numbers[1] = found[0]
    if not words_of.read_short(raw, words[8], words[9], found):
        return _BAD_FORMAT
    numbers[2] = found[0]
    if command == _CAS:
        if not words_of.read_long(raw, words[10], words[11], found):
            return _BAD_FORMAT
        numbers[3] = found[0] if found[0] else _ALL
    return _BAD_FORMAT if numbers[2] > _LONGEST else 0


def is_wanted(command: int, count: int) -> bool:
    """Whether a command has so many words."""
    if command <= _GATS:
        return count >= 2
    if command <= _PREPEND:
        return 5 <= count <= 6
    if command == _CAS:
        return 6 <= count <= 7
    if command == _DELETE:
        return 2 <= count <= 4
    return 3 <= count <= 4


def put_store(
    raw: bytes, command: int, words: list[int], store: list[int], at: int, out: bytearray, used: int
) -> int:
    """The request of a line that stores the value at `at`. Returns where it ends. Unchecked."""
    extras = 8 if command <= _REPLACE or command == _CAS else 0
    opaque = FORMS[command] << 24 | store[4]
    key_bytes = words[3] - words[2]
    used = words_of.put_request(
        out, used, OPCODES[command], key_bytes, extras, store[2], opaque, store[3]
    )
    if extras:
        used = bucket.put4(out, used, store[0])
        used = bucket.put4(out, used, store[1])
    used = rows.copy(raw, words[2], words[3], out, used)
    return rows.copy(raw, at, at + store[2], out, used)


def make(data: bytes, value_max: int, numbers: list[int], out: bytearray, told: bytearray) -> int:
    """Make requests of whole lines, and of values behind them. Returns how it ended.

    `value_max`: longest value; `numbers`: see above; `told`: takes the records of meta commands.
    """
    raw, to, records = data, out, told
    words = [0] * 48
    store = [0] * 5
    fields = [0] * 16
    places = [0]
    at = numbers[_AT]
    used = numbers[_USED]
    places[0] = numbers[_TOLD]
    end = len(data)
    room = len(out)
    how = _WAITS
    about = 0
    while at < end:
        feed = at
        while feed < end and raw[feed] > 0x0A:
            feed += 1
        zero = feed
        while feed < end and raw[feed] != 0x0A:
            feed += 1
        if feed == end:
            break
        stop = feed
        if feed - at > 1 and raw[feed - 1] == 0x0D:
            stop -= 1
        if zero < stop:  # a letter below the one that ends a line
            while zero < stop and raw[zero]:
                zero += 1
            stop = zero
        behind = feed + 1
        count = words_of.split(raw, at, stop, _WORDS_MAX, words)
        command = command_of(raw, words[0], words[1]) if count else 0
        if command == _VERBOSITY and not 2 <= count <= 3:
            command = 0
        if command == 0:
            how, about = _OTHER, behind
            break
        need = _LINE_ROOM + (_KEY_ROOM * (stop - at) if command <= _GATS else stop - at)
        if need > room - used or len(told) - places[0] < _TOLD_ROOM:
            how, about = _NO_ROOM, need
            break
        if command <= _DELETE and not is_wanted(command, count):
            used = words_of.put_line(to, used, _ERROR, 0)
        elif command <= _GATS:
            used = take_gets(raw, command, words, stop, to, used)
        elif command == 0x6E:  # mn
            used = words_of.put_line(to, used, _MN, 0)
        elif command == _VERSION:
            opaque = _VERSION_FORM << 24
            used = words_of.put_request(to, used, _VERSION_OPCODE, 0, 0, 0, opaque, 0)
        elif command == _VERBOSITY:
            used = take_verbosity(raw, words, count, to, used)
        elif _CAS < command <= _DELETE:
            used = take_short(raw, command, words, count, to, used)
        else:
            size = -1
            store[4] = 0
            if command > _DELETE:
                wrong = meta.check(raw, command, words, count, fields)
                if fields[_META_SIZE] != _ALL:
                    size = fields[_META_SIZE]
            else:
                wrong = read_store(raw, command, words, count, store)
                if wrong == 0:
                    size = store[2]
            if wrong == 0 and size > value_max:
                wrong = _TOO_LARGE
            if wrong:
                used = words_of.put_line(to, used, wrong, store[4])
                behind += size + 2 if size >= 0 else 0
                if behind > end:
                    how, about = _PASSES, behind - end
                    at = end
                    break
                at = behind
                continue
            value_at = behind
            if size >= 0:
                behind += size + 2
            if behind > end:
                about = behind - at
                break
            if size + need > room - used:
                how, about = _NO_ROOM, size + need
                break
            if size >= 0 and (raw[behind - 2] != 0x0D or raw[behind - 1] != 0x0A):
                used = words_of.put_line(to, used, _BAD_CHUNK, store[4])
            elif command > _DELETE:
                used = meta.put_meta(
                    raw, command, words, count, fields, value_at, to, used, records, places
                )
            else:
                used = put_store(raw, command, words, store, value_at, to, used)
        at = behind
    numbers[_AT] = at
    numbers[_USED] = used
    numbers[_TOLD] = places[0]
    numbers[_ABOUT] = about
    return how


class Lines:
    """The lines of one connection. `records`: takes the records of meta commands; `how`, `at`,
    `about`: how the newest `take` ended, where, and what that is about."""

    def __init__(self, records: bytearray) -> None:
        self._records = records
        self.how = WAITS
        self.at = self.about = 0

    def take(self, data: bytes, at: int, value_max: int) -> bytes:
        """The requests of whole lines from `at` on, and of values behind them. `value_max`: the
        longest value."""
        numbers = [at, 0, 0, 0]
        parts = []
        told = bytearray(min(len(data), _RECORDS_MAX) + _TOLD_ROOM)
        records = told
        how = _NO_ROOM
        while how == _NO_ROOM:
            out = bytearray(numbers[_ABOUT] + 2 * (len(data) - numbers[_AT]) + _ROOM)
            numbers[_USED] = numbers[_TOLD] = 0
            how = make(data, value_max, numbers, out, told)
            to = out
            parts.append(bytes(to[: numbers[_USED]]))
            if numbers[_TOLD]:
                self._records += records[: numbers[_TOLD]]
        self.how, self.at, self.about = how, numbers[_AT], numbers[_ABOUT]
        return b"".join(parts)
