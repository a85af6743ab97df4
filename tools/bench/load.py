"""The other side of the server benchmarks: a process that only sends, counts and checks.

It is run by itself, so that it does not share an interpreter with what is measured, and is told
what to do by a line of JSON each. What it sends is made before the clock starts, and is the same
for every server. While the clock runs it counts bytes: the answers to one kind of request have all
the same length. Behind the clock it takes all answers apart (`tools.bench.requests`), so that
`exchange` returns only if each request has its answer and none was refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logweir.errors import LogweirError, RemoteProtocolError, Unreachable
from logweir.replication.iproto.wire.codec import GREETING_BYTES, IprotoKey, RequestType
from logweir.replication.iproto.wire.requests import encode_request
from logweir.tools.bench.child import Child, python
from logweir.tools.bench.requests import (
    PROTOCOLS,
    Protocol,
    Requests,
    bucket_requests,
    definition_requests,
    select_request,
    statement_requests,
)

_READ_BYTES: Final = 1 << 18
_SILENCE_SECONDS: Final = 60
_READS: Final = selectors.EVENT_READ
_READS_AND_WRITES: Final = selectors.EVENT_READ | selectors.EVENT_WRITE


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How an exchange went. `pause`: the longest time in which no answer came, in seconds, 0 for
    one request at a time; `busy_seconds`: processor time of the client; `digest`: of what the
    answers hold, in the order of the requests."""

    seconds: float
    pause: float
    busy_seconds: float
    digest: str


class LoadProcess(Child):
    """The process, seen from the benchmark. A context manager."""

    def __init__(self) -> None:
        super().__init__(python(f"from {__name__} import main; main()"))

    def _ask(self, task: str, **told: Any) -> Any:
        self.tell(json.dumps([task, told]))
        result = json.loads(self.told())
        if "error" in result:
            raise Unreachable("bench", f"{task}: {result['error']}")
        return result["done"]

    def exchange(
        self, port: int, protocol: str, requests: dict[str, Any], connections: int, depth: int
    ) -> Exchanged:
        """Send requests, so many in flight on each connection, and check what is answered.

        `protocol`: of `PROTOCOLS`; `requests`: the arguments of `statement_requests` or
        `bucket_requests`. Raises `Unreachable` with what was wrong.
        """
        told = {"connections": connections, "depth": depth}
        return Exchanged(**self._ask("exchange", port=port, protocol=protocol, **requests, **told))

    def define(self, port: int, space: int, *, index: bool, drop: bool = False) -> None:
        """Make a space for statements, with a secondary index or without, or drop it."""
        self._ask("define", port=port, space=space, index=index, drop=drop)

    def contents(self, port: int, space: int, index: int) -> str:
        """A digest of all tuples of a space, in the order of an index."""
        digest: str = self._ask("contents", port=port, space=space, index=index)
        return digest

    def subscribe(self, port: int, instance: str, size_bytes: int) -> float:
        """Follow from the beginning until so many bytes have come. Returns the seconds."""
        told = {"instance": instance, "size_bytes": size_bytes}
        return float(self._ask("subscribe", port=port, **told))

    def fetch(self, port: int, size_bytes: int) -> float:
        """Take so many bytes of whatever comes. Returns the seconds."""
        return float(self._ask("fetch", port=port, size_bytes=size_bytes))


# --- the process itself ---------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Connection:
    """`first`, `stop`: its requests; `sent`: up to which byte of the stream."""

    socket: socket.socket
    first: int
    stop: int
    sent: int = 0
    received: int = 0
    parts: list[bytes] = field(default_factory=list)

    def answered(self, size: int) -> int:
        return self.first + self.received // size if size else self.first


