"""Places of consumer groups, kept at the broker under names ``consumer:GROUP/TOPIC``."""

from __future__ import annotations

from typing import Final

from logweir.replication.topic.bundle import Message, encode_bundle, encode_varint
from logweir.replication.topic.partition import Append, Chunk, Extent
from logweir.replication.topic.publishing import FAILED, Outcome, Writing
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.spaces import CONSUMER_FIELDS, CONSUMER_SPACE
from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

__all__ = ["CONSUMER_PREFIX", "ConsumerPlaces", "is_group", "topic_of"]

CONSUMER_PREFIX: Final = "consumer:"


class ConsumerPlaces:
    """The places that a store keeps: per group, topic and partition one number."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def all(self) -> dict[tuple[str, int], dict[str, int]]:
        """Of each partition the groups that have a place in it."""
        places: dict[tuple[str, int], dict[str, int]] = {}
        if self._log.schema.get(CONSUMER_SPACE) is not None:
            for group, topic, partition, number, _ in self._log.select(CONSUMER_SPACE):
                places.setdefault((str(topic), int(str(partition))), {})[str(group)] = int(
                    str(number)
                )
        return places

    def place(self, topic: str, partition: int) -> Extent:
        """What the name `topic` holds: its place as first and last number, 0 without one."""
        group, _, name = topic.removeprefix(CONSUMER_PREFIX).partition("/")
        number = 0
        if self._log.schema.get(CONSUMER_SPACE) is not None:
            row = self._log.get(CONSUMER_SPACE, (group, name, partition))
            if row is not None and isinstance(row[3], int):
                number = row[3]
        return Extent(number, number, 0)

    def chunk(self, topic: str, partition: int) -> Chunk:
        """The place as a bundle of one message with its number."""
        place = self.place(topic, partition)
        data = encode_bundle([Message(place.last, 0, None, b"")], sparse=True)
        framed = encode_varint(len(data)) + data
        return Chunk(place.first, True, (framed,), len(framed))

    def store(self, group: Group, append: Append, writing: Writing) -> Outcome:
        """Set a place, in a group of the store."""
        consumers, _, name = append.topic.removeprefix(CONSUMER_PREFIX).partition("/")
        space = group.schema.get(CONSUMER_SPACE)
        if space is None:
            return FAILED
        number = append.first or append.head.first
        if not number:
            return Outcome(PublishResult.BAD_NUMBERS)
        row = [consumers, name, append.partition, number, append.time_ms]
        group.execute(Request(RowType.REPLACE, space.id, tuple=pack(row)))
        writing.wrote(space.id, append.partition, number, 1)
        return Outcome(PublishResult.STORED)

    def need_space(self) -> None:
        """Make the space of the places if there is none."""
        if self._log.schema.get(CONSUMER_SPACE) is None:
            self._log.create_space(
                CONSUMER_SPACE,
                CONSUMER_FIELDS,
                primary=["group", "topic", "partition"],
                if_not_exists=True,
            )


def topic_of(name: str) -> str:
    """The topic that a name is about: itself, or that of a group's places."""
    if name.startswith(CONSUMER_PREFIX):
        return name.removeprefix(CONSUMER_PREFIX).partition("/")[2]
    return name


def is_group(name: str) -> bool:
    """Whether a name of a group's places has a group, in text that can be stored."""
    group, slash, _ = name.removeprefix(CONSUMER_PREFIX).partition("/")
    return bool(group and slash) and name.isprintable()
