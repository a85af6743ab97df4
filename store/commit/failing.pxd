# The types of failing.py, for Cython. Nothing here is needed to run it as plain Python.

cdef class Fails:
    cdef public object path, failure, refused, state, unsynced, writer

    cpdef object publish(self, tuple groups)
    cpdef object wake_followers(self)
    cpdef object stop(self, object failure)
    cpdef object explained(self, object error)
