# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""What the operations of an UPDATE or UPSERT do to the top-level fields of a tuple, compiled.

`store.engine.update` and `store.engine.operation` say what each does, and are asked where this does not know it:
paths into fields, decimals, NaN, malformed operations, very long tuples and lists of operations.
Bytes in, bytes out, no Python object. Nothing recurses or believes a length.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.string cimport memcmp, memcpy, memmove

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows
from logweir.store.schema.packkernel cimport (
    DONE, REFER, REFUSED, Room, after, items_from, put_items, text_at)
from logweir.store.schema.plankernel cimport Fields, Plan

cdef extern from *:
    """
    #include <float.h>
    #include <string.h>
    static inline int logweir_sum(
        int left_negative, unsigned long long left, int right_negative, unsigned long long right,
        int *is_negative, unsigned long long *sum)
    {
        __int128 a = left_negative ? -(__int128)left : (__int128)left;
        __int128 b = right_negative ? -(__int128)right : (__int128)right;
        __int128 total = a + b, least = -((__int128)1 << 63), end = (__int128)1 << 64;
        if (total < least || total >= end) return -1;
        *is_negative = total < 0;
        *sum = (unsigned long long)(total < 0 ? -total : total);
        return 0;
    }
    static inline double logweir_float_of(unsigned long long bits, int width)
    {
        if (width == 4) {
            unsigned int narrow = (unsigned int)bits;
            float value;
            memcpy(&value, &narrow, 4);
            return value;
        }
        double value;
        memcpy(&value, &bits, 8);
        return value;
    }
    static inline int logweir_narrow(double value, unsigned int *bits)
    {
        if (!(value >= -(double)FLT_MAX && value <= (double)FLT_MAX)) return 0;
        float narrow = (float)value;
        if ((double)narrow != value) return 0;
        memcpy(bits, &narrow, 4);
        return 1;
    }
    """
    int sum_of "logweir_sum" (
        int left_negative, u64 left, int right_negative, u64 right, int* is_negative, u64* sum
    ) noexcept
    double float_of "logweir_float_of" (u64 bits, int width) noexcept
    int narrow "logweir_narrow" (double value, unsigned int* bits) noexcept

cdef enum:
    UINT = 1
    INT = 2
    STR = 3
    DOUBLE_FIELD = 4
    UPDATE_SPLICE = 25
    UPDATE_ARG_TYPE = 26
    UPDATE_FIELD = 29
    NO_SUCH_FIELD_NO = 37
    UPDATE_INTEGER_OVERFLOW = 95
    NO_SUCH_FIELD_NAME = 201
    WANTED_NUMBER = 1
    WANTED_UNSIGNED = 2
    WANTED_STRING = 3
    VALUE_BYTES = 9  # what a number takes at most
    HEAD_BYTES = 5  # what the header of an array or string takes at most
    CHECKED = 1  # in the table of a plan


cdef void read_whole(Source data, Py_ssize_t at, bint* is_negative, u64* magnitude) noexcept:
    """The integer at `at`, which must be one and whole."""
    cdef unsigned char first = data[at]
    cdef Py_ssize_t width
    cdef u64 bits
    is_negative[0] = False
    if first < 0x80:
        magnitude[0] = first
    elif first >= 0xE0:
        is_negative[0] = True
        magnitude[0] = 0x100 - first
    elif first < 0xD0:
        magnitude[0] = rows.load(data, at + 1, 1 << (first - 0xCC))
    else:
        width = 1 << (first - 0xD0)
        bits = rows.load(data, at + 1, width)
        if data[at + 1] >= 0x80:
            is_negative[0] = True
            bits = (bits ^ (<u64>-1 >> (64 - 8 * width))) + 1
            if width < 8:
                bits &= (<u64>1 << (8 * width)) - 1
        magnitude[0] = bits


