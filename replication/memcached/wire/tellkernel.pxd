# The types of tellkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef Py_ssize_t _AT, _USED, _FAILED, _TOLD, _NOW, _ABOUT, _DONE, _NO_ROOM
cdef Py_ssize_t _HEADER, _TEXT_ROOM, _FLAG_ROOM, _MISSING, _LINE, _VALUE, _VALUE_CAS, _END
cdef Py_ssize_t _END_LINE, _COUNT, _STAT, _VERSION, _SLOT, _FORMS, _EXISTS, _TOO_BIG, _NOT_STORED
cdef Py_ssize_t _ADD, _REPLACE, _APPEND, _PREPEND, _QUIET_BIT, _VALUE_BIT, _BINARY_BIT
cdef Py_ssize_t _META_GET, _META_SET, _META_DELETE, _META_COUNT, _META_DEBUG
cdef Py_ssize_t _HD, _VA, _EN, _NF, _EX, _NS, _ME
cdef u64 _LAST
cdef bytes _lines, _refusals, _told, _words, _codes, _debug, _marks
cdef Source LINES, REFUSALS, SAID, WORDS, CODES, DEBUG, MARKS

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t digits_of(u64 value) noexcept

@cython.locals(size=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t put_decimal(u64 value, Target out, Py_ssize_t at) noexcept

@cython.locals(slot=Py_ssize_t)
cdef Py_ssize_t put_slot(Source slots, Py_ssize_t number, Target out, Py_ssize_t at) noexcept

cdef Py_ssize_t put_get_end(Py_ssize_t failed, Target out, Py_ssize_t at) noexcept

cdef Py_ssize_t put_end(Target out, Py_ssize_t at) noexcept

@cython.locals(key_bytes=Py_ssize_t, extras_bytes=Py_ssize_t, key_at=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t put_value(
    Source raw, Py_ssize_t at, bint with_cas, Target out, Py_ssize_t used) noexcept

@cython.locals(name_at=Py_ssize_t, text_at=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t put_statistic(Source raw, Py_ssize_t at, Target out, Py_ssize_t used) noexcept

cdef Py_ssize_t code_of(
    Py_ssize_t form, Py_ssize_t opcode, Py_ssize_t status, bint has_value) noexcept

cdef Py_ssize_t put_left(u64 expiry, u64 now, Target out, Py_ssize_t at) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put_marks(Py_ssize_t marks, Target out, Py_ssize_t at) noexcept

@cython.locals(size=u64)
cdef Py_ssize_t put_debug(
    Source raw, Py_ssize_t at, u64 expiry, u64 now, Target out, Py_ssize_t used) noexcept

@cython.locals(status=Py_ssize_t, form=Py_ssize_t, extras_bytes=Py_ssize_t, expiry=u64,
               key_bytes=Py_ssize_t, is_found=bint, bits=Py_ssize_t, place=Py_ssize_t,
               letter=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t put_flags(
    Source raw, Py_ssize_t at, Source records, Py_ssize_t first, Py_ssize_t stop, u64 now,
    Target out, Py_ssize_t used) noexcept

@cython.locals(form=Py_ssize_t, status=Py_ssize_t, key_bytes=Py_ssize_t, begin=Py_ssize_t,
               end=Py_ssize_t, bits=Py_ssize_t, code=Py_ssize_t, number=u64, size=Py_ssize_t)
cdef Py_ssize_t put_meta(
    Source raw, Py_ssize_t at, Source records, Py_ssize_t first, Py_ssize_t stop, u64 now,
    Target out, Py_ssize_t used) noexcept

@cython.locals(raw=Source, to=Target, record=Target, at=Py_ssize_t, used=Py_ssize_t,
               failed=Py_ssize_t, told=Py_ssize_t, end=Py_ssize_t, room=Py_ssize_t, how=Py_ssize_t,
               body=Py_ssize_t, status=Py_ssize_t, opaque=u64, form=Py_ssize_t, is_quiet=bint,
               line=Py_ssize_t, size=Py_ssize_t, need=Py_ssize_t)
cdef Py_ssize_t write(
    bytes answers, bytearray records, u64* numbers, bytearray out) except -2

cdef class Teller:
    cdef bytearray _records
    cdef readonly u64 failed

    @cython.locals(numbers="unsigned long long[6]", parts=list, how=Py_ssize_t, left=Py_ssize_t,
                   out=bytearray, to=Target)
    cpdef bytes tell(self, bytes answers, double now)
