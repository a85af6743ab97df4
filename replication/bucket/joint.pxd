# The types of joint.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.replication.portkernel cimport Turn

cdef class Part:
    cdef public object rest, asker
    cdef public list fresh, left
    cdef public Py_ssize_t fresh_bytes
    cdef public bint is_held, may_change

cpdef object _changes(object items, object now, object group, object run, object one, bint may_change)

cpdef object _looks(
    object buckets, object bucket, object now, list expired, object run, object one, bint may_change)

@cython.locals(part=Part)
cpdef object finish_all(object parts, object error)

@cython.locals(part=Part, turn=Turn, is_run=Py_ssize_t)
cdef object _answer_all(object parts, object batch, object ordinary, double seconds)

@cython.locals(parts=list, runs=list, left=Py_ssize_t, part=Part, size=Py_ssize_t)
cdef tuple _first_runs(object line)

@cython.locals(parts=list, runs=list, done=Py_ssize_t, is_held=bint, first=Part, part=Part)
cdef object _answer(object line, object batch, object ordinary)

cpdef object _answer_one(object run, object parts, object ordinary, object at)
