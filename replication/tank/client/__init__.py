"""A client for Tank brokers, logweir's and others: publish in batches, consume from any place.

::

    async with Client("tank://127.0.0.1:11011") as client:
        async with client.producer() as producer:
            await producer.send("events", b"hello", key=b"user:1")
        async with client.consumer("events", start="begin") as consumer:
            async for record in consumer:
                print(record.partition, record.number, record.content)

A broker does not tell the numbers that it assigned, and a publish whose connection broke may or
may not have happened: the caller gets `Unreachable` then and decides; a producer with
`repeat_seconds` publishes it again. A consumer keeps its own place (`position`, `seek…`),
reconnects and goes on there; `commit` and `committed` keep it at a logweir broker under the name of
a group, whose members may share the partitions (`member`).
`logweir.replication.tank.client.sync` has the same without asyncio.

Source: Tank 4.0 and its clients, observed: a high water mark in an answer without data may be too
low, so a place never comes from it; what was published below min bytes is not shown when a wait
ends, so "end" is looked up and then asked for by its number; a last bundle may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from logweir.limits import CONNECT_SECONDS
from logweir.replication.dialer import Reconnecting
from logweir.replication.tank.client.connection import Connection, refused
from logweir.replication.tank.client.consumer import Consumer, ConsumerOptions, Record, Start
from logweir.replication.tank.client.member import Member
from logweir.replication.tank.client.producer import Producer, ProducerOptions
from logweir.replication.tank.wire.address import SCHEMES
from logweir.replication.tank.wire.messages import (
    Create,
    CreateAnswer,
    CreateError,
    PartitionState,
    Publish,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    ReloadError,
    Status,
    StatusAnswer,
    Topics,
    TopicsAnswer,
)
from logweir.replication.topic.bundle import Message
from logweir.replication.urls import Url

__all__ = ["Client", "Consumer", "ConsumerOptions", "Member", "Record", "Start"]


class Client(Reconnecting[Connection]):
    """One broker. Connects when it is first needed, and again when the connection was lost."""

    schemes = SCHEMES

    def __init__(
        self, url: str | Url = "tank://127.0.0.1:11011", *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        super().__init__(url)
        self._connect_seconds = connect_seconds

    async def _connect(self) -> Connection:
        return await Connection.open(self.url, timeout_seconds=self._connect_seconds)

    # --- topics -----------------------------------------------------------------------------------

    async def topics(self) -> Sequence[tuple[str, bool, int]]:
        """(name, enabled, number of partitions) of every topic."""
        return (await (await self.connection()).answer(Topics(0), TopicsAnswer)).topics

    async def partitions(self, topic: str) -> Sequence[PartitionState]:
        """First and last number of each partition, 0 and 0 if never written.

        Raises `PeerRefused` for an unknown topic.
        """
        return await (await self.connection()).states(topic)

    async def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic. `config`: see `logweir.replication.topic.config`. Raises `PeerRefused`."""
        lines = "".join(f"{key}={value}\n" for key, value in (config or {}).items())
        request = Create(0, topic, partitions, lines.encode())
        answer = await (await self.connection()).answer(request, CreateAnswer)
        if answer.error is not CreateError.CREATED:
            raise refused(f"topic {topic!r}", answer.error)

    async def reload(self, topic: str, partition: int = 0) -> None:
        """Let the broker apply a changed configuration. Raises `PeerRefused`."""
        connection = await self.connection()
        answer = await connection.answer(Reload(0, topic, partition), ReloadAnswer)
        if answer.error is ReloadError.UNKNOWN_TOPIC:
            raise await connection.unknown(topic, answer.error)
        if answer.error is not ReloadError.DONE:
            raise refused(f"configuration of {topic}/{partition}", answer.error)

    async def status(self) -> StatusAnswer:
        """How the broker is."""
        return await (await self.connection()).answer(Status(0), StatusAnswer)

    # --- messages ---------------------------------------------------------------------------------

    async def publish(
        self, parts: Sequence[PublishPart], *, at_numbers: bool = False
    ) -> Sequence[PublishResult]:
        """Publish ready bundles in one request; the result of each, in order.

        Raises `Unreachable` if the connection broke: then nothing is known; `LimitExceeded` for
        more than 255 topics, or bundles of one: then nothing was sent.
        """
        groups: dict[str, list[int]] = {}
        for index, part in enumerate(parts):
            groups.setdefault(part.topic, []).append(index)
        request = Publish(
            0,
            tuple((topic, tuple(parts[i] for i in indexes)) for topic, indexes in groups.items()),
            at_numbers,
            client="logweir",
        )
        answered = await (await self.connection()).ask(request)
        out = [PublishResult.FAILED] * len(parts)
        for indexes, results in zip(groups.values(), answered.results, strict=True):
            for index, result in zip(indexes, results, strict=True):
                out[index] = result
        return out

    async def bundle_at(self, topic: str, partition: int, number: int) -> Sequence[Message]:
        """The messages of the bundle that holds a number, or of the next one; none where the broker
        has neither. Raises `DecodeError`, `Unreachable`."""
        return await (await self.connection()).bundle_at(topic, partition, number)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer over this client's connection; see `Producer`."""
        return Producer(self, **options)

    def consumer(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer over this client's connection; see `Consumer`."""
        return Consumer(self, topic, partitions, **options)

    def member(
        self, topic: str, *, lease_seconds: float = 10.0, **options: Unpack[ConsumerOptions]
    ) -> Member:
        """A consumer that shares the topic's partitions with the others of its `group`; see
        `Member`. Needs a logweir broker."""
        return Member(self, topic, lease_seconds=lease_seconds, **options)
