# A space in its layers, for the kernels of statements and selections.
from logweir.store.memtablekernel cimport Memtable
from logweir.store.plankernel cimport Plan
from logweir.store.updatekernel cimport Room, Source, Target, u64

cdef struct Found:
    int state
    int layer  # 0 the open one, 1 … the older ones, newest first, then the base
    Source value
    Py_ssize_t size

cdef class Scan:
    cdef object pairs
    cdef object pair
    cdef Source key  # NULL at the end
    cdef Py_ssize_t size
    cdef Source value
    cdef Py_ssize_t length
    cdef int step(self) except -1

cdef class Base:
    cdef list kept
    cdef int find(self, u64 space, u64 index, Source key, Py_ssize_t size, Found* found) except -1
    cdef Scan open_scan(
        self, u64 space, u64 index, Source key, Py_ssize_t size, bint has_bound, bint reverse)

cdef class Space:
    cdef readonly Plan plan
    cdef readonly list layers
    cdef readonly Base base
    cdef void** flat
    cdef Py_ssize_t depth
    cdef Room undo
    cdef bint keeps_undo
    cdef int find(self, Py_ssize_t index, Source key, Py_ssize_t size, Found* found) except -1
    cdef int put(
        self, Py_ssize_t index, Source key, Py_ssize_t size, Source value, Py_ssize_t length
    ) except -1
