# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""Stored tuples as Python objects, compiled: what `wal.mp.unpack` makes of each.

That is asked for fields that are arrays, maps or extensions. Nothing recurses or believes a length.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy

from logweir.wal.mp import unpack

cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows
from logweir.store.schema.packkernel cimport Source, after, text_at, u64

cdef enum:
    NIL = 0xC0
    FALSE = 0xC2
    TRUE = 0xC3
    FLOAT = 0xCA
    DOUBLE = 0xCB
    UINT = 0xCC
    INT = 0xD0


cdef object value_from(Source data, Py_ssize_t at, Py_ssize_t stop):
    """The whole value that stands there."""
    cdef unsigned char first = data[at]
    cdef Py_ssize_t begin, size
    cdef unsigned int bits
    cdef u64 whole
    cdef float narrow
    cdef double wide
    if first < 0x80:
        return first
    if first >= 0xE0:
        return <signed char>first
    if 0xA0 <= first < 0xC0 or 0xD9 <= first <= 0xDB:
        begin = text_at(data, at, &size)
        return PyUnicode_DecodeUTF8(<const char*>data + begin, size, "surrogateescape")
    if first == NIL:
        return None
    if first == FALSE or first == TRUE:
        return first == TRUE
    if UINT <= first < INT:
        return rows.load(data, at + 1, 1 << (first - UINT))
    if INT <= first < INT + 4:
        whole = rows.load(data, at + 1, 1 << (first - INT))
        size = 64 - (8 << (first - INT))
        return <long long>(whole << size) >> size
    if first == FLOAT:
        bits = <unsigned int>rows.load(data, at + 1, 4)
        memcpy(&narrow, &bits, 4)
        return <double>narrow
    if first == DOUBLE:
        whole = rows.load(data, at + 1, 8)
        memcpy(&wide, &whole, 8)
        return wide
    if 0xC4 <= first <= 0xC6:
        begin = text_at(data, at, &size)
        return PyBytes_FromStringAndSize(<const char*>data + begin, size)
    return unpack(PyBytes_FromStringAndSize(<const char*>data + at, stop - at))


cdef tuple row_from(Source data, Py_ssize_t* at, Py_ssize_t size, Py_ssize_t* owed):
    """The tuple that begins at `at`, which then is where it ends."""
    cdef Py_ssize_t place = keys.items_at(data, at[0], size), stop
    cdef u64 count, i
    cdef object value
    if place < 0:
        raise_malformed(data, at[0], size)
    count = data[at[0]] & 0x0F if place == at[0] + 1 else rows.load(
        data, at[0] + 1, place - at[0] - 1)
    if count > <u64>(size - place):
        raise_malformed(data, at[0], size)
    made = PyTuple_New(count)
    for i in range(count):
        stop = after(data, place, size, owed)
        if stop < 0:
            raise_malformed(data, at[0], size)
        value = value_from(data, place, stop)
        Py_INCREF(value)
        PyTuple_SET_ITEM(made, i, value)
        place = stop
    at[0] = place
    return made


cdef int raise_malformed(Source data, Py_ssize_t at, Py_ssize_t size) except -1:
    unpack(PyBytes_FromStringAndSize(<const char*>data + at, size - at))
    raise ValueError("a tuple is malformed")


cdef list rows_from(Source data, Py_ssize_t size, u64 count, Py_ssize_t* owed):
    cdef list made = []
    cdef Py_ssize_t at = 0
    cdef u64 i
    for i in range(count):
        made.append(row_from(data, &at, size, owed))
    return made


cdef list tuples_from(Source data, Py_ssize_t size, u64 count, Py_ssize_t* owed):
    cdef list made = []
    cdef Py_ssize_t at = 0, stop
    cdef u64 i
    for i in range(count):
        stop = rows.skip_value(data, at, size, owed, 0)
        if stop < 0:
            raise_malformed(data, at, size)
        made.append(PyBytes_FromStringAndSize(<const char*>data + at, stop - at))
        at = stop
    return made


def row(bytes data not None):
    """The values of one tuple. Raises what `unpack` raises, ValueError where it is no array."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t* owed = <Py_ssize_t*>PyMem_Calloc(DEEP, sizeof(Py_ssize_t))
    if owed == NULL:
        raise MemoryError()
    try:
        made = row_from(<Source>PyBytes_AS_STRING(data), &at, PyBytes_GET_SIZE(data), owed)
        if at != PyBytes_GET_SIZE(data):
            raise_malformed(<Source>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data))
        return made
    finally:
        PyMem_Free(owed)
