# The sorted map of `memtablekernel.pyx`, for kernels that cimport it.
#
# What is `nogil` takes no lock: one thread changes a map while no other uses it; any number may
# read one that nobody changes. A pointer to a key or a value holds as long as its Memtable lives,
# also when the entry is overwritten or taken back. Keys may be of any length, and empty; a value
# of no bytes means that the key is gone. Nothing is read beyond the sizes that are given.
cimport cython
from logweir.store.state.memtablenodes cimport (
    Blob, Chunk, Cursor, Entry, Leaf, Owned, Value, u8, u64)


@cython.final
cdef class Memtable:
    cdef Chunk* chunks
    cdef u8* free  # of the newest chunk
    cdef size_t room
    cdef size_t step_bytes  # of the next chunk
    cdef Owned* owned
    cdef void* root
    cdef int height  # levels of inner nodes
    cdef Leaf* first
    cdef Leaf* last
    cdef Leaf* near  # where the last entry was put, and at which slot
    cdef int near_at
    cdef bint stays_near  # whether the one before was put there too
    cdef const u8* common  # its first `shared` bytes begin every key
    cdef size_t shared
    cdef readonly size_t size_bytes
    cdef size_t count
    cdef u64 changes  # so many changes were made

    # The value of a key: THERE, `value` and its size `m` are set. Else GONE or ABSENT, `m` is 0.
    cdef int find(self, const u8* key, size_t n, const u8** value, size_t* m) noexcept nogil
    # Set a key; `m` 0: it is gone. What stood there goes to `before`, which may be NULL.
    # MemoryError: nothing is changed.
    cdef int set(
        self, const u8* key, size_t n, const u8* value, size_t m, Value* before) except -1 nogil
    # The same of an object, which is held and not copied if it is LARGE. Needs the interpreter.
    cdef int set_object(
        self, const u8* key, size_t n, bytes value, Value* before) except -1
    # Let the map say nothing of a key. Returns whether it did say something.
    cdef bint unset(self, const u8* key, size_t n) noexcept nogil
    # Put back what `set` found here. In the reverse order of the sets this never fails.
    cdef int put_back(self, const u8* key, size_t n, Value before) except -1 nogil
    # Take over all entries of a newer map, which stays. MemoryError: some may have been taken.
    cdef int take(self, Memtable newer) except -1 nogil
    cdef Cursor start(self) noexcept nogil
    cdef Cursor end(self) noexcept nogil
    # The place before the first entry whose key is not less.
    cdef Cursor seek(self, const u8* key, size_t n) noexcept nogil

    cdef void* _room(self, size_t size) noexcept nogil
    cdef int _own(self, Blob* blob, size_t size) noexcept nogil
    cdef int _store(
        self, const u8* key, size_t n, const void* source, size_t m, bint is_copied,
        Value* before) except -1 nogil
    cdef Entry* _place(self, const u8* key, size_t n, size_t tail, bint* is_new) noexcept nogil
    cdef void _share(self, size_t shared) noexcept nogil
    cdef size_t _between(self, const Entry* low, const Entry* high) noexcept nogil
    cdef Leaf* _leaf(self, const u8* key, size_t n) noexcept nogil
    cdef bint _search(self, const u8* key, size_t n, Cursor* place) noexcept nogil
    cdef bint _belongs(self, Leaf* leaf, const u8* key, size_t n) noexcept nogil
    cdef Leaf* _split(self, Leaf* leaf, Entry* entry, int* at) noexcept nogil
    cdef object _object(self, int state, const void* held, size_t size)
    cdef tuple _item(self, const Entry* entry)
    cdef int _unchanged(self, u64 changes) except -1
