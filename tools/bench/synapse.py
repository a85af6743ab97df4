"""`logweir bench synapse`: following a homeserver, and serving followers, next to the raw machine.

Everything over loopback, with the peer in a process of its own. The rows are those of a homeserver
in use: `events` of about 150 bytes, every fourth token two rows (`batch`), every sixth line a
receipt. Ingest: until all rows are durable, against reading the same lines and `json.loads` of each
row alone. Serving: one follower that catches up (D1), against a process that writes the prepared
lines, in pieces of 64 KiB, or each by itself as Synapse does. Latency: from the commit of a change
(the moment the log is synced) to the arrival of its line. Followers: what 500 that wait cost, and
what those that read nothing cost the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.replication import server as serving
from logweir.replication.metrics import Metrics
from logweir.replication.runner import Runner
from logweir.replication.synapse.source import SynapseSource
from logweir.replication.urls import parse_listen_url, parse_url
from logweir.store import open as open_store
from logweir.tools.bench.harness import Case, Result, compare

__all__ = ["LINES", "SynapseFigures", "bench_lines", "run_synapse", "to_json"]

LINES: Final = 120_000
FOLLOWERS: Final = 500
_READ_BYTES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SynapseFigures:
    """What was measured. The first of each list of results is the raw machine."""

    ingest: list[Result]
    ingest_cpu: dict[str, float]
    serve: list[Result]
    latency_ms: dict[str, float]
    followers: dict[str, float]
    stuck: dict[str, float]


def bench_lines(count: int, dialect: str = "D1") -> list[bytes]:
    """So many RDATA lines with LF."""
    who = "" if dialect == "D1" else "master "
    found: list[bytes] = []
    token = receipts = 1
    while len(found) < count:
        if len(found) % 6 == 5:
            receipts += 1
            row: list[Any] = ["!roomidroomid:x.test", "m.read", "@user:x.test", f"$e{token:043}"]
            found.append(_line("receipts", who, receipts, [*row, {"ts": 1700000000000}]))
            continue
        token += 1
        event = [f"$e{token:043}", "!roomidroomid:x.test", "m.room.message", None, None, None]
        if token % 4 == 0 and len(found) + 1 < count:
            found.append(_line("events", who, "batch", ["ev", [*event, "join", 0, 0]]))
            state = ["!roomidroomid:x.test", "m.room.topic", "", event[0]]
            found.append(_line("events", who, token, ["state", state]))
        else:
            found.append(_line("events", who, token, ["ev", [*event, "join", 0, 0]]))
    return found


def _line(stream: str, who: str, token: int | str, row: list[Any]) -> bytes:
    separators = (", ", ": ") if not who else (",", ":")
    return f"RDATA {stream} {who}{token} {json.dumps(row, separators=separators)}\n".encode()


# --- the peer's process ---------------------------------------------------------------------------


def feed(count: int, dialect: str) -> None:
    """A server that sends the lines to whoever asks; tells its port on stdout."""
    lines = bench_lines(count, dialect)
    whole = b"".join(lines)
    form = "{0} 1" if dialect == "D1" else "{0} master 1 1"
    start = "".join("POSITION " + form.format(name) + "\n" for name in ("events", "receipts"))
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)

    def handle(peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as asked:
            peer.sendall(b"SERVER x.test\nPING 1\n")
            for line in asked:
                if line.startswith(b"REPLICATE"):
                    peer.sendall(start.encode() + whole)
                elif line.startswith(b"PIECES"):
                    for at in range(0, len(whole), _PIECE_BYTES):
                        peer.sendall(whole[at : at + _PIECE_BYTES])
                elif line.startswith(b"LINES"):
                    for one in lines:
                        peer.sendall(one)

    def accept() -> None:
        while True:
            peer, _ = server.accept()
            threading.Thread(target=handle, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.readline()


def serve(directory: str) -> None:
    """Serve the store in `directory`; tells its port on stdout, inserts what stdin asks for."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def main() -> None:
        with open_store(Path(directory)) as log:
            if log.schema.get("bench") is None:
                log.create_space("bench", [("id", "unsigned"), ("text", "string")])
            number = log.count("bench")
            committed = [0.0]
            log.on_commit(lambda vclock: committed.__setitem__(0, time.perf_counter()))
            options = serving.ServerOptions(listen=[parse_listen_url("synapse://127.0.0.1:0")])
            server = serving.Server(log, options)
            (url,) = await server.start()
            print(url.port, flush=True)
            loop = asyncio.get_running_loop()
            while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
                commits, rows, size = map(int, words)
                for _ in range(commits):
                    tuples = [[number + i, "x" * size] for i in range(rows)]
                    number += rows
                    await asyncio.to_thread(log.append, "bench", tuples, one_transaction=False)
                print(committed[0], flush=True)
            await server.stop()

    serving.run(main())


