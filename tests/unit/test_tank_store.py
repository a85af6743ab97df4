"""Topics in a store: published over the wire, kept, imported, followed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loops import run, until
from support.tankserving import FOLDER, contents, decode_chunk, ordinary, served, somebody_waits

import logweir
from logweir.errors import ConfigError, PeerRefused, SourceStopped
from logweir.limits import TANK_UNSTORED_HERE_BYTES
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.stream.positions import gaps
from logweir.replication.tank.client import Client
from logweir.replication.tank.follow.cursor import ReceivedBundle
from logweir.replication.tank.follow.folder import read_folder
from logweir.replication.tank.follow.importer import import_folder
from logweir.replication.tank.follow.ingest import Batch, Intake
from logweir.replication.tank.wire.codec import encode_published, encode_request
from logweir.replication.tank.wire.messages import (
    Fetch,
    FetchPart,
    Publish,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic.bundle import (
    Message,
    decode_bundle,
    encode_bundle,
    encode_varint,
    make_sparse,
    split_chunk,
)
from logweir.replication.topic.spaces import (
    TOPIC_SPACE,
    create_topic,
    delete_topic,
    set_config,
    topics_of,
)
from logweir.replication.topic.trimming import compact, retain
from logweir.replication.urls import Url
from logweir.wal.mp import pack
from logweir.wal.xrow import decode_row


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        yield opened


async def everything(url: Url, topic: str, partition: int) -> list[bytes]:
    """The stored bundles of a partition as a client gets them."""
    out: list[bytes] = []
    async with Client(url) as client:
        states = await client.partitions(topic)
        wanted, last = states[partition].first, states[partition].last
        while wanted and wanted <= last:
            connection = await client.connection()
            part = FetchPart(topic, partition, wanted, 300)
            answer = await connection.fetch(Fetch(0, ((topic, (part,)),)))
            bundles, _ = split_chunk(answer.parts[0].chunk)
            assert bundles
            async with client.consumer(topic, [partition], start=wanted, fetch_bytes=300) as mine:
                found = await mine.get_many(10_000)
                wanted = found[-1].number + 1
            out += bundles
    return out


def test_what_was_published_is_there_after_the_store_was_closed(tmp_path: Path) -> None:
    """Topics, configuration, bundles byte for byte, numbers, the places of consumers."""
    sparse = encode_bundle([Message(n, 5, None, b"s") for n in (10, 15)], sparse=True)
    bundles = [ordinary(b"a", b"b"), sparse, ordinary(b"c")]

    async def first() -> None:
        with logweir.open(tmp_path / "s") as log:
            async with served(log) as url, Client(url) as client:
                await client.create_topic("t", 2, {"log.retention.bytes": "1g"})
                sent = [PublishPart("t", 1, bundle) for bundle in bundles]
                assert await client.publish(sent) == [PublishResult.STORED] * 3
                async with client.consumer("t", group="g") as consumer:
                    assert (await consumer.get()).number == 1
                    await consumer.commit()
                    assert await consumer.committed() == {0: 1, 1: 2}

    async def second() -> None:
        with logweir.open(tmp_path / "s") as log:
            assert topics_of(log)["t"].config.retention_bytes == 1 << 30
            async with served(log) as url, Client(url) as client:
                assert await everything(url, "t", 1) == bundles
                states = await client.partitions("t")
                assert [(s.first, s.last) for s in states] == [(0, 0), (1, 16)]
                async with client.consumer("t", group="g") as consumer:
                    assert (await consumer.get()).number == 2
                await client.publish([PublishPart("t", 1, ordinary(b"d"))])
                assert (await client.partitions("t"))[1].last == 17

    run(first)
    run(second)


def test_outcomes_of_the_store_come_back(log: logweir.Log) -> None:
    """Numbers that do not rise, a name that a space has, a read-only broker, a closed store."""

    async def test() -> None:
        log.create_space("taken", [("a", "unsigned")], primary=["a"])
        async with served(log) as url, Client(url) as client:
            await client.create_topic("t")
            for name in ("t", "taken", "_space"):
                with pytest.raises(PeerRefused) as caught:
                    await client.create_topic(name)
                assert caught.value.name == "EXISTS"
            first = [PublishPart("t", 0, ordinary(b"x"), number) for number in (5, 5, 4, 9)]
            results = await client.publish(first, at_numbers=True)
            table = PublishResult
            assert results == [table.STORED, table.BAD_NUMBERS, table.BAD_NUMBERS, table.STORED]
            assert await everything(url, "t", 0) == [
                make_sparse(ordinary(b"x"), 5),
                make_sparse(ordinary(b"x"), 9),
            ]
            async with served(log, read_only=True) as other, Client(other) as reader:
                (result,) = await reader.publish([PublishPart("t", 0, ordinary(b"x"))])
                assert result is table.READ_ONLY
                assert len(await everything(other, "t", 0)) == 2
            log.close()
            (result,) = await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            assert result is table.FAILED

    run(test)


def test_space_that_refuses_a_bundle_fails_no_other_topic(log: logweir.Log) -> None:
    """An index that somebody made on one topic; names of groups that cannot be stored."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.create_topic("t")
            await client.create_topic("u")
            await asyncio.to_thread(log.create_index, "t", "time", ["time"])
            table = PublishResult
            both = [PublishPart(name, 0, ordinary(b"x")) for name in ("t", "u")]
            assert await client.publish(both) == [table.STORED, table.STORED]
            assert await client.publish(both) == [table.FAILED, table.STORED]
            assert await client.publish(both[1:]) == [table.STORED]
            assert [state.last for state in await client.partitions("t")] == [1]
            assert [state.last for state in await client.partitions("u")] == [3]
            other = encode_bundle([Message(0, 77, None, b"y")])
            assert await client.publish([PublishPart("t", 0, other)]) == [table.STORED]
            assert [row[1] for row in log.select("t")] == [1, 2]
            for name in ("consumer:/t", "consumer:g", "consumer:\udcff/t", "consumer:g/nosuch"):
                connection = await client.connection()
                assert not (await connection.partitions(name)).partitions
                (result,) = await client.publish([PublishPart(name, 0, ordinary(b"x"), 1)])
                assert result is table.UNKNOWN_TOPIC

    run(test)


