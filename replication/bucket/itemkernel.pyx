# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""What becomes of items, compiled: see `replication.bucket.change`, which does the same in Python.

Tuples that are not written as `replication.bucket.item.pack_item` writes them are that one's. Nothing
here believes a length: tuples are read by `bucket.kernel.read_item`, which checks them, and written
into room that was asked for before.
"""

from libc.string cimport memcpy, memset

cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows
from logweir.store.engine.conditionkernel cimport HALTED, KEPT, UNMET, Computer
from logweir.store.schema.packkernel cimport DONE, REFER, Room, Source, Target, u64

from logweir.limits import TAP_VALUE_BYTES

cdef enum:
    LOOK = 1
    SET = 2
    ADD = 3
    REPLACE = 4
    BURY = 5
    APPEND = 6
    PREPEND = 7
    INCREMENT = 8
    DECREMENT = 9
    TOUCH = 10
    TAKE = 11
    PATCH = 12
    FETCH = 13
    MARK = 14
    KINDS = 0xFF
    NO_CREATE = 0x100
    TAKEN = 0x200
    NO_REPLACE = 0x400
    RETIME = 0x800
    FIRST_RETIME = 0x1000
    RECACHE = 0x2000
    CREATE = 0x4000
    OLDER = 0x8000

    WINS_NONE = 0
    WINS_HALT = 1
    WINS_MAKE = 2
    STALE = 1
    TOLD = 2

    MISSING = 1
    EXISTS = 2
    TOO_BIG = 3
    NOT_STORED = 5
    BAD_NUMBER = 6

    # As bucketkernel has the fields of an item.
    VBUCKET = 0
    EXPIRY = 2
    CAS = 3
    KEY_AT = 5
    HEAD_END = 7
    VALUE_AT = 8
    VALUE_END = 9
    FLAGS_AT = 10
    FLAGS_END = 11
    TAIL_AT = 12
    META_END = 14
    TTL = 15
    MARKS = 18
    FIELDS = 19

    NO_HOPS_MADE = 255
    DIGITS = 25
    DIGITS_ROOM = 20
    ROOM = 64  # for headers and numbers beside copied parts

cdef u64 VALUE_MAX = TAP_VALUE_BYTES


cdef class ItemComputer(Computer):
    """See the module's text. `now`: Unix seconds; `cas`: the next one; `wins`: see there."""

    cdef public u64 now
    cdef public u64 cas
    cdef public int wins

    def __init__(self, u64 now, u64 cas, int wins=WINS_MAKE):
        self.now, self.cas, self.wins = now, cas, wins

    cdef int compute(
        self, u64 how, u64 number, Source given, Py_ssize_t given_size, Source old,
        Py_ssize_t old_size, Room made, u64* told
    ) except -1:
        cdef u64[FIELDS] new
        cdef u64[FIELDS] there
        cdef u64 kind = how & KINDS, code, cas = 0, marks
        cdef bint is_there = False
        if kind == PATCH or not bucket.read_item(given, 0, given_size, new):
            return REFER
        if old != NULL:
            if not bucket.read_item(old, 0, old_size, there):
                return REFER
            is_there = there[VBUCKET] == new[VBUCKET]
        if kind == TAKE:
            cas = new[CAS]
            if old != NULL and (how & NO_REPLACE or (is_there and is_same(given, new, old, there))):
                told[0], told[1], told[2] = 0, there[CAS], 0
                return KEPT
            if old != NULL and not is_there:
                return self.halt(old, old_size)
            if not cas:
                cas = self.next_after(there[CAS] if is_there else 0, is_there)
            put_dated(given, new, new[EXPIRY], cas, new[TTL], 0, made)
            told[0], told[1], told[2] = 0, cas, 0
            return DONE
        if is_there and not how & TAKEN and 0 < there[EXPIRY] <= self.now:
            return self.halt(old, old_size)
        code = verdict(kind, how, new[CAS], is_there, there)
        if code == 0 and kind == LOOK:
            told[0], told[1], told[2] = 0, there[CAS], 0
            return KEPT
        if code == 0 and kind == FETCH and is_there:
            return self.fetch(how, number, new, old, old_size, there, made, told)
        if code == 0 and is_there and (kind == APPEND or kind == PREPEND) and (
            there[VALUE_END] - there[VALUE_AT] + new[VALUE_END] - new[VALUE_AT] > VALUE_MAX
        ):
            code = TOO_BIG
        if code == 0 and (kind == INCREMENT or kind == DECREMENT):
            if not is_there:
                if not read_number(given, new[VALUE_AT], new[VALUE_END], &number):
                    return REFER
            elif not counted(kind, old, there, &number):
                code = BAD_NUMBER
        if code:
            told[0], told[1], told[2] = code, 0, 0
            return UNMET
        if old != NULL and not is_there:
            return self.halt(old, old_size)
        if kind == TOUCH:
            cas = there[CAS]
        elif kind == BURY and how & TAKEN:
            cas = new[CAS]
        if not cas:
            cas = self.next_after(there[CAS] if is_there else 0, is_there)
        if kind == FETCH:
            put_dated(given, new, number >> 32, cas, NO_HOPS_MADE, TOLD, made)
            number = 1
        elif how & OLDER and is_there and new[CAS] != there[CAS]:
            marks = there[MARKS] & TOLD | STALE
            put_dated(given, new, there[EXPIRY], cas, NO_HOPS_MADE, marks, made)
        elif not is_there or kind <= REPLACE:
            put_dated(given, new, new[EXPIRY], cas, NO_HOPS_MADE, 0, made)
        else:
            put_changed(how, number, given, new, old, old_size, there, cas, made)
        told[0], told[1], told[2] = 0, cas, 0
        if kind == INCREMENT or kind == DECREMENT or kind == FETCH:
            told[2] = number
        return DONE

    cdef int fetch(
        self, u64 how, u64 number, u64* new, Source old, Py_ssize_t old_size, u64* there,
        Room made, u64* told
    ) except -1:
        """As `bucket.change._fetched`, and what comes of it."""
        cdef u64 marks = there[MARKS], expiry = there[EXPIRY]
        cdef bint wins
        if how & RETIME and how & FIRST_RETIME:
            expiry = new[EXPIRY]
        wins = not marks & TOLD and (
            marks & STALE or (how & RECACHE and 0 < expiry < number & 0xFFFFFFFF))
        if wins and self.wins == WINS_HALT:
            return self.halt(old, old_size)
        if how & RETIME:
            expiry = new[EXPIRY]
        told[0], told[1], told[2] = 0, there[CAS], 0
        if self.wins == WINS_NONE or (not wins and expiry == there[EXPIRY]):
            return KEPT
        marks |= TOLD if wins else 0
        put_dated(old, there, expiry, there[CAS], NO_HOPS_MADE, marks, made)
        told[2] = wins
        return DONE

    cdef int halt(self, Source old, Py_ssize_t old_size) except -1:
        self.obstacle = (<char*>old)[:old_size]
        return HALTED

    cdef u64 next_after(self, u64 old, bint is_there) noexcept:
        """A new CAS, and not `old`."""
        cdef u64 given = self.cas
        if given == old:
            given += 1
        self.cas = given + 1
        return given


