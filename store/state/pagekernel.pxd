# The types of pagekernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

ctypedef unsigned long long u64

cdef Py_ssize_t NO_PAGE, FOREIGN, NO_ENTRIES, OUTSIDE, UNENDED, A_TREE, NO_VALUE, TOO_MANY, NO_FREE
cdef Py_ssize_t OF_FREE_PAGES, OF_TREES, TREE_BYTES, _HEAD, _NODE
cdef Py_ssize_t _BRANCH, _LEAF, _OVERFLOW, _KIND, _BIG, _SUBTREE
cdef bint _LITTLE

cdef Py_ssize_t u16_at(const unsigned char[::1] data, Py_ssize_t at) noexcept

@cython.locals(value=u64, byte=u64, i=Py_ssize_t)
cdef u64 u64_at(const unsigned char[::1] data, Py_ssize_t at) noexcept

@cython.locals(at=Py_ssize_t, lower=Py_ssize_t, upper=Py_ssize_t, place=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t entries(
    const unsigned char[::1] data, u64 page, Py_ssize_t page_bytes, u64 pages,
    Py_ssize_t wanted) noexcept

@cython.locals(at=Py_ssize_t, count=u64)
cdef Py_ssize_t overflow(
    const unsigned char[::1] data, u64 first, u64 size, Py_ssize_t page_bytes, u64 pages) noexcept

@cython.locals(count=u64, i=u64, page=u64, last=u64)
cdef bint is_free_list(
    const unsigned char[::1] data, Py_ssize_t at, u64 size, u64 pages) noexcept

@cython.locals(at=Py_ssize_t, i=Py_ssize_t, node=Py_ssize_t, size=u64, flags=Py_ssize_t,
               key_bytes=Py_ssize_t, begin=Py_ssize_t, held=Py_ssize_t, first=u64,
               found=Py_ssize_t)
cdef Py_ssize_t leaf(
    const unsigned char[::1] data, u64 page, Py_ssize_t count, Py_ssize_t page_bytes, u64 pages,
    Py_ssize_t kind, list subtrees, u64[::1] told) except? -2

@cython.locals(path="unsigned long long[32]", places="Py_ssize_t[32]", counts="Py_ssize_t[32]",
               level=Py_ssize_t, page=u64, is_leaf=bint, found=Py_ssize_t, wrong=Py_ssize_t,
               at=Py_ssize_t, node=Py_ssize_t, child=u64)
cpdef Py_ssize_t tree(
    const unsigned char[::1] data, Py_ssize_t page_bytes, u64 pages, u64 root, Py_ssize_t depth,
    Py_ssize_t kind, list subtrees, u64[::1] told) except? -2
