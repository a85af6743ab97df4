# cython: annotation_typing=False
"""The line of changes in front of the log, as an event loop sees it.

What was put in line in one turn of the loop goes to the log together. Where that is little, with
none under way, it is made at once in the loop's own thread, as long as the disk is quick: handing
it to another thread and back would take longer than the loop stands still. Everything else is left
to the log's own thread, and so is what would wait for another thread of the program, whose sync may
take long, and whatever closes a log file.

A group that the loop makes itself costs a sync, however small it is. So where more were made
together the last time it looks for as many before it makes the next, for a quarter of what a group
takes: those who were answered together come back one after the other.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `line.pxd`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from logweir.errors import LogweirError, RequestError
from logweir.replication.logs import SparingLog, get_logger
from logweir.replication.loop import clock_of
from logweir.replication.metrics import Metrics
from logweir.replication.portkernel import Turn
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import QUICK_BYTES, Job
from logweir.store.log import Log

T = TypeVar("T")

_QUICK_SECONDS: Final = 0.002  # when groups take longer they are left to the log's own thread
_SLOW_COST: Final = 16  # what a slow one counts, and so many quick ones make good: one alone
_SLOW_LIMIT: Final = 24  # tells little of the disk, two of them with few others between much
_ASIDE_SECONDS: Final = 0.05  # for so long
_LONG_SECONDS: Final = 0.25  # one that took longer, for which all connections waited, tells enough:
_ASIDE_TIMES: Final = 10  # they are left to that thread for so many times as long
_GATHER_PART: Final = 0.25  # of the time of a group, in which more may join the next one
_LOOKS_MAX: Final = 100  # for them, in case that the clock stands
_PARTS_MAX: Final = 64  # of a job: answering so many takes about a turn
_PARTS_BYTES: Final = 256 * 1024  # so do those of so many bytes, if they have failed


class Line:
    """The line of one store. Belongs to the event loop's thread."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self.log = log
        self.metrics = metrics
        self._sparing = SparingLog(get_logger("logweir.replication"))
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._thread = threading.get_ident()
        self._committer = log.inner.committer
        self._finished: deque[tuple[Job, Callable[[Job], None], float]] = deque()
        self._scheduled = False
        self._fresh: list[tuple[Job, Callable[[Job], None]]] = []
        self._joint: dict[Hashable, tuple[Job, list[Any]]] = {}  # that more may come to
        self._in_line = 0
        self._aside_until = 0.0
        self._slow = 0  # how slow the last groups were
        self._asked = 0  # changes that came since the last group
        self._asked_last = 0  # and before it
        self._took = 0.0  # the last one
        self._gather_until = 0.0
        self._looks_left = 0

    def submit(
        self,
        job: Job,
        done: Callable[[Job], None],
        made: Callable[[Job], None] | None = None,
    ) -> None:
        """Put a change in line; `done` is called in the loop's thread once it is durable. `made` is
        called there if the log's thread has made it (`is_aside`) and goes on to write it; that may
        be as late as `done`, or later."""
        if made is not None:
            job.made = partial(self._made, made)
        self._fresh.append((job, done))
        self._asked += 1
        if len(self._fresh) == 1:
            self._looks_left = _LOOKS_MAX
            self._loop.call_soon(self._gather)

    def submit_part(
        self,
        key: Hashable,
        part: T,
        size: int,
        apply: Callable[[Sequence[T], Group], object],
        done: Callable[[Sequence[T], BaseException | None], None],
        quick_bytes: int = QUICK_BYTES,
    ) -> None:
        """Put a change of about `size` bytes of log in line, in one job with those that have the
        same key and wait for the same group. `apply`, `done`: of the first of them, make and
        answer all; in order, as those of `submit`. `quick_bytes`: see
        `Job`."""
        known = self._joint.get(key)
        if known is None or len(known[1]) >= _PARTS_MAX or known[0].size >= _PARTS_BYTES:
            parts: list[T] = []
            job = Job(partial(apply, parts), quick_bytes=quick_bytes)
            self._joint[key] = known = job, parts
            self.submit(job, partial(_answer_parts, done, parts))
        else:
            self._asked += 1
        job, parts = known
        parts.append(part)
        job.size += size
        job.quick_bytes = min(job.quick_bytes, quick_bytes)

    def _judge(self, began: float) -> None:
        """See, and count, how quick the disk was since `began`."""
        now = self._clock()
        self._took = took = now - began
        self.metrics.committed(took)
        if took <= _QUICK_SECONDS:
            if self._slow:
                self._slow -= 1
            return
        cost, aside = _SLOW_COST, _ASIDE_SECONDS
        if took > _LONG_SECONDS:
            cost, aside = 2 * _SLOW_LIMIT, _ASIDE_TIMES * took
        self._slow = min(self._slow + cost, 2 * _SLOW_LIMIT)
        self._aside_until = max(self._aside_until, now + aside)

    def _gather(self) -> None:
        """Put in line what there is, or look once more for what belongs to it."""
        if self._asked < self._asked_last and not self._in_line:
            now = self._clock()
            if self._looks_left == _LOOKS_MAX:
                self._gather_until = now + _GATHER_PART * min(self._took, _QUICK_SECONDS)
            if now < self._gather_until and self._looks_left:
                self._looks_left -= 1
                self._loop.call_soon(self._gather)
                return
        self._put_in_line()

    def _put_in_line(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._asked, self._asked_last = 0, self._asked
        if self._joint:
            self._joint.clear()
        jobs, load = [], 0.0
        for job, _ in fresh:
            jobs.append(job)
            load += job.load
        began = self._clock()
        if (
            not self._in_line
            and load <= 1
            and (self._slow < _SLOW_LIMIT or began >= self._aside_until)
            and self._is_made_at_once(jobs)
        ):
            self._judge(began)
            for job, done in fresh:
                self._finished.append((job, done, -1.0))
            self._in_line += len(fresh)
            self._deliver()
            return
        self._in_line += len(fresh)
        for job, done in fresh:
            job.finished = partial(self._note, done, -1.0)
        jobs[-1].finished = partial(self._note, fresh[-1][1], began)
        try:
            self.log.inner.submit_jobs(jobs)
        except LogweirError as error:
            for job in jobs:
                job.error = error
                job.finish()

    def _is_made_at_once(self, jobs: list[Job]) -> bool:
        """Make a group here, unless the loop would wait for another thread then."""
        try:
            return self.log.inner.run_if_free(jobs)
        except Exception as error:
            if not jobs[-1].done and not isinstance(error, LogweirError):
                raise
            for one in jobs:
                one.error = one.error or error  # who asked for it is told
        return True

    def _tell(self, job: Job) -> None:
        """Have it in the log that a change could not be written: who asked is told less."""
        if not isinstance(job.error, RequestError):
            self._sparing.warning("commit.failed", reason=str(job.error))

    def _made(self, made: Callable[[Job], None], job: Job) -> None:
        if self.is_aside():
            self._call_in_loop(made, job)

    def is_aside(self) -> bool:
        """Whether who asks is not the loop's thread, which goes on while this one writes."""
        return threading.get_ident() != self._thread

    def _note(self, done: Callable[[Job], None], began: float, job: Job) -> None:
        """Have the loop answer a job that its thread did not make. `began`: when the changes of its
        turn were put in line, if it is the last of them."""
        self._finished.append((job, done, began))
        if not self._scheduled:
            self._scheduled = True
            self._call_in_loop(self._deliver)

    def _call_in_loop(self, call: Callable[..., object], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(call, *given)

    def _deliver(self) -> None:
        """Answer what is done, as far as a turn goes; an answer that fails holds up no other."""
        self._scheduled = False
        finished, turn = self._finished, Turn()
        try:
            while finished and not turn.is_over(0):
                job, done, began = finished.popleft()
                self._in_line -= 1
                if began >= 0:
                    self._judge(began)
                if job.error is not None:
                    self._tell(job)
                done(job)
        finally:
            if finished and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._deliver)

    async def run(self, job: Job) -> object:
        """`submit`, and wait for the result. Raises what the job raised."""
        waiting: asyncio.Future[Job] = self._loop.create_future()

        def done(job: Job) -> None:
            if not waiting.done():
                waiting.set_result(job)

        self.submit(job, done)
        finished = await waiting
        if finished.error is not None:
            raise finished.error
        return finished.result


def _answer_parts(
    done: Callable[[Sequence[T], BaseException | None], None], parts: Sequence[T], job: Job
) -> None:
    done(parts, job.error)