cdef u64 verdict(u64 kind, u64 how, u64 cas, bint is_there, u64* there) noexcept:
    """As `bucket.change._verdict`."""
    if not is_there:
        if kind == APPEND or kind == PREPEND:
            return NOT_STORED
        if kind == SET or kind == ADD:
            return MISSING if cas else 0
        if kind == FETCH:
            return 0 if how & CREATE else MISSING
        if kind == INCREMENT or kind == DECREMENT:
            return MISSING if how & NO_CREATE else 0
        return MISSING
    if (kind == INCREMENT or kind == DECREMENT) and there[VALUE_AT] == there[VALUE_END]:
        return BAD_NUMBER
    if cas and kind != LOOK and kind != TOUCH and kind != FETCH and not how & TAKEN:
        return 0 if cas == there[CAS] or (how & OLDER and cas < there[CAS]) else EXISTS
    return EXISTS if kind == ADD else 0


cdef bint is_blank(unsigned char one) noexcept:
    return one == 0x20 or 0x09 <= one <= 0x0D


cdef bint read_number(Source data, u64 at, u64 end, u64* number) noexcept:
    """The number as which a value begins. False: it begins with none below 2^64."""
    cdef u64 value = 0, digit, first
    while at < end and is_blank(data[at]):
        at += 1
    if at < end and data[at] == 0x2B:
        at += 1
    first = at
    while at < end and 0x30 <= data[at] <= 0x39:
        digit = data[at] - 0x30
        if value > (<u64>-1 - digit) // 10:
            return False
        value = value * 10 + digit
        at += 1
    if at == first or at - first > DIGITS:
        return False
    if at < end and not is_blank(data[at]) and data[at] != 0:
        return False
    number[0] = value
    return True


cdef bint counted(u64 kind, Source old, u64* there, u64* number) noexcept:
    """The number of an item, so much more or less. False: it has none."""
    cdef u64 before
    if not read_number(old, there[VALUE_AT], there[VALUE_END], &before):
        return False
    if kind == INCREMENT:
        number[0] = before + number[0]  # modulo 2^64
    else:
        number[0] = before - number[0] if before > number[0] else 0
    return True


cdef bint is_same(Source given, u64* new, Source old, u64* there) noexcept:
    """Whether two tuples of items differ in nothing but their TTL."""
    cdef u64 size = new[META_END] - 1, i
    if there[META_END] - 1 != size:
        return False
    for i in range(1, size + 1):
        if given[i] != old[i]:
            return False
    return True


