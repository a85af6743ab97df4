"""`Log`: the embedded store. Changes go through groups into the log, the state follows, then the
caller is answered.

The order of one group (`_commit_once`, `finish_group`): apply to a layer of its own → encode blocks
→ write → sync → put the layer on the stack → answer, wake followers. LMDB takes what the stack says
behind all that (`store.state.layers`). Whatever stops a group before the sync leaves nothing behind
but bytes that recovery cuts off; what stops it after the sync leaves rows in the log that are
applied at the next opening.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from logweir.errors import (
    ErrorCode,
    LogweirError,
    PositionUnavailable,
    RequestError,
    UsedAfterFork,
    WriterPoisoned,
)
from logweir.limits import IPROTO_ANSWER_BYTES, SYNC_ASIDE_BYTES
from logweir.store.commit import append
from logweir.store.commit.failing import Fails
from logweir.store.commit.group import Group, Spoiled
from logweir.store.commit.queue import CommitQueue, Job, OnError, Refused, TakesJobs
from logweir.store.commit.syncer import Aside
from logweir.store.cursor import LogCursor
from logweir.store.engine import statements
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.store.engine.settling import Settlement
from logweir.store.engine.synchro import SynchroQueue
from logweir.store.recover import upkeep
from logweir.store.recover.checkpoint import CheckpointOptions, Checkpoints
from logweir.store.recover.opening import Opened
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.layers import Layers
from logweir.store.state.state import (
    Position,
    State,
    StateError,
    Txn,
    explained,
    typed,
)
from logweir.store.state.viewers import Viewers
from logweir.store.transaction import Transaction
from logweir.store.view import ReadView
from logweir.wal.endmark import EndMarks
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import FileSystem
from logweir.wal.follow import Follower
from logweir.wal.lease import Lease
from logweir.wal.mp import Value, unpack
from logweir.wal.place import Place
from logweir.wal.process import OfProcess, keep_for_ever
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter
from logweir.wal.xrow import RowType
from logweir.wal.xrow import Transaction as LoggedTransaction

__all__ = ["Durability", "Log"]

_LOGGER: Final = logging.getLogger("logweir")

T = TypeVar("T")

Durability = Literal["fsync", "write", "none"]

Key = Any
"""A key: one value, or a list or tuple of values for several parts."""


class Log(Fails, OfProcess, statements.Statements, append.Appends, upkeep.Upkeep, TakesJobs):
    """A durable, append-only change log with the state it makes. Made by `logweir.open`.

    Safe to use from several threads: changes that meet share one sync. One process per folder.
    Every method that changes something returns only when the change is durable as `durability`
    says, and raises `RequestError` (refused), `WriteFailed` (the disk refused: nothing happened),
    or `WriterPoisoned`, `StateFailed`, `LogStopped` (open the folder again; reads go on). In a
    child of `fork` everything raises `UsedAfterFork`, and `close` does nothing.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        durability: Durability,
        checkpoints: CheckpointOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path: Path = opened.path
        self.durability: Durability = durability
        self.report = opened.report
        """What recovery found when the folder was opened."""
        self.instance: uuid.UUID = opened.instance
        self.replica_id: int = opened.replica_id
        self._filesystem: FileSystem = opened.filesystem
        self._state: State = opened.state
        self.anchor = opened.anchor
        """Where in logs or snapshots the state stood before this process wrote its first row."""
        self._schema: Schema = opened.schema
        self._vclock: VClock = opened.vclock
        self._synchro: SynchroQueue = opened.waiting
        self._settlement = Settlement(
            opened.path, opened.filesystem, opened.settled_since, opened.waiting
        )
        self._plans = opened.plans
        self._executor = Executor()
        self._executor.select_bytes = IPROTO_ANSWER_BYTES
        self._writer: WalWriter = opened.writer
        self.end_marks: EndMarks = opened.writer.end_marks
        self._lock_stack = opened.lock
        self._clock = clock
        self._exclusive = threading.Lock()  # held by whoever commits
        self._owner: int | None = None  # thread inside `transaction()`
        self._view_guard = threading.Lock()
        self._growing = threading.RLock()
        self._grown = threading.Condition(self._growing)  # what followers read, or it was closed
        self._durable = opened.durable_end()
        self._queue = CommitQueue(self._commit, self._exclusive)
        self._aside = Aside(self._sync_aside)
        self._unsynced: WriterPoisoned | None = None
        self._failure: LogweirError | None = None
        self._logged = OnError(self._fail)  # around what comes behind a write
        self._unlogged = OnError(self._fail_unlogged)
        self._taking = OnError(self._fail_taking)
        self._closed = False
        self._on_commit: list[Callable[[VClock], None]] = []
        self._viewers = Viewers(self._state)
        with self._state.read() as txn:
            position = txn.position()
        self._layers = Layers(
            self._state, self._viewers, self._view_guard, position, self._apply_layers
        )
        self._checkpoints = Checkpoints(self, checkpoints)
        self._system_changes: Counter[int] = Counter()
        self.commits = 0
        """Groups committed since the folder was opened."""
        self.system_changes = 0
        """`changes_of` all system spaces together."""
        self._belong()

    def _what(self) -> str:
        return f"the log {self.path}"

    def _left_behind(self) -> None:
        keep_for_ever(self._lock_stack)  # to leave it would give the folder free
        self._closed, self._owner = True, None
        self._failure = UsedAfterFork(self._what())
        self._exclusive, self._view_guard = threading.Lock(), threading.Lock()
        self._growing = threading.RLock()
        self._grown = threading.Condition(self._growing)

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is under way, close the log in order and give the folder free. Twice:
        nothing.

        Raises `WalError` and its kinds for the first step that failed; all are tried, and the
        folder is free after it. `WriterPoisoned`: also where a sync in the background had failed.
        """
        if self._closed:
            return
        self._check_not_inside()
        self._queue.close()
        self._checkpoints.close()
        failed: list[Exception] = []
        if self._failure is None and self.durability == "none":
            self._try(self._checkpoints.make, failed)  # no log to find the changes in
        self._layers.close()
        with self._exclusive:
            self._closed = True
            self._try(self._writer.close, failed)
            self._aside.close()
            is_clean = not (failed or self._failure or self._writer.is_poisoned)
            self._try(lambda: self._state.close(clean=is_clean), failed)
            self._try(self._lock_stack.close, failed)
        self._viewers.close()
        self._wake_followers()
        if self._unsynced is not None:
            raise self._unsynced
        if failed:
            with typed(self.path):
                raise failed[0]

    @staticmethod
    def _try(step: Callable[[], object], failed: list[Exception]) -> None:
        """One step of an end that has to come: what it raises is noted."""
        try:
            step()
        except (LogweirError, OSError, StateError) as error:
            failed.append(error)

    def abandon(self) -> None:
        """Leave everything as a killed process does: for tests of what a crash leaves behind."""
        if self.is_foreign:
            return
        self._queue.close()
        self._checkpoints.close()
        self._layers.close(apply=False)
        with self._exclusive:
            self._closed = True
            self._writer.abandon()
            self._state.close(clean=False)
            self._aside.close()
            self._lock_stack.close()

    def _check_open(self) -> None:
        self._check_not_closed()
        if self._failure is not None:
            raise self._failure

    def _check_not_closed(self) -> None:
        if self._closed:
            self.check_process()
            raise RequestError(
                ErrorCode.SESSION_CLOSED,
                f"the log {self.path} is closed",
                hint="open it again with `logweir.open`",
            )

    def _check_not_inside(self) -> None:
        if self._owner == threading.get_ident():
            raise RequestError(
                ErrorCode.ACTIVE_TRANSACTION,
                "Operation is not permitted when there is an active transaction",
                hint="use the methods of the transaction, or end it first: they do not nest",
            )

    # --- positions --------------------------------------------------------------------------------

    @property
    def vclock(self) -> VClock:
        """The position: everything up to it was acknowledged, as durable as `durability` says, and
        is what readers see but for what waits for the CONFIRM of a synchronous replication."""
        self.check_process()
        return self._vclock

    @property
    def applied(self) -> VClock:
        """The position that reads see: before the first transaction that waits."""
        self.check_process()
        vclock, waiting = self._vclock, self._synchro  # they are set in the reverse order
        return waiting.applied if waiting else vclock

    @property
    def waiting(self) -> int:
        """How many transactions of synchronous replication wait for CONFIRM or ROLLBACK."""
        self.check_process()
        return len(self._synchro)

    def end_waiting(self, *, confirm: bool) -> int:
        """Decide about all transactions that wait, as `box.ctl.clear_synchro_queue` does: where
        the master that should is gone for ever. `confirm`: they hold; else they never were.

        Returns how many waited. A row of ours tells the others. Do not use it while their master
        may still decide: it could decide otherwise.
        """
        kind = RowType.CONFIRM if confirm else RowType.ROLLBACK
        count: int = self._run(lambda group: group.end_waiting(kind))
        return count

    def settled(self, position: VClock) -> Settled:
        """What of the log above a position waits for no CONFIRM, and what was undone. Takes as long
        as to read the log from there, once, unless `knows_settled`; raises what that raises."""
        self.check_process()
        return self._settlement.above(position)

    def knows_settled(self, position: VClock) -> bool:
        """Whether `settled` tells it at once."""
        self.check_process()
        return self._settlement.knows(position)

    @property
    def schema(self) -> Schema:
        """The definitions of spaces and indexes now."""
        self.check_process()
        return self._schema

    @property
    def durable_end(self) -> tuple[Path, int]:
        """How far followers may read: the newest log file, and how many of its bytes. They are
        synced with durability "fsync"; with "write" they are only written, and with "none" they are
        those that were logged before."""
        self.check_process()
        return self._durable

    def changes_of(self, space_id: int) -> int:
        """How often a system space was changed since the folder was opened, at most: who keeps
        something made from its rows reads them again when this number is another one."""
        self.check_process()
        return self._system_changes.get(space_id, 0)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this is the copy that a child of `fork` has."""
        return self._closed

    # --- changing ---------------------------------------------------------------------------------

    def execute(self, request: Request) -> bytes | None:
        """Make one change given in MsgPack bytes.

        Returns the new tuple; of a DELETE the old one; None where there is none, and for UPSERT.
        """
        found: bytes | None = self._run(
            lambda group: statements.result_of(request, group.execute(request)),
            size=request.size_bytes,
        )
        return found

    def submit(self, request: Request) -> Future[bytes | None]:
        """`execute` without waiting: the future is resolved, in another thread, once durable."""
        self._check_open()
        return self._queue.submit(
            lambda group: statements.result_of(request, group.execute(request)), request.size_bytes
        )

    def run_job(self, job: Job, before: Sequence[Job] = ()) -> None:
        """Make one prepared job and wait until it is durable. Raises its error.

        `before`: jobs that go with it, before it; what went wrong stands in them.
        """
        self._check_open()
        self._check_not_inside()
        # In most cases; and a context manager costs as much as a lock.
        if not self._viewers.has_mine:
            self._queue.run(job, before)
            return
        with self._viewers.waiting():
            self._queue.run(job, before)

    def transaction(self) -> Transaction:
        """Several changes, applied together or not at all: a context manager.

        Others wait while it is open, so keep it short. An exception inside rolls it back.
        """
        self._check_open()
        self._check_not_inside()
        return Transaction(self)

    def define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        """Ask `plan` for changes, make them as one transaction, return its second result."""

        def apply(group: Group) -> int:
            requests, result = plan(group.engine)
            for request in requests:
                group.execute(request)
            return result

        result: int = self._run(apply)
        return result

    def turn(self) -> Generator[None, None, None]:
        """Wait until nobody commits and keep it so, for this thread: from the first `next` on until
        `close`, which does no harm before it, and none when it is repeated."""
        self._check_open()
        self._check_not_inside()
        waiting: set[object] = set()
        thread = threading.get_ident()
        try:
            try:
                waiting = self._viewers.begin_waiting()
                with self._exclusive:
                    self._viewers.end_waiting(waiting)
                    self._owner = thread
                    self._check_open()
                    yield
            finally:
                self._end_turn(thread, waiting)
        finally:
            self._end_turn(thread, waiting)  # an interrupt may have stopped the first

    def _end_turn(self, thread: int, waiting: set[object]) -> None:
        if self._owner == thread:
            self._owner = None
        self._viewers.end_waiting(waiting)

    exclusive = contextlib.contextmanager(turn)
    """`turn` as a context manager."""

    @property
    def exclusive_owner(self) -> int | None:
        """The thread inside a transaction, None if there is none."""
        return self._owner

    def _run(self, apply: Callable[[Group], Any], size: int = 0) -> Any:
        self._check_open()
        self._check_not_inside()
        with self._viewers.waiting():
            return self._queue.run(Job(apply, size))

    # --- the group --------------------------------------------------------------------------------

    def begin_group(self) -> Group:
        """A group on a layer of its own, to be ended by its `txn.abort`. The caller holds
        `_exclusive`."""
        with self._viewers.waiting():
            self._layers.admit()
        with contextlib.ExitStack() as closing:
            closing.enter_context(self._viewers.looking())
            with self._view_guard:
                txn = self._layers.begin(closing, write=True)
            group = Group(
                txn,
                self._schema,
                self._plans,
                self._executor,
                vclock=self._vclock,
                replica_id=self.replica_id,
                now=self._clock(),
                waiting=self._synchro,
            )
            txn.keep(closing.pop_all())
        return group

    def _commit(self, jobs: list[Job]) -> None:
        """Apply, log and answer one group of jobs. What goes wrong is the jobs' error."""
        left = jobs
        while left:
            try:
                self._check_open()
                self._commit_once(left)
                return
            except Refused as refused:
                left = [job for job in left if job is not refused.job]
            except (LogweirError, StateError) as error:
                for job in left:
                    job.error = job.error or self._explained(error)
                return

    def _commit_once(self, jobs: Sequence[Job]) -> None:
        group: Group | None = None
        try:
            group = self.begin_group()
            for job in jobs:
                self._apply(group, job)
            self.finish_group(group)
        finally:
            if group is not None:
                group.txn.abort()

    def _apply(self, group: Group, job: Job) -> None:
        if group.batch is None or not job.sees_batch:
            group.run_deferred()  # this job must see what those before it did
        mark = group.mark()
        job.error = None
        try:
            job.result = job.apply(group)
        except Exception as error:
            job.error = self._explained(error)
            try:
                group.rollback(mark)
            except Spoiled:
                raise Refused(job) from error
        else:
            group.end_transaction()

    def finish_group(self, group: Group) -> None:
        """The one way to durability: write, sync and publish a group.

        Raises `WriteFailed` or `WriterPoisoned` with nothing applied.
        """
        self.check_process()
        blocks = group.blocks()
        if not group.touched:
            return
        if blocks:
            wanted = 2 * sum(map(len, blocks))  # the log, the state
            self._state.check_disk(wanted + self._layers.size_bytes)
        vclock, position = self._vclock, self._layers.position
        # What changes temporary spaces only is in no log.
        is_logged = bool(blocks) and self.durability != "none"
        # From the first byte to the last name one block: an interrupt between two would leave rows
        # in the log whose lsns are given again.
        with self._logged if is_logged else self._unlogged:
            if is_logged:
                self._writer.write(blocks, group.vclock)
            group.run_deferred()
            if blocks:
                if self.durability == "fsync":
                    self._writer.sync()
                vclock = group.vclock
                position = self._position(group, vclock, is_logged=is_logged)
            failpoint("store.after_sync_before_publish")
            layer = group.txn.taken()
            with self._view_guard:
                self._layers.push(layer, position)
                if group.changed_schema:
                    self._schema = group.schema
                self._synchro, self._vclock = group.waiting, vclock  # in this order: see `applied`
                self._settlement.tell(group.waiting)
        failpoint("store.after_publish")
        self._system_changes.update(group.changed_system)
        self.system_changes += len(group.changed_system)
        self.commits += 1
        if blocks:
            self._publish(sum(map(len, blocks)))

    def _position(self, group: Group, vclock: VClock, *, is_logged: bool) -> Position:
        """Behind a group that was written."""
        last = self._writer.last_block
        place = self.anchor if last is None else Place.written(last)
        if group.waiting:  # the state stands before them: what follows is looked at again
            behind = None if place is None else place.nowhere
            return Position(group.waiting.applied, behind, not is_logged)
        return Position(vclock, place, not is_logged)

    def _publish(self, logged_bytes: int) -> None:
        if self.durability == "write" and self._writer.unsynced_bytes >= SYNC_ASIDE_BYTES:
            self._aside.ask()
        self._durable = self._writer.end or self._durable
        self._wake_followers()
        for callback in tuple(self._on_commit):
            try:
                callback(self._vclock)
            except Exception:  # the change is made: no callback may say that it is not
                _LOGGER.exception("a callback of on_commit failed")
        self._checkpoints.after_commit(logged_bytes)

    def _wake_followers(self) -> None:
        with self._growing:
            self._grown.notify_all()

    def _apply_layers(self) -> None:
        """Have the state take what it lacks; return when it has, whoever did it."""
        with self._taking:
            self._layers.apply()

    def change_base(self, change: Callable[[Txn], T]) -> T:
        """Let `change` have a transaction on the state, which holds everything; nobody commits
        meanwhile. Returns its result. Raises what the disk raises."""
        with self.exclusive(), self._taking:
            return self._layers.change_base(change)

    def on_grow(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when changes wait for views to end, so that the state can grow; from any
        thread, and it must return at once. Returns what takes it back."""
        self.check_process()
        return self._viewers.on_grow(callback)

    def reserve_state(self, room_bytes: int) -> None:
        """Before a long view: let the state grow by at least `room_bytes`, or by as much as it
        holds, without waiting for views. It is address space, not memory or disk. Does nothing
        while another view is open."""
        self._check_open()
        with self._exclusive:
            if not self._closed:
                self._layers.reserve(room_bytes)

    def on_commit(self, callback: Callable[[VClock], None]) -> Callable[[], None]:
        """Call `callback` with the position after each commit, in the committing thread: it must
        be quick and not use the log; what it raises is logged. Returns what takes it back."""
        self.check_process()
        self._on_commit.append(callback)
        return lambda: self._on_commit.remove(callback)

    # --- reading ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read_view(self) -> Iterator[ReadView]:
        """A consistent view of everything as of one position, while writers go on.

        Keep it short: pages it can see are not used again, and the state cannot grow meanwhile.
        """
        self._check_not_closed()
        try:
            with self._viewers.looking(), contextlib.ExitStack() as closing:
                with self._view_guard:
                    self._check_not_closed()
                    txn = self._layers.begin(closing, write=False)
                    schema, vclock = self._schema, self.applied
                yield ReadView(Engine(txn, schema, self._plans), vclock, self.instance)
        except StateError as error:
            raise explained(error, self._state.directory) from error

    def get(self, space: int | str, key: Key, *, index: int | str = 0) -> tuple[Value, ...] | None:
        """The tuple with that full key of a unique index, None if there is none."""
        with self.read_view() as view:
            found = view.get(space, key, index=index)
        return None if found is None else tuple(unpack(found))

    def select(
        self,
        space: int | str,
        key: Key = None,
        *,
        iterator: str | None = None,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[tuple[Value, ...]]:
        """Tuples in the order of an index.

        `key`: None for all, one value, or a list with the first parts; `iterator`: EQ (default
        with a key), REQ, ALL (default without), LT, LE, GE, GT. Raises `RequestError`.
        """
        with self.read_view() as view:
            wanted = Select.of(
                view.engine.schema,
                space,
                key,
                iterator=iterator,
                index=index,
                limit=limit,
                offset=offset,
            )
            return [tuple(unpack(found)) for found in select(view.engine, wanted)]

    def count(self, space: int | str) -> int:
        """How many tuples a space holds."""
        with self.read_view() as view:
            return view.count(space)

    def spaces(self, *, system: bool = False) -> list[SpaceDef]:
        """The spaces, by id; `system`: those of Tarantool's own definitions too."""
        return [space for space in self.schema if system or not space.is_system]

    def cursor(self, after: Mapping[int, int] | None = None, *, settled: bool = False) -> LogCursor:
        """A reader behind a position that is asked for what is there, and asked again: `rows`
        for who waits in a way of their own. Raises `PositionUnavailable`."""
        start = self.oldest_position if after is None else upkeep.position_of(after)
        if not self._vclock.covers(start):
            raise PositionUnavailable(
                start, self.oldest_position, self._vclock, hint="that position is not reached yet"
            )
        return LogCursor(
            Follower(
                self.path,
                start,
                filesystem=self._filesystem,
                durable=lambda: self._durable,
                settled=self.settled if settled else None,
                lease=Lease(self.path),
            )
        )

    def rows(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        settled: bool = False,
    ) -> Iterator[LoggedTransaction]:
        """Transactions of the log behind a position, oldest first.

        `after`: a vclock, None for the oldest row still there; `follow`: wait for more at the end
        instead of stopping, until the log is closed or `stop` is set; `settled`: none from the
        first on that waits for the CONFIRM of a synchronous replication, and a NOP in the place of
        each row that was undone, else all as they are logged. Only rows that were
        acknowledged are given: with durability "write" a power cut may still take them back, and
        with "none" there are none in the log. Raises `PositionUnavailable` where the log no longer
        holds that position, and following it what stopped a log that has failed.
        """
        with self.cursor(after, settled=settled) as cursor:
            while not (follow and self.is_closed):
                self._check_not_closed()
                seen = self._vclock
                yield from cursor.ready()
                if not follow or (stop is not None and stop.is_set()):
                    return
                if self._failure is not None:
                    raise self._failure
                with self._growing:
                    while self._vclock == seen and not (self._closed or self._failure):
                        if stop is not None and stop.is_set():
                            return
                        self._grown.wait(0.2 if stop is not None else None)
                if self._closed:
                    self.check_process()
                    return

    @contextlib.contextmanager
    def rotated_view(self) -> Iterator[ReadView]:
        """A read view at whose position a new log file begins."""
        with contextlib.ExitStack() as stack:
            with self._exclusive:
                if not self._closed:
                    with self._logged:
                        self._writer.rotate()
                view = stack.enter_context(self.read_view())
            yield view

    @property
    def filesystem(self) -> FileSystem:
        """The disk it uses."""
        return self._filesystem

    def now(self) -> float:
        """Seconds since the epoch, by its clock."""
        return self._clock()

    @property
    def oldest_position(self) -> VClock:
        """The oldest position whose following rows are still in the log."""
        self.check_process()
        return self._checkpoints.oldest_row()

    # --- upkeep -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What a user could wonder about: positions, sizes, durability, who keeps old logs; also
        of a log that has failed."""
        with self.read_view() as view:
            counts = {space.name: view.count(space.id) for space in self.spaces()}
        return {
            "path": str(self.path),
            "instance": str(self.instance),
            "replica_id": self.replica_id,
            "vclock": dict(self._vclock),
            "signature": self._vclock.signature,
            "waiting": self.waiting,
            "durability": self.durability,
            "state": "failed" if self._failure is not None else "running",
            "error": str(self._failure) if self._failure is not None else None,
            "log_file": self._writer.path.name if self._writer.path else None,
            "log_bytes": self._writer.size,
            "syncs": self._writer.syncs,
            "commits": self.commits,
            "state_bytes": self._state.map_bytes,
            "spaces": counts,
            **self._checkpoints.status(),
        }
