"""A whole store in one world that a seed decides: its disk, LMDB's files, clocks, threads, clients.

A world lives several lives. In each the store is opened, compared with the ledger, used by clients
side by side, and closed, killed, or stopped by a power cut at any step of the schedule; calls to
the disk may fail, be slow or find it full. The log is on a `SimFileSystem`. LMDB is the real one on
real files; a power cut leaves each page of them as it was when it was synced last, or as it is.

Some worlds have lives with durability "none". What such a life published is noted (`Record`); what
is there behind it is a beginning of that, with all that an orderly close, the newest snapshot that
was acknowledged, or the opening before it had.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from sim.clients import Client, Keeper, Reader, Tasks
from sim.ledger import SPACE, Ledger
from sim.machine import Disk, Machine, begun, define, small

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults import Fault, SimFileSystem
from logweir.recovery.faults.faulty import KINDS, WRITING
from logweir.store.commit.group import Group
from logweir.testing.clock import SimClock
from logweir.testing.primitives import modules_of
from logweir.testing.scheduler import Scheduler
from logweir.wal import failpoint
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns
from logweir.wal.writer import WalWriter  # noqa: F401 - loaded, so that its locks are scheduled
from logweir.wal.xrow import Transaction

__all__ = ["World"]

LIVES: Final = 2
_PLACES: Final = (
    "store.after_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
    "store.before_apply_commit",
    "store.after_apply_commit",
    "checkpoint.before_remove",
    "wal.after_close",
)
_WITHIN: Final = tuple(
    Path(logweir.__file__).parent / "store" / name
    for name in ("commit", "state", "log.py", "transaction.py", "recover/checkpoint.py")
)


class Record:
    """What a store without a log shows, transaction by transaction, in its order."""

    def __init__(self, log: logweir.Log) -> None:
        committer = log.inner.committer
        self._made: dict[Group, bytes] = {}
        push = committer.layers.push

        def noted(*given: Any) -> None:
            for group in committer.ahead.groups:  # some of them follow only later, or are dropped
                self._made.setdefault(group, _joined(group.made))
            push(*given)

        committer.layers.push = noted  # type: ignore[method-assign]

    def take(self) -> list[Transaction]:
        """Those since the last time."""
        made, self._made = self._made, {}
        data = b"".join(rows for group, rows in made.items() if group.error is None)
        columns = RowColumns.scan(data)
        rows = [columns.row(number) for number in range(len(columns))]
        return [Transaction(tuple(rows[first:last])) for first, last in columns.transactions()]


def _joined(blocks: Sequence[bytes | bytearray | Pieces]) -> bytes:
    parts = [block.parts if isinstance(block, Pieces) else [block] for block in blocks]
    return b"".join(chain.from_iterable(parts))


@dataclass
class Plan:
    """What a life meets. `end_at`: the step at which it is killed or loses its power, None: never;
    `lines`: see `Scheduler`; `dropped`: operations that are left out, to make a failure smaller."""

    end_at: int | None
    is_power_cut: bool
    fault: Fault | None
    durability: Any
    lines: float
    closes: bool


class World:
    """See the module. `folder`: an empty one, for LMDB; `seed`: decides all; `dropped`: the numbers
    of operations that are left out; `lives`: how many at most; `unlogged`: how many of them have
    durability "none", 0.0 … 1.0; the others have "fsync" then."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        dropped: frozenset[int] = frozenset(),
        lives: int = LIVES,
        unlogged: float = 0.0,
    ) -> None:
        self.seed, self.dropped, self.lives = seed, dropped, lives
        self.unlogged = unlogged
        self.dice = random.Random(seed)
        self.ledger = Ledger()
        self.clock = SimClock()
        self.machine = Machine(folder / "new" / "store", seed, self.dice)
        self.history: list[str] = []
        """Of all lives: which thread stopped where."""
        self.scheduler = Scheduler(0)
        self.operations = 0
        self._writers = 0
        self._stops: list[Any] = []
        self.cuts = self.kills = self.faults = 0
        self._calls = Disk(self.disk, self.scheduler, self.dice)
        self._plan: Plan | None = None
        self._log: logweir.Log | None = None
        self._record: Record | None = None
        self._published: list[Transaction] | None = None  # by a life without a log
        self._safe = 0  # the lsn up to which nothing may be lost
        self._is_cut = False  # whether this life was ended
        self._unsynced = False  # whether the life before had durability "write" and was killed
        if self.dice.random() < 0.85:  # else the folder is made under the scheduler
            self.machine.begin(begun())

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self.machine.path

    @property
    def disk(self) -> SimFileSystem:
        """The disk of this life."""
        return self.machine.disk

    def live(self) -> None:
        """All lives, and a look at what the last one left. Raises what was found."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.path.parent, ignore_errors=True)
            stack.enter_context(small(self.dice, self._sync_state))
            for number in range(self.lives):
                self._live(self._planned(number))
            self._live(Plan(None, False, None, "fsync", 0.0, True), clients=False)

    # --- for clients ------------------------------------------------------------------------------

    def may_skip(self) -> bool:
        """Whether the next operation is left out."""
        self.operations += 1
        return self.operations in self.dropped

    def event(self) -> Any:
        """A scheduled `threading.Event`."""
        return modules_of(self.scheduler)["threading"].Event()

    def stop(self) -> Any:
        """An event that is set once nobody changes anything any more."""
        event = self.event()
        self._stops.append(event)
        if not self._writers:
            event.set()
        return event

    def is_safe(self, snapshot: Path) -> None:
        """What a snapshot has that was acknowledged."""
        self._safe = max(self._safe, int(snapshot.stem))

    def is_excused(self, error: BaseException) -> bool:
        """Whether an error is because of what was done to the disk."""
        return isinstance(error, LogweirError) and bool(self._calls.failed)

    # --- lives ------------------------------------------------------------------------------------

    def _planned(self, number: int) -> Plan:
        dice = self.dice
        end_at = int(2 ** dice.uniform(3, 12)) if dice.random() < 0.7 else None
        fault = None
        if dice.random() < 0.35:
            kinds = dice.choice((WRITING, frozenset(("write",)), frozenset(("sync",)), KINDS))
            fault = Fault(
                at=int(2 ** dice.uniform(0, 8)),
                kinds=kinds,
                errno=dice.choice((errno.EIO, errno.ENOSPC)),
                part=dice.choice((0.0, 0.5, 1.0)),
                lasts=dice.random() < 0.2,
            )
        is_power_cut = dice.random() < 0.7
        if self.unlogged:
            durability = "none" if dice.random() < self.unlogged else "fsync"
        else:
            durability = "fsync" if is_power_cut or dice.random() < 0.7 else "write"
        return Plan(
            end_at,
            is_power_cut,
            fault,
            durability,
            dice.choice((0.0, 0.0, 0.0, 0.02, 0.2)),
            dice.random() < 0.6,
        )

    def _live(self, plan: Plan, *, clients: bool = True) -> None:
        self._plan, self._log, self._record, self._is_cut = plan, None, None, False
        lines = plan.lines
        seed = self.dice.getrandbits(64)
        self.scheduler = Scheduler(seed, lines=lines, within=_WITHIN)
        self.scheduler.on_step = self._step
        self._calls = Disk(self.disk, self.scheduler, random.Random(seed))
        self._calls.fault = plan.fault
        for name in _PLACES:
            failpoint.arm(name, lambda name=name: self.scheduler.pause(name))  # type: ignore[misc]
        try:
            self.scheduler.run(lambda: self._main(clients))
        finally:
            failpoint.disarm()
            self._note()
            self.history += self.scheduler.history
            self.faults += bool(self._calls.failed)
            self.machine.let_go()
        if self._is_cut:
            self._unsynced = plan.durability == "write"
        self.machine.lay()

    def _main(self, clients: bool) -> None:
        plan = self._plan
        assert plan is not None
        try:
            log = self._log = logweir.open(
                self.path,
                filesystem=self._calls,
                clock=self.clock,
                durability=plan.durability,
                wal_max_size=self.dice.choice((600, 4000, 100_000)),
                checkpoint_count=1,
                checkpoint_interval=self.dice.choice((0.0, 5.0)),
                write_ahead=self.dice.choice((0, 2000, 2**20)),
            )
            if self._published is not None or plan.durability == "none":
                self._settle(log)
            self._safe = log.vclock.signature
            if plan.durability == "none":
                self._record, self._published = Record(log), []
            define(log)
            self.ledger.spaces[SPACE] = {True}
            if self._record is None:  # else what was defined is in no log, and may be lost
                self._settle(log)
                log.retain("ledger", self.ledger.position)
        except LogweirError as error:
            if not self.is_excused(error):
                raise
            self.cut(is_power_cut=plan.is_power_cut)
        if clients:
            self._use(log)
        if plan.closes:
            end = log.vclock.signature
            try:
                log.close()
                self._safe = end
            except LogweirError as error:
                if not self.is_excused(error):
                    raise
        else:
            self.cut(is_power_cut=False)

    def _settle(self, log: logweir.Log) -> None:
        """Compare a store in which nothing goes on with the ledger."""
        self.ledger.settle(log, self._published, self._safe)
        self._published, self._unsynced = None, False
        self.ledger.check_content(log)

    def _note(self) -> None:
        """Take over what a life without a log has published."""
        if self._record is not None and self._published is not None:
            self._published += self._record.take()

    def _use(self, log: logweir.Log) -> None:
        """Clients, side by side."""
        dice = self.dice
        clients: list[Client] = []
        for number in range(dice.randint(1, 3)):
            clients.append(Client(self, log, f"client{number}", dice.randint(3, 15)))
        for kind, chance in ((Keeper, 0.6), (Reader, 0.4), (Tasks, 0.4)):
            if dice.random() < chance and not (kind is Reader and self._record is not None):
                clients.append(kind(self, log, kind.__name__.lower(), dice.randint(2, 6)))
        threads = []
        self._stops, self._writers = [], sum(not isinstance(one, Reader) for one in clients)
        for client in clients:
            thread = modules_of(self.scheduler)["threading"].Thread(
                target=self._client, args=(client,), name=client.name
            )
            threads.append(thread)
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, client: Client) -> None:
        try:
            client.live()
        finally:
            self._writers -= not isinstance(client, Reader)
            if not (self._writers or self.scheduler.is_ending):
                for stop in self._stops:
                    stop.set()

    # --- ends -------------------------------------------------------------------------------------

    def _step(self, where: str) -> None:
        plan = self._plan
        if plan is not None and plan.end_at == len(self.scheduler.history):
            self.cut(is_power_cut=plan.is_power_cut)
        if self.scheduler.history and len(self.scheduler.history) % 97 == 0:
            self.clock.advance(random.Random(len(self.scheduler.history)).choice((-50, 0, 1, 500)))

    def cut(self, *, is_power_cut: bool) -> None:
        """The process ends here, or the machine."""
        assert self._plan is not None
        self._plan.is_power_cut = is_power_cut
        self._is_cut = True
        self.machine.cut(is_power_cut=is_power_cut)
        self._note()  # before those that are being written are dropped
        self._record = None
        if is_power_cut and self._unsynced:
            self.ledger.forget_newest()
        self.cuts += is_power_cut
        self.kills += not is_power_cut
        self.scheduler.end()

    def _sync_state(self, directory: Path) -> None:
        """In the place of `sync_data`."""
        self.scheduler.pause("sync of the state")
        self.machine.sync_state(directory)
