# The types of largekernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

ctypedef unsigned long long u64

@cython.locals(total=Py_ssize_t, length=Py_ssize_t, size=Py_ssize_t, cut=Py_ssize_t, head=bytes)
cpdef Py_ssize_t heads(object tuples, Py_ssize_t limit, list out) except -1

@cython.locals(size=Py_ssize_t, count=Py_ssize_t)
cpdef tuple lay(list row_heads, object tuples, Py_ssize_t at, Py_ssize_t target, list out)

@cython.locals(row=Py_ssize_t, count=Py_ssize_t, size=u64)
cpdef list references(u64 first, u64 file, u64 offset, object parts, object checksums)
