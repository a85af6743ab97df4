"""`logweir bench fair`: what clients that take more than their share cost the others.

One server process with a listener of each protocol. Waits: while two connections send one command
(`floodcommands` has all of them) as fast as they can, and take the answers, a third one asks one
small question at a time; told are the median, the 99th hundredth and the worst of the times that it
waited, in milliseconds, and the same of memcached and Tarantool if they have the command. Memory:
what the process gains, in bytes, while `STRANGERS` connections have sent a part of a frame each, or
leave the answers to many requests unread; and what of that is left when they have gone. Those who
send and those who ask are processes of their own.

With `LOGWEIR_TURNS` in the environment the server runs on asyncio's own loop, and the longest turn
of that is told, too.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from logweir.errors import Unreachable
from logweir.tools.bench import watched
from logweir.tools.bench.cells import fits
from logweir.tools.bench.child import Child, python
from logweir.tools.bench.floodcommands import FUNCTIONS
from logweir.tools.bench.floods import (
    LISTEN,
    PROTOCOLS,
    TARANTOOL,
    Protocol,
    fill,
    preparations,
)
from logweir.tools.bench.servers import Server, logweir_server, memcached_server
from logweir.tools.bench.tarantool import TarantoolPeer

OURS: Final = "logweir"

STRANGERS: Final = 16
_FLOODERS: Final = 2
_OTHERS: Final = "127.0.0.2"
"""Whence they come: failed logins slow down those of the same address."""
_BLOCK_BYTES: Final = 128 * 1024
_ASK_SECONDS: Final = 8.0
_SETTLE_SECONDS: Final = 2.0
_FLOOD_SECONDS: Final = 1.0
_BEFORE_SECONDS: Final = 0.5
_CASES: Final = {"part": "a part of a frame each", "unread": "reading no answer"}


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a third connection waited, in milliseconds, for each of `count` answers of
    `server`; `bytes_per_second`: that the others could send, or of streams were given; `turn_ms`:
    processor time of the longest turn of our event loop, `turn`: what it was."""

    server: str
    protocol: str
    flood: str
    median_ms: float
    p99_ms: float
    worst_ms: float
    count: int
    bytes_per_second: float
    load: float
    turn_ms: float = 0.0
    turn: str = ""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"case": "waits", **asdict(self)}

    def to_text(self) -> str:
        """A line."""
        turn = f", longest turn {self.turn_ms:.1f} ms {self.turn}" if self.turn else ""
        return (
            f"{self.server:9} {self.protocol:15} {self.flood:30} median {self.median_ms:7.1f} ms, "
            f"p99 {self.p99_ms:7.1f} ms, worst {self.worst_ms:7.1f} ms of {self.count:5}, "
            f"taken {self.bytes_per_second / 1e6:7.1f} MB/s; load {self.load:.1f}{turn}"
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


def _connect(port: int, protocol: Protocol, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), _ASK_SECONDS, (source, 0))
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
    for name, requests in preparations().items():
        protocol = PROTOCOLS[name]
        with closing(_connect(server.ports[protocol.place], protocol)) as connection:
            _quiet(connection)
            for request in requests:
                connection.sendall(request)
                if not _quiet(connection, 1.0):
                    raise RuntimeError(f"{name} does not answer")


def flood(port: int, name: str, flooded: str, seconds: float) -> None:
    """What the process does that sends: tells its bytes per second."""
    print(flush=True)
    if flooded in PROTOCOLS[name].floods_anew:
        _send_anew(port, PROTOCOLS[name], PROTOCOLS[name].floods_anew[flooded], seconds)
    else:
        _send(port, PROTOCOLS[name], PROTOCOLS[name].floods[flooded], seconds)


