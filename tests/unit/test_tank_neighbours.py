"""What stops one topic or partition of a broker, or cannot be read of it, holds nothing else up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.loops import run, until
from support.tankserving import contents, following, listening, ordinary

import logweir
from interop.tankmodel import MemoryStore
from logweir.errors import ConfigError
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.server import Server, ServerOptions
from logweir.replication.service.names import Names
from logweir.replication.stream.positions import gaps
from logweir.replication.tank.client import Client
from logweir.replication.tank.client.connection import fetches_of
from logweir.replication.tank.follow.importer import import_folder
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.messages import FetchPart, PublishPart
from logweir.replication.topic.bundle import Message, encode_bundle, encode_varint
from logweir.replication.topic.spaces import create_topic, set_config, topics_of
from logweir.replication.topic.trimming import retain

ODD = b"\x06" + ordinary(b"a")[1:]
"""One message, in a codec that nobody has."""


@pytest.fixture
def upstream() -> MemoryStore:
    """Topics a to d, each with two partitions of one message."""
    made = MemoryStore()
    for name in "abcd":
        made.create(name, 2)
        for partition in made.content[name]:
            partition.add(1, 1, ordinary(b"x"))
    return made


@pytest.fixture
def log(tmp_path: Path) -> logweir.Log:
    """A fresh store."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        yield opened


def test_odd_bundle_is_a_gap_and_all_around_it_is_stored(
    log: logweir.Log, upstream: MemoryStore
) -> None:
    """What is before and after it in its partition, and all other partitions."""

    async def test() -> None:
        upstream.content["b"][1].add(2, 2, ODD)
        upstream.content["b"][1].add(3, 3, ordinary(b"y"))
        async with listening(upstream) as url, following(log, str(url)) as runner:
            await until(lambda: runner.status.state is SourceState.FOLLOWING)
            assert [contents(log, name) for name in "acd"] == [[1]] * 3
            assert contents(log, "b", 1) == [1, 3]
            (gap,) = gaps(log)
            assert (gap.stream, gap.instance, gap.start, gap.end) == ("b", "1", 2, 2)
            assert "0x06" in gap.reason
            async with Client(url) as client, client.consumer("b", [1], start="begin") as reader:
                assert (await reader.get()).number == 1
                with pytest.raises(logweir.DecodeError):
                    await reader.get()
                assert (await reader.get()).number == 3

    run(test)


def test_partition_that_cannot_be_followed_stops_alone(
    log: logweir.Log, upstream: MemoryStore
) -> None:
    """One that lost data is told and stays at its place; the others go on. If it is the only one,
    the source stops."""

    async def test() -> None:
        upstream.content["c"][0].add(2, 9, ordinary(*[b"x"] * 8))
        async with listening(upstream) as url:
            async with following(log, str(url)) as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
            upstream.content["c"][0].bundles.pop()
            upstream.content["a"][0].add(2, 2, ordinary(b"new"))
            async with following(log, str(url)) as runner:
                await until(lambda: contents(log, "a") == [1, 2])
                await until(lambda: runner.status.stopped_parts)
                (reason,) = (runner.status.stopped_parts[part] for part in ("c/0",))
                assert "it ends at 1, here it has been read to 9" in reason
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
            async with following(log, f"{url}/c/0") as runner:
                await until(lambda: runner.status.state is SourceState.STOPPED)
        assert contents(log, "c") == [1, 2]

    run(test)


def test_name_that_is_taken_stops_that_topic(log: logweir.Log, upstream: MemoryStore) -> None:
    """A space that is no topic is not touched; with a name of its own the broker is followed."""
    log.create_space("b", [("id", "unsigned")])

    async def test() -> None:
        async with listening(upstream) as url:
            async with following(log, str(url)) as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert set(runner.status.stopped_parts) == {"b/0", "b/1"}
                assert "name=two" in runner.status.stopped_parts["b/0"]
                assert contents(log, "c") == [1]
            async with following(log, f"{url}?name=up") as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert runner.status.stopped_parts == {}
                assert contents(log, "up_b") == contents(log, "up_c") == [1]
        assert log.count("b") == 0

    run(test)


def test_sources_that_meet_in_a_name_are_refused(log: logweir.Log, upstream: MemoryStore) -> None:
    """Where the addresses tell, at the start; else the topic that another one fills stops."""
    twice = [parse_url("tank://h/t"), parse_url("tank://i/t")]
    apart = [parse_url("tank://h/t/0"), parse_url("tank://i/t/1"), parse_url("tank://i/t?name=x")]
    names = Names()

    async def test() -> None:
        with pytest.raises(ConfigError, match="name=two"):
            await Server(log, ServerOptions(follow=twice)).start()
        server = Server(log, ServerOptions())
        for url in apart:
            server.runner(url)
        async with (
            listening(upstream) as one,
            listening(upstream) as two,
            following(log, f"{one}/a", names) as first,
        ):
            await until(lambda: first.status.state is SourceState.FOLLOWING)
            async with following(log, str(two), names) as second:
                await until(lambda: second.status.state is SourceState.FOLLOWING)
                assert set(second.status.stopped_parts) == {"a/0", "a/1"}
                assert contents(log, "d") == [1]
            async with following(log, f"{two}?name=x", names) as third:
                await until(lambda: third.status.state is SourceState.FOLLOWING)
                assert third.status.stopped_parts == {}
                assert contents(log, "x_a") == [1]
        assert contents(log, "a") == [1]

    run(test)


