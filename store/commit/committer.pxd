# The types of committer.py, for Cython. Nothing here is needed to run it as plain Python.
cimport cython

from logweir.store.commit.ahead cimport Ahead
from logweir.store.commit.failing cimport Fails
from logweir.store.commit.group cimport Group
from logweir.store.commit.jobs cimport Job
from logweir.store.state.stackkernel cimport Layer
from logweir.store.state.viewers cimport Look, Viewers

cdef class Committer(Fails):
    cdef public object durability, anchor, schema, vclock, waiting, settlement, plans, durable, owner
    cdef public object lock, replica_id, after_commit, layers, reader
    cdef public bint is_closed
    cdef public Py_ssize_t commits, system_count
    cdef public dict changes
    cdef public list on_commit
    cdef readonly Ahead ahead
    cdef readonly Viewers viewers
    cdef readonly object _view_guard, _background_sync
    cdef object _clock, _executor, _growing, _grown, _logged, _unlogged
    cdef bint _wait_for_more

    cpdef object check_open(self)
    cpdef object check_readable(self)
    cpdef Group begin(self)
    @cython.locals(look=Look, group=Group)
    cdef Group _begun(self, object plans, object executor, bint is_ahead)
    @cython.locals(job=Job)
    cpdef object commit(self, list jobs)
    @cython.locals(group=Group, job=Job)
    cdef object _commit_once(self, list jobs)
    cdef object _apply(self, Group group, Job job, object mark)
    @cython.locals(group=Group, last=Group, blocks=list, layers=list, layer=Layer,
                   logged_bytes=Py_ssize_t, changed_schema=bint, is_logged=bint,
                   ours=Py_ssize_t)
    cpdef object publish(self, tuple groups)
    cdef object _tell(self, Py_ssize_t logged_bytes)
    cpdef object wake_followers(self)