def _send_anew(port: int, protocol: Protocol, request: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds

    def ask() -> int:
        taken = 0
        while time.monotonic() < end:
            with suppress(OSError), closing(_connect(port, protocol, _OTHERS)) as connection:
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
        connection = _connect(port, protocol, _OTHERS)
        for each in (write, read):
            threads.append(threading.Thread(target=each, args=(connection,), daemon=True))
            threads[-1].start()
    time.sleep(max(end - time.monotonic(), 0.0))
    print(next(sent) * len(block) / seconds)


def _ask_until(port: int, protocol: Protocol, end: float, *, may_cut: bool) -> list[float]:
    """Milliseconds for each answer. `may_cut`: a connection that the server cuts counts as a
    question without an answer, and the next one is asked on another."""
    waits: list[float] = []
    connection: socket.socket | None = None
    while time.monotonic() < end or not waits:
        if connection is None:
            connection = _connect(port, protocol)
            if not protocol.asks_anew:
                _quiet(connection)
        began = time.monotonic()
        answer, is_cut = b"", False
        try:
            connection.sendall(protocol.question)
            while not answer or protocol.answer not in answer:
                if not (got := connection.recv(1 << 16)):
                    raise ConnectionResetError("the server closed the connection")
                answer += got
        except TimeoutError:
            pass
        except ConnectionError as error:
            if not may_cut:
                raise Unreachable(str(port), str(error)) from error
            is_cut = True
        waits.append((_ASK_SECONDS if is_cut else time.monotonic() - began) * 1000)
        if protocol.asks_anew or is_cut:
            connection.close()
            connection = None
        time.sleep(0.002)
    if connection is not None:
        connection.close()
    return waits


def _is_watched() -> bool:
    return bool(os.environ.get("LOGWEIR_TURNS"))


def _told(folder: Path) -> Path:
    """Where the server of a folder tells its turns."""
    return folder.with_suffix(".turns")


@contextmanager
def _serving(filled: Path, folder: Path, *more: str) -> Iterator[Server]:
    """`logweir serve` on a copy of a folder."""
    shutil.copytree(filled, folder)
    functions = folder.with_suffix(".functions")
    functions.mkdir()
    (functions / "flooded.py").write_text(FUNCTIONS, encoding="utf-8")
    with ExitStack() as probes:
        made = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports: tuple[int, ...] = tuple(each.getsockname()[1] for each in made)
    updates, metrics, web = (f"127.0.0.1:{port}" for port in ports)
    program = f"import sys; sys.path.append({str(functions)!r}); "
    if _is_watched():
        program += f"from logweir.tools.bench import watched; watched.run({str(_told(folder))!r})"
    else:
        program += "from logweir.tools.cli.main import run; run()"
    options = (
        *("--listen", f"synapse://127.0.0.1:0?dialect=D3&http={updates}"),
        *("--metrics", metrics, "--web", web, "--functions", "flooded", *more),
    )
    with logweir_server(
        folder, LISTEN, durability="write", options=options, program=program
    ) as served:
        server = Server((*served.ports[-len(LISTEN) :], *ports), served.pid)
        _prepare(server)
        yield server


@contextmanager
def _peer(protocol: Protocol, folder: Path) -> Iterator[Server]:
    """The program that a protocol is compared with, with its port in the listener's place."""
    if protocol.peer == "Tarantool":
        folder.mkdir()
        with TarantoolPeer(folder, TARANTOOL) as peer:
            yield Server((int(peer.ask("port")),) * (protocol.place + 1), peer.pid)
    else:
        with memcached_server() as server:
            yield Server((server.port,) * (protocol.place + 1), server.pid)


def _child(call: str) -> Child:
    return Child(python(f"from logweir.tools.bench import fair; fair.{call}"))


def _wait(server: Server, port: int, name: str, flooded: str, what: str) -> Waits:
    seconds = _FLOOD_SECONDS
    with _child(
        f"flood({port}, {name!r}, {flooded!r}, {seconds + _BEFORE_SECONDS + 0.5})"
    ) as sender:
        sender.told()  # it begins
        time.sleep(_BEFORE_SECONDS)
        end = time.monotonic() + seconds
        waits = _ask_until(port, PROTOCOLS[name], end, may_cut=what != OURS)
        rate = 0.0
        with suppress(Unreachable):  # it failed
            rate = float(sender.told())
    server.settle()
    waits.sort()
    middle, late = statistics.median(waits), waits[len(waits) * 99 // 100]
    load = os.getloadavg()[0]
    return Waits(what, name, flooded, middle, late, max(waits), len(waits), rate, load)


def run_waits(folder: Path, *, patterns: str = "*") -> Iterator[Waits]:
    """Measure each flood, `PROTOCOL/NAME`, that fits one of the patterns, with the same protocol's
    question; first here, then the peer."""
    folder.mkdir()
    filled = folder / "filled"
    fill(filled)
    for name, protocol in PROTOCOLS.items():
        names = (*protocol.floods_anew, *protocol.floods)
        floods = [one for one in names if fits(f"{name}/{one}", patterns)]
        if not floods:
            continue
        place = folder / name
        with _serving(filled, place) as server:
            for flooded in floods:
                began = time.monotonic()
                found = _wait(server, server.ports[protocol.place], name, flooded, OURS)
                if _is_watched():
                    seconds, turn = watched.longest(_told(place), began)
                    found = replace(found, turn_ms=seconds * 1000, turn=turn)
                yield found
        shutil.rmtree(place)
        compared = [one for one in floods if one not in protocol.lacks]
        if not protocol.peer or not compared:
            continue
        place = folder / f"{name} peer"
        with suppress(Unreachable, ConnectionError), _peer(protocol, place) as server:
            port = server.ports[protocol.place]
            if protocol.peer == "memcached":
                with closing(_connect(port, PROTOCOLS["memcached"])) as connection:
                    connection.sendall(preparations()["memcached"][0])
                    _quiet(connection, 1.0)
            for flooded in compared:
                yield _wait(server, port, name, flooded, protocol.peer)


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


def run_memory(folder: Path, *, patterns: str = "*") -> Iterator[Memory]:
    """Measure unfinished frames (`PROTOCOL/part`) and unread answers (`…/unread`) on each port."""
    folder.mkdir()
    filled = folder / "filled"
    fill(filled)
    for name, protocol in PROTOCOLS.items():
        for case in _CASES:
            if not protocol.large or not fits(f"{name}/{case}", patterns):
                continue
            with _serving(filled, folder / f"{name}-{case}") as server:
                fresh = server.memory_bytes()
                peak = 0.0
                strange = f"strangers({server.ports[protocol.place]}, {name!r}, {case!r})"
                with ThreadPoolExecutor(1) as pool, _child(strange) as child:
                    told = pool.submit(child.told)
                    while not told.done():
                        peak = max(peak, server.memory_bytes())
                        time.sleep(0.05)
                    time.sleep(_SETTLE_SECONDS)
                    peak = max(peak, server.memory_bytes())
                time.sleep(_SETTLE_SECONDS)
                left = server.memory_bytes() - fresh
                yield Memory(name, case, int(told.result()), peak - fresh, left)
