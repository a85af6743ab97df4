"""`logweir bench greenstack`: MUTATIONs next to our own iproto REPLACE, streams next to our relay.

One server process, which syncs before it answers; clients over loopback, one connection. replace:
all requests are sent without waiting while the answers are read; quiet: the same as quiet requests
with a NOOP behind them. stream: all rows of the log to one follower, next to the relay that a
Tarantool replica gets. On both sides the follower is a bare socket which reads up to 256 KiB at a
time and throws away what it reads; that of the stream looks for its end in the last bytes, and
gives credit for each 4 MiB of a window of 16. Neither decodes or stores. A frame of the stream is
about twice as long as the relay's packet of the same row. lanes: the time of one MUTATION at a
time in its own lane, alone and while another lane of the same connection is kept full of large
ones.
"""

from __future__ import annotations

import socket
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    Hello,
    StreamOpen,
    encode_ack,
    encode_bucket,
)
from logweir.replication.iproto.wire.codec import GREETING_BYTES, RequestType, frame
from logweir.store import open as open_store
from logweir.tools.bench.append import BENCH_FORMAT
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.load import subscribe
from logweir.tools.bench.serve import packet_bytes
from logweir.tools.bench.servers import exchange, logweir_server
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

REQUESTS: Final = 50_000
PINGS: Final = 300
VALUE: Final = b"x" * 60
_LISTEN: Final = ("tarantool://127.0.0.1:0", "greenstack://127.0.0.1:0")
_LARGE: Final = b"y" * 10_000
_VBUCKET: Final = {FlexKey.VBUCKET.value: b"\0\0"}


@dataclass(frozen=True, slots=True)
class GreenstackFigures:
    """What was measured. The first of each list of results is what the others are compared with."""

    replace: list[Result]
    quiet: list[Result]
    stream: list[Result]
    lanes_ms: dict[str, float]


def run_greenstack(directory: Path, *, rounds: int) -> GreenstackFigures:
    """Measure in `directory`, which decides the disk."""
    folder = directory / "greenstack"
    with open_store(folder) as log:
        log.create_space("bench", format=BENCH_FORMAT)
        space_id = log.schema.space("bench").id
        Buckets(log).make("default")
    with logweir_server(folder, _LISTEN) as server:
        tarantool, port = server.ports
        loud, quiet, row_bytes = _mutations(0), _mutations(Flag.QUIET), _replaces(space_id)
        noop = encode_frame(Frame(Opcode.NOOP))
        answers = 69 * REQUESTS
        cases = [
            Case("iproto REPLACE", lambda: _replace(tarantool, row_bytes), REQUESTS),
            Case("MUTATION", lambda: _mutate(port, loud, answers), REQUESTS),
        ]
        replace = compare(cases, rounds=rounds)
        cases = [
            Case("MUTATION", lambda: _mutate(port, loud, answers), REQUESTS),
            Case("quiet MUTATION", lambda: _mutate(port, quiet + noop, 13), REQUESTS),
        ]
        silent = compare(cases, rounds=rounds)
        lanes = _lanes(port)
    rows = _fill(directory / "rows")
    with logweir_server(directory / "rows", _LISTEN) as server:
        tarantool, port = server.ports
        size = packet_bytes(directory / "rows")
        cases = [
            Case("relay", lambda: subscribe(tarantool, str(uuid.uuid4()), size), rows),
            Case("change stream", lambda: _stream(port), rows),
        ]
        stream = compare(cases, rounds=rounds)
    return GreenstackFigures(replace, silent, stream, lanes)


def _mutations(flags: int) -> bytes:
    return b"".join(
        encode_frame(
            Frame(
                Opcode.MUTATION,
                number,
                Document(b"key%07d" % number, VALUE).encode(),
                flags=flags,
                flex=_VBUCKET,
            )
        )
        for number in range(REQUESTS)
    )


