# The types of fillerkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

ctypedef unsigned int u32

cdef u32 POLYNOMIAL, TOP, BYTE

@cython.locals(product=u32, bit=u32)
cdef u32 times(u32 one, u32 other) noexcept

@cython.locals(power=u32)
cpdef u32 behind_zeros(u32 crc, unsigned long long count) noexcept

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, start=Py_ssize_t)
cpdef bint has_zeros(const unsigned char[::1] data, Py_ssize_t count) except? -1

@cython.locals(crc=u32)
cpdef list running(object find, object parts, Py_ssize_t zeros)
