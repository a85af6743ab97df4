"""Followers of all protocols next to each other: each gets what is above its own position."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client as SynapseClient

from interop.kvclient import KvClient, store
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.limits import HUB_STEP_BYTES, OUTPUT_HIGH_BYTES
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.greenstack.follow.incoming import CaughtUp, Rows
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.protocols import parse_listen_url
from logweir.replication.stream.hub import Hub
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.urls import Url
from logweir.wal.follow import Follower
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

ACK = Option.SUPPORT_ACK
FUTURE = 2**64 - 1
ADDRESSES = ("tarantool://:0", "tap://:0/b", "greenstack://:0", "synapse://:0", "tank://:0")
KEYS = [b"k%d" % number for number in range(10)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    """A store with bucket b that speaks everything; guests may do all."""
    listen = [parse_listen_url(address) for address in ADDRESSES]
    with Serving(tmp_path / "s", listen=listen, guest="all") as serving:
        change(serving, [b"first"])
        yield serving


def address(serving: Serving, scheme: str) -> Url:
    """Where it speaks that protocol."""
    return next(url for url in serving.urls if url.scheme == scheme)


def change(serving: Serving, keys: list[bytes], size: int = 1) -> None:
    """Store items in bucket b, each a commit."""
    with KvClient(address(serving, "tap").port) as client:
        for key in keys:
            assert client.ask(store(key, bytes(size)))[0].status == 0


def subscribe(client: RawClient, after: dict[int, int]) -> None:
    """An anonymous replica that begins above a position."""
    body = {0x24: str(uuid.uuid4()), 0x26: after, 0x06: 132608, 0x50: True}
    client.send(encode_request(66, 0, body))
    assert 0x26 in client.receive().body


def joined(serving: Serving, readers: int) -> None:
    """Wait until so many read the log."""
    server = serving.server
    serving.wait(lambda: server.hub.readers + server.settled.readers == readers)


def rows_of(client: RawClient, count: int) -> list[Any]:
    """The keys of the next rows that a replica is sent."""
    rows = (answer for answer in iter(client.receive, None) if answer.header.lsn)
    return [answer.body[0x21][0] for answer in islice(rows, count)]


def by_tarantool(serving: Serving, write: Callable[[], None]) -> list[bytes]:
    with RawClient(serving.port) as client:
        subscribe(client, dict(serving.log.vclock.without_local()))
        joined(serving, 2)
        write()
        return rows_of(client, len(KEYS))


def by_tap(serving: Serving, write: Callable[[], None]) -> list[bytes]:
    with KvClient(address(serving, "tap").port) as client:
        stream = client.stream(Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE))
        next(stream)
        joined(serving, 2)
        write()
        return [message.key for message in islice((m for m in stream if m.key), len(KEYS))]


def by_greenstack(serving: Serving, write: Callable[[], None]) -> list[bytes]:
    async def main() -> list[bytes]:
        found: list[bytes] = []
        async with (
            asyncio.timeout(20),
            GreenstackClient(f"{address(serving, 'greenstack')}/b") as client,
            client.follow(b"n", start=serving.log.vclock) as steps,
        ):
            async for step in steps:
                if isinstance(step, CaughtUp):
                    await asyncio.to_thread(write)
                elif isinstance(step, Rows):
                    found += [one.item.key for one in step.changes if one.item]
                if len(found) >= len(KEYS):
                    break
        return found

    return asyncio.run(main())


def by_synapse(serving: Serving, write: Callable[[], None]) -> list[bytes]:
    with SynapseClient(address(serving, "synapse").port) as client:
        client.send("REPLICATE b NOW")
        client.until("POSITION")
        write()
        found = []
        while len(found) < len(KEYS):
            line = client.line()
            found += [key for key in KEYS if line.startswith("RDATA b ") and in_row(key, line)]
        return found


def in_row(key: bytes, line: str) -> bool:
    """Whether a line is of the item with that key."""
    return f'"{base64.b64encode(key).decode()}"' in line


def by_tank(serving: Serving, write: Callable[[], None]) -> list[bytes]:
    with (
        TankClient(address(serving, "tank")) as client,
        client.consumer("space:b", start="end") as consumer,
    ):
        write()
        return [unpack(consumer.get().key or b"")[0] for _ in KEYS]


@pytest.mark.parametrize("follow", [by_tarantool, by_tap, by_greenstack, by_synapse, by_tank])
def test_follower_gets_every_change_next_to_one_that_is_ahead(
    served: Serving, follow: Callable[[Serving, Callable[[], None]], list[bytes]]
) -> None:
    """A subscriber that has more than we, and comes first, takes nothing from the others."""
    with RawClient(served.port) as ahead:
        subscribe(ahead, {1: served.log.vclock.lsn(1) + 1000})
        assert [ahead.receive().header.type for _ in range(2)] == [0, 0]  # heartbeats
        joined(served, 1)
        assert follow(served, lambda: change(served, KEYS)) == KEYS


def test_stream_of_a_position_gets_nothing_below_it_next_to_a_slow_one(served: Serving) -> None:
    """Greenstack: a stream that is given no credit holds the windows of the log; another one that
    begins at the present gets the next change first, exactly."""

    async def main() -> list[bytes]:
        at, keys = f"{address(served, 'greenstack')}/b", list[bytes]()
        async with (
            asyncio.timeout(20),
            GreenstackClient(at) as slow,
            GreenstackClient(at) as other,
            slow.follow(b"slow", window_bytes=4096) as steps,
        ):
            async for step in steps:
                if isinstance(step, CaughtUp):
                    break  # from now on it gives no credit
            old = [b"old%d" % number for number in range(40)]
            await asyncio.to_thread(change, served, old, 1000)
            async with other.follow(b"other", start=served.log.vclock) as found:
                async for step in found:
                    if isinstance(step, CaughtUp):
                        await asyncio.to_thread(change, served, KEYS)
                    elif isinstance(step, Rows):
                        keys += [one.item.key for one in step.changes if one.item]
                    if len(keys) >= len(KEYS):
                        break
        return keys

    assert asyncio.run(main()) == KEYS


def test_consumer_of_the_future_gets_nothing_older_next_to_a_slow_one(served: Serving) -> None:
    """TAP: the same."""
    port = address(served, "tap").port
    future = ACK | Option.BACKFILL
    with KvClient(port) as slow, KvClient(port) as other:
        next(slow.stream(Connect(b"slow", future, backfill=FUTURE)))
        joined(served, 1)
        change(served, [b"old%d" % number for number in range(300)], 20_000)
        stream = other.stream(Connect(b"other", future, backfill=FUTURE))
        next(stream)
        joined(served, 2)
        change(served, KEYS)
        messages = (message for message in stream if message.opcode == Opcode.TAP_MUTATION)
        assert [message.key for message in islice(messages, len(KEYS))] == KEYS


def test_row_that_would_be_missed_ends_the_stream_and_is_counted(
    served: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is wrong about what a replica needs next says so and closes; the replica comes
    again and misses nothing."""

    right = Hub.adopt

    def wrong(hub: Hub, follower: Follower, at: VClock) -> int | None:
        if hub._tail is None:
            return right(hub, follower, at)
        follower.close()
        return hub.next_number

    with RawClient(served.port) as first, RawClient(served.port) as second:
        subscribe(first, dict(served.log.vclock.without_local()))
        joined(served, 1)
        change(served, [b"seen"])
        while not first.receive().header.lsn:
            pass
        before = served.log.vclock
        behind, poll = before.with_lsn(1, before.lsn(1) - 1), Follower.poll
        monkeypatch.setattr(Hub, "adopt", wrong)
        monkeypatch.setattr(
            Follower,
            "poll",
            lambda follower: iter(()) if follower.vclock == behind else poll(follower),
        )
        subscribe(second, dict(behind.without_local()))
        joined(served, 2)
        change(served, KEYS)
        while not (answer := second.receive()).is_error:
            assert not answer.header.lsn
        assert "do not follow the position" in answer.error().message
        with pytest.raises(EOFError):
            second.receive()
    monkeypatch.undo()
    assert b"logweir_stream_gaps_total 1.0" in served.server.metrics.render()
    assert [one.levelname for one in caplog.records if "stream.gap" in one.message] == ["ERROR"]
    with RawClient(served.port) as again:
        subscribe(again, dict(behind.without_local()))
        assert rows_of(again, len(KEYS) + 1) == [b"seen", *KEYS]


@pytest.mark.parametrize("begins", ["behind", "at the end"])
def test_replica_that_reads_nothing_costs_little_memory(tmp_path: Path, begins: str) -> None:
    """While 48 MB are written only some of it is made ready for it; later it gets every row."""
    count, value = 1500, "x" * 32 * 1024
    with (
        Serving(tmp_path, guest="replicate", replication_timeout_seconds=60) as serving,
        RawClient(serving.port) as idle,
        RawClient(serving.port) as other,
    ):
        serving.log.create_space("t")
        start = dict(serving.log.vclock.without_local())
        if begins == "at the end":
            subscribe(idle, start)
            joined(serving, 1)
        for first in range(0, count, 50):
            serving.log.append("t", ([number, value] for number in range(first, first + 50)))
        if begins == "behind":
            subscribe(idle, start)
            joined(serving, 1)
        subscribe(other, start)
        assert rows_of(other, count) == list(range(count))
        peer = "{}:{}".format(*idle.socket.getsockname())
        (link,) = (link for link in serving.server.listener.links if link.peer == peer)
        assert link.unsent_bytes <= OUTPUT_HIGH_BYTES + 2 * HUB_STEP_BYTES
        assert rows_of(idle, count) == list(range(count))
