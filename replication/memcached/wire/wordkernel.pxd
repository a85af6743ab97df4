# The types of wordkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.replication.bucket.kernel as bucket
cimport logweir.wal.kernel as rows
from logweir.replication.bucket.kernel cimport Source, Target, u64

cdef u64 _ALL, _LOW, _PAST, _LINE
cdef Py_ssize_t _NOOP_OPCODE

cdef bint is_blank(Py_ssize_t one) noexcept

@cython.locals(value=u64, digit=u64)
cdef bint read_number(Source raw, Py_ssize_t at, Py_ssize_t stop, u64* found) noexcept

cdef bint read_long(Source raw, Py_ssize_t at, Py_ssize_t stop, u64* found) noexcept

cdef bint read_short(Source raw, Py_ssize_t at, Py_ssize_t stop, u64* found) noexcept

cdef bint read_expiry(Source raw, Py_ssize_t at, Py_ssize_t stop, u64* found) noexcept

@cython.locals(same=Py_ssize_t)
cdef bint is_word(
    Source raw, Py_ssize_t at, Py_ssize_t stop, Source word, Py_ssize_t first,
    Py_ssize_t size) noexcept

@cython.locals(count=Py_ssize_t)
cdef Py_ssize_t split(
    Source raw, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t most, Py_ssize_t* words) noexcept

cdef Py_ssize_t put_request(
    Target out, Py_ssize_t at, Py_ssize_t opcode, Py_ssize_t key_bytes, Py_ssize_t extras_bytes,
    Py_ssize_t value_bytes, u64 opaque, u64 cas) noexcept

cdef Py_ssize_t put_line(Target out, Py_ssize_t at, u64 number, u64 quiet) noexcept
