"""`logweir bench memcached`: dumps next to Debian's memcached, live streams and many followers.

Commands one by one are cells of `logweir bench statements`. Dump: TAP DUMP of all items until the
end of the stream, next to gets of all items from memcached, all sent without waiting while the
answers are read. CPU: what the server's process took per item over all rounds, which a loaded
machine disturbs less than rates.

Latency: from the sending of a set to the arrival of its TAP packet at a consumer that follows, in
turn with one write and sync of as many bytes to a file beside the store, which no change can be
faster than. Followers: `FOLLOWERS` consumers follow while `FOLLOWED` items are set; once all of
them read, once none does; what the server's process holds in memory before and at most.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, cast

from logweir.errors import ConfigError
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_request
from logweir.replication.memcached.wire.messages import Connect, Option, encode_connect
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.servers import (
    Server,
    exchange,
    logweir_server,
    memcached_server,
    version_of,
)

ITEMS: Final = 50_000
VALUE_BYTES: Final = 100
CHANGES: Final = 500
FOLLOWERS: Final = 200
FOLLOWED: Final = 10_000
FOLLOWED_BYTES: Final = 1000
_SILENCE_SECONDS: Final = 30
_EXTRAS: Final = struct.pack(">II", 0, 0)


@dataclass(frozen=True, slots=True)
class MemcachedFigures:
    """What was measured. The first of each list of results is memcached.

    `cpu_us`: CPU of a server per item of the dump, by case; `followers`: bytes and
    seconds; `baseline`: what memcached says it is.
    """

    dump: list[Result]
    latency_ms: dict[str, float]
    followers: dict[str, float]
    cpu_us: dict[str, float]
    baseline: str


def run_memcached(directory: Path, *, rounds: int) -> MemcachedFigures:
    """Measure in `directory`, which decides the disk. Raises `ConfigError` without memcached."""
    version = version_of("memcached")
    if version is None:
        raise ConfigError(
            "bench memcached", "there is no memcached here", hint="install memcached 1.6"
        )
    with ExitStack() as stack:
        theirs = stack.enter_context(memcached_server())
        listen = ["tap://127.0.0.1:0/bench"]
        ours = stack.enter_context(logweir_server(directory / "tap", listen))
        for server in (theirs, ours):
            _pipelined(server.port, _requests(Opcode.SET, ITEMS, VALUE_BYTES), ITEMS * 24)
        cases = [
            _gets("memcached, gets", theirs),
            Case("logweir, DUMP", lambda: _dump(ours.port), ITEMS),
        ]
        before = [server.cpu_seconds() for server in (theirs, ours)]
        dump = compare(cases, rounds=rounds)
        cpu = {
            case.name: round((server.cpu_seconds() - was) / (rounds * ITEMS) * 1e6, 3)
            for case, server, was in zip(cases, (theirs, ours), before, strict=True)
        }
        return MemcachedFigures(
            dump, _latency(ours.port, directory), _followers(ours), cpu, version
        )


def _key(number: int) -> bytes:
    return b"key%07d" % number


def _requests(opcode: Opcode, count: int, value_bytes: int) -> bytes:
    """Requests for so many items, whose values do not compress."""
    random = Random(1)  # noqa: S311 - only different
    is_set = opcode == Opcode.SET
    return b"".join(
        encode_request(
            Packet(
                opcode,
                _key(number),
                random.randbytes(value_bytes) if is_set else b"",
                _EXTRAS if is_set else b"",
            )
        )
        for number in range(count)
    )


def _gets(name: str, server: Server) -> Case:
    requests = _requests(Opcode.GET, ITEMS, VALUE_BYTES)
    answer_bytes = 24 + 4 + VALUE_BYTES
    return Case(name, lambda: _pipelined(server.port, requests, ITEMS * answer_bytes), ITEMS)


def _pipelined(port: int, requests: bytes, expected_bytes: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        return exchange(peer, requests, expected_bytes)


def _dump(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        started = time.perf_counter()
        peer.sendall(encode_connect(Connect(b"", Option.DUMP)))
        while peer.recv(1 << 18):
            pass
        return time.perf_counter() - started


def _latency(port: int, directory: Path) -> dict[str, float]:
    seconds: list[float] = []
    disk: list[float] = []
    future = Connect(b"", Option.BACKFILL, 2**64 - 1)
    with (
        socket.create_connection(("127.0.0.1", port)) as follower,
        socket.create_connection(("127.0.0.1", port)) as writer,
        (directory / "raw").open("wb", buffering=0) as raw,
    ):
        follower.sendall(encode_connect(future))
        follower.settimeout(5)
        request = encode_request(Packet(Opcode.SET, b"live", b"v", _EXTRAS))
        time.sleep(0.2)  # the stream begins in its own time and says nothing
        for _ in range(CHANGES):
            started = time.perf_counter()
            writer.sendall(request)
            follower.recv(4096)
            seconds.append(time.perf_counter() - started)
            writer.recv(4096)
            started = time.perf_counter()
            raw.write(bytes(128))
            os.fdatasync(raw.fileno())
            disk.append(time.perf_counter() - started)
    return {**_percentiles("", seconds), **_percentiles("disk ", disk)}


def _percentiles(prefix: str, seconds: list[float]) -> dict[str, float]:
    seconds.sort()
    return {
        f"{prefix}p{share}": round(seconds[len(seconds) * share // 100] * 1000, 3)
        for share in (50, 99)
    }


def _followers(server: Server) -> dict[str, float]:
    requests = _requests(Opcode.SET, FOLLOWED, FOLLOWED_BYTES)
    future = encode_connect(Connect(b"", Option.BACKFILL, 2**64 - 1))
    packet_bytes = 24 + 16 + len(_key(0)) + FOLLOWED_BYTES
    found: dict[str, float] = {"before bytes": server.memory_bytes()}
    for name in ("reading", "stalled"):
        with ExitStack() as stack:
            peers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(FOLLOWERS)
            ]
            for peer in peers:
                peer.sendall(future)
            time.sleep(1)  # as above
            started = time.perf_counter()
            watch = _Watch(server)
            if name == "reading":
                with ThreadPoolExecutor(1) as aside:
                    missing = aside.submit(_read_all, peers, FOLLOWED * packet_bytes)
                    _pipelined(server.port, requests, FOLLOWED * 24)
                found["reading seconds"] = round(time.perf_counter() - started, 3)
                found["missing bytes"] = missing.result()
            else:
                _pipelined(server.port, requests, FOLLOWED * 24)
                time.sleep(2)  # for what is still produced
            found[f"{name} bytes"] = watch.end()
    return found


def _read_all(peers: list[socket.socket], expected_bytes: int) -> int:
    """Read so many bytes from each. Returns how many are missing when nothing more comes."""
    with selectors.DefaultSelector() as waiting:
        left = dict.fromkeys(peers, expected_bytes)
        for peer in peers:
            peer.setblocking(False)
            waiting.register(peer, selectors.EVENT_READ)
        while left:
            ready = waiting.select(_SILENCE_SECONDS)
            if not ready:
                break
            for key, _ in ready:
                peer = cast(socket.socket, key.fileobj)
                left[peer] -= len(peer.recv(1 << 18))
                if left[peer] <= 0:
                    waiting.unregister(peer)
                    del left[peer]
    return sum(left.values())


class _Watch:
    """The most memory that a server held since this was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self._most = max(self._most, self._server.memory_bytes())

    def end(self) -> float:
        """Stop, and tell."""
        self._ended.set()
        self._thread.join()
        return self._most
