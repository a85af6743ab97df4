"""The part of `Log` that commits groups of nothing but runs: see `store.late`.

Such a group is written and synced before the state has it, so its order differs from that of other
groups: check and encode → write → sync → note it for the state → answer → wake followers.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from logweir.errors import LogweirError, RequestError
from logweir.store import kernel
from logweir.store.bulk import Bounds
from logweir.store.commit import CommitQueue, Job, OnError, runs_of
from logweir.store.engine import Plans
from logweir.store.largerun import LargeRun, prepare_large
from logweir.store.late import Late, LateGroup, prepare
from logweir.store.run import RunMaker
from logweir.store.schema import Schema
from logweir.store.state import State
from logweir.store.syncer import Syncer
from logweir.store.synchro import SynchroQueue
from logweir.wal.block import Pieces
from logweir.wal.crc32c import CHECKSUM, CHECKSUM_INVERTED
from logweir.wal.failpoint import failpoint
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter
from logweir.wal.xrow import GROUP_LOCAL

__all__ = ["CommitsLate"]


@dataclass(slots=True)
class _Lane:
    """What single REPLACEs into one space need, while the definitions are these. `plan`: None where
    they have to go the ordinary way."""

    schema: Schema
    plan: Bounds | None = None
    is_local: bool = False
    prefix: bytes = b""

    @classmethod
    def of(cls, schema: Schema, space_id: int, plans: Plans) -> _Lane:
        space = schema.get(space_id)
        if space is None or not space.is_plain:
            return cls(schema)
        try:
            plan = plans.primary(schema, space).table
        except RequestError:
            return cls(schema)
        return cls(schema, plan, space.is_local, space.put_prefix)


class CommitsLate(ABC):
    """What a log offers those who prepare runs, and how it commits them."""

    commits: int
    durability: str
    replica_id: int
    _clock: Callable[[], float]
    _failure: LogweirError | None
    _lanes: dict[int, _Lane]
    _late: Late
    _logged: OnError
    _plans: Plans
    _queue: CommitQueue
    _schema: Schema
    _state: State
    _taking: OnError
    _synchro: SynchroQueue
    _syncer: Syncer
    _vclock: VClock
    _view_guard: threading.Lock
    _writer: WalWriter

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _write(
        self,
        blocks: Sequence[bytes | bytearray | Pieces],
        vclock: VClock,
        meanwhile: Callable[[], None] | None,
    ) -> None: ...

    @abstractmethod
    def _publish(self, logged_bytes: int) -> None: ...

    @abstractmethod
    def _fail(self, error: BaseException) -> None: ...

    def commit_runs(
        self, makers: Sequence[RunMaker], answer: Callable[[], object] = lambda: None
    ) -> bool:
        """Make runs durable now, in this thread, without what jobs cost.

        `answer`: tells those who asked for them, once they are durable and everybody sees them;
        followers are woken after it. It must be quick, and not use the log. False, and nothing
        done, where the runs have to go as jobs: they cannot be late, or somebody commits. Raises
        `WriteFailed` or `WriterPoisoned`, and what `answer` raises, with the runs made.
        """
        self._queue.check_process()
        if not (makers and self._late.is_calm and self._queue.enter()):
            return False
        try:
            self._check_open()
            late = self._prepare_late(makers)
            if late is None:
                return False
            self._log_late(late)
            try:
                answer()
            finally:
                self._publish(late.logged_bytes)
        finally:
            self._queue.leave()
        return True

    def commit_one(self, space_id: int, data: bytes, answer: Callable[[], object]) -> bool:
        """`commit_runs` of a run of one tuple, `data`: with few calls, since each of them finds
        the processor's caches cold. Raises the same."""
        late, writer = self._late, self._writer
        if self.durability == "none" or self._synchro or not self._queue.enter():
            self._queue.check_process()
            return False
        try:
            lane = self._lanes.get(space_id)
            if lane is None or lane.schema is not self._schema:
                self._lanes = {} if lane is not None else self._lanes
                lane = self._lanes[space_id] = _Lane.of(self._schema, space_id, self._plans)
            signed = 0 if lane.is_local else self.replica_id
            if self._failure is not None:
                raise self._failure
            place = writer.place
            if (
                lane.plan is None
                or place is None
                or not (signed or lane.is_local)
                or not late.takes_one(space_id, len(data))
            ):
                return False
            lsn, vclock = self._vclock.next(signed)
            found = kernel.lone(
                data,
                lane.plan,
                lane.prefix,
                signed,
                GROUP_LOCAL if lane.is_local else 0,
                lsn,
                self._clock(),
                *place,
                CHECKSUM,
                CHECKSUM_INVERTED,
            )
            if found is None:
                return False  # the ordinary way tells why
            key, block = found
            try:
                end = writer.append((block,), vclock)
                if self.durability == "fsync":
                    writer.sync()
                with self._view_guard:
                    failpoint("store.after_sync_before_state_commit")
                    late.add_one(space_id, key, data, vclock, end)
                    self._vclock = vclock
                failpoint("store.after_state_commit")
                self.commits += 1
            except BaseException as error:
                self._fail(error)
                raise
            try:
                answer()
            finally:
                self._publish(len(block))
            self.settle()  # while the client reads its answer
        finally:
            self._queue.leave()
        return True

    def commit_large(self, make: Callable[[Schema], Sequence[LargeRun] | None]) -> bool:
        """Write INSERTs of large tuples now, in this thread, where nothing is to be synced.

        `make`: says which, none of the runs empty, in the order of the log as it is then; None:
        they have to go as a job. False, and nothing done, then and where they cannot be late, or
        somebody commits. Raises `WriteFailed` with nothing done, and `WriterPoisoned`. Call
        `settle` behind the answers.
        """
        if self.durability != "write" or self._synchro or not self._queue.enter():
            self._queue.check_process()
            return False
        try:
            self._check_open()
            if self._writer.is_full or not self._late.takes(0):
                return False
            runs = make(self._schema)
            if not runs:
                return False
            large = prepare_large(
                runs,
                late=self._late,
                schema=self._schema,
                plans=self._plans,
                vclock=self._vclock,
                replica_id=self.replica_id,
                now=self._clock(),
            )
            if large is None:
                return False
            self._log_late(large)
            self._publish(large.logged_bytes)
        finally:
            self._queue.leave()
        return True

    def begin_jobs(self, jobs: Sequence[Job]) -> bool:
        """`submit_jobs` where they are runs and nobody is committing: they are written here, and a
        thread syncs and answers them. False, and nothing done, where that cannot be done now."""
        if self.durability != "fsync" or not self._queue.begin(jobs, self._syncer.hand):
            self._queue.check_process()
            return False
        self.settle(is_idle=not any([job.more for job in jobs]))
        return True

    def settle(self, *, is_idle: bool = False) -> None:
        """Have the state take what is late, if it is due. `is_idle`: a group was begun behind which
        nothing waits, so call this again behind its answers; before them only if overdue."""
        self._queue.check_process()
        if self._late.is_overdue if is_idle else self._late.is_due:
            with contextlib.suppress(LogweirError):  # the jobs are on their way; the next is told
                self._apply_late()

    def _commit_late(self, jobs: Sequence[Job]) -> bool:
        """Commit a group if it is nothing but runs; the state gets it later."""
        late = self._prepare_late(runs_of(jobs))
        if late is None:
            return False
        self._log_late(late)
        self._publish(late.logged_bytes)
        return True

    def _begin_late(self, jobs: Sequence[Job]) -> Callable[[], None] | None:
        """The first half of `_commit_late`; the second is returned, and is that of most time where
        much is to be compressed and written: neither holds the interpreter."""
        self._check_open()
        late = self._prepare_late(runs_of(jobs))
        if late is None:
            return None
        if not late.goes_aside:
            with self._logged:
                self._writer.write(late.blocks, late.vclock)

        def finish() -> None:
            with self._logged:
                if late.goes_aside:
                    self._writer.write(late.blocks, late.vclock)
                self._writer.sync()
                self._add_late(late)
            self._publish(late.logged_bytes)

        return finish

    def _prepare_late(self, makers: Sequence[RunMaker]) -> LateGroup | None:
        if not makers or self._synchro or self.durability == "none":
            return None
        if not self._late.takes(sum([maker.size_bytes for maker in makers])):
            return None
        return prepare(
            makers,
            state=self._state,
            late=self._late,
            schema=self._schema,
            plans=self._plans,
            vclock=self._vclock,
            replica_id=self.replica_id,
            now=self._clock(),
        )

    def _log_late(self, late: LateGroup) -> None:
        """Write and sync a group; from then on everybody sees it."""
        if self.durability == "fsync" and not self._late.is_due:
            with self._logged:
                self._writer.write(late.blocks, late.vclock)
                self._writer.sync()
                self._add_late(late)
            return
        self._write(late.blocks, late.vclock, self._apply_late if self._late.is_due else None)
        with self._logged:
            self._add_late(late)

    def _add_late(self, late: LateGroup) -> None:
        with self._view_guard:
            failpoint("store.after_sync_before_state_commit")
            end = self._writer.last_block
            assert end is not None
            self._late.add(late, end)
            self._vclock = late.vclock
        failpoint("store.after_state_commit")
        self.commits += 1

    def _apply_late(self) -> None:
        """Have the state take what waits for it; return when it has, whoever did it."""
        with self._view_guard:
            self._take_late()

    def _take_late(self) -> None:
        if self._late.waits:
            with self._taking:
                self._late.apply()
