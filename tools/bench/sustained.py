"""`logweir bench sustained`: what minutes of full load do to rate, layers, state, log and memory.

Two clients, each a process of its own, send UPDATEs of random keys without a pause to a server with
a space of `ROWS` tuples, or more, for each client, every one of which changes an entry of a
secondary index too: while one client looks its answers through, the other one sends. After each
stretch of `SAMPLE_SECONDS` the server's process and folder are looked at. At last, with both still
sending, the server is killed with SIGKILL, and its folder opened. Then a Tarantool, where there is
one, has the same load for as long: a load without a pause cannot go to both in turn.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from threading import Event
from typing import Final

from logweir.errors import Unreachable
from logweir.replication.iproto.client.status import fetch_status
from logweir.replication.protocols import SCHEMES
from logweir.replication.urls import read_url
from logweir.store import open as open_store
from logweir.tools.bench.load import Exchanged, LoadProcess
from logweir.tools.bench.servers import Server, logweir_server, tarantool_server
from logweir.tools.bench.tarantool import find_tarantool

ROWS: Final = 50_000
SAMPLE_SECONDS: Final = 10.0
_LISTEN: Final = "tarantool://127.0.0.1:"
_SPACES: Final = (520, 521)  # a Tarantool here has one of its own, 512
_CONNECTIONS: Final = 4
_DEPTH: Final = 250


@dataclass(frozen=True, slots=True)
class Sample:
    """At `seconds` since the load began. `rate`: answered requests a second since the sample
    before; `slowest`: seconds that the slowest exchange of `ROWS` requests since then took, 0 where
    none ended; `pause`: the longest time, in seconds, in which a client got no answer in those;
    bytes: of the layers over the state, of the state and the log on the disk, and of
    the server's own memory."""

    seconds: float
    rate: float
    slowest: float
    pause: float
    layers_bytes: int
    state_bytes: int
    log_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Beside:
    """The same of the Tarantool, whose tuples are in its memory."""

    seconds: float
    rate: float
    slowest: float
    pause: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """Opening the folder of the killed server: `seconds`, and those of the processor."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Sender:
    """One client and its space. `took`: where all put each exchange."""

    load: LoadProcess
    port: int
    space: int
    rows: int
    took: list[Exchanged]

    def exchange(self, statement: str, count: int, round: int) -> Exchanged:
        """So many requests, each for another tuple. Raises `Unreachable`."""
        wanted = {"statement": statement, "space": self.space, "rows": self.rows}
        told = {**wanted, "count": count, "round": round}
        return self.load.exchange(self.port, "iproto", told, _CONNECTIONS, _DEPTH)

    def send(self, is_killed: Event) -> None:
        """Send until the server was killed. Raises `Unreachable` where it ended before."""
        try:
            while True:  # the same requests, which need not be made anew
                self.took.append(self.exchange("update", min(self.rows, ROWS), round=0))
        except Unreachable:
            if not is_killed.is_set():
                raise


def run_sustained(
    directory: Path,
    *,
    minutes: float,
    durability: str = "fsync",
    rows: int = ROWS,
    sample_seconds: float = SAMPLE_SECONDS,
) -> Iterator[Sample | Reopened | Beside]:
    """Load a server with spaces of so many `rows` for so long, tell how it is after each stretch,
    and how it opens after a kill; then the same of a Tarantool, without the last. Raises
    `Unreachable`."""
    store, load = directory / "store", (minutes, rows, sample_seconds)
    with logweir_server(store, [_LISTEN + "0"], durability=durability) as server:
        for told in _stretches(server, *load):
            yield _sample(server, store, told)
    yield _reopened(store)
    if find_tarantool() is not None:
        with tarantool_server(directory / "tarantool", durability) as (_, server):
            for told in _stretches(server, *load):
                yield Beside(*told, int(server.memory_bytes()))


def _stretches(
    server: Server, minutes: float, rows: int, sample_seconds: float
) -> Iterator[tuple[float, float, float, float]]:
    """Load a server, and kill it in the end. Behind each stretch: seconds since the load began,
    updates a second, and the slowest exchange and longest pause in it."""
    took, is_killed = list[Exchanged](), Event()
    with ExitStack() as stack:
        senders = []
        for space in _SPACES:
            load = stack.enter_context(LoadProcess())
            load.define(server.port, space, index=True)
            senders.append(_Sender(load, server.port, space, rows, took))
            senders[-1].exchange("fill", rows, round=-1)
        threads = stack.enter_context(ThreadPoolExecutor(len(senders)))
        stack.callback(_kill, server, is_killed)  # also where what follows fails
        begin = at = time.monotonic()
        end = begin + 60 * minutes
        sending = [threads.submit(sender.send, is_killed) for sender in senders]
        told = 0
        while at < end:
            ended = wait(sending, min(sample_seconds, end - at), FIRST_COMPLETED).done
            for one in ended:
                one.result()
            now, done = time.monotonic(), len(took)
            rate, fresh = (done - told) * min(rows, ROWS) / (now - at), took[told:done]
            slowest = max((one.seconds for one in fresh), default=0.0)
            pause = max((one.pause for one in fresh), default=0.0)
            yield now - begin, rate, slowest, pause
            told, at = done, now
        _kill(server, is_killed)
        for one in sending:
            one.result()


def _kill(server: Server, is_killed: Event) -> None:
    if not is_killed.is_set():
        is_killed.set()
        os.kill(server.pid, signal.SIGKILL)


def _reopened(store: Path) -> Reopened:
    began, cpu_began = time.perf_counter(), time.process_time()
    log = open_store(store)
    found = Reopened(time.perf_counter() - began, time.process_time() - cpu_began)
    log.close()
    return found


def _sample(server: Server, store: Path, told: tuple[float, float, float, float]) -> Sample:
    status = asyncio.run(fetch_status(read_url(f"{_LISTEN}{server.port}", SCHEMES)))
    state = os.stat(store / "state" / "data.mdb")
    log_bytes = sum(path.stat().st_size for path in store.glob("*.xlog"))
    memory = int(server.memory_bytes())
    layers: int = status["layers_bytes"]
    return Sample(*told, layers, 512 * state.st_blocks, log_bytes, memory)


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Bytes a minute by which state, log and memory grew from the middle of the run to its end, and
    the rate of the second half to that of the first; nothing of fewer than four samples."""
    if len(samples) < 4:
        return {}
    half = len(samples) // 2
    middle, last = samples[half - 1], samples[-1]
    minutes = (last.seconds - middle.seconds) / 60
    names = ("state_bytes", "log_bytes", "memory_bytes")
    grown = {name: (getattr(last, name) - getattr(middle, name)) / minutes for name in names}
    first, second = (mean(one.rate for one in part) for part in (samples[:half], samples[half:]))
    return {**grown, "rate": second / first if first else 0.0}


def against(samples: Sequence[Sample], beside: Sequence[Beside]) -> dict[str, float]:
    """Updates a second of both over all their stretches, their ratio, and their longest pauses, in
    seconds; nothing where there was no Tarantool."""
    if not samples or not beside:
        return {}
    ours, theirs = (_rate(told) for told in (samples, beside))
    return {
        "rate": ours,
        "tarantool_rate": theirs,
        "ratio": ours / theirs if theirs else 0.0,
        "pause": max(one.pause for one in samples),
        "tarantool_pause": max(one.pause for one in beside),
    }


def _rate(told: Sequence[Sample | Beside]) -> float:
    begins = [0.0, *(one.seconds for one in told)]
    done = sum(one.rate * (one.seconds - at) for one, at in zip(told, begins, strict=False))
    return done / told[-1].seconds