cdef Py_ssize_t put_part(Source data, u64 start, u64 stop, Target out, Py_ssize_t at) noexcept:
    """Copy a part of a tuple."""
    memcpy(out + at, data + start, stop - start)
    return at + <Py_ssize_t>(stop - start)


cdef Py_ssize_t put_end(
    Source data, u64* fields, u64 cas, u64 ttl, u64 marks, Target out, Py_ssize_t at
) noexcept:
    """Write the CAS, what stands behind that of a tuple, the TTL and the marks; and the tuple's head.
    """
    at = rows.put_uint(out, at, cas)
    at = put_part(data, fields[TAIL_AT], fields[META_END], out, at)
    out[0] = 0x9A
    if marks or ttl != NO_HOPS_MADE:
        out[0] = 0x9B
        at = rows.put_uint(out, at, ttl)
    if marks:
        out[0] = 0x9C
        at = rows.put_uint(out, at, marks)
    return at


cdef int put_dated(
    Source data, u64* fields, u64 expiry, u64 cas, u64 ttl, u64 marks, Room made
) except -1:
    """Write a tuple with another expiry, CAS and TTL, and with these marks."""
    cdef Py_ssize_t at
    made.need(fields[META_END] + ROOM)
    at = put_part(data, 1, fields[FLAGS_END], made.data, 1)
    at = rows.put_uint(made.data, at, expiry)
    made.size = put_end(data, fields, cas, ttl, marks, made.data, at)
    return 0


cdef int put_changed(
    u64 how, u64 number, Source given, u64* new, Source old, Py_ssize_t old_size, u64* there,
    u64 cas, Room made
) except -1:
    """Write what a change makes of the tuple that is there."""
    cdef u64 kind = how & KINDS
    cdef u64 before = there[VALUE_END] - there[VALUE_AT], more = new[VALUE_END] - new[VALUE_AT]
    cdef u64 ttl = new[TTL] if kind == BURY else NO_HOPS_MADE
    cdef u64 expiry = new[EXPIRY] if kind == TOUCH or how & RETIME else there[EXPIRY]
    cdef u64 marks = 0
    cdef Py_ssize_t at
    if kind == TOUCH or kind == MARK:
        marks = STALE if kind == MARK else there[MARKS]
        return put_dated(old, there, expiry, cas, NO_HOPS_MADE, marks, made)
    cdef Target out
    made.need(old_size + more + ROOM)
    out = made.data
    at = put_part(old, 1, there[HEAD_END], out, 1)
    if kind == BURY:
        at = put_size(0, out, at)
        at = put_part(old, there[FLAGS_AT], there[FLAGS_END], out, at)
        out[at] = 0
        made.size = put_end(old, there, cas, ttl, 0, out, at + 1)
        return 0
    if kind == APPEND:
        at = put_size(before + more, out, at)
        at = put_part(old, there[VALUE_AT], there[VALUE_END], out, at)
        at = put_part(given, new[VALUE_AT], new[VALUE_END], out, at)
    elif kind == PREPEND:
        at = put_size(before + more, out, at)
        at = put_part(given, new[VALUE_AT], new[VALUE_END], out, at)
        at = put_part(old, there[VALUE_AT], there[VALUE_END], out, at)
    else:
        if digits_of(number) <= before:
            marks = there[MARKS]
        at = put_text(number, before, out, at)
    at = put_part(old, there[FLAGS_AT], there[FLAGS_END], out, at)
    at = rows.put_uint(out, at, expiry)
    made.size = put_end(old, there, cas, ttl, marks, out, at)
    return 0


cdef u64 digits_of(u64 number) noexcept:
    """How many digits a number has."""
    cdef u64 count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


cdef Py_ssize_t put_size(u64 size, Target out, Py_ssize_t at) noexcept:
    """Write the head of a bin in its shortest form."""
    if size <= 0xFF:
        out[at], out[at + 1] = 0xC4, <unsigned char>size
        return at + 2
    if size <= 0xFFFF:
        out[at] = 0xC5
        return bucket.put2(out, at + 1, size)
    out[at] = 0xC6
    return bucket.put4(out, at + 1, size)


cdef Py_ssize_t put_text(u64 number, u64 least, Target out, Py_ssize_t at) noexcept:
    """Write a number as text, with blanks behind it up to `least` bytes."""
    cdef unsigned char[DIGITS_ROOM] digits
    cdef Py_ssize_t count = 0, i
    cdef u64 size
    while True:
        digits[count] = 0x30 + <unsigned char>(number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    size = max(<u64>count, least)
    at = put_size(size, out, at)
    for i in range(count):
        out[at + i] = digits[count - 1 - i]
    memset(out + at + count, 0x20, size - count)
    return at + <Py_ssize_t>size
