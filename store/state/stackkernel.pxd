# The types of stackkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef class Layer:
    cdef public dict tables
    cdef public set cleared
    cdef public double since
    cdef public Py_ssize_t size_bytes, rank

    @cython.locals(size=Py_ssize_t, entries=Py_ssize_t)
    cpdef object seal(self)

    @cython.locals(layer=Layer, tables=list)
    cpdef object table(self, tuple name, object stack)

cdef class _Referred:
    cdef public object base
    cdef public list held

cdef class LayeredTree:
    cdef _Referred _referred
    cdef object _undo
    cdef public list tables
    cdef public object base
    cdef public Py_ssize_t early

cdef class LayeredTxn:
    cdef public tuple stack
    cdef tuple _early
    cdef public object base
    cdef public Layer layer
    cdef public object undo
    cdef list _drops
    cdef public dict spaces
    cdef _Referred _referred
    cdef object _look
    cdef dict _trees

    @cython.locals(own=Layer, layer=Layer, tables=list, early=Py_ssize_t, is_based=bint, is_new=bint)
    cdef tuple _below(self, tuple name)

    @cython.locals(layer=Layer)
    cpdef Layer taken(self)