def test_topics_are_chosen_by_the_address(log: logweir.Log, upstream: MemoryStore) -> None:
    """Lists and patterns; a place is kept when the choice changes."""

    async def test() -> None:
        async with listening(upstream) as url:
            async with following(log, f"{url}?topics=a,[cd]&skip=d,c/1") as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert set(topics_of(log)) == {"a", "c"}
                assert (contents(log, "c", 0), contents(log, "c", 1)) == ([1], [])
            async with following(log, f"{url}?skip=b") as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert set(topics_of(log)) == {"a", "c", "d"}
                assert contents(log, "c", 1) == [1]
            async with following(log, f"{url}?topics=x*,no") as runner:
                await until(lambda: "no topic 'x*,no'" in runner.status.last_error)
                upstream.create("xa", 1)
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert set(topics_of(log)) == {"a", "c", "d", "xa"}
        with pytest.raises(ConfigError, match="chooses topics"):
            Server(log, ServerOptions()).runner(parse_url(f"{url}/a?topics=b"))

    run(test)


def test_topics_of_more_than_255_partitions(log: logweir.Log) -> None:
    """No fetch names a topic twice, and all come: at once, and while a fetch waits; a consumer
    alike."""
    upstream = MemoryStore()
    upstream.create("wide", 300)
    upstream.create("other", 1)
    for partition in upstream.content["wide"]:
        partition.add(1, 1, ordinary(b"x"))
    parts = [FetchPart("wide", n, 1, 9) for n in range(300)] + [FetchPart("other", 0, 1, 9)]
    fetches = fetches_of(parts)
    assert [[name for name, _ in each.topics] for each in fetches] == [["wide", "other"], ["wide"]]
    assert sum(len(asked) for each in fetches for _, asked in each.topics) == 301
    assert all(len(encode_request(each)) for each in fetches)

    async def test() -> None:
        async with listening(upstream) as url, Client(url) as client:
            async with following(log, str(url)) as runner:
                await until(lambda: runner.status.state is SourceState.FOLLOWING)
                assert log.count("wide") == 300
                for partition in (299, 0):
                    await client.publish([PublishPart("wide", partition, ordinary(b"y"))])
                    await until(lambda n=partition: contents(log, "wide", n) == [1, 2])
            async with client.consumer("wide", start="begin") as consumer:
                seen = [await consumer.get() for _ in range(302)]
                assert len({(record.partition, record.number) for record in seen}) == 302
                await client.publish([PublishPart("wide", 260, ordinary(b"z"))])
                assert (await consumer.get()).content == b"z"

    run(test)


def test_import_leaves_out_a_topic_with_a_hole(log: logweir.Log, tmp_path: Path) -> None:
    """And takes the others; by name it is not even looked at."""
    base = tmp_path / "data"
    for name, partitions in (("a", (1,)), ("b", (0, 1))):
        for partition in partitions:
            (base / name / str(partition)).mkdir(parents=True)
            bundle = ordinary(b"x")
            path = base / name / str(partition) / "1.log"
            path.write_bytes(encode_varint(len(bundle)) + bundle)
    found = import_folder(log, base)
    assert [(one.topic, one.messages, len(one.problems)) for one in found] == [
        ("a", 0, 1),
        ("b", 1, 0),
        ("b", 1, 0),
    ]
    assert "partition 0 is missing" in found[0].problems[0].message
    assert [one.problems for one in import_folder(log, base, topics=["b"])] == [[], []]
    shutil.rmtree(base / "b")
    (only,) = import_folder(log, base)
    assert only.problems


def test_retention_by_arrival_keeps_what_a_producer_dates_back(log: logweir.Log) -> None:
    """Times of messages are the producer's: one whose clock is years behind loses what it sent,
    unless the topic counts from the arrival."""

    old = encode_bundle([Message(0, 5, None, b"x")])
    by_arrival = "logweir.retention.time = arrival"
    for name, config in (("by", by_arrival), ("sent", by_arrival), ("not", "")):
        create_topic(
            log, name, 1, f"log.retention.secs = 1h\n{config}\n", now_seconds=log.inner.now()
        )
    upstream = MemoryStore()
    for name in ("by", "not"):
        upstream.create(name, 1)
        for first in (1, 2):
            upstream.content[name][0].add(first, first, old)

    async def test() -> None:
        async with listening(upstream) as url, following(log, str(url)) as runner:
            await until(lambda: runner.status.state is SourceState.FOLLOWING)
        server = Server(
            log, ServerOptions(listen=[parse_listen_url("tank://127.0.0.1:0")], guest="all")
        )
        (url,) = await server.start()
        try:
            async with Client(url) as client:
                for name in ("by", "sent", "not"):
                    await client.publish([PublishPart(name, 0, old)] * 2)
        finally:
            await server.stop()

    run(test)
    now_ms = int(log.inner.now() * 1000)
    topics = topics_of(log)
    gone = {name: retain(log, topics[name], now_ms) for name in ("by", "sent", "not")}
    assert gone == {"by": 0, "sent": 0, "not": 3}  # the newest bundle always stays
    later_ms = now_ms + 2 * 3600 * 1000
    assert [retain(log, topics[name], later_ms) for name in ("by", "sent")] == [3, 1]
    with pytest.raises(ConfigError, match="message or arrival"):
        set_config(log, "by", "logweir.retention.time = never")
