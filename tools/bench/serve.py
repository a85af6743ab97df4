"""`logweir bench serve`, `join`, `relay`, `follow`: the server, next to Tarantool and `sendfile`.

serve: pipelined REPLACE requests of ~100 bytes, answered when durable, by connections x requests in
flight on each; schema checks, state and log as always. join: a real Tarantool joins a server that
holds so many rows; the time is that of its `box.cfg`. relay: all rows of a log go to one follower
that reads and throws away, next to `sendfile` of as many bytes. follow: `tools.bench.following`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from logweir.errors import Unreachable
from logweir.store import open as open_store
from logweir.tools.bench.append import BENCH_FORMAT, bench_tuples
from logweir.tools.bench.following import Figures, measure, measure_peer
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.load import LoadProcess
from logweir.tools.bench.tarantool import TarantoolPeer, find_tarantool
from logweir.wal.damage import Damage
from logweir.wal.reader import WalReader

__all__ = ["DEPTHS", "run_follow", "run_join", "run_relay", "run_serve"]

DEPTHS: Final = ((1, 1, 2000), (16, 1, 4000), (16, 100, 60_000), (4, 1000, 100_000))
"""Connections, requests in flight on each, requests in all: of single ones so many that a hiccup
of the disk does not decide a round."""

_MASTER: Final = """
local uri = '127.0.0.1:0'
box.cfg{listen = uri, wal_mode = '%s', log = 'peer.log', memtx_memory = 2^30,
        checkpoint_interval = 0}
box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
local s = box.schema.space.create('bench', {if_not_exists = true})
s:create_index('primary', {parts = {1, 'unsigned'}, if_not_exists = true})
local text = string.rep('x', 40)
while true do
    require('socket').iowait(0, 'R')  -- io.read alone would stop the whole server
    local line = io.read('*l')
    if line == nil then os.exit(0) end
    local rows = line:match('fill (%%d+)')
    if rows then
        rows = tonumber(rows)
        for first = 1, rows, 1000 do
            box.begin()
            for i = first, math.min(first + 999, rows) do
                s:insert{i, 'customer', text, 12345678, 1.5}
            end
            box.commit()
        end
    end
    print(line == 'port' and box.info.listen:match(':(%%d+)$') or 0)
    io.flush()
end
"""

_REPLICA: Final = """
local clock = require('clock')
local line = io.read('*l')
print(0) io.flush()
local port, rows = io.read('*l'):match('(%d+) (%d+)')
local start = clock.monotonic()
box.cfg{replication = '127.0.0.1:' .. port, log = 'peer.log', memtx_memory = 2^30,
        replication_connect_timeout = 30}
local seconds = clock.monotonic() - start
local found = box.space.bench:len()
if found ~= tonumber(rows) then error('it has ' .. found .. ' rows of ' .. rows) end
print(seconds)
io.flush()
os.exit(0)
"""


@contextmanager
def _serving(folder: Path, durability: str) -> Iterator[int]:
    """`logweir serve` on a folder, as a process of its own. Gives its port."""
    with _process(folder, durability) as (port, _):
        yield port


@contextmanager
def _process(folder: Path, durability: str) -> Iterator[tuple[int, int]]:
    """The same. Gives port and process id."""
    words = ["serve", str(folder), "--listen", "tarantool://127.0.0.1:0", "--allow-guest", "all"]
    code = "from logweir.tools.cli.main import run; run()"
    process = subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-c", code, *words, "--durability", durability, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Unreachable("logweir serve", "the server did not start.")
        yield int(json.loads(line)["listen"][0].rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()  # type: ignore[union-attr]


def _make_store(folder: Path, rows: int) -> None:
    with open_store(folder) as log:
        log.create_space("bench", format=BENCH_FORMAT)
        for first in range(1, rows + 1, 10_000):
            tuples = bench_tuples(min(10_000, rows + 1 - first), first)
            log.append("bench", tuples, one_transaction=False)


def run_serve(
    directory: Path, *, durability: str = "fsync", rounds: int = 5
) -> Iterator[tuple[int, int, list[Result]]]:
    """Yields connections, requests in flight on each, and the cases' results."""
    with ExitStack() as stack:
        load = LoadProcess()
        ports: dict[str, int] = {}
        if find_tarantool() is not None:
            folder = directory / "tarantool"
            folder.mkdir()
            peer = stack.enter_context(TarantoolPeer(folder, _MASTER % durability))
            ports[f"Tarantool {durability}"] = int(peer.ask("port"))
        _make_store(directory / "store", 0)
        ports["logweir"] = stack.enter_context(_serving(directory / "store", durability))
        for count, depth, total in DEPTHS:
            cases = [
                Case(name, _replacing(load, port, count, depth, total), total)
                for name, port in ports.items()
            ]
            yield count, depth, compare(cases, rounds=rounds)


