"""What all connections of one server share, whatever they speak: the store, who may do what, and
the line in which changes wait to be made durable together.

Access is judged by the rows of `_user` and `_priv`, read again whenever one of them has changed,
whoever changed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from logweir.errors import ErrorCode, LogweirError, RequestError, WalError
from logweir.limits import CONNECTIONS
from logweir.replication.logins import Logins
from logweir.replication.metrics import Metrics
from logweir.replication.service.access import (
    GUEST_ID,
    Access,
    Directory,
    Grant,
    Privilege,
    User,
    denied,
)
from logweir.replication.stream.hub import Hub
from logweir.replication.stream.retention import Retention
from logweir.replication.turns import Turn
from logweir.store.commit.group import Group
from logweir.store.commit.queue import Job
from logweir.store.log import Log
from logweir.wal.mp import unpack

__all__ = ["LET_IN_MAX", "Options", "Shared", "as_request_error"]

T = TypeVar("T")

LET_IN_MAX: Final = 4096
"""So much that was allowed is kept about, see `Shared.let_in`."""

_USER_ID: Final = 304
_PRIV_ID: Final = 312
_SCHEMA_ID: Final = 272
_FUNC_ID: Final = 296
_QUICK_BYTES: Final = 32 * 1024  # a larger group is left to the log's own thread
_QUICK_SECONDS: Final = 0.002  # when groups take longer they are left to the log's own thread
_SLOW_COST: Final = 16  # what a slow one counts, and so many quick ones make good: one alone
_SLOW_LIMIT: Final = 24  # tells little of the disk, two of them with few others between much
_ASIDE_SECONDS: Final = 0.05  # for so long
_PARTS_MAX: Final = 64  # of a job: answering so many takes about a turn
_PARTS_BYTES: Final = 256 * 1024  # so do those of so many bytes, if they have failed


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a server. Times in seconds.

    `guest`: grants that stand in no row; `read_only`: changes are refused with error 7;
    `replication_timeout_seconds`: heartbeats are that far apart, and a replica that says nothing
    for four times as long is dropped; `retain_max_bytes`: see `replication.stream.retention`;
    `connections`: the most that may be open; `clock`: seconds since the epoch.
    """

    guest: Sequence[Grant] = ()
    read_only: bool = False
    replication_timeout_seconds: float = 1.0
    retain_max_bytes: int = 0
    connections: int = CONNECTIONS
    clock: Callable[[], float] = time.time


