"""Places of consumer groups, kept at the broker under names ``consumer:GROUP/TOPIC``, and who of a
group has which partition, under ``group:GROUP/TOPIC`` (`groups`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.replication.topic.bundle import (
    Message,
    decode_bundle,
    encode_bundle,
    encode_varint,
)
from logweir.replication.topic.groups import (
    GROUP_FIELDS,
    GROUP_SPACE,
    Leases,
    Shares,
    read_shares,
)
from logweir.replication.topic.partition import Append, Chunk, Extent
from logweir.replication.topic.publishing import FAILED, Outcome, Writing
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.spaces import CONSUMER_FIELDS, CONSUMER_SPACE
from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.engine.definitions import SpaceSpec, create_space
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

GROUP_PREFIX: Final = "group:"
KEPT_PREFIXES: Final = ("consumer:", GROUP_PREFIX)
"""Of names that groups have."""


class ConsumerPlaces:
    """The places that a store keeps: per group, topic and partition one number. `leases`: of
    members of groups; `partitions`: how many a topic has."""

    def __init__(self, log: Log, leases: Leases, partitions: Callable[[str], int | None]) -> None:
        self._log = log
        self._leases = leases
        self._partitions = partitions

    def all(self) -> dict[tuple[str, int], dict[str, int]]:
        """Of each partition the groups that have a place in it."""
        places: dict[tuple[str, int], dict[str, int]] = {}
        if self._log.schema.get(CONSUMER_SPACE) is not None:
            for group, topic, partition, number, _ in self._log.select(CONSUMER_SPACE):
                place = (str(topic), int(str(partition)))
                places.setdefault(place, {})[str(group)] = int(str(number))
        return places

    def place(self, topic: str, partition: int) -> Extent:
        """What the name `topic` holds: its place as first and last number, 0 without one."""
        group, name = _parts_of(topic)
        number = 0
        if topic.startswith(GROUP_PREFIX):
            number = self._shares(group, name).generation
        elif self._log.schema.get(CONSUMER_SPACE) is not None:
            row = self._log.get(CONSUMER_SPACE, (group, name, partition))
            if row is not None and isinstance(row[3], int):
                number = row[3]
        return Extent(number, number, 0)

    def chunk(self, topic: str, partition: int) -> Chunk:
        """The place as a bundle of one message with its number, or who has what of a group."""
        place, content = self.place(topic, partition), b""
        if topic.startswith(GROUP_PREFIX):
            group, name = _parts_of(topic)
            shares = self._shares(group, name)
            place = Extent(shares.generation, shares.generation, 0)
            content = shares.told(self._partitions(name) or 0)
        data = encode_bundle([Message(place.last, 0, None, content)], sparse=True)
        framed = encode_varint(len(data)) + data
        return Chunk(place.first, True, (framed,), len(framed))

    def _shares(self, group: str, topic: str) -> Shares:
        with self._log.read_view() as view:
            return read_shares(view.engine, group, topic) or Shares()

    def store(self, group: Group, append: Append, writing: Writing) -> Outcome:
        """Set a place, or hear a member, in a group of the store."""
        if append.topic.startswith(GROUP_PREFIX):
            return self._beat(group, append, writing)
        consumers, name = _parts_of(append.topic)
        space = group.schema.get(CONSUMER_SPACE)
        shares = read_shares(group.engine, consumers, name)
        if space is None or shares is None:
            return FAILED
        number, message = append.first or append.head.first, _first(append)
        if not number or message is None or not shares.fits(append.partition, message.key):
            return Outcome(PublishResult.BAD_NUMBERS)
        row = [consumers, name, append.partition, number, append.time_ms]
        group.execute(Request(RowType.REPLACE, space.id, tuple=pack(row)))
        writing.wrote(space.id, append.partition, number, 1)
        return Outcome(PublishResult.STORED)

    def _beat(self, group: Group, append: Append, writing: Writing) -> Outcome:
        consumers, name = _parts_of(append.topic)
        space, count = group.schema.get(GROUP_SPACE), self._partitions(name)
        before = read_shares(group.engine, consumers, name)
        if space is None or count is None or before is None:
            return FAILED
        message, shares = _first(append), None
        if message is not None:
            said = message.key, message.content
            shares = self._leases.beat(consumers, name, before, *said, count)
        if shares is None:
            return Outcome(PublishResult.BAD_NUMBERS)
        if shares is not before:
            row = shares.row(consumers, name)
            group.execute(Request(RowType.REPLACE, space.id, tuple=row))
            writing.wrote(space.id, 0, shares.generation, 1)
        return Outcome(PublishResult.STORED)


def need_spaces(group: Group) -> None:
    """Make the spaces of places and groups in a group of the store, where there are none."""
    for name, fields, key in (
        (CONSUMER_SPACE, CONSUMER_FIELDS, ["group", "topic", "partition"]),
        (GROUP_SPACE, GROUP_FIELDS, ["group", "topic"]),
    ):
        if group.schema.get(name) is None:
            requests, _ = create_space(group.engine, SpaceSpec(name, fields, key))
            for request in requests:
                group.execute(request)


def _first(append: Append) -> Message | None:
    """The first message of a bundle; None if it has none."""
    try:
        return next(iter(decode_bundle(append.bundle)), None)
    except (DecodeError, LimitExceeded):
        return None


def _parts_of(name: str) -> tuple[str, str]:
    """The group and the topic of a name."""
    group, _, topic = name.partition(":")[2].partition("/")
    return group, topic


def topic_of(name: str) -> str:
    """The topic that a name is about: itself, or that of a group's places."""
    return _parts_of(name)[1] if name.startswith(KEPT_PREFIXES) else name


def is_group(name: str) -> bool:
    """Whether a name that a group has is whole, in text that can be stored."""
    return all(_parts_of(name)) and name.isprintable()
