# The types of kernel.py, for Cython. Nothing here is needed to run kernel.py as plain Python.
cimport cython
cimport logweir.replication.bucketkernel as bucket
cimport logweir.store.schema.kernel as keys
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t _RUN_STOP, _RUN_CHANGES, _RUN_BYTES
cdef Py_ssize_t _AT, _ANSWERS, _BODIES, _ROWS, _NOW, _CAS
cdef Py_ssize_t _DONE, _NEED_STATE, _NO_ROOM, _ODD
cdef unsigned char _PUT, _TOMBSTONE, _REMOVAL
cdef Py_ssize_t _GET, _SET, _ADD, _REPLACE, _DELETE, _NOOP
cdef Py_ssize_t _HEADER, _KEY_MAX, _STATES, _SCRATCH, _ENTRY_MAX, _PLACE, _ACTIVE, _MISSING, _EXISTS
cdef Py_ssize_t _MISSING_BYTES, _EXISTS_BYTES, _ITEM_BYTES, _PRIVATE
cdef unsigned char _AGE
cdef Py_ssize_t _VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE
cdef Py_ssize_t _KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END
cdef Py_ssize_t _FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL
cdef Py_ssize_t _COMPRESSION, _DATE_AT
cdef bytes _kinds, _quiets, _missing_text, _exists_text
cdef Source KINDS, QUIETS, MISSING_TEXT, EXISTS_TEXT

@cython.locals(raw=Source, end=Py_ssize_t, count=Py_ssize_t, changes=Py_ssize_t, size=Py_ssize_t,
               kind=Py_ssize_t, key_bytes=Py_ssize_t, extras_bytes=Py_ssize_t, body=Py_ssize_t)
cpdef Py_ssize_t take_run(
    bytes data, Py_ssize_t at, Py_ssize_t most, Py_ssize_t value_max,
    u64[::1] found) except? -2

cdef Py_ssize_t put_answer(
    Target out, Py_ssize_t at, Py_ssize_t opcode, Py_ssize_t status, u64 opaque, u64 cas,
    u64 body) noexcept

cdef Py_ssize_t put_refusal(
    Target out, Py_ssize_t at, Py_ssize_t opcode, Py_ssize_t status, u64 opaque) noexcept

@cython.locals(head=Py_ssize_t, key_bytes=u64, body=u64)
cdef Py_ssize_t put_item(
    Target out, Py_ssize_t at, Py_ssize_t opcode, u64 opaque, Source item, u64* fields) noexcept

@cython.locals(key_at=Py_ssize_t, expiry=u64)
cdef Py_ssize_t put_new(
    Source data, Py_ssize_t at, Py_ssize_t key_bytes, Py_ssize_t body, u64 now, u64 cas,
    Target out, Py_ssize_t used) noexcept

cdef Py_ssize_t put_tombstone(
    Source item, Py_ssize_t end, u64* fields, u64 cas, Target out, Py_ssize_t used) noexcept

cdef Py_ssize_t verdict(Py_ssize_t kind, u64 wanted, bint is_there, u64 cas) noexcept

@cython.locals(raw=Source, out=Target, to=Target, place=Target, known=Target,
               fields="unsigned long long[18]", at=Py_ssize_t, said=Py_ssize_t, used=Py_ssize_t,
               row=Py_ssize_t, cas=u64, now=u64, room=Py_ssize_t, bodies_room=Py_ssize_t,
               how=Py_ssize_t, opcode=Py_ssize_t, kind=Py_ssize_t, body=Py_ssize_t, opaque=u64,
               vbucket=Py_ssize_t, key_bytes=Py_ssize_t, key_at=Py_ssize_t, end=Py_ssize_t,
               entry=bytes, tuple_=bytes, item=Source, old_bytes=Py_ssize_t, head=Py_ssize_t,
               status=Py_ssize_t, start=Py_ssize_t, is_known=bint, has_item=bint)
cpdef Py_ssize_t execute(
    bytes data, Py_ssize_t stop, u64[::1] numbers, bytearray states, object get,
    dict latest, dict born, dict gone, bytearray scratch, bytearray answers, bytearray bodies,
    u64[::1] bounds, unsigned char[::1] kinds) except? -2

@cython.locals(to=Target, chosen=Source, fields="unsigned long long[18]", room=Py_ssize_t,
               at=Py_ssize_t, opaque=u64, sent=u64, most=u64, room_but_last=u64, last=u64,
               count=Py_ssize_t, row=Py_ssize_t,
               tuple_=bytes, item=Source, size=Py_ssize_t, key_bytes=u64, value_bytes=u64,
               private_bytes=u64, flags=u64)
cpdef Py_ssize_t mutations(
    list items, Py_ssize_t first, bytes wanted, u64 now, Py_ssize_t form, u64[::1] numbers,
    bytearray out, u64[::1] ends) except? -2

@cython.locals(to=Target, chosen=Source, fields="unsigned long long[18]", count=Py_ssize_t,
               row=Py_ssize_t, tuple_=bytes, item=Source)
cpdef Py_ssize_t touched(list items, bytes wanted, bytearray table) except? -2
