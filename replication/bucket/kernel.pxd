# The types of bucketkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64
ctypedef const unsigned char* Source
ctypedef unsigned char* Target

cdef Py_ssize_t _VBUCKET, _FLAGS, _EXPIRY, _ITEM_CAS, _DATATYPE
cdef Py_ssize_t _KEY_AT, _KEY_END, _HEAD_END, _VALUE_AT, _VALUE_END
cdef Py_ssize_t _FLAGS_AT, _FLAGS_END, _TAIL_AT, _META_AT, _META_END, _TTL
cdef Py_ssize_t _COMPRESSION, _DATE_AT, _MARKS
cdef u64 _KEY_MAX

cdef u64 load2(Source data, Py_ssize_t at) noexcept

@cython.locals(value=u64, i=Py_ssize_t)
cdef u64 load4(Source data, Py_ssize_t at) noexcept

cdef Py_ssize_t put2(Target out, Py_ssize_t at, u64 value) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put4(Target out, Py_ssize_t at, u64 value) noexcept

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t put8(Target out, Py_ssize_t at, u64 value) noexcept

@cython.locals(stop=Py_ssize_t, width=Py_ssize_t)
cdef Py_ssize_t uint_stop(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(first=Py_ssize_t)
cdef Py_ssize_t bin_start(Source data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(stop=Py_ssize_t)
cdef inline Py_ssize_t take_uint(
    Source data, Py_ssize_t at, Py_ssize_t end, u64* fields, Py_ssize_t place) noexcept

@cython.locals(start=Py_ssize_t, size=Py_ssize_t)
cdef inline Py_ssize_t take_bin(
    Source data, Py_ssize_t at, Py_ssize_t end, u64* fields, Py_ssize_t place) noexcept

@cython.locals(more=Py_ssize_t, field=Py_ssize_t)
cdef Py_ssize_t item_end(Source data, Py_ssize_t at, Py_ssize_t end, u64* fields) noexcept

cdef bint read_item(Source data, Py_ssize_t at, Py_ssize_t end, u64* fields) noexcept

@cython.locals(fields="unsigned long long[19]", data=bytes, raw=Source)
cpdef list dated(list tuples)

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t put_bin(
    Source data, Py_ssize_t start, Py_ssize_t stop, Target out, Py_ssize_t at) noexcept
