"""Who is given up for having said nothing: a peer that is not read is not silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Self

import pytest

import logweir
from interop.test_iproto_hostile import FakeMaster, row
from logweir.errors import Unreachable
from logweir.replication import dialer, link
from logweir.replication.iproto.client_session import Rows, Subscribed
from logweir.replication.iproto.follow.upstream import connect
from logweir.replication.iproto.wire import codec
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.server import Server, ServerOptions
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

SUBSCRIBE = 66


class LateLoop(asyncio.SelectorEventLoop):
    """Its clock is put forward by whoever wants that."""

    late_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.late_seconds

    async def pass_by(self, seconds: float) -> None:
        """So long nothing comes in; then its timers ring."""
        self.late_seconds += seconds
        for _ in range(4):
            await asyncio.sleep(0)


def run(loop: LateLoop, work: Coroutine[Any, Any, None]) -> None:
    """In that loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work)


def test_a_master_that_is_not_read_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait for a slow disk, and nothing is read meanwhile: the connection stays. When it is
    read again, and says nothing, it is given up as ever."""
    monkeypatch.setattr(dialer, "UPSTREAM_WAITING_BYTES", 1000)
    loop, full = LateLoop(), asyncio.Event()
    hold_reading = link.Link.hold_reading

    def held(self: link.Link) -> None:
        hold_reading(self)
        full.set()

    monkeypatch.setattr(link.Link, "hold_reading", held)
    count = 50

    async def followed(master: FakeMaster) -> None:
        async with connect(parse_url(master.url)) as (upstream, _, _):
            upstream.session.subscribe(uuid.uuid4(), uuid.uuid4(), VClock())
            upstream.link.flush()
            await upstream.expect(Subscribed)
            await full.wait()
            await loop.pass_by(100.0)
            assert upstream.link.is_open
            taken = 0
            while taken < count:
                event = await upstream.next()
                taken += event.count if isinstance(event, Rows) else 0
            await loop.pass_by(3.9)
            assert upstream.link.is_open
            await loop.pass_by(0.2)
            with pytest.raises(Unreachable, match="said nothing"):
                await upstream.next()

    script = b"".join(row(lsn, lsn) for lsn in range(1, count + 1))
    with FakeMaster(script, replicaset=None) as master:
        run(loop, followed(master))


class Replica:
    """An anonymous one of a server in the same loop, which reads when it is told to."""

    def __init__(self, loop: LateLoop) -> None:
        self.refused, self.lsn, self.beats = "", 0, 0
        self._loop, self._data = loop, b""
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def subscribe(self, port: int) -> None:
        """Connect and ask for all there is."""
        await self._loop.sock_connect(self._socket, ("127.0.0.1", port))
        while len(self._data) < codec.GREETING_BYTES:
            self._data += await self._loop.sock_recv(self._socket, codec.GREETING_BYTES)
        self._data = b""
        body = pack({0x24: str(uuid.uuid4()), 0x26: {}, 0x06: 132608, 0x50: True})
        await self._loop.sock_sendall(self._socket, codec.frame(pack({0: SUBSCRIBE, 1: 1}) + body))

    async def acknowledge(self) -> None:
        """Say something."""
        await self._loop.sock_sendall(self._socket, codec.encode_ack(VClock()))

    async def read(self) -> None:
        """Take what there is, at least something."""
        self._data += await self._loop.sock_recv(self._socket, 1 << 20)
        spans, rest, _ = codec.Splitter().split(self._data)
        for start, end in spans:
            answer = codec.decode_answer(self._data, start, end)
            self.refused = answer.error().message if answer.is_error else self.refused
            self.lsn = max(self.lsn, answer.header.lsn)
            self.beats += not answer.header.type and not answer.body
        self._data = self._data[rest:]

    async def read_until_refused(self) -> float:
        """Say nothing, while a second passes after each read. Returns when it was refused."""
        await self.read()
        while not self.refused:
            await self._loop.pass_by(1.0)
            await self.read()
        return self._loop.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


@contextlib.asynccontextmanager
async def served(log: logweir.Log) -> AsyncIterator[int]:
    """The port of a server of that store in this loop."""
    listen = [parse_listen_url("tarantool://:0")]
    server = Server(log, ServerOptions(listen=listen, guest="all"))
    (url,) = await server.start()
    try:
        yield url.port
    finally:
        await server.stop()


def test_a_replica_that_is_not_read_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes rows slowly, and what it says meanwhile is not read: it gets all of them, and is not
    told that it timed out. Then it says nothing, and is."""
    loop, stuck = LateLoop(), asyncio.Event()
    pause_writing = link.Link.pause_writing

    def paused(self: link.Link) -> None:
        pause_writing(self)
        stuck.set()

    monkeypatch.setattr(link.Link, "pause_writing", paused)
    monkeypatch.setattr(link, "OUTPUT_HIGH_BYTES", 1000)

    async def follow(log: logweir.Log) -> None:
        end = log.vclock.lsn(log.replica_id)
        async with served(log) as port:
            with Replica(loop) as replica:
                await replica.subscribe(port)
                await stuck.wait()
                await loop.pass_by(20.0)  # five times as long as a replica may be silent
                await replica.acknowledge()
                while replica.lsn < end and not replica.refused:
                    await replica.read()
                assert (replica.lsn, replica.refused) == (end, "")
                await replica.read_until_refused()
                assert replica.refused == "timed out"

    with logweir.open(tmp_path / "store") as log:
        log.create_space("t")
        for number in range(24):
            log.insert("t", (number, "x" * 500_000))
        run(loop, follow(log))


def test_who_stood_still_itself_gives_up_nobody_for_that(tmp_path: Path) -> None:
    """Nothing ran for longer than a replica may be silent, here and there: it is not given up
    before it could say something."""
    loop = LateLoop()

    async def follow(log: logweir.Log) -> None:
        async with served(log) as port:
            with Replica(loop) as replica:
                await replica.subscribe(port)
                for seconds in (1.0, 1.0, 20.0, 1.0, 20.0, 1.0):
                    acknowledged = loop.time()
                    await replica.acknowledge()
                    await loop.pass_by(0.0)  # that is read
                    await loop.pass_by(seconds)
                    beats = replica.beats
                    while replica.beats == beats and not replica.refused:
                        await replica.read()
                    assert not replica.refused
                assert await replica.read_until_refused() - acknowledged > 4.0
                assert replica.refused == "timed out"

    with logweir.open(tmp_path / "store") as log:
        run(loop, follow(log))