cdef bint read_number(Source data, Py_ssize_t at, Number* to) noexcept:
    """The number at `at`. False where there is none that is known here; then its kind tells of an
    extension (`FLOAT32_OR_64`), which may be a decimal, or something else (`NO_NUMBER`)."""
    cdef Py_ssize_t kind = keys.KINDS[data[at]]
    if kind == UINT or kind == INT:
        to.kind = WHOLE
        read_whole(data, at, &to.is_negative, &to.magnitude)
        return True
    if data[at] == 0xCB or data[at] == 0xCA:
        to.kind = FLOAT32_OR_64
        to.real = float_of(rows.load(data, at + 1, 8 if data[at] == 0xCB else 4),
                           8 if data[at] == 0xCB else 4)
        return to.real == to.real
    to.kind = FLOAT32_OR_64 if kind == 10 else NO_NUMBER
    return False


cdef bint read_short(Source data, Py_ssize_t at, long long* to) noexcept:
    """An integer below 2^31 that is not in 64-bit form."""
    cdef Py_ssize_t kind = keys.KINDS[data[at]]
    cdef bint is_negative
    cdef u64 magnitude
    if (kind != UINT and kind != INT) or data[at] == 0xCF or data[at] == 0xD3:
        return False
    read_whole(data, at, &is_negative, &magnitude)
    if not is_negative and magnitude >> 31:
        return False
    to[0] = -<long long>magnitude if is_negative else <long long>magnitude
    return True


cdef Py_ssize_t put_whole(Target out, Py_ssize_t at, Number* value) noexcept:
    """Write an integer in its shortest form. Returns where it ends."""
    cdef u64 least = value.magnitude
    cdef u64 bits = (~least) + 1
    if not value.is_negative:
        return rows.put_uint(out, at, least)
    if least <= 32:
        out[at] = <unsigned char>(bits & 0xFF)
        return at + 1
    if least <= 0x80:
        out[at] = 0xD0
        return rows.put_number(out, at + 1, bits, 1)
    if least <= 0x8000:
        out[at] = 0xD1
        return rows.put_number(out, at + 1, bits, 2)
    if least <= <u64>1 << 31:
        out[at] = 0xD2
        return rows.put_number(out, at + 1, bits, 4)
    out[at] = 0xD3
    return rows.put_number(out, at + 1, bits, 8)


cdef Py_ssize_t put_text_head(Target out, Py_ssize_t at, Py_ssize_t size) noexcept:
    """Write the header of a str. Returns where it ends."""
    if size < 32:
        out[at] = <unsigned char>(0xA0 | size)
        return at + 1
    if size < 0x100:
        out[at] = 0xD9
        return rows.put_number(out, at + 1, size, 1)
    if size < 0x10000:
        out[at] = 0xDA
        return rows.put_number(out, at + 1, size, 2)
    out[at] = 0xDB
    return rows.put_number(out, at + 1, size, 4)


