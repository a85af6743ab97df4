# The types of tail.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef Py_ssize_t _UNSYNCED_MAX, _FILLER_BYTES, _PAGE_BYTES

cdef class Tail:
    cdef public object file, path, start, head
    cdef public Py_ssize_t synced, size, filled, begin
    cdef public bint takes_zeros
    cdef object _number
    cdef Py_ssize_t _dense

    @cython.locals(size=Py_ssize_t, begin=Py_ssize_t, first=Py_ssize_t, number=Py_ssize_t,
                   unsynced=Py_ssize_t, parts=list)
    cpdef tuple framed(self, object blocks, object threshold_bytes, object level)
    cdef object _pieces(
        self, object rows, object threshold_bytes, object level, Py_ssize_t unsynced,
        Py_ssize_t offset)
    cpdef object put(self, list parts, Py_ssize_t size)
    @cython.locals(before=Py_ssize_t, filled=Py_ssize_t, border=Py_ssize_t)
    cdef object _overwrite(self, list parts, Py_ssize_t size)
    cpdef object sync(self)
    cpdef object cut(self, Py_ssize_t size)
    @cython.locals(step=Py_ssize_t)
    cpdef Py_ssize_t zeros_wanted(self, Py_ssize_t most_bytes)