def test_bundles_written_by_others_wake_who_waits(log: logweir.Log) -> None:
    """The embedded API into a topic space; a change elsewhere wakes nobody."""

    async def test() -> None:
        log.create_space("other", [("a", "unsigned")], primary=["a"])
        async with served(log) as url, Client(url) as client, Client(url) as publisher:
            await client.create_topic("t")
            await publisher.publish([PublishPart("t", 0, ordinary(b"x"))])
            consumer = client.consumer("t", start="end")
            async with consumer:
                waiting = asyncio.ensure_future(consumer.get())
                await somebody_waits(url)
                await asyncio.to_thread(log.insert, "other", (1,))
                await publisher.status()
                assert not waiting.done()
                await asyncio.to_thread(log.insert, "t", (0, 2, 3, 5, ordinary(b"y", b"z")))
                record = await waiting
                assert (record.number, record.content) == (2, b"y")
                assert (await consumer.get()).content == b"z"
                await publisher.publish([PublishPart("t", 0, ordinary(b"w"))])
                assert (await consumer.get()).number == 4

    run(test)


def test_topic_that_is_deleted_is_unknown_and_its_waiters_are_told(log: logweir.Log) -> None:
    """And may be made anew, from number 1."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client, Client(url) as other:
            await client.create_topic("t")
            await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            consumer = client.consumer("t", start="end")
            async with consumer:
                waiting = asyncio.ensure_future(consumer.get())
                await somebody_waits(url)
                await asyncio.to_thread(delete_topic, log, "t")
                with pytest.raises(PeerRefused, match="unknown topic"):
                    await waiting
            (result,) = await other.publish([PublishPart("t", 0, ordinary(b"x"))])
            assert result is PublishResult.UNKNOWN_TOPIC
            await other.create_topic("t")
            await other.publish([PublishPart("t", 0, ordinary(b"y"))])
            assert (await other.partitions("t"))[0].last == 1

    run(test)


def test_configuration_is_changed_and_reloaded(log: logweir.Log) -> None:
    """A bad one is refused and the old one stays."""

    async def test() -> None:
        create_topic(log, "t", 1, "", now_seconds=7)
        async with served(log) as url, Client(url) as client:
            with pytest.raises(PeerRefused):
                await client.reload("t")
            await asyncio.to_thread(set_config, log, "t", "log.retention.secs=1h")
            await client.reload("t")
            with pytest.raises(ConfigError):
                set_config(log, "t", "log.retention.secs=never")
            assert topics_of(log)["t"].config.retention_seconds == 3600
            assert log.get(TOPIC_SPACE, "t") == ("t", 1, "log.retention.secs=1h", 7)

    run(test)


# --- import -----------------------------------------------------------------------------------


def test_data_folder_is_imported_and_served_back_byte_equal(log: logweir.Log) -> None:
    """Every bundle of every partition, and a second import finds nothing new."""

    async def test() -> None:
        found = await asyncio.to_thread(import_folder, log, FOLDER)
        assert sum(each.messages for each in found) == 48 + 11 + 21 + 48 + 7
        problems = [problem for each in found for problem in each.problems]
        assert [problem.kind for problem in problems] == ["config"]
        again = import_folder(log, FOLDER)
        assert sum(each.bundles for each in again) == 0
        async with served(log) as url:
            for topic in read_folder(FOLDER):
                for part in topic.partitions:
                    theirs = [stored.data for stored in part.bundles(pytest.fail)]
                    assert await everything(url, topic.name, part.partition) == theirs
        assert topics_of(log)["logs"].config.keeps_everything

    run(test)


def test_import_goes_on_where_it_ended_and_reports_a_torn_tail(
    log: logweir.Log, tmp_path: Path
) -> None:
    """First a cut copy, then the whole: every number once."""
    base = tmp_path / "data"
    shutil.copytree(FOLDER, base)
    (path,) = (base / "events" / "0").glob("*.log")
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    found = import_folder(log, base, topics=["events"])
    (torn,) = found[0].problems
    assert torn.kind == "torn"
    before = found[0].last
    path.write_bytes(whole)
    after = import_folder(log, base, topics=["events"])
    assert not after[0].problems
    assert after[0].first > before
    assert after[0].last == 505
    rows = log.select("events", [0])
    stored = [b.data for b in read_folder(base)[0].partitions[0].bundles(pytest.fail)]
    assert [row[4] for row in rows] == stored
    with pytest.raises(ConfigError):
        import_folder(log, base, topics=["nosuch"])


def test_lost_bundles_of_a_folder_are_noted_as_gaps(log: logweir.Log, tmp_path: Path) -> None:
    """With their numbers; what follows keeps its own."""
    base = tmp_path / "data"
    shutil.copytree(FOLDER / "logs", base / "logs")
    path = base / "logs" / "1" / "4-6_1795206606.ilog"
    path.write_bytes(path.read_bytes()[:-1])
    import_folder(log, base)
    (gap,) = gaps(log)
    assert (gap.stream, gap.instance, gap.start, gap.end) == ("logs", "1", 6, 6)
    assert [row[1] for row in log.select("logs", [1])] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def test_import_takes_only_the_rest_of_a_bundle_it_had_a_part_of(log: logweir.Log) -> None:
    """Numbers that were read already are not stored twice; numbers of somebody else stop it."""
    intake = Intake(log, "test://")
    intake.topic("t", 1)
    whole = ReceivedBundle(1, 4, ordinary(b"a", b"b", b"c", b"d"))
    assert intake.store([Batch("t", 0, 3, 5, (whole,))]) == 2
    assert [row[1:3] for row in log.select("t")] == [(3, 4)]
    assert intake.store([Batch("t", 0, 5, 5, (whole,))]) == 0
    assert intake.next_number("t", 0) == 5
    with pytest.raises(SourceStopped, match="publishes here"):
        intake.store([Batch("t", 0, 4, 5, (whole,))])
    back = ReceivedBundle(5, 6, encode_bundle([Message(2, 1, None, b"")] * 2))
    lying = ReceivedBundle(9, 9, encode_bundle([Message(3, 1, None, b"")], sparse=True))
    assert intake.store([Batch("t", 0, 5, 10, (back, lying))]) == 2
    assert [(gap.start, gap.end) for gap in gaps(log)] == [(9, 9)]
    assert intake.topic("t", 3).partitions == 3


def test_what_was_brought_is_stored_and_answered_before_more_is_read(log: logweir.Log) -> None:
    """Where nothing is synced: a client that sends much at once gets answers all along."""
    data = encode_bundle([Message(0, 1, None, os.urandom(100_000))], compress=False)
    count = 80

    async def test() -> None:
        create_topic(log, "t", 1, now_seconds=0)
        async with served(log) as url:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            before = log.inner.commits
            frames = [
                encode_request(Publish(number, (("t", (PublishPart("t", 0, data),)),)))
                for number in range(count)
            ]
            writer.write(b"".join(frames))
            await reader.readexactly(5)  # the ping
            answers = [await reader.readexactly(10) for _ in range(count)]
            writer.close()
        expected = [encode_published(number, bytes(1)) for number in range(count)]
        assert answers == expected
        assert contents(log, "t") == list(range(1, count + 1))
        most_bytes = 3 * TANK_UNSTORED_HERE_BYTES  # a read brings up to 1 MiB more
        assert log.inner.commits - before >= count * len(data) // most_bytes

    run(test)


def test_what_was_read_before_is_not_given_again_as_all_there_is(log: logweir.Log) -> None:
    """Fetch, publish, the same fetch again: what is kept of reads does not hide what is new."""

    async def test() -> None:
        create_topic(log, "t", 1, now_seconds=log.inner.now())
        async with served(log) as url, Client(url) as client:
            connection = await client.connection()
            fetch = Fetch(0, (("t", (FetchPart("t", 0, 1, 10_000),)),))
            for count in range(1, 4):
                await client.publish([PublishPart("t", 0, ordinary(b"x"))])
                for _ in range(2):
                    answer = await connection.fetch(fetch)
                    assert len(split_chunk(answer.parts[0].chunk)[0]) == count

    run(test)


# --- following --------------------------------------------------------------------------------


def test_status_tells_how_far_groups_are_behind(log: logweir.Log) -> None:
    """Per partition: what it holds, and each group's lag."""

    async def test() -> None:
        server = Server(
            log, ServerOptions(listen=[parse_listen_url("tank://127.0.0.1:0")], guest="all")
        )
        (url,) = await server.start()
        try:
            async with Client(url) as client:
                await client.create_topic("t")
                await client.publish([PublishPart("t", 0, ordinary(b"a", b"b", b"c"))])
                async with client.consumer("t", group="g") as consumer:
                    await consumer.get()
                    await consumer.commit()
                    connection = await client.connection()
                    place = FetchPart("consumer:g/t", 0, 0, 100)
                    answer = await connection.fetch(Fetch(0, (("consumer:g/t", (place,)),)))
                    chunk = answer.parts[0].chunk
                    assert [m.number for m in decode_chunk(chunk, 0)] == [2]
                expected = {"topic": "t", "partition": 0, "first": 1, "last": 3}
                assert server.status()["topics"] == [expected | {"consumer_lag": {"g": 2}}]
        finally:
            await server.stop()

    run(test)


