"""`logweir bench statements`: every kind of statement, next to the peers that do the same.

`server/…`: `logweir serve` next to a Tarantool with the same durability, over iproto, the same
client for both (`tools.bench.load`). Each cell has a fresh space, which is filled before and
dropped after; the answers of each round hold the same on both sides, and so do the spaces at the
end, in the order of each index. What is measured besides: processor time of both servers for each
request, with what they do in the background afterwards, for which each round waits, and which share
of the time the client computed: near 1 it is the client that is measured.

`embedded/…`: `tools.bench.embedded`; `memcached/…` and `greenstack/…`: `tools.bench.buckets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, Unreachable
from logweir.tools.bench import buckets, embedded
from logweir.tools.bench.cells import Cell, Figure, chosen, measure
from logweir.tools.bench.load import Exchanged, LoadProcess
from logweir.tools.bench.requests import STATEMENTS, TUPLE_BYTES, changes
from logweir.tools.bench.servers import Server, logweir_server, tarantool_server, version_of

ROWS_MIN: Final = 200
"""So that a range of 100 tuples begins somewhere."""

_INDEXES: Final = ("plain", "index")
_SHAPES: Final = ((1, 1000), (1, 100), (1, 1), (16, 1))
_REPLACE_SHAPES: Final = ((16, 100), (4, 1000))
_DIVISORS: Final = {(1, 1): 20, (16, 1): 10}
_RANGE_DIVISOR: Final = 10
_REQUESTS_MIN: Final = 32
_FIRST_SPACE: Final = 10_000
_DEPTH: Final = 1000


def server_cells(durability: str) -> list[Cell]:
    """Every statement, plain and with a secondary index, by connections and depth."""
    shapes = [
        (statement, index, shape)
        for index, statement, shape in itertools.product(_INDEXES, STATEMENTS, _SHAPES)
    ]
    shapes += [("replace", "plain", shape) for shape in _REPLACE_SHAPES]
    return [
        Cell(
            f"server/{statement}/{index}/{shape[0]}x{shape[1]}",
            f"{shape[0]}x{shape[1]} in flight",
            TUPLE_BYTES,
            durability if changes(statement) else "none",
        )
        for statement, index, shape in shapes
    ]


def all_cells(durability: str) -> list[Cell]:
    """The whole matrix."""
    return [
        *server_cells(durability),
        *embedded.embedded_cells(durability),
        *buckets.bucket_cells(durability),
    ]


def run_statements(
    directory: Path,
    *,
    rows: int = 20_000,
    rounds: int = 7,
    durability: str = "fsync",
    cells: str = "*",
) -> Iterator[Figure]:
    """Measure the cells whose name fits `cells`, in `directory`, which decides the disk.

    `rows`: in each space, and requests of a round; of slow kinds fewer. Raises `ConfigError` for
    what cannot be, `Unreachable` if a server does not do what it should or the two do not agree.
    """
    if rows < ROWS_MIN:
        raise ConfigError("--rows", f"{rows} rows are too few", hint=f"{ROWS_MIN} at least")
    wanted = chosen(all_cells(durability), cells)
    for run, groups in _PARTS.items():
        some = [cell for cell in wanted if cell.group in groups]
        if some:
            folder = directory / groups[0]
            folder.mkdir()
            yield from run(folder, some, rows, rounds, durability)


# --- next to Tarantool ----------------------------------------------------------------------------


def _run_server(
    directory: Path, cells: list[Cell], rows: int, rounds: int, durability: str
) -> Iterator[Figure]:
    version = version_of("tarantool")
    with ExitStack() as stack:
        load = stack.enter_context(LoadProcess())
        listen = ["tarantool://127.0.0.1:0"]
        made = logweir_server(directory / "store", listen, durability=durability)
        ours = _Side(load, stack.enter_context(made), rows)
        theirs = None
        if version is not None:
            peer = stack.enter_context(tarantool_server(directory / "tarantool", durability))
            theirs = _Side(load, peer[1], rows)
        name = f"{version or 'Tarantool, not installed'}, {durability}"
        for number, cell in enumerate(cells):
            yield _measure(cell, _FIRST_SPACE + number, ours, theirs, name, rounds)


def _measure(
    cell: Cell, space: int, ours: _Side, theirs: _Side | None, peer: str, rounds: int
) -> Figure:
    _, statement, kind, shape = cell.name.split("/")
    connections, _, depth = shape.partition("x")
    sides = [ours] if theirs is None else [theirs, ours]
    for side in sides:
        side.begin(statement, space, kind == "index", int(connections), int(depth))
    figure = measure(
        cell,
        ours=ours.round,
        theirs=None if theirs is None else theirs.round,
        peer=peer,
        units=ours.count,
        rounds=rounds,
        more=lambda: {
            "cpu_us": ours.cpu_us(),
            **({} if theirs is None else {"peer_cpu_us": theirs.cpu_us()}),
            "client_busy": ours.busy_share(),
        },
    )
    if theirs is not None:
        _compare(cell, ours, theirs)
    for side in sides:
        side.end()
    return figure


def _compare(cell: Cell, ours: _Side, theirs: _Side) -> None:
    if ours.digests != theirs.digests:
        raise Unreachable(cell.name, "logweir and its peer answered differently.")
    if ours.contents() != theirs.contents():
        raise Unreachable(cell.name, "logweir and its peer hold different tuples afterwards.")


@dataclass(slots=True)
class _Side:
    """One of the two servers, and what it did in the cell under way."""

    load: LoadProcess
    server: Server
    rows: int
    statement: str = ""
    space: int = 0
    index: bool = False
    connections: int = 1
    depth: int = 1
    digests: list[str] = field(default_factory=list)
    exchanged: list[Exchanged] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def count(self) -> int:
        """Requests of a round."""
        count = self.rows // _DIVISORS.get((self.connections, self.depth), 1)
        if self.statement == "range":
            count //= _RANGE_DIVISOR
        return max(count, _REQUESTS_MIN)

    def begin(self, statement: str, space: int, index: bool, connections: int, depth: int) -> None:
        """Make and fill the cell's space."""
        self.statement, self.space, self.index = statement, space, index
        self.connections, self.depth = connections, depth
        self.digests, self.exchanged, self.cpu_seconds = [], [], 0.0
        self.load.define(self.server.port, space, index=index)
        self._send("fill", self.rows, -1, 1, _DEPTH)
        self.server.settle()

    def _send(
        self, statement: str, count: int, round: int, connections: int, depth: int
    ) -> Exchanged:
        wanted = {"statement": statement, "space": self.space, "rows": self.rows}
        return self.load.exchange(
            self.server.port,
            "iproto",
            {**wanted, "count": count, "round": round},
            connections,
            depth,
        )

    def round(self) -> float:
        """One round. Returns the seconds; what the server still does then it may end first."""
        number = len(self.exchanged)
        if self.statement == "delete":
            self._send("fill", self.count, number, 1, _DEPTH)
            self.server.settle()
        before = self.server.cpu_seconds()
        done = self._send(self.statement, self.count, number, self.connections, self.depth)
        self.server.settle()
        self.cpu_seconds += self.server.cpu_seconds() - before
        self.exchanged.append(done)
        self.digests.append(done.digest)
        return done.seconds

    def cpu_us(self) -> float:
        """Microseconds of the server's processor time for a request."""
        return self.cpu_seconds / (self.count * len(self.exchanged)) * 1e6

    def busy_share(self) -> float:
        """Which share of the time the client computed."""
        seconds = sum(one.seconds for one in self.exchanged)
        return sum(one.busy_seconds for one in self.exchanged) / seconds

    def contents(self) -> list[str]:
        """Digests of the space, in the order of each index."""
        return [
            self.load.contents(self.server.port, self.space, number)
            for number in range(1 + self.index)
        ]

    def end(self) -> None:
        """Drop the cell's space."""
        self.load.define(self.server.port, self.space, index=self.index, drop=True)
        self.server.settle()


_PARTS: Final = {
    _run_server: ("server",),
    embedded.run_embedded: ("embedded",),
    buckets.run_buckets: ("memcached", "greenstack"),
}
"""What measures cells, to the groups that these are of."""
