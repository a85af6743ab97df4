"""Topics as spaces of a store: definitions, and the bundles in them. Synchronous, no sockets.

A topic is a space of its name, a tuple per bundle::

    partition unsigned, first unsigned, last unsigned, time unsigned, bundle varbinary

with primary key (partition, first); `time` is that of the first message in ms, `bundle` the bytes
as received. The space `logweir_topic` holds what else a topic is::

    name string, partitions unsigned, config string, created unsigned (Unix seconds)

Numbers: the first message of a partition is 1. An ordinary bundle gets last + 1 …, or the number
asked for if that is higher; then its numbers are written into it (it becomes a sparse one), so that
every stored ordinary bundle goes on exactly where the one before it ends. A sparse bundle has its
own numbers, which must be above the last one. The newest bundle of a partition is never removed, so
the last number is never forgotten.

The space `logweir_consumer` keeps places for groups of consumers::

    group string, topic string, partition unsigned, number unsigned, time unsigned (ms)

with primary key (group, topic, partition); `number` is the next one to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from logweir.errors import ErrorCode, RequestError
from logweir.limits import TANK_BUNDLE_BYTES
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import NUMBER_MAX, BundleHead, make_sparse
from logweir.replication.topic.config import TopicConfig, parse_config
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.views import is_view
from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, pieces, select
from logweir.store.schema.definition import TOPIC_FIELDS
from logweir.store.schema.values import LargeTuple
from logweir.wal.mp import unpack
from logweir.wal.xrow import RowType

TOPIC_SPACE: Final = "logweir_topic"
CONSUMER_SPACE: Final = "logweir_consumer"
LIST_FIELDS: Final = (
    ("name", "string"),
    ("partitions", "unsigned"),
    ("config", "string"),
    ("created", "unsigned"),
)
CONSUMER_FIELDS: Final = (
    ("group", "string"),
    ("topic", "string"),
    ("partition", "unsigned"),
    ("number", "unsigned"),
    ("time", "unsigned"),
)
_FAR: Final = 2**63
"""No partition gets so far by itself."""


@dataclass(frozen=True, slots=True)
class TopicDef:
    """One topic. `config_text`: as it was given; `config`: what it says."""

    name: str
    space_id: int
    partitions: int
    config_text: str
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """One tuple of a topic space, written by whomever."""

    partition: int
    first: int
    last: int
    time_ms: int
    data: bytes

    @property
    def is_readable(self) -> bool:
        """Whether consumers are given it."""
        return kernel.agrees(self.data, 0, len(self.data), self.first, self.last)


_IS_READABLE: Final = attrgetter("is_readable")


class Placed(NamedTuple):
    """A bundle with the numbers it got, as it is to be stored."""

    first: int
    last: int
    data: bytes | memoryview


# --- definitions ----------------------------------------------------------------------------------


def create_topic(
    log: Log,
    name: str,
    partitions: int,
    config: str = "",
    *,
    now_seconds: float,
    owner: int | None = None,
) -> None:
    """Make a topic and its space, in one transaction. `owner`: id of a user; None: admin.

    Raises `ConfigError`, and `RequestError` SPACE_EXISTS if a topic or a space has that name.
    """
    parse_config(config)
    with log.transaction() as tx:
        tx.create_space(TOPIC_SPACE, LIST_FIELDS, primary=["name"], if_not_exists=True)
        if tx.get(TOPIC_SPACE, name) is not None:
            raise RequestError(ErrorCode.SPACE_EXISTS, f"Topic '{name}' already exists")
        space_id = tx.create_space(name, TOPIC_FIELDS, primary=["partition", "first"])
        if owner is not None:
            tx.update("_space", space_id, [("=", 1, owner)])
        tx.insert(TOPIC_SPACE, (name, partitions, config, int(now_seconds)))


def topics_of(log: Log) -> Mapping[str, TopicDef]:
    """All topics by name."""
    with log.read_view() as view:
        schema = view.engine.schema
        space = schema.get(TOPIC_SPACE)
        if space is None:
            return {}
        found = {}
        for data in view.tuples(space):
            name, partitions, text, _ = unpack(data)
            stored = schema.get(name)
            if stored is not None and (stored.is_topic or not is_view(name)):
                found[name] = TopicDef(name, stored.id, partitions, text, parse_config(text))
        return found


def set_config(log: Log, name: str, config: str) -> None:
    """Change the configuration of a topic, or of a view if no topic has its name. Raises
    `ConfigError`, `RequestError`."""
    parse_config(config)
    if is_view(name) and name not in topics_of(log):
        log.create_space(TOPIC_SPACE, LIST_FIELDS, primary=["name"], if_not_exists=True)
        log.replace(TOPIC_SPACE, (name, 1, config, int(log.inner.now())))
        return
    _existing(log, name)
    log.update(TOPIC_SPACE, name, [["=", "config", config]])


def view_config(log: Log, name: str) -> tuple[str, TopicConfig]:
    """The configuration of a view, as text and what it says."""
    row = None if log.schema.get(TOPIC_SPACE) is None else log.get(TOPIC_SPACE, name)
    text = "" if row is None else str(row[2])
    return text, parse_config(text)


def set_partitions(log: Log, name: str, partitions: int) -> None:
    """Give a topic more partitions. Raises `RequestError`."""
    _existing(log, name)
    log.update(TOPIC_SPACE, name, [["=", "partitions", partitions]])


def delete_topic(log: Log, name: str) -> None:
    """Remove a topic with all its messages. Raises `RequestError`."""
    _existing(log, name)
    with log.transaction() as tx:
        tx.delete(TOPIC_SPACE, name)
        tx.drop_space(name)


def _existing(log: Log, name: str) -> TopicDef:
    topic = topics_of(log).get(name)
    if topic is None:
        raise RequestError(
            ErrorCode.NO_SUCH_SPACE,
            f"Topic '{name}' does not exist",
            hint="`logweir topic list` shows those that do",
        )
    return topic


# --- bundles --------------------------------------------------------------------------------------


def _stored(data: bytes) -> StoredBundle:
    return StoredBundle(*unpack(data)[:5])


def last_bundle(engine: Engine, space_id: int, partition: int) -> StoredBundle | None:
    """The newest bundle of a partition that consumers are given."""
    wanted = Select.of(engine.schema, space_id, [partition], iterator="REQ")
    return next(filter(_IS_READABLE, map(_stored, select(engine, wanted))), None)


def last_number(engine: Engine, space_id: int, partition: int) -> int:
    """The last number of a partition that is taken; 0: none. Of a tuple that consumers are not
    given it is the one that it stands under, if that leaves room for others."""
    taken = 0
    wanted = Select.of(engine.schema, space_id, [partition], iterator="REQ")
    for each in map(_stored, select(engine, wanted)):
        if each.is_readable:
            return max(taken, each.last)
        if each.first < _FAR:
            taken = max(taken, each.first)
    return taken


def oldest_bundle(engine: Engine, space_id: int, partition: int) -> StoredBundle | None:
    """The oldest bundle of a partition that consumers are given."""
    return next(filter(_IS_READABLE, bundles_from(engine, space_id, partition, 0)), None)


def tuples_from(
    engine: Engine, space_id: int, partition: int, number: int
) -> Iterator[tuple[int, bytes]]:
    """Stored tuples, several at a time, how many and they one behind the other, from the bundle on
    that holds `number`, or the next one after it; behind a partition's follow those of the next."""
    key = [partition, number]
    for data in select(engine, Select.of(engine.schema, space_id, key, iterator="LE")):
        try:
            place, _, last, _ = kernel.stored(data)
        except ValueError:
            continue  # nobody can read it
        if place == partition and last >= number:
            yield 1, data
            key = [partition, last + 1]
        break
    for piece in pieces(engine, Select.of(engine.schema, space_id, key, iterator="GE")):
        yield piece.block()


