"""Tank served on real sockets over topics in memory, and our client talking to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.loops import run, until

from interop.tankmodel import MemoryStore, captures, frames
from logweir.errors import (
    ConfigError,
    LimitExceeded,
    PeerRefused,
    PositionUnavailable,
    RemoteProtocolError,
    Unreachable,
)
from logweir.limits import OUTPUT_HIGH_BYTES, TANK_SILENT_CONNECTIONS, TANK_UNSTORED_BYTES
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client import Client
from logweir.replication.tank.serve.endpoint import TankService
from logweir.replication.tank.wire.codec import PING, decode_answer, encode_request
from logweir.replication.tank.wire.messages import (
    Create,
    CreateAnswer,
    CreateError,
    Fetch,
    FetchAnswer,
    FetchPart,
    Partitions,
    PartitionsAnswer,
    Publish,
    PublishPart,
    PublishResult,
    Status,
)
from logweir.replication.topic.bundle import Message, encode_bundle, split_chunk
from logweir.replication.urls import Url


@asynccontextmanager
async def served(store: MemoryStore, **options: int) -> AsyncIterator[tuple[Url, TankService]]:
    """A broker on a free port."""
    metrics = Metrics()
    listener = Listener(metrics=metrics, **options)
    service = TankService(store, metrics=metrics)
    url = await listener.listen(parse_listen_url("tank://127.0.0.1:0"), service)
    try:
        yield url, service
    finally:
        await listener.close()


def store() -> MemoryStore:
    """Topic t with two partitions."""
    made = MemoryStore()
    made.create("t", 2)
    return made


async def raw(url: Url) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A plain connection, the ping already read; the system keeps little for who does not read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    plain.connect((url.host, url.port))
    reader, writer = await asyncio.open_connection(sock=plain)
    assert await reader.readexactly(5) == PING
    return reader, writer


async def frame(reader: asyncio.StreamReader) -> object:
    """The next answer."""
    head = await reader.readexactly(5)
    payload = await reader.readexactly(int.from_bytes(head[1:], "little"))
    return decode_answer(head[0], payload)


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    """Close connections and wait until they are."""
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def part(number: int = 1, size: int = 5) -> PublishPart:
    """One message for t/0."""
    bundle = encode_bundle([Message(number, 1, None, bytes(size))], compress=False)
    return PublishPart("t", 0, bundle)


class Slow(MemoryStore):
    """Makes topics when it may `go`."""

    def __init__(self, go: asyncio.Event) -> None:
        super().__init__()
        self.go = go
        self.asked = 0

    async def create_from(self, request: Create, owner: int | None = None) -> CreateError:
        self.asked += 1
        await self.go.wait()
        return await super().create_from(request, owner)


def test_what_is_asked_behind_a_creation_waits_for_it() -> None:
    """On its connection, one creation at a time; others are answered meanwhile."""
    go = asyncio.Event()

    async def test() -> None:
        topics = Slow(go)
        topics.create("t", 2)
        async with served(topics) as (url, _):
            reader, writer = await raw(url)
            wanted = [Create(1, "new", 3), Partitions(2, "new"), Create(3, "newer", 1)]
            writer.write(b"".join(map(encode_request, wanted)))
            await until(lambda: topics.asked == 1)
            other_reader, other = await raw(url)
            other.write(encode_request(Partitions(1, "t")))
            answer = await frame(other_reader)
            assert isinstance(answer, PartitionsAnswer)
            assert len(answer.partitions) == 2
            assert topics.asked == 1
            go.set()
            assert await frame(reader) == CreateAnswer(1, "new", CreateError.CREATED)
            answer = await frame(reader)
            assert isinstance(answer, PartitionsAnswer)
            assert len(answer.partitions) == 3
            assert await frame(reader) == CreateAnswer(3, "newer", CreateError.CREATED)
            await hang_up(writer, other)

    run(test)


def test_a_client_that_leaves_while_its_topic_is_made_leaves_nothing_behind() -> None:
    """What it asked for behind that is not begun; others are answered, before and after."""
    go = asyncio.Event()

    async def test() -> None:
        topics = Slow(go)
        topics.create("t", 2)
        async with served(topics) as (url, service):
            _, writer = await raw(url)
            wait = Fetch(1, (("t", (FetchPart("t", 0, 0, 100),)),), max_wait_ms=60_000)
            wanted = [wait, Create(2, "new", 3), Create(3, "newer", 1)]
            writer.write(b"".join(map(encode_request, wanted)))
            await until(lambda: topics.asked == 1)
            (conversation,) = service._conversations.values()
            link = conversation.link
            assert len(service.waiters) == 1
            async with Client(url) as other:
                assert len(await other.partitions("t")) == 2
                await hang_up(writer)
                await link.gone
                await until(lambda: not link._tasks)
                assert service._conversations.keys() != {conversation.session}
                assert conversation.session not in service._conversations
                assert conversation.session not in service._silent
                assert len(service.waiters) == 0
                go.set()
                await other.create_topic("theirs")
                assert [name for name, _, _ in await other.topics()] == ["t", "theirs"]
            assert topics.asked == 2

    run(test)


def test_a_creation_that_is_broken_off_does_not_end_what_its_connection_asks() -> None:
    """It gets no answer; what comes later does."""

    class Broken(MemoryStore):
        given: asyncio.Future[CreateError]

        def create_from(self, request: Create, owner: int | None = None) -> Any:
            self.given = asyncio.get_running_loop().create_future()
            return self.given

    async def test() -> None:
        topics = Broken()
        topics.create("t", 2)
        async with served(topics) as (url, _):
            reader, writer = await raw(url)
            writer.write(encode_request(Create(1, "new", 3)))
            await until(lambda: hasattr(topics, "given"))
            topics.given.cancel()
            await asyncio.sleep(0)
            writer.write(encode_request(Partitions(2, "t")))
            async with asyncio.timeout(10):
                answer = await frame(reader)
            assert isinstance(answer, PartitionsAnswer)
            assert answer.request_id == 2
            await hang_up(writer)

    run(test)


def test_a_call_with_more_bundles_than_a_request_takes_is_refused_in_words() -> None:
    """Of one topic, or of more topics; the connection goes on, and what fits is stored."""

    async def test() -> None:
        async with served(store()) as (url, _), Client(url) as client:
            with pytest.raises(LimitExceeded, match="bundles of topic 't' in one") as told:
                await client.publish([part()] * 256)
            assert (told.value.limit, told.value.got) == (255, 256)
            assert told.value.hint
            with pytest.raises(LimitExceeded, match="topics in one request"):
                await client.publish([part()._replace(topic=f"t{n}") for n in range(256)])
            stored = await client.publish([part()] * 255)
            assert stored == [PublishResult.STORED] * 255
            assert (await client.partitions("t"))[0].last == 255

    run(test)


def test_client_publishes_and_consumes() -> None:
    """Batches in, the same messages with numbers out, by key and in turn over the partitions."""

    async def test() -> None:
        async with served(store()) as (url, _), Client(url) as client:
            async with client.producer(batch_messages=10) as producer:
                futures = [
                    await producer.send("t", b"%d" % n, key=b"k" if n % 2 else None, time_ms=n)
                    for n in range(100)
                ]
                await producer.send_and_wait("t", b"last", partition=1, time_ms=100)
            await asyncio.gather(*futures)
            states = await client.partitions("t")
            assert sum(state.last for state in states) == 101
            async with client.consumer("t") as consumer:
                records = [await consumer.get() for _ in range(101)]
                assert sorted(int(r.content) for r in records if r.content != b"last") == list(
                    range(100)
                )
                for partition in (0, 1):
                    mine = [r for r in records if r.partition == partition]
                    assert [r.number for r in mine] == list(range(1, len(mine) + 1))
                    assert consumer.position(partition) == len(mine) + 1
                keyed = {r.partition for r in records if r.key == b"k"}
                assert len(keyed) == 1
                assert await consumer.get_many(wait_ms=0) == []

    run(test)


def test_waiting_consumer_is_woken_by_a_publish() -> None:
    """Without polling: the answer comes with the publish."""

    async def test() -> None:
        async with served(store()) as (url, service), Client(url) as one, Client(url) as other:
            consumer = one.consumer("t", start="end")
            async with consumer:
                waiting = asyncio.ensure_future(consumer.get())
                await until(lambda: len(service.waiters))
                await other.publish([part()])
                record = await waiting
                assert (record.partition, record.number) == (0, 1)

    run(test)


def test_an_answer_that_fails_ends_one_of_those_that_wait() -> None:
    """The other is told, and so is who published; the first asks again over a new connection."""

    async def test() -> None:
        topics = store()
        async with (
            served(topics) as (url, service),
            Client(url) as one,
            Client(url) as two,
            Client(url) as other,
            one.consumer("t", start="end") as first,
            two.consumer("t", start="end") as second,
        ):
            waiting = []
            for consumer in (first, second):
                waiting.append(asyncio.ensure_future(consumer.get()))
                await until(lambda: len(service.waiters.waiters(("t", 0))) == len(waiting))
            read = topics.read

            def failing(*given: Any) -> Any:
                topics.read = read
                raise OSError(5, "Input/output error")

            topics.read = failing
            await other.publish([part()])
            assert [record.number for record in await asyncio.gather(*waiting)] == [1, 1]

    run(test)


def test_consumer_seeks_to_numbers_begin_end_and_time() -> None:
    """Also into gaps, and to a time before, between and behind all."""

    async def test() -> None:
        async with served(store()) as (url, _), Client(url) as client:
            for number in (10, 20, 30):
                messages = [Message(number + i, number * 10 + i, None, b"") for i in range(3)]
                bundle = encode_bundle(messages, sparse=True)
                sent = PublishPart("t", 0, bundle, number)
                assert await client.publish([sent], at_numbers=True) == [PublishResult.STORED]
            async with client.consumer("t", [0], start=21) as consumer:
                assert (await consumer.get()).number == 21
                consumer.seek(0, 15)
                assert consumer.position(0) == 15
                assert (await consumer.get()).number == 20
                await consumer.seek_to_begin()
                assert (await consumer.get()).number == 10
                await consumer.seek_to_end(0)
                assert consumer.position(0) == 33
                for time_ms, number in (
                    (0, 10),
                    (100, 10),
                    (101, 11),
                    (103, 20),
                    (202, 22),
                    (250, 30),
                    (302, 32),
                ):
                    await consumer.seek_to_time(time_ms, 0)
                    assert (await consumer.get()).number == number
                await consumer.seek_to_time(303, 0)
                assert consumer.position(0) == 33
                with pytest.raises(ConfigError):
                    consumer.seek(1, 5)

    run(test)


def test_place_that_is_gone_is_an_error_or_a_new_start() -> None:
    """As the consumer was told."""

    async def test() -> None:
        async with served(store()) as (url, _), Client(url) as client:
            sparse = encode_bundle([Message(50, 1, None, b"x")], sparse=True)
            await client.publish([PublishPart("t", 0, sparse)])
            async with client.consumer("t", [0], start=7) as consumer:
                with pytest.raises(PositionUnavailable):
                    await consumer.get()
            async with client.consumer("t", [0], start=7, reset="begin") as consumer:
                assert (await consumer.get()).number == 50
            async with client.consumer("t", [0], start=99, reset="end") as consumer:
                assert await consumer.get_many(wait_ms=0) == []
                assert consumer.position(0) == 51

    run(test)


def test_refusals_come_as_errors_with_their_names() -> None:
    """Unknown topic, unknown partition, a topic that exists, a bad configuration."""

    async def test() -> None:
        async with served(store()) as (url, _), Client(url) as client:
            refused: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                ("UNKNOWN_TOPIC", lambda: client.partitions("nosuch")),
                ("UNKNOWN_TOPIC", lambda: client.reload("nosuch")),
                ("EXISTS", lambda: client.create_topic("t")),
                ("BAD_CONFIG", lambda: client.create_topic("u", 1, {"log.retention.bytes": 1})),
                ("BAD_NAME", lambda: client.create_topic("a b")),
                ("NO_CONFIG", lambda: client.reload("t")),
                ("UNKNOWN_PARTITION", client.consumer("t", [5]).__aenter__),
            ]
            for name, ask in refused:
                with pytest.raises(PeerRefused, check=lambda error, name=name: error.name == name):
                    await ask()
            await client.create_topic("u", 3, {"log.retention.bytes": "1m"})
            assert await client.topics() == (("t", True, 2), ("u", True, 3))
            assert (await client.status()).partitions == 5
            async with client.producer() as producer:
                future = await producer.send("t", b"x", partition=9)
            with pytest.raises(PeerRefused, match="unknown partition"):
                await future
            with pytest.raises(ConfigError):
                client.producer(compression="lzma")  # type: ignore[arg-type]

    run(test)


def test_lost_connection_is_made_again_and_reading_goes_on() -> None:
    """A publish whose answer is lost is reported as unknown; a consumer just goes on."""

    async def test() -> None:
        topics = store()
        async with served(topics) as (url, _), Client(url) as client:
            await client.publish([part()])
            async with client.consumer("t", [0]) as consumer:
                assert (await consumer.get()).number == 1
                (await client.connection()).close("test")
                await client.publish([part()])
                assert (await consumer.get()).number == 2
            topics.held = []
            waiting = asyncio.ensure_future(client.publish([part()]))
            await until(lambda: topics.held)
            (await client.connection()).close("test")
            with pytest.raises(Unreachable, match="not known"):
                await waiting

    run(test)


def test_broker_that_is_none_is_told_apart() -> None:
    """Bytes that no Tank broker sends end the request with a protocol error."""

    async def test() -> None:
        async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await hang_up(writer)

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(Url("tank", "127.0.0.1", port))
        with pytest.raises((RemoteProtocolError, Unreachable)):
            await client.status()
        await client.close()
        server.close()
        await server.wait_closed()
        with pytest.raises(Unreachable):
            await Client(Url("tank", "127.0.0.1", port), connect_seconds=1).status()

    run(test)


def test_recorded_pipelined_fetch_and_publish_on_one_connection() -> None:
    """The benchmark tool's bytes: the publish behind the waiting fetch wakes it."""

    async def test() -> None:
        topics = MemoryStore()
        topics.create("orders", 1)
        item = captures()["benchmark-p2c"]
        async with served(topics) as (url, _):
            reader, writer = await raw(url)
            writer.write(item["c2s"])
            answers = [await frame(reader), await frame(reader)]
            assert {type(answer).__name__ for answer in answers} == {
                "FetchAnswer",
                "PublishAnswer",
            }
            fetched = next(answer for answer in answers if isinstance(answer, FetchAnswer))
            theirs = next(decode_answer(*each) for each in frames(item["s2c"]) if each[0] == 2)
            assert isinstance(theirs, FetchAnswer)
            assert fetched.parts[0].chunk == theirs.parts[0].chunk
            await hang_up(writer)

    run(test)


