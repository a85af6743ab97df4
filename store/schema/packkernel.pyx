# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""MsgPack for the store's kernels: where values end, headers, Python values, and bytes that grow."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcpy

from logweir.store.schema.values import invalid_msgpack
from logweir.wal.mp import pack

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    NESTED = 16  # deep stand values in one another; what is nested deeper `wal.mp.pack` writes
    LONGEST = 0xFFFFFFFF


cdef class Room:
    """Bytes that grow."""

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int need(self, Py_ssize_t more) except -1:
        """See that so many bytes can be written behind `size`. Pointers into it may end here."""
        cdef Py_ssize_t wanted
        cdef Target moved
        if more <= self.room - self.size:
            return 0
        if more > (<Py_ssize_t>1 << 40):
            raise MemoryError()
        wanted = 2 * self.room + more + 256
        moved = <Target>PyMem_Realloc(self.data, wanted)
        if moved == NULL:
            raise MemoryError()
        self.data = moved
        self.room = wanted
        return 0


cdef Py_ssize_t after(Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed) noexcept:
    """Where the value at `at` ends, which stands inside one other; -1: malformed."""
    cdef unsigned char first
    if at >= end:
        return -1
    first = data[at]
    if first < 0x80:
        return at + 1
    if 0xA0 <= first < 0xC0:
        at += 1 + (first & 0x1F)
        return at if at <= end else -1
    return rows.skip_value(data, at, end, owed, 1)


cdef Py_ssize_t items_from(Source data, Py_ssize_t size, u64* count) noexcept:
    """Where the items of the array at the front begin; -1: there is none."""
    cdef Py_ssize_t at = keys.items_at(data, 0, size)
    if at > 0:
        count[0] = data[0] & 0x0F if at == 1 else rows.load(data, 1, at - 1)
    return at


cdef Py_ssize_t text_at(Source data, Py_ssize_t at, Py_ssize_t* size) noexcept:
    """Where the bytes of the str or bin at `at`, which must be one and whole, begin."""
    cdef Py_ssize_t width
    if data[at] < 0xC0:
        size[0] = data[at] & 0x1F
        return at + 1
    width = 1 << (data[at] - 0xC4 if data[at] < 0xD9 else data[at] - 0xD9)
    size[0] = <Py_ssize_t>rows.load(data, at + 1, width)
    return at + 1 + width


cdef Py_ssize_t put_items(Target out, Py_ssize_t at, u64 count) noexcept:
    """Write the header of an array. Returns where it ends."""
    if count < 16:
        out[at] = <unsigned char>(0x90 | count)
        return at + 1
    if count < 0x10000:
        out[at] = 0xDC
        return rows.put_number(out, at + 1, count, 2)
    out[at] = 0xDD
    return rows.put_number(out, at + 1, count, 4)


cdef Py_ssize_t put_integer(Target out, Py_ssize_t at, long long value) noexcept:
    """Write an integer in its shortest form. Returns where it ends."""
    if value >= 0:
        return rows.put_uint(out, at, value)
    if value >= -32:
        out[at] = value & 0xFF
        return at + 1
    if value >= -0x80:
        out[at] = 0xD0
        return rows.put_number(out, at + 1, value, 1)
    if value >= -0x8000:
        out[at] = 0xD1
        return rows.put_number(out, at + 1, value, 2)
    if value >= -<long long>0x80000000:
        out[at] = 0xD2
        return rows.put_number(out, at + 1, value, 4)
    out[at] = 0xD3
    return rows.put_number(out, at + 1, value, 8)


cdef Py_ssize_t put_sized(Room out, Source data, Py_ssize_t size, int first) except -1:
    """Write a text (`first`: d9) or bytes (c4) of up to `LONGEST` with its length."""
    cdef int wider = 0 if size < 0x100 else 1 if size < 0x10000 else 2
    out.need(5 + size)
    if size < 32 and first == 0xD9:
        out.data[out.size] = <unsigned char>(0xA0 | size)
        out.size += 1
    else:
        out.data[out.size] = <unsigned char>(first + wider)
        out.size = rows.put_number(out.data, out.size + 1, size, 1 << wider)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef int put_value(Room out, object value, int deep) except -1:
    """Write a value as `wal.mp.pack` does, which is asked for what is not known here, and raises
    what that raises. `deep`: in how many others it may hold values."""
    cdef int overflow = 0
    cdef Py_ssize_t size = 0
    cdef long long whole
    cdef double number
    cdef u64 bits
    cdef const char* text
    out.need(9)
    if type(value) is int:
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            out.size = put_integer(out.data, out.size, whole)
            return 0
    elif type(value) is str:
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if text != NULL and size <= LONGEST:
            return put_sized(out, <Source>text, size, 0xD9)
        PyErr_Clear()  # it has lone surrogates
    elif value is None or value is True or value is False:
        out.data[out.size] = 0xC0 if value is None else 0xC3 if value is True else 0xC2
        out.size += 1
        return 0
    elif type(value) is float:
        number = value
        memcpy(&bits, &number, 8)
        out.data[out.size] = 0xCB
        out.size = rows.put_number(out.data, out.size + 1, bits, 8)
        return 0
    elif type(value) is bytes and PyBytes_GET_SIZE(value) <= LONGEST:
        return put_sized(out, <Source>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), 0xC4)
    elif deep and (type(value) is list or type(value) is tuple):
        return put_items_of(out, value, deep - 1)
    packed = pack(value)
    size = PyBytes_GET_SIZE(packed)
    out.need(size)
    memcpy(out.data + out.size, <Source>PyBytes_AS_STRING(packed), size)
    out.size += size
    return 0


cdef int put_items_of(Room out, object values, int deep) except -1:
    """Write a list or tuple. What changes it meanwhile leaves something malformed."""
    out.need(5)
    out.size = put_items(out.data, out.size, len(values))
    for value in values:
        put_value(out, value, deep)
    return 0


cdef int put_row(Room out, object values) except -1:
    """Write a tuple. Returns whether its values come out of MsgPack as they went in."""
    cdef bint is_plain = True
    if type(values) is not tuple and type(values) is not list:
        put_value(out, values, NESTED)
        return False
    out.need(5)
    out.size = put_items(out.data, out.size, len(values))
    for value in values:
        put_value(out, value, NESTED)
        is_plain = is_plain and (
            type(value) is int or type(value) is str or type(value) is float or value is None
            or type(value) is bytes or type(value) is bool)
    return is_plain


def pack_rows(list tuples not None):
    """Tuples in MsgPack, one behind the other, and their bounds. See `store.schema.bulk`."""
    cdef Room out = Room()
    cdef Py_ssize_t[512] owed
    cdef Py_ssize_t i, count = len(tuples), start
    cdef u64[::1] ends
    made = array("Q", bytes(8 * (count + 1)))
    ends = made
    for i in range(count):
        start = out.size
        if not put_row(out, tuples[i]) and rows.skip_value(
            out.data, start, out.size, owed, 0
        ) != out.size:
            raise invalid_msgpack()
        ends[i + 1] = out.size
    ends = None
    return PyBytes_FromStringAndSize(<char*>out.data, out.size), made
