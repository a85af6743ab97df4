"""A fault proxy: a relay of TCP connections on the loopback address, which counts, keeps, delays,
reorders, holds and cuts what passes; what stands behind it may be replaced."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

_PIECE_BYTES: Final = 65536
_DELAYED_BYTES: Final = 1 << 20
_QUIET_SECONDS: Final = 0.25
_STUCK_SECONDS: Final = 20.0


class _Way:
    """What one side of a connection sends and the other gets."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.passed = 0  # bytes that went on
        self.waiting: deque[tuple[float, bytes]] = deque()  # when it may go on, and what
        self.waiting_bytes = 0
        self.is_ended = False

    def put(self, data: bytes, due: float) -> None:
        if data:
            self.waiting.append((due, data))
            self.waiting_bytes += len(data)

    def sendable(self, now: float, room: int | None) -> bytes:
        """What may go on now. `room`: bytes of the connection in all, None: any."""
        if not self.waiting or self.waiting[0][0] > now:
            return b""
        data = self.waiting[0][1]
        return data if room is None else data[: max(room - self.passed, 0)]

    def send(self, data: bytes) -> None:
        """Pass on what `sendable` returned, as far as the system takes it."""
        try:
            size = self.sink.send(data)
        except BlockingIOError:
            return
        self.passed += size
        self.waiting_bytes -= size
        due, first = self.waiting.popleft()
        if size < len(first):
            self.waiting.appendleft((due, first[size:]))


class _Pair:
    """A connection of a client, and the one for it to the server."""

    def __init__(
        self, client: socket.socket, server: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        self.client, self.server = client, server
        self.sent: bytearray = bytearray()  # all that the client sent
        self.change = change
        self.up, self.down = _Way(client, server), _Way(server, client)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Valve:
    """Listens on `port`, and connects to `target`, a port, for each that connects.

    `room`: how many bytes a client gets at most over one connection, see `allow`; `delay_seconds`:
    how long everything takes, each way; `scatter_seconds`: how much longer a piece takes at most,
    drawn by `seed` for each, so that connections overtake one another, while each keeps its own
    order; `is_held`: nothing passes, neither bytes nor ends, and who connects waits: what a peer
    sees of one that has lost its power or its network; `change`: makes, for each connection, what
    is given all that the server sends, and returns what goes to the client.
    """

    def __init__(self, target: int = 0, *, seed: int = 0) -> None:
        self.target = target
        self.room: int | None = None
        self.delay_seconds = self.scatter_seconds = 0.0
        self._dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self.is_held = False
        self.change: Callable[[], Callable[[bytes], bytes]] = lambda: lambda data: data
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._newest: _Pair | None = None
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
        return self._newest.down.passed if self._newest else 0

    def sent_up(self) -> bytes:
        """All that the newest connection's client has sent; b"" where none has come."""
        with self._guard:
            self._turn()
            return bytes(self._newest.sent) if self._newest else b""

    def cut(self) -> None:
        """Break all connections."""
        with self._guard:
            for pair in self._open:
                pair.close()
            self._open = []

    def allow(self, room: int | None) -> None:
        """Let so many bytes through to each client, None: all."""
        self.room = room
        self._waker.send(b"x")

    def hold(self, is_held: bool = True) -> None:
        """Let nothing pass from now on, though connections stay open (half-open ones, where a side
        ends meanwhile); False: let it pass again."""
        with self._guard:
            self.is_held = is_held
        self._waker.send(b"x")

    def until_stuck(self) -> None:
        """Until bytes for the newest client wait here, and none of them go on. Raises
        `TimeoutError` if that does not come about in 20 seconds."""
        pause = threading.Event()
        end = time.monotonic() + _STUCK_SECONDS
        while not (self._newest and self._newest.down.waiting):
            if time.monotonic() > end:
                raise TimeoutError("nothing waits in the valve")
            pause.wait(0.005)
        self.until_quiet()

    def until_quiet(self) -> None:
        """Until a client has got nothing for a quarter of a second."""
        pause = threading.Event()
        before = -1
        while before != self.down:
            before = self.down
            pause.wait(_QUIET_SECONDS)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ends:
            with self._guard:
                reading, writing, seconds = self._interest()
            with contextlib.suppress(OSError, ValueError):  # one that was cut meanwhile
                select.select(reading, writing, [], seconds)
            with self._guard:
                self._turn()
        self.cut()

    def _may_read(self, pair: _Pair) -> list[socket.socket]:
        """Of the client all is kept here, of the server little: it is to notice who is slow."""
        most = _DELAYED_BYTES if self.delay_seconds or self.scatter_seconds else 1
        ways = [pair.up, *([pair.down] if pair.down.waiting_bytes < most else [])]
        return [way.source for way in ways if not way.is_ended]

    def _interest(self) -> tuple[list[socket.socket], list[socket.socket], float]:
        """What to wait for, and for how long."""
        if self.is_held:
            return [self._wake], [], 1.0
        now = time.monotonic()
        reading = [self._listener, self._wake]
        writing, seconds = [], 1.0
        for pair in self._open:
            reading += self._may_read(pair)
            for way, room in ((pair.up, None), (pair.down, self.room)):
                if way.sendable(now, room):
                    writing.append(way.sink)
                elif way.waiting and way.waiting[0][0] > now:
                    seconds = min(seconds, way.waiting[0][0] - now)
        return reading, writing, seconds

    def _turn(self) -> None:
        """Do what can be done without waiting."""
        reading, _, _ = self._interest()
        ready, _, _ = select.select(reading, [], [], 0)
        if self._wake in ready:
            self._wake.recv(100)
        if self._listener in ready:
            self._accept()
        if self.is_held:
            return
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
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)
        client.setblocking(False)
        server.setblocking(False)
        pair = _Pair(client, server, self.change())
        self._open.append(pair)
        self._newest = pair

    def _due(self) -> float:
        """When a piece that has come now may go on."""
        return time.monotonic() + self.delay_seconds + self._dice.random() * self.scatter_seconds

    def _move(self, pair: _Pair, ready: list[socket.socket]) -> bool:
        """Returns whether it is over."""
        if pair.client in ready:
            data = pair.client.recv(_PIECE_BYTES)
            pair.up.is_ended = not data
            pair.sent += data
            pair.up.put(data, self._due())
        if pair.server in ready:
            data = pair.server.recv(_PIECE_BYTES)
            pair.down.is_ended = not data
            pair.down.put(pair.change(data) if data else b"", self._due())
        now = time.monotonic()
        for way, room in ((pair.up, None), (pair.down, self.room)):
            while data := way.sendable(now, room):
                before = way.passed
                way.send(data)
                if way.passed == before:
                    break
        return any(way.is_ended and not way.waiting for way in (pair.up, pair.down))
