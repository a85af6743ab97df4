# cython: annotation_typing=False
"""Group commit: whatever is ready when the log is free shares one sync.

A change is a `Job`. `CommitQueue.run` puts it in line; the thread that finds nobody committing
becomes the leader: it takes everything in line as one group, hands it to the committer and goes on
until its own job is done. Jobs that arrive while a group is being written and synced are the next
group; there are no timers. `submit` is for callers that must not wait (event loops): a thread of
the queue leads for them.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `jobs.pxd`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from traceback import clear_frames
from types import TracebackType
from typing import Any, Final

from logweir.errors import ErrorCode, LogweirError, RequestError, WalError
from logweir.limits import GROUP_BYTES

QUICK_BYTES: Final = 32 * 1024
"""Of small tuples: see `Job`."""

_JOBS_MAX: Final = 100_000
_SMALL: Final = frozenset((int, float, bool, type(None)))
_SMALL_BYTES: Final = 9


class Job:
    """One change that waits for its group.

    `apply`: makes the change in the group it is given and returns the result; it may be called
    again on another group if the first was given up. `size`: about how many bytes of log it makes;
    `quick_bytes`: so many of the like of them may be made at a time by an event loop itself.
    `finished` is called, in the leader's thread, after the change is durable or refused; `made`,
    there too, when its group is made and was not written yet: it is not given up for another one
    then, and `result` stays. Neither may raise anything.
    """

    def __init__(
        self,
        apply: Callable[[Any], Any],
        size: int = 0,
        *,
        finished: Callable[[Job], None] | None = None,
        quick_bytes: int = QUICK_BYTES,
    ) -> None:
        self.apply = apply
        self.size = size
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = finished
        self.made: Callable[[Job], None] | None = None
        self.done = False
        self.waiter: threading.Event | None = None
        self.quick_bytes = quick_bytes

    @property
    def load(self) -> float:
        """Above 1, of all that are made together, no event loop makes them itself."""
        return self.size / self.quick_bytes if self.quick_bytes else 2.0

    def finish(self) -> None:
        """Tell whoever waits."""
        self.done = True
        if self.error is not None:
            lighten(self.error)
        if self.finished is not None:
            self.finished(self)
        if self.waiter is not None:
            self.waiter.set()


class CommitQueue:
    """The line in front of the log. `commit`: applies, logs and answers one group of jobs; must not
    raise: what goes wrong is the jobs' error."""

    def __init__(
        self,
        commit: Callable[[list[Job]], None],
        lock: threading.Lock,
    ) -> None:
        self._commit = commit
        self._line: deque[Job] = deque()
        self._guard = threading.Lock()
        self._leader: Job | CommitQueue | None = None  # whose thread commits; self: the queue's own
        self._lock = lock
        self._wake = threading.Condition(self._guard)
        self._thread: threading.Thread | None = None
        self._closing = False

    def left_behind(self) -> None:
        """In a child of `fork`."""
        self._guard, self._lock = threading.Lock(), threading.Lock()
        self._wake = threading.Condition(self._guard)
        self._line, self._leader, self._thread = deque(), None, None
        self._closing = True

    def run(self, job: Job, before: Sequence[Job] = ()) -> None:
        """Wait until `job` is durable. Raises its error.

        `before`: jobs that go in line before it; their errors are only noted in them.

        An interrupt of the waiting thread takes the job out of the line, unless it is being
        committed; nobody else is held up by it.
        """
        try:
            try:
                with self._guard:
                    self._line.extend(before)
                    self._line.append(job)
                    if self._leader is None:
                        self._leader = job
                    else:
                        job.waiter = threading.Event()
                if job.waiter is not None:
                    job.waiter.wait()
                if not job.done:
                    self._lead(until=job)
            finally:
                self._leave(job)
        finally:
            if self._leader is job or not job.done:
                self._leave(job)  # an interrupt may have stopped the first
        if job.error is not None:
            raise job.error

    def run_if_free(self, jobs: list[Job], is_free: Callable[[], bool]) -> bool:
        """Commit `jobs` as one group in this thread, unless that would wait for another one: then
        nothing is done, and False. What went wrong stands in them. `is_free`: whether whoever has
        the lock would wait for nobody."""
        taken: list[bool] = []
        left = iter(taken)  # to give the lock back once, in one step as an interrupt sees it
        begun: list[Job] = []
        cause: BaseException | None = None
        try:
            try:
                taken.extend(filter(None, map(self._lock.acquire, (False,))))  # in one step, too
                if taken:
                    with self._guard:
                        is_next = self._leader is None and not self._line
                    if is_next and is_free():
                        begun = jobs
                        self._commit(jobs)
            finally:
                deque(map(self._lock.__exit__, left), maxlen=0)  # type: ignore[arg-type]
        except BaseException as error:
            cause = error
            raise
        finally:
            # An interrupt may have stopped that.
            deque(map(self._lock.__exit__, left), maxlen=0)  # type: ignore[arg-type]
            _finish(begun, cause)
            cause = None  # whose frames are this one, too: views of them would stay
        return bool(begun)

    def submit(self, apply: Callable[[Any], Any], size: int = 0) -> Future[Any]:
        """Put a change in line and return at once. The future is resolved in the leader's
        thread, and cannot be cancelled."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def finished(job: Job) -> None:
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)

        self.submit_job(Job(apply, size, finished=finished))
        return future

    def submit_job(self, *jobs: Job) -> None:
        """Put jobs in line and return at once; each one's `finished` is called when it is done.

        Raises SESSION_CLOSED after `close`.
        """
        with self._guard:
            if self._closing:
                raise RequestError(ErrorCode.SESSION_CLOSED, "the log is being closed")
            self._line.extend(jobs)
            if self._thread is None:
                self._start_thread()
            self._wake.notify()

    def close(self) -> None:
        """Wait until the line is empty and end the queue's thread."""
        with self._guard:
            self._closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _take(self) -> list[Job]:
        jobs: list[Job] = []
        size = 0
        while self._line and len(jobs) < _JOBS_MAX and (not jobs or size < GROUP_BYTES):
            job = self._line.popleft()
            size += job.size
            jobs.append(job)
        return jobs

    def _lead(self, until: Job | None) -> None:
        """Commit groups until `until` is done, or the line is empty."""
        while self._line if until is None else not until.done:
            group: list[Job] = []
            cause: BaseException | None = None
            try:
                with self._lock:
                    with self._guard:
                        group = self._take()
                    if group:
                        self._commit(group)
            except BaseException as error:
                cause = error
                raise
            finally:
                _finish(group, cause)

    def _leave(self, job: Job) -> None:
        """The thread of `job` waits no longer: hand the lead, if it has it, to one that does."""
        with self._guard:
            if not job.done and job in self._line:
                self._line.remove(job)
            if self._leader is job:
                if self._line:
                    self._pass_on()
                else:
                    self._leader = None

    def _pass_on(self) -> None:
        """Wake who leads next, and only then, should an interrupt come between, name it: until then
        it can be done again."""
        leader = None
        if self._line:
            leader = next((job for job in self._line if job.waiter is not None), None)
        if leader is not None and leader.waiter is not None:
            leader.waiter.set()  # it finds itself not done, and leads
        elif self._line:
            self._wake.notify()
        self._leader = leader

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="logweir-commit", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """The queue's own thread: leads where nobody waits who could."""
        try:
            while True:
                with self._guard:
                    while self._leader is not None or not self._line:
                        if self._closing and not self._line:
                            return
                        self._wake.wait()
                    self._leader = self
                try:
                    self._lead(until=None)
                finally:
                    with self._guard:
                        self._pass_on()
        except BaseException:  # of a program's own callback: those in line are not left waiting
            with self._guard:
                self._start_thread()
            raise


