# The types of pushkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _STATES, _PRIVATE
cdef unsigned char _AGE
cdef Py_ssize_t _VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE
cdef Py_ssize_t _KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END
cdef Py_ssize_t _FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL

@cython.locals(to=Target, chosen=Source, fields="unsigned long long[19]", room=Py_ssize_t,
               at=Py_ssize_t, opaque=u64, sent=u64, most=u64, room_but_last=u64, last=u64,
               count=Py_ssize_t, row=Py_ssize_t,
               tuple_=bytes, item=Source, size=Py_ssize_t, key_bytes=u64, value_bytes=u64,
               private_bytes=u64, flags=u64)
cpdef Py_ssize_t mutations(
    list items, Py_ssize_t first, bytes wanted, u64 now, Py_ssize_t form, u64[::1] numbers,
    bytearray out, u64[::1] ends) except? -2

@cython.locals(to=Target, chosen=Source, fields="unsigned long long[19]", count=Py_ssize_t,
               row=Py_ssize_t, tuple_=bytes, item=Source)
cpdef Py_ssize_t touched(list items, bytes wanted, bytearray table) except? -2
