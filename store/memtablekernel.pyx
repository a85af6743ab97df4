# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: language_level=3
"""The compiled sorted map of one index of one layer; `store.memtable` says what it does."""
COMPILED = False

cdef class Memtable:
    """Not made yet: `store.memtable` has one in plain Python."""