def test_client_that_asks_and_does_not_read_costs_one_answer() -> None:
    """Further fetches are served when it reads again, all of them."""

    async def test() -> None:
        topics = store()
        big = encode_bundle([Message(1, 1, None, bytes(OUTPUT_HIGH_BYTES))], compress=False)
        topics.content["t"][0].add(1, 1, big)
        async with served(topics) as (url, service):
            reader, writer = await raw(url)
            request = Fetch(1, (("t", (FetchPart("t", 0, 1, 1 << 26),)),))
            writer.write(encode_request(request) * 20)
            (conversation,) = service._conversations.values()
            await until(lambda: not conversation.link.writable)
            assert conversation.link.unsent_bytes < 3 * OUTPUT_HIGH_BYTES
            for _ in range(20):
                answer = await frame(reader)
                assert isinstance(answer, FetchAnswer)
                assert len(answer.parts[0].chunk) > OUTPUT_HIGH_BYTES
            await hang_up(writer)

    run(test)


def test_client_that_publishes_faster_than_the_disk_is_held() -> None:
    """Above the limit of unstored bytes nothing more is read until the store catches up."""

    async def test() -> None:
        topics = store()
        topics.held = []
        async with served(topics) as (url, service):
            reader, writer = await raw(url)
            one = encode_request(Publish(1, (("t", (part(size=1 << 20),)),)))
            rounds = 3 * TANK_UNSTORED_BYTES // len(one)
            for _ in range(rounds):
                writer.write(one)
            (conversation,) = service._conversations.values()
            await until(lambda: conversation._unanswered.is_holding)
            assert len(topics.held) * len(one) < 2 * TANK_UNSTORED_BYTES
            answered = 0
            while answered < rounds:
                for finish in topics.held or ():
                    finish()
                topics.held = []
                while answered < rounds and not topics.held:
                    try:
                        async with asyncio.timeout(0.05):
                            await frame(reader)
                            answered += 1
                    except TimeoutError:
                        break
            assert topics.content["t"][0].bundles[-1][1] == rounds
            await hang_up(writer)

    run(test)


