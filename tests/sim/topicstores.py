"""Several stores in one world that a seed decides, each of which follows the topics of another one.

As in `sim.manystores`, over Tank's protocol: the source makes topics and puts bundles into their
partitions; each other store follows it, or one that follows it, by an address without a topic, so
that topics are found that are made later. All are killed, lose their power, have slow disks; the
network is slow, cut in two, and forgets connections.

What a store shows of a partition never gets less, and is the beginning of what the source has
put there; in the end all have all of it, tuple by tuple, nothing is noted as missing, and what was
acknowledged is there.
"""

from __future__ import annotations

import random
from typing import Any, Final

from sim.machine import begun
from sim.manystores import FSYNC, SLOW, Stores
from sim.node import Node

import logweir
from logweir.replication.protocols import parse_url
from logweir.replication.stream.positions import gaps
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.spaces import create_topic
from logweir.replication.urls import Url

__all__ = ["FSYNC", "SLOW", "TopicStores"]

_PARTITIONS: Final = {"events": 2, "orders": 1}
Part = tuple[str, int]
"""A topic and one of its partitions."""
Bundle = tuple[int, int, int, int, bytes]
"""A tuple of a topic's space."""


class TopicNode(Node):
    """One of them. `seen`: what it has shown of each partition; `upstream`: whom it follows."""

    world: TopicStores

    def __init__(self, world: TopicStores, *given: Any) -> None:
        super().__init__(world, *given)
        self.seen: dict[Part, list[Bundle]] = {}
        self.upstream = world.dice.randrange(self.number) if self.number else 0
        self.has_store = True
        if self.number:  # the world lays the source's
            self.machine.begin(begun())

    async def _lives(self) -> None:
        why = await self._serve()
        raise AssertionError(f"{self.name} stops: {why}")

    def _followed(self) -> list[int]:
        return [self.upstream] * bool(self.number)

    def _address(self, port: int) -> Url:
        return parse_url(f"tank://127.0.0.1:{port}")

    def _take_up(self, log: logweir.Log) -> None:
        assert log.vclock.covers(self.shown), f"{self.name} is at {log.vclock}, was at {self.shown}"
        self.shown = log.vclock
        if not self.number:  # what it did not have yet when it was killed it never had
            self.world.written = found_in(log)
        elif any(self.seen.values()):
            self.world.resumed += 1
        log.on_commit(self._committed)
        self.log = log

    def _observe(self, log: logweir.Log) -> None:
        """Look at all topics, as a program does that has the store open."""
        is_last = False
        while not is_last:
            self._has_news = False
            is_last = self._is_ending
            self._look(log)
            if not is_last:
                self.world.scheduler.wait("news", lambda: self._has_news)

    def _look(self, log: logweir.Log) -> None:
        found = found_in(log)
        for part, before in self.seen.items():
            assert found.get(part, [])[: len(before)] == before, f"{self.name} had more of {part}"
        for part, bundles in found.items():
            written = self.world.written.get(part, [])
            told = f"{self.name} has {heads(bundles)} of {part}, written {heads(written)}"
            assert bundles == written[: len(bundles)], told
        self.seen = found
        assert not gaps(log), f"{self.name} misses {gaps(log)}"

    def _change(self, log: logweir.Log, dice: random.Random) -> None:
        """Make a topic that is not there yet, or put bundles into one."""
        topic = dice.choice([*_PARTITIONS])
        if log.schema.get(topic) is None:
            now = self.world.now()
            create_topic(log, topic, _PARTITIONS[topic], now_seconds=now)
            return
        made: list[tuple[str, Bundle]] = []
        with log.transaction() as tx:
            for _ in range(dice.choice((1, 1, 3))):
                partition = dice.randrange(_PARTITIONS[topic])
                there = [one for one in tx.select(topic, partition, iterator="EQ")]
                made.append((topic, self._bundle(dice, partition, there)))
                self.world.written[topic, partition] = [*there, made[-1][1]]
                tx.insert(topic, made[-1][1])
        self.world.put += made

    def _bundle(self, dice: random.Random, partition: int, there: list[Bundle]) -> Bundle:
        first = there[-1][2] + 1 if there else 1
        count, now = dice.randint(1, 4), int(self.world.now() * 1000)
        size = dice.choice((1, 40, 900, 5000))
        messages = [Message(first + one, now, None, b"x" * size) for one in range(count)]
        return partition, first, first + count - 1, now, encode_bundle(messages)


class TopicStores(Stores):
    """See the module. `written`: what the source has, or is about to have, in each partition;
    `put`: what was acknowledged; `resumed`: so many lives of followers began behind something."""

    node_type = TopicNode

    def __init__(self, *given: Any, **options: Any) -> None:
        self.written: dict[Part, list[Bundle]] = {}
        self.put: list[tuple[str, Bundle]] = []
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
        return any(isinstance(one, TopicNode) and one.seen for one in self.nodes[1:])

    def _are_alike(self) -> bool:
        return all(
            isinstance(one, TopicNode) and one.log is not None and one.seen == self.written
            for one in self.nodes
        )

    def _check(self) -> None:
        for node in self.nodes:
            assert isinstance(node, TopicNode)
            assert node.seen == self.written, f"{node.name} has other bundles in the end"
        for topic, bundle in self.put:
            assert bundle in self.written[topic, bundle[0]], f"{topic} {bundle[:4]} is lost"


def found_in(log: logweir.Log) -> dict[Part, list[Bundle]]:
    """What it has of each partition, at one moment."""
    found: dict[Part, list[Bundle]] = {}
    with log.read_view() as view:
        for topic in filter(view.engine.schema.get, _PARTITIONS):
            for one in view.select(topic):
                found.setdefault((topic, one[0]), []).append(one)
    return found


def heads(bundles: list[Bundle]) -> list[tuple[int, int]]:
    """Their numbers."""
    return [one[1:3] for one in bundles]
