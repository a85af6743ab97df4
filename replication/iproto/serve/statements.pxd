# The types of statements.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.replication.iproto.wire.runs cimport Run

@cython.freelist(8)
cdef class Outcome:
    cdef public object free, pieces, left
    cdef public list bound
    cdef public Py_ssize_t size_bytes, count, refused

    cpdef object add(self, object answers, Py_ssize_t count, Py_ssize_t refused)
    cpdef bint add_free(
        self, Run run, Py_ssize_t first, Run piece, object done, object version) except -1

@cython.locals(made=Outcome, run=Run, at=Py_ssize_t, done=Py_ssize_t, has_free=bint)
cpdef Outcome execute_all(
    object group, object events, object access, object schema_version, object is_aside=*)
