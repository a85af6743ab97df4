"""`logweir bench join`, `relay`, `follow`: followers of a server, next to Tarantool and `sendfile`.

join: a real Tarantool joins a server that holds so many rows; the time is that of its `box.cfg`.
relay: all rows of a log go to one follower that reads and throws away, next to `sendfile` of as
many bytes. follow: `tools.bench.following`.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from logweir.store import open as open_store
from logweir.tools.bench.append import BENCH_FORMAT, bench_tuples
from logweir.tools.bench.following import Figures, measure, measure_peer
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.load import LoadProcess
from logweir.tools.bench.servers import logweir_server, tarantool_server
from logweir.tools.bench.tarantool import TarantoolPeer, find_tarantool
from logweir.wal.damage import Damage
from logweir.wal.reader import WalReader

_LISTEN: Final = ("tarantool://127.0.0.1:0",)

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


def _make_store(folder: Path, rows: int) -> None:
    with open_store(folder) as log:
        log.create_space("bench", format=BENCH_FORMAT)
        for first in range(1, rows + 1, 10_000):
            tuples = bench_tuples(min(10_000, rows + 1 - first), first)
            log.append("bench", tuples, one_transaction=False)


def run_join(directory: Path, *, rows: int, rounds: int = 3) -> list[Result]:
    """A real replica joins a Tarantool, and us. Raises `Unreachable` if none is installed."""
    with ExitStack() as stack:
        folder = directory / "tarantool"
        peer, theirs = stack.enter_context(tarantool_server(folder, "write"))
        peer.ask(f"fill {rows}")
        _make_store(directory / "store", rows)
        ours = stack.enter_context(logweir_server(directory / "store", _LISTEN))
        ports = {"from Tarantool": theirs.port, "from logweir": ours.port}
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
    size = packet_bytes(directory / "store")
    plain = directory / "plain"
    with plain.open("wb") as file:
        file.truncate(size)
    with (
        LoadProcess() as load,
        logweir_server(directory / "store", _LISTEN) as server,
        _sending(plain) as plain_port,
    ):
        cases = [
            Case("sendfile", lambda: load.fetch(plain_port, size), size),
            Case(
                "logweir relay",
                lambda: load.subscribe(server.port, str(uuid.uuid4()), size),
                size,
            ),
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
            peer_port = stack.enter_context(tarantool_server(folder, durability))[1].port
        _make_store(directory / "store", 0)
        made = logweir_server(directory / "store", _LISTEN, durability=durability)
        server = stack.enter_context(made)
        for _ in range(rounds):
            if peer_port:
                yield f"Tarantool {durability}", measure_peer(peer_port, seconds=seconds)
            yield "logweir", measure(server.port, server.pid, seconds=seconds)


def packet_bytes(folder: Path) -> int:
    """What the logs of a folder take as packets."""
    size = 0
    for path in folder.glob("*.xlog"):
        with WalReader(path) as reader:
            for block in reader.blocks():
                if not isinstance(block, Damage):
                    size += len(block.data) + 5 * len(block.columns)
    return size


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