# --- retention and compaction -----------------------------------------------------------------


def numbers(log: logweir.Log, topic: str) -> list[int]:
    """All numbers of partition 0, as a client that reads from the oldest bundle counts them."""
    chunk = b"".join(
        encode_varint(len(data)) + data
        for data in (row[4] for row in log.select(topic, [0]))
        if isinstance(data, bytes)
    )
    rows = log.select(topic, [0], limit=1)
    return [each.number for each in decode_chunk(chunk, int(str(rows[0][1])))]


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ("log.retention.bytes=450", [7, 8, 9, 10]),
        ("retention.messages.count=3", [8, 9, 10]),
        ("log.retention.secs=100", [5, 6, 7, 8, 9, 10]),
        ("retention.segments.count=2\nlog.segment.bytes=240", [4, 5, 6, 7, 8, 9, 10]),
        ("retention.segments.count=3\nlog.segment.bytes=240", list(range(1, 11))),
        ("retention.segments.count=2\nlog.segment.bytes=100", [8, 9, 10]),
        ("log.retention.secs=1", [10]),
        ("", list(range(1, 11))),
    ],
)
def test_limits_remove_the_oldest_bundles(log: logweir.Log, config: str, left: list[int]) -> None:
    """By bytes, count, age and segments' worth; the newest bundle stays."""
    create_topic(log, "t", 1, config, now_seconds=0)
    for number in range(1, 11):
        data = encode_bundle([Message(0, number * 1000, None, bytes(100))], compress=False)
        log.insert("t", (0, number, number, number * 1000, data))
    now_ms = 105_000 if "=100" in config else 1_000_000
    gone = retain(log, topics_of(log)["t"], now_ms)
    assert numbers(log, "t") == left
    assert gone == 10 - len(left)


