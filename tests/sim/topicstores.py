"""Worlds of `sim.copystores` over Tank's protocol: the source makes topics and puts bundles into
their partitions; followers have an address without a topic, so that topics are found that are made
later. What a store shows of a partition is the beginning of what the source has put there.
"""

from __future__ import annotations

import random
from typing import Final

from sim.copystores import FSYNC, SLOW, AppendNode, CopyStores

import logweir
from logweir.replication.protocols import parse_url
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.spaces import create_topic
from logweir.replication.urls import Url

__all__ = ["FSYNC", "SLOW", "TopicStores"]

_PARTITIONS: Final = {"events": 2, "orders": 1}
Part = tuple[str, int]
"""A topic and one of its partitions."""
Bundle = tuple[int, int, int, int, bytes]
"""A tuple of a topic's space."""


class TopicNode(AppendNode):
    """One of them."""

    seen: dict[Part, list[Bundle]]

    def _address(self, port: int) -> Url:
        return parse_url(f"tank://127.0.0.1:{port}")

    def _found(self, log: logweir.Log) -> dict[Part, list[Bundle]]:
        found: dict[Part, list[Bundle]] = {}
        with log.read_view() as view:
            for topic in filter(view.engine.schema.get, _PARTITIONS):
                for one in view.select(topic):
                    found.setdefault((topic, one[0]), []).append(one)
        return found

    def has(self, put: tuple[str, Bundle]) -> bool:
        topic, bundle = put
        return bundle in self.seen[topic, bundle[0]]

    def _change(self, log: logweir.Log, dice: random.Random) -> None:
        """Make a topic that is not there yet, or put bundles into one."""
        topic = dice.choice([*_PARTITIONS])
        if log.schema.get(topic) is None:
            create_topic(log, topic, _PARTITIONS[topic], now_seconds=self.world.now())
            return
        made: list[tuple[str, Bundle]] = []
        with log.transaction() as tx:
            for _ in range(dice.choice((1, 1, 3))):
                partition = dice.randrange(_PARTITIONS[topic])
                there = [one for one in tx.select(topic, partition, iterator="EQ")]
                made.append((topic, self._bundle(dice, partition, there)))
                tx.insert(topic, made[-1][1])
        self.world.put += made

    def _bundle(self, dice: random.Random, partition: int, there: list[Bundle]) -> Bundle:
        first = there[-1][2] + 1 if there else 1
        count, now = dice.randint(1, 4), int(self.world.now() * 1000)
        size = dice.choice((1, 40, 900, 5000))
        messages = [Message(first + one, now, None, b"x" * size) for one in range(count)]
        return partition, first, first + count - 1, now, encode_bundle(messages)


class TopicStores(CopyStores):
    """See the module."""

    node_type = TopicNode
