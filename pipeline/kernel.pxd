# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64

cdef u64 HALF
cdef Py_ssize_t OFFSET_MAX
cdef Py_ssize_t SHORT
cdef u64 ONES
cdef u64 ODD_A
cdef u64 ODD_B
cdef int INDEX_BITS
cdef int REST_BITS

@cython.locals(i=Py_ssize_t)
cdef void copy_short(
    rows.ApartSource source, Py_ssize_t start, rows.Apart out, Py_ssize_t at) noexcept

@cython.locals(total=Py_ssize_t, i=Py_ssize_t, span=u64, start=u64, stop=u64)
cpdef Py_ssize_t span_bytes(const u64[::1] spans, u64 limit) except? -2

@cython.locals(source="const unsigned char*", to="unsigned char*", bits="unsigned char*",
               count=Py_ssize_t, size=Py_ssize_t, out=bytearray, at=Py_ssize_t, i=Py_ssize_t,
               span=u64, start=Py_ssize_t, stop=Py_ssize_t, short_until=Py_ssize_t)
cpdef gather(bytes data, const u64[::1] spans, int[::1] offsets, bytearray valid)

@cython.locals(count=Py_ssize_t, i=Py_ssize_t, span=u64)
cpdef bint split_updates(
    const u64[::1] types, u64 update, const u64[::1] tuples, const u64[::1] ops,
    u64[::1] tuples_out, u64[::1] ops_out) except? -1

cdef u64 mixed(u64 value) noexcept

@cython.locals(raw="const unsigned char*", found=u64, at=Py_ssize_t, word=u64, shift=int,
               byte=u64)
cdef u64 hashed(bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept

@cython.locals(of="const unsigned char*", seen="unsigned char*", count=Py_ssize_t,
               most=Py_ssize_t, found=Py_ssize_t, group=Py_ssize_t, every=bint, i=Py_ssize_t,
               space=u64, kind=u64, key=u64, span=u64, size=u64, at=Py_ssize_t, is_first=bint,
               lsn=u64, time=double, start=Py_ssize_t, stop=Py_ssize_t, value=u64, rank=int,
               bit=int, place=Py_ssize_t)
cpdef Py_ssize_t tally(
    bytes data, bytes chosen, const u64[::1] types, u64 update, const u64[::1] spaces,
    const u64[::1] lsns, const double[::1] times, const u64[::1] keys, const u64[::1] tuples,
    const u64[::1] ops, Py_ssize_t first, u64[::1] known, u64[::1] sums, double[::1] ends,
    bytearray registers) except? -3
