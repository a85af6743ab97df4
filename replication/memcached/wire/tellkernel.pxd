# The types of tellkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t _AT, _USED, _FAILED, _ABOUT, _DONE, _NO_ROOM
cdef Py_ssize_t _HEADER, _TEXT_ROOM, _MISSING, _LINE, _VALUE, _VALUE_CAS, _END
cdef Py_ssize_t _COUNT, _STAT, _VERSION, _SLOT
cdef bytes _lines, _refusals, _told, _words
cdef Source LINES, REFUSALS, TOLD, WORDS

@cython.locals(size=Py_ssize_t, rest=u64, i=Py_ssize_t)
cdef Py_ssize_t put_decimal(u64 value, Target out, Py_ssize_t at) noexcept

@cython.locals(slot=Py_ssize_t)
cdef Py_ssize_t put_slot(Source slots, Py_ssize_t number, Target out, Py_ssize_t at) noexcept

cdef Py_ssize_t put_end(Target out, Py_ssize_t at) noexcept

@cython.locals(key_bytes=Py_ssize_t, extras_bytes=Py_ssize_t, key_at=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t put_value(
    Source raw, Py_ssize_t at, bint with_cas, Target out, Py_ssize_t used) noexcept

@cython.locals(name_at=Py_ssize_t, text_at=Py_ssize_t, stop=Py_ssize_t)
cdef Py_ssize_t put_statistic(Source raw, Py_ssize_t at, Target out, Py_ssize_t used) noexcept

@cython.locals(raw=Source, to=Target, at=Py_ssize_t, used=Py_ssize_t, failed=Py_ssize_t,
               end=Py_ssize_t, room=Py_ssize_t, how=Py_ssize_t, body=Py_ssize_t, status=Py_ssize_t,
               opaque=u64, form=Py_ssize_t, is_quiet=bint, line=Py_ssize_t)
cpdef Py_ssize_t tell(bytes answers, u64[::1] numbers, bytearray out) except? -2
