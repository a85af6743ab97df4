# The types of reads.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef class Bucket:
    cdef readonly object name, space_id, states_id, cas
    cdef dict _changes
    cdef Py_ssize_t _known_at
    cdef object _known

    @cython.locals(changes=Py_ssize_t)
    cpdef object known_states(self)

cdef class ItemReads:
    cdef readonly object reader
    cdef object _learn, _clock, _ask

    cpdef object read(self, Bucket bucket, bytes data)
    cpdef object _read(self, object published, object space_id, bytes data, object states, object now)
