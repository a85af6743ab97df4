# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

# What `copy` is told: where it reads it does not write, so a C compiler may copy as it likes.
cdef extern from *:
    """
    typedef unsigned char *restrict logweir_apart;
    typedef const unsigned char *restrict logweir_apart_source;
    """
    ctypedef unsigned char* Apart "logweir_apart"
    ctypedef const unsigned char* ApartSource "logweir_apart_source"

# Memory that is written at once need not be filled with zeros before.
cdef extern from *:
    """
    #define logweir_fresh(count) PyByteArray_FromStringAndSize(NULL, count)
    """
    bytearray fresh "logweir_fresh" (Py_ssize_t count)

cdef extern from *:
    """
    static inline unsigned long long logweir_bits_of(double value) {
        union { double value; unsigned long long bits; } both;
        both.value = value;
        return both.bits;
    }
    """
    u64 bits_of "logweir_bits_of" (double value)

cdef Py_ssize_t TYPE, REPLICA_ID, GROUP_ID, LSN, TIMESTAMP, TSN, FLAGS
cdef Py_ssize_t SPACE_ID, INDEX_BASE, ROW_OFFSET, BODY_OFFSET, KEY, TUPLE, OPS, INDEX_ID, OTHER
cdef u64 ONES, HALF, COMMIT, ALONE, ODD, NOP, LOCAL, REPLICAS
cdef Py_ssize_t DEPTH, HEADER_BYTES, PACKET_BYTES, FIXHEADER_BYTES
cdef bytes _sizes, _header_fields, _body_fields
cdef Source SIZES, HEADER_FIELDS, BODY_FIELDS

@cython.locals(value=u64, i=Py_ssize_t)
cdef u64 load(Source data, Py_ssize_t at, Py_ssize_t width) noexcept

