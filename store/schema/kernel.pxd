# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64

cdef u64 ONES, SIGN, FRACTION, INFINITE, QUIET, EXACT_END
cdef Py_ssize_t NIL, UINT, INT, STR, BIN, ARRAY, MAP, BOOL, FLOAT, DOUBLE, EXT
cdef Py_ssize_t UNSIGNED, INTEGER, EXT_UUID
cdef Py_ssize_t _PLACES, _ABSENT_BIT, _COLLATED, PLAN_FIELDS, PART_BYTES
cdef unsigned char KEY_NIL, KEY_BOOL, KEY_NEGATIVE, KEY_POSITIVE, KEY_NUMBER
cdef unsigned char KEY_STRING, KEY_BINARY, KEY_UUID
cdef bytes _kinds
cdef const unsigned char* KINDS

@cython.locals(raw="const unsigned char*", owed="Py_ssize_t[512]", count=Py_ssize_t,
               room=Py_ssize_t)
cpdef Py_ssize_t split(bytes data, Py_ssize_t at, Py_ssize_t end, u64[::1] offsets) except? -2

@cython.locals(first=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t items_at(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(stop=Py_ssize_t, count=u64, checked=u64, i=u64, first=Py_ssize_t, kind=Py_ssize_t,
               code=Py_ssize_t)
cdef Py_ssize_t check(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, u64[::1] plan, Py_ssize_t* places,
    Py_ssize_t* owed) noexcept

@cython.locals(room=Py_ssize_t, first=Py_ssize_t, most=u64, k=Py_ssize_t, i=Py_ssize_t, field=u64,
               count=u64)
cdef u64 alike(u64[::1] plan) except 0

@cython.locals(raw="const unsigned char*", to="unsigned char*", places="Py_ssize_t[64]",
               owed="Py_ssize_t[512]", size=u64, room=u64, parts=Py_ssize_t, most=u64,
               at=u64, end=u64, used=Py_ssize_t, found=Py_ssize_t, stop=Py_ssize_t)
cpdef Py_ssize_t keys(
    bytes data, u64[::1] offsets, Py_ssize_t row, Py_ssize_t count, u64[::1] plan, bytearray out,
    u64[::1] ends) except? -2

@cython.locals(parts_at=Py_ssize_t, parts=Py_ssize_t, k=Py_ssize_t, number=Py_ssize_t,
               wanted=Py_ssize_t)
cdef Py_ssize_t put_key(
    const unsigned char* data, Py_ssize_t* places, Py_ssize_t found, u64[::1] plan,
    unsigned char* out, Py_ssize_t used) noexcept

@cython.locals(first=Py_ssize_t, kind=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t put_part(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t part, unsigned char* out,
    Py_ssize_t used) noexcept

@cython.locals(first=Py_ssize_t, is_negative=bint, bits=u64, width=Py_ssize_t)
cdef Py_ssize_t put_integer(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t part, unsigned char* out,
    Py_ssize_t used) noexcept

@cython.locals(digits=u64, rest=u64, exponent=u64)
cdef u64 float_of(u64 value) noexcept

@cython.locals(sign=u64, exponent=u64, fraction=u64)
cdef u64 widen(u64 bits) noexcept

@cython.locals(magnitude=u64, image=u64)
cdef Py_ssize_t put_float(u64 bits, unsigned char* out, Py_ssize_t used) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_u64(u64 value, unsigned char* out, Py_ssize_t used) noexcept

@cython.locals(first=Py_ssize_t, size=Py_ssize_t, width=Py_ssize_t, i=Py_ssize_t,
               byte="unsigned char")
cdef Py_ssize_t put_bytes(
    const unsigned char* data, Py_ssize_t at, unsigned char* out, Py_ssize_t used) noexcept

@cython.locals(row=Py_ssize_t, start=u64, end=u64, size=u64, raw="const char*", found=list)
cpdef list parts(bytes packed, u64[::1] bounds)
