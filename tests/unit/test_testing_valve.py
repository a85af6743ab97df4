"""`Valve`: what it delays, holds, bounds and cuts between two ends of a connection."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.waiting import until

from logweir.testing import Valve


class Echo:
    """A server that sends back what it gets; `over`: connections that ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.over = 0
        self.is_closing = False
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            if self.is_closing:
                client.close()
                return
            self.threads.append(threading.Thread(target=self._serve, args=(client,)))
            self.threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(ConnectionError):  # who is gone is over, too
            while data := client.recv(65536):
                client.sendall(data)
        self.over += 1

    def close(self) -> None:
        self.is_closing = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join(20)
        self.listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """One that serves."""
    server = Echo()
    yield server
    server.close()


def connected(valve: Valve) -> socket.socket:
    return socket.create_connection(("127.0.0.1", valve.port), 20)


def test_bytes_pass_both_ways_and_are_kept(echo: Echo) -> None:
    """As they were sent; an end passes, too."""
    data = bytes(range(256)) * 4000
    with Valve(echo.port) as valve, connected(valve) as client:
        client.sendall(data)
        got = b""
        while len(got) < len(data):
            got += client.recv(1 << 20)
        assert got == data == valve.sent_up()
        assert valve.down == len(data)
        client.close()
        until(lambda: echo.over == 1)


def test_everything_takes_the_delay_each_way(echo: Echo) -> None:
    """And what is sent meanwhile does not wait for what was sent before."""
    with Valve(echo.port) as valve, connected(valve) as client:
        valve.delay_seconds = 0.1
        begun = time.monotonic()
        for _ in range(20):
            client.sendall(b"x" * 10)
        got = b""
        while len(got) < 200:
            got += client.recv(1000)
        assert time.monotonic() - begun >= 0.2


def test_connections_overtake_one_another_and_each_keeps_its_order(echo: Echo) -> None:
    """All come at once, and go on as the seed draws."""
    data = bytes(range(256)) * 1000
    with Valve(echo.port, seed=3) as valve, contextlib.ExitStack() as stack:
        valve.scatter_seconds = 0.3
        valve.hold()
        clients = [stack.enter_context(connected(valve)) for _ in range(8)]
        for client in clients:
            client.sendall(data[:4])
        valve.hold(False)
        order: list[int] = []
        while len(order) < len(clients):
            waiting = [client for client in clients if clients.index(client) not in order]
            for client in select.select(waiting, [], [], 20)[0]:
                assert client.recv(10) == data[:4]
                order.append(clients.index(client))
        assert order != sorted(order)
        valve.scatter_seconds = 0.01
        for client in clients[:2]:
            client.sendall(data)
        for client in clients[:2]:
            got = b""
            while len(got) < len(data):
                got += client.recv(1 << 20)
            assert got == data


def test_a_valve_that_holds_tells_no_side_of_the_other_s_end(echo: Echo) -> None:
    """The server's end stays open when the client is gone, and goes when it lets pass again."""
    with Valve(echo.port) as valve:
        client = connected(valve)
        client.sendall(b"x")
        assert client.recv(10) == b"x"
        valve.hold()
        client.sendall(b"y")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(10)
        client.close()
        late = connected(valve)  # the system takes it; nobody answers
        late.sendall(b"z")
        assert echo.over == 0
        valve.hold(False)
        assert late.recv(10) == b"z"
        until(lambda: echo.over == 1)
        late.close()


def test_a_client_gets_no_more_than_the_room(echo: Echo) -> None:
    """The rest waits in the valve until there is room."""
    with Valve(echo.port) as valve, connected(valve) as client:
        valve.allow(3)
        client.sendall(b"abcdef")
        assert client.recv(10) == b"abc"
        valve.until_stuck()
        assert valve.down == 3
        valve.allow(None)
        assert client.recv(10) == b"def"


def test_a_cut_breaks_all_connections(echo: Echo) -> None:
    """Both ends notice; new ones may come."""
    with Valve(echo.port) as valve:
        clients = [connected(valve) for _ in range(3)]
        for client in clients:
            client.sendall(b"x")
            assert client.recv(10) == b"x"
        valve.cut()
        for client in clients:
            assert client.recv(10) == b""
            client.close()
        until(lambda: echo.over == 3)
        with connected(valve) as client:
            client.sendall(b"y")
            assert client.recv(10) == b"y"


def test_who_connects_to_nothing_is_cut_off() -> None:
    """Until something stands behind the valve."""
    with Valve() as valve, connected(valve) as client:
        assert client.recv(10) == b""
