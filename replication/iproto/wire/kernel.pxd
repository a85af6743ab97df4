# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.replication.stream.kernel as models
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64

cdef Py_ssize_t _RUN_STOP, _RUN_SPACES, _RUN_USES, _RUN_HEAD, _RUN_NAMES, _RUN_STREAMS, _SPACES, _WIDTH, _RESULTS
cdef int _FREE
cdef Py_ssize_t _ANSWER_BYTES, _ARRAY_AT, _HEAD, _LIMIT, _OFFSET, _ITERATOR
cdef Py_ssize_t _TYPE, _SYNC, _VERSION, _SPACE, _INDEX, _BASE, _KEY, _TUPLE, _OPS, _FIELDS
cdef Py_ssize_t _STREAM, _FETCH, _AFTER, _SPACE_NAME, _INDEX_NAME
cdef long long _NAMES
cdef bytes _places
cdef const unsigned char* PLACES
cdef u64 _REPLICAS, _LSN_END, _ONES, _SYSTEM_END, _UPSERT, _SELECT, _ITERATORS, _U32

@cython.locals(stop=Py_ssize_t, left=u64, seen=u64, key=u64, place=Py_ssize_t, kind=u64,
               is_text=bint)
cdef bint read_request(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, u64* fields,
    Py_ssize_t* owed) noexcept

cdef bint is_str(const unsigned char* data, Py_ssize_t at) noexcept

cdef bint is_ascii(const unsigned char* data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(raw="const unsigned char*", end=Py_ssize_t, stop=Py_ssize_t)
cpdef Py_ssize_t frames_end(bytes data, Py_ssize_t at, Py_ssize_t count) except? -2

@cython.locals(raw="const unsigned char*", end=Py_ssize_t, count=Py_ssize_t, stop=Py_ssize_t,
               length=u64, kind=u64)
cpdef Py_ssize_t frames(bytes data, Py_ssize_t at, Py_ssize_t most) except? -2

@cython.locals(raw="const unsigned char*", end=Py_ssize_t, stop=Py_ssize_t)
cpdef bint may_select(bytes data) except? -1

@cython.locals(stop=Py_ssize_t, length=u64, kind=u64, number="long long")
cdef Py_ssize_t request_end(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, u64 version, u64* fields,
    Py_ssize_t* owed, long long* names, ids) except -2

@cython.locals(at=Py_ssize_t, size=Py_ssize_t, number="long long")
cdef long long find_name(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t stop, long long of, long long* names,
    ids) except -2

@cython.locals(raw="const unsigned char*", owed="Py_ssize_t[512]",
               fields="unsigned long long[23]", names="long long[129]", end=Py_ssize_t,
               count=Py_ssize_t, room=Py_ssize_t, spaces=Py_ssize_t, column=Py_ssize_t,
               streams=Py_ssize_t, last=Py_ssize_t, place=Py_ssize_t, kind=u64, first=Py_ssize_t, ops=Py_ssize_t,
               start=u64)
cpdef Py_ssize_t take_run(
    bytes data, Py_ssize_t at, u64 version, u64[::1] table, Py_ssize_t capacity,
    ids) except? -2

@cython.locals(raw="const unsigned char*", to="unsigned char*", at=Py_ssize_t, room=Py_ssize_t,
               row=Py_ssize_t, kind=u64, place=Py_ssize_t, start=u64, stop=u64,
               head=Py_ssize_t, size=Py_ssize_t, is_free=bint, has_more=bint)
cpdef Py_ssize_t answers(
    const u64[::1] columns, const u64[::1] syncs, const u64[::1] results, bytes source,
    Py_ssize_t first, Py_ssize_t last, u64 version, bytearray out, int which=*) except? -2

cdef Py_ssize_t put_answer(
    unsigned char* out, Py_ssize_t at, Py_ssize_t head, u64 sync, u64 version,
    const unsigned char* data, Py_ssize_t start, Py_ssize_t stop) noexcept

cdef void put_head(
    unsigned char* out, Py_ssize_t at, Py_ssize_t size, u64 sync, u64 version) noexcept

cdef void put_position(unsigned char* out, Py_ssize_t at, Py_ssize_t size) noexcept

@cython.locals(i=Py_ssize_t)
cdef void put(unsigned char* out, Py_ssize_t at, u64 value, Py_ssize_t width) noexcept

@cython.locals(raw="const unsigned char*", to="unsigned char*", owed="Py_ssize_t[512]",
               fields="unsigned long long[15]", end=Py_ssize_t, room=Py_ssize_t, start=Py_ssize_t,
               stop=Py_ssize_t, model=Py_ssize_t, place=Py_ssize_t, width=Py_ssize_t,
               tuple_at=Py_ssize_t, distance=u64, tsn=u64, open_=bint, replica_id=u64, lsn=u64)
cpdef Py_ssize_t relay(
    bytes data, u64[::1] after, u64[::1] upto, u64 sync, u64[::1] lsns, bytearray out,
    Py_ssize_t at) except? -2
