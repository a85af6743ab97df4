# cython: boundscheck=False, wraparound=False, cdivision=True
"""Looking at a file descriptor again and again, without the interpreter's lock.

`select.poll` takes that lock for each look, so that a thread that waits for it would hardly have
it. There is no plain form: without a compiler a loop sleeps, see `replication.portkernel.BusyPoll`.
"""

cdef extern from "<poll.h>" nogil:
    ctypedef unsigned long nfds_t
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *files, nfds_t count, int milliseconds)
    short POLLIN

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *time)
    int CLOCK_MONOTONIC


cdef double _now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return time.tv_sec + time.tv_nsec * 1e-9


def look(int file, double seconds):
    """Whether `file` can be read; looked for at most so long, while others may have the
    processor."""
    cdef pollfd one
    cdef double end
    cdef int found = 0
    one.fd = file
    one.events = POLLIN
    one.revents = 0
    with nogil:
        end = _now() + seconds
        while True:
            found = poll(&one, 1, 0)
            if found != 0 or _now() >= end:
                break
            sched_yield()
    return found > 0
