# The types of portkernel.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

cdef class Outbox:
    cdef list _parts
    cdef public Py_ssize_t size_bytes
    cdef public bint is_held

    @cython.locals(parts=list)
    cpdef take(self)

cdef class Counted:
    cdef readonly dict answered
    cdef readonly list commits
    cdef readonly double commit_seconds
    cdef object _bounds

    @cython.locals(counts=list)
    cpdef answer(self, object scheme, object done, object failed)
    cpdef commit(self, double seconds)

cdef class Pace:
    cdef public Py_ssize_t portion_bytes

cdef class Turn:
    cdef Py_ssize_t _bytes_end
    cdef double _end

    cpdef bint is_over(self, Py_ssize_t answered_bytes)

cdef class Unanswered:
    cdef object _link, _budget, _told
    cdef Py_ssize_t _free_bytes
    cdef public Py_ssize_t limit_bytes, size_bytes
    cdef public bint is_holding

    cpdef add(self, Py_ssize_t size_bytes)
    @cython.locals(size_bytes=Py_ssize_t, limit_bytes=Py_ssize_t)
    cdef _look(self)

cdef class BusyPoll:
    cdef public double seconds
    cdef object _look, _call_soon
    cdef double _until, _left
    cdef int _trust, _untried
    cdef Py_ssize_t _heard
    cdef bint _is_looking, _is_owed

    cpdef heard(self)

    @cython.locals(is_owed=bint)
    cpdef answered(self)

    @cython.locals(now=double, heard=Py_ssize_t)
    cpdef _go_on(self)

cdef class Port:
    cdef BusyPoll _polling
    cdef public object budget, close_reason
    cdef public Py_ssize_t received_bytes, sent_bytes, kept_bytes
    cdef public double last_received
    cdef object _clock
    cdef public bint _has_room
    cdef public object _transport, _conversation, _session, _receive, _into, _in_parts, _keeps
    cdef public Pace _pace
    cdef object _scratch, _portion
    cdef Py_ssize_t _size

    @cython.locals(began=double, is_timed=bint, pace=Pace)
    cpdef buffer_updated(self, Py_ssize_t nbytes)

    @cython.locals(now=double, polling=BusyPoll)
    cpdef take(self, Py_ssize_t count, object what)

    cpdef flush(self)

    cpdef send(self, object data)

    @cython.locals(size=Py_ssize_t)
    cdef _send_parts(self, list parts)

    @cython.locals(unsent=Py_ssize_t, polling=BusyPoll)
    cdef _sent(self, object transport, Py_ssize_t size)
