"""`logweir bench synapse`: following a homeserver, and serving followers, next to the raw machine.

Everything over loopback, with the peer in a process of its own. The rows are those of a homeserver
in use: `events` of about 150 bytes, every fourth token two rows (`batch`), every sixth line a
receipt. Ingest: until all rows are durable, against reading the same lines and `json.loads` of each
row alone.

Serving has two baselines, both a process that writes lines it has prepared: *in pieces* of 64 KiB,
the most that a socket does; and *each line by itself*, as Synapse writes. Cases: one follower that
catches up (D1), each time from another token, so that no page was made before; a second one that
catches up from where the first did; and the relay of rows to 1, 16 and 200 followers, from the
first commit to the last arrival, against writing the same bytes to as many sockets. The processor
time of the server for each line delivered stands beside.

Latency: from the commit of a change (the moment the log is synced) to the arrival of its line, in
several series. Followers: what 500 that wait cost, what they cost when they read nothing, and what
those that read nothing cost the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.limits import SYNAPSE_PARK_SECONDS
from logweir.replication import loop
from logweir.replication import server as serving
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Runner
from logweir.replication.synapse.follow.source import SynapseSource
from logweir.store import open as open_store
from logweir.tools.bench.child import Child, python
from logweir.tools.bench.harness import Case, Result, compare, plain
from logweir.tools.bench.servers import Server

LINES: Final = 120_000
FOLLOWERS: Final = 500
RELAYED: Final = (1, 16, 200)
_RELAY_ROWS: Final = 20_000
_UNREAD_ROWS: Final = 40_000
_LATE_MS: Final = 5.0
_SERIES: Final = 5
_SERIES_COMMITS: Final = 400
_READ_BYTES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SynapseFigures:
    """What was measured. The first of each list of results is the raw machine."""

    ingest: list[Result]
    ingest_cpu: dict[str, float]
    serve: list[Result]
    serve_cpu: dict[str, float]
    relay: dict[int, list[Result]]
    relay_cpu_us_per_line: dict[int, float]
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

    joined: list[socket.socket] = []

    def relay(data: bytes, *, whole: bool) -> None:
        rows = [data] if whole else data.splitlines(keepends=True)
        for row in rows:
            for at in range(0, len(row), _PIECE_BYTES):
                piece = row[at : at + _PIECE_BYTES]
                for one in joined:
                    one.sendall(piece)

    def handle(peer: socket.socket) -> None:
        with suppress(ConnectionError), peer, peer.makefile("rb") as asked:
            peer.sendall(b"SERVER x.test\nPING 1\n")
            for line in asked:
                if line.startswith(b"JOIN"):
                    joined.append(peer)
                    peer.sendall(b"JOINED\n")
                elif line.startswith(b"RELAY"):
                    _, form, size = line.split()
                    relay(asked.read(int(size)), whole=form == b"PIECES")
                elif line.startswith(b"LEAVE"):
                    joined.clear()
                elif line.startswith(b"REPLICATE"):
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
    logging.disable(logging.WARNING)

    async def main() -> None:
        with open_store(Path(directory)) as log:
            if log.schema.get("bench") is None:
                log.create_space("bench", [("id", "unsigned"), ("text", "string")])
            number = log.count("bench")
            committed: list[float] = []
            log.on_commit(lambda vclock: committed.append(time.perf_counter()))
            options = serving.ServerOptions(
                listen=[parse_listen_url("synapse://127.0.0.1:0")], guest="read"
            )
            server = serving.Server(log, options)
            (url,) = await server.start()
            print(url.port, flush=True)
            loop = asyncio.get_running_loop()
            while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
                commits, rows, size = map(int, words)
                committed.clear()
                for _ in range(commits):
                    tuples = [[number + i, "x" * size] for i in range(rows)]
                    number += rows
                    await asyncio.to_thread(log.append, "bench", tuples, one_transaction=False)
                print(committed[0], flush=True)  # of the first commit
            await server.stop()

    loop.run(main())


class _Process(Child):
    """Ourselves, with numbers for words."""

    def __init__(self, call: str, *words: object) -> None:
        super().__init__(python(f"import sys; from {__name__} import feed, serve; {call}", *words))

    def number(self) -> float:
        """The next line."""
        return float(self.told())

    def commit(self, commits: int, rows: int, size_bytes: int) -> None:
        """Have `serve` make so many commits of so many rows, with texts of that size."""
        self.tell(f"{commits} {rows} {size_bytes}")

    @property
    def server(self) -> Server:
        """For what it used."""
        return Server((), self.pid)


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

    return loop.run(follow(time.monotonic_ns()))


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


def _serve(
    process: _Process, port: int, feed_port: int, count: int, rounds: int
) -> tuple[list[Result], dict[str, float]]:
    """One that catches up, and one that does after it; also the server's processor time."""
    lines = bench_lines(count)
    events = [line for line in lines if line.startswith(b"RDATA events")]
    whole, size = sum(map(len, lines)), sum(map(len, events))
    turn = [1]
    spent: dict[str, list[float]] = {"first": [], "second": []}

    def catch_up(name: str) -> float:
        if name == "first":
            turn[0] += 1  # every fourth token has two lines, the others one
        skipped = sum(map(len, events[: turn[0] - 1 + turn[0] // 4]))
        before = process.server.cpu_seconds()
        seconds = _take(port, b"REPLICATE events %d\n" % turn[0], size - skipped)
        spent[name].append(process.server.cpu_seconds() - before)
        return seconds

    cases = [
        Case("prepared, 64 KiB", lambda: _take(feed_port, b"PIECES\n", whole), count),
        Case("prepared, each line", lambda: _take(feed_port, b"LINES\n", whole), count),
        Case("catch-up", lambda: catch_up("first"), len(events)),
        Case("second catch-up from there", lambda: catch_up("second"), len(events)),
    ]
    results = compare(cases, rounds=rounds)
    cpu = {
        f"{name}_us_per_line": sum(took) / rounds / len(events) * 1e6
        for name, took in spent.items()
    }
    return results, cpu


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


def _latency(process: _Process, port: int) -> dict[str, float]:
    """Several series. `p99_low` … `p99_high`: of the single ones; the others of all together.

    `late`: how many took 5 ms or more; `late_without_processor`: during how many of these a thread
    of the server or of the follower waited at least half of the time for a processor.
    """
    follower = _Waiting(port)
    took: list[float] = []
    each: list[float] = []
    waited: list[float] = []
    for _ in range(_SERIES):
        series = []
        for _ in range(_SERIES_COMMITS):
            before = _run_queue_ms(process.pid) + _run_queue_ms(os.getpid())
            process.commit(1, 1, 100)
            arrived = follower.read_until(b"RDATA ")
            series.append(max(arrived - process.number(), 0.0) * 1000)
            waited.append(_run_queue_ms(process.pid) + _run_queue_ms(os.getpid()) - before)
        each.append(sorted(series)[_SERIES_COMMITS * 99 // 100])
        took += series
    follower.socket.close()
    late = [(ms, wait) for ms, wait in zip(took, waited, strict=True) if ms >= _LATE_MS]
    took.sort()
    return {
        "p50": took[len(took) // 2],
        "p99": took[len(took) * 99 // 100],
        "p99_low": min(each),
        "p99_high": max(each),
        "max": took[-1],
        "late": len(late),
        "late_without_processor": sum(2 * wait >= ms for ms, wait in late),
    }


def _run_queue_ms(pid: int) -> float:
    """How long the threads of a process could have run and had no processor; 0 if the system
    does not say."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread ended, or there is no such file
            found += int((task / "schedstat").read_text().split()[1])
    return found / 1e6


def _take_everywhere(sockets: list[socket.socket], lines: int) -> float:
    """Read so many lines from each, but for PING; when the last had come."""
    left = {one: lines for one in sockets}
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    with selectors.DefaultSelector() as ready:
        for one in sockets:
            ready.register(one, selectors.EVENT_READ, one)
        while left:
            for key, _ in ready.select(60):
                one = key.data
                got = one.recv_into(view)
                if not got:
                    raise ConnectionError("the server closed the connection")
                left[one] -= buffer.count(b"\n", 0, got) - buffer.count(b"PING ", 0, got)
                if left[one] <= 0:
                    del left[one]
                    ready.unregister(one)
    return time.perf_counter()


def _relay(
    process: _Process, port: int, feed_port: int, followers: int, rounds: int
) -> tuple[list[Result], float]:
    """Rows that are committed once, to so many followers. Also the server's processor time for each
    line delivered, in microseconds."""
    rows = _RELAY_ROWS if followers == 1 else max(_RELAY_ROWS * 8 // followers, 1000)
    waiting = [_Waiting(port) for _ in range(followers)]
    ours = [one.socket for one in waiting]
    peers = [socket.create_connection(("127.0.0.1", feed_port), 60) for _ in range(followers)]
    for peer in peers:
        peer.sendall(b"JOIN\n")
        greeting = b""
        while not greeting.endswith(b"JOINED\n"):
            greeting += peer.recv(_READ_BYTES)
    row = b'RDATA bench 123456 ["insert",[123456],[123456,"%s"]]\n' % (b"x" * 100)
    cpu: list[float] = []

    def relayed() -> float:
        before = process.server.cpu_seconds()
        process.commit(1, rows, 100)
        end = _take_everywhere(ours, rows)
        start = process.number()
        cpu.append(process.server.cpu_seconds() - before)
        return end - start

    def prepared(form: bytes) -> float:
        with closing(socket.create_connection(("127.0.0.1", feed_port))) as peer:
            data = row * rows
            start = time.perf_counter()
            peer.sendall(b"RELAY %s %d\n" % (form, len(data)) + data)
            return _take_everywhere(peers, rows) - start

    relayed()
    cpu.clear()
    count = rows * followers
    cases = [
        Case("prepared, 64 KiB", lambda: prepared(b"PIECES"), count),
        Case("prepared, each line", lambda: prepared(b"LINES"), count),
        Case(f"relay to {followers}", relayed, count),
    ]
    results = compare(cases, rounds=rounds)
    peers[0].sendall(b"LEAVE\n")
    for one in (*ours, *peers):
        one.close()
    return results, sum(cpu) / rounds / count * 1e6


def _followers(process: _Process, port: int) -> dict[str, float]:
    """500 that get everything: what they cost in memory, and how long a MiB takes to all; and what
    they cost when all but one read nothing of 40 MiB."""
    before = process.server.resident_bytes()
    waiting = [_Waiting(port) for _ in range(FOLLOWERS)]
    connected = process.server.resident_bytes()
    start = time.perf_counter()
    process.commit(10, 100, 1000)
    for one in waiting:
        one.read_until(b"RDATA ", 1000)
    seconds = time.perf_counter() - start
    process.number()
    after = process.server.resident_bytes()
    process.commit(1, _UNREAD_ROWS, 1000)
    process.number()
    for one in waiting[:1]:
        one.read_until(b"RDATA ", _UNREAD_ROWS)
    unread, last = process.server.resident_bytes(), 0
    while abs(unread - last) > unread / 100:  # until it stays as it is
        time.sleep(2 * SYNAPSE_PARK_SECONDS)
        last, unread = unread, process.server.resident_bytes()
    for one in waiting:
        one.socket.close()
    return {
        "followers": FOLLOWERS,
        "connected_mib": (connected - before) / 2**20,
        "after_mib": (after - before) / 2**20,
        "unread_mib": (unread - before) / 2**20,
        "lines_per_second": FOLLOWERS * 1000 / seconds,
    }


def _stuck(process: _Process, port: int, rounds: int) -> dict[str, float]:
    """Ten followers, alone and next to ten that read nothing; timed once these are full."""
    others = [_Waiting(port) for _ in range(10)]
    took: dict[str, list[float]] = {"alone": [], "next_to_stuck": []}
    for _ in range(rounds):
        for name, seconds in took.items():
            stuck = [_Waiting(port) for _ in range(10)] if name != "alone" else []
            for _ in range(2):  # the second is timed
                start = time.perf_counter()
                process.commit(40, 200, 1000)
                for one in others:
                    one.read_until(b"RDATA ", 8000)
                process.number()
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
        feeder = stack.enter_context(_Process("feed(int(sys.argv[1]), sys.argv[2])", count, "D1"))
        feed_port = int(feeder.number())
        ingest, cpu = _ingest(directory, feed_port, count, rounds)
        folder = next(directory.glob("follow-*"))
        server = stack.enter_context(_Process("serve(sys.argv[1])", folder))
        port = int(server.number())
        served, serve_cpu = _serve(server, port, feed_port, count, rounds)
        relay, relay_cpu = {}, {}
        for number in RELAYED:
            relay[number], relay_cpu[number] = _relay(server, port, feed_port, number, rounds)
        latency = _latency(server, port)
        followers = _followers(server, port)
        stuck = _stuck(server, port, rounds)
        return SynapseFigures(
            ingest, cpu, served, serve_cpu, relay, relay_cpu, latency, followers, stuck
        )


def to_json(figures: SynapseFigures) -> dict[str, Any]:
    """For `--json`."""
    return {"lines": LINES, **plain(figures), "machine_load": round(os.getloadavg()[0], 2)}