@contextmanager
def _process(call: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    code = f"import sys; from {__name__} import feed, serve; {call}"
    command = [sys.executable, "-P", "-c", code, *map(str, words)]
    process = subprocess.Popen(  # noqa: S603 - ourselves
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


def _told(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    return float(process.stdout.readline())


def _tell(process: subprocess.Popen[str], *words: int) -> None:
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, words)) + "\n")
    process.stdin.flush()


# --- ingest ---------------------------------------------------------------------------------------


def _parse_all(port: int, count: int) -> float:
    """Read lines and parse their rows, nothing else."""
    with closing(socket.create_connection(("127.0.0.1", port))) as peer:
        peer.sendall(b"PIECES\n")
        start = time.perf_counter()
        rest, seen = b"", 0
        while seen < count:
            lines = (rest + peer.recv(_READ_BYTES)).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"RDATA "):
                    json.loads(line.split(b" ", 3)[3])
                    seen += 1
        return time.perf_counter() - start


def _follow_all(directory: Path, port: int, count: int) -> float:
    """Follow until every row is durable in a fresh store."""

    async def follow(number: int) -> float:
        with open_store(directory / f"follow-{number}", checkpoint_interval=0) as log:
            url = parse_url(f"synapse://127.0.0.1:{port}?dialect=D1")
            runner = Runner(SynapseSource(url, log), metrics=Metrics())
            start = time.perf_counter()
            task = asyncio.create_task(runner.run())
            while runner.status.rows < count:
                await runner.changed()
            seconds = time.perf_counter() - start
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return seconds

    return serving.run(follow(time.monotonic_ns()))


def _with_cpu(run: Callable[[], float], into: list[float]) -> Callable[[], float]:
    def timed() -> float:
        before = time.process_time()
        seconds = run()
        into.append(time.process_time() - before)
        return seconds

    return timed


def _ingest(
    directory: Path, port: int, count: int, rounds: int
) -> tuple[list[Result], dict[str, float]]:
    spent: dict[str, list[float]] = {"parse": [], "follow": []}
    cases = [
        Case("read, json.loads", _with_cpu(lambda: _parse_all(port, count), spent["parse"]), count),
        Case(
            "follow, durable",
            _with_cpu(lambda: _follow_all(directory, port, count), spent["follow"]),
            count,
        ),
    ]
    results = compare(cases, rounds=rounds)
    cpu = {f"{name}_us_per_row": sum(took) / rounds / count * 1e6 for name, took in spent.items()}
    return results, cpu


# --- serving --------------------------------------------------------------------------------------


def _take(port: int, ask: bytes, size: int) -> float:
    """Ask, then read so many bytes."""
    buffer = memoryview(bytearray(_READ_BYTES))
    with closing(socket.create_connection(("127.0.0.1", port))) as peer:
        while not peer.recv(_READ_BYTES).endswith(b"\n"):
            pass
        start = time.perf_counter()
        peer.sendall(ask)
        while size > 0:
            got = peer.recv_into(buffer)
            if not got:
                raise ConnectionError("the server closed the connection")
            size -= got
        return time.perf_counter() - start


