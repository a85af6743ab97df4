"""What several partitions or several readers ask a Tank broker for, and how it is stored."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from support.loops import run
from support.tankserving import contents, opened, ordinary, other, served, somebody_waits

import logweir
from logweir.limits import LOG_BURST_LINES
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.metrics import Metrics
from logweir.replication.service.line import Line
from logweir.replication.tank.client import Client
from logweir.replication.tank.wire.messages import (
    Fetch,
    FetchPart,
    FetchStatus,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import (
    Message,
    check_bundle,
    encode_bundle,
    encode_varint,
    split_chunk,
)
from logweir.replication.topic.config import parse_config
from logweir.replication.topic.consumers import CONSUMER_SPACE
from logweir.replication.topic.partition import Append
from logweir.replication.topic.publishing import Writing
from logweir.replication.topic.readahead import ReadAhead
from logweir.replication.topic.spaces import create_topic, topics_of
from logweir.replication.topic.store import StoredTopics
from logweir.replication.topic.trimming import compact, retain
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.wal.failpoint import arm, disarm
from logweir.wal.filesystem import OS
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A fresh store with a topic of two partitions."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        create_topic(opened, "t", 2, now_seconds=opened.inner.now())
        yield opened


def fetches(second: int = 1) -> list[Fetch]:
    """One for each partition, as for more than fit into one; that begins at `second`."""
    starts = enumerate((1, second))
    return [Fetch(0, (("t", (FetchPart("t", each, start, 10_000),)),)) for each, start in starts]


def test_fetches_of_several_wait_until_one_of_them_has_something(log: logweir.Log) -> None:
    """And give that, of whichever it is."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            connection = await client.connection()
            waiting = asyncio.ensure_future(connection.fetch_first(fetches(), 60_000))
            await somebody_waits(url)
            await client.publish([PublishPart("t", 1, ordinary(b"x"))])
            found = [part for part in await waiting if part.chunk]
            assert [part.partition for part in found] == [1]

    run(test)


def test_fetches_of_several_tell_a_refusal_at_once(log: logweir.Log) -> None:
    """No bundle comes for any; one asks for a number that is not there."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            connection = await client.connection()
            parts = await connection.fetch_first(fetches(second=1000), 3_600_000)
            assert [part.status for part in parts] == [FetchStatus.FINE, FetchStatus.BOUNDARY]

    run(test)


def test_a_read_that_was_full_is_not_made_again(log: logweir.Log) -> None:
    """Bundles that come behind it cannot change it; one that had all there was is read anew."""

    async def test() -> None:
        reads = ReadAhead(log)
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(b"x")) for _ in range(3)])
            topic, limit = topics_of(log)["t"], len(ordinary(b"x")) + 10
            full = reads.take(topic, 0, 1, limit, 3)
            whole = reads.take(topic, 0, 1, 10_000, 3)
            assert reads.take(topic, 0, 1, limit, 3) is full
            assert reads.take(topic, 0, 1, 10_000, 3) is whole
            await client.publish([PublishPart("t", 0, ordinary(b"x"))])
            assert reads.take(topic, 0, 1, limit, 4) is full
            again = reads.take(topic, 0, 1, 10_000, 4)
            chunks = [b"".join(one.chunk.pieces) for one in (full, whole, again)]
            counts = [len(split_chunk(chunk)[0]) for chunk in chunks]
            assert counts == [1, 3, 4]

    run(test)


@pytest.mark.parametrize("sizes", [[10], [5000], [10, 5000, 10, 10], [900] * 200, [4000] * 40])
def test_stored_tuples_become_a_chunk_whatever_their_sizes(sizes: list[int]) -> None:
    """Each bundle behind its length, in few parts, up to the limit; tuples with more fields too."""
    bundles = [ordinary(os.urandom(size)) for size in sizes]
    rows = [pack([7, at, at, 0, data, "more"][: 5 + at % 2]) for at, data in enumerate(bundles, 1)]
    framed = [encode_varint(len(data)) + data for data in bundles]
    unreadable, another = pack([7, 1, 5, 0, b"?"]), pack([8, 1, 1, 0, bundles[0]])
    end, out = len(rows) + 1, list[bytes]()
    data = b"".join([unreadable, *rows, another])
    found = kernel.chunk(data, end + 1, 7, end, 0, 1 << 20, out)
    assert found == (len(b"".join(framed)), 0, True, 1, 1, False)
    assert b"".join(out) == b"".join(framed)
    assert len(out) <= 1 + 3 * sum(size > 4000 for size in sizes) + len(data) // 60_000
    for count in range(1, len(rows)):
        size, out = len(b"".join(framed[:count])), []
        found = kernel.chunk(data, end + 1, 7, end, 0, size, out)
        assert found == (size, count + 1, True, 1, 1, False)
        assert b"".join(out) == b"".join(framed[:count])
    assert kernel.chunk(b"".join(rows), len(rows), 7, 0, 0, 1, []) == (0, 0, True, 0, 0, False)
    with pytest.raises(ValueError, match="malformed"):
        kernel.chunk(data[: len(unreadable) - 1], 1, 7, end, 0, 1, [])


def test_each_bundle_is_a_transaction(log: logweir.Log) -> None:
    """Also of those that come together: who follows the log gets them one by one, and a disk that
    refuses one has those before it."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            before = log.vclock
            await client.publish([PublishPart("t", 0, ordinary(b"x")) for _ in range(5)])
            assert [len(one.rows) for one in log.rows(before)] == [1] * 5

    run(test)


