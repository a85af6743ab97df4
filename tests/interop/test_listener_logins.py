"""Failed logins: counted and told in every protocol, and slowed by address."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest
from support.loops import run

import logweir
from interop.kvclient import KvClient
from interop.serving import Serving
from logweir.errors import LogweirError
from logweir.limits import LOG_BURST_LINES, LOGIN_ADDRESSES, LOGIN_FREE, LOGIN_TRIES
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.iproto.client import open_client
from logweir.replication.link import Link
from logweir.replication.logins import Logins
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.urls import Url

WRONG = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ann\0wrong")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with user ann."""
    with logweir.open(tmp_path / "store") as log:
        users.add_user(log, "ann", password="secret")
    return tmp_path / "store"


def serving(folder: Path, scheme: str) -> Serving:
    """One listener."""
    return Serving(folder, listen=[parse_listen_url(f"{scheme}://:0")])


def try_tarantool(port: int) -> None:
    """A wrong password."""

    async def main() -> None:
        async with open_client(parse_url(f"tarantool://ann:wrong@127.0.0.1:{port}")):
            pass

    with pytest.raises(LogweirError):
        run(main)


def try_tap(port: int) -> None:
    """A wrong password."""
    with KvClient(port) as client:
        assert client.ask(WRONG)[0].status == Status.AUTH_ERROR


def slow_down(server: Serving) -> None:
    """Fail to log in so often that our address is slowed."""
    for _ in range(LOGIN_FREE + 1):
        try_tap(server.port)


def try_greenstack(port: int) -> None:
    """A wrong password."""

    async def main() -> None:
        url = f"greenstack://ann:wrong@127.0.0.1:{port}/default"
        async with GreenstackClient(url) as client:
            await client.get(b"k")

    with pytest.raises(LogweirError):
        run(main)


TRIES: dict[str, Callable[[int], None]] = {
    "tarantool": try_tarantool,
    "tap": try_tap,
    "greenstack": try_greenstack,
}


@pytest.mark.parametrize("scheme", TRIES)
def test_failed_logins_are_counted_and_told(
    folder: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By the same names whatever the protocol."""
    with serving(folder, scheme) as server:
        for _ in range(2):
            TRIES[scheme](server.port)
        assert server.server.status()["failed_logins"] == 2
        counted = f'logweir_login_failed_total{{scheme="{scheme}"}} 2.0'
        assert counted in server.server.metrics.render().decode()
        told = [one for one in caplog.messages if "login.failed" in one]
        assert len(told) == 2
        assert "user='ann'" in told[0]
        assert "peer='127.0.0.1:" in told[0]


@pytest.mark.parametrize("scheme", TRIES)
def test_an_address_is_slowed_whatever_the_protocol(
    folder: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection is not heard for a while, also by who has the right password; one from
    another address is."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 0.5)
    with serving(folder, scheme) as server:
        for _ in range(LOGIN_FREE + 1):
            TRIES[scheme](server.port)
        assert server.server.status()["slowed_addresses"] == 1
        began = time.monotonic()
        TRIES[scheme](server.port)
        assert time.monotonic() - began >= 0.4  # half a second, but for what was forgotten since


def test_another_address_is_not_slowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered while who has failed waits."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 600)
    version = Packet(Opcode.VERSION)
    with serving(folder, "tap") as server:
        slow_down(server)
        with KvClient(server.port) as slowed, KvClient(server.port) as other:
            slowed.send(version)
            other.close()
            other.socket = socket.create_connection(
                ("127.0.0.1", server.port), 20, source_address=("127.0.0.2", 0)
            )
            assert other.ask(version)[0].status == 0
            assert select.select([slowed.socket], [], [], 0)[0] == []


def test_what_comes_while_an_address_is_slowed_is_answered_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 0.3)
    with serving(folder, "tap") as server:
        slow_down(server)
        assert server.server.status()["slowed_addresses"] == 1
        with KvClient(server.port) as slowed:
            answer, *_ = slowed.ask(Packet(Opcode.VERSION))
            assert answer.status == 0


def test_many_tries_in_one_packet_are_few(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The connection ends after some, whatever came with them, and the log has few lines."""
    with serving(folder, "tap") as server, KvClient(server.port) as client:
        client.send(*[WRONG] * 3000)
        found = []
        while (answer := client.receive()) is not None:
            found.append(answer.status)
        assert found == [Status.AUTH_ERROR] * LOGIN_TRIES
        assert server.server.status()["failed_logins"] == LOGIN_TRIES
        told = [one for one in caplog.messages if "login.failed" in one]
        assert len(told) <= LOG_BURST_LINES


def test_health_is_told_to_a_slowed_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can log in nobody is slowed: behind a proxy, or on one machine, who watches the
    server has the address of those who fail, and would take it for dead."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 10.0)
    listen = [parse_listen_url("tap://:0")]
    with Serving(folder, listen=listen, metrics=Url("metrics", "127.0.0.1", 0)) as server:
        slow_down(server)
        assert server.server.status()["slowed_addresses"] == 1
        port = next(url.port for url in server.server.listener.urls if url.scheme == "metrics")
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=8)) as asking:
            asking.request("GET", "/healthz")
            assert asking.getresponse().read() == b"alive\n"


