# The types of fillerkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned int u32
ctypedef unsigned long long u64
ctypedef unsigned char* Target

cdef u32 POLYNOMIAL, BYTE
cdef u32[8192] PRODUCTS
cdef Py_ssize_t POWERS, HEAD, SECTOR, FILLER
cdef u64 ZSTD, SKIPPED

@cython.locals(power=u32, product=u32, squared=u32, bit=Py_ssize_t)
cdef list products()

@cython.locals(at=Py_ssize_t, product=u32)
cdef u32 times(u32 crc, Py_ssize_t power) noexcept

@cython.locals(power=Py_ssize_t)
cpdef u32 behind_zeros(u32 crc, u64 count) noexcept

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, start=Py_ssize_t)
cpdef bint has_zeros(const unsigned char[::1] data, Py_ssize_t count) except? -1

@cython.locals(crc=u32)
cpdef list running(object find, object parts, Py_ssize_t zeros)

@cython.locals(size=Py_ssize_t, last=Py_ssize_t, at=Py_ssize_t)
cpdef bint ends_in_zeros(const unsigned char[::1] data, Py_ssize_t offset) except? -1

@cython.locals(size=Py_ssize_t, out=bytearray)
cpdef bytearray block_head(
    u64 kind, object find, object data, u64 unsynced, Py_ssize_t offset)

@cython.locals(out=bytearray, to=Target, at=Py_ssize_t, left=u64, crc=u32)
cpdef bytes filler_head(u64 zeros)
