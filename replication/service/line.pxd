# The types of line.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.replication.portkernel cimport Turn
from logweir.store.commit.committer cimport Committer
from logweir.store.commit.jobs cimport Job

cdef class Line:
    cdef public object log, metrics
    cdef readonly Committer _committer
    cdef readonly object _loop
    cdef readonly object _finished
    cdef object _sparing, _thread, _clock
    cdef list _fresh
    cdef dict _joint
    cdef bint _scheduled
    cdef readonly Py_ssize_t _in_line
    cdef Py_ssize_t _slow
    cdef double _aside_until, _took, _gather_until
    cdef readonly Py_ssize_t _asked_last
    cdef Py_ssize_t _asked, _looks_left

    cpdef object submit(self, Job job, object done, object made=*)

    @cython.locals(known=tuple, parts=list, job=Job)
    cpdef object submit_part(
        self, object key, object part, Py_ssize_t size, object apply, object done,
        Py_ssize_t quick_bytes=*)

    @cython.locals(now=double, took=double, cost=Py_ssize_t, aside=double)
    cdef object _judge(self, double began)

    @cython.locals(now=double)
    cpdef object _gather(self)

    @cython.locals(fresh=list, jobs=list, job=Job, load=double, began=double)
    cpdef object _put_in_line(self)

    @cython.locals(one=Job)
    cpdef object _is_made_at_once(self, list jobs)

    cdef object _tell(self, Job job)

    cpdef object _made(self, object made, Job job)

    cpdef bint is_aside(self)

    cpdef object _note(self, object done, double began, Job job)

    @cython.locals(job=Job, turn=Turn, began=double)
    cpdef object _deliver(self)

cpdef object _answer_parts(object done, object parts, Job job)
