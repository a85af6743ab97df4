"""`logweir bench fair`: what clients that take more than their share cost the others.

One server process with a listener of each protocol. Waits: while two connections send one kind of
request as fast as they can, and take the answers, a third one asks one small question at a time;
told are the median and the worst time it waited, in milliseconds. Memory: what the process gains,
in bytes, while `STRANGERS` connections have sent a part of a frame each, or leave the answers to
many requests unread; and what of that is left when they have gone. Those who send and those who
ask are processes of their own.
"""

from __future__ import annotations

import itertools
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from logweir.errors import Unreachable
from logweir.tools.bench import watched
from logweir.tools.bench.floods import LISTEN, PROTOCOLS, Protocol, fill, preparations
from logweir.tools.bench.servers import Server, logweir_server

__all__ = ["STRANGERS", "Memory", "Waits", "run_memory", "run_waits"]

STRANGERS: Final = 16
_FLOODERS: Final = 2
_BLOCK_BYTES: Final = 128 * 1024
_ASK_SECONDS: Final = 8.0
_SETTLE_SECONDS: Final = 2.0
_FLOOD_SECONDS: Final = 3.0
_CASES: Final = {"part": "a part of a frame each", "unread": "reading no answer"}


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a third connection waited, in milliseconds, for each of `count` answers;
    `turn_ms`: processor time of the longest turn of the server's event loop, `turn`: what it was;
    `bytes_per_second`: that the others could send, or of streams were given."""

    protocol: str
    flood: str
    median_ms: float
    worst_ms: float
    count: int
    turn_ms: float
    turn: str
    bytes_per_second: float

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"case": "waits", **asdict(self)}

    def to_text(self) -> str:
        """A line."""
        return (
            f"{self.protocol:10} {self.flood:17} median {self.median_ms:8.1f} ms, "
            f"worst {self.worst_ms:8.1f} ms of {self.count:5}, "
            f"longest turn {self.turn_ms:7.1f} ms {self.turn}, "
            f"taken {self.bytes_per_second / 1e6:7.1f} MB/s"
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What the strangers took. `left_bytes`: of it when they had gone."""

    protocol: str
    case: str
    sent_bytes: int
    gained_bytes: float
    left_bytes: float

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def to_text(self) -> str:
        """A line."""
        sent, gained, left = (
            f"{size / 2**20:6.0f} MiB"
            for size in (self.sent_bytes, self.gained_bytes, self.left_bytes)
        )
        what = f"{STRANGERS} strangers, {_CASES[self.case]}"
        return (
            f"{self.protocol:10} {what}: sent {sent}, memory {gained} more, {left} when they left"
        )


def _connect(port: int, protocol: Protocol) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), _ASK_SECONDS)
    if protocol.opening:
        connection.sendall(protocol.opening)
    return connection


def _quiet(connection: socket.socket, seconds: float = 0.3, end: float = inf) -> int:
    """Take what comes until nothing does for so long, or until `end`; how much it was."""
    connection.settimeout(seconds)
    count = 0
    try:
        while time.monotonic() < end and (got := len(connection.recv(1 << 18))):
            count += got
    except TimeoutError:
        pass
    connection.settimeout(_ASK_SECONDS)
    return count


def _prepare(server: Server) -> None:
    """What cannot be made before the server runs."""
    for name, requests in preparations():
        protocol = PROTOCOLS[name]
        with closing(_connect(server.ports[protocol.place], protocol)) as connection:
            _quiet(connection)
            for request in requests:
                connection.sendall(request)
                if not _quiet(connection, 1.0):
                    raise RuntimeError(f"{name} does not answer")


def flood(port: int, name: str, flooded: str, seconds: float) -> None:
    """What the process does that sends: tells its bytes per second."""
    if flooded in PROTOCOLS[name].streams:
        _stream(port, PROTOCOLS[name], PROTOCOLS[name].streams[flooded], seconds)
    else:
        _send(port, PROTOCOLS[name], PROTOCOLS[name].floods[flooded], seconds)


