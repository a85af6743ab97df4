"""The other side of the server benchmarks: a process that only sends and counts.

It is run by itself, so that it does not share an interpreter with what is measured, and reads one
line with what to do. Requests and answers have all the same length, so counting bytes is counting
answers. Prints the seconds it took.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.replication.iproto.codec import GREETING_BYTES, IprotoKey, RequestType, frame
from logweir.replication.iproto.requests import encode_request
from logweir.wal.mp import pack

__all__ = ["LoadProcess", "main"]

_ROWS: Final = 20_000
_READ_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 35  # before the tuple


class LoadProcess:
    """The process, seen from the benchmark."""

    def ask(self, *words: object) -> float:
        """Let it do one thing. Returns the seconds."""
        told = subprocess.run(  # noqa: S603 - this very program
            [sys.executable, "-c", f"from {__name__} import main; main()", *map(str, words)],
            capture_output=True,
            text=True,
            check=True,
        )
        return float(told.stdout)


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    at: int
    sent: int = 0
    received_bytes: int = 0


@contextlib.contextmanager
def _connections(port: int, count: int) -> Iterator[Sequence[_Connection]]:
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _read(link, GREETING_BYTES)
            made.append(_Connection(link, number * 1237 % _ROWS))
        yield made


def _read(link: socket.socket, count: int) -> None:
    while count:
        data = link.recv(min(count, _READ_BYTES))
        if not data:
            raise ConnectionError("the server closed the connection")
        count -= len(data)


def _replace(port: int, space_id: int, count: int, depth: int, total: int) -> float:
    """REPLACE requests of ~100 bytes, so many in flight on each of `count` connections."""
    rows = [
        pack([100_000 + i * 7919 % 90_000, "customer", "x" * 60, 12345678, 1.5])
        for i in range(_ROWS)
    ]
    head = pack({0: RequestType.REPLACE, 1: 4660})
    body = b"\x82\x10" + pack(space_id) + b"\x21"
    requests = [frame(head + body + row) for row in rows]
    size, answer = len(requests[0]), _ANSWER_BYTES + len(rows[0])
    stream = b"".join(requests) * 2
    each = total // count
    with _connections(port, count) as connections, selectors.DefaultSelector() as selector:

        def send(one: _Connection, number: int) -> None:
            one.socket.sendall(stream[one.at * size : (one.at + number) * size])
            one.sent += number
            one.at = (one.at + number) % _ROWS

        started = time.perf_counter()
        for one in connections:
            selector.register(one.socket, selectors.EVENT_READ, one)
            send(one, min(depth, each))
        open_ = count
        while open_:
            for key, _ in selector.select():
                one = key.data
                data = one.socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError("the server closed the connection")
                before = one.received_bytes // answer
                one.received_bytes += len(data)
                answered = one.received_bytes // answer - before
                if answered and one.sent < each:
                    send(one, min(answered, each - one.sent))
                if one.received_bytes >= each * answer:
                    selector.unregister(one.socket)
                    open_ -= 1
        return time.perf_counter() - started


def _subscribe(port: int, instance: str, size_bytes: int) -> float:
    """Follow from the beginning until so many bytes of rows have come."""
    with _connections(port, 1) as (one,):
        body = {
            int(IprotoKey.INSTANCE_UUID): instance,
            int(IprotoKey.VCLOCK): {},
            int(IprotoKey.SERVER_VERSION): 132608,
            int(IprotoKey.REPLICA_ANON): True,
        }
        started = time.perf_counter()
        one.socket.sendall(encode_request(RequestType.SUBSCRIBE, 0, body))
        _read(one.socket, size_bytes)
        return time.perf_counter() - started


def _fetch(port: int, size_bytes: int) -> float:
    """Take so many bytes of whatever comes."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        started = time.perf_counter()
        _read(link, size_bytes)
        return time.perf_counter() - started


def main() -> None:
    """What the process does: `replace`, `subscribe` or `fetch`, with numbers."""
    what, *words = sys.argv[1:]
    if what == "replace":
        port, space_id, count, depth, total = map(int, words)
        seconds = _replace(port, space_id, count, depth, total)
    elif what == "subscribe":
        seconds = _subscribe(int(words[0]), words[1], int(words[2]))
    else:
        seconds = _fetch(int(words[0]), int(words[1]))
    print(seconds)
