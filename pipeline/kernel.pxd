# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython

ctypedef unsigned long long u64

cdef u64 HALF
cdef Py_ssize_t OFFSET_MAX

@cython.locals(total=Py_ssize_t, i=Py_ssize_t, span=u64, start=u64, stop=u64)
cpdef Py_ssize_t span_bytes(const u64[::1] spans, u64 limit) except? -2

@cython.locals(source="const unsigned char*", to="unsigned char*", size=u64, room=Py_ssize_t,
               at=Py_ssize_t, count=Py_ssize_t, i=Py_ssize_t, span=u64, start=u64, stop=u64,
               length=Py_ssize_t, j=Py_ssize_t)
cpdef Py_ssize_t gather(
    bytes data, const u64[::1] spans, int[::1] offsets, bytearray out) except? -2