def _stream(port: int, protocol: Protocol, request: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds

    def ask() -> int:
        taken = 0
        while time.monotonic() < end:
            with suppress(OSError), closing(_connect(port, protocol)) as connection:
                connection.sendall(request)
                taken += _quiet(connection, 0.1, end)
        return taken

    with ThreadPoolExecutor(_FLOODERS) as pool:
        askers = [pool.submit(ask) for _ in range(_FLOODERS)]
        print(sum(each.result() for each in askers) / seconds)


def _send(port: int, protocol: Protocol, request: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds
    block = request * max(_BLOCK_BYTES // len(request), 1)
    sent = itertools.count()

    def write(connection: socket.socket) -> None:
        with suppress(OSError):
            while time.monotonic() < end:
                connection.sendall(block)
                next(sent)

    def read(connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(1 << 18):
                pass

    threads = []
    for _ in range(_FLOODERS):
        connection = _connect(port, protocol)
        for each in (write, read):
            threads.append(threading.Thread(target=each, args=(connection,), daemon=True))
            threads[-1].start()
    time.sleep(max(end - time.monotonic(), 0.0))
    print(next(sent) * len(block) / seconds)


def _has_answer(data: bytes, start: bytes) -> bool:
    lines = data.split(b"\n")[:-1] or [data]
    return bool(data) and any(line.startswith(start) for line in lines)


def _ask_until(port: int, protocol: Protocol, end: float) -> list[float]:
    waits: list[float] = []
    connection: socket.socket | None = None
    while time.monotonic() < end or not waits:
        if connection is None:
            connection = _connect(port, protocol)
            if not protocol.anew:
                _quiet(connection)
        began = time.monotonic()
        connection.sendall(protocol.question)
        answer = b""
        try:
            while not _has_answer(answer, protocol.answer):
                if not (got := connection.recv(1 << 16)):
                    raise Unreachable(str(port), "the server closed the connection")
                answer += got
        except TimeoutError:
            pass
        waits.append((time.monotonic() - began) * 1000)
        if protocol.anew:
            connection.close()
            connection = None
        time.sleep(0.002)
    if connection is not None:
        connection.close()
    return waits


def _told(folder: Path) -> Path:
    """Where the server of a folder tells its turns."""
    return folder.with_suffix(".turns")


@contextmanager
def _serving(folder: Path, *more: str) -> Iterator[Server]:
    fill(folder)
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        ports: tuple[int, ...] = first.getsockname()[1], second.getsockname()[1]
    updates = f"synapse://127.0.0.1:0?dialect=D3&http=127.0.0.1:{ports[0]}"
    program = f"from logweir.tools.bench import watched; watched.run({str(_told(folder))!r})"
    options = ("--listen", updates, "--metrics", f"127.0.0.1:{ports[1]}", *more)
    with logweir_server(
        folder, LISTEN, durability="write", options=options, program=program
    ) as made:
        server = Server((*made.ports[-len(LISTEN) :], *ports), made.pid)
        _prepare(server)
        yield server


def _child(call: str) -> subprocess.Popen[str]:
    code = f"from logweir.tools.bench import fair; fair.{call}"
    return subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def run_waits(folder: Path, *, pattern: str = "") -> Iterator[Waits]:
    """Measure each flood, `PROTOCOL/NAME`, that fits the pattern, with the same protocol's
    question."""
    seconds = _FLOOD_SECONDS
    for name, protocol in PROTOCOLS.items():
        names = (*protocol.streams, *protocol.floods)
        floods = [one for one in names if re.search(pattern, f"{name}/{one}")]
        if not floods:
            continue
        with _serving(folder / name) as server:
            port = server.ports[protocol.place]
            for flooded in floods:
                sender = _child(f"flood({port}, {name!r}, {flooded!r}, {seconds + 1})")
                began = time.monotonic()
                time.sleep(1.0)
                waits = _ask_until(port, protocol, time.monotonic() + seconds)
                told, _ = sender.communicate()
                turn_seconds, turn = watched.longest(_told(folder / name), began)
                yield Waits(
                    name,
                    flooded,
                    statistics.median(waits),
                    max(waits),
                    len(waits),
                    turn_seconds * 1000,
                    turn,
                    float(told or 0),
                )
                server.settle()


def strangers(port: int, name: str, case: str) -> None:
    """What the process does that takes: tells what it sent; goes when its input ends."""
    protocol = PROTOCOLS[name]
    sent = 0
    opened = []
    for _ in range(STRANGERS):
        try:
            connection = socket.create_connection(("127.0.0.1", port), 10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            if case == "unread" and protocol.opening:
                connection.sendall(protocol.opening)
        except OSError:
            continue
        opened.append(connection)
        connection.setblocking(False)
    left = {each: 0 for each in opened}
    block = protocol.large * max(65536 // len(protocol.large), 1)
    most = 16 << 20
    if case == "part":
        block, most = bytes(1 << 18), 30 << 20
        for each in opened:
            each.send(protocol.part)
    last = time.monotonic()
    while left and time.monotonic() - last < 2.0:
        for each in tuple(left):
            try:
                count = each.send(block)
            except BlockingIOError:
                continue
            except OSError:
                del left[each]
                continue
            sent += count
            left[each] += count
            if count < len(block) and case == "unread":
                try:  # never a part of a request
                    each.setblocking(True)
                    each.settimeout(2.0)
                    each.sendall(block[count:])
                    each.setblocking(False)
                except OSError:
                    del left[each]
                    continue
            last = time.monotonic()
            if left[each] >= most:
                del left[each]
        time.sleep(0.001)
    print(sent, flush=True)
    sys.stdin.read()


def run_memory(folder: Path, *, pattern: str = "") -> Iterator[Memory]:
    """Measure unfinished frames (`PROTOCOL/part`) and unread answers (`…/unread`) on each port."""
    for name, protocol in PROTOCOLS.items():
        for case in _CASES:
            if not re.search(pattern, f"{name}/{case}"):
                continue
            with _serving(folder / f"{name}-{case}") as server:
                fresh = server.memory_bytes()
                child = _child(f"strangers({server.ports[protocol.place]}, {name!r}, {case!r})")
                assert child.stdout is not None
                peak = 0.0
                with ThreadPoolExecutor(1) as pool:
                    told = pool.submit(child.stdout.readline)
                    while not told.done():
                        peak = max(peak, server.memory_bytes())
                        time.sleep(0.05)
                time.sleep(_SETTLE_SECONDS)
                peak = max(peak, server.memory_bytes())
                child.communicate()
                time.sleep(_SETTLE_SECONDS)
                left = server.memory_bytes() - fresh
                yield Memory(name, case, int(told.result() or 0), peak - fresh, left)