class _Waiting:
    """A follower of the space `bench` that waits for what comes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"REPLICATE bench NOW\n")
        self.read_until(b"POSITION")

    def read_until(self, wanted: bytes, count: int = 1) -> float:
        """Read until so many lines that begin so have come; when that was."""
        seen = 0
        rest = b""
        while True:
            data = rest + self.socket.recv(_READ_BYTES)
            now = time.perf_counter()
            lines = data.split(b"\n")
            rest = lines.pop()
            seen += sum(line.startswith(wanted) for line in lines)
            if seen >= count:
                return now


def _latency(process: subprocess.Popen[str], port: int, count: int = 1000) -> dict[str, float]:
    follower = _Waiting(port)
    took = []
    for _ in range(count):
        _tell(process, 1, 1, 100)
        arrived = follower.read_until(b"RDATA ")
        took.append(max(arrived - _told(process), 0.0) * 1000)
    follower.socket.close()
    took.sort()
    return {"p50": took[count // 2], "p99": took[count * 99 // 100], "max": took[-1]}


def _memory_bytes(process: subprocess.Popen[str]) -> int:
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _followers(process: subprocess.Popen[str], port: int) -> dict[str, float]:
    """500 that get everything: what they cost in memory, and how long a MiB takes to all."""
    before = _memory_bytes(process)
    waiting = [_Waiting(port) for _ in range(FOLLOWERS)]
    connected = _memory_bytes(process)
    start = time.perf_counter()
    _tell(process, 10, 100, 1000)
    for one in waiting:
        one.read_until(b"RDATA ", 1000)
    seconds = time.perf_counter() - start
    _told(process)
    after = _memory_bytes(process)
    for one in waiting:
        one.socket.close()
    return {
        "followers": FOLLOWERS,
        "connected_mib": (connected - before) / 2**20,
        "after_mib": (after - before) / 2**20,
        "lines_per_second": FOLLOWERS * 1000 / seconds,
    }


def _stuck(process: subprocess.Popen[str], port: int, rounds: int) -> dict[str, float]:
    """Ten followers, alone and next to ten that read nothing; timed once these are full."""
    others = [_Waiting(port) for _ in range(10)]
    took: dict[str, list[float]] = {"alone": [], "next_to_stuck": []}
    for _ in range(rounds):
        for name, seconds in took.items():
            stuck = [_Waiting(port) for _ in range(10)] if name != "alone" else []
            for _ in range(2):  # the second is timed
                start = time.perf_counter()
                _tell(process, 40, 200, 1000)
                for one in others:
                    one.read_until(b"RDATA ", 8000)
                _told(process)
            seconds.append(time.perf_counter() - start)
            for one in stuck:
                one.socket.close()
    for one in others:
        one.socket.close()
    found = {f"{name}_seconds": sorted(seconds)[rounds // 2] for name, seconds in took.items()}
    return {**found, "ratio": found["next_to_stuck_seconds"] / found["alone_seconds"]}


def run_synapse(directory: Path, *, rounds: int = 5, count: int = LINES) -> SynapseFigures:
    """Measure everything. `directory`: on the disk to be measured; `count`: lines."""
    with ExitStack() as stack:
        feeder = stack.enter_context(_process("feed(int(sys.argv[1]), sys.argv[2])", count, "D1"))
        feed_port = int(_told(feeder))
        ingest, cpu = _ingest(directory, feed_port, count, rounds)
        folder = next(directory.glob("follow-*"))
        server = stack.enter_context(_process("serve(sys.argv[1])", folder))
        port = int(_told(server))
        events = [line for line in bench_lines(count) if line.startswith(b"RDATA events")]
        size, whole = sum(map(len, events)), sum(map(len, bench_lines(count)))
        cases = [
            Case("prepared, 64 KiB", lambda: _take(feed_port, b"PIECES\n", whole), count),
            Case("prepared, each line", lambda: _take(feed_port, b"LINES\n", whole), count),
            Case(
                "catch-up",
                lambda: _take(port, b"REPLICATE events 1\n", size),
                len(events),
            ),
        ]
        served = compare(cases, rounds=rounds)
        latency = _latency(server, port)
        followers = _followers(server, port)
        stuck = _stuck(server, port, rounds)
        return SynapseFigures(ingest, cpu, served, latency, followers, stuck)


def to_json(figures: SynapseFigures) -> dict[str, Any]:
    """For `--json`."""
    parts = ("ingest_cpu", "latency_ms", "followers", "stuck")
    return {
        "lines": LINES,
        "ingest": [each.to_json() for each in figures.ingest],
        "serve": [each.to_json() for each in figures.serve],
        **{
            name: {key: round(value, 3) for key, value in getattr(figures, name).items()}
            for name in parts
        },
        "machine_load": round(os.getloadavg()[0], 2),
    }
