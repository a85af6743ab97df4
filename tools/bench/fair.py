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
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logweir.errors import Unreachable
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.greenstack.wire.messages import Document, Hello, encode_bucket, encode_get
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.tank.wire import messages as tank
from logweir.replication.tank.wire.codec import encode_request as tank_request
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.store import open as open_store
from logweir.tools.bench.servers import Server, logweir_server
from logweir.wal.mp import pack

__all__ = ["PROTOCOLS", "STRANGERS", "Memory", "Waits", "run_memory", "run_waits"]

STRANGERS: Final = 16
LARGE_BYTES: Final = 900_000
_FLOODERS: Final = 2
_BLOCK_BYTES: Final = 128 * 1024
_ASK_SECONDS: Final = 8.0
_SETTLE_SECONDS: Final = 2.0
_FLOOD_SECONDS: Final = 3.0
_CASES: Final = {"part": "a part of a frame each", "unread": "reading no answer"}

LISTEN: Final = (
    "tarantool://127.0.0.1:0",
    "tank://127.0.0.1:0",
    "synapse://127.0.0.1:0",
    "memcached://127.0.0.1:0",
    "greenstack://127.0.0.1:0",
)


def _iproto(kind: int, body: dict[int, object]) -> bytes:
    payload = pack({0: kind, 1: 1}) + pack(body)
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def _select(key: str) -> bytes:
    body = {0x10: 512, 0x11: 0, 0x12: 1, 0x13: 0, 0x14: 0, 0x20: [key]}
    return _iproto(RequestType.SELECT, body)


def _tap(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> bytes:
    return struct.pack(
        ">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0,
        len(key) + len(value) + len(extras), 0, 0,
    ) + extras + key + value  # fmt: skip


def _green(opcode: int, payload: bytes = b"") -> bytes:
    flex = {greenstack.FlexKey.VBUCKET.value: b"\0\0"}
    return greenstack.encode_frame(greenstack.Frame(opcode, 1, payload, flex=flex))


def _fetch(max_bytes: int) -> bytes:
    part = tank.FetchPart("t", 0, 1, max_bytes)
    return tank_request(tank.Fetch(1, (("t", (part,)),), client="bench"))


def _publish(size: int) -> bytes:
    bundle = encode_bundle([Message(1, 1, None, b"x" * size)], compress=False)
    return tank_request(tank.Publish(1, (("t", (tank.PublishPart("t", 0, bundle),)),)))


_HELLO: Final = greenstack.encode_frame(
    greenstack.Frame(greenstack.Opcode.HELLO, payload=Hello("bench", "1", "", ()).encode())
) + greenstack.encode_frame(
    greenstack.Frame(greenstack.Opcode.SELECT_BUCKET, payload=encode_bucket("default"))
)
_COUNT: Final = struct.pack(">QQI", 1, 1, 0)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One listener. `floods`: name → one request; `large`: a request with a large answer; `part`:
    of a frame of 32 MiB; `opening`: sent first; `ask`: the question, each `answer` of which begins
    so, on a new connection each time where `anew`."""

    place: int
    floods: dict[str, bytes]
    question: bytes
    answer: bytes
    large: bytes
    part: bytes
    opening: bytes = b""
    anew: bool = False


PROTOCOLS: Final = {
    "tarantool": Protocol(
        0,
        {
            "PING": _iproto(RequestType.PING, {}),
            "VOTE": _iproto(RequestType.VOTE, {}),
            "SELECT": _select("none"),
            "SELECT large": _select("big"),
            "REPLACE": _iproto(RequestType.REPLACE, {0x10: 512, 0x21: ["x", "y"]}),
            "CALL": _iproto(RequestType.CALL, {0x22: "nothing", 0x21: []}),
            "EVAL": _iproto(RequestType.EVAL, {0x27: "", 0x21: []}),
            "type 99": _iproto(99, {}),
        },
        _iproto(RequestType.PING, {}),
        b"\xce",
        _select("big"),
        b"\xce" + (32 << 20).to_bytes(4, "big"),
    ),
    "tank": Protocol(
        1,
        {
            "partitions": tank_request(tank.Partitions(1, "t")),
            "topics": tank_request(tank.Topics(1)),
            "status": tank_request(tank.Status(1)),
            "fetch": _fetch(100),
            "fetch large": _fetch(1 << 20),
            "publish": _publish(20),
            "publish large": _publish(100_000),
        },
        tank_request(tank.Partitions(1, "none")),
        b"",
        _fetch(1 << 20),
        b"\x01" + (32 << 20).to_bytes(4, "little"),
    ),
    "synapse": Protocol(
        2,
        {
            "PING": b"PING 1\n",
            "NAME": b"NAME x\n",
            "REPLICATE NOW": b"REPLICATE t NOW\n",
            "REPLICATE 0": b"REPLICATE t 0\n",
            "FEDERATION_ACK": b"FEDERATION_ACK 5\n",
            "REMOTE_SERVER_UP": b"REMOTE_SERVER_UP a.b\n",
        },
        b"REPLICATE t NOW\n",
        b"POSITION",
        b"REPLICATE t 0\n",
        b"NAME ",
        anew=True,
    ),
    "memcached": Protocol(
        3,
        {
            "VERSION": _tap(0x0B),
            "NOOP": _tap(0x0A),
            "GET": _tap(0, b"none"),
            "GET large": _tap(0, b"big"),
            "SET": _tap(1, b"x", b"y" * 20, bytes(8)),
            "INCREMENT": _tap(5, b"n", extras=_COUNT),
            "TOUCH": _tap(0x1C, b"none", extras=bytes(4)),
            "STAT": _tap(0x10),
            "opcode 0x70": _tap(0x70),
            "SASL_LIST_MECHS": _tap(0x20),
        },
        _tap(0, b"none"),
        b"\x81",
        _tap(0, b"big"),
        struct.pack(">BBHBBHIIQ", 0x80, 1, 1, 8, 0, 0, 1_000_009, 0, 0),
    ),
    "greenstack": Protocol(
        4,
        {
            "NOOP": _green(greenstack.Opcode.NOOP),
            "GET": _green(greenstack.Opcode.GET, encode_get(b"none")),
            "GET large": _green(greenstack.Opcode.GET, encode_get(b"big")),
            "MUTATION": _green(greenstack.Opcode.MUTATION, Document(b"x", b"y" * 20).encode()),
            "LIST_BUCKETS": _green(greenstack.Opcode.LIST_BUCKETS),
            "SELECT_BUCKET": _green(greenstack.Opcode.SELECT_BUCKET, encode_bucket("default")),
            "HELLO": _HELLO,
        },
        _green(greenstack.Opcode.GET, encode_get(b"none")),
        b"",
        _green(greenstack.Opcode.GET, encode_get(b"big")),
        (32 << 20).to_bytes(4, "big"),
        opening=_HELLO,
    ),
    "metrics": Protocol(
        5,
        {"GET": b"GET /metrics HTTP/1.1\r\n\r\n", "404": b"GET / HTTP/1.1\r\n\r\n"},
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET ",
    ),
}


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a third connection waited, in milliseconds, for each of `count` answers;
    `bytes_per_second`: of requests that the others could send."""

    protocol: str
    flood: str
    median_ms: float
    worst_ms: float
    count: int
    bytes_per_second: float

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"case": "waits", **asdict(self)}

    def to_text(self) -> str:
        """A line."""
        return (
            f"{self.protocol:10} {self.flood:17} median {self.median_ms:8.1f} ms, "
            f"worst {self.worst_ms:8.1f} ms of {self.count:5}, "
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


def fill(folder: Path) -> None:
    """Make the store that is served."""
    with open_store(folder) as log:
        log.create_space("t", format=[("id", "string"), ("value", "string")])
        log.insert("t", ("big", "x" * LARGE_BYTES))
        Buckets(log).make("default")


def _connect(port: int, protocol: Protocol) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), _ASK_SECONDS)
    if protocol.opening:
        connection.sendall(protocol.opening)
    return connection


