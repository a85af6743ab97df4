# The types of group.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.store.commit.rows cimport Rows
from logweir.store.state.stackkernel cimport Layer, LayeredTxn

@cython.freelist(8)
cdef class Group:
    cdef public Group below
    cdef public Layer layer
    cdef public object made, error, finished
    cdef public Py_ssize_t made_bytes
    cdef public bint done
    cdef public LayeredTxn txn
    cdef public object undo, engine, waiting, now
    cdef public Py_ssize_t replica_id
    cdef public bint changed_schema
    cdef object _trial, _executor, _placed
    cdef readonly object _drafts
    cdef Rows _rows
    cdef list _borders, _large
    cdef dict _places
    cdef Py_ssize_t _numbered

    cpdef object finish(self)
    cdef object _place(self, object space)
    cpdef object execute(self, object request, object access=*)
    cpdef object _planned(self, object plan)
    cdef object _number(self, Py_ssize_t count)
    cpdef object mark(self)
    cpdef object rollback(self, object mark)
    cpdef object end_transaction(self)
    cpdef object written(self)
    cpdef list blocks(self)
