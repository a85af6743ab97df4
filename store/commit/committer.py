# cython: annotation_typing=False
"""`Committer`: the one owner of the commit.

The order of groups: apply each to a layer of its own, and encode its blocks → write all that are
ready (`store.commit.ahead`) → sync → put the layers on the stack → answer, wake followers. LMDB
takes what the stack says behind all that (`store.state.layers`). Whatever stops groups before the
sync leaves nothing behind but bytes that recovery cuts off; what stops them after it leaves rows in
the log that are applied at the next opening.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `committer.pxd`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

from logweir.errors import ErrorCode, LogweirError, RequestError, UsedAfterFork
from logweir.limits import SYNC_ASIDE_BYTES
from logweir.recovery import RecoveryReport
from logweir.store.commit.ahead import Ahead, changes
from logweir.store.commit.failing import Fails
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import CommitQueue, Job, OnError, Refused
from logweir.store.commit.marks import Mark, Spoiled
from logweir.store.commit.syncer import BackgroundSync
from logweir.store.engine.engine import Plans
from logweir.store.engine.executing import Executor
from logweir.store.engine.reader import Reader
from logweir.store.engine.request import Request
from logweir.store.engine.settling import Settlement
from logweir.store.engine.synchro import SynchroQueue
from logweir.store.schema.definition import SYSTEM_ID_MAX
from logweir.store.schema.schema import Schema
from logweir.store.state.layers import Layers
from logweir.store.state.stackkernel import Layer, LayeredTxn, whole
from logweir.store.state.state import State, StateError
from logweir.store.state.statetxn import Position
from logweir.store.state.viewers import View, Viewers
from logweir.wal.block import Pieces
from logweir.wal.failpoint import ARMED, failpoint
from logweir.wal.filesystem import FileSystem
from logweir.wal.place import Place
from logweir.wal.process import OfProcess
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter, Written

_LOGGER: Final = logging.getLogger("logweir")

T = TypeVar("T")

Durability = Literal["fsync", "write", "none"]


@dataclass(slots=True)
class Opened:
    """A folder, locked, recovered and ready for changes."""

    path: Path
    filesystem: FileSystem
    lock: contextlib.ExitStack
    report: RecoveryReport
    instance: uuid.UUID
    replica_id: int
    state: State
    schema: Schema
    waiting: SynchroQueue
    settled_since: VClock
    plans: Plans
    vclock: VClock
    writer: WalWriter
    anchor: Place | None
    needs_snapshot: bool

    def durable_end(self) -> tuple[Path, int]:
        """The newest log file that followers may read, and how many of its bytes: all files that
        are there; one that is begun later is not durable at first."""
        if self.writer.path is not None:
            return self.writer.path, self.writer.size
        names = self.filesystem.list_directory(self.path)
        logs = [name for name in names if name.endswith(".xlog")]
        if not logs:
            return self.path / "0", 0  # a name before all others
        newest = self.filesystem.open_read(self.path / max(logs))
        try:
            return newest.path, newest.size()
        finally:
            newest.close()

    def release(self) -> None:
        """Give everything up as a killed process does."""
        self.writer.abandon()
        self.state.close(clean=False)
        self.lock.close()


class Committer(Fails):
    """Brings groups of changes into the log and before the readers of one `Log`.

    `lock`: held by whoever commits.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        durability: Durability,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(opened.path, opened.state, opened.writer)
        self.durability: Durability = durability
        self.anchor = opened.anchor
        """Where in logs or snapshots the state stood before this process wrote its first row."""
        self.schema: Schema = opened.schema
        self.vclock: VClock = opened.vclock
        self.waiting: SynchroQueue = opened.waiting
        self.settlement = Settlement(
            opened.path, opened.filesystem, opened.settled_since, opened.waiting
        )
        self.plans: Plans = opened.plans
        self.durable = opened.durable_end()
        self.owner: int | None = None
        """The thread inside of `turn`."""
        self.is_closed = False
        self.commits = 0
        self.changes: dict[int, int] = {}  # of each space
        self.system_count = 0
        self.on_commit: list[Callable[[VClock], None]] = []
        self.lock = threading.Lock()
        self.replica_id = opened.replica_id
        self._clock = clock
        self.after_commit: Callable[[int], object] = lambda logged_bytes: None
        """Called with the bytes that a commit logged."""
        self._executor = Executor()
        self._growing = threading.RLock()
        self._grown = threading.Condition(self._growing)  # what followers read, or it was closed
        self._wait_for_more = False  # whether anybody ever did
        self._view_guard = threading.Lock()
        self._background_sync = BackgroundSync(self._sync_in_background)
        self.ahead = Ahead(self._view_guard, self)
        self._logged = OnError(self._fail)  # around what comes behind a write
        self._unlogged = OnError(self._fail_unlogged)
        self.viewers = Viewers(self.state)
        with self.state.read() as txn:
            position = txn.position()
        self.layers = Layers(
            self.state, self.viewers, self._view_guard, position, OnError(self._fail_taking)
        )
        self.reader = Reader(self.state, self.layers, self._view_guard, self.plans, self._published)

    def left_behind(self) -> None:
        """In a child of `fork`."""
        self.is_closed, self.owner = True, None
        self.failure = UsedAfterFork(f"the log {self.path}")
        self.lock, self._view_guard = threading.Lock(), threading.Lock()
        self.ahead.left_behind(self._view_guard)
        self.viewers.left_behind()
        self._growing = threading.RLock()
        self._grown = threading.Condition(self._growing)

    def check_open(self) -> None:
        """Raise what says that nothing can be changed any more."""
        if self.is_closed:
            self.check_readable()
        if self.failure is not None:
            raise self.failure

    def check_readable(self) -> None:
        """Raise SESSION_CLOSED if it is closed; a log that failed can be read."""
        if self.is_closed:
            if isinstance(self.failure, UsedAfterFork):
                raise self.failure
            raise RequestError(
                ErrorCode.SESSION_CLOSED,
                f"the log {self.path} is closed",
                hint="open it again with `logweir.open`",
            )

    def check_not_inside(self) -> None:
        """Raise ACTIVE_TRANSACTION in a thread that is inside of `turn`."""
        if self.owner == threading.get_ident():
            raise RequestError(
                ErrorCode.ACTIVE_TRANSACTION,
                "Operation is not permitted when there is an active transaction",
                hint="use the methods of the transaction, or end it first: they do not nest",
            )

    def close_writer(self) -> None:
        """Close the log in order, and end the thread that syncs. The caller holds `lock`."""
        try:
            self.writer.close()
        finally:
            self.ahead.close()
            self._background_sync.close()

    def abandon_writer(self) -> None:
        """Leave the log as a killed process does. The caller holds `lock`."""
        self.ahead.close()
        self.writer.abandon()
        self._background_sync.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Around what nobody may change anything or write beside."""
        with self.lock:
            self.ahead.drain()
            yield

    def turn(self, thread: int, *, alone: bool) -> Generator[None, None, None]:
        """Wait until nobody changes anything and keep it so, for that thread: from the first `next`
        on until `close`, which does no harm before it, and none when it is repeated. `alone`:
        nor does anybody write what was changed before."""
        waiting: set[View] = set()
        try:
            try:
                waiting = self.viewers.begin_waiting()
                with self.lock:
                    self.viewers.end_waiting(waiting)
                    self.owner = thread
                    self.check_open()
                    if alone or self.ahead.is_in_the_way:
                        self.ahead.drain()
                    yield
            finally:
                self._end_turn(thread, waiting)
        finally:
            self._end_turn(thread, waiting)  # an interrupt may have stopped the first

    def _end_turn(self, thread: int, waiting: set[View]) -> None:
        if self.owner == thread:
            self.owner = None
        self.viewers.end_waiting(waiting)

    def is_free(self) -> bool:
        """Whether a commit of this thread waits for no other one, and closes no file. The caller
        holds `lock`, and as long as that is so it stays so."""
        return (
            self.ahead.is_at_rest
            and not self.layers.is_full
            and not self.viewers.is_growing
            and not (self.writer.is_full and self.durability != "none")
        )

    def begin(self) -> Group:
        """A group on a layer of its own, over those that have ended, to be ended by its
        `txn.abort`. The caller holds `lock`."""
        if not self.layers.admits:
            with self.viewers.waiting():
                self.layers.admit()
        return self._begun(self.plans, self._executor, True)

    def trial(self, executor: Executor, plans: Plans) -> Group:
        """See `Inner.trial`. The caller does not hold `lock`."""
        self.check_open()
        return self._begun(plans, executor, False)

    def _begun(self, plans: Plans, executor: Executor, is_ahead: bool) -> Group:
        """A group on what is published; `is_ahead`: over the groups that have ended, too."""
        look = self.viewers.look()
        txn: LayeredTxn | None = None
        try:
            with self._view_guard:
                self.check_open()
                ahead = self.ahead.groups if is_ahead else ()
                early = self.ahead.layers if ahead else ()
                txn = self.layers.begin(look, True, early)
                tip: Committer | Group = ahead[-1] if ahead else self
                schema, vclock, entries = tip.schema, tip.vclock, tip.waiting
            group = Group(
                txn,
                schema,
                plans,
                executor,
                vclock=vclock,
                replica_id=self.replica_id,
                now=self._clock(),
                waiting=entries,
            )
            group.below = ahead[-1] if ahead else None
            return group
        except BaseException:
            if txn is not None:
                txn.abort()
            look.end()
            raise

    def commit(self, jobs: list[Job]) -> None:
        """Apply, log and answer one group of jobs. What goes wrong is the jobs' error."""
        left = jobs
        while left:
            try:
                self.check_open()
                self._commit_once(left)
                return
            except Refused as refused:
                left = [job for job in left if job is not refused.job]
            except (LogweirError, StateError) as error:
                for job in left:
                    job.error = job.error or self.explained(error)
                return

    def _commit_once(self, jobs: Sequence[Job]) -> None:
        group: Group | None = None
        try:
            if self.ahead.groups and self.ahead.is_in_the_way:
                self.ahead.drain()
            group = self.begin()
            for job in jobs:
                # Before the first there is nothing to go back to: the group begins again.
                self._apply(group, job, None if job is jobs[0] else group.mark())
            if group.undo.is_early:
                self._hold(group, jobs)
            for job in jobs:
                if job.made is not None and job.error is None:
                    job.made(job)
            self.ahead.commit(group)
        finally:
            if group is not None:
                group.txn.abort()
            del group  # the frames of a job's error lead here

    def _apply(self, group: Group, job: Job, mark: Mark | None) -> None:
        job.error = None
        try:
            job.result = job.apply(group)
        except Exception as error:
            job.error = self.explained(error)
            try:
                if mark is None:
                    raise Spoiled
                group.rollback(mark)
            except Spoiled:
                self._hold(group, (job,))
                raise Refused(job) from error
        else:
            group.end_transaction()

    def _hold(self, group: Group, jobs: Sequence[Job]) -> None:
        """Let nobody be told of what is not durable yet, not even in a refusal."""
        try:
            self.ahead.hold(group)
        except BaseException:
            for job in jobs:
                job.error = None  # it was for what is not so
            raise

    def publish(self, groups: tuple[Group, ...]) -> None:
        """See `Fails.publish`."""
        self.check_open()
        last = groups[-1]
        blocks: list[bytes | bytearray | Pieces] = []
        layers: list[Layer] = []
        logged_bytes = 0
        changed_schema = False
        for group in groups:
            blocks += group.made
            logged_bytes += group.made_bytes
            layers.insert(0, changes(group))
            changed_schema = changed_schema or group.changed_schema
        if blocks:
            # The log, the state.
            self.state.check_disk(2 * logged_bytes + self.layers.size_bytes)
        vclock, position, made = self.vclock, self.layers.position, last.vclock
        durable = self.durable
        # What changes temporary spaces only is in no log.
        is_logged = bool(blocks) and self.durability != "none"
        # From the first byte to the last name one block: an interrupt between two would leave rows
        # in the log whose lsns are given again.
        with self._logged if is_logged else self._unlogged:
            if is_logged:
                self.writer.write(blocks, made)
            for group in groups:
                group.written()  # before its layer is measured
            if blocks:
                if self.durability == "fsync":
                    self.writer.sync()
                vclock, self.refused = made, None
                durable = self.writer.end or durable
                # A group is not kept for it.
                block = self.writer.last_block
                position = partial(self._position, vclock, last.waiting, block, not is_logged)
            if ARMED:
                failpoint("store.after_sync_before_publish")
            layer = whole(layers)
            changed = layer.spaces
            with self._view_guard:
                self.state.shown = None
                ours = 0
                for group in groups:  # which look at it no more
                    ours += group.txn.look is not None
                self.layers.push(layer, position, not self.viewers.has_more(ours))
                # Here, behind both: who reads or begins on top of it has to see that what it knew
                # is no longer so, and finds then what is.
                for space_id in changed:
                    self.changes[space_id] = self.changes.get(space_id, 0) + 1
                    self.system_count += space_id <= SYSTEM_ID_MAX
                if changed_schema:
                    self.schema = last.schema
                if last.waiting is not self.waiting:
                    self.settlement.tell(last.waiting)
                self.durable = durable  # first: who sees a position reads the log to it
                self.waiting, self.vclock = last.waiting, vclock  # in this order: see `applied`
                self.ahead.published(groups)
        if ARMED:
            failpoint("store.after_publish")
        self.commits += len(groups)
        if blocks:
            self._tell(logged_bytes)

    def _position(
        self, vclock: VClock, waiting: SynchroQueue, last: Written | None, is_unlogged: bool
    ) -> Position:
        """Behind a group that was written, `last` its last block."""
        place = self.anchor if last is None else Place.written(last)
        if waiting:  # the state stands before them: what follows is looked at again
            behind = None if place is None else place.nowhere
            return Position(waiting.applied, behind, is_unlogged)
        return Position(vclock, place, is_unlogged)

    def _tell(self, logged_bytes: int) -> None:
        """Whoever wants to know that rows are there."""
        if self.durability == "write" and self.writer.unsynced_bytes >= SYNC_ASIDE_BYTES:
            self._background_sync.ask()
        if self._wait_for_more:
            self.wake_followers()
        for callback in tuple(self.on_commit):
            try:
                callback(self.vclock)
            except Exception:  # the change is made: no callback may say that it is not
                _LOGGER.exception("a callback of on_commit failed")
        self.after_commit(logged_bytes)

    @property
    def applied(self) -> VClock:
        """The position that reads see: before the first transaction that waits."""
        vclock, waiting = self.vclock, self.waiting  # they are set in the reverse order
        return waiting.applied if waiting else vclock

    @contextlib.contextmanager
    def view(self) -> Iterator[tuple[LayeredTxn, Schema, VClock]]:
        """What readers see now, of one moment."""
        self.check_readable()
        look = self.viewers.look()
        txn: LayeredTxn | None = None
        try:
            with self._view_guard:
                self.check_readable()
                txn = self.layers.begin(look, False)
                schema, vclock = self.schema, self.applied
            yield txn, schema, vclock
        finally:
            try:
                if txn is not None:
                    txn.abort()
            finally:
                look.end()

    def _published(self) -> Schema:
        """The definitions that readers see. Raises if there are no readers any more."""
        self.check_readable()
        return self.schema

    def wake_followers(self) -> None:
        """There is something new, or nothing will come any more."""
        if self._wait_for_more:
            with self._growing:
                self._grown.notify_all()

    def wait_for_more(self, seen: VClock, stop: threading.Event | None) -> None:
        """Wait until the position is not `seen` any more, the log has failed or was closed, or
        `stop` is set."""
        with self._growing:
            self._wait_for_more = True  # and stays so: it is noted before the position is looked at
            while self.vclock == seen and not (self.is_closed or self.failure):
                if stop is not None and stop.is_set():
                    return
                self._grown.wait(0.2 if stop is not None else None)

    def rotate(self) -> None:
        """Begin a new log file. The caller holds `lock`."""
        with self._logged:
            self.writer.rotate()


