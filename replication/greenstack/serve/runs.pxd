# The types of runs.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef class RequestRun:
    cdef readonly bytes data
    cdef readonly Py_ssize_t start, stop, loud, key_bytes, value_bytes, count, begun
    cdef readonly object opcode, flex, table, flags

    cpdef RequestRun behind(self, Py_ssize_t begun)

@cython.locals(left=Py_ssize_t, most=Py_ssize_t, count=Py_ssize_t)
cpdef object take_run(bytes data, Py_ssize_t at=*)

cdef class Joined:
    cdef object _asked, _uuid
    cdef list _ends, _runs
    cdef readonly Py_ssize_t start, stop, count, given_bytes

    cpdef Py_ssize_t number(self, Py_ssize_t at) except -1
    @cython.locals(run=RequestRun)
    cpdef RequestRun rest(self, Py_ssize_t at)
    @cython.locals(run=RequestRun)
    cpdef tuple name(self, Py_ssize_t at)
    @cython.locals(
        run=RequestRun, index=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, stop=Py_ssize_t,
        shift=Py_ssize_t)
    cpdef object statements(
        self, object numbers, Py_ssize_t most, object states, object given, object columns)
