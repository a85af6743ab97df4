"""`logweir bench tank`: a Tank broker next to the raw machine, over loopback, two processes.

Messages are random bytes, which no compression makes smaller. Fetch: stored bundles against
`sendfile` of a file with the same bytes. Publish: bundles in frames, several under way, against the
same bytes sent to a process that appends them to a file (without sync), or written and synced
bundle by bundle on the same disk (with sync). Lone: bundles of one message, each sent when the one
before is answered. Latency: from the first byte of a publish to the
arrival at a consumer that waits. Waiting: what connections that wait cost in memory and processor
time. Rates depend on what else the machine does; so the processor time of the serving process is
told too. Small: the fetch again, of bundles of one message.

A round is long enough to be a measurement: some tenths of a second of the slower case, so that one
wait for the processor, or for the disk, does not decide it; and with durability `write` a round is
most of a log file, so that nearly each has its share of what closing one costs. Both cases move the
same bytes, after a run of each that does not count. The folder of each part is removed at its end:
0.2 GiB a round and as much again are on the disk at most.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.serve.endpoint import TankService
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.messages import Create, Fetch, FetchPart, Publish, PublishPart
from logweir.replication.topic.bundle import Message, encode_bundle, encode_varint
from logweir.replication.topic.store import StoredTopics
from logweir.store import open as open_store
from logweir.tools.bench.child import Child, python
from logweir.tools.bench.harness import Case, Result, compare, plain
from logweir.tools.bench.servers import Server

MESSAGES: Final = 1000
MESSAGE_BYTES: Final = 100
BUNDLES: Final = 400
"""That are fetched, so many times in a round:"""

FETCHES: Final = 16
_SMALL_FETCHES: Final = 4
PUBLISHED: Final = {"write": 2000, "fsync": 400}
"""Bundles in a round, by durability."""

_WARM_BUNDLES: Final = 100
IN_FLIGHT: Final = 32
FETCH_BYTES: Final = 4 << 20
WAITING: Final = 5000
_FRAME: Final = struct.Struct("<BI")


@dataclass(frozen=True, slots=True)
class TankFigures:
    """What was measured. The first of each list of results is the raw machine.

    `fetch_small`: of bundles of one message; `cpu_ratio`: processor time of the raw machine over
    that of the broker, for the same bytes, both in the serving process; `lone_cpu_us`, by
    durability: of the broker for a bundle of one message, with the system's work of a sync;
    `latency_ms`: by durability.
    """

    fetch: list[Result]
    fetch_small: list[Result]
    publish_write: list[Result]
    publish_fsync: list[Result]
    cpu_ratio: dict[str, float]
    lone_cpu_us: dict[str, float]
    latency_ms: dict[str, dict[str, float]]
    waiting: dict[str, float]


def _bundle(count: int = MESSAGES) -> bytes:
    messages = [Message(0, 1, None, os.urandom(MESSAGE_BYTES)) for _ in range(count)]
    return encode_bundle(messages, compress=False)


# --- the serving process --------------------------------------------------------------------------


def serve(directory: str, durability: str) -> None:
    """Serve topics of a fresh store, a file by sendfile, and a sink; tells its ports on stdout."""
    logging.disable(logging.WARNING)
    file_port = _thread_server(lambda peer: _send_file(peer, directory))
    sink_port = _thread_server(lambda peer: _sink(peer, directory))

    async def main() -> None:
        with open_store(Path(directory) / "store", durability=durability) as log:  # type: ignore[arg-type]
            metrics = Metrics()
            listener = Listener(metrics=metrics, connections_limit=2 * WAITING)
            topics = StoredTopics(log)
            service = TankService(topics, metrics=metrics)
            url = await listener.listen(parse_listen_url("tank://127.0.0.1:0"), service)
            print(url.port, file_port, sink_port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            await listener.close()
            await topics.close()

    from logweir.replication.loop import run

    run(main())


def _thread_server(handle: Callable[[socket.socket], None]) -> int:
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            peer, _ = server.accept()
            with peer:
                handle(peer)

    threading.Thread(target=accept, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def _send_file(peer: socket.socket, directory: str) -> None:
    with open(Path(directory) / "raw", "rb") as file:
        while peer.recv(1):
            size = os.fstat(file.fileno()).st_size
            offset = 0
            while offset < size:
                offset += os.sendfile(peer.fileno(), file.fileno(), offset, size - offset)


def _sink(peer: socket.socket, directory: str) -> None:
    buffer = bytearray(1 << 18)
    view = memoryview(buffer)
    with open(Path(directory) / "sink", "wb", buffering=0) as file:
        head = peer.recv(8, socket.MSG_WAITALL)
        while head:
            left = int.from_bytes(head, "little")
            if not left:
                file.truncate(0)
                file.seek(0)
            while left:
                count = peer.recv_into(view[: min(left, len(buffer))])
                file.write(view[:count])
                left -= count
            peer.sendall(b"\0")
            head = peer.recv(8, socket.MSG_WAITALL)


# --- the measuring process ------------------------------------------------------------------------


class _Peer:
    """A connection that reads whole frames with as little work as can be."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(1 << 20))

    def frame(self) -> int:
        """Read one frame, throw it away; returns the bytes of its payload."""
        head = self.socket.recv(_FRAME.size, socket.MSG_WAITALL)
        _, size = _FRAME.unpack(head)
        self.skip(size)
        return int(size)

    def skip(self, size: int) -> None:
        """Read so many bytes and throw them away."""
        while size:
            size -= self.socket.recv_into(self._buffer[: min(size, len(self._buffer))])