class Shared:
    """One server's common state. Belongs to the event loop's thread.

    `hub`: gives the log as it is; `settled`: what of it is settled, to who shows its contents.
    """

    def __init__(
        self,
        log: Log,
        hub: Hub,
        settled: Hub,
        *,
        metrics: Metrics,
        options: Options,
    ) -> None:
        self.log = log
        self.hub = hub
        self.settled = settled
        self.metrics = metrics
        self.options = options
        self.logins = Logins(metrics)
        self._loop = asyncio.get_running_loop()
        self.open_views = 0
        self.retention = Retention(
            log,
            metrics=metrics,
            max_bytes=options.retain_max_bytes,
        )
        self._directory: Directory | None = None
        self._directory_at = (0, 0)
        self._changes_seen = 0
        self._committer = log.inner.committer
        self._let_in: set[Hashable] = set()
        self._let_in_at = -1
        self._finished: deque[tuple[Job, Callable[[Job], None]]] = deque()
        self._scheduled = False
        self._fresh: list[tuple[Job, Callable[[Job], None]]] = []
        self._joint: dict[Hashable, tuple[Job, list[Any]]] = {}  # that more may come to
        self._in_line = 0
        self._aside_until = 0.0
        self._slow = 0  # how slow the last groups were

    # --- users ------------------------------------------------------------------------------------

    @property
    def directory(self) -> Directory:
        """Users and privileges as they are now."""
        changes = self.log.inner.system_changes
        if self._directory is not None and changes == self._changes_seen:
            return self._directory
        at = self.log.inner.changes_of(_USER_ID), self.log.inner.changes_of(_PRIV_ID)
        if self._directory is None or at != self._directory_at:
            with self.log.read_view() as view:
                spaces = view.engine.schema
                users, privileges = (
                    [unpack(row) for row in view.tuples(spaces.space(number))]
                    for number in (_USER_ID, _PRIV_ID)
                )
            self._directory = Directory(users, privileges, self.options.guest)
            self._directory_at = at
        self._changes_seen = changes
        return self._directory

    def access(self, user_id: int) -> Access:
        """What a user may do. Raises error 45 for one that was dropped."""
        return self.directory.access(user_id)

    @property
    def let_in(self) -> set[Hashable]:
        """What was allowed, of whom, while no row of a system space has changed: then it still is,
        and every request of every protocol asks. What is looked up after this was asked for may be
        noted in it. It is forgotten if it has become long: clients ask for spaces in any order."""
        changes = self._committer.system_count
        if changes != self._let_in_at or len(self._let_in) > LET_IN_MAX:
            self._let_in, self._let_in_at = set(), changes
        return self._let_in

    def check(
        self, user_id: int, space: int | str, *wanted: Privilege, is_there: bool = False
    ) -> None:
        """Raise error 42 unless a user has all of `wanted` on a space, by id or name, or on every
        space if there is none of that (with `is_there` error 36 then); 45 for a user that was
        dropped.

        Who was let in is let in again: see `let_in`.
        """
        known = self.let_in
        if (user_id, space, wanted) in known:
            return
        schema = self.log.schema
        access, found = self.access(user_id), schema.space(space) if is_there else schema.get(space)
        for one in wanted:
            if found is None:
                access.check(one, "space", -1, -1, str(space))
            else:
                access.check(one, "space", found.id, found.owner, found.name)
        if found is not None:
            known.add((user_id, space, wanted))

    def may(
        self, user_id: int, space: int | str, *wanted: Privilege, is_there: bool = False
    ) -> bool:
        """Whether `check` lets a user in."""
        try:
            self.check(user_id, space, *wanted, is_there=is_there)
        except RequestError:
            return False
        return True

    def check_call(self, access: Access, name: str) -> None:
        """Raise error 42 unless that user may call a function: execute of everything, of all
        functions, or of that one if it has a row in `_func`."""
        if access.is_super:
            return
        with self.log.read_view() as view:
            row = view.get(_FUNC_ID, [name], index=2)
        function_id, owner = ("", -1) if row is None else row[:2]
        if owner != access.user.id and not (
            access.bits("function", function_id) & Privilege.EXECUTE
        ):
            raise denied(Privilege.EXECUTE, "function", name, access.user.name)

    def user_id(self, name: str) -> int:
        """Who a connection begins as: the user that it names, "" for guest. Raises error 45."""
        return self.user(name).id if name else GUEST_ID

    def user(self, name: str) -> User:
        """A user by name. Raises error 45."""
        return self.directory.user(name)

    def replicaset(self) -> uuid.UUID:
        """The UUID of the replica set that this store belongs to."""
        with self.log.read_view() as view:
            row = view.get(_SCHEMA_ID, ["cluster"])
        if row is None:
            raise RequestError(ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
        return uuid.UUID(row[1])

    @property
    def is_read_only(self) -> bool:
        """Whether changes are refused: it was asked for, or this is an anonymous replica."""
        return self.options.read_only or not self.log.replica_id

    # --- changes ----------------------------------------------------------------------------------

    def submit(self, job: Job, done: Callable[[Job], None]) -> None:
        """Put a change in line; `done` is called in the loop's thread once it is durable.

        What was put in line in one turn of the loop goes together. Where that is little, with none
        under way, it is made at once in this thread, as long as the disk is quick: handing it to
        another thread and back would take longer than the loop stands still.
        """
        self._fresh.append((job, done))
        if len(self._fresh) == 1:
            self._loop.call_soon(self._put_in_line)

    def submit_part(
        self,
        key: Hashable,
        part: T,
        size: int,
        apply: Callable[[Sequence[T], Group], object],
        done: Callable[[Sequence[T], BaseException | None], None],
        *,
        is_long: bool = False,
    ) -> None:
        """Put a change of about `size` bytes of log in line, in one job with those that have the
        same key and came in this turn of the loop. `apply`, `done`: of the first of them, make and
        answer all; in order, as those of `submit`. `is_long`: see `Job`."""
        known = self._joint.get(key)
        if known is None or len(known[1]) >= _PARTS_MAX or known[0].size >= _PARTS_BYTES:
            parts: list[T] = []
            job = Job(partial(apply, parts))
            self._joint[key] = known = job, parts
            self.submit(job, lambda job: done(parts, job.error))
        job, parts = known
        parts.append(part)
        job.size += size
        job.is_long |= is_long

    def _judge(self, began: float) -> float:
        """See how quick the disk was. Returns the seconds since `began`."""
        now = self._loop.time()
        if now - began <= _QUICK_SECONDS:
            self._slow = max(self._slow - 1, 0)
        else:
            self._slow = min(self._slow + _SLOW_COST, 2 * _SLOW_LIMIT)
            self._aside_until = now + _ASIDE_SECONDS
        return now - began

    def _put_in_line(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._joint.clear()
        jobs, size = [], 0
        for job, _ in fresh:
            jobs.append(job)
            size += _QUICK_BYTES + 1 if job.is_long else job.size
        began = self._loop.time()
        if (
            not self._in_line
            and size <= _QUICK_BYTES
            and not self.open_views
            and not self._committer.lock.locked()
            and (self._slow < _SLOW_LIMIT or began >= self._aside_until)
        ):
            self._make_at_once(fresh, jobs, began)
            return
        self._in_line += len(fresh)
        for job, done in fresh:
            job.finished = self._finisher(done)
        jobs[-1].finished = self._finisher(self._timed(fresh[-1][1], began))
        try:
            self.log.inner.submit_jobs(jobs)
        except LogweirError as error:
            for job in jobs:
                job.error = error
                job.finish()

    def _make_at_once(
        self, fresh: list[tuple[Job, Callable[[Job], None]]], jobs: list[Job], began: float
    ) -> None:
        """Make a group here."""
        job = jobs[-1]
        try:
            self.log.inner.run_job(job, jobs[:-1])
        except Exception as error:
            if job.error is not error and not isinstance(error, LogweirError):
                raise
            for one in jobs:
                if not one.done:
                    one.error = error
            job.error = error  # the change's own: who asked for it is told
        self.metrics.committed(self._judge(began))
        for job, done in fresh:
            done(job)

    def _timed(self, done: Callable[[Job], None], began: float) -> Callable[[Job], None]:
        """`done`, which also tells how long the changes of one turn took."""

        def timed(job: Job) -> None:
            self.metrics.committed(self._judge(began))
            done(job)

        return timed

    def _finisher(self, done: Callable[[Job], None]) -> Callable[[Job], None]:
        def finished(job: Job) -> None:
            self._finished.append((job, done))
            if not self._scheduled:
                self._scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    self._loop.call_soon_threadsafe(self._deliver)

        return finished

    def _deliver(self) -> None:
        """Answer what is done, as far as a turn goes."""
        self._scheduled = False
        turn = Turn()
        while self._finished:
            if turn.is_over(0):
                self._scheduled = True
                self._loop.call_soon(self._deliver)
                return
            job, done = self._finished.popleft()
            self._in_line -= 1
            done(job)

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


def as_request_error(error: BaseException) -> RequestError:
    """Any failure of a change as what a client is told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, WalError):
        return RequestError(ErrorCode.WAL_IO, "Failed to write to disk")
    if isinstance(error, LogweirError):
        return RequestError(ErrorCode.ILLEGAL_PARAMS, error.message)
    raise error
