# The types of ahead.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.store.commit.failing cimport Fails
from logweir.store.commit.group cimport Group
from logweir.store.state.stackkernel cimport Layer

cdef class Ahead:
    cdef readonly tuple groups
    cdef object _guard, _writing, _aside
    cdef Fails _committer

    cpdef object commit(self, Group group, object end=*)
    @cython.locals(below=Group)
    cpdef object end(self, Group group, object finished=*)
    cpdef object wait(self, Group group)
    cpdef object hold(self, Group group)
    cdef object _wait(self, Group group)
    cpdef object drain(self)
    @cython.locals(groups=tuple, told=tuple, group=Group)
    cdef object _write(self)
    @cython.locals(group=Group)
    cpdef object published(self, object groups)
    @cython.locals(group=Group)
    cdef tuple _drop(self, tuple groups, object cause)

cpdef Layer changes(Group group)
