# The types of runs.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.replication.bucket.joint cimport Part

cdef class RequestRun:
    cdef readonly bytes data
    cdef readonly Py_ssize_t start, stop, count, changes
    cdef readonly object borders

    @cython.locals(data=bytes)
    cpdef tuple name(self, Py_ssize_t at)
    cpdef Py_ssize_t number(self, Py_ssize_t at) except -1
    cpdef list answers(
        self, object at, object reached, object first, object results, bytes made, object lsn)

cdef class Commands(Part):
    cdef readonly Py_ssize_t slot, size_bytes, count
    cdef readonly object requests
    cdef readonly bint changes, takes_over
    cdef public object bucket
    cdef public bytes answers
    cdef public bint may_take_over

    cpdef object leave(self, object request)
    cpdef object advance(self)
    @cython.locals(run=RequestRun)
    cpdef object tally(self, object counts)

cpdef object take_run(bytes data, Py_ssize_t at=*)
