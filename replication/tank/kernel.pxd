cimport cython

cdef unsigned int _HAS_KEY, _SAME_TIME, _NEXT_NUMBER

cpdef bint compiled()

@cython.locals(value=cython.longlong, byte=cython.longlong, size=cython.longlong)
cdef long long varint(
    const unsigned char[::1] source, Py_ssize_t position, Py_ssize_t end) noexcept

@cython.locals(
    found=cython.longlong,
    end=Py_ssize_t, number=cython.ulonglong, time=cython.ulonglong, first_time=cython.ulonglong,
    index=cython.ulonglong, flags=cython.uint, value=cython.ulonglong, shift=cython.uint,
    byte=cython.ulonglong, key_start=Py_ssize_t, key_end=Py_ssize_t, size=Py_ssize_t,
)
cpdef tuple walk(
    object data, const unsigned char[::1] source, Py_ssize_t position, unsigned long long count, bint sparse,
    unsigned long long first, unsigned long long last, list out)
