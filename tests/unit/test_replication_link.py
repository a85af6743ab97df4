"""Links and listeners: real sockets on loopback, a small protocol of our own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from logweir.errors import ConfigError, Unreachable
from logweir.replication.dialer import dial
from logweir.replication.link import Link
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url
from logweir.replication.session import InputBuffer, Outbox
from logweir.replication.urls import Url


class Echo:
    """A session that gives every byte back; `!` ends it, `#` asks for much."""

    def __init__(self, deadline: float | None = None) -> None:
        self.close_reason = ""
        self.outbox = Outbox()
        self.deadline = deadline
        self.reads = 0

    def receive_data(self, data: bytes, now: float) -> Sequence[bytes]:
        self.reads += 1
        return (data,)

    def receive_eof(self, now: float) -> Sequence[bytes]:
        return ()

    def data_to_send(self) -> bytes:
        return self.outbox.take()

    def next_deadline(self) -> float | None:
        return self.deadline

    def deadline_passed(self, now: float) -> Sequence[bytes]:
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.outbox.put(b"late")
            self.close_reason = "deadline"
        return ()


class EchoConversation:
    def __init__(self, link: Link, deadline: float | None = None) -> None:
        self.link = link
        self.session = Echo(deadline)
        self.ended = ""

    def handle(self, events: Sequence[bytes]) -> None:
        for data in events:
            if b"?" in data:
                raise ZeroDivisionError("a fault of the program")
            if b"#" in data:
                self.session.outbox.put(bytes(16 * 1024 * 1024))
            self.session.outbox.put(data)
            if b"!" in data:
                self.session.close_reason = "asked to"

    def closed(self, reason: str) -> None:
        self.ended = reason


class EchoService:
    def __init__(self, deadline_seconds: float | None = None) -> None:
        self.conversations: list[EchoConversation] = []
        self.begun = asyncio.Event()
        self.deadline_seconds = deadline_seconds

    def begin(self, link: Link) -> EchoConversation:
        deadline = None if self.deadline_seconds is None else link.time() + self.deadline_seconds
        self.conversations.append(EchoConversation(link, deadline))
        self.begun.set()
        return self.conversations[-1]

    def refusal(self, reason: str) -> bytes:
        return b"no: " + reason.encode()


def serve(
    service: EchoService,
    test: Callable[[Listener, Url], Awaitable[None]],
    *,
    connections_limit: int = 10,
    stall_seconds: float = 60.0,
    metrics: Metrics | None = None,
) -> None:
    async def main() -> None:
        listener = Listener(
            metrics=metrics or Metrics(),
            connections_limit=connections_limit,
            stall_seconds=stall_seconds,
        )
        url = await listener.listen(parse_listen_url("tarantool://:0"), service)
        try:
            async with asyncio.timeout(20):
                await test(listener, url)
        finally:
            await listener.close()

    asyncio.run(main())
    uvloop = pytest.importorskip("uvloop", reason="uvloop does not run here")
    service.conversations.clear()
    service.begun = asyncio.Event()
    uvloop.run(main())


def test_bytes_go_in_and_out_and_the_reason_is_kept() -> None:
    """Whole reads reach the session; a wish to close is met after the last byte."""
    service = EchoService()
    metrics = Metrics()

    async def test(listener: Listener, url: Url) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"hello!")
        assert await reader.read() == b"hello!"
        assert service.conversations[0].ended == "asked to"
        assert not listener.links
        writer.close()
        await writer.wait_closed()

    serve(service, test, metrics=metrics)
    text = metrics.render().decode()
    assert 'logweir_link_accepted_total{scheme="tarantool"} 2.0' in text
    assert 'logweir_link_received_bytes_total{scheme="tarantool"} 12.0' in text


def test_what_waits_for_the_next_read_comes_behind_what_is_there() -> None:
    """What has come meanwhile is handled first; without it, it does not wait."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        with socket.create_connection((url.host, url.port)) as peer:
            await service.begun.wait()
            (conversation,) = service.conversations
            said: list[bytes] = []

            def handle(events: Sequence[bytes]) -> None:
                said.extend(events)
                if events == (b"first",):
                    peer.sendall(b"second")
                    conversation.link.call_after_next_read(later)

            def later() -> None:
                said.append(b"later")
                conversation.session.outbox.put(b"".join(said))

            conversation.handle = handle  # type: ignore[method-assign]
            peer.sendall(b"first")
            loop = asyncio.get_running_loop()
            peer.setblocking(False)
            assert await loop.sock_recv(peer, 100) == b"firstsecondlater"
            conversation.link.call_after_next_read(later)
            assert await loop.sock_recv(peer, 100) == b"firstsecondlaterlater"

    serve(service, test)


