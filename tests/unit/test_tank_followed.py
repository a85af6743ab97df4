"""Topics that are followed from another broker into a store."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loops import run, until
from support.tankserving import FOLDER, contents, following, listening, ordinary, served

import logweir
from interop.tankmodel import MemoryStore
from logweir.errors import ConfigError
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.stream.positions import gaps, position
from logweir.replication.tank.client import Client
from logweir.replication.tank.follow.importer import import_folder
from logweir.replication.tank.follow.source import TankSource
from logweir.replication.tank.wire.codec import PING
from logweir.replication.tank.wire.messages import PublishPart
from logweir.replication.topic.bundle import (
    Message,
    decode_bundle,
    encode_bundle,
    encode_varint,
)

PARTITIONS = 6  # a request's kind


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        yield opened


def test_all_partitions_of_all_topics_are_followed(log: logweir.Log, tmp_path: Path) -> None:
    """The real broker's data, byte for byte, then what is published, then a new topic."""

    async def test() -> None:
        with logweir.open(tmp_path / "upstream", durability="write") as upstream:
            await asyncio.to_thread(import_folder, upstream, FOLDER)
            async with served(upstream) as url, Client(url) as client:
                async with following(log, str(url)) as runner:
                    await until(lambda: runner.status.state is SourceState.FOLLOWING)
                    for topic in ("events", "logs", "orders"):
                        assert log.select(topic) == upstream.select(topic)
                    await client.publish([PublishPart("orders", 0, ordinary(b"new"))])
                    await until(lambda: contents(log, "orders")[-1] == 90001)
                    assert not gaps(log)
                assert position(log, f"tank://127.0.0.1:{url.port}", "orders", "0") == {
                    "next": 90002
                }
                await client.publish([PublishPart("orders", 0, ordinary(b"more"))])
                async with following(log, f"{url}/orders/0"):
                    await until(lambda: contents(log, "orders")[-1] == 90002)
                assert log.select("orders") == upstream.select("orders")

    run(test)


def test_numbers_that_the_broker_no_longer_has_are_a_gap(log: logweir.Log) -> None:
    """At the beginning and in the middle; following goes on."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        upstream.content["t"][0].add(100, 101, ordinary(b"a", b"b"))
        async with listening(upstream) as url:
            async with following(log, f"{url}/t"):
                await until(lambda: contents(log, "t") == [100])
            upstream.content["t"][0].bundles.clear()
            upstream.content["t"][0].add(200, 200, ordinary(b"c"))
            async with following(log, f"{url}/t"):
                await until(lambda: contents(log, "t") == [100, 200])
        assert [(gap.start, gap.end) for gap in gaps(log)] == [(1, 99), (102, 199)]
        assert {gap.reason for gap in gaps(log)} == {"the broker no longer has them"}

    run(test)


def test_bundles_of_a_broker_that_overlap_are_taken_once(log: logweir.Log) -> None:
    """Each number as it came first; the rest of the later bundle, and what comes after it."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        content = upstream.content["t"][0]
        content.add(1, 3, ordinary(b"a", b"b", b"c"))
        late = [Message(n, 7, None, b"late") for n in (2, 3, 5)]
        content.add(2, 5, encode_bundle(late, sparse=True))
        content.add(6, 6, ordinary(b"d"))
        async with listening(upstream) as url, following(log, f"{url}/t") as runner:
            await until(lambda: runner.status.state is SourceState.FOLLOWING)
            async with (
                served(log) as ours,
                Client(ours) as client,
                client.consumer("t") as consumer,
            ):
                got = [await consumer.get() for _ in range(5)]
        assert [(one.number, one.content) for one in got] == [
            *((1, b"a"), (2, b"b"), (3, b"c"), (5, b"late"), (6, b"d"))
        ]
        assert not gaps(log)

    run(test)


def test_bundles_of_a_folder_that_overlap_are_taken_once(log: logweir.Log, tmp_path: Path) -> None:
    """As those of a broker, with the numbers that it gives them."""
    folder = tmp_path / "broker" / "t" / "0"
    folder.mkdir(parents=True)
    late = encode_bundle([Message(n, 7, None, b"late") for n in (2, 3, 5)], sparse=True)
    bundles = (ordinary(b"a", b"b", b"c"), late, ordinary(b"d"))
    data = b"".join(encode_varint(len(one)) + one for one in bundles)
    (folder / "1_9.log").write_bytes(data)
    (found,) = import_folder(log, tmp_path / "broker")
    assert (found.problems, found.first, found.last) == ([], 1, 6)
    stored = [
        (each.number, each.content)
        for row in log.select("t")
        for each in decode_bundle(row[4], row[1])
    ]
    assert stored == [(1, b"a"), (2, b"b"), (3, b"c"), (5, b"late"), (6, b"d")]
    assert not gaps(log)