def test_compaction_keeps_the_newest_message_of_each_key(log: logweir.Log) -> None:
    """And all without a key; every reader counts right afterwards, from any place."""
    create_topic(log, "t", 1, "log.cleanup.policy=cleanup", now_seconds=0)
    keys = [b"a", b"b", None, b"a", b"c", b"b", b"a", b"d", b"d", None, b"a", b"e"]
    first = 1
    for size in (3, 1, 2, 3, 2, 1):
        messages = [
            Message(first + i, 5, keys[first + i - 1], b"%d" % (first + i)) for i in range(size)
        ]
        log.insert("t", (0, first, first + size - 1, 5, encode_bundle(messages)))
        first += size
    dropped = compact(log, topics_of(log)["t"], 0)
    expected = [3, 5, 6, 9, 10, 11, 12]
    assert numbers(log, "t") == expected
    assert dropped == 12 - len(expected)
    for row in log.select("t", [0]):
        assert isinstance(row[4], bytes)
        decoded = decode_bundle(row[4], int(str(row[1])))
        assert (decoded[0].number, decoded[-1].number) == (row[1], row[2])
        assert all(each.content == b"%d" % each.number for each in decoded)
    assert compact(log, topics_of(log)["t"], 0) == 0


def test_limits_are_kept_while_the_topic_is_served(log: logweir.Log) -> None:
    """The first number available rises for discovery and fetches, without a restart."""

    async def test() -> None:
        async with served(log, upkeep_seconds=0.01) as url, Client(url) as client:
            await client.create_topic("t", 1, {"retention.messages.count": 5})
            compacted = {"log.cleanup.policy": "cleanup", "log.cleaner.min.cleanable.ratio": 0}
            await client.create_topic("k", 1, compacted)
            for number in range(20):
                bundle = encode_bundle([Message(0, number, b"key", b"x")])
                await client.publish([PublishPart("t", 0, bundle), PublishPart("k", 0, bundle)])
            await until(lambda: len(log.select("t", [0])) == 5 and len(log.select("k")) == 1)
            (state,) = await client.partitions("t")
            while state.first != 16:  # what was removed shows within `topics.LOOK_SECONDS`
                (state,) = await client.partitions("t")
            assert state.last == 20
            (state,) = await client.partitions("k")
            while state.first != 20:
                (state,) = await client.partitions("k")
            assert state.last == 20
            async with client.consumer("t", start=3, reset="begin") as consumer:
                assert (await consumer.get()).number == 16

    run(test)


