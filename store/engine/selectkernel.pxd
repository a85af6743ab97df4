# Selections over layers, compiled.
from logweir.store.state.layerkernel cimport Scan, Space
from logweir.store.state.memtablenodes cimport Cursor, Entry
from logweir.store.schema.packkernel cimport Refusal, Room, Source, u64

cdef struct Walk:
    # Of one layer: the place, and the entry at hand, NULL at the end.
    Cursor place
    Entry* entry

cdef class Selector:
    cdef Room out
    cdef Room key
    cdef Room bound
    cdef Walk* walks
    cdef Py_ssize_t walk_room
    cdef Py_ssize_t depth
    cdef Scan scan
    cdef bint reverse
    cdef Refusal why
    cdef Py_ssize_t limit_bytes  # of an answer
    cdef u64 limit
    cdef u64 offset
    cdef u64 count
    cdef Py_ssize_t begin
    cdef int one(
        self, Space space, u64 index_id, u64 by, u64 limit, u64 offset, Source key,
        Py_ssize_t size, u64* span
    ) except -1
    cdef int exact(self, Space space, Py_ssize_t index, u64* span) except -1
    cdef int walk(
        self, Space space, Py_ssize_t index, bint has_low, bint has_high, u64* span
    ) except -1
    cdef int start(self, Space space, Py_ssize_t index, Room bound, bint has_bound) except -1
    cdef int pick(self) except -2
    cdef int pass_entry(self, Py_ssize_t number) except -1
    cdef bint is_outside(self, Source key, Py_ssize_t size, bint has_low, bint has_high) noexcept
    cdef int emit(
        self, Space space, Py_ssize_t index, Source value, Py_ssize_t length
    ) except -1
    cdef void succeed(self) noexcept
    cdef int open_answer(self) except -1
    cdef void close_answer(self, u64* span) noexcept