@contextlib.contextmanager
def _connections(port: int, protocol: Protocol, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            link.settimeout(_SILENCE_SECONDS)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _read(link, protocol.greeting_bytes)
            link.sendall(protocol.opening)
            for _ in range(protocol.opening_answers):
                head = _read(link, 4)
                _read(link, protocol.size(head) - len(head))
            made.append(link)
        yield made


def _read(link: socket.socket, count: int) -> bytes:
    head = b""
    while count:
        data = _some(link, min(count, _READ_BYTES))
        head = head or data
        count -= len(data)
    return head


def _some(link: socket.socket, limit: int = _READ_BYTES) -> bytes:
    data = link.recv(limit)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def _alternate(link: socket.socket, requests: Requests, protocol: Protocol) -> _Connection:
    """One request at a time on one connection: two calls of the system for each."""
    view = memoryview(requests.stream)
    places = requests.bounds
    one = _Connection(link, 0, len(requests))
    send, receive, keep = link.send, link.recv, one.parts.append
    size = 0
    for begin, end in itertools.pairwise(places):
        send(view[begin:end])
        data = receive(_READ_BYTES)
        while not size or len(data) < size:
            size = size or protocol.size(data)
            if not size or len(data) < size:
                data += _some(link)
        keep(data)
    return one


def _window(
    links: Sequence[socket.socket], requests: Requests, protocol: Protocol, depth: int
) -> tuple[list[_Connection], float]:
    """So many requests in flight on each connection, which has a slice of them all. Also the
    longest time in which no answer came, in seconds."""
    view, places = memoryview(requests.stream), requests.bounds
    each = len(requests) // len(links)
    made = [_Connection(link, i * each, (i + 1) * each) for i, link in enumerate(links)]
    made[-1].stop = len(requests)
    size = 0

    def send(one: _Connection) -> None:
        goal = places[min(one.answered(size) + depth, one.stop)]
        if one.sent < goal:
            with contextlib.suppress(BlockingIOError):
                one.sent += one.socket.send(view[one.sent : goal])
        selector.modify(one.socket, _READS if one.sent == goal else _READS_AND_WRITES, one)

    with selectors.DefaultSelector() as selector:
        for one in made:
            one.socket.setblocking(False)
            one.sent = places[one.first]
            selector.register(one.socket, _READS, one)
            send(one)
        left, pause, heard_at = len(made), 0.0, time.perf_counter()
        while left:
            ready = selector.select(_SILENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"no answer came within {_SILENCE_SECONDS} seconds")
            for key, events in ready:
                one = key.data
                if events & _READS:
                    data = _some(one.socket)
                    now = time.perf_counter()
                    pause, heard_at = max(pause, now - heard_at), now
                    one.parts.append(data)
                    one.received += len(data)
                    size = size or protocol.size(b"".join(one.parts))
                if size and one.received >= (one.stop - one.first) * size:
                    selector.unregister(one.socket)
                    left -= 1
                else:
                    send(one)
    return made, pause


def _run(
    port: int, requests: Requests, protocol: Protocol, connections: int, depth: int
) -> dict[str, Any]:
    with _connections(port, protocol, connections) as links:
        started, busy, pause = time.perf_counter(), time.process_time(), 0.0
        if connections == 1 and depth == 1:
            made = [_alternate(links[0], requests, protocol)]
        else:
            made, pause = _window(links, requests, protocol, depth)
        seconds = time.perf_counter() - started
        busy_seconds = time.process_time() - busy
    return {
        "seconds": seconds,
        "pause": pause,
        "busy_seconds": busy_seconds,
        "digest": _check(made, protocol, len(requests)),
    }


def _check(made: Sequence[_Connection], protocol: Protocol, count: int) -> str:
    """The digest of what the answers hold. Raises `RemoteProtocolError` for a wrong one."""
    held: dict[int, bytes] = {}
    for one in made:
        data = b"".join(one.parts)
        at = 0
        while at < len(data):
            size = protocol.size(data[at : at + 24])
            if not size or at + size > len(data):
                raise RemoteProtocolError(f"an answer is cut at byte {at} of {len(data)}")
            number, body = protocol.read(data[at : at + size])
            held[number] = body
            at += size
    if sorted(held) != list(range(1, count + 1)):
        raise RemoteProtocolError(f"{count} requests have the answers of {len(held)}")
    digest = hashlib.blake2b(digest_size=16)
    for number in range(1, count + 1):
        digest.update(held[number])
    return digest.hexdigest()


class _Maker:
    """Makes requests, and keeps the last ones: each server gets the same."""

    def __init__(self) -> None:
        self._key = ""
        self._made = Requests(b"", [0])

    def make(self, wanted: dict[str, Any]) -> Requests:
        key = json.dumps(wanted)
        if key != self._key:
            make = statement_requests if "statement" in wanted else bucket_requests
            self._key, self._made = key, make(**wanted)
        return self._made


def _define(port: int, space: int, index: bool, drop: bool) -> None:
    for request in definition_requests(space, index=index, drop=drop):
        _run(port, request, PROTOCOLS["iproto"], 1, 1)


def _contents(port: int, space: int, index: int) -> str:
    result = _run(port, select_request(space, index), PROTOCOLS["iproto"], 1, 1)
    digest: str = result["digest"]
    return digest


def subscribe(port: int, instance: str, size_bytes: int) -> float:
    """See `LoadProcess.subscribe`."""
    body = {
        int(IprotoKey.INSTANCE_UUID): instance,
        int(IprotoKey.VCLOCK): {},
        int(IprotoKey.SERVER_VERSION): 132608,
        int(IprotoKey.REPLICA_ANON): True,
    }
    with socket.create_connection(("127.0.0.1", port)) as link:
        _read(link, GREETING_BYTES)
        started = time.perf_counter()
        link.sendall(encode_request(RequestType.SUBSCRIBE, 0, body))
        _read(link, size_bytes)
        return time.perf_counter() - started


def _fetch(port: int, size_bytes: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as link:
        started = time.perf_counter()
        _read(link, size_bytes)
        return time.perf_counter() - started


def main() -> None:
    """Do what each line of stdin says; one line of JSON for each on stdout."""
    maker = _Maker()

    def exchange(
        port: int, protocol: str, connections: int, depth: int, **wanted: Any
    ) -> dict[str, Any]:
        if "statement" not in wanted:
            wanted["protocol"] = protocol
        return _run(port, maker.make(wanted), PROTOCOLS[protocol], connections, depth)

    tasks: dict[str, Callable[..., Any]] = {
        "exchange": exchange,
        "define": _define,
        "contents": _contents,
        "subscribe": subscribe,
        "fetch": _fetch,
    }
    for line in sys.stdin:
        task, told = json.loads(line)
        try:
            answer = {"done": tasks[task](**told)}
        except (LogweirError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
