# The types of stackkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

@cython.freelist(8)
cdef class Layer:
    cdef public dict tables
    cdef public set cleared
    cdef public double since
    cdef public Py_ssize_t size_bytes, rank

    @cython.locals(size=Py_ssize_t, entries=Py_ssize_t)
    cpdef object seal(self)

    cpdef bint takes(self, Layer layer)

    @cython.locals(before=Py_ssize_t)
    cpdef Py_ssize_t take(self, Layer layer) except? -1

    @cython.locals(layer=Layer, tables=list)
    cpdef object table(self, tuple name, object stack)

@cython.locals(first=Layer, made=Layer, layer=Layer)
cpdef Layer whole(object stack)

@cython.locals(top=Layer, other=Layer, rank=Py_ssize_t, count=Py_ssize_t, most=Py_ssize_t,
               one=Layer, joined_size=Py_ssize_t)
cpdef tuple grown(tuple stack, Layer layer, Py_ssize_t size, Py_ssize_t kept)

@cython.freelist(8)
cdef class _Referred:
    cdef public object base
    cdef public list held

cdef class LayeredTree:
    cdef _Referred _referred
    cdef object _undo
    cdef public list tables
    cdef public object base
    cdef public Py_ssize_t early

@cython.freelist(8)
cdef class LayeredTxn:
    cdef public tuple stack
    cdef tuple _early
    cdef public object base
    cdef public Layer layer
    cdef public object undo
    cdef list _drops
    cdef public dict spaces
    cdef _Referred _referred
    cdef readonly object look
    cdef dict _trees

    @cython.locals(own=Layer, layer=Layer, tables=list, early=Py_ssize_t, is_based=bint, is_new=bint)
    cdef tuple _below(self, tuple name)

    @cython.locals(known=dict)
    cdef object _base(self, tuple name)

    @cython.locals(known=dict, tables=list, bases=list, early=list, name=tuple, stack=list)
    cpdef object space(self, object plan)

    @cython.locals(layer=Layer)
    cpdef Layer taken(self)
