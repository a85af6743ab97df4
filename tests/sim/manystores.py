"""Several stores in one world that a seed decides: a source and its followers, and the network.

Each node is a whole `logweir serve` in one process of the schedule: a store on a `Machine`, its
`Server`, its event loop, and threads that write, read along, and make snapshots. Nodes copy the
source by JOIN and follow it, or one another: in a star, in chains, over two ways at once; a node
follows others in its next life. In some worlds a second node takes changes, too. Meanwhile nodes
are killed, lose their power, are stopped for long; the network is slow, cut in two, and forgets
connections; sources remove old logs.

`note` looks at every row of every log as soon as it is there: none is new twice, none is left out,
each is what every other log has at that place. In the end everybody is started, the network heals,
and within `_CALM_SECONDS` all stores hold the same; every row of a follower is one of its source,
everything acknowledged is there, and whoever read a whole store has seen what the rows up to its
position make.

Worlds of `WRITE` have stores of durability `write`, whose newest rows a power cut takes: followers
of the source alone, which does not change anything until all of them that have such rows have been
told that they are lost. In worlds of `SLOW` some syncs take seconds, and the network is sound:
nobody is given up then for having said nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from sim.ledger import USER_SPACES, Content, Statement, Tuple
from sim.machine import begun, small
from sim.node import Node

from logweir.testing.network import SimNetwork
from logweir.testing.primitives import modules_of
from logweir.testing.scheduler import Killed, Scheduler
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row, RowType
from logweir.wal.xrow import Transaction as Made

__all__ = ["FSYNC", "SLOW", "WRITE", "Stores"]

FSYNC, WRITE, SLOW = "fsync", "write", "slow"
"""Kinds of worlds."""

_CALM_SECONDS: Final = 300.0
"""So long may it take until all stores are alike: a connection that is not heard any more is given
up after 30 s, so is a try to connect; and the pause before the next one may be 30 s."""
_BEGAN: Final = 1_795_000_000.0
_SMALL: Final = {
    "stream.hub.HUB_STEP_BYTES": 300,
    "stream.hub.HUB_WINDOWS_BYTES": 1000,
    "iproto.push.HUB_STEP_BYTES": 300,
    "iproto.push._STEP_BYTES": 300,
    "iproto.follow.upstream.UPSTREAM_STEP_BYTES": 300,
    "dialer.UPSTREAM_WAITING_BYTES": 1000,
    "link.OUTPUT_HIGH_BYTES": 1000,
}
"""Limits that so few rows reach."""
_STATEMENTS: Final = {
    RowType.INSERT: "insert",
    RowType.REPLACE: "replace",
    RowType.UPDATE: "update",
    RowType.UPSERT: "upsert",
    RowType.DELETE: "delete",
}


@dataclass(frozen=True)
class Seen:
    """A row, as every log must have it."""

    type: int
    tsn: int
    commit: bool
    body: bytes


@dataclass(frozen=True)
class Look:
    """What a store held at a position."""

    node: int
    vclock: VClock
    content: list[Tuple]


class _Errors(logging.Handler):
    """What is told as an error: nothing here is one, but that a node may have to copy anew; nor,
    where the network `is_sound`, has anybody said nothing for too long."""

    def __init__(self, found: list[str], *, is_sound: bool) -> None:
        super().__init__(logging.WARNING)
        self._found = found
        self._is_sound = is_sound

    def emit(self, record: logging.LogRecord) -> None:
        event, told = getattr(record, "event", ""), record.getMessage()
        is_error = record.levelno >= logging.ERROR and event != "source.stopped"
        if is_error or (self._is_sound and event == "source.waiting" and "timed out" in told):
            self._found.append(told)


class Stores:
    """See the module. `node_type`: what each node is; `folder`: an empty one, for LMDB; `seed`:
    decides all; `dropped`: the numbers of operations that are left out."""

    node_type: type[Node] = Node

    def __init__(
        self, folder: Path, seed: int, *, kind: str = FSYNC, dropped: frozenset[int] = frozenset()
    ) -> None:
        self.folder, self.seed, self.kind, self.dropped = folder, seed, kind, dropped
        self.dice = dice = random.Random(seed)
        self.scheduler = Scheduler(dice.getrandbits(64))
        self.network = SimNetwork(self.scheduler, dice.getrandbits(64))
        self.modules = modules_of(self.scheduler)
        self.operations = self.tokens = 0
        self.is_star = kind == WRITE
        """All follow the source alone."""
        self.done: list[str] = []
        """What was done to them."""
        self.rows: dict[tuple[int, int], Seen] = {}
        """By replica id and lsn, of all logs."""
        self.owned: set[tuple[int, int]] = set()
        """Those that the log has whose own they are."""
        self.owners: dict[int, int] = {}
        """The node of a replica id."""
        self.lost: dict[tuple[int, int], Seen] = {}
        """Rows of the source that it lost with its power, until others have their numbers."""
        self.acknowledged: list[tuple[Statement, VClock]] = []
        """With a position behind it."""
        self.looks: list[Look] = []
        self.errors: list[str] = []
        self.evicts = dice.choice((0, 0, 3000))
        count = dice.choice((2, 3, 3, 4))
        self.nodes = [self.node_type(self, number, folder) for number in range(count)]
        source = self.nodes[0]
        source.machine.begin(begun())
        source.has_store = True
        source.writes = dice.randint(5, 40)
        if kind == WRITE:
            for node in self.nodes:
                node.durability = dice.choice(("write", "write", "fsync"))
            source.durability = dice.choice(("write", "write", "write", "fsync"))
        elif dice.random() < 0.35:
            self.nodes[1].writes_at_all = True
            self.nodes[1].writes = dice.randint(3, 15)
        for node in self.nodes[2 if self.nodes[1].writes_at_all else 1 :]:
            node.is_anonymous = dice.random() < 0.2

    @property
    def history(self) -> list[str]:
        """Which thread stopped where."""
        return self.scheduler.history

    def live(self) -> None:
        """All of it. Raises what was found."""
        state = random.getstate()
        with contextlib.ExitStack() as stack:
            stack.callback(random.setstate, state)
            random.seed(self.seed)  # of the pauses of who connects again
            handler = _Errors(self.errors, is_sound=self.kind == SLOW)
            logger = logging.getLogger("logweir")
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            stack.enter_context(mock.patch("uuid.uuid4", self._uuid))
            if self.dice.random() < 0.7:
                for name, value in _SMALL.items():
                    stack.enter_context(mock.patch(f"logweir.replication.{name}", value))
            if self.kind == WRITE:
                name = "logweir.store.commit.committer.SYNC_ASIDE_BYTES"
                stack.enter_context(mock.patch(name, self.dice.choice((500, 3000, 10_000))))
            stack.enter_context(small(self.dice, self._sync_state))
            try:
                self.scheduler.run(self._main)
            finally:
                for node in self.nodes:
                    node.machine.let_go()
        assert not self.errors, "\n".join(self.errors)
        self._check()

    # --- for nodes --------------------------------------------------------------------------------

    def may_skip(self) -> bool:
        """Whether the next operation is left out."""
        self.operations += 1
        return self.operations in self.dropped

    def now(self) -> float:
        """The clock of all machines."""
        return _BEGAN + self.scheduler.seconds

    def told(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An event loop has caught something."""
        error = context.get("exception")
        if not isinstance(error, Killed) and not self.scheduler.is_over:
            self.errors.append(f"{context.get('message')}: {error!r}")

    def until(self, holds: Callable[[], bool], failure: str, seconds: float = 60.0) -> None:
        """Wait for it. Raises `AssertionError` if that takes so long."""
        end = self.scheduler.seconds + seconds
        while not holds():
            assert self.scheduler.seconds < end, "\n".join((failure, *self.states()))
            self.scheduler.got_on()
            self.scheduler.wait("the world", holds, 1.0)

    def note(self, node: Node, made: Made) -> None:
        """A transaction is in the log of a node."""
        for row in made.rows:
            assert node.noted is not None
            at = (row.replica_id, row.lsn)
            before = node.noted.lsn(row.replica_id)
            assert row.lsn == before + 1, f"{node.name} has row {at} behind {node.noted}"
            node.noted = node.noted.with_lsn(row.replica_id, row.lsn)
            if not row.replica_id:
                continue  # of local spaces
            seen = Seen(row.type, row.tsn, row.commit, row.body)
            if row.replica_id == node.replica_id:
                self.lost.pop(at, None)
            elif self.is_star and row.lsn > self.nodes[0].shown.lsn(row.replica_id):
                self.lost[at] = seen  # it will be told
                continue
            known = self.rows.setdefault(at, seen)
            assert known == seen, f"{node.name} has {seen} at {at}, others {known}"
            if row.replica_id == node.replica_id:
                self.owned.add(at)

    def look(self, node: Node, vclock: VClock, content: list[Tuple]) -> None:
        """What a node held at a position."""
        if not any((number, vclock.lsn(number)) in self.lost for number in self.owners):
            self.looks.append(Look(node.number, vclock, content))

    def lose(self, source: Node, vclock: VClock) -> None:
        """The source has come back at a position: what was behind that is nowhere promised."""
        own, end = source.replica_id, vclock.lsn(source.replica_id)
        for at in [at for at in self.rows if at[0] == own and at[1] > end]:
            self.lost[at] = self.rows.pop(at)
            self.owned.discard(at)
        self.looks = [one for one in self.looks if one.vclock.lsn(own) <= end]
        self.acknowledged = [one for one in self.acknowledged if one[1].lsn(own) <= end]

    def is_told(self) -> bool:
        """Whether no node has rows that the source has lost."""
        source = self.nodes[0]
        end = source.shown.lsn(source.replica_id)
        return all(node.shown.lsn(source.replica_id) <= end for node in self.nodes)

    def sync_seconds(self, path: Path) -> float:
        """How long the next sync of a file takes. A server that commits in its event loop, as it
        does while the disk was quick, stands still meanwhile: there none is slow."""
        is_loop = self.scheduler.current.name.split("-")[0] in [one.name for one in self.nodes]
        if self.kind != SLOW or is_loop or path.suffix != ".xlog" or self.dice.random() < 0.8:
            return 0.0
        return self.dice.choice((0.5, 3.0, 6.0, 15.0))

    def _sync_state(self, directory: Path) -> None:
        """In the place of `sync_data`."""
        self.scheduler.pause("sync of the state")
        for node in self.nodes:
            if node.machine.path in directory.parents:
                node.machine.sync_state(directory)

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.dice.getrandbits(128), version=4)

    # --- what happens -----------------------------------------------------------------------------

    def _main(self) -> None:
        dice = self.dice
        for node in self.nodes:
            node.start()
        for _ in range(dice.randint(2, 8)):
            at = len(self.history) + int(2 ** dice.uniform(3, 11))
            seconds = dice.choice((0.1, 1.0, 5.0, 50.0))
            self.scheduler.wait("the world", lambda at=at: len(self.history) >= at, seconds)  # type: ignore[misc]
            if not self.may_skip():
                self._disturb()
        self._calm()
        for node in self.nodes:
            node.end("close")

    def _disturb(self) -> None:
        """One thing goes wrong, or right again."""
        dice = self.dice
        node = dice.choice(self.nodes)
        weights = (4, 4, 1, 0, 0, 0, 0) if self.kind == SLOW else (4, 4, 1, 2, 2, 2, 4)
        chosen = dice.choices(
            ("kill", "power cut", "close", "cut", "bar", "heal", "sever"), weights
        )[0]
        if self.kind == WRITE and dice.random() < 0.4:
            node, chosen = self.nodes[0], "power cut"
        if not node.is_up:
            self.done.append(f"start {node.name}")
            node.start()
        elif chosen in ("kill", "power cut", "close"):
            self.done.append(f"{chosen} {node.name}")
            node.end(chosen)
            if dice.random() < 0.6:
                node.start()
        elif chosen in ("cut", "bar"):
            one, other = (each.name for each in dice.sample(self.nodes, 2))
            self.done.append(f"{chosen} {one} {other}")
            (self.network.cut if chosen == "cut" else self.network.bar)(one, other)
        elif chosen == "heal":
            self.done.append("heal")
            self.network.heal()
        elif node.process is not None and node.process.host.ends:
            self.done.append(f"sever {node.name}")
            node.process.host.sever(dice.choice(node.process.host.ends))

    def _calm(self) -> None:
        """Nothing goes wrong any more: all get alike."""
        self.done.append("calm")
        self.scheduler.keep_time()
        self.network.heal()
        for node in self.nodes:
            if not node.is_up:
                node.start()
        self.until(lambda: not any(node.writes for node in self.nodes), "writers wait", 600.0)
        self.until(self._are_alike, "not alike", _CALM_SECONDS)

    def _are_alike(self) -> bool:
        logs = [node.log for node in self.nodes]
        places = {str(log.vclock.without_local()) for log in logs if log is not None}
        return None not in logs and len(places) == 1

    def states(self) -> Iterator[str]:
        """How each node stands, for a report."""
        for node in self.nodes:
            server = node.server
            runners = [] if server is None else server.runners
            told = [f"{one.status.url} {one.status.told}" for one in runners]
            yield f"{node.name} up {node.is_up} at {node.shown}, {node.writes} to write: {told}"

    # --- what must be -----------------------------------------------------------------------------

    def _check(self) -> None:
        owned = {at for at in self.rows if at in self.owned}
        strange = sorted(set(self.rows) - owned)
        assert not strange, f"no log of their own has rows {strange[:5]}"
        last = {
            number: max((lsn for of, lsn in owned if of == number), default=0)
            for number in self.owners
        }
        tokens: set[int] = set()
        moments: dict[tuple[int, int], Content] = {}
        for number in last:
            content: Content = {}
            for lsn in range(last[number] + 1):
                row = self.rows.get((number, lsn))
                if row is not None:
                    tokens |= _apply(row, content)
                    if not row.commit:
                        continue
                moments[number, lsn] = dict(content)
        for one, _ in self.acknowledged:
            assert one.kind == "delete" or one.token in tokens, f"#{one.token} is lost"
        for look in self.looks:
            wanted: Content = {}
            for number in last:
                at = (number, look.vclock.lsn(number))
                assert at in moments, f"node{look.node} shows {look.vclock}, within a transaction"
                wanted.update(moments[at])
            told = f"node{look.node} at {look.vclock} holds {look.content}, not {wanted}"
            assert look.content == [wanted[key] for key in sorted(wanted)], told


def _apply(row: Seen, content: Content) -> set[int]:
    """Make what a row says. Returns the numbers of its statement, if it is a client's."""
    if row.type not in _STATEMENTS:
        return set()
    kind = _STATEMENTS[RowType(row.type)]
    body = Row(type=row.type, body=row.body).decoded()
    if body.get("space_id") != USER_SPACES:
        return set()
    values = body.get("tuple")
    if kind in ("delete", "update"):
        token = body["ops"][0][2] if kind == "update" else 0
        one = Statement(kind, body["key"][0], token)
    else:
        one = Statement(kind, values[0], values[1], values[3])
    one.apply(content)
    return {one.token}
