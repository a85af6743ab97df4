# The types of pushkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as items
cimport logweir.replication.stream.kernel as models
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef extern from *:
    """
    #include <string.h>
    static inline double logweir_as_float(unsigned long long bits) {
        double number;
        memcpy(&number, &bits, sizeof number);
        return number;
    }
    """
    double as_float "logweir_as_float" (u64 bits)

cdef Py_ssize_t _BAD
cdef Py_ssize_t _AT, _BYTES, _OPAQUE_NEXT, _FRAMES, _DONE, _STOPPED, _ODD
cdef Py_ssize_t _INSERT, _REPLACE, _DELETE, _LOCAL, _REPLICAS, _VBUCKETS, _FRAME_ROOM, _MORE, _FLAGS_AT
cdef Py_ssize_t _FRONT_AT, _SKIPPED, _PUT, _REMOVED, _STRANGE, _NOTHING, _ONE, _ALL
cdef u64 _COMMIT, _TRUNCATE, _ONES
cdef double _TIME_END
cdef Py_ssize_t _TYPE, _REPLICA_ID, _GROUP_ID, _LSN, _TIMESTAMP, _TSN, _FLAGS
cdef Py_ssize_t _SPACE_ID, _INDEX_BASE, _ROW_OFFSET, _BODY_OFFSET, _KEY, _TUPLE
cdef Py_ssize_t _VBUCKET, _ITEM_FLAGS, _EXPIRY, _CAS, _DATATYPE
cdef Py_ssize_t _KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END
cdef Py_ssize_t _COMPRESSION, _DATE_AT, _DATE, _DOCUMENT_BYTES, _REMOVE_BYTES
cdef bytes _document_head, _remove_head
cdef Source DOCUMENT, REMOVE

@cython.locals(i=Py_ssize_t)
cdef inline Py_ssize_t put_big(Target out, Py_ssize_t at, u64 value, Py_ssize_t width) noexcept

@cython.locals(i=Py_ssize_t)
cdef void put_little(Target out, Py_ssize_t at, u64 value, Py_ssize_t width) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_digits(Target out, Py_ssize_t at, u64 value, Py_ssize_t width) noexcept

@cython.locals(days=u64, era=u64, day=u64, year=u64, month=u64)
cdef Py_ssize_t put_date(Target out, Py_ssize_t at, u64 seconds) noexcept

@cython.locals(stop=Py_ssize_t, size=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t document_end(
    Source data, Py_ssize_t at, Py_ssize_t end, u64* fields, Target scratch) noexcept

@cython.locals(head=Py_ssize_t)
cdef inline Py_ssize_t put_start(
    Target out, Py_ssize_t used, u64 opaque, Py_ssize_t opcode, Source front,
    Py_ssize_t front_bytes, u64 vbucket, u64 lsn, u64 origin, u64 time_us, Source names,
    Py_ssize_t name_at, Py_ssize_t name_end) noexcept

@cython.locals(_=Py_ssize_t)
cdef inline Py_ssize_t put_text(
    Source data, Py_ssize_t start, Py_ssize_t stop, Target out, Py_ssize_t at) noexcept

@cython.locals(key_end=Py_ssize_t, text_end=Py_ssize_t, at=Py_ssize_t)
cdef inline Py_ssize_t put_document(Source data, u64* fields, Target out, Py_ssize_t used) noexcept

cdef Py_ssize_t put_whole(Source data, u64* fields, Target out, Py_ssize_t used) noexcept

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t put_remove(Source data, u64* fields, Target out, Py_ssize_t used) noexcept

@cython.locals(size=Py_ssize_t, start=Py_ssize_t, own=Py_ssize_t, i=Py_ssize_t)
cdef bint is_key(Source data, Py_ssize_t at, Py_ssize_t end, u64* fields) noexcept

@cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
cdef inline Py_ssize_t find(u64[::1] spaces, u64 number) noexcept

@cython.locals(own=Py_ssize_t, i=Py_ssize_t)
cdef inline bint is_chosen(
    Source data, u64* fields, Source prefix, Py_ssize_t prefix_bytes, Source wanted) noexcept

cdef Py_ssize_t microseconds(double seconds) noexcept

@cython.locals(kind=Py_ssize_t)
cdef Py_ssize_t nature(u64* row, Py_ssize_t bucket) noexcept

@cython.locals(i=Py_ssize_t)
cdef inline Py_ssize_t save(u64[::1] lsns, u64* saved, bint has_more, u64 origin) noexcept

@cython.locals(i=Py_ssize_t)
cdef void restore(u64[::1] lsns, u64* saved, Py_ssize_t kept, u64 origin) noexcept

@cython.locals(i=Py_ssize_t, size=u64)
cdef Py_ssize_t begin(
    u64[::1] lsns, u64[::1] spaces, u64[::1] bounds, bytes names, bytes wanted,
    u64[::1] numbers) except -1

@cython.locals(raw=Source, to=Target, before=Source, named=Source, chosen=Source, begins=Source,
               prefix_bytes=Py_ssize_t, is_left=bint, owed="Py_ssize_t[512]",
               row="unsigned long long[15]", fields="unsigned long long[20]",
               saved="unsigned long long[32]", scratch="unsigned char[24]", end=Py_ssize_t,
               room=Py_ssize_t, front_bytes=Py_ssize_t, at=Py_ssize_t, used=Py_ssize_t, opaque=u64,
               frames=u64, model=Py_ssize_t, place=Py_ssize_t, width=Py_ssize_t,
               tuple_at=Py_ssize_t, head_bytes=Py_ssize_t, bucket=Py_ssize_t, kind=Py_ssize_t,
               distance=u64, time_us=Py_ssize_t, tsn=u64, framed=Py_ssize_t, how=Py_ssize_t,
               first=Py_ssize_t, start=Py_ssize_t, sent=u64, last=Py_ssize_t, put=Py_ssize_t,
               put_bucket=Py_ssize_t, kept=Py_ssize_t, has_more=bint, stop=Py_ssize_t,
               spot=Py_ssize_t, spot_end=Py_ssize_t, edge=Py_ssize_t, body=Py_ssize_t, origin=u64,
               lsn=u64, is_new=bint, is_here=bint, name_at=Py_ssize_t, name_end=Py_ssize_t)
cpdef Py_ssize_t pushes(
    bytes data, u64[::1] lsns, u64[::1] spaces, u64[::1] bounds, bytes names,
    bytes wanted, bytes prefix, bint keys_only, bytes front, Py_ssize_t limit,
    u64[::1] numbers, bytearray out) except? -2

@cython.locals(to=Target, before=Source, named=Source, chosen=Source, begins=Source,
               prefix_bytes=Py_ssize_t, is_here=bint,
               fields="unsigned long long[20]", scratch="unsigned char[24]", front_bytes=Py_ssize_t,
               name_bytes=Py_ssize_t, room=Py_ssize_t, row=Py_ssize_t, used=Py_ssize_t, opaque=u64,
               frames=u64, count=Py_ssize_t, how=Py_ssize_t, tuple_=bytes, item=Source,
               size=Py_ssize_t, is_large=bint, last=Py_ssize_t)
cpdef Py_ssize_t documents(
    list tuples, bytes wanted, bytes prefix, bint keys_only, u64 now, bytes name, bytes front, Py_ssize_t limit,
    u64[::1] numbers, bytearray out) except? -2
