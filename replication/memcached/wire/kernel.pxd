# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _RUN_STOP, _RUN_CHANGES
cdef Py_ssize_t _AT, _USED, _COUNT, _NOW
cdef Py_ssize_t _TALLY_REQUESTS, _TALLY_CAS, _TALLY_ANSWERS, _TALLY_OTHER, _TALLY_WIDTH, _REQUEST
cdef Py_ssize_t _DONE, _NEED_STATE, _NO_ROOM, _ODD
cdef Py_ssize_t _GET, _SET, _ADD, _REPLACE, _DELETE, _APPEND, _PREPEND, _INCREMENT, _DECREMENT
cdef Py_ssize_t _TOUCH, _SIMPLE, _FETCH, _MARK, _VISIT, _SETM, _WON, _VERSION
cdef u64 _NO_CREATE, _RETIME, _OLDER, _SAYS, _NEVER, _COMPUTED, _ROW_REPLACE, _ROW_DELETE, _REFUSED
cdef Py_ssize_t _WIDTH, _RESULTS, _KIND, _FIRST, _FIRST_END, _LAST, _EXPECT, _FIELD, _VALUE
cdef Py_ssize_t _STATUS, _CODE, _TOLD, _NUMBER, _OLD, _OLD_END, _NEW, _NEW_END
cdef Py_ssize_t _HEADER, _OWN, _KEY_MAX, _STATES, _ACTIVE, _MISSING, _INTERNAL
cdef Py_ssize_t _TEXT_ROOM, _ITEM_BYTES
cdef Py_ssize_t _VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE
cdef Py_ssize_t _KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END
cdef Py_ssize_t _FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL
cdef Py_ssize_t _COMPRESSION, _DATE_AT, _MARKS
cdef bytes _kinds, _quiets, _gets, _extras, _texts, _version
cdef Source EXTRAS, KINDS, QUIETS, GETS, SAID, VERSION
cdef Py_ssize_t _version_bytes

@cython.locals(raw=Source, end=Py_ssize_t, count=Py_ssize_t, changes=Py_ssize_t,
               kind=Py_ssize_t, key_bytes=Py_ssize_t, extras_bytes=Py_ssize_t, value_bytes=Py_ssize_t,
               body=Py_ssize_t)
cpdef Py_ssize_t take_run(
    bytes data, Py_ssize_t at, Py_ssize_t most, Py_ssize_t value_max,
    u64[::1] found) except? -2

cdef Py_ssize_t put_answer(
    Target out, Py_ssize_t at, Py_ssize_t opcode, Py_ssize_t status, u64 opaque, u64 cas,
    u64 body) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t put_simple(
    Target out, Py_ssize_t at, Py_ssize_t opcode, u64 opaque) noexcept

@cython.locals(slot=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t put_refusal(
    Target out, Py_ssize_t at, Py_ssize_t opcode, Py_ssize_t status, u64 opaque) noexcept

@cython.locals(head=Py_ssize_t)
cdef Py_ssize_t put_missing(
    Source data, Py_ssize_t key_at, Py_ssize_t key_bytes, Py_ssize_t opcode, u64 opaque,
    Target out, Py_ssize_t at) noexcept

@cython.locals(head=Py_ssize_t, key_bytes=u64, extras_bytes=Py_ssize_t, body=u64)
cdef Py_ssize_t put_item(
    Target out, Py_ssize_t at, Py_ssize_t opcode, u64 opaque, Source item, u64* fields,
    bint won) noexcept

cdef u64 absolute(u64 expiry, u64 now) noexcept

@cython.locals(extras_bytes=Py_ssize_t, key_at=Py_ssize_t, flags=u64, expiry=u64)
cdef Py_ssize_t put_given(
    Source data, Py_ssize_t at, Py_ssize_t kind, Py_ssize_t key_bytes, Py_ssize_t body, u64 now,
    Target out, Py_ssize_t used) noexcept

@cython.locals(size=Py_ssize_t, rest=u64, i=Py_ssize_t)
cdef Py_ssize_t put_number(u64 number, Target out, Py_ssize_t used) noexcept

@cython.locals(raw=Source, to=Target, known=Target, at=Py_ssize_t, used=Py_ssize_t,
               count=Py_ssize_t, now=u64, room=Py_ssize_t, how=Py_ssize_t, kind=Py_ssize_t,
               body=Py_ssize_t, key_bytes=Py_ssize_t, vbucket=Py_ssize_t, row=Py_ssize_t,
               place=Py_ssize_t)
cpdef Py_ssize_t statements(
    bytes data, Py_ssize_t stop, Py_ssize_t most, u64[::1] numbers, bytearray states,
    bytearray out, u64[::1] columns) except? -2

@cython.locals(raw=Source, to=Target, tuples=Source, fields="unsigned long long[19]",
               at=Py_ssize_t, won=bint, said=Py_ssize_t, number=Py_ssize_t, room=Py_ssize_t, end=u64,
               total=Py_ssize_t, how=Py_ssize_t, opcode=Py_ssize_t, kind=Py_ssize_t,
               body=Py_ssize_t, key_bytes=Py_ssize_t, opaque=u64, wanted=Py_ssize_t,
               row=Py_ssize_t, status=u64, code=Py_ssize_t, key_at=Py_ssize_t, place=Py_ssize_t,
               start=u64, close=u64, head=Py_ssize_t, cas=u64)
cpdef Py_ssize_t answers(
    bytes data, Py_ssize_t stop, u64[::1] numbers, u64[::1] results, bytes made,
    bytearray out) except? -2

@cython.locals(raw=Source, count=Py_ssize_t, row=Py_ssize_t, status=Py_ssize_t, column=Py_ssize_t)
cpdef Py_ssize_t tally(bytes data, Py_ssize_t at, Py_ssize_t stop, u64[::1] counts) except? -2
