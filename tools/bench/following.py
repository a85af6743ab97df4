"""`logweir bench follow`: how soon a follower has a row, and what connections cost in memory.

Latency: one connection REPLACEs rows of ~100 bytes at a steady rate (`RATE_ROWS` in a second, a
portion every millisecond), another one is a subscribed follower, in one process beside the server.
Two times of each row are told, in milliseconds: `from_row`, from the timestamp in the row, which is
taken before the group is written and synced, to its arrival at the follower; and `from_answer`,
from the arrival of the answer at the writer, which is below zero where the follower was first.
What lies between commit and follower is below the first and about the second.

Memory: resident bytes of the server process (`VmRSS`), fresh, with `IDLE` connections that were
greeted and say nothing, and with `FOLLOWERS` that follow at the end of the log while rows come.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import Unreachable
from logweir.replication.iproto.wire.codec import (
    GREETING_BYTES,
    IprotoKey,
    RequestType,
    Splitter,
    encode_ack,
    frame,
)
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.server import raise_file_limit
from logweir.tools.bench.servers import status_bytes
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

RATE_ROWS: Final = 10_000
IDLE: Final = 1000
FOLLOWERS: Final = 50
_STEP_SECONDS: Final = 0.001
_SPACE: Final = 512


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. `latency_ms`: name → value; `memory`: name → bytes."""

    rows: int
    seconds: float
    latency_ms: dict[str, float]
    memory: dict[str, int]


def measure(port: int, pid: int, *, seconds: float) -> Figures:
    """Measure a server of ours. `pid`: its process; `seconds`: how long rows are sent."""
    return _ask(port, pid, seconds)


def measure_peer(port: int, *, seconds: float) -> Figures:
    """Latency only, of any server."""
    return _ask(port, 0, seconds)


def _ask(port: int, pid: int, seconds: float) -> Figures:
    done = subprocess.run(  # noqa: S603 - this very program
        [
            *(sys.executable, "-c", f"from {__name__} import main; main()"),
            *(str(port), str(pid), str(seconds)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Unreachable("bench follow", f"the process that follows ended: {reason}")
    return Figures(**json.loads(done.stdout))


def _connect(port: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _read_exactly(link, GREETING_BYTES)
    return link


def _read_exactly(link: socket.socket, count: int) -> None:
    while count:
        data = link.recv(count)
        if not data:
            raise ConnectionError("the server closed the connection")
        count -= len(data)


class _Follower:
    """A subscribed connection. `arrived`: (row's time, arrival) in seconds since 1970."""

    def __init__(self, port: int, vclock: VClock) -> None:
        self.socket = _connect(port)
        self.arrived: list[tuple[float, float]] = []
        self.vclock = vclock
        self._rest = b""
        body = {
            int(IprotoKey.INSTANCE_UUID): str(uuid.uuid4()),
            int(IprotoKey.VCLOCK): dict(vclock),
            int(IprotoKey.SERVER_VERSION): 132608,
            int(IprotoKey.REPLICA_ANON): True,
        }
        self.socket.sendall(encode_request(RequestType.SUBSCRIBE, 0, body))

    def read(self) -> None:
        """Take what is there, acknowledge."""
        data = self._rest + self.socket.recv(1 << 20)
        now = time.time()
        spans, rest_at, _ = Splitter().split(data)
        self._rest = data[rest_at:]
        rows = [data[a:b] for a, b in spans if data[a + 1] == 0 and data[a + 2] != 0]
        if rows:
            columns = RowColumns.scan(b"".join(rows))
            self.arrived += [(stamp, now) for stamp in columns.timestamp]
            self.vclock = self.vclock.merge(columns.last_lsns())
        self.socket.sendall(encode_ack(self.vclock))


def _write_rows(port: int, seconds: float, followers: Sequence[_Follower]) -> list[float]:
    """Send rows at the rate; returns when each was answered."""
    writer = _connect(port)
    answered: list[float] = []
    head = pack({0: RequestType.REPLACE, 1: 4660})
    body = b"\x82\x10" + pack(_SPACE) + b"\x21"
    request = [
        frame(head + body + pack([100_000 + i, "customer", "x" * 60, 12345678, 1.5]))
        for i in range(10_000)
    ]
    total = int(RATE_ROWS * seconds)
    selector = selectors.DefaultSelector()
    selector.register(writer, selectors.EVENT_READ)
    for one in followers:
        selector.register(one.socket, selectors.EVENT_READ, one)
    rest, sent, started = b"", 0, time.monotonic()
    last = followers[0] if followers else None
    while len(answered) < total or (last and len(last.arrived) < total):
        due = min(int((time.monotonic() - started) * RATE_ROWS), total)
        if due > sent:
            writer.sendall(b"".join(request[i % 10_000] for i in range(sent, due)))
            sent = due
        for key, _ in selector.select(_STEP_SECONDS):
            if key.data is not None:
                key.data.read()
                continue
            data = rest + writer.recv(1 << 20)
            now = time.time()
            spans, rest_at, _ = Splitter().split(data)
            rest = data[rest_at:]
            answered += [now] * len(spans)
        if time.monotonic() - started > seconds * 20 + 30:
            raise TimeoutError(f"{len(answered)} of {total} rows were answered")
    selector.close()
    writer.close()
    return answered


def _spread(name: str, values_ms: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values_ms, n=100)
    return {
        f"{name}_p50": round(cuts[49], 3),
        f"{name}_p99": round(cuts[98], 3),
        f"{name}_max": round(max(values_ms), 3),
    }


def _vclock(port: int) -> VClock:
    """The server's position, as VOTE tells it."""
    from logweir.replication.iproto.wire.codec import decode_answer, decode_ballot

    with _connect(port) as link:
        link.sendall(encode_request(RequestType.VOTE, 1))
        data = link.recv(4096)
    (span,), _, _ = Splitter().split(data)
    return decode_ballot(decode_answer(data, *span).body).vclock


def _latency(port: int, seconds: float) -> dict[str, float]:
    follower = _Follower(port, _vclock(port))
    answered = _write_rows(port, seconds, [follower])
    follower.socket.close()
    rows = [(arrival - stamp) * 1000 for stamp, arrival in follower.arrived]
    answers = [
        (arrival - answer) * 1000
        for (_, arrival), answer in zip(follower.arrived, answered, strict=True)
    ]
    return {**_spread("from_row", rows), **_spread("from_answer", answers)}


@contextlib.contextmanager
def _idle(port: int, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_connect(port))
        yield


def _memory(port: int, pid: int) -> dict[str, int]:
    found = {"fresh": status_bytes(pid, "VmRSS")}
    with _idle(port, IDLE):
        found[f"idle_{IDLE}"] = status_bytes(pid, "VmRSS")
        found["per_idle"] = (found[f"idle_{IDLE}"] - found["fresh"]) // IDLE
        followers = [_Follower(port, _vclock(port)) for _ in range(FOLLOWERS)]
        _write_rows(port, 1.0, followers)
        found[f"followers_{FOLLOWERS}"] = status_bytes(pid, "VmRSS")
        for one in followers:
            one.socket.close()
    return found


def main() -> None:
    """What the process does: the server's port, its process id or 0, seconds of rows."""
    raise_file_limit(IDLE + FOLLOWERS + 100)
    port, pid = int(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3])
    memory = _memory(port, pid) if pid else {}
    latency = _latency(port, seconds)
    rows = int(RATE_ROWS * seconds)
    print(json.dumps({"rows": rows, "seconds": seconds, "latency_ms": latency, "memory": memory}))
