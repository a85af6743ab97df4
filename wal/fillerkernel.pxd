# The types of fillerkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

ctypedef unsigned int u32

cdef u32 POLYNOMIAL, TOP, BYTE

@cython.locals(product=u32, bit=u32)
cdef u32 times(u32 one, u32 other) noexcept

@cython.locals(power=u32)
cpdef u32 behind_zeros(u32 crc, unsigned long long count) noexcept
