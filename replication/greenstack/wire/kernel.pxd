# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.greenstack.wire.pushkernel as documents
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _RUN_STOP, _RUN_KEYS, _RUN_VALUES, _RUN_LANE_AT, _RUN_LANE_BYTES, _RUN_HAS_LANE, _RUN_LOUD
cdef Py_ssize_t _RUN_OPCODE, _OLD, _OLD_END, _GET, _LOOK, _DOCUMENT_BYTES
cdef Py_ssize_t _AT, _USED, _COUNT, _LSN, _FAILED, _DONE, _NEED_STATE, _NO_ROOM, _ODD
cdef Py_ssize_t _ITEM_BYTES, _COLUMNS, _RESULTS, _FIRST, _FIRST_END, _LAST, _EXPECT, _FIELD
cdef Py_ssize_t _STATES, _ACTIVE
cdef u64 _COMPUTED, _ROW_REPLACE
cdef Py_ssize_t _REQ_OPAQUE, _REQ_TRAITS, _REQ_KEY_AT, _REQ_KEY_BYTES, _REQ_VALUE_AT
cdef Py_ssize_t _REQ_VALUE_BYTES, _REQ_CAS, _ADD, _REPLACE
cdef Py_ssize_t _LANE_MAX, _FRAME_MIN, _ID_MAX, _MUTATION, _SET, _BAD, _WIDTH, _PAYLOAD_BYTES
cdef Py_ssize_t _ANSWER_BYTES
cdef bytes _answer_head
cdef Source HEAD

@cython.locals(word=Py_ssize_t)
cdef inline Py_ssize_t little4(Source data, Py_ssize_t at) noexcept

@cython.locals(step=Py_ssize_t)
cdef inline Py_ssize_t target(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(back=Py_ssize_t, found=Py_ssize_t, size=Py_ssize_t)
cdef inline Py_ssize_t vtable(
    Source data, Py_ssize_t begin, Py_ssize_t table, Py_ssize_t end) noexcept

@cython.locals(place=Py_ssize_t)
cdef inline Py_ssize_t slot(
    Source data, Py_ssize_t names, Py_ssize_t table, Py_ssize_t end, Py_ssize_t number) noexcept

@cython.locals(place=Py_ssize_t, size=Py_ssize_t)
cdef inline Py_ssize_t text(
    Source data, Py_ssize_t names, Py_ssize_t table, Py_ssize_t end, Py_ssize_t number) noexcept

@cython.locals(place=Py_ssize_t)
cdef inline Py_ssize_t small(
    Source data, Py_ssize_t names, Py_ssize_t table, Py_ssize_t end, Py_ssize_t number,
    Py_ssize_t default) noexcept

@cython.locals(size=Py_ssize_t, found=Py_ssize_t, at=Py_ssize_t, place=Py_ssize_t)
cdef inline Py_ssize_t reach(
    Source data, Py_ssize_t names, Py_ssize_t table, Py_ssize_t widths) noexcept

@cython.locals(first=Py_ssize_t, first_bytes=Py_ssize_t, second=Py_ssize_t,
               second_bytes=Py_ssize_t)
cdef inline bint apart(Py_ssize_t used, Py_ssize_t empty, u64* fields) noexcept

@cython.locals(step=Py_ssize_t, key=Py_ssize_t, value=Py_ssize_t, key_end=Py_ssize_t,
               value_end=Py_ssize_t, first=Py_ssize_t, first_end=Py_ssize_t, second=Py_ssize_t,
               second_end=Py_ssize_t, i=Py_ssize_t, bits="unsigned char")
cdef inline bint alike(
    Source data, Py_ssize_t one, Py_ssize_t other, Py_ssize_t stop, u64* fields) noexcept

@cython.locals(key_bytes=Py_ssize_t, i=Py_ssize_t)
cdef bint read_key(Source data, Py_ssize_t at, u64* fields) noexcept

@cython.locals(root=Py_ssize_t, names=Py_ssize_t, key=Py_ssize_t)
cdef int read_get(Source data, Py_ssize_t begin, Py_ssize_t end, u64* fields) noexcept

@cython.locals(root=Py_ssize_t, names=Py_ssize_t, ids=Py_ssize_t, at=Py_ssize_t, count=Py_ssize_t,
               size=Py_ssize_t)
cdef Py_ssize_t read_many(
    Source data, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t number, u64* fields) noexcept

@cython.locals(root=Py_ssize_t, names=Py_ssize_t, document=Py_ssize_t, info=Py_ssize_t, value=Py_ssize_t,
               value_bytes=Py_ssize_t, key=Py_ssize_t, expiration=Py_ssize_t, datatype=Py_ssize_t,
               flags=Py_ssize_t, cas=Py_ssize_t, traits=u64, used=Py_ssize_t,
               operation=Py_ssize_t)
cdef int read_set(
    Source data, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t value_max, u64* fields) noexcept

@cython.locals(raw=Source, fields="unsigned long long[7]", end=Py_ssize_t, count=Py_ssize_t,
               all_keys=u64, all_values=u64, loud=Py_ssize_t, lane_at=Py_ssize_t,
               lane_bytes=Py_ssize_t, has_lane=Py_ssize_t, size=Py_ssize_t, stop=Py_ssize_t,
               flags=Py_ssize_t, entries=Py_ssize_t, place=Py_ssize_t, payload=Py_ssize_t,
               own=Py_ssize_t, own_bytes=Py_ssize_t, i=Py_ssize_t, traits=u64,
               row=Py_ssize_t, before=Py_ssize_t, before_size=Py_ssize_t, how=int,
               opcode=Py_ssize_t)
cpdef Py_ssize_t take_run(
    bytes data, Py_ssize_t at, Py_ssize_t count_max, Py_ssize_t value_max, u64[::1] found,
    u64[::1] table) except? -2

@cython.locals(raw=Source, to=Target, known=Target, end=Py_ssize_t, room=Py_ssize_t, at=Py_ssize_t,
               used=Py_ssize_t, count=Py_ssize_t, how=Py_ssize_t, row=Py_ssize_t,
               column=Py_ssize_t, traits=u64, vbucket=Py_ssize_t, key_at=u64, key_bytes=u64,
               value_at=u64, value_bytes=u64, operation=u64)
cpdef Py_ssize_t statements(
    bytes data, u64[::1] table, Py_ssize_t stop, Py_ssize_t most, u64[::1] numbers,
    bytearray states, bytearray out, u64[::1] columns) except? -2

@cython.locals(extra=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t put_head(
    Target out, Py_ssize_t used, Py_ssize_t size, u64 opaque, Py_ssize_t opcode,
    Py_ssize_t status, Source lane, Py_ssize_t lane_bytes) noexcept

cdef Py_ssize_t status_of(u64 code) noexcept

@cython.locals(to=Target, name=Source, head=Source, room=Py_ssize_t, at=Py_ssize_t,
               used=Py_ssize_t, number=Py_ssize_t, total=Py_ssize_t, how=Py_ssize_t,
               row=Py_ssize_t, opaque=u64, status=u64, j=Py_ssize_t, tuples=Source,
               fields="unsigned long long[20]", scratch="unsigned char[24]", end=u64, traits=u64,
               opcode=Py_ssize_t, start=u64, close=u64, first=Py_ssize_t)
cpdef Py_ssize_t answers(
    u64[::1] table, Py_ssize_t stop, u64[::1] numbers, u64[::1] results, bytes made, bytes lane,
    Py_ssize_t lane_bytes, u64 uuid, bytearray out) except? -2
