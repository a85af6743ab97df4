"""What logweir's own server and jobs use of a log: groups of changes, views, the folder's upkeep.

`Log` shows what programs need; the rest is here, and may change with every release.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from logweir.errors import LogweirError, PositionUnavailable, WriteFailed
from logweir.store.choosing import Chooser
from logweir.store.commit.append import append_job
from logweir.store.commit.committer import Committer, Durability, Opened, TakesJobs
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import CommitQueue
from logweir.store.cursor import LogCursor
from logweir.store.ending import Ending
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import Executor
from logweir.store.expiring import Sweeper
from logweir.store.recover.checkpoint import CheckpointOptions, Checkpoints
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.schema import Schema
from logweir.store.state.diskroom import DiskRoom
from logweir.store.state.state import StateError, explained, typed
from logweir.store.state.statetxn import Txn
from logweir.store.view import ReadView
from logweir.wal.endmark import EndMarks
from logweir.wal.filesystem import FileSystem
from logweir.wal.follow import Follower
from logweir.wal.lease import Lease
from logweir.wal.mp import Value
from logweir.wal.place import Place
from logweir.wal.process import OfProcess, keep_for_ever
from logweir.wal.reader import Block
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock

T = TypeVar("T")


class _Groups(OfProcess):
    """Changes that are made step by step, in the turn of who makes them."""

    committer: Committer

    def turn(self, thread: int | None = None, *, alone: bool = True) -> Generator[None, None, None]:
        """Wait until nobody changes anything and keep it so, for a thread, this one where none is
        given: from the first `next` on until `close`, which does no harm before it, and none when
        it is repeated. `alone`: all that was changed before is durable, too."""
        self.committer.check_open()
        self.committer.check_not_inside()
        return self.committer.turn(thread or threading.get_ident(), alone=alone)

    exclusive = contextlib.contextmanager(turn)
    """`turn` as a context manager."""

    def begin_group(self) -> Group:
        """A group on a layer of its own, to be ended by its `txn.abort`; inside of `turn`."""
        self.committer.check_open()
        return self.committer.begin()

    @property
    def has_to_wait(self) -> bool:
        """Whether `begin_group` would wait, or the turn is to be had anew before it."""
        self.check_process()
        committer = self.committer
        return (
            committer.ahead.is_in_the_way
            or committer.layers.is_full
            or committer.viewers.is_growing
        )

    def end_group(self, group: Group, finished: Callable[[Group], None] | None = None) -> bool:
        """Let the next group be made on top of this one, inside of `turn`; False if it changed
        nothing. `finished`: see `store.commit.ahead.Ahead.end`."""
        self.check_process()
        return self.committer.ahead.end(group, finished)

    def hold_group(self, group: Group) -> None:
        """Wait until what a group has seen is durable. Raises why it was dropped."""
        self.check_process()
        self.committer.ahead.hold(group)

    def commit_group(self, group: Group, leave: Callable[[], object]) -> None:
        """Have `leave` end a group, and the turn, then wait until it is written, synced and
        published. Raises `WriteFailed` or `WriterPoisoned` with nothing applied."""
        self.check_process()
        self.committer.ahead.commit(group, leave)

    def change_base(self, change: Callable[[Txn], T]) -> T:
        """Let `change` have a transaction on the state, which holds everything; nobody commits
        meanwhile. Returns its result. Raises what the disk raises."""
        with self.exclusive():
            return self.committer.layers.change_base(change)

    def trial(self, executor: Executor, plans: Plans) -> Group:
        """A group on a view of now, whose changes nobody else sees and nobody commits: for who
        makes them again, in a job, once it is known that they are wanted. To be ended by its
        `txn.abort`; it keeps what `read_view` keeps. `executor`, `plans`: of the caller's thread.

        Raises what a change raises where there can be none.
        """
        self.check_process()
        return self.committer.trial(executor, plans)


class _Views(OfProcess):
    """What is read of the log and its state."""

    path: Path
    instance: uuid.UUID
    filesystem: FileSystem
    committer: Committer
    checkpoints: Checkpoints
    now: Callable[[], float]

    @property
    def anchor(self) -> Place | None:
        """Where in logs or snapshots the state stood before this process wrote its first row."""
        self.check_process()
        return self.committer.anchor

    @anchor.setter
    def anchor(self, place: Place) -> None:
        self.committer.anchor = place

    @property
    def commits(self) -> int:
        """Groups committed since the folder was opened."""
        self.check_process()
        return self.committer.commits

    @property
    def system_changes(self) -> int:
        """`changes_of` all system spaces together."""
        if self.is_foreign:
            self.check_process()
        return self.committer.system_count

    def settled(self, position: VClock) -> Settled:
        """What of the log above a position waits for no CONFIRM, and what was undone. Takes as long
        as to read the log from there, once, unless `knows_settled`; raises what that raises."""
        self.check_process()
        return self.committer.settlement.above(position)

    def knows_settled(self, position: VClock) -> bool:
        """Whether `settled` tells it at once."""
        self.check_process()
        return self.committer.settlement.knows(position)

    @property
    def durable_end(self) -> tuple[Path, int]:
        """How far followers may read: the newest log file, and how many of its bytes. They are
        synced with durability "fsync"; with "write" they are only written, and with "none" they are
        those that were logged before."""
        self.check_process()
        return self.committer.durable

    def changes_of(self, space_id: int) -> int:
        """In how many commits a space was changed since the folder was opened, at most: who keeps
        something made from its rows reads them again when this number is another one."""
        if self.is_foreign:
            self.check_process()
        return self.committer.changes.get(space_id, 0)

    @contextlib.contextmanager
    def read_view(self) -> Iterator[ReadView]:
        """See `Log.read_view`."""
        committer = self.committer
        try:
            with committer.view() as (txn, schema, vclock):
                engine = Engine(txn, schema, committer.plans)
                try:
                    yield ReadView(engine, vclock, self.now(), instance=self.instance)
                finally:
                    engine.end()
        except StateError as error:
            raise explained(error, committer.state.directory) from error

    def select_batch(self, executor: Executor, asked: Asked) -> tuple[Answers, Schema]:
        """Many statements that change nothing, and the definitions then: see
        `ReadView.select_batch`."""
        found = self.committer.reader.select_batch(executor, asked)
        if found is not None:
            return found
        with self.read_view() as view:
            return view.select_batch(executor, asked)

    def cursor(self, after: Mapping[int, int] | None = None, *, settled: bool = False) -> LogCursor:
        """A reader behind a position that is asked for what is there, and asked again: `Log.rows`
        for who waits in a way of their own. Raises `PositionUnavailable`."""
        self.check_process()
        start = self.checkpoints.oldest_row() if after is None else position_of(after)
        vclock = self.committer.vclock
        if not vclock.covers(start):
            oldest, hint = self.checkpoints.oldest_row(), "that position is not reached yet"
            raise PositionUnavailable(start, oldest, vclock, hint=hint)
        return LogCursor(
            Follower(
                self.path,
                start,
                filesystem=self.filesystem,
                durable=lambda: self.committer.durable,
                settled=self.settled if settled else None,
                lease=Lease(self.path),
            )
        )

    def blocks(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        settled: bool = False,
    ) -> Generator[Block, None, None]:
        """`Log.rows`, as whole blocks."""
        committer = self.committer
        with self.cursor(after, settled=settled) as cursor:
            while not (follow and committer.is_closed):
                committer.check_readable()
                seen = committer.vclock
                yield from cursor.blocks()
                if not follow or (stop is not None and stop.is_set()):
                    return
                if committer.failure is not None:
                    raise committer.failure
                committer.wait_for_more(seen, stop)
                if committer.is_closed:
                    self.check_process()
                    return

    def chooser(self, spaces: int | str | Sequence[int | str], key: Value) -> Chooser:
        """What takes the rows of this log apart. Raises what that raises."""
        self.check_process()
        names = [spaces] if isinstance(spaces, int | str) else spaces
        return Chooser(names, key, self.committer.schema, lambda reached: self.committer.schema)

    @contextlib.contextmanager
    def rotated_view(self) -> Iterator[ReadView]:
        """A read view at whose position a new log file begins."""
        with contextlib.ExitStack() as stack:
            with self.committer.alone():
                if not self.committer.is_closed:
                    self.committer.rotate()
                view = stack.enter_context(self.read_view())
            yield view

    def progress(self) -> dict[str, Any]:
        """`Log.status` without spaces, which take longer the more changes wait for the state."""
        self.check_process()
        committer, writer = self.committer, self.committer.writer
        return {
            "path": str(self.path),
            "instance": str(self.instance),
            "replica_id": committer.replica_id,
            "vclock": dict(committer.vclock),
            "signature": committer.vclock.signature,
            "waiting": len(committer.waiting),
            "durability": committer.durability,
            "state": "failed" if committer.failure is not None else "running",
            "error": str(committer.failure) if committer.failure is not None else None,
            "log_file": writer.path.name if writer.path else None,
            "log_bytes": writer.size,
            "syncs": writer.syncs,
            "commits": committer.commits,
            "layers_bytes": committer.layers.size_bytes,
            "state_bytes": committer.state.map_bytes,
            **self.checkpoints.status(),
        }

    def holdings(self) -> list[dict[str, Any]]:
        """The spaces, by id, as `Log.status` tells them: `id`, `name`, `engine`, `tuples`, `bytes`
        (of the state's pages that are theirs: changes that wait for it come later), `indexes`."""
        with self.read_view() as view:
            return [
                {
                    "id": space.id,
                    "name": space.name,
                    "engine": space.engine,
                    "tuples": view.count(space.id),
                    "bytes": sum(view.used_bytes(space.id, one.id) for one in space.indexes),
                    "indexes": [one.name for one in space.indexes],
                }
                for space in view.schema
                if not space.is_system
            ]


class Inner(TakesJobs, _Groups, _Views):
    """The inside of an open `Log`: its `inner`."""

    def __init__(
        self,
        opened: Opened,
        *,
        durability: Durability,
        checkpoints: CheckpointOptions,
        clock: Callable[[], float],
    ) -> None:
        self.path = opened.path
        self.instance = opened.instance
        self.end_marks: EndMarks = opened.writer.end_marks
        self.filesystem = opened.filesystem
        self.now = clock
        """Seconds since the epoch, by the log's clock."""
        self._lock_stack = opened.lock
        self.committer = Committer(opened, durability=durability, clock=clock)
        self.queue = CommitQueue(self.committer.commit, self.committer.lock)
        self.checkpoints = Checkpoints(self, checkpoints, opened.report)
        self.committer.after_commit = self.checkpoints.after_commit
        self.sweeper = Sweeper()
        self._ending = Ending(self._end)
        self._belong()

    def _what(self) -> str:
        return f"the log {self.path}"

    def _left_behind(self) -> None:
        self.committer.left_behind()
        self.queue.left_behind()
        keep_for_ever(self._lock_stack)  # to leave it would give the folder free

    def close(self) -> None:
        """See `Log.close`."""
        if self.is_foreign:
            return
        if not self._ending.is_over:
            self.committer.check_not_inside()
        self._ending.end()

    def _end(self) -> None:
        committer = self.committer
        if committer.is_closed:
            return
        self._end_threads()
        failed: list[Exception] = []
        if committer.durability == "none":  # no log to find the changes in
            if committer.failure is None:
                _try(self.checkpoints.make, failed)
            else:
                failed.append(committer.failure)
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
        committer = self.committer
        self._end_threads()
        committer.layers.close(apply=False)
        with committer.alone():
            committer.is_closed = self._ending.is_over = True
            committer.abandon_writer()
            committer.state.close(clean=False)
            self._lock_stack.close()

    def _end_threads(self) -> None:
        self.sweeper.close()
        self.queue.close()
        self.checkpoints.close()

    def on_grow(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when changes wait for views to end, so that the state can grow; from any
        thread, and it must return at once. Returns what takes it back."""
        self.check_process()
        return self.committer.viewers.on_grow(callback)

    def reserve_state(self, room_bytes: int) -> None:
        """Before a long view: let the state grow by at least `room_bytes`, or by as much as it
        holds, without waiting for views. It is address space, not memory or disk. Does nothing
        while another view is open."""
        self.committer.check_open()
        with self.committer.lock:
            if not self.committer.is_closed:
                self.committer.layers.reserve(room_bytes)

    def refusal(self) -> LogweirError | None:
        """Why a change would be refused now, None if none would that has room: what stopped
        writing, a disk without room, or what it said to the last one and still says to a file."""
        committer = self.committer
        if committer.failure is not None:
            return committer.failure
        room = DiskRoom(committer.state.directory, self.filesystem)
        try:
            room.check(committer.layers.size_bytes)
            if committer.refused is not None:
                room.check_file()
        except WriteFailed as error:
            return error
        return None

    def append_packed(
        self, space: int | str, packed: bytes, *, one_transaction: bool = True
    ) -> int:
        """`Log.append` of tuples that are MsgPack already: arrays, one behind the other."""
        job = append_job(space, packed, one_transaction=one_transaction)
        return self.run(job, size=len(packed))

    def collect(self) -> list[Path]:
        """Remove old snapshots and logs that nobody needs any more; returns them. A snapshot does
        this by itself."""
        self.committer.check_open()
        self.committer.check_not_inside()
        with typed(self.path):
            return self.checkpoints.collect()

    def pinned_bytes(self) -> dict[str, int]:
        """Of each follower that `Log.retain` names: bytes of the logs that no snapshot needs and
        that it has not read."""
        self.check_process()
        return self.checkpoints.pinned_bytes()

    def retain_all(self, positions: Mapping[str, VClock]) -> None:
        """`Log.retain` for several followers, with one write, and of positions and names that are
        known to be good."""
        self.check_process()
        with typed(self.path):
            self.checkpoints.retain(positions)


def _try(step: Callable[[], object], failed: list[Exception]) -> None:
    """One step of an end that has to come: what it raises is noted."""
    try:
        step()
    except (LogweirError, OSError, StateError) as error:
        failed.append(error)
