"""What all iproto connections of one server share: the store, users, functions, followers.

Access is judged by the rows of `_user` and `_priv`, read again whenever a definition has changed.
The schema version that every answer carries begins at 80, as after a bootstrap of 2.6.0, and rises
with each change of a definition.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from logweir.errors import ErrorCode, LogweirError, RequestError, WalError
from logweir.replication.hub import Hub
from logweir.replication.iproto.access import Access, Directory, Grant, User
from logweir.replication.iproto.codec import Ballot
from logweir.replication.iproto.functions import Functions
from logweir.replication.metrics import Metrics
from logweir.store.commit import Job
from logweir.store.log import Log
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

__all__ = ["FollowerStatus", "Options", "Shared", "as_request_error"]

_USER_ID: Final = 304
_PRIV_ID: Final = 312
_SCHEMA_ID: Final = 272
_FIRST_VERSION: Final = 80
_RETAIN_SECONDS: Final = 1.0
_QUICK_BYTES: Final = 32 * 1024  # a larger change is left to the log's own thread
_QUICK_SECONDS: Final = 0.002  # a change that takes longer is left to the log's own thread
_ASIDE_SECONDS: Final = 0.05  # for so long


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a server. Times in seconds.

    `guest`: grants that stand in no row; `read_only`: changes are refused with error 7;
    `replication_timeout_seconds`: heartbeats are that far apart, and a replica that says nothing
    for four times as long is dropped; `clock`: seconds since the epoch.
    """

    guest: Sequence[Grant] = ()
    read_only: bool = False
    replication_timeout_seconds: float = 1.0
    clock: Callable[[], float] = time.time


@dataclass(slots=True)
class FollowerStatus:
    """One replica that follows. `sent`, `acknowledged`: positions; `name`: under which its logs
    are kept, "" for one that nothing is kept for."""

    peer: str
    instance: uuid.UUID
    replica_id: int
    name: str
    sent: VClock = field(default_factory=VClock)
    acknowledged: VClock = field(default_factory=VClock)
    kept_at: float = float("-inf")


class Shared:
    """One server's common state. Belongs to the event loop's thread."""

    def __init__(
        self, log: Log, hub: Hub, *, metrics: Metrics, functions: Functions, options: Options
    ) -> None:
        self.log = log
        self.hub = hub
        self.metrics = metrics
        self.functions = functions
        self.options = options
        self.followers: dict[uuid.UUID, FollowerStatus] = {}
        self.anonymous: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._schema = log.schema
        self._version = _FIRST_VERSION
        self._directory: Directory | None = None
        self._finished: deque[tuple[Job, Callable[[Job], None]]] = deque()
        self._scheduled = False
        self._fresh: list[tuple[Job, Callable[[Job], None]]] = []
        self._in_line = 0
        self._aside_until = 0.0

    # --- definitions ------------------------------------------------------------------------------

    def schema_version(self) -> int:
        """What stands in every answer."""
        schema = self.log.schema
        if schema is not self._schema:
            self._schema = schema
            self._version += 1
            self._directory = None
        return self._version

    @property
    def directory(self) -> Directory:
        """Users and privileges as they are now."""
        self.schema_version()
        if self._directory is None:
            with self.log.read_view() as view:
                spaces = view.engine.schema
                users, privileges = (
                    [unpack(row) for row in view.tuples(spaces.space(number))]
                    for number in (_USER_ID, _PRIV_ID)
                )
            self._directory = Directory(users, privileges, self.options.guest)
        return self._directory

    def forget_users(self) -> None:
        """Rows of `_user` or `_priv` have changed."""
        self._directory = None

    def access(self, user_id: int) -> Access:
        """What a user may do. Raises error 45 for one that was dropped."""
        return self.directory.access(user_id)

    def user(self, name: str) -> User:
        """A user by name. Raises error 45."""
        return self.directory.user(name)

    def replicaset(self) -> uuid.UUID:
        """The UUID of the replica set that this store belongs to."""
        with self.log.read_view() as view:
            row = view.get(_SCHEMA_ID, ["cluster"])
        if row is None:
            raise RequestError(ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
        return uuid.UUID(unpack(row)[1])

    # --- positions --------------------------------------------------------------------------------

    def ballot(self) -> Ballot:
        """What VOTE is answered."""
        read_only = self.options.read_only
        return Ballot(read_only, self.log.vclock, self.oldest(), read_only)

    def oldest(self) -> VClock:
        """The position behind which the log still holds every row."""
        return self.log.oldest_position

    def acknowledged(self, status: FollowerStatus, vclock: VClock, now: float) -> None:
        """A replica has written everything up to `vclock`: older logs need not be kept for it."""
        status.acknowledged = vclock
        behind = self.log.vclock.without_local().signature - vclock.signature
        self.metrics.follower_lag("tarantool", str(status.instance), max(behind, 0))
        if status.name and now - status.kept_at >= _RETAIN_SECONDS:
            self.keep(status, now)

    def keep(self, status: FollowerStatus, now: float) -> None:
        """Remember a replica's position, so that the logs behind it stay."""
        if status.name:
            status.kept_at = now
            position = status.acknowledged.with_lsn(0, self.log.vclock.lsn(0))
            self.log.retain(status.name, position)

    # --- changes ----------------------------------------------------------------------------------

    def submit(self, job: Job, done: Callable[[Job], None]) -> None:
        """Put a change in line; `done` is called in the loop's thread once it is durable.

        What was put in line in one turn of the loop goes together. One small change that is alone,
        with none under way, is made at once in this thread, as long as the disk is quick: handing
        it to another thread and back would take longer than the loop stands still.
        """
        self._fresh.append((job, done))
        if len(self._fresh) == 1:
            self._loop.call_soon(self._put_in_line)

    def _put_in_line(self) -> None:
        fresh, self._fresh = self._fresh, []
        if (
            len(fresh) == 1
            and fresh[0][0].size <= _QUICK_BYTES
            and not self._in_line
            and self._loop.time() >= self._aside_until
        ):
            self._make_at_once(*fresh[0])
            return
        self._in_line += len(fresh)
        for job, done in fresh:
            job.finished = self._finisher(done)
        try:
            self.log.submit_jobs([job for job, _ in fresh])
        except LogweirError as error:
            for job, _ in fresh:
                job.error = error
                job.finish()

    def _make_at_once(self, job: Job, done: Callable[[Job], None]) -> None:
        began = self._loop.time()
        try:
            self.log.run_job(job)
        except LogweirError as error:
            job.error = error
        now = self._loop.time()
        if now - began > _QUICK_SECONDS:
            self._aside_until = now + _ASIDE_SECONDS
        done(job)

    def _finisher(self, done: Callable[[Job], None]) -> Callable[[Job], None]:
        def finished(job: Job) -> None:
            self._finished.append((job, done))
            if not self._scheduled:
                self._scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    self._loop.call_soon_threadsafe(self._deliver)

        return finished

    def _deliver(self) -> None:
        self._scheduled = False
        while self._finished:
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
