# Plans of spaces, for the kernels of statements and selections.
from logweir.store.schema.packkernel cimport Names, Refusal, Room, Source, Target, u64

cdef enum:
    PLACES = 64  # as store.kernel.PLACES

cdef struct Fields:
    Py_ssize_t count  # of the tuple
    Py_ssize_t at[PLACES]  # where the first of them begin

cdef struct Part:
    u64 field
    Py_ssize_t type  # as in a key plan: 256 is added where strings are ordered by a collation
    u64 plain  # which kinds of values a request's key may have here: fieldtype.PLAIN_MASKS
    u64 extensions
    bint is_nullable

cdef struct Index:
    u64 id
    bint is_unique
    bint is_hash
    Py_ssize_t own  # how many parts it has itself
    Py_ssize_t wanted  # an entry has so many, and all where one of these is nil
    Py_ssize_t used
    Py_ssize_t first  # of its parts among all
    Py_ssize_t alike  # so many of them at most are of one field

cdef class Plan:
    cdef readonly u64 space_id
    cdef readonly object source
    cdef bytes blob
    cdef tuple kept  # arrays whose memory is used
    cdef const u64* table
    cdef const u64* types
    cdef Names names
    cdef Index* indexes
    cdef Part* parts
    cdef Py_ssize_t index_count
    cdef Py_ssize_t reach  # the indexes use so many leading fields
    cdef Py_ssize_t* owed
    cdef Py_ssize_t find_index(self, u64 index_id) noexcept
    cdef bint check(self, Source data, Py_ssize_t size, Fields* to) noexcept
    cdef int explain(self, Source data, Py_ssize_t size, Refusal* why) noexcept
    cdef bint places(self, Source data, Py_ssize_t size, Fields* to) noexcept
    cdef bint admits(self, u64 plain, u64 extensions, Source value, bint is_nullable) noexcept
    cdef int put_key(
        self, Py_ssize_t number, Source data, Py_ssize_t size, Fields* fields, Room out) except -1
    cdef int exact_key(
        self, Py_ssize_t number, Source key, Py_ssize_t size, Room out, Refusal* why) except -1
    cdef int search_key(
        self, Py_ssize_t number, Source key, Py_ssize_t size, bint all_allowed, Room out,
        Refusal* why) except -1
    cdef int encode(
        self, Index* index, Source key, Py_ssize_t at, Py_ssize_t size, Py_ssize_t count,
        bint nullable, Room out, Refusal* why) except -1
    cdef int own_key(self, Source data, Py_ssize_t size, Fields* fields, Room out) except -1
