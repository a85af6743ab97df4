"""One connection that sends more than can be handled, and the turns that the others have."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from logweir.limits import TURN_BYTES, TURN_SECONDS
from logweir.replication.link import Link
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.portkernel import Pace
from logweir.replication.protocols import parse_listen_url
from logweir.replication.session import Outbox
from logweir.replication.urls import Url

MANY_BYTES = 1 << 20
READ_BYTES = 64 * 1024  # without turns at least so much is read at once
FIRST_TURNS_BYTES = 16 * 1024


class Session:
    """Gives what came as one event; answers are put into `outbox`."""

    def __init__(self) -> None:
        self.close_reason = ""
        self.outbox = Outbox()

    def receive_data(self, data: bytes, now: float) -> Sequence[bytes]:
        return (data,)

    def receive_eof(self, now: float) -> Sequence[bytes]:
        return ()

    def data_to_send(self) -> bytes:
        return self.outbox.take()

    def next_deadline(self) -> float | None:
        return None

    def deadline_passed(self, now: float) -> Sequence[bytes]:
        return ()


class Conversation:
    """Tells `heard` what comes, in order over all connections."""

    def __init__(self, heard: Callable[[Conversation, bytes], None]) -> None:
        self.session = Session()
        self.heard = heard

    def handle(self, events: Sequence[bytes]) -> None:
        for data in events:
            self.heard(self, data)

    def closed(self, reason: str) -> None:
        pass


class Service:
    """See `Conversation`."""

    def __init__(self, heard: Callable[[Conversation, bytes], None]) -> None:
        self.heard = heard

    def begin(self, link: Link) -> Conversation:
        return Conversation(self.heard)

    def refusal(self, reason: str) -> bytes:
        return b""


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """With each event loop there is."""
    asyncio.run(main())
    uvloop = pytest.importorskip("uvloop", reason="uvloop does not run here")
    uvloop.run(main())


async def serving(service: Service) -> tuple[Listener, Url]:
    listener = Listener(metrics=Metrics())
    return listener, await listener.listen(parse_listen_url("tarantool://:0"), service)


@contextmanager
def flooded(url: Url) -> Iterator[tuple[socket.socket, Callable[[bytes], int]]]:
    """A connection, and what fills it with as much of some bytes as the system takes."""
    with socket.create_connection((url.host, url.port)) as peer:
        peer.setblocking(False)

        def fill(byte: bytes) -> int:
            sent = 0
            try:
                while sent < MANY_BYTES:
                    sent += peer.send(byte * (MANY_BYTES - sent))
            except BlockingIOError:
                pass
            return sent

        yield peer, fill


def test_a_turn_is_bounded_in_bytes_whatever_has_come() -> None:
    """Two clients have sent: of the one with much no more than a turn is handled before the other
    is heard, and everything of it in the end."""

    async def main() -> None:
        order: list[bytes] = []
        all_heard = asyncio.Event()
        sent = 0

        def heard(conversation: Conversation, data: bytes) -> None:
            nonlocal sent
            if data == b"go":
                sent = fill(b"f")
                assert sent > 2 * READ_BYTES
                other.send(b"o")
            else:
                order.append(data)
                if sum(map(len, order)) > sent:
                    all_heard.set()

        listener, url = await serving(Service(heard))
        with flooded(url) as (_, fill), socket.create_connection((url.host, url.port)) as other:
            with socket.create_connection((url.host, url.port)) as starter:
                starter.sendall(b"go")
                await asyncio.wait_for(all_heard.wait(), 20)
            before = order[: order.index(b"o")]
            assert sum(map(len, before)) <= FIRST_TURNS_BYTES
            assert max(map(len, order)) <= TURN_BYTES
            assert b"".join(order).count(b"f") == sent
        await listener.close()

    run(main)


def test_expensive_requests_are_handled_in_small_portions() -> None:
    """A client whose bytes cost much is given less of a turn: so much that the others wait about as
    long as for a client with cheap ones."""

    async def main() -> None:
        portions: list[int] = []
        enough = asyncio.Event()

        def heard(conversation: Conversation, data: bytes) -> None:
            portions.append(len(data))
            end = time.thread_time() + len(data) * TURN_SECONDS / 1000  # a byte takes a microsecond
            while time.thread_time() < end:
                pass
            if len(portions) == 40:
                enough.set()

        listener, url = await serving(Service(heard))
        with flooded(url) as (_, fill):
            fill(b"f")
            await asyncio.wait_for(enough.wait(), 20)
        assert max(portions[1:]) <= 4096
        assert max(portions[10:]) <= 1100
        await listener.close()

    run(main)


def test_cheap_bytes_are_handled_as_they_come() -> None:
    """Portions grow to what is received at once."""

    async def main() -> None:
        portions: list[int] = []
        all_heard = asyncio.Event()
        sent = 0

        def heard(conversation: Conversation, data: bytes) -> None:
            portions.append(len(data))
            if sum(portions) == sent:
                all_heard.set()

        listener, url = await serving(Service(heard))
        with flooded(url) as (_, fill):
            sent = fill(b"f")
            await asyncio.wait_for(all_heard.wait(), 20)
        assert len(portions) <= 8 + sent // READ_BYTES
        await listener.close()

    run(main)


def test_portions_follow_the_time_that_they_take() -> None:
    """They shrink at once to what fits, and grow only while full ones are cheap."""
    pace = Pace()
    first = pace.portion_bytes
    pace.took(first, 100 * TURN_SECONDS)
    assert pace.portion_bytes == 256
    pace.took(255, 0.0)
    assert pace.portion_bytes == 256
    pace.took(256, 0.6 * TURN_SECONDS)
    assert pace.portion_bytes == 256
    pace.took(256, 0.4 * TURN_SECONDS)
    assert pace.portion_bytes == 512
    for _ in range(20):
        pace.took(pace.portion_bytes, 0.0)
    assert pace.portion_bytes == TURN_BYTES
    pace.took(1000, 2 * TURN_SECONDS)
    assert pace.portion_bytes == 500
    pace.took(100_000, 1.1 * TURN_SECONDS)
    assert pace.portion_bytes == 500