def _replaces(space_id: int) -> tuple[bytes, int]:
    """The requests, and the bytes of the answers with the greeting."""
    head = pack({0: RequestType.REPLACE, 1: 4660})
    body = b"\x82\x10" + pack(space_id) + b"\x21"
    rows = [
        pack([100_000 + number, "customer", VALUE.decode(), 12345678, 1.5])
        for number in range(REQUESTS)
    ]
    requests = b"".join(frame(head + body + row) for row in rows)
    return requests, GREETING_BYTES + sum(35 + len(row) for row in rows)


def _replace(port: int, work: tuple[bytes, int]) -> float:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        return exchange(peer, *work)


@contextmanager
def _greeted(port: int, lanes: tuple[bytes, ...] = ()) -> Iterator[socket.socket]:
    """A connection with the bucket selected, in some lanes, too."""
    features = (Feature.CHANGE_STREAM,)
    hello = Frame(Opcode.HELLO, payload=Hello("bench", "1", "", features).encode())
    payload = encode_bucket("default")
    frames = [hello, Frame(Opcode.SELECT_BUCKET, payload=payload)]
    flexes = [{FlexKey.LANE.value: lane} for lane in lanes]
    frames += [Frame(Opcode.SELECT_BUCKET, payload=payload, flex=flex) for flex in flexes]
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(b"".join(map(encode_frame, frames)))
        buffer = FrameBuffer()
        left = len(frames)
        while left:
            left -= len(buffer.feed(peer.recv(65536))[0])
        yield peer


def _mutate(port: int, requests: bytes, expected_bytes: int) -> float:
    with _greeted(port) as peer:
        return exchange(peer, requests, expected_bytes)


def _stream(port: int) -> float:
    """All rows of the log, until the server ends the stream."""
    flex = {FlexKey.DCP_ID.value: b"bench"}
    asked = StreamOpen(buckets=("default",), window_bytes=1 << 24, follow=False)
    with _greeted(port) as peer:
        started = time.perf_counter()
        opening = Frame(Opcode.STREAM_OPEN, payload=asked.encode(), flex=flex)
        peer.sendall(encode_frame(opening))
        tail, owed = b"", 0
        while b"nothing is left" not in tail:
            data = peer.recv(1 << 18)
            tail = tail[-200:] + data[-400:]
            owed += len(data)
            if owed > 1 << 22:
                payload = encode_ack(VClock(), owed)
                flags = Flag.QUIET
                peer.sendall(
                    encode_frame(Frame(Opcode.STREAM_ACK, payload=payload, flags=flags, flex=flex))
                )
                owed = 0
        return time.perf_counter() - started


def _lanes(port: int) -> dict[str, float]:
    """Milliseconds of one MUTATION in lane `fast`, without and with a full lane `slow`."""
    figures: dict[str, float] = {}
    with _greeted(port, (b"fast", b"slow")) as peer:
        figures |= {f"alone {name}": value for name, value in _pings(peer, b"").items()}
        flex = {**_VBUCKET, FlexKey.LANE.value: b"slow"}
        payload = Document(b"large", _LARGE).encode()
        large = encode_frame(Frame(Opcode.MUTATION, 1, payload, flags=Flag.QUIET, flex=flex))
        beside = _pings(peer, large * 20)
        figures |= {f"beside {name}": value for name, value in beside.items()}
    return figures


def _pings(peer: socket.socket, before: bytes) -> dict[str, float]:
    seconds = []
    flex = {**_VBUCKET, FlexKey.LANE.value: b"fast"}
    payload = Document(b"ping", b"v").encode()
    ping = encode_frame(Frame(Opcode.MUTATION, 2, payload, flex=flex))
    for _ in range(PINGS):
        started = time.perf_counter()
        peer.sendall(before + ping)
        peer.recv(4096)
        seconds.append(time.perf_counter() - started)
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1000, 3), "p99": round(cuts[98] * 1000, 3)}


def _fill(folder: Path) -> int:
    """A bucket of as many rows as there are requests. Returns how many."""
    with open_store(folder) as log:
        Buckets(log).make("default")
        rows = [
            (b"key%07d" % number, 0, VALUE, 0, 0, number + 1, 0, 0, "", b"")
            for number in range(REQUESTS)
        ]
        log.append("default", rows, one_transaction=False)
    return len(rows)
