# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython

ctypedef unsigned long long u64

cdef u64 ONES, COMMIT, ALONE, NOP, REPLICAS
cdef Py_ssize_t DEPTH, HEADER_BYTES, PACKET_BYTES
cdef bytes _sizes
cdef const unsigned char* SIZES

@cython.locals(value=u64, i=Py_ssize_t)
cdef u64 load(const unsigned char* data, Py_ssize_t at, Py_ssize_t width) noexcept

@cython.locals(first=u64, stop=Py_ssize_t)
cdef Py_ssize_t uint_end(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

cdef u64 uint(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=u64, stop=Py_ssize_t)
cdef Py_ssize_t map_end(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

cdef u64 map_count(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop) noexcept

cdef bint is_array(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(bottom=Py_ssize_t, left=Py_ssize_t, first=Py_ssize_t, size=Py_ssize_t,
               items=Py_ssize_t)
cdef Py_ssize_t skip_value(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed,
    Py_ssize_t depth) noexcept

@cython.locals(raw="const unsigned char*", owed="Py_ssize_t[512]")
cpdef Py_ssize_t skip(bytes data, Py_ssize_t at) except? -2

@cython.locals(raw="const unsigned char*", owed="Py_ssize_t[512]", end=Py_ssize_t, at=Py_ssize_t, row=Py_ssize_t,
               rows_at=Py_ssize_t, here=Py_ssize_t, stop=Py_ssize_t, left=u64, key=u64, value=u64,
               kind=u64, replica_id=u64, group_id=u64, lsn=u64, timestamp=u64, tsn=u64, flags=u64,
               has_kind=bint, has_tsn=bint, space_id=u64, index_base=u64, body_at=Py_ssize_t,
               key_at=u64, tuple_at=u64, ops_at=u64)
cpdef Py_ssize_t scan(
    bytes data, u64[::1] table, Py_ssize_t capacity) except? -2

@cython.locals(tsns=Py_ssize_t, flags=Py_ssize_t, found=Py_ssize_t, row=Py_ssize_t, open_=bint)
cpdef Py_ssize_t transactions(
    u64[::1] table, Py_ssize_t capacity, Py_ssize_t count, u64[::1] ends) except? -2

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t copy(
    const unsigned char* source, Py_ssize_t start, Py_ssize_t stop, unsigned char* out,
    Py_ssize_t at) noexcept

@cython.locals(i=Py_ssize_t, high=u64)
cdef Py_ssize_t put_uint(unsigned char* out, Py_ssize_t at, u64 value) noexcept

@cython.locals(i=Py_ssize_t, head=Py_ssize_t, items=Py_ssize_t)
cdef Py_ssize_t put_header(
    unsigned char* out, Py_ssize_t at, u64 kind, u64 sync, u64 replica_id, u64 group_id,
    u64 lsn, u64 timestamp, u64 tsn, u64 flags) noexcept

@cython.locals(to="unsigned char*", body="const unsigned char*", front="const unsigned char*",
               at=Py_ssize_t, size=Py_ssize_t, source_size=u64, prefix_size=Py_ssize_t, length=Py_ssize_t,
               row=Py_ssize_t, kind=u64, start=u64, stop=u64)
cpdef Py_ssize_t encode(
    u64[::1] table, Py_ssize_t capacity, Py_ssize_t first, Py_ssize_t last, Py_ssize_t starts_at,
    Py_ssize_t stops_at, bytes source, bytes prefix,
    bytearray out) except? -2

@cython.locals(to="unsigned char*", body="const unsigned char*", front="const unsigned char*",
               at=Py_ssize_t, size=Py_ssize_t, source_size=u64, prefix_size=Py_ssize_t, length=Py_ssize_t,
               row=Py_ssize_t, tsn=u64, flags=u64, start=u64, stop=u64)
cpdef Py_ssize_t encode_run(
    u64 kind, u64 replica_id, u64 group_id, u64 lsn, u64 timestamp, bint together,
    bytes source, u64[::1] bounds, Py_ssize_t count,
    bytes prefix, bytearray out) except? -2

@cython.locals(total=Py_ssize_t, row=Py_ssize_t, start=u64, stop=u64)
cpdef Py_ssize_t slices(
    u64[::1] table, Py_ssize_t first, Py_ssize_t last, Py_ssize_t starts_at, Py_ssize_t stops_at,
    u64 limit) except? -2

@cython.locals(raw="const unsigned char*", to="unsigned char*",
               at=Py_ssize_t, size=Py_ssize_t, row=Py_ssize_t, replica_id=u64, lsn=u64,
               start=Py_ssize_t, stop=Py_ssize_t, head=Py_ssize_t, items_at=Py_ssize_t, items=u64,
               length=Py_ssize_t, i=Py_ssize_t)
cpdef Py_ssize_t packets(
    bytes data, u64[::1] table, Py_ssize_t capacity, Py_ssize_t first,
    Py_ssize_t last, u64[::1] after, u64[::1] upto, u64 sync, bytearray out) except? -2

@cython.locals(row=Py_ssize_t, odd=Py_ssize_t, replica_id=u64, lsn=u64)
cpdef Py_ssize_t highest_lsns(
    u64[::1] table, Py_ssize_t capacity, Py_ssize_t count, u64[::1] lsns) except? -2