@contextmanager
def _server(directory: Path, durability: str) -> Iterator[Server]:
    """With the ports of the broker, of the file and of the sink."""
    directory.mkdir(parents=True, exist_ok=True)
    code = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"
    with Child(python(code, directory, durability)) as child:
        yield Server(tuple(map(int, child.told().split())), child.pid)


class _Spent:
    """Processor time of the serving process, by case."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seconds: dict[str, float] = {}

    def case(self, name: str, run: Callable[[], float], units: int) -> Case:
        """A case whose processor time is added up."""

        def timed() -> float:
            before = self._server.cpu_seconds()
            seconds = run()
            spent = self._seconds.get(name, 0.0) + self._server.cpu_seconds() - before
            self._seconds[name] = spent
            return seconds

        return Case(name, timed, units)

    def ratio(self) -> float:
        """That of the first case over that of the second."""
        raw, ours = self._seconds.values()
        return raw / max(ours, 1e-9)


def _publish(peer: _Peer, frames: list[bytes]) -> float:
    """Send frames with some under way; seconds until all are answered."""
    start = time.perf_counter()
    sent = 0
    for done in range(len(frames)):
        while sent < len(frames) and sent - done < IN_FLIGHT:
            peer.socket.sendall(frames[sent])
            sent += 1
        assert peer.frame() > 4
    return time.perf_counter() - start


def _fetch_all(peer: _Peer, messages: int, framed_bytes: int, times: int) -> float:
    """Fetch everything, bundles of so many messages and bytes, in requests of 4 MiB; so often;
    seconds."""
    step = FETCH_BYTES // framed_bytes * messages
    start = time.perf_counter()
    for _ in range(times):
        for number in range(1, BUNDLES * MESSAGES + 1, step):
            part = FetchPart("bench", 0, number, FETCH_BYTES)
            peer.socket.sendall(encode_request(Fetch(1, (("bench", (part,)),))))
            assert peer.frame() > framed_bytes
    return time.perf_counter() - start


def _send_raw(peer: _Peer, data: bytes, times: int) -> float:
    peer.socket.sendall(bytes(8))  # into an empty file
    peer.skip(1)
    start = time.perf_counter()
    peer.socket.sendall((len(data) * times).to_bytes(8, "little"))
    for _ in range(times):
        peer.socket.sendall(data)
    peer.skip(1)
    return time.perf_counter() - start


def _read_file(peer: _Peer, size: int, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        peer.socket.sendall(b"x")
        peer.skip(size)
    return time.perf_counter() - start


def _write_synced(directory: Path, data: bytes, times: int) -> float:
    fd = os.open(directory / "synced", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        start = time.perf_counter()
        for _ in range(times):
            os.write(fd, data)
            os.fdatasync(fd)
        return time.perf_counter() - start
    finally:
        os.close(fd)


def _topic(port: int) -> _Peer:
    peer = _Peer(port)
    peer.skip(_FRAME.size)
    peer.socket.sendall(encode_request(Create(1, "bench", 1)))
    peer.frame()
    return peer


def _publish_frame(bundle: bytes, times: int = 1) -> bytes:
    return encode_request(Publish(1, (("bench", (PublishPart("bench", 0, bundle),) * times),)))


@dataclass(slots=True)
class _Published:
    results: list[Result]
    cpu: float
    lone_cpu_us: float
    latency_ms: dict[str, float]


def _publishing(directory: Path, durability: str, rounds: int) -> _Published:
    data = _bundle()
    frame = _publish_frame(data)
    count = PUBLISHED[durability]
    with _server(directory, durability) as server:
        tank, _, sink = server.ports
        peer, other, spent = _topic(tank), _Peer(sink), _Spent(server)

        def write(times: int) -> float:
            if durability == "fsync":
                return _write_synced(directory, data, times)
            return _send_raw(other, data, times)

        write(_WARM_BUNDLES)
        _publish(peer, [frame] * _WARM_BUNDLES)
        latency_ms = _latency(tank, peer)  # before much is written that the system has to store
        lone_cpu_us = _lone_cpu_us(server, peer)
        name = "write+fdatasync" if durability == "fsync" else "loopback+write"
        raw = spent.case(name, lambda: write(count), count)
        ours = spent.case("publish", lambda: _publish(peer, [frame] * count), count)
        results = compare([raw, ours], rounds=rounds)
        peer.socket.close()
        other.socket.close()
    shutil.rmtree(directory)
    return _Published(results, spent.ratio(), lone_cpu_us, latency_ms)


def _fetching(
    directory: Path, messages: int, times: int, rounds: int
) -> tuple[list[Result], float, dict[str, float]]:
    """Bundles of so many messages, all so many times in a round."""
    data = _bundle(messages)
    bundles = BUNDLES * MESSAGES // messages
    framed = encode_varint(len(data)) + data
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "raw").write_bytes(framed * bundles)
    with _server(directory, "write") as server:
        tank, file, _ = server.ports
        peer, other, spent = _topic(tank), _Peer(file), _Spent(server)
        together = min(bundles // BUNDLES, 200)
        _publish(peer, [_publish_frame(data, together)] * (bundles // together))
        size = len(framed) * bundles
        _read_file(other, size, 1)
        _fetch_all(peer, messages, len(framed), 1)
        cases = [
            spent.case("sendfile", lambda: _read_file(other, size, times), size * times),
            spent.case(
                "fetch", lambda: _fetch_all(peer, messages, len(framed), times), size * times
            ),
        ]
        results = compare(cases, rounds=rounds)
        waiting = _waiting(server) if messages == MESSAGES else {}
        peer.socket.close()
        other.socket.close()
    shutil.rmtree(directory)
    return results, spent.ratio(), waiting


def _lone_frame() -> bytes:
    return _publish_frame(encode_bundle([Message(0, 1, None, os.urandom(MESSAGE_BYTES))]))


def _lone_cpu_us(server: Server, peer: _Peer, count: int = 1000) -> float:
    """Publish single messages, one at a time: the broker's processor time for each."""
    frame = _lone_frame()
    before = server.cpu_seconds()
    for _ in range(count):
        peer.socket.sendall(frame)
        peer.frame()
    return (server.cpu_seconds() - before) / count * 1e6