def _replacing(
    load: LoadProcess, port: int, count: int, depth: int, total: int
) -> Callable[[], float]:
    return lambda: load.ask("replace", port, 512, count, depth, total)


def run_join(directory: Path, *, rows: int, rounds: int = 3) -> list[Result]:
    """A real replica joins a Tarantool, and us. Raises `Unreachable` where none is installed."""
    with ExitStack() as stack:
        folder = directory / "tarantool"
        folder.mkdir()
        peer = stack.enter_context(TarantoolPeer(folder, _MASTER % "write"))
        peer.ask(f"fill {rows}")
        _make_store(directory / "store", rows)
        ours = stack.enter_context(_serving(directory / "store", "fsync"))
        ports = {"from Tarantool": int(peer.ask("port")), "from logweir": ours}
        numbers = iter(range(1000))

        def join(port: int) -> float:
            replica = directory / f"replica-{next(numbers)}"
            replica.mkdir()
            with TarantoolPeer(replica, _REPLICA) as process:
                return process.ask(f"{port} {rows}")

        cases = [Case(name, lambda port=port: join(port), rows) for name, port in ports.items()]  # type: ignore[misc]
        return compare(cases, rounds=rounds)


def run_relay(directory: Path, *, rows: int, rounds: int = 5) -> tuple[int, list[Result]]:
    """Stored rows to one follower. Returns their bytes as packets, and the cases' results."""
    _make_store(directory / "store", rows)
    size = sum(_packet_bytes(path) for path in sorted((directory / "store").glob("*.xlog")))
    plain = directory / "plain"
    with plain.open("wb") as file:
        file.truncate(size)
    load = LoadProcess()
    with _serving(directory / "store", "fsync") as port, _sending(plain) as plain_port:
        cases = [
            Case("sendfile", lambda: load.ask("fetch", plain_port, size), size),
            Case("logweir relay", lambda: load.ask("subscribe", port, uuid.uuid4(), size), size),
        ]
        return size, compare(cases, rounds=rounds)


def run_follow(
    directory: Path, *, durability: str = "fsync", rounds: int = 3, seconds: float = 5.0
) -> Iterator[tuple[str, Figures]]:
    """Latency to a follower, of a Tarantool and of us in turn; of us also the memory."""
    with ExitStack() as stack:
        peer_port = 0
        if find_tarantool() is not None:
            folder = directory / "tarantool"
            folder.mkdir()
            peer = stack.enter_context(TarantoolPeer(folder, _MASTER % durability))
            peer_port = int(peer.ask("port"))
        _make_store(directory / "store", 0)
        port, pid = stack.enter_context(_process(directory / "store", durability))
        for _ in range(rounds):
            if peer_port:
                yield f"Tarantool {durability}", measure_peer(peer_port, seconds=seconds)
            yield "logweir", measure(port, pid, seconds=seconds)


def _packet_bytes(path: Path) -> int:
    with WalReader(path) as reader:
        return sum(
            len(block.data) + 5 * len(block.columns)
            for block in reader.blocks()
            if not isinstance(block, Damage)
        )


@contextmanager
def _sending(path: Path) -> Iterator[int]:
    """A server that gives a file to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer, path.open("rb") as file:
                    peer.sendfile(file)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
