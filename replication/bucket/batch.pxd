# The types of batch.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef class _Batches:
    cdef object _requests, _ordinary, _numbers, _wins
    cdef long long _now
    cdef list _said
    cdef Py_ssize_t _said_bytes

    cpdef list answer(self)
    cdef object _step(self)
    cdef object _paused(self, bint is_held=*)
    cdef object _answer_odd(self)
    cdef object _say(
        self, object at, object reached, object first, object results, object made, object lsn)
    cdef object _tell(self, list said)

cdef class Changes(_Batches):
    cdef object _items, _group, _given
    cdef Py_ssize_t _most

    @cython.locals(most=Py_ssize_t, how=Py_ssize_t)
    cdef object _step(self)
    @cython.locals(how=Py_ssize_t)
    cdef tuple _statements(self, Py_ssize_t most)
    cdef object _execute(self, object given, object columns, object begin)
    cdef object _execute_alone(self)

cdef class Looks(_Batches):
    cdef object _bucket, _buckets, _expired

    cdef object _step(self)
