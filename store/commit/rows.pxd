# The types of rows.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython
cimport logweir.wal.kernel as kernel

@cython.freelist(8)
cdef class Rows:
    cdef public Py_ssize_t replica_id
    cdef public double now
    cdef public dict lsns
    cdef Py_ssize_t _known
    cdef kernel.u64 _now_bits
    cdef object _tsn
    cdef list _open, _blocks
    cdef Py_ssize_t _open_bytes

    cpdef object end(self, list rows)
    cpdef object decide(self, object kind, object owner, object lsn)
    cpdef list blocks(self)
    cdef object _seal(self)
