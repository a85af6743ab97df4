# The types of linekernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.replication.memcached.wire.metakernel as meta
cimport logweir.replication.memcached.wire.wordkernel as words_of
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _AT, _USED, _TOLD, _ABOUT, _WAITS, _NO_ROOM, _OTHER, _PASSES
cdef Py_ssize_t _HEADER, _OPAQUE, _LAST_BIT, _KEY_MAX, _LINE_ROOM, _KEY_ROOM, _TOLD_ROOM, _WORDS_MAX
cdef Py_ssize_t _META_SIZE, _NAME_BYTES, _RECORDS_MAX, _ROOM
cdef u64 _ALL, _LOW, _PAST, _LONGEST, _QUIET, _LINE, _END, _VERSION_FORM
cdef Py_ssize_t _GET, _GETS, _BGET, _GAT, _GATS, _SET, _ADD, _REPLACE, _APPEND, _PREPEND, _CAS
cdef Py_ssize_t _INCR, _DECR, _TOUCH, _DELETE, _VERSION, _VERBOSITY
cdef Py_ssize_t _NOOP_OPCODE, _VERSION_OPCODE
cdef Py_ssize_t _ERROR, _BAD_FORMAT, _BAD_CHUNK, _BAD_EXPIRY, _BAD_DELTA, _BAD_DELETE, _TOO_LARGE, _MN, _OK
cdef bytes _names, _noreply, _opcodes, _forms
cdef Source NAMES, NOREPLY, OPCODES, FORMS

@cython.locals(number=Py_ssize_t, slot=Py_ssize_t)
cdef Py_ssize_t command_of(Source raw, Py_ssize_t at, Py_ssize_t stop) noexcept

@cython.locals(found="unsigned long long[2]", begin=Py_ssize_t, last=Py_ssize_t, expiry=u64,
               extras_bytes=Py_ssize_t, at=Py_ssize_t, key_at=Py_ssize_t, opaque=u64)
cdef Py_ssize_t take_gets(
    Source raw, Py_ssize_t command, Py_ssize_t* words, Py_ssize_t stop, Target out,
    Py_ssize_t used) noexcept

@cython.locals(found="unsigned long long[2]", quiet=u64, has_zero=bint, key_bytes=Py_ssize_t,
               opaque=u64, opcode=Py_ssize_t)
cdef Py_ssize_t take_short(
    Source raw, Py_ssize_t command, Py_ssize_t* words, Py_ssize_t count, Target out,
    Py_ssize_t used) noexcept

@cython.locals(found="unsigned long long[2]", quiet=u64, is_level=bint)
cdef Py_ssize_t take_verbosity(
    Source raw, Py_ssize_t* words, Py_ssize_t count, Target out, Py_ssize_t used) noexcept

@cython.locals(found="unsigned long long[2]")
cdef Py_ssize_t read_store(
    Source raw, Py_ssize_t command, Py_ssize_t* words, Py_ssize_t count, u64* numbers) noexcept

cdef bint is_wanted(Py_ssize_t command, Py_ssize_t count) noexcept

@cython.locals(extras=Py_ssize_t, opaque=u64, key_bytes=Py_ssize_t)
cdef Py_ssize_t put_store(
    Source raw, Py_ssize_t command, Py_ssize_t* words, u64* store, Py_ssize_t at, Target out,
    Py_ssize_t used) noexcept

@cython.locals(raw=Source, to=Target, records=Target, words="Py_ssize_t[48]",
               store="unsigned long long[5]", fields="unsigned long long[16]",
               places="Py_ssize_t[1]", at=Py_ssize_t, used=Py_ssize_t, end=Py_ssize_t,
               room=Py_ssize_t, how=Py_ssize_t, about=Py_ssize_t, feed=Py_ssize_t, stop=Py_ssize_t,
               zero=Py_ssize_t, behind=Py_ssize_t, count=Py_ssize_t, command=Py_ssize_t,
               need=Py_ssize_t, wrong=Py_ssize_t, size=Py_ssize_t, value_at=Py_ssize_t, opaque=u64)
cdef Py_ssize_t make(
    bytes data, Py_ssize_t value_max, u64* numbers, bytearray out, bytearray told) except -2

cdef class Lines:
    cdef bytearray _records
    cdef readonly Py_ssize_t how, at, about

    @cython.locals(numbers="unsigned long long[4]", parts=list, told=bytearray, records=Target,
                   how=Py_ssize_t, out=bytearray, to=Target)
    cpdef bytes take(self, bytes data, Py_ssize_t at, Py_ssize_t value_max)
