# The types of runs.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

@cython.freelist(8)
cdef class Run:
    cdef public bytes data
    cdef public object columns, syncs, space_ids, uses, streams
    cdef public Py_ssize_t stop, size_bytes, at
    cdef public object named_at

    @cython.locals(first=Py_ssize_t, count=Py_ssize_t)
    cpdef object answers(self, object done, object schema_version, Py_ssize_t which=*)
    @cython.locals(count=Py_ssize_t, room=Py_ssize_t, size=Py_ssize_t, out=bytearray)
    cpdef bytearray _answers(
        self, object done, Py_ssize_t first, Py_ssize_t last, object version, Py_ssize_t which)

@cython.locals(
    capacity=Py_ssize_t, count=Py_ssize_t, stop=Py_ssize_t, spaces=Py_ssize_t, first=Py_ssize_t,
    streams=Py_ssize_t)
cpdef object take_run(bytes data, Py_ssize_t at, object schema_version, object ids=*)
