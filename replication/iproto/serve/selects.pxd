# The types of selects.py, for Cython. Nothing here is needed to run it as plain Python.

cdef class Selects:
    cdef object _instance, _reader, _ask, _let_in, _schema, _version, _ids
    cdef set _readable

    cpdef forget(self)

    cpdef _read(self, object reading, bytes data, object at, object has_streams)
