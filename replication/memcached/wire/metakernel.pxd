# The types of metakernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.memcached.wire.wordkernel as words_of
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _BITS, _KEY_TOLD, _EXPIRY, _HAS_EXPIRY, _FIRST_EXPIRY, _CREATES, _FLAGS
cdef Py_ssize_t _CAS, _HAS_CAS, _DELTA, _INITIAL, _MODE, _SIZE, _RECACHE, _SAYS
cdef Py_ssize_t _GETR, _MARKM, _SETM, _PEEKM
cdef u64 _RETIME, _FIRST_RETIME, _RECACHES, _CREATE, _IS_STALE, _VISITS
cdef Py_ssize_t _QUIET_BIT, _VALUE_BIT, _BINARY_BIT, _KEY_MAX, _FLAGS_MAX, _OPAQUE_MAX
cdef u64 _ALL, _LOW, _LONGEST, _ONE
cdef Py_ssize_t _GETM, _GATM, _INCREMENTM, _DECREMENTM, _DELETE
cdef Py_ssize_t _SET, _ADD, _REPLACE, _APPEND, _PREPEND
cdef u64 _META_GET, _META_SET, _META_DELETE, _META_COUNT, _META_DEBUG
cdef Py_ssize_t _ERROR, _BAD_FORMAT, _MANY_ARE, _MANY, _TWICE, _UNKNOWN, _BAD_FLAG, _BAD_KEY
cdef Py_ssize_t _BAD_TOKEN, _BAD_MODE, _BAD_INITIAL, _BAD_DELTA, _BAD_OPAQUE, _NO_SET_MODE
cdef Py_ssize_t _NO_COUNT_MODE
cdef bytes _kinds, _digits
cdef Source KINDS, DIGITS

@cython.locals(count=Py_ssize_t, pad=Py_ssize_t, block=Py_ssize_t, i=Py_ssize_t)
cdef bint is_key(Source raw, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(count=Py_ssize_t, pad=Py_ssize_t, block=u64, i=Py_ssize_t, digit=Py_ssize_t)
cdef Py_ssize_t decode_key(
    Source raw, Py_ssize_t at, Py_ssize_t stop, Target out, Py_ssize_t used) noexcept

@cython.locals(found="unsigned long long[2]", letter=Py_ssize_t)
cdef Py_ssize_t read_flag(Source raw, Py_ssize_t at, Py_ssize_t stop, u64* fields) noexcept

@cython.locals(wrong=Py_ssize_t, seen=u64, field=Py_ssize_t, i=Py_ssize_t, letter=Py_ssize_t,
               found=Py_ssize_t)
cdef Py_ssize_t read_flags(
    Source raw, Py_ssize_t* words, Py_ssize_t first, Py_ssize_t count, u64* fields) noexcept

@cython.locals(begin=Py_ssize_t, i=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t put_record(
    Source raw, Py_ssize_t* words, Py_ssize_t first, Py_ssize_t count, u64* fields, Target out,
    Py_ssize_t at) noexcept

@cython.locals(stop=Py_ssize_t)
cdef Py_ssize_t put_key(
    Source raw, Py_ssize_t* words, u64* fields, Py_ssize_t rest, Target out, Py_ssize_t head,
    Py_ssize_t at) noexcept

cdef Py_ssize_t mode_of(Py_ssize_t letter, Py_ssize_t mode) noexcept

@cython.locals(found="unsigned long long[2]", first=Py_ssize_t, size=u64, wrong=Py_ssize_t)
cdef Py_ssize_t check(
    Source raw, Py_ssize_t letter, Py_ssize_t* words, Py_ssize_t count, u64* fields) noexcept

@cython.locals(head=Py_ssize_t, first=Py_ssize_t, cas=u64, opcode=Py_ssize_t, form=u64,
               extras=Py_ssize_t, value_bytes=Py_ssize_t, at=Py_ssize_t, opaque=u64)
cdef Py_ssize_t put_meta(
    Source raw, Py_ssize_t letter, Py_ssize_t* words, Py_ssize_t count, u64* fields,
    Py_ssize_t value_at, Target out, Py_ssize_t used, Target told, Py_ssize_t* places) noexcept