# --- views ------------------------------------------------------------------------------------


def test_any_space_is_a_topic_of_its_rows(log: logweir.Log) -> None:
    """Numbers are signatures, keys primary keys, contents rows as JSON; it takes no bundles."""

    async def test() -> None:
        log.create_space("things", [("id", "unsigned"), ("name", "string")], primary=["id"])
        log.create_space("other", [("id", "unsigned")], primary=["id"])
        signatures = []
        for number in range(1, 6):
            log.insert("things", (number, f"n{number}"))
            signatures.append(log.vclock.signature)
            log.insert("other", (number,))
        log.update("things", 2, [["=", 1, "new"]])
        signatures.append(log.vclock.signature)
        log.delete("things", 3)
        signatures.append(log.vclock.signature)
        async with served(log) as url, Client(url) as client, Client(url) as other:
            (state,) = await client.partitions("space:things")
            assert (state.first, state.last) == (signatures[0], signatures[-1])
            consumer = client.consumer("space:things", fetch_bytes=500)
            async with consumer:
                records = [await consumer.get() for _ in signatures]
                assert [record.number for record in records] == signatures
                assert [record.key for record in records] == [
                    pack([n]) for n in (1, 2, 3, 4, 5, 2, 3)
                ]
                rows = [json.loads(record.content) for record in records]
                assert [row["type"] for row in rows] == ["INSERT"] * 5 + ["UPDATE", "DELETE"]
                assert rows[0]["tuple"] == [1, "n1"]
                assert rows[0]["space"] == "things"
                assert rows[0]["lsn"] == records[0].number
                waiting = asyncio.ensure_future(consumer.get())
                await somebody_waits(url)
                await asyncio.to_thread(log.insert, "other", (9,))
                await asyncio.to_thread(log.insert, "things", (9, "late"))
                record = await waiting
                assert record.number == log.vclock.signature
                for start in signatures:
                    consumer.seek(0, start)
                    assert (await consumer.get()).number == start
            (result,) = await other.publish([PublishPart("space:things", 0, ordinary(b"x"))])
            assert result is PublishResult.READ_ONLY
            with pytest.raises(PeerRefused, match="no topic"):
                await other.partitions("space:nosuch")
            await asyncio.to_thread(set_config, log, "space:things", "logweir.content=msgpack")
            await other.reload("space:things")
            consumer = other.consumer("space:things", fetch_bytes=500)
            async with consumer:
                row, end = decode_row(memoryview((await consumer.get()).content), 0)
                assert (row.lsn, row.decoded()["tuple"]) == (signatures[0], [1, "n1"])
                assert end > 0

    run(test)