def test_many_connections_of_a_slowed_address_are_few(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit they are closed at once, and counted."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 10.0)
    monkeypatch.setattr("logweir.replication.logins.LOGIN_WAITING", 2)
    with serving(folder, "tap") as server:
        slow_down(server)
        clients = [KvClient(server.port) for _ in range(4)]
        ended = 0
        for client in clients:
            client.socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                ended += client.receive() is None
            client.close()
        assert ended >= 2
        assert server.server.status()["refused_connections"]["logins"] == ended


def test_a_connection_of_a_slowed_address_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it sends: what was read would be kept, and handled all at once."""
    monkeypatch.setattr("logweir.replication.logins.LOGIN_DELAY_SECONDS", 10.0)
    with serving(folder, "tap") as server:
        slow_down(server)
        with KvClient(server.port) as client:
            client.socket.settimeout(0.3)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 1 << 26:
                    sent += client.socket.send(bytes(1 << 20))
        assert sent < 1 << 25  # no more than two sockets hold


def test_what_is_known_of_addresses_is_bounded_and_forgotten() -> None:
    """IPv4 by address, IPv6 by network; with time an address is as good as new."""

    async def main() -> None:
        now = 0.0
        logins = Logins(Metrics(), lambda: now)

        def fail(address: str, times: int) -> None:
            for _ in range(times):
                link = Link("tap", lambda link: pytest.fail("it never begins"))
                link.address = address
                logins.failed(link, "x")

        fail("10.0.0.1", LOGIN_FREE)
        assert not logins.delay_seconds("10.0.0.1")
        fail("10.0.0.1", 1)
        first = logins.delay_seconds("10.0.0.1")
        fail("10.0.0.1", 1)
        assert logins.delay_seconds("10.0.0.1") == 2 * first
        assert logins.delay_seconds("::ffff:10.0.0.1") == 2 * first
        assert not logins.delay_seconds("10.0.0.2")
        fail("2001:db8::1", LOGIN_FREE + 1)
        assert logins.delay_seconds("2001:db8::2:3") == first
        assert not logins.delay_seconds("2001:db8:0:1::1")
        assert logins.slowed == 2
        now = 300.0
        assert not logins.slowed
        fail("10.0.0.1", LOGIN_FREE + 1)
        for number in range(LOGIN_ADDRESSES):
            fail(f"10.1.{number >> 8}.{number & 255}", 1)
        assert not logins.delay_seconds("10.0.0.1")

    asyncio.run(main())


def test_a_wrong_secret_of_synapse_updates_is_a_failed_login(tmp_path: Path) -> None:
    """One that is missing is none. After so many on a connection it is closed."""
    (tmp_path / "secret").write_text("right")
    query = f"dialect=D3&http=127.0.0.1:0&auth_file={tmp_path / 'secret'}"
    listen = [parse_listen_url(f"synapse://:0?{query}")]
    with Serving(tmp_path / "s", listen=listen, guest="read") as server:
        logins = server.server.shared.logins
        path = "/_synapse/replication/get_repl_stream_updates/events/x?from_token=0&upto_token=0"
        client = HTTPConnection("127.0.0.1", server.server.urls[1].port, timeout=60)
        client.request("GET", path)
        assert client.getresponse().read()
        assert logins.failed_in_all == 0
        for _ in range(LOGIN_TRIES):
            client.request("GET", path, headers={"Authorization": "Bearer wrong"})
            answer = client.getresponse()
            assert (answer.status, bool(answer.read())) == (401, True)
        assert logins.failed_in_all == LOGIN_TRIES
        assert client.sock is not None
        assert client.sock.recv(1) == b""
        client.close()
