"""A relay of TCP connections on one address: it counts, keeps, holds and cuts what passes, and what
stands behind it may be replaced."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Self

from support.waiting import until

_PIECE = 65536
_QUIET_SECONDS = 0.25


class _Pair:
    """A connection of a client, and the one for it to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.up: bytearray = bytearray()  # all that the client sent
        self.down = 0  # bytes that it got
        self.pending = b""  # for it
        self.change: Callable[[bytes], bytes] = lambda data: data

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Valve:
    """Listens on `port`, and connects to `target`, a port, for each that connects.

    `room`: how many bytes a client gets at most over one connection; `change`: makes, for each
    connection, what is given all that the server sends, and returns what goes to the client.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.room: int | None = None
        self.change: Callable[[], Callable[[bytes], bytes]] = lambda: lambda data: data
        self.pairs: list[_Pair] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[_Pair] = []
        self._guard = threading.Lock()
        self._ends = False
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._waker.send(b"x")
        self._thread.join(20)
        for one in (self._listener, self._wake, self._waker):
            one.close()

    # --- for tests --------------------------------------------------------------------------------

    @property
    def down(self) -> int:
        """Bytes that the newest connection's client got."""
        return self.pairs[-1].down if self.pairs else 0

    def sent_up(self) -> bytes:
        """All that the newest connection's client has sent."""
        with self._guard:
            self._turn(0)
            return bytes(self.pairs[-1].up)

    def cut(self) -> None:
        """Break all connections."""
        with self._guard:
            for pair in self._open:
                pair.close()
            self._open = []

    def allow(self, room: int | None) -> None:
        """Let so many bytes through."""
        self.room = room
        self._waker.send(b"x")

    def until_stuck(self) -> None:
        """Until bytes for a client wait here, and none of them go on."""
        until(lambda: self.pairs and self.pairs[-1].pending)
        self.until_quiet()

    def until_quiet(self) -> None:
        """Until a client has got nothing for a while."""
        pause = threading.Event()
        before = -1
        while before != self.down:
            before = self.down
            pause.wait(_QUIET_SECONDS)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ends:
            reading, writing = self._interest()
            select.select(reading, writing, [], 1.0)
            with self._guard:
                self._turn(0)
        self.cut()

    def _may_send(self, pair: _Pair) -> int:
        room = len(pair.pending) if self.room is None else max(self.room - pair.down, 0)
        return min(room, len(pair.pending))

    def _interest(self) -> tuple[list[socket.socket], list[socket.socket]]:
        with self._guard:
            reading = [self._listener, self._wake, *(pair.client for pair in self._open)]
            reading += [pair.server for pair in self._open if not pair.pending]
            return reading, [pair.client for pair in self._open if self._may_send(pair)]

    def _turn(self, seconds: float) -> None:
        reading = [self._listener, self._wake, *(pair.client for pair in self._open)]
        reading += [pair.server for pair in self._open if not pair.pending]
        ready, _, _ = select.select(reading, [], [], seconds)
        if self._wake in ready:
            self._wake.recv(100)
        if self._listener in ready:
            self._accept()
        for pair in tuple(self._open):
            try:
                is_over = self._move(pair, ready)
            except OSError:
                is_over = True
            if is_over:
                pair.close()
                self._open.remove(pair)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            client.close()
            return
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
        client.setblocking(False)
        pair = _Pair(client, server)
        pair.change = self.change()
        self._open.append(pair)
        self.pairs.append(pair)

    def _move(self, pair: _Pair, ready: list[socket.socket]) -> bool:
        """Returns whether it is over."""
        if pair.client in ready:
            data = pair.client.recv(_PIECE)
            if not data:
                return True
            pair.up += data
            pair.server.sendall(data)
        if pair.server in ready and not pair.pending:
            data = pair.server.recv(_PIECE)
            if not data:
                return True
            pair.pending = pair.change(data)
        if size := self._may_send(pair):
            try:
                sent = pair.client.send(pair.pending[:size])
            except BlockingIOError:
                return False
            pair.down += sent
            pair.pending = pair.pending[sent:]
        return False