def test_one_connection_too_many_is_told_and_closed() -> None:
    """The limit counts open connections; the refused one gets the protocol's own words."""

    async def test(listener: Listener, url: Url) -> None:
        first = await asyncio.open_connection(url.host, url.port)
        first[1].write(b"x")
        assert await first[0].readexactly(1) == b"x"
        second = await asyncio.open_connection(url.host, url.port)
        assert (await second[0].read()).startswith(b"no: too many connections")
        first[1].write(b"y!")
        assert await first[0].read() == b"y!"
        third = await asyncio.open_connection(url.host, url.port)
        third[1].write(b"z")
        assert await third[0].readexactly(1) == b"z"
        for _, writer in (first, second, third):
            writer.close()

    serve(EchoService(), test, connections_limit=1)


def test_deadline_of_the_session_is_kept() -> None:
    """`deadline_passed` is called in time and what it sends goes out."""

    async def test(listener: Listener, url: Url) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        assert await reader.read() == b"late"
        writer.close()

    serve(EchoService(deadline_seconds=0.01), test)


def test_slow_reader_is_disconnected_with_a_reason() -> None:
    """A peer that takes nothing is cut after the stall time, and not read meanwhile."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        _reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        writer.write(b"#")
        await writer.drain()
        await service.begun.wait()
        link = service.conversations[0].link
        reason = await asyncio.shield(link.gone)
        assert reason.startswith("slow reader: it took nothing")
        assert service.conversations[0].session.reads == 1
        writer.close()

    serve(service, test, stall_seconds=0.05)


def test_unsent_bytes_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes without looking at the link cannot fill the memory: the connection is cut."""
    monkeypatch.setattr("logweir.replication.link.OUTPUT_MAX_BYTES", 40 * 1024 * 1024)
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        with socket.create_connection((url.host, url.port)):
            await service.begun.wait()
            link = service.conversations[0].link
            for _ in range(10):
                if not link.close_reason:
                    link.send(bytes(16 * 1024 * 1024))
                    assert link.unsent_bytes <= 56 * 1024 * 1024
            reason = await asyncio.shield(link.gone)
            assert reason.startswith("slow reader: ")
            assert reason.endswith("bytes are unsent")

    serve(service, test)


def test_a_piece_of_which_some_was_taken_is_held_as_a_whole() -> None:
    """In the budget, too, until all of it is taken; many small ones cost no list of them."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        await service.begun.wait()
        link = service.conversations[0].link
        size = 24 * 1024 * 1024
        link.send(bytes(size))
        link.send(bytes(size))
        assert size < link.unsent_bytes < 2 * size
        assert link.held_bytes == 2 * size
        drained = asyncio.ensure_future(link.drained())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not drained.done()
        assert listener.budget.status()["answers_bytes"] == 2 * size
        got = 0
        while link.unsent_bytes >= size:
            got += len(await reader.read(1 << 20))
        while link.held_bytes > size:  # the transport has let go of the first one
            got += len(await reader.read(1 << 20))
        assert link.held_bytes == size > link.unsent_bytes
        for _ in range(1000):
            link.send(bytes(100))
        assert link.held_bytes == size + 1000 * 100
        assert len(link._pieces) <= 3
        await reader.readexactly(2 * size + 1000 * 100 - got)
        await drained
        assert link.held_bytes == 0
        writer.close()

    serve(service, test)


def test_closing_connection_whose_peer_takes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still to be sent when a connection is closed is waited for no longer than a stall,
    also if it was not enough for back-pressure."""
    monkeypatch.setattr("logweir.replication.link.OUTPUT_HIGH_BYTES", 64 * 1024 * 1024)
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        with socket.create_connection((url.host, url.port)) as peer:
            await service.begun.wait()
            link = service.conversations[0].link
            peer.sendall(b"#!")
            assert await asyncio.shield(link.gone) == "asked to"
            assert not listener.links

    serve(service, test, stall_seconds=0.05)


