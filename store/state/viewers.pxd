# The types of viewers.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

@cython.freelist(8)
cdef class Look:
    cdef object __weakref__
    cdef set _mine
    cdef object _view
    cdef Viewers _viewers

    cpdef object end(self)

cdef class Viewers:
    cdef object _state, _lock, _changed, _here
    cdef readonly set _views
    cdef set _stuck
    cdef bint _is_growing, _is_closed, _is_left
    cdef list _on_grow

    cpdef Look look(self)
    cpdef bint has_more(self, Py_ssize_t count)
    cpdef object add(self, Look look, set mine)
    cpdef object discard(self, object view, set mine)
    cpdef set begin_waiting(self)
    cpdef object end_waiting(self, set added)