def _latency(port: int, publisher: _Peer, count: int = 1000) -> dict[str, float]:
    """Publish single messages to a consumer that waits; both here, one after the other."""
    consumer = _Peer(port)
    consumer.skip(_FRAME.size)
    publish = _lone_frame()
    part = FetchPart("bench", 0, 2**64 - 1, 1 << 20)
    fetch = encode_request(Fetch(1, (("bench", (part,)),), max_wait_ms=10_000))
    took = []
    for _ in range(count):
        consumer.socket.sendall(fetch)
        time.sleep(0.001)  # the fetch has to wait there before the publish comes
        start = time.perf_counter()
        publisher.socket.sendall(publish)
        consumer.frame()
        took.append((time.perf_counter() - start) * 1000)
        publisher.frame()
    consumer.socket.close()
    took.sort()
    return {"p50": took[count // 2], "p99": took[count * 99 // 100], "max": took[-1]}


def _waiting(server: Server) -> dict[str, float]:
    """Connections that wait for the next message."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(WAITING, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = server.resident_bytes()
    part = FetchPart("bench", 0, 2**64 - 1, 1 << 20)
    fetch = encode_request(Fetch(1, (("bench", (part,)),), max_wait_ms=3_600_000))
    peers = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.recv(_FRAME.size, socket.MSG_WAITALL)
        peer.sendall(fetch)
        peers.append(peer)
    time.sleep(1)  # the last ones are taken
    memory = server.resident_bytes() - before
    cpu = server.cpu_seconds()
    time.sleep(5)  # what waiting costs is measured over this time
    cpu = server.cpu_seconds() - cpu
    for peer in peers:
        peer.close()
    return {"connections": count, "memory_mib": memory / 2**20, "cpu_seconds_in_5": cpu}


def run_tank(directory: Path, *, rounds: int = 5) -> TankFigures:
    """Measure everything. `directory`: on the disk to be measured."""
    fetch, fetch_cpu, waiting = _fetching(directory / "fetch", MESSAGES, FETCHES, rounds)
    small, small_cpu, _ = _fetching(directory / "small", 1, _SMALL_FETCHES, rounds)
    write = _publishing(directory / "write", "write", rounds)
    fsync = _publishing(directory / "fsync", "fsync", rounds)
    return TankFigures(
        fetch,
        small,
        write.results,
        fsync.results,
        {
            "fetch": fetch_cpu,
            "fetch, bundles of one message": small_cpu,
            "publish, durability write": write.cpu,
        },
        {"write": write.lone_cpu_us, "fsync": fsync.lone_cpu_us},
        {"write": write.latency_ms, "fsync": fsync.latency_ms},
        waiting,
    )


def to_json(figures: TankFigures) -> dict[str, Any]:
    """For `--json`."""
    return {
        "message_bytes": MESSAGE_BYTES,
        "bundle_messages": MESSAGES,
        "in_flight": IN_FLIGHT,
        "bundles_published": PUBLISHED,
        "bundles_fetched": BUNDLES * FETCHES,
        "fetch_bytes": FETCH_BYTES,
        **plain(figures),
    }
