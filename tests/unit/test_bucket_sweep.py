"""When what has expired in a bucket is removed, and that followers lose it: with a clock that the
test moves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.loops import run, until

import logweir
from logweir.limits import TAP_SWEEP_SECONDS
from logweir.replication.bucket import kernel
from logweir.replication.bucket.item import Item, pack_item
from logweir.replication.bucket.store import Bucket, Buckets
from logweir.replication.bucket.sweep import Sweeper
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.server import Server, ServerOptions
from logweir.store.log import Log
from logweir.testing import SimClock

NOW = 1_795_000_000.0


class Clock(SimClock):
    """With pauses that end when they are told to."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._go_on = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        await self.pauses.put(seconds)
        await self._go_on.wait()
        self._go_on.clear()

    async def after(self, seconds: float) -> float:
        """Let so much time pass, and a walk be made; the length of the pause behind it."""
        self.now += seconds
        self._go_on.set()
        return await self.pauses.get()


def put(log: Log, bucket: Bucket, key: bytes, expiry: float) -> None:
    """An item, as a client stores it."""
    item = Item(key, 0, b"v", 0, int(expiry), cas=1)
    fields = (item.key, item.vbucket, item.value, item.flags, item.expiry, item.cas)
    log.replace(bucket.name, (*fields, 0, 0, "", b""))


def left(log: Log) -> list[bytes]:
    """The keys that are there."""
    return [row[0] for row in log.select("b")]


def test_a_walk_comes_when_the_next_item_expires(tmp_path: Path) -> None:
    """Never later than the pause that was asked for, not sooner than a second; what is stored
    between two walks with a nearer expiry is removed within that pause."""

    async def test() -> None:
        clock = Clock()
        with logweir.open(tmp_path / "s") as log:
            server = Server(log, ServerOptions())
            shared = server.shared
            shared.options = replace(shared.options, clock=clock)
            buckets = Buckets(log, clock)
            bucket = buckets.make("b")
            put(log, bucket, b"soon", NOW + 70)
            put(log, bucket, b"later", NOW + 95)
            put(log, bucket, b"never", 0)
            sweeper = Sweeper(shared, buckets, pause=clock.pause)
            try:
                assert await clock.pauses.get() == TAP_SWEEP_SECONDS
                assert await clock.after(60) == 10
                assert left(log) == [b"later", b"never", b"soon"]
                put(log, bucket, b"unseen", NOW + 61)
                assert await clock.after(10) == 25
                assert left(log) == [b"later", b"never"]
                put(log, bucket, b"at once", NOW + 95.5)
                assert await clock.after(24.9) == 1  # less is no pause
                assert await clock.after(1) == TAP_SWEEP_SECONDS
                assert left(log) == [b"never"]
            finally:
                sweeper.close()
                await server.stop()

    run(test)


def test_a_walk_reads_what_may_expire() -> None:
    """Items with an expiry, and tuples that are not as they are written here, which may have one
    too: of these a number is longer than it need be."""
    never = pack_item(Item(b"never", 0, b"v"))
    some = pack_item(Item(b"some", 7, b"v", 1, int(NOW), cas=2, marks=1))
    odd = never.replace(b"never\x00", b"never\xcc\x00")
    assert odd != never
    assert kernel.dated([never, some, never, odd, b""]) == [some, odd, b""]


@pytest.mark.parametrize("scheme", ["greenstack", "tap"])
def test_what_expires_leaves_the_copy_of_a_follower(tmp_path: Path, scheme: str) -> None:
    """A server that nobody asks for the item removes it, and its follower does too; both have one
    server that listens with that protocol only."""

    async def test() -> None:
        clock = Clock()
        listen = parse_listen_url(f"{scheme}://127.0.0.1:0?sweep=0.05")
        with logweir.open(tmp_path / "a") as log, logweir.open(tmp_path / "b") as copy:
            server = Server(log, ServerOptions(listen=[listen], guest="all"))
            server.shared.options = replace(server.shared.options, clock=clock)
            bucket = Buckets(log, clock).make("b")
            put(log, bucket, b"old", NOW + 1000)
            put(log, bucket, b"new", NOW + 2000)
            (url,) = await server.start()
            source = parse_url(f"{scheme}://127.0.0.1:{url.port}/b")
            follower = Server(copy, ServerOptions(follow=[source]))
            await follower.start()
            try:
                await follower.caught_up()
                assert left(copy) == [b"new", b"old"]
                clock.now += 1000
                await until(lambda: left(copy) == [b"new"])
                assert left(log) == [b"new"]
            finally:
                await follower.stop()
                await server.stop()

    run(test)