def test_whole_log_is_a_topic(log: logweir.Log) -> None:
    """Every row, across many blocks and files, from any number."""

    async def test() -> None:
        log.create_space("things", [("id", "unsigned"), ("name", "string")], primary=["id"])
        log.append("things", [(n, "x" * 300) for n in range(3000)], one_transaction=False)
        log.snapshot()
        log.append("things", [(n, "x" * 300) for n in range(3000, 6000)], one_transaction=False)
        async with served(log) as url, Client(url) as client:
            (state,) = await client.partitions("log")
            assert state.last == log.vclock.signature
            consumer = client.consumer("log", fetch_bytes=100_000)
            async with consumer:
                found = []
                while not found or found[-1].number < state.last:
                    found += await consumer.get_many(10_000)
                assert [each.number for each in found] == list(range(state.first, state.last + 1))
                for start in (state.last, state.last - 2999, state.first + 5):
                    consumer.seek(0, start)
                    assert (await consumer.get()).number == start

    run(test)


def test_view_begins_anew_where_old_logs_were_removed(tmp_path: Path) -> None:
    """A number whose row is gone is a boundary failure, and discovery tells the first one left."""

    async def test() -> None:
        with logweir.open(tmp_path / "s", durability="write", checkpoint_count=1) as log:
            log.create_space("things", [("id", "unsigned")], primary=["id"])
            log.insert("things", (1,))
            async with served(log) as url, Client(url) as client:
                (before,) = await client.partitions("space:things")
                for number in range(2, 6):
                    await asyncio.to_thread(log.insert, "things", (number,))
                    await asyncio.to_thread(log.snapshot)
                await asyncio.to_thread(log.insert, "things", (9,))
                consumer = client.consumer("space:things", start=before.first, reset="begin")
                async with consumer:
                    record = await consumer.get()
                    assert record.number > before.first
                    (after,) = await client.partitions("space:things")
                    assert after.first == record.number
                    assert after.last == log.vclock.signature

    run(test)