@pytest.mark.parametrize(("start", "wanted"), [("end", []), ("0.025", [3]), ("0.0005", [1, 2, 3])])
def test_what_there_is_begins_where_the_address_says(
    log: logweir.Log, start: str, wanted: list[int]
) -> None:
    """At the end or from a time on, noted before anything is read; what comes is not left out, nor
    are topics that come later."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        for number in (1, 2, 3):
            one = encode_bundle([Message(0, 10 * number, None, b"x")])
            upstream.content["t"][0].add(number, number, one)
        async with listening(upstream) as url:
            async with following(log, f"{url}?start={start}") as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                await until(lambda: contents(log, "t") == wanted)
                noted = position(log, f"tank://127.0.0.1:{url.port}", "t", "0")
                assert noted == {"next": 4}
            upstream.create("later", 1)
            upstream.content["later"][0].add(1, 1, ordinary(b"a"))
            upstream.content["t"][0].add(4, 4, ordinary(b"b"))
            async with following(log, f"{url}?start={start}"):
                await until(lambda: contents(log, "t") == [*wanted, 4])
                await until(lambda: contents(log, "later") == [1])
        assert not gaps(log)

    run(test)


def test_a_start_that_is_no_time_is_refused(log: logweir.Log) -> None:
    """When the address is read."""
    with pytest.raises(ConfigError, match="no time"):
        TankSource(parse_url("tank://127.0.0.1?start=soon"), log)


def test_broker_that_lost_data_stops_the_source(log: logweir.Log) -> None:
    """Nothing is rewound, the state says why."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        upstream.content["t"][0].add(1, 2, ordinary(b"a", b"b"))
        async with listening(upstream) as url:
            async with following(log, f"{url}/t"):
                await until(lambda: contents(log, "t") == [1])
            upstream.create("t", 1)
            upstream.content["t"][0].add(1, 1, ordinary(b"a"))
            async with following(log, f"{url}/t") as runner:
                await until(lambda: runner.status.state is SourceState.STOPPED)
                assert "has been read to 2" in runner.status.last_error
        assert contents(log, "t") == [1]

    run(test)


def test_bundle_that_nobody_can_read_is_a_gap(log: logweir.Log) -> None:
    """A real broker stores such bundles; the next ones are taken."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        bad = ordinary(b"a", b"b")[:-1] + b"\0\0"
        for first, data in ((1, ordinary(b"x")), (2, bad), (4, ordinary(b"y"))):
            upstream.content["t"][0].add(first, first + (data is bad), data)
        async with listening(upstream) as url, following(log, f"{url}/t"):
            await until(lambda: contents(log, "t") == [1, 4])
        (gap,) = gaps(log)
        assert (gap.start, gap.end) == (2, 3)

    run(test)


def test_publishing_here_to_a_followed_topic_stops_the_source(log: logweir.Log) -> None:
    """Numbers of the upstream would be taken."""

    async def test() -> None:
        upstream = MemoryStore()
        upstream.create("t", 1)
        upstream.content["t"][0].add(1, 1, ordinary(b"a"))
        async with listening(upstream) as url:
            async with following(log, f"{url}/t"):
                await until(lambda: contents(log, "t") == [1])
            log.insert("t", (0, 2, 2, 5, ordinary(b"mine")))
            upstream.content["t"][0].add(2, 2, ordinary(b"theirs"))
            async with following(log, f"{url}/t") as runner:
                await until(lambda: runner.status.state is SourceState.STOPPED)
                assert "publishes here" in runner.status.last_error

    run(test)


def test_addresses_that_cannot_be_followed_say_why(log: logweir.Log) -> None:
    """A partition that is no number, one that is not there, a topic that is not there."""

    async def test() -> None:
        with pytest.raises(ConfigError):
            TankSource(parse_url("tank://h/t/x"), log)
        upstream = MemoryStore()
        upstream.create("t", 1)
        async with listening(upstream) as url:
            async with following(log, f"{url}/t/7") as runner:
                await until(lambda: runner.status.state is SourceState.STOPPED)
                assert "has 1 partition." in f"{runner.status.last_error}."
            async with following(log, f"{url}/nosuch") as runner:
                await until(lambda: runner.status.state is SourceState.WAITING)
                assert "no topic 'nosuch'" in runner.status.last_error
                assert "the nearest first: t" in runner.status.last_error
            source = TankSource(parse_url(f"{url}/nosuch"), log)
            status = await Runner(source, metrics=Metrics(), once=True).run()
            assert status.state is SourceState.STOPPED
            assert "no topic 'nosuch'" in status.last_error

    run(test)


def test_a_broker_that_does_not_tell_its_topics_lacks_one_all_the_same(log: logweir.Log) -> None:
    """One of before October 2021 hangs up on who asks for them."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PING)
        kind = PARTITIONS
        while kind in (PARTITIONS, PING[0]):
            kind, size = struct.unpack("<BI", await reader.readexactly(5))
            payload = await reader.readexactly(size)
            if kind == PARTITIONS:  # its id and the topic's name again, and none
                answer = payload + bytes(2)
                writer.write(struct.pack("<BI", kind, len(answer)) + answer)
        writer.close()
        await writer.wait_closed()

    async def test() -> None:
        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            source = TankSource(parse_url(f"tank://127.0.0.1:{port}/nosuch"), log)
            status = await Runner(source, metrics=Metrics(), once=True).run()
            assert status.state is SourceState.STOPPED
            assert "no topic 'nosuch'" in status.last_error

    run(test)
