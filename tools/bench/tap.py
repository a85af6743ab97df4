"""`logweir bench tap`: buckets next to Debian's memcached, same client, over loopback.

Each server is a process of its own; ours syncs before it answers, memcached keeps nothing. Set and
get: one connection, all requests sent without waiting while the answers are read. Dump: TAP DUMP of
all items until the end of the stream, against pipelined gets of all items. Latency: from the
sending of a set to the arrival of its TAP packet at a consumer that follows.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.replication.tap.codec import (
    Connect,
    Opcode,
    Option,
    Packet,
    encode_connect,
    encode_request,
)
from logweir.tools.bench.harness import Case, Result, compare

__all__ = ["ITEMS", "VALUE_BYTES", "TapFigures", "run_tap", "to_json"]

ITEMS: Final = 20_000
VALUE_BYTES: Final = 100
CHANGES: Final = 300
_EXTRAS: Final = struct.pack(">II", 0, 0)


@dataclass(frozen=True, slots=True)
class TapFigures:
    """What was measured. The first of each list of results is memcached."""

    set: list[Result]
    get: list[Result]
    dump: list[Result]
    latency_ms: dict[str, float]


def run_tap(directory: Path, *, rounds: int) -> TapFigures:
    """Measure in `directory`, which decides the disk. Raises `ConfigError` without memcached."""
    if shutil.which("memcached") is None:
        raise ConfigError("bench tap", "there is no memcached here", hint="install memcached 1.6")
    with ExitStack() as stack:
        theirs = stack.enter_context(_memcached())
        ours = stack.enter_context(_logweir(directory / "tap"))
        ports = {"memcached": theirs, "logweir, synced": ours}
        sets = [_case(name, port, Opcode.SET) for name, port in ports.items()]
        set_ = compare(sets, rounds=rounds)
        get = compare([_case(name, port, Opcode.GET) for name, port in ports.items()],
                      rounds=rounds)  # fmt: skip
        drain = _case("memcached, gets", theirs, Opcode.GET)
        dump = compare([drain, Case("logweir, DUMP", lambda: _dump(ours), ITEMS)], rounds=rounds)
        return TapFigures(set_, get, dump, _latency(ours))


def to_json(figures: TapFigures) -> dict[str, Any]:
    """For `--json`."""
    return {
        "set": [result.to_json() for result in figures.set],
        "get": [result.to_json() for result in figures.get],
        "dump": [result.to_json() for result in figures.dump],
        "latency_ms": figures.latency_ms,
    }


def _key(number: int) -> bytes:
    return b"key%07d" % number


def _case(name: str, port: int, opcode: Opcode) -> Case:
    is_set = opcode == Opcode.SET
    requests = b"".join(
        encode_request(
            Packet(
                opcode,
                _key(number),
                bytes(VALUE_BYTES) if is_set else b"",
                _EXTRAS if is_set else b"",
            )
        )
        for number in range(ITEMS)
    )
    answer_bytes = 24 if is_set else 24 + 4 + VALUE_BYTES
    return Case(name, lambda: _pipelined(port, requests, ITEMS * answer_bytes), ITEMS)


def _pipelined(port: int, requests: bytes, expected_bytes: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        started = time.perf_counter()
        sender = threading.Thread(target=peer.sendall, args=(requests,))
        sender.start()
        left = expected_bytes
        while left > 0:
            data = peer.recv(1 << 18)
            assert data, "the server closed the connection"
            left -= len(data)
        seconds = time.perf_counter() - started
        sender.join()
        return seconds


def _dump(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        started = time.perf_counter()
        peer.sendall(encode_connect(Connect(b"", Option.DUMP)))
        while peer.recv(1 << 18):
            pass
        return time.perf_counter() - started


def _latency(port: int) -> dict[str, float]:
    seconds: list[float] = []
    future = Connect(b"", Option.BACKFILL, 2**64 - 1)
    with (
        socket.create_connection(("127.0.0.1", port)) as follower,
        socket.create_connection(("127.0.0.1", port)) as writer,
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
    seconds.sort()
    return {
        "p50": round(seconds[len(seconds) // 2] * 1000, 3),
        "p99": round(seconds[len(seconds) * 99 // 100] * 1000, 3),
    }


@contextmanager
def _process(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(  # noqa: S603 - our own command lines
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise ConfigError("bench tap", f"{command[0]} did not start") from None
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _memcached() -> Any:
    port = _free_port()
    options = ["-l", "127.0.0.1", "-p", str(port), "-U", "0", "-B", "binary", "-u", "root"]
    return _process(["memcached", *options], port)


def _logweir(directory: Path) -> Any:
    port = _free_port()
    listen = f"tap://127.0.0.1:{port}/bench"
    program = "from logweir.tools.cli.main import run; run()"
    command = [sys.executable, "-P", "-c", program, "serve", str(directory)]
    return _process([*command, "--listen", listen, "--allow-guest", "all"], port)