cdef class Updater:
    """Applies operations to tuples, one tuple after another: `decode`, `apply`, `write`."""

    def __cinit__(self):
        self.operations = <Operation*>PyMem_Malloc(OPERATIONS * sizeof(Operation))
        self.items = <Item*>PyMem_Malloc((ITEMS + OPERATIONS) * sizeof(Item))
        self.owed = <Py_ssize_t*>PyMem_Malloc(512 * sizeof(Py_ssize_t))
        if self.operations == NULL or self.items == NULL or self.owed == NULL:
            raise MemoryError()
        self.out, self.key = Room(), Room()

    def __dealloc__(self):
        PyMem_Free(self.operations)
        PyMem_Free(self.items)
        PyMem_Free(self.owed)

    def changed(self, Plan plan, bytes old, bytes ops, u64 base, bytes key, bint is_upsert):
        """The tuple of a row of the log, an UPDATE, or an UPSERT that found `old`. `base`: from
        what field numbers of `ops` count; `key`: what `old` is kept under. None where the reference
        engine must do it: what it does is not known here, or it changes the key or refuses."""
        cdef Fields fields
        if self.decode(<Source>PyBytes_AS_STRING(ops), len(ops), base, &plan.names) != DONE:
            return None
        if self.apply(<Source>PyBytes_AS_STRING(old), len(old), is_upsert) != DONE:
            return None
        self.out.size = self.key.size = 0
        self.write(plan.types, plan.table[CHECKED], self.out)
        if not plan.check(self.out.data, self.out.size, &fields):
            return None
        if plan.put_key(0, self.out.data, self.out.size, &fields, self.key) != DONE:
            return None
        if self.key.size != len(key) or memcmp(self.key.data, PyBytes_AS_STRING(key), len(key)):
            return None
        return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.size)

    def knows(self, Plan plan, bytes ops, u64 base):
        """Whether operations are well-formed, as far as that is known here."""
        return self.decode(<Source>PyBytes_AS_STRING(ops), len(ops), base, &plan.names) == DONE

    cdef int decode(self, Source ops, Py_ssize_t size, u64 base, Names* names) noexcept:
        """Read the operations. `DONE` or `REFER`; only what is well-formed is known here."""
        cdef u64 count, arguments
        cdef Py_ssize_t at, stop, i
        cdef Operation* to
        if rows.skip_value(ops, 0, size, self.owed, 0) != size:
            return REFER
        at = items_from(ops, size, &count)
        if at < 0 or count > OPERATIONS:
            return REFER
        self.count = <Py_ssize_t>count
        for i in range(self.count):
            to = &self.operations[i]
            stop = after(ops, at, size, self.owed)
            if stop < 0 or ops[at] & 0xF0 != 0x90:
                return REFER
            arguments = ops[at] & 0x0F
            at += 1
            if arguments < 3 or ops[at] != 0xA1:
                return REFER
            to.sign = ops[at + 1]
            at += 2
            if arguments != (5 if to.sign == b":" else 3):
                return REFER
            if self.read_field(ops, at, base, names, to) != DONE:
                return REFER
            at = after(ops, at, stop, self.owed)
            if at < 0 or self.read_argument(ops, at, stop, base, to) != DONE:
                return REFER
            at = stop
        return DONE

    cdef int read_field(
        self, Source ops, Py_ssize_t at, u64 base, Names* names, Operation* to
    ) noexcept:
        cdef Py_ssize_t i, size
        cdef u64 start
        to.is_named = keys.KINDS[ops[at]] == STR
        if not to.is_named:
            if not read_short(ops, at, &to.field) or 0 <= to.field < <long long>base:
                return REFER
            if to.field >= 0:
                to.field -= <long long>base
            return DONE
        to.name_at = text_at(ops, at, &to.name_size)
        for i in range(names.count):
            start = names.bounds[i]
            size = <Py_ssize_t>(names.bounds[i + 1] - start)
            if size == to.name_size and memcmp(names.blob + start, ops + to.name_at, size) == 0:
                to.field = i
                return DONE
        return REFER

    cdef int read_argument(
        self, Source ops, Py_ssize_t at, Py_ssize_t end, u64 base, Operation* to
    ) noexcept:
        if to.sign == b"=" or to.sign == b"!":
            to.value = ops + at
            to.size = end - at
            return DONE
        if to.sign == b"+" or to.sign == b"-":
            return DONE if read_number(ops, at, &to.number) else REFER
        if to.sign == b"&" or to.sign == b"|" or to.sign == b"^" or to.sign == b"#":
            if keys.KINDS[ops[at]] != UINT:
                return REFER
            read_number(ops, at, &to.number)
            if to.sign == b"#":
                to.number.magnitude &= 0xFFFFFFFF
                if to.number.magnitude == 0:
                    return REFER
            return DONE
        if to.sign != b":" or not read_short(ops, at, &to.position):
            return REFER
        if to.position >= 0:
            if to.position < <long long>base:
                return REFER
            to.position -= <long long>base
        at = after(ops, at, end, self.owed)
        if at < 0 or at >= end or not read_short(ops, at, &to.cut):
            return REFER
        at = after(ops, at, end, self.owed)
        if at < 0 or at >= end or keys.KINDS[ops[at]] != STR:
            return REFER
        to.value = ops + text_at(ops, at, &to.size)
        return DONE

    cdef int apply(self, Source old, Py_ssize_t size, bint leave_out) noexcept:
        """Apply the operations to a tuple, which must be well-formed and stay where it is until
        `write`. `leave_out`: those that fail (UPSERT). `REFUSED`: see `refusal`."""
        cdef int how, i
        if self.take_fields(old, size) != DONE:
            return REFER
        for i in range(<int>self.count):
            how = self.apply_one(i)
            if how == REFER or (how == REFUSED and not leave_out):
                return how
        return DONE

    cdef int take_fields(self, Source old, Py_ssize_t size) noexcept:
        cdef u64 count
        cdef Py_ssize_t stop, i
        cdef Py_ssize_t at = items_from(old, size, &count)
        if at < 0 or count > ITEMS:
            return REFER
        self.fields = <Py_ssize_t>count
        for i in range(self.fields):
            stop = after(old, at, size, self.owed)
            if stop < 0:
                return REFER
            self.items[i].value = old + at
            self.items[i].size = stop - at
            self.items[i].operation = -1
            at = stop
        return DONE

    cdef int apply_one(self, int number) noexcept:
        cdef Operation* op = &self.operations[number]
        cdef Item* item
        cdef Py_ssize_t room = self.fields
        cdef Py_ssize_t gone
        cdef bint is_new = op.sign == b"!" or (op.sign == b"=" and op.field == self.fields)
        if is_new:
            room += 1
        if op.field >= room or op.field + room < 0:
            return self.refuse(NO_SUCH_FIELD_NAME if op.is_named else NO_SUCH_FIELD_NO, op, 0)
        if op.field < 0:
            op.field += room
        item = &self.items[op.field]
        if is_new:
            memmove(item + 1, item, (self.fields - op.field) * sizeof(Item))
            self.fields += 1
            item.value = op.value
            item.size = op.size
            item.operation = -1
            return DONE
        if op.sign == b"=":
            item.operation = number
            return DONE
        if op.sign == b"#":
            gone = self.fields - op.field
            if op.number.magnitude < <u64>gone:
                gone = <Py_ssize_t>op.number.magnitude
            memmove(item, item + gone, (self.fields - op.field - gone) * sizeof(Item))
            self.fields -= gone
            return DONE
        if item.operation >= 0:
            return self.refuse(UPDATE_FIELD, op, 0)
        gone = self.splice(op, item) if op.sign == b":" else self.compute(op, item)
        if gone == DONE:
            item.operation = number
        return <int>gone

    cdef int compute(self, Operation* op, Item* item) noexcept:
        cdef Number left
        cdef Number* right = &op.number
        cdef int is_negative
        cdef double a, b
        if op.sign == b"+" or op.sign == b"-":
            if not read_number(item.value, 0, &left):
                if left.kind == FLOAT32_OR_64:
                    return REFER
                return self.refuse(UPDATE_ARG_TYPE, op, WANTED_NUMBER)
            if left.kind == WHOLE and right.kind == WHOLE:
                is_negative = right.is_negative
                if op.sign == b"-":
                    is_negative = not is_negative
                if sum_of(left.is_negative, left.magnitude, is_negative, right.magnitude,
                          &is_negative, &left.magnitude) < 0:
                    return self.refuse(UPDATE_INTEGER_OVERFLOW, op, 0)
                right.is_negative = is_negative
                right.magnitude = left.magnitude
                return DONE
            a = as_real(&left)
            b = as_real(right)
            a = a + b if op.sign == b"+" else a - b
            if a != a:
                return REFER
            right.kind = FLOAT32_OR_64
            right.real = a
            return DONE
        if keys.KINDS[item.value[0]] != UINT:
            return self.refuse(UPDATE_ARG_TYPE, op, WANTED_UNSIGNED)
        read_number(item.value, 0, &left)
        if op.sign == b"&":
            right.magnitude &= left.magnitude
        elif op.sign == b"|":
            right.magnitude |= left.magnitude
        else:
            right.magnitude ^= left.magnitude
        return DONE

    cdef int splice(self, Operation* op, Item* item) noexcept:
        cdef Py_ssize_t size, at, rest
        if keys.KINDS[item.value[0]] != STR:
            return self.refuse(UPDATE_ARG_TYPE, op, WANTED_STRING)
        at = text_at(item.value, 0, &size)
        if op.position < 0:
            if -op.position > size + 1:
                return self.refuse(UPDATE_SPLICE, op, 0)
            op.position += size + 1
        if op.position > size:
            op.position = size
        rest = size - <Py_ssize_t>op.position
        if op.cut < 0:
            op.cut = 0 if -op.cut > rest else rest + op.cut
        elif op.cut > rest:
            op.cut = rest
        op.kept = item.value + at
        op.kept_size = size
        return DONE

    cdef int refuse(self, u64 code, Operation* op, u64 wanted) noexcept:
        """Note why, for `store.engine.refusal`: the field by its number, or where its name stands."""
        self.refusal.code = code
        self.refusal.first = wanted << 16 | <u64>op.sign << 8 | <u64>op.is_named
        if op.is_named:
            self.refusal.second = <u64>op.name_at << 32 | <u64>op.name_size
        else:
            self.refusal.second = <u64>op.field
        return REFUSED

    cdef int write(self, const u64* types, Py_ssize_t typed, Room out) except -1:
        """Write the tuple as it has become. `types`: of so many fields of the format."""
        cdef Py_ssize_t i, at, rest
        cdef Py_ssize_t wanted = HEAD_BYTES
        cdef Item* item
        cdef Operation* op
        for i in range(self.fields):
            item = &self.items[i]
            if item.operation < 0:
                wanted += item.size
            else:
                op = &self.operations[item.operation]
                wanted += VALUE_BYTES
                if op.sign == b"=":
                    wanted += op.size
                elif op.sign == b":":
                    wanted += op.size + op.kept_size
        out.need(wanted)
        at = put_items(out.data, out.size, self.fields)
        for i in range(self.fields):
            item = &self.items[i]
            if item.operation < 0:
                memcpy(out.data + at, item.value, item.size)
                at += item.size
                continue
            op = &self.operations[item.operation]
            if op.sign == b"=":
                memcpy(out.data + at, op.value, op.size)
                at += op.size
            elif op.sign == b":":
                at = put_spliced(out.data, at, op)
            elif op.number.kind == WHOLE:
                at = put_whole(out.data, at, &op.number)
            else:
                at = put_real(out.data, at, op.number.real,
                              i < typed and types[i] == DOUBLE_FIELD)
        out.size = at
        return 0


cdef double as_real(Number* value) noexcept:
    if value.kind != WHOLE:
        return value.real
    return -<double>value.magnitude if value.is_negative else <double>value.magnitude


cdef Py_ssize_t put_real(Target out, Py_ssize_t at, double value, bint is_wide) noexcept:
    """Write a float: in 32 bits where it has such a form, unless `is_wide`."""
    cdef unsigned int bits
    if not is_wide and narrow(value, &bits):
        out[at] = 0xCA
        return rows.put_number(out, at + 1, bits, 4)
    out[at] = 0xCB
    return rows.put_number(out, at + 1, rows.bits_of(value), 8)


cdef Py_ssize_t put_spliced(Target out, Py_ssize_t at, Operation* op) noexcept:
    cdef Py_ssize_t rest = op.kept_size - <Py_ssize_t>(op.position + op.cut)
    at = put_text_head(out, at, op.kept_size - <Py_ssize_t>op.cut + op.size)
    memcpy(out + at, op.kept, op.position)
    at += <Py_ssize_t>op.position
    memcpy(out + at, op.value, op.size)
    at += op.size
    memcpy(out + at, op.kept + op.position + op.cut, rest)
    return at + rest