@cython.locals(first=u64, stop=Py_ssize_t)
cdef Py_ssize_t uint_end(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

cdef u64 uint(Source data, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(first=u64, stop=Py_ssize_t)
cdef Py_ssize_t map_end(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

cdef u64 map_count(Source data, Py_ssize_t at, Py_ssize_t stop) noexcept

cdef bint is_array(Source data, Py_ssize_t at) noexcept

@cython.locals(bottom=Py_ssize_t, left=Py_ssize_t, first=Py_ssize_t, size=Py_ssize_t,
               items=Py_ssize_t)
cdef Py_ssize_t skip_value(
    Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* owed, Py_ssize_t depth) noexcept

@cython.locals(raw=Source, owed="Py_ssize_t[512]")
cpdef Py_ssize_t skip(bytes data, Py_ssize_t at) except? -2

@cython.locals(stop=Py_ssize_t, left=u64, key=u64, field=Py_ssize_t, seen=u64, flags=u64,
               odd=bint)
cdef Py_ssize_t read_header(
    Source data, Py_ssize_t at, Py_ssize_t end, u64* fields, Py_ssize_t* owed) noexcept

@cython.locals(stop=Py_ssize_t, left=u64, key=u64, field=Py_ssize_t)
cdef Py_ssize_t read_body(
    Source data, Py_ssize_t at, Py_ssize_t end, u64* fields, Py_ssize_t* owed) noexcept

cdef int check_table(
    u64[::1] table, Py_ssize_t columns, Py_ssize_t capacity, Py_ssize_t rows) except -1

@cython.locals(room=Py_ssize_t)
cdef int check_slices(
    u64[::1] table, Py_ssize_t first, Py_ssize_t last, Py_ssize_t starts_at,
    Py_ssize_t stops_at) except -1

cpdef bytearray blank(Py_ssize_t numbers)

@cython.locals(raw=Source, owed="Py_ssize_t[512]", fields="unsigned long long[15]", end=Py_ssize_t,
               at=Py_ssize_t, row=Py_ssize_t, column=Py_ssize_t)
cpdef Py_ssize_t scan(bytes data, u64[::1] table, Py_ssize_t capacity) except? -2

@cython.locals(tsns=Py_ssize_t, flags=Py_ssize_t, found=Py_ssize_t, row=Py_ssize_t, open_=bint)
cpdef Py_ssize_t transactions(
    u64[::1] table, Py_ssize_t capacity, Py_ssize_t count, u64[::1] ends) except? -2

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t copy(
    ApartSource source, Py_ssize_t start, Py_ssize_t stop, Apart out, Py_ssize_t at) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_number(Target out, Py_ssize_t at, u64 value, Py_ssize_t width) noexcept

cdef Py_ssize_t put_uint(Target out, Py_ssize_t at, u64 value) noexcept

cdef Py_ssize_t uint_room(u64 value) noexcept

cdef u64 room_end(u64 value) noexcept

@cython.locals(head=Py_ssize_t, items=Py_ssize_t, flags=u64)
cdef Py_ssize_t put_header(Target out, Py_ssize_t at, u64* fields, u64 sync) noexcept

@cython.locals(to=Target, body=Source, front=Source, fields="unsigned long long[15]",
               field=Py_ssize_t, at=Py_ssize_t, row=Py_ssize_t, start=u64, stop=u64, size=u64, length=Py_ssize_t,
               room=Py_ssize_t)
cpdef Py_ssize_t encode(
    u64[::1] table, Py_ssize_t count, Py_ssize_t starts_at, Py_ssize_t stops_at,
    bytes source, bytes prefix, bytearray out) except? -2

@cython.locals(head=Py_ssize_t)
cpdef Py_ssize_t run_bytes(
    u64 kind, u64 replica_id, u64 group_id, u64 last_lsn, Py_ssize_t count) except? -2

@cython.locals(to=Target, body=Source, front=Source, fields="unsigned long long[7]",
               count=Py_ssize_t, last_lsn=u64, out=bytearray,
               at=Py_ssize_t, row=Py_ssize_t, start=u64, stop=u64, size=u64, length=Py_ssize_t,
               room=Py_ssize_t, begin=Py_ssize_t, alike=u64, model=Py_ssize_t, head=Py_ssize_t,
               lsn_place=Py_ssize_t, tsn_place=Py_ssize_t, left=u64, value=u64)
cpdef encode_run(
    u64 kind, u64 replica_id, u64 group_id, u64 first_lsn, u64 timestamp, bint together,
    bytes source, u64[::1] bounds, bytes prefix)

@cython.locals(to=Target, at=Py_ssize_t)
cpdef bint put_fixheader(
    u64 kind, u64 stored, u64 unsynced, u64 crc, bytearray out) except? -1

@cython.locals(total=Py_ssize_t, row=Py_ssize_t, start=u64, stop=u64)
cpdef Py_ssize_t slices(
    u64[::1] table, Py_ssize_t first, Py_ssize_t last, Py_ssize_t starts_at, Py_ssize_t stops_at,
    u64 limit) except? -2

@cython.locals(raw=Source, to=Target, fields="unsigned long long[15]",
               field=Py_ssize_t, at=Py_ssize_t, row=Py_ssize_t, replica_id=u64, lsn=u64,
               start=u64, stop=u64, size=u64, length=Py_ssize_t, room=Py_ssize_t)
cpdef Py_ssize_t packets(
    bytes data, u64[::1] table, Py_ssize_t capacity, Py_ssize_t first, Py_ssize_t last,
    u64[::1] after, u64[::1] upto, u64 sync, bytearray out) except? -2

@cython.locals(head=Py_ssize_t, body=Py_ssize_t, items=u64)
cdef Py_ssize_t put_packet(
    Source data, Py_ssize_t start, Py_ssize_t stop, u64* fields, u64 sync, Target out,
    Py_ssize_t at) noexcept

@cython.locals(row=Py_ssize_t, odd=Py_ssize_t, replica_id=u64, lsn=u64)
cpdef Py_ssize_t highest_lsns(
    u64[::1] table, Py_ssize_t capacity, Py_ssize_t count, u64[::1] lsns) except? -2

@cython.locals(raw=Source, end=Py_ssize_t, at=Py_ssize_t, block=Py_ssize_t, kind=Py_ssize_t,
               head=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, column=Py_ssize_t, value=u64)
cpdef Py_ssize_t walk(bytes data, u64[::1] table, Py_ssize_t capacity) except? -2
