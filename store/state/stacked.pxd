# The types of stacked.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.store.state.stackkernel cimport Layer, LayeredTxn

cdef class Stacked:
    cdef readonly object state
    cdef public tuple stack, _under_way
    cdef public object position, _lock, _changed, _thread, _failure
    cdef public Py_ssize_t size_bytes
    cdef public double _taken_at, _next_at

    cpdef LayeredTxn begin(self, object look, bint write, tuple early=*)

    @cython.locals(kept=Py_ssize_t, room=Py_ssize_t, more_bytes=Py_ssize_t, size=Py_ssize_t,
                   part=double, before=tuple, stack=tuple, below=Layer)
    cpdef object push(self, Layer layer, object position, bint is_unseen=*)
