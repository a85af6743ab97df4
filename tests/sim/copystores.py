"""Several stores in one world that a seed decides, each of which copies something of another one.

As in `sim.manystores`, but no store is a replica of another: the source changes something, and each
other store follows it, or one that follows it, over one of the other protocols. All are killed,
lose their power, have slow disks; the network is slow, cut in two, and forgets connections.

What a store shows never goes back; in the end all hold the same, nothing is noted as missing, and
what was acknowledged is there. What is followed, and what going back is, the worlds below say:
`sim.topicstores`, `sim.bucketstores`, `sim.streamstores`.
"""

from __future__ import annotations

from typing import Any

from sim.machine import begun
from sim.manystores import FSYNC, SLOW, Stores
from sim.node import Node

import logweir
from logweir.replication.stream.positions import gaps
from logweir.replication.urls import Url
from logweir.wal.vclock import VClock

__all__ = ["FSYNC", "SLOW", "AppendNode", "CopyNode", "CopyStores"]


class CopyNode(Node):
    """One of them. `seen`: what it has shown, at `seen_at` or behind it; `upstream`: whom it
    follows."""

    world: CopyStores

    def __init__(self, world: CopyStores, *given: Any) -> None:
        super().__init__(world, *given)
        self.seen: dict[Any, Any] = {}
        self.seen_at = VClock()
        self.upstream = world.dice.randrange(self.number) if self.number else 0
        self.has_store = True
        if self.number:  # the world lays the source's
            self.machine.begin(begun())

    async def _lives(self) -> None:
        why = await self._serve()
        raise AssertionError(f"{self.name} stops: {why}")

    def _followed(self) -> list[Url]:
        return [self._address(3300 + self.upstream)] * bool(self.number)

    def _take_up(self, log: logweir.Log) -> None:
        assert log.vclock.covers(self.shown), f"{self.name} is at {log.vclock}, was at {self.shown}"
        self.shown = log.vclock
        self.world.resumed += bool(self.number and any(self.seen.values()))
        log.on_commit(self._committed)
        self.log = log

    def _observe(self, log: logweir.Log) -> None:
        """Look at what it holds, as a program does that has the store open."""
        is_last = False
        while not is_last:
            self._has_news = False
            is_last = self._is_ending
            before = log.vclock
            self._look(log)
            self.seen_at = before
            assert not gaps(log), f"{self.name} misses {gaps(log)}"
            if not is_last:
                self.world.scheduler.wait("news", lambda: self._has_news)

    def _look(self, log: logweir.Log) -> None:
        """Take what it shows now into `seen`, and check it."""
        raise NotImplementedError

    def has(self, put: Any) -> bool:
        """Whether something that was acknowledged is there."""
        raise NotImplementedError

    def check(self) -> None:
        """Look at all that it has shown, in the end."""


class AppendNode(CopyNode):
    """One of those whose parts only grow: each is a beginning of the source's."""

    seen: dict[Any, list[Any]]

    def _found(self, log: logweir.Log) -> dict[Any, list[Any]]:
        """What it has of each part, at one moment."""
        raise NotImplementedError

    def _look(self, log: logweir.Log) -> None:
        found = self._found(log)
        for part, before in self.seen.items():
            assert found.get(part, [])[: len(before)] == before, f"{self.name} had more of {part}"
        for part, there in found.items():
            written = self.world.nodes[0].seen.get(part, [])
            count = min(len(there), len(written))
            alike = there[:count] == written[:count]
            assert alike, f"{self.name} has {heads(there)} of {part}, written {heads(written)}"
        self.seen = found


class CopyStores(Stores):
    """See the module. `put`: what was acknowledged; `resumed`: so many lives of followers began
    behind something."""

    nodes: list[CopyNode]  # type: ignore[assignment]

    def __init__(self, *given: Any, **options: Any) -> None:
        self.put: list[Any] = []
        self.resumed = 0
        super().__init__(*given, **options)
        for node in self.nodes[1:]:
            node.writes, node.writes_at_all = 0, False
        self.evicts = 0

    def is_told(self) -> bool:
        return True

    def _disturb(self) -> None:
        """Mostly once a follower has something: who has nothing loses nothing."""
        if self.dice.random() < 0.8:
            self.scheduler.wait("something", self._has_any, 50.0)
        super()._disturb()

    def _has_any(self) -> bool:
        return any(one.seen for one in self.nodes[1:])

    def _are_alike(self) -> bool:
        source = self.nodes[0]
        return source.seen_at.covers(source.shown) and all(
            one.log is not None and one.seen == source.seen for one in self.nodes
        )

    def _check(self) -> None:
        for node in self.nodes:
            assert node.seen == self.nodes[0].seen, f"{node.name} has something else in the end"
            node.check()
        for one in self.put:
            assert self.nodes[0].has(one), f"{one} is lost"


def heads(there: list[Any]) -> list[Any]:
    """What tells tuples apart, without what is long."""
    return [one[:3] for one in there]
