# A space in its layers, for the kernels of statements and selections.
from logweir.store.state.memtablekernel cimport Memtable
from logweir.store.schema.plankernel cimport Plan
from logweir.store.schema.packkernel cimport Room, Source, Target, u64

cdef struct Found:
    int state
    Source value
    Py_ssize_t size

cdef struct Stack:
    # Of one index: its memtables, newest first, and its base. `early`: so many behind the first are
    # not durable yet.
    void** tables
    Py_ssize_t depth, early
    void* base

cdef class Undo:
    cdef Room room
    cdef list tables
    cdef void* last  # of the tables, the one noted last
    cdef public bint is_early  # something was seen that is not durable yet
    cdef bint is_own  # something was seen that this transaction changed, since that was unset
    cdef int note(self, Memtable table) except -1
    cdef int put(
        self, Memtable table, Source key, Py_ssize_t size, Source value, Py_ssize_t length,
        bytes held
    ) except -1
    cdef int back(self, Py_ssize_t mark) except -1

cdef class Scan:
    cdef object pairs
    cdef object pair
    cdef Source key  # NULL at the end
    cdef Py_ssize_t size
    cdef Source value
    cdef Py_ssize_t length
    cdef int check(self) except -1
    cdef int step(self) except -1

cdef class Base:
    cdef object last
    cdef bint is_asked
    cdef int find(self, Source key, Py_ssize_t size, Found* found, list kept) except -1
    cdef Scan open_scan(self, Source key, Py_ssize_t size, bint has_bound, bint reverse)

cdef class Space:
    cdef readonly Plan plan
    cdef list tables
    cdef list bases
    cdef Undo undo
    cdef list kept
    cdef void** flat
    cdef Stack* stacks
    cdef int find(self, Py_ssize_t index, Source key, Py_ssize_t size, Found* found) except -1
    cdef int put(
        self, Py_ssize_t index, Source key, Py_ssize_t size, Source value, Py_ssize_t length
    ) except -1