def test_what_comes_behind_the_end_of_a_session_is_not_for_it() -> None:
    """It may still be in the kernel's buffer."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"!")
        await service.begun.wait()
        link, session = service.conversations[0].link, service.conversations[0].session
        assert await asyncio.shield(link.gone) == "asked to"
        link.take(1, b"x")
        assert session.reads == 1
        assert await reader.read() == b"!"
        writer.close()

    serve(service, test)


def test_slow_but_steady_reader_gets_everything() -> None:
    """Back-pressure does not lose bytes."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"#")
        await writer.drain()
        got = 0
        while got < 16 * 1024 * 1024 + 1:
            got += len(await reader.read(100_000))
        assert got == 16 * 1024 * 1024 + 1
        assert service.conversations[0].link.writable
        writer.close()

    serve(service, test)


def test_fault_of_the_program_ends_one_connection_only() -> None:
    """The others go on."""

    async def test(listener: Listener, url: Url) -> None:
        good = await asyncio.open_connection(url.host, url.port)
        bad = await asyncio.open_connection(url.host, url.port)
        bad[1].write(b"?")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await bad[0].readexactly(1)
        good[1].write(b"ok")
        assert await good[0].readexactly(2) == b"ok"
        for _, writer in (good, bad):
            writer.close()

    serve(EchoService(), test)


def test_dial_connects_or_says_why_not() -> None:
    """An open port gives a link; a closed one `Unreachable` with the address."""
    service = EchoService()
    made: list[EchoConversation] = []

    def begin(link: Link) -> EchoConversation:
        made.append(EchoConversation(link))
        made[0].session.outbox.put(b"hi!")
        return made[0]

    async def test(listener: Listener, url: Url) -> None:
        link = await dial(url, begin)
        assert await asyncio.shield(link.gone) in ("the peer closed the connection", "asked to")
        await listener.close()
        for one in (url, replace(url, host="localhost")):  # which may have several addresses
            with pytest.raises(Unreachable) as caught:
                await dial(one, begin)
            assert caught.value.message.startswith(f"{one}: Connection refused")

    serve(service, test)
    assert made[0].ended


def test_taken_address_is_a_config_error() -> None:
    """Binding twice says so."""

    async def test(listener: Listener, url: Url) -> None:
        with pytest.raises(ConfigError) as caught:
            await listener.listen(url, EchoService())
        assert "another process listens there" in caught.value.hint

    serve(EchoService(), test)


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
def test_address_of_no_interface_is_not_said_to_be_taken(host: str) -> None:
    """An address of another machine (one for documentation, RFC 5737) and a name without one."""

    async def test(listener: Listener, url: Url) -> None:
        with pytest.raises(ConfigError) as caught:
            await listener.listen(parse_listen_url(f"{url.scheme}://{host}:0"), EchoService())
        assert "an address of this machine" in caught.value.hint

    serve(EchoService(), test)


def test_input_buffer_joins_only_when_enough_is_there() -> None:
    """Large messages in small portions are not copied again and again."""
    buffer = InputBuffer("IPROTO_FRAME_BYTES", 10)
    assert buffer.join(b"ab") == b"ab"
    buffer.keep(b"ab", 5)
    assert buffer.join(b"c") == b""
    assert len(buffer) == 3
    assert buffer.join(b"de") == b"abcde"
    assert len(buffer) == 0


def test_work_begun_for_a_connection_that_is_gone_is_cancelled() -> None:
    """As if the connection went then; it would run for ever, if it waits for the connection."""
    service = EchoService()

    async def test(listener: Listener, url: Url) -> None:
        _, writer = await asyncio.open_connection(url.host, url.port)
        await service.begun.wait()
        link = service.conversations[0].link
        writer.close()
        await link.gone

        async def work() -> None:
            while not link.is_open:
                await link.gone
                await asyncio.sleep(0)

        task = link.spawn(work())
        await asyncio.wait((task,), timeout=5)
        assert task.cancelled()

    serve(service, test)
