# The types of orderkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as rows

ctypedef unsigned long long u64

cdef Py_ssize_t ROWS, TRANSACTIONS, TIMESTAMP, NUMBERS
cdef Py_ssize_t TYPE_AT, REPLICA_AT, LSN_AT, TIMESTAMP_AT, TSN_AT, FLAGS_AT, FIXHEADER_BYTES
cdef u64 INSERT, REPLICAS, COMMIT

@cython.locals(raw=rows.Source, owed="Py_ssize_t[512]")
cpdef bint in_order(bytes data, u64[::1] lsns, u64[::1] told, bint is_log) except? -1

@cython.locals(raw=rows.Source, owed="Py_ssize_t[512]", end=u64, begin=u64, size=u64, start=u64,
               block=Py_ssize_t)
cpdef Py_ssize_t run(
    bytes data, u64[::1] table, Py_ssize_t capacity, Py_ssize_t first, Py_ssize_t last,
    u64[::1] lsns, u64[::1] told, bint is_log) except? -2

cdef int check_tables(u64[::1] lsns, u64[::1] told) except -1

@cython.locals(fields="unsigned long long[15]", before="unsigned long long[32]", i=Py_ssize_t,
               count=u64, ends=u64, tsn=u64, is_open=bint, fine=bint, lsn=u64)
cdef bint check(
    rows.Source data, Py_ssize_t at, Py_ssize_t end, u64[::1] lsns, u64[::1] told, bint is_log,
    Py_ssize_t* owed) noexcept
