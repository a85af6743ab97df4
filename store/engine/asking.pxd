# The types of asking.py, for Cython. Nothing here is needed to run it as plain Python.

cdef class Asks:
    cdef readonly object state
