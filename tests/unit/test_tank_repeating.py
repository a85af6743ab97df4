"""A producer that may repeat stores each message once, whatever became of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import tankserving

import logweir
from logweir.errors import ConfigError, PeerRefused, Unreachable
from logweir.replication.tank.client import Client, repeating
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.spaces import create_topic, set_partitions

Publish = Callable[..., Any]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "pause_seconds", lambda _: 0)


@asynccontextmanager
async def served(folder: Path, partitions: int = 2) -> AsyncIterator[tuple[logweir.Log, Client]]:
    """A topic t, and a client of it."""
    with logweir.open(folder) as log:
        create_topic(log, "t", partitions, "", now_seconds=1)
        async with tankserving.served(log) as url, Client(url) as client:
            yield log, client


async def stored(client: Client, partition: int = 0) -> list[bytes]:
    """What a partition holds."""
    async with client.consumer("t", [partition]) as consumer:
        return [record.content for record in await consumer.get_many(wait_ms=0)]


def breaking(client: Client, when: Sequence[str]) -> Publish:
    """Let connections break around the next publishes: "before" or "after" they are stored. Returns
    what publishes without breaking."""
    publish, left = client.publish, list(when)

    async def broken(parts: Sequence[PublishPart], *, at_numbers: bool = False) -> Any:
        where = left.pop(0) if left else ""
        if where == "before":
            raise Unreachable("tank://broker", "test")
        results = await publish(parts, at_numbers=at_numbers)
        if where == "after":
            raise Unreachable("tank://broker", "test")
        return results

    client.publish = broken  # type: ignore[method-assign]
    return publish


@pytest.mark.parametrize(
    "when", [["before"], ["after"], ["after", "before", "after"], ["before", "after", "after"]]
)
def test_what_is_in_doubt_is_stored_once(tmp_path: Path, when: Sequence[str]) -> None:
    """Connections that break before and after a publish is stored, in every bundle's way."""

    async def test() -> None:
        async with served(tmp_path / "s") as (_, client):
            breaking(client, when)
            async with client.producer(batch_messages=3, repeat_seconds=60) as producer:
                sent = [await producer.send("t", b"%d" % n, partition=n % 2) for n in range(20)]
            await asyncio.gather(*sent)
            for partition in (0, 1):
                wanted = [b"%d" % n for n in range(partition, 20, 2)]
                assert await stored(client, partition) == wanted

    asyncio.run(test())


def test_numbers_that_somebody_else_took_are_given_anew(tmp_path: Path) -> None:
    """Another producer publishes between the attempts, and beside one that is not in doubt."""

    async def test() -> None:
        async with served(tmp_path / "s") as (_, client):
            other = [PublishPart("t", 0, encode_bundle([Message(0, 1, None, b"other")]))]
            producer = client.producer(linger_seconds=0, repeat_seconds=60)
            await producer.send_and_wait("t", b"one", partition=0)
            await client.publish(other)
            await producer.send_and_wait("t", b"two", partition=0)
            publish = breaking(client, ["before"])
            waiting = asyncio.ensure_future(producer.send_and_wait("t", b"three", partition=0))
            assert await publish(other) == [PublishResult.STORED]
            await waiting
            assert await stored(client) == [b"one", b"other", b"two", b"other", b"three"]

    asyncio.run(test())


def test_it_is_given_up_and_refused_as_before(tmp_path: Path) -> None:
    """Behind its time; what no broker takes; and what is in doubt and there no more."""

    async def test() -> None:
        async with served(tmp_path / "s") as (_, client):
            producer = client.producer(linger_seconds=0, repeat_seconds=60)
            for topic, partition in (("nosuch", 0), ("t", 9)):
                with pytest.raises(PeerRefused, match=r"no topic|unknown partition"):
                    await producer.send_and_wait(topic, b"x", partition=partition)
            await producer.send_and_wait("t", b"one", partition=0)
            breaking(client, ["after"])

            async def nothing(*_: object) -> Sequence[Message]:
                return ()

            client.bundle_at = nothing  # type: ignore[method-assign]
            with pytest.raises(Unreachable, match="not known"):
                await producer.send_and_wait("t", b"two", partition=0)
            hasty = client.producer(linger_seconds=0, repeat_seconds=1e-9)
            publish = breaking(client, ["before"] * 9)
            with pytest.raises(Unreachable):
                await hasty.send_and_wait("t", b"x", partition=0)
            client.publish = publish  # type: ignore[method-assign]
            await hasty.send_and_wait("t", b"three", partition=0)
            assert await stored(client) == [b"one", b"two", b"three"]
            with pytest.raises(ConfigError):
                client.producer(repeat_seconds=-1)

    asyncio.run(test())


def test_what_is_in_doubt_stays_so_while_nothing_can_be_stored(tmp_path: Path) -> None:
    """A broker whose disk is full refuses all that comes together, also what it has already: that
    is no word that it was not stored."""

    async def test() -> None:
        async with served(tmp_path / "s") as (_, client):
            breaking(client, ["after"])
            publish, left = client.publish, [Unreachable, PublishResult.FAILED]

            async def full(parts: Sequence[PublishPart], *, at_numbers: bool = False) -> Any:
                if not left or left.pop(0) is Unreachable:
                    return await publish(parts, at_numbers=at_numbers)
                return [PublishResult.FAILED] * len(parts)

            client.publish = full  # type: ignore[method-assign]
            producer = client.producer(linger_seconds=0, repeat_seconds=60)
            await producer.send_and_wait("t", b"one", partition=0)
            assert await stored(client) == [b"one"]
            left[:] = [PublishResult.FAILED]
            with pytest.raises(PeerRefused):  # that was sent once
                await producer.send_and_wait("t", b"two", partition=0)

    asyncio.run(test())


def test_a_consumer_reads_partitions_that_come_later(tmp_path: Path) -> None:
    """From their first message on; not one that was told which to read."""

    async def test() -> None:
        async with (
            served(tmp_path / "s", 1) as (log, client),
            client.consumer("t", start="end") as consumer,
            client.consumer("t", [0], start="end") as chosen,
        ):
            set_partitions(log, "t", 3)
            async with client.producer() as producer:
                for n in range(3):
                    await producer.send("t", b"%d" % n, partition=n)
            consumer._looked = chosen._looked = -1e9
            assert {(await consumer.get()).content for _ in range(3)} == {b"0", b"1", b"2"}
            assert (await chosen.get()).content == b"0"
            assert await chosen.get_many(wait_ms=0) == []

    asyncio.run(test())
