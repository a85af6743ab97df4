"""`Log`: the embedded store, and what a user of it touches first.

What it consists of: `store.commit.committer` is the one way to durability, `store.reading` what a
log shows, `store.past` what it was, `store.engine.statements` and `store.commit.append` the changes
in Python values, `store.recover.upkeep` snapshots and old files.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from logweir.errors import LogweirError
from logweir.store.commit.append import Appends
from logweir.store.commit.committer import Committer, Durability, Opened, TakesJobs
from logweir.store.commit.group import Group
from logweir.store.commit.marks import Outcome
from logweir.store.commit.queue import CommitQueue
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request
from logweir.store.expiring import Expires, Sweeper
from logweir.store.expiry import EXPIRY_SPACE
from logweir.store.listening import Listens
from logweir.store.past import Past
from logweir.store.reading import Reads
from logweir.store.recover.checkpoint import CheckpointOptions, Checkpoints
from logweir.store.recover.upkeep import Upkeep
from logweir.store.state.state import StateError, Txn, typed
from logweir.store.transaction import Transaction
from logweir.store.typed import TypedSpace
from logweir.wal.endmark import EndMarks
from logweir.wal.filesystem import FileSystem
from logweir.wal.place import Place
from logweir.wal.process import OfProcess, keep_for_ever
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["Durability", "Log"]

T = TypeVar("T")


class Log(OfProcess, TakesJobs, Reads, Past, Listens, Expires, Appends, Upkeep):
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
        self.end_marks: EndMarks = opened.writer.end_marks
        self._filesystem: FileSystem = opened.filesystem
        self._clock = clock
        self._lock_stack = opened.lock
        self._committer = Committer(
            opened, durability=durability, clock=clock, after_commit=self._after_commit
        )
        self._queue = CommitQueue(self._committer.commit, self._committer.lock)
        self._checkpoints = Checkpoints(self, checkpoints)
        self._sweeper = Sweeper(self.delete_expired)
        self._belong()
        if self.schema.get(EXPIRY_SPACE) is not None:
            self._sweeper.start()

    def _after_commit(self, logged_bytes: int) -> None:
        self._checkpoints.after_commit(logged_bytes)

    def _what(self) -> str:
        return f"the log {self.path}"

    def _left_behind(self) -> None:
        keep_for_ever(self._lock_stack)  # to leave it would give the folder free

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
        committer = self._committer
        if committer.is_closed:
            return
        self._check_not_inside()
        self._sweeper.close()
        self._queue.close()
        self._checkpoints.close()
        failed: list[Exception] = []
        if committer.failure is None and self.durability == "none":
            _try(self._checkpoints.make, failed)  # no log to find the changes in
        committer.layers.close()
        with committer.alone():
            committer.is_closed = True
            _try(committer.close_writer, failed)
            is_clean = not (failed or committer.failure or committer.writer.is_poisoned)
            _try(lambda: committer.state.close(clean=is_clean), failed)
            _try(self._lock_stack.close, failed)
        committer.viewers.close()
        committer.wake_followers()
        if committer.unsynced is not None:
            raise committer.unsynced
        if failed:
            with typed(self.path):
                raise failed[0]

    def abandon(self) -> None:
        """Leave everything as a killed process does: for tests of what a crash leaves behind."""
        if self.is_foreign:
            return
        committer = self._committer
        self._sweeper.close()
        self._queue.close()
        self._checkpoints.close()
        committer.layers.close(apply=False)
        with committer.alone():
            committer.is_closed = True
            committer.abandon_writer()
            committer.state.close(clean=False)
            self._lock_stack.close()

    def _check_open(self) -> None:
        self._committer.check_open()

    def _check_not_inside(self) -> None:
        self._committer.check_not_inside()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this is the copy that a child of `fork` has."""
        return self._committer.is_closed

    @property
    def failure(self) -> LogweirError | None:
        """What stopped writing, until it is opened again; None while changes are taken."""
        return self._committer.failure

    @property
    def anchor(self) -> Place | None:
        """Where in logs or snapshots the state stood before this process wrote its first row."""
        self.check_process()
        return self._committer.anchor

    @anchor.setter
    def anchor(self, place: Place) -> None:
        self._committer.anchor = place

    @property
    def commits(self) -> int:
        """Groups committed since the folder was opened."""
        self.check_process()
        return self._committer.commits

    @property
    def system_changes(self) -> int:
        """`changes_of` all system spaces together."""
        if self.is_foreign:
            self.check_process()
        return self._committer.system_count

    def transaction(self) -> Transaction:
        """Several changes, applied together or not at all: a context manager.

        Others wait while it is open, so keep it short. An exception inside rolls it back.
        """
        self._check_open()
        self._check_not_inside()
        return Transaction(self)

    def space(self, space: int | str) -> TypedSpace:
        """A space whose tuples are read as objects of a dataclass. Raises `RequestError`."""
        return TypedSpace(self, space)

    def define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        """Ask `plan` for changes, make them as one transaction, return its second result."""

        def apply(group: Group) -> int:
            requests, result = plan(group.engine)
            for request in requests:
                group.execute(request)
            return result

        result: int = self._run(apply)
        return result

    def turn(self, thread: int | None = None, *, alone: bool = True) -> Generator[None, None, None]:
        """Wait until nobody changes anything and keep it so, for a thread, this one where none is
        given: from the first `next` on until `close`, which does no harm before it, and none when
        it is repeated. `alone`: all that was changed before is durable, too."""
        self._check_open()
        self._check_not_inside()
        return self._committer.turn(thread or threading.get_ident(), alone=alone)

    exclusive = contextlib.contextmanager(turn)
    """`turn` as a context manager."""

    def begin_group(self) -> Group:
        """A group on a layer of its own, to be ended by its `txn.abort`; inside of `turn`."""
        self._check_open()
        return self._committer.begin()

    @property
    def has_to_wait(self) -> bool:
        """Whether `begin_group` would wait, or the turn is to be had anew before it."""
        committer = self._committer
        committer.check_process()
        return (
            committer.ahead.is_in_the_way
            or committer.layers.is_full
            or committer.viewers.is_growing
        )

    def end_group(self, group: Group, finished: Callable[[Outcome], None] | None = None) -> bool:
        """Let the next group be made on top of this one, inside of `turn`; False where it changed
        nothing. `finished`: see `store.commit.ahead.Ahead.end`."""
        self.check_process()
        return self._committer.ahead.end(group, finished)

    def hold_group(self, group: Group) -> None:
        """Wait until what a group has seen is durable. Raises why it was dropped."""
        self.check_process()
        self._committer.ahead.hold(group)

    def commit_group(self, group: Group, leave: Callable[[], object]) -> None:
        """Have `leave` end a group, and the turn, then wait until it is written, synced and
        published. Raises `WriteFailed` or `WriterPoisoned` with nothing applied."""
        self.check_process()
        self._committer.ahead.commit(group, leave)

    def end_waiting(self, *, confirm: bool) -> int:
        """Decide about all transactions that wait, as `box.ctl.clear_synchro_queue` does: where
        the master that should is gone for ever. `confirm`: they hold; else they never were.

        Returns how many waited. A row of ours tells the others. Do not use it while their master
        may still decide: it could decide otherwise.
        """
        kind = RowType.CONFIRM if confirm else RowType.ROLLBACK
        count: int = self._run(lambda group: group.end_waiting(kind))
        return count

    def change_base(self, change: Callable[[Txn], T]) -> T:
        """Let `change` have a transaction on the state, which holds everything; nobody commits
        meanwhile. Returns its result. Raises what the disk raises."""
        with self.exclusive():
            return self._committer.layers.change_base(change)

    def on_grow(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when changes wait for views to end, so that the state can grow; from any
        thread, and it must return at once. Returns what takes it back."""
        self.check_process()
        return self._committer.viewers.on_grow(callback)

    def reserve_state(self, room_bytes: int) -> None:
        """Before a long view: let the state grow by at least `room_bytes`, or by as much as it
        holds, without waiting for views. It is address space, not memory or disk. Does nothing
        while another view is open."""
        self._check_open()
        with self._committer.lock:
            if not self.is_closed:
                self._committer.layers.reserve(room_bytes)

    @property
    def filesystem(self) -> FileSystem:
        """The disk it uses."""
        return self._filesystem

    def now(self) -> float:
        """Seconds since the epoch, by its clock."""
        return self._clock()

    def on_commit(self, callback: Callable[[VClock], None]) -> Callable[[], None]:
        """Call `callback` with the position after each commit, in the committing thread: it must
        be quick and not use the log; what it raises is logged. Returns what takes it back."""
        self.check_process()
        self._committer.on_commit.append(callback)
        return lambda: self._committer.on_commit.remove(callback)

    def status(self) -> dict[str, Any]:
        """What a user could wonder about: positions, sizes, durability, who keeps old logs; also
        of a log that has failed."""
        committer, writer = self._committer, self._committer.writer
        with self.read_view() as view:
            counts = {space.name: view.count(space.id) for space in self.spaces()}
        return {
            "path": str(self.path),
            "instance": str(self.instance),
            "replica_id": self.replica_id,
            "vclock": dict(committer.vclock),
            "signature": committer.vclock.signature,
            "waiting": self.waiting,
            "durability": self.durability,
            "state": "failed" if committer.failure is not None else "running",
            "error": str(committer.failure) if committer.failure is not None else None,
            "log_file": writer.path.name if writer.path else None,
            "log_bytes": writer.size,
            "syncs": writer.syncs,
            "commits": committer.commits,
            "layers_bytes": committer.layers.size_bytes,
            "state_bytes": committer.state.map_bytes,
            "spaces": counts,
            **self._checkpoints.status(),
        }


def _try(step: Callable[[], object], failed: list[Exception]) -> None:
    """One step of an end that has to come: what it raises is noted."""
    try:
        step()
    except (LogweirError, OSError, StateError) as error:
        failed.append(error)