def _quiet(connection: socket.socket, seconds: float = 0.3) -> int:
    """Take what comes until nothing does for so long; how much it was."""
    connection.settimeout(seconds)
    count = 0
    try:
        while got := len(connection.recv(1 << 18)):
            count += got
    except TimeoutError:
        pass
    connection.settimeout(_ASK_SECONDS)
    return count


def _prepare(server: Server) -> None:
    """What cannot be made before the server runs."""
    topic = tank_request(tank.Create(1, "t", 1))
    wanted = (
        ("tank", (topic, _publish(LARGE_BYTES))),
        ("memcached", (_tap(1, b"big", b"x" * LARGE_BYTES, bytes(8)),)),
        (
            "greenstack",
            (_green(greenstack.Opcode.MUTATION, Document(b"big", b"x" * LARGE_BYTES).encode()),),
        ),
    )
    for name, requests in wanted:
        protocol = PROTOCOLS[name]
        with closing(_connect(server.ports[protocol.place], protocol)) as connection:
            _quiet(connection)
            for request in requests:
                connection.sendall(request)
                if not _quiet(connection, 1.0):
                    raise RuntimeError(f"{name} does not answer")


def flood(port: int, name: str, request: bytes, seconds: float) -> None:
    """What the process does that sends: tells its bytes per second."""
    protocol = PROTOCOLS[name]
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


@contextmanager
def _serving(folder: Path, *more: str) -> Iterator[Server]:
    fill(folder)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    metrics = ("--metrics", f"127.0.0.1:{port}")
    with logweir_server(folder, LISTEN, durability="write", options=(*metrics, *more)) as made:
        server = Server((*made.ports, port), made.pid)
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
        floods = [one for one in protocol.floods if re.search(pattern, f"{name}/{one}")]
        if not floods:
            continue
        with _serving(folder / name) as server:
            port = server.ports[protocol.place]
            for flooded in floods:
                request = protocol.floods[flooded]
                sender = _child(f"flood({port}, {name!r}, {request!r}, {seconds + 1})")
                time.sleep(1.0)
                waits = _ask_until(port, protocol, time.monotonic() + seconds)
                told, _ = sender.communicate()
                yield Waits(
                    name,
                    flooded,
                    statistics.median(waits),
                    max(waits),
                    len(waits),
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