def test_oldest_silent_connection_is_closed() -> None:
    """One that has spoken stays."""

    async def test() -> None:
        async with served(store()) as (url, _):
            spoken = await raw(url)
            spoken[1].write(encode_request(Status(1)))
            await frame(spoken[0])
            silent = [await raw(url) for _ in range(TANK_SILENT_CONNECTIONS + 1)]
            assert await silent[0][0].read(1) == b""
            spoken[1].write(encode_request(Status(2)))
            await frame(spoken[0])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await silent[1][0].read(1)
            await hang_up(spoken[1], *(writer for _, writer in silent))

    run(test)


def test_connection_above_the_limit_is_closed() -> None:
    """Without a word, which Tank does not have."""

    async def test() -> None:
        async with served(store(), connections_limit=1) as (url, _):
            kept = await raw(url)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            assert await reader.read() == b""
            await hang_up(writer)
            await hang_up(kept[1])

    run(test)


def test_malformed_stream_is_cut_and_the_others_go_on() -> None:
    """A frame above 256 MiB, an unknown type, a half request and a vanishing client."""

    async def test() -> None:
        async with served(store()) as (url, service):
            good = await raw(url)
            for bad in (b"\x01\x01\0\0\x10", b"\x20\0\0\0\0", b"\x02\x03\0\0\0abc"):
                reader, writer = await raw(url)
                writer.write(bad)
                assert await reader.read() == b""
                await hang_up(writer)
            reader, writer = await raw(url)
            writer.write(b"\x01\0\0\0\x10" + bytes(1000))
            await until(lambda: 1005 in [one.kept_bytes for one in service._conversations])
            writer.transport.abort()
            good[1].write(encode_request(Status(1)))
            await frame(good[0])
            await until(lambda: len(service._conversations) == 1)
            await hang_up(good[1])

    run(test)


def test_many_waiting_fetches_cost_little_and_no_cpu() -> None:
    """A thousand connections that wait, all woken by one publish."""

    async def test() -> None:
        count = 1000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * count), hard))
        try:
            async with served(store()) as (url, service):
                clients, wanted = [await raw(url)], (("t", (FetchPart("t", 0, 0, 1 << 20),)),)
                for number in range(1, count):
                    clients.append(await raw(url))
                    clients[-1][1].write(encode_request(Fetch(number, wanted, max_wait_ms=60_000)))
                await until(lambda: len(service.waiters) == len(clients) - 1)
                calls = itertools.count()
                sys.setprofile(lambda *_: next(calls))
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(clients[1][0].read(1), 0.3)
                sys.setprofile(None)
                assert next(calls) < count
                clients[0][1].write(encode_request(Publish(1, (("t", (part(),)),))))
                for reader, _ in clients:
                    answer = await frame(reader)
                    if isinstance(answer, FetchAnswer):
                        assert len(split_chunk(answer.parts[0].chunk)[0]) == 1
                assert len(service.waiters) == 0
                await hang_up(*(writer for _, writer in clients))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run(test)