class TakesJobs(OfProcess):
    """Changes that are waited for, or not."""

    committer: Committer
    queue: CommitQueue

    def submit(self, request: Request) -> Future[bytes | None]:
        """`Log.execute` without waiting: the future is resolved, in another thread, once it is
        durable."""
        self.committer.check_open()
        return self.queue.submit(lambda group: group.answer(request), request.size_bytes)

    def run_job(self, job: Job, before: Sequence[Job] = ()) -> None:
        """Make one prepared job and wait until it is durable. Raises its error.

        `before`: jobs that go with it, before it; what went wrong stands in them.
        """
        committer = self.committer
        committer.check_open()
        if committer.owner is not None:  # somebody's
            committer.check_not_inside()
        # In most cases; and a context manager costs as much as a lock.
        if not committer.viewers.has_mine:
            self.queue.run(job, before)
            return
        with committer.viewers.waiting():
            self.queue.run(job, before)

    def run_if_free(self, jobs: list[Job]) -> bool:
        """Make prepared jobs, in one group, unless this thread would wait for another one: then
        nothing is done, and False. What went wrong stands in them."""
        self.committer.check_open()
        return self.queue.run_if_free(jobs, self.committer.is_free)

    def submit_jobs(self, jobs: Sequence[Job]) -> None:
        """Put prepared jobs in line; each one's `finished` is called once it is durable."""
        self.committer.check_open()
        self.queue.submit_job(*jobs)

    def run(self, apply: Callable[[Group], T], size: int = 0) -> T:
        """Make a change of `size` bytes, wait until it is durable, return what `apply` does."""
        job = Job(apply, size)
        try:
            self.run_job(job)
        except BaseException:
            job.error = None  # whose frames hold the job
            raise
        result: T = job.result
        return result
