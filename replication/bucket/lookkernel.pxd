# Lookups of items, for the kernels of the protocols.
from logweir.store.schema.packkernel cimport Refusal, Room, Source, u64
from logweir.store.state.layerkernel cimport Space

cdef enum:
    # How a lookup ended.
    FOUND = 0
    MISSING = 1
    ODD = 2

    FIELDS = 19  # of replication.bucket.kernel

cdef class Looker:
    cdef Room out  # answers
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t failed
    cdef readonly bint is_over
    cdef readonly Py_ssize_t wanted
    cdef readonly list expired
    # Of the read that is under way.
    cdef Space space
    cdef const unsigned char* known
    cdef u64 now
    cdef Py_ssize_t most
    cdef Py_ssize_t limit_bytes
    cdef Room asked
    cdef Room key
    cdef Refusal why
    # What a lookup has found; it holds until the next one.
    cdef Source item
    cdef Py_ssize_t size
    cdef u64[FIELDS] fields
    cdef int answer(self, Source data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* stop) except -1
    cdef int find(self, Source key, Py_ssize_t size, Py_ssize_t vbucket) except -1