def bundles_from(
    engine: Engine, space_id: int, partition: int, first: int
) -> Iterator[StoredBundle]:
    """Bundles that begin at `first` or above, in order."""
    wanted = Select.of(engine.schema, space_id, [partition, first], iterator="GE")
    for data in select(engine, wanted):
        found = _stored(data)
        if found.partition != partition:
            return
        yield found


def place_bundle(
    data: bytes | memoryview, head: BundleHead, last: int, first: int | None
) -> Placed | PublishResult:
    """Which numbers a sound bundle gets after number `last`. `first`: the one asked for."""
    if head.sparse:
        if head.first <= last:
            return PublishResult.BAD_NUMBERS
        return Placed(head.first, head.last, data)
    begin = last + 1 if first is None else first
    end = begin + head.count - 1
    if begin <= last or end > NUMBER_MAX:
        return PublishResult.BAD_NUMBERS
    if begin > last + 1:
        data = make_sparse(data, begin)
    return Placed(begin, end, data)


def bundle_tuple(partition: int, placed: Placed, time_ms: int) -> LargeTuple:
    """The tuple of a bundle in MsgPack."""
    first, last, data = placed
    return LargeTuple(kernel.tuple_head(partition, first, last, time_ms, len(data)), data)


def insert_bundle(
    group: Group, space_id: int, partition: int, placed: Placed, time_ms: int
) -> PublishResult:
    """Store a bundle that has its numbers."""
    if len(placed.data) > TANK_BUNDLE_BYTES:
        return PublishResult.FAILED
    row = bundle_tuple(partition, placed, time_ms).joined()
    group.execute(Request(RowType.INSERT, space_id, tuple=row))
    return PublishResult.STORED