def published(
    topics: StoredTopics, number: int, topic: str = "t", first: int | None = None
) -> asyncio.Future[list[PublishResult]]:
    """What becomes of so many bundles of one message."""
    answered: asyncio.Future[list[PublishResult]] = asyncio.get_running_loop().create_future()
    data = ordinary(b"x")
    head, time_ms = check_bundle(data)
    append = Append(1, 0, topic, 0, data, head, time_ms, first)
    topics.append([append] * number, answered.set_result)
    return answered


async def publishing(topics: StoredTopics, number: int = 1) -> None:
    """So many bundles of one message, stored together."""
    assert await published(topics, number) == [PublishResult.STORED] * number


def insert_by_transaction(log: logweir.Log, number: int) -> None:
    """One of `other`: a transaction lets the next group be made before it is durable."""
    with log.transaction() as tx:
        tx.insert("t", other(number))


def test_numbers_go_on_behind_what_others_write_at_the_same_time(log: logweir.Log) -> None:
    """In one group; and before it, in a transaction that is not durable yet."""

    async def test() -> None:
        topics = StoredTopics(log, line=(line := Line(log, Metrics())))
        try:
            await publishing(topics)
            space_id = log.schema.space("t").id
            request = Request(RowType.INSERT, space_id, tuple=pack(other(100)))
            line.submit(Job(lambda group: group.execute(request)), lambda job: None)
            await publishing(topics, 2)
            assert contents(log, "t") == [1, 100, 101, 102]

            await publishing(topics)
            is_made = threading.Event()

            def until_the_next_group_is_begun() -> None:
                disarm()
                is_made.set()
                while topics._writing._group is None:
                    pass

            arm("wal.before_write", until_the_next_group_is_begun)
            writing = asyncio.create_task(asyncio.to_thread(insert_by_transaction, log, 200))
            await asyncio.to_thread(is_made.wait)
            await publishing(topics)
            await writing
            assert contents(log, "t") == [1, 100, 101, 102, 103, 200, 201]
        finally:
            disarm()
            await topics.close()

    run(test)


def test_numbers_of_a_job_that_failed_are_given_again(log: logweir.Log) -> None:
    """Nothing of it is in its group: what stands there is asked again."""
    space_id, writing = log.schema.space("t").id, Writing(log)
    log.insert("t", other(1))

    def numbers(group: Group) -> list[int]:
        mark = writing.begin(group)
        before = writing.last(group, space_id, 0)
        writing.wrote(space_id, 0, 9, 8)
        found = [before, writing.last(group, space_id, 0)]
        writing.rollback(mark)
        return [*found, writing.last(group, space_id, 0)]

    assert log.inner.run(numbers) == [1, 9, 1]


def refuse_places(log: logweir.Log) -> None:
    """Have a space for places of consumers that takes none."""
    kinds = {"group": "string", "topic": "string", "partition": "unsigned", "number": "string"}
    log.create_space(CONSUMER_SPACE, list(kinds.items()), primary=["group", "topic", "partition"])