def _finish(jobs: Sequence[Job], cause: BaseException | None) -> None:
    """Tell those that wait. `cause`: what stopped the thread that committed them."""
    for job in jobs:
        if cause is not None and job.error is None:
            job.error = interrupted(cause)
        job.finish()


def lighten(error: BaseException) -> None:
    """Let an error keep nothing of how it came about: its frames lead to the group, with its
    layers, and to all who called, and they to the error. Where it is no error of ours somebody has
    to find out what was wrong, so that the frames stay, without what they held."""
    if not isinstance(error, LogweirError):
        clear_frames(error.__traceback__)
        return
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__


def interrupted(cause: BaseException) -> BaseException:
    """What the others are told when the thread that committed for them was stopped."""
    if isinstance(cause, Exception):
        return cause
    return WalError(
        f"the thread that committed this change was stopped by {type(cause).__name__}.",
        hint="read it back to see whether it was made; if that fails, open the folder again",
    )


class Refused(Exception):
    """A job failed and its traces cannot be rolled back alone: the group starts again without
    it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job


class OnError:
    """A context whose errors `tell` is told, which may raise another one instead. It can be entered
    again and again: each group does so several times."""

    def __init__(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._tell(error)


def about_bytes(value: object) -> int:
    """About how many bytes a value takes as MsgPack."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if not isinstance(value, list | tuple):
        return _SMALL_BYTES
    size = _SMALL_BYTES * len(value)
    for one in value:
        kind = type(one)
        if kind is str or kind is bytes:
            size += len(one)
        elif kind not in _SMALL:
            size += about_bytes(one)
    return size
