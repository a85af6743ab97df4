# The types of fillerkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned int u32
ctypedef unsigned long long u64
ctypedef unsigned char* Target

cdef u32 POLYNOMIAL, TOP, BYTE
cdef u32[64] POWERS
cdef Py_ssize_t HEAD, SECTOR, FILLER
cdef u64 ZSTD

@cython.locals(product=u32, bit=u32)
cdef u32 times(u32 one, u32 other) noexcept

@cython.locals(power=u32)
cdef list squares()

@cython.locals(bit=Py_ssize_t)
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

@cython.locals(out=bytearray, to=Target, at=Py_ssize_t, left=u64, crc=u32, bit=u32)
cpdef bytes filler_head(u64 zeros)