def test_a_place_that_its_space_refuses_fails_no_other(
    log: logweir.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Bundles that came with it are stored, without a gap in their numbers."""
    refuse_places(log)

    async def test() -> None:
        async with opened(log) as topics:
            asked = published(topics, 1), published(topics, 1, "consumer:g/t", 3)
            await publishing(topics)
            assert [await one for one in asked] == [[PublishResult.STORED], [PublishResult.FAILED]]
            assert contents(log, "t") == [1, 2]
            assert "publish.refused" in caplog.text

    run(test)


def test_refused_bundles_are_told_sparingly(
    log: logweir.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """However many a client sends, of which none is stored."""
    refuse_places(log)

    async def test() -> None:
        async with opened(log) as topics:
            number = 3 * LOG_BURST_LINES
            asked = published(topics, number, "consumer:g/t", 3)
            assert await asked == [PublishResult.FAILED] * number
            assert caplog.text.count("publish.refused") == LOG_BURST_LINES

    run(test)


@pytest.mark.parametrize(
    "row",
    [(0, 3, 3, 0, b""), (0, 3, 1, 0, ordinary(b"x")), (0, 0, 0, 0, ordinary(b"x"))],
    ids=["empty", "ends before it begins", "number 0"],
)
def test_what_others_write_that_is_no_bundle_is_passed_over(
    log: logweir.Log, caplog: pytest.LogCaptureFixture, row: tuple[object, ...]
) -> None:
    """Consumers are given what is before and behind it, under its numbers; one that waits behind it
    hears of what comes then; publishers go on; the log tells of it."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client, Client(url) as other_client:
            await client.publish([PublishPart("t", 0, ordinary(b"1")) for _ in range(2)])
            log.insert("t", row)
            following = max(2, int(str(row[1]))) + 1
            async with aclosing(aiter(client.consumer("t", [0]))) as messages:
                assert [(await anext(messages)).number for _ in range(2)] == [1, 2]
                waiting = asyncio.ensure_future(anext(messages))
                await somebody_waits(url)
                part = PublishPart("t", 0, ordinary(b"2"))
                assert await other_client.publish([part, part]) == [PublishResult.STORED] * 2
                found = await waiting, await anext(messages)
                assert [one.number for one in found] == [following, following + 1]
            async with aclosing(aiter(client.consumer("t", [0]))) as messages:
                numbers = [(await anext(messages)).number for _ in range(4)]
            assert numbers == [1, 2, following, following + 1]
            assert "topic.malformed" in caplog.text or row[1] == 0

    run(test)


def test_what_is_no_bundle_hides_none_that_holds_its_number(log: logweir.Log) -> None:
    """Who begins, or goes on, amid a bundle is given it, also where somebody has written tuples
    that are no bundles under numbers of its messages."""

    async def test() -> None:
        async with served(log) as url, Client(url) as client:
            await client.publish([PublishPart("t", 0, ordinary(*[b"x"] * 6))])
            for number in (2, 3):
                log.insert("t", (0, number, number, 0, b""))
            for start in range(1, 7):
                async with aclosing(aiter(client.consumer("t", [0], start=start))) as messages:
                    assert (await anext(messages)).number == start

    run(test)


def test_limits_are_kept_around_what_is_no_bundle(log: logweir.Log) -> None:
    """It goes with what is as old, and its keys make no bundle lose a message."""
    topic = topics_of(log)["t"]
    keyed = encode_bundle([Message(0, 5, b"k", b"x")])
    for row in ((1, 1, keyed), (2, 1, keyed), (3, 3, b""), (4, 4, b"?"), (5, 5, keyed[:-1])):
        log.insert("t", (0, row[0], row[1], 1000, row[2]))
    assert compact(log, topic, 0) == 0
    assert len(log.select("t", [0])) == 5
    log.insert("t", (0, 6, 6, 1000, ordinary(b"x")))
    old = replace(topic, config=parse_config("retention.messages.count=1"))
    assert retain(log, old, now_ms=2000) > 0
    old = replace(topic, config=parse_config("log.retention.secs=1"))
    retain(log, old, now_ms=9000)
    assert [row[1] for row in log.select("t", [0])] == [6]


def test_a_full_disk_is_told_sparingly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many publishes fail for it; when there is room the numbers go on."""
    disk = FaultyFileSystem(OS)

    async def test() -> None:
        with logweir.open(tmp_path / "s", filesystem=disk) as log:
            create_topic(log, "t", 1, now_seconds=log.inner.now())
            async with opened(log) as topics:
                await publishing(topics)
                disk.fault = Fault(1, {"write"}, errno.ENOSPC, part=0.5, lasts=True)
                for _ in range(2 * LOG_BURST_LINES):
                    assert await published(topics, 2) == [PublishResult.FAILED] * 2
                disk.fault = None
                assert 0 < len(caplog.records) < 2 * LOG_BURST_LINES
                await publishing(topics)
                assert contents(log, "t") == [1, 2]

    run(test)
