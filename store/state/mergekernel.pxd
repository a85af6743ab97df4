# What several memtables show together, for kernels that cimport it.
cimport cython
from logweir.store.state.memtablenodes cimport Cursor, Entry, u8, u64

cdef struct Seen:  # an entry
    const u8* key
    size_t key_size
    const u8* value
    size_t size  # of the value; 0 if the key is gone


# The entries of several maps, newest first, in the order of their keys, the newest of each key.
@cython.final
cdef class MergeCursor:
    cdef list tables
    cdef int count
    cdef bint is_descending
    cdef Cursor* cursors
    cdef Entry** entries  # the next of each map; NULL: no more
    cdef u64** changes  # of each map, and what they were
    cdef u64* known
    cdef Seen seen

    # Step. ABSENT at the end; else GONE or THERE, and `seen` says what. RuntimeError, which takes
    # the interpreter's lock, if a map has changed.
    cdef int next(self) except -1 nogil

    cdef void _advance(self, int i) noexcept nogil
