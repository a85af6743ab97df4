"""What others write into the space of a topic while it is served: nobody misses a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from support.loops import run
from support.tankserving import contents, opened, ordinary, other, served, somebody_waits

import logweir
from logweir.replication.tank.client import Client
from logweir.replication.tank.wire.messages import (
    Fetch,
    FetchPart,
    FetchStatus,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic import store as stored_topics
from logweir.replication.topic.bundle import Message, encode_bundle, split_chunk
from logweir.replication.topic.partition import Extent
from logweir.replication.topic.readahead import ReadAhead
from logweir.replication.topic.spaces import create_topic, delete_topic, topics_of


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A fresh store with a topic of two partitions."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        create_topic(opened, "t", 2, now_seconds=opened.inner.now())
        yield opened


def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others write is looked for the first time only, as when it was looked for just now."""
    monkeypatch.setattr(stored_topics, "LOOK_SECONDS", 3600.0)


def test_who_waits_gets_what_others_wrote_just_before_a_publish(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that was not looked for yet when the bundle of the publish came."""
    never_by_itself(monkeypatch)

    async def test() -> None:
        async with (
            served(log) as url,
            Client(url) as client,
            Client(url) as publisher,
            aclosing(aiter(client.consumer("t", [0]))) as messages,
        ):
            waiting = asyncio.ensure_future(anext(messages))
            await somebody_waits(url)
            log.insert("t", other(1))
            assert (await waiting).number == 1
            waiting = asyncio.ensure_future(anext(messages))
            await somebody_waits(url)
            log.insert("t", other(2))
            part = PublishPart("t", 0, ordinary(b"x"))
            assert await publisher.publish([part]) == [PublishResult.STORED]
            assert [(await waiting).number, (await anext(messages)).number] == [2, 3]

    run(test)


def test_no_answer_has_messages_above_its_high_water_mark(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients in the field drop such ones: those of others are given when the mark has them."""
    never_by_itself(monkeypatch)

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            connection = await client.connection()
            for number, mark in enumerate((1, 2, 2)):  # the second is looked for, the third not yet
                fetch = Fetch(0, (("t", (FetchPart("t", 0, 1, 10_000 + number),)),))
                (part,) = (await connection.fetch(fetch)).parts
                found = part.high_water_mark, len(split_chunk(part.chunk)[0])
                assert found == (mark, mark)
                log.insert("t", other(number + 2))

    run(test)


def test_who_waits_hears_of_a_message_that_came_as_another_went(log: logweir.Log) -> None:
    """As where retention and a publish of an upstream come together: as many bundles as before."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            async with aclosing(aiter(client.consumer("t", [0]))) as messages:
                assert (await anext(messages)).number == 1
                waiting = asyncio.ensure_future(anext(messages))
                await somebody_waits(url)
                with log.transaction() as tx:
                    tx.insert("t", other(2))
                    tx.delete("t", (0, 1))
                assert (await waiting).number == 2
            (state, _) = await client.partitions("t")
            assert (state.first, state.last) == (2, 2)

    run(test)


def test_who_waits_hears_of_it_though_another_partition_was_looked_up_since(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that one found of the space is not what those that wait have seen."""
    never_by_itself(monkeypatch)

    async def test() -> None:
        async with opened(log) as topics:
            told: set[tuple[str, int]] = set()
            topics.on_published(told.update)
            assert topics.extent("t", 0) == Extent(0, 0, 0)
            log.insert("t", other(1))  # within this turn nothing is looked for
            assert topics.extent("t", 1) == Extent(0, 0, 0)
            await asyncio.sleep(0)
            assert ("t", 0) in told
            assert topics.extent("t", 0).last == 1  # type: ignore[union-attr]

    run(test)


def test_a_bundle_that_others_changed_is_not_given_as_it_was(log: logweir.Log) -> None:
    """What was read before is read anew."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(b"x")) for _ in range(2)])
            assert [one.content for one in await client.bundle_at("t", 0, 1)] == [b"x"]
            log.replace("t", other(1))
            assert [one.content for one in await client.bundle_at("t", 0, 1)] == [b"y"]

    run(test)


@pytest.mark.parametrize("how", ["deleted and made again", "emptied"])
def test_a_topic_that_begins_anew_is_told_and_followed(log: logweir.Log, how: str) -> None:
    """Who waited behind what it had hears that it is not there any more, and of what comes then."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client, Client(url) as publisher:
            await publisher.publish([PublishPart("t", 0, ordinary(b"x")) for _ in range(5)])
            connection = await client.connection()
            fetch = Fetch(0, (("t", (FetchPart("t", 0, 6, 1000),)),), max_wait_ms=3_600_000)
            waiting = asyncio.ensure_future(connection.fetch(fetch))
            await somebody_waits(url)
            if how == "emptied":
                with log.transaction() as tx:
                    for number in range(1, 6):
                        tx.delete("t", (0, number))
            else:
                delete_topic(log, "t")
                create_topic(log, "t", 2, now_seconds=0)
            assert not (await waiting).parts[0].chunk
            (part,) = (await connection.fetch(fetch)).parts
            assert (part.status, part.high_water_mark) == (FetchStatus.BOUNDARY, 0)
            async with aclosing(aiter(client.consumer("t", [0], start="end"))) as messages:
                following = asyncio.ensure_future(anext(messages))
                await somebody_waits(url)
                await publisher.publish([PublishPart("t", 0, ordinary(b"new"))])
                assert ((await following).number, (await following).content) == (1, b"new")

    run(test)


TWO = encode_bundle([Message(0, 5, None, b"2")] * 2)
SPARSE = encode_bundle([Message(9, 5, None, b"9"), Message(11, 5, None, b"9")], sparse=True)
MANY = encode_bundle([Message(0, 5, None, b"m")] * 17)


@pytest.mark.parametrize(
    ("first", "last", "data"),
    [
        (3, 9, TWO),
        (3, 3, TWO),
        (3, 5, SPARSE),
        (9, 12, SPARSE),
        (9, 2**64 - 2, SPARSE),
        (3, 18, MANY),
        (3, 3, b"\x06" + ordinary(b"x")[1:]),
        (3, 3, b"\x84" + ordinary(b"x")[1:]),
        (3, 3, b"\x00\x80"),
        (3, 3, b"\x44\x03"),
        (9, 11, SPARSE[:9]),
        (2**64 - 1, 2**64 - 1, ordinary(b"x")),
        (2**64 - 2, 2**64 - 1, TWO),
    ],
)
def test_a_bundle_with_other_numbers_than_its_tuple_is_passed_over(
    log: logweir.Log, caplog: pytest.LogCaptureFixture, first: int, last: int, data: bytes
) -> None:
    """By consumers, who count on from bundle to bundle; and publishers go on, whatever it says."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            part = PublishPart("t", 0, ordinary(b"x"))
            assert await client.publish([part] * 2) == [PublishResult.STORED] * 2
            log.insert("t", (0, first, last, 0, data))
            assert await client.publish([part] * 2) == [PublishResult.STORED] * 2
            begin = 3 if first >= 2**63 else first + 1
            assert contents(log, "t") == sorted([1, 2, first, begin, begin + 1])
            async with aclosing(aiter(client.consumer("t", [0]))) as messages:
                found = [await anext(messages) for _ in range(4)]
            assert [one.number for one in found] == [1, 2, begin, begin + 1]
            assert {one.content for one in found} == {b"x"}
            assert "topic.malformed" in caplog.text or first >= 2**63

    run(test)


@pytest.mark.parametrize(("first", "last", "data"), [(9, 11, SPARSE), (3, 19, MANY), (3, 4, TWO)])
def test_a_bundle_with_the_numbers_of_its_tuple_is_given(
    log: logweir.Log, first: int, last: int, data: bytes
) -> None:
    """As others wrote it, and publishers go on behind it."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            log.insert("t", (0, first, last, 0, data))
            part = PublishPart("t", 0, ordinary(b"x"))
            assert await client.publish([part]) == [PublishResult.STORED]
            read = ReadAhead(log).take(topics_of(log)["t"], 0, first, 10_000, last + 1)
            chunk = b"".join(read.chunk.pieces)
            assert split_chunk(chunk)[0] == [data, ordinary(b"x")]
            assert (await client.partitions("t"))[0].last == last + 1

    run(test)


def test_publishers_go_on_behind_a_bundle_that_others_wrote_into(log: logweir.Log) -> None:
    """Not under its numbers, though the newest tuple stands under a lower one and is no bundle."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(*[b"x"] * 6))])
            for number in (2, 3):
                log.insert("t", (0, number, number, 0, b""))
            await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            assert contents(log, "t") == [1, 2, 3, 7]

    run(test)
