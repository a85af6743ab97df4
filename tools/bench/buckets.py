"""The bucket cells of `logweir bench statements`: memcached's port and Greenstack's.

`…/get`, `…/set`, pipelined (1x1000) or one request at a time, on one connection (1x1) or on each of
fifty (50x1). memcached keeps nothing; ours
syncs a SET before it answers. So `/cpu` cells tell the processor time of the serving process for
each request instead of the time that passes; it has the system's work of a sync in it, of which
`sync_cpu_us` tells how much as many bytes written and synced by this process take. Greenstack,
which nothing else speaks, is next to memcached too. All values are read from both sides in the end,
and compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logweir.errors import Unreachable
from logweir.replication.bucket.store import Buckets
from logweir.store import open as open_store
from logweir.tools.bench.cells import RATE, TIME, Cell, Figure, measure
from logweir.tools.bench.load import Exchanged, LoadProcess
from logweir.tools.bench.requests import BUCKET, VALUE_BYTES
from logweir.tools.bench.servers import Server, logweir_server, memcached_server, version_of

_SHAPES: Final = {"1x1000": (1, 1000, 1), "1x1": (1, 1, 20), "50x1": (50, 1, 4)}
"""Connections, requests in flight on each, and which part of the items a round is about."""

_REQUESTS_MIN: Final = 64
_SYNCED_BYTES: Final = 200
_SYNCS: Final = 50


def bucket_cells(durability: str) -> list[Cell]:
    """The cells, in order."""
    told = [
        ("memcached", "1x1000", RATE),
        ("memcached", "1x1000", TIME),
        ("memcached", "1x1", TIME),
        ("memcached", "50x1", RATE),
        ("memcached", "50x1", TIME),
    ]
    told += [("greenstack", "1x1000", TIME), ("greenstack", "1x1", TIME)]
    return [
        Cell(
            f"{protocol}/{command}/{shape}" + ("/cpu" if scale == TIME else ""),
            f"{shape} in flight",
            VALUE_BYTES,
            durability if command == "set" else "none",
            scale=scale,
        )
        for protocol, shape, scale in told
        for command in ("get", "set")
    ]


def run_buckets(
    directory: Path, cells: Sequence[Cell], rows: int, rounds: int, durability: str
) -> Iterator[Figure]:
    """Measure some of the cells, with `rows` items. Raises `Unreachable` if values differ."""
    version = version_of("memcached")
    store = directory / "store"
    with open_store(store) as log:
        Buckets(log).make(BUCKET)
    listen = [f"tap://127.0.0.1:0/{BUCKET}", "greenstack://127.0.0.1:0"]
    with ExitStack() as stack:
        load = stack.enter_context(LoadProcess())
        server = stack.enter_context(logweir_server(store, listen, durability=durability))
        peer = stack.enter_context(memcached_server()) if version is not None else None
        for cell in cells:
            protocol, command, shape, *_ = cell.name.split("/")
            port = server.ports[protocol == "greenstack"]
            ours = _Side(load, server, port, protocol, rows, cell, command, shape)
            sides = [ours]
            if peer is not None:
                sides.append(_Side(load, peer, peer.port, "memcached", rows, cell, command, shape))
            yield _measure(cell, sides, version, rounds, directory / "synced")


def _measure(
    cell: Cell, sides: Sequence[_Side], version: str | None, rounds: int, synced: Path
) -> Figure:
    for side in sides:
        side.exchange("set", rounds, 1000)
    ours, theirs = sides[0], sides[-1] if len(sides) > 1 else None
    figure = measure(
        cell,
        ours=ours.round,
        theirs=None if theirs is None else theirs.round,
        peer=f"{version or 'memcached, not installed'}, keeps nothing",
        units=ours.count,
        rounds=rounds,
        more=lambda: {
            "client_busy": ours.busy_share(),
            **({"sync_cpu_us": _sync_cpu_us(synced)} if cell.durability == "fsync" else {}),
        },
    )
    digests = [[side.values(), *(one.digest for one in side.exchanged)] for side in sides]
    if any(one != digests[0] for one in digests):
        raise Unreachable(cell.name, "logweir and memcached answered or hold different values.")
    return figure


def _sync_cpu_us(path: Path) -> float:
    """Processor time of this thread for one write and sync, in microseconds."""
    with path.open("wb", buffering=0) as file:
        before = time.thread_time()
        for _ in range(_SYNCS):
            file.write(bytes(_SYNCED_BYTES))
            os.fdatasync(file.fileno())
        return (time.thread_time() - before) / _SYNCS * 1e6


@dataclass(slots=True)
class _Side:
    """One of the servers in the cell under way."""

    load: LoadProcess
    server: Server
    port: int
    protocol: str
    items: int
    cell: Cell
    command: str
    shape: str
    exchanged: list[Exchanged] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Requests of a round."""
        *_, divisor = _SHAPES[self.shape]
        return self.items if divisor == 1 else max(self.items // divisor, _REQUESTS_MIN)

    def exchange(self, command: str, round: int, depth: int) -> Exchanged:
        """All items once, with the values of that round."""
        wanted = {"command": command, "items": self.items, "count": self.items, "round": round}
        return self._send(wanted, 1, depth)

    def _send(self, wanted: dict[str, object], connections: int, depth: int) -> Exchanged:
        done = self.load.exchange(self.port, self.protocol, wanted, connections, depth)
        self.server.settle()
        return done

    def round(self) -> float:
        """One round: seconds that pass, or of the server's processor time."""
        number = len(self.exchanged)
        wanted = {"command": self.command, "items": self.items, "count": self.count}
        connections, depth, _ = _SHAPES[self.shape]
        before = self.server.cpu_seconds()
        done = self._send({**wanted, "round": number}, connections, depth)
        self.exchanged.append(done)
        if self.cell.scale == TIME:
            return self.server.cpu_seconds() - before
        return done.seconds

    def busy_share(self) -> float:
        """Which share of the time the client computed."""
        seconds = sum(one.seconds for one in self.exchanged)
        return sum(one.busy_seconds for one in self.exchanged) / seconds

    def values(self) -> str:
        """A digest of all values that are there now."""
        return self.exchange("get", 0, 1000).digest
