# The types of layers.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.store.state.stackkernel cimport Layer, LayeredTxn

cdef class Layers:
    cdef dict __dict__  # what is wanted less often
    cdef public tuple stack
    cdef public object position
    cdef object _base_position, _state, _viewers, _guard, _taking, _one, _lock, _changed, _failure
    cdef tuple _under_way
    cdef Py_ssize_t _size
    cdef double _taken_at, _next_at
    cdef bint _serving, _closing

    @cython.locals(base=object)
    cpdef LayeredTxn begin(self, object look, bint write, tuple early=*)
    @cython.locals(room=Py_ssize_t, part=double)
    cpdef object push(self, Layer layer, object position)
