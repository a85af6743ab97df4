# The types of jobs.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

@cython.freelist(8)
cdef class Job:
    cdef public object apply, result, error, finished, made, waiter
    cdef public Py_ssize_t size, quick_bytes
    cdef public bint done

    cpdef object finish(self)

cdef class CommitQueue:
    cdef object _commit, _guard, _lock, _wake, _thread
    cdef readonly object _line, _leader
    cdef bint _closing

    cpdef object run(self, Job job, object before=*)
    cpdef object run_if_free(self, list jobs, object is_free)
    @cython.locals(jobs=list, size=Py_ssize_t, job=Job)
    cdef list _take(self)
    cdef object _lead(self, Job until)
    cdef object _leave(self, Job job)
    cdef object _pass_on(self)

@cython.locals(job=Job)
cdef object _finish(list jobs, object cause)

@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t about_bytes(object value) except? -1

cdef class OnError:
    cdef object _tell
