"""The embedded cells of `logweir bench statements`: a store in this process, next to SQLite.

SQLite has `journal_mode=WAL`, and `synchronous=FULL` for durability `fsync`: both sync each change
before they return; for other ones `NORMAL`. Each cell has a folder of its own, with the tuples of
the server cells; what both find in a round, and hold in the end, is compared. `append` is next to
one `executemany` in a transaction; a transaction of `tx.insert` next to one of as many `execute`,
and in the cell `…/many` one of one `tx.append` next to one `executemany`. Of 200 concurrent
transactions, SQLite, which has one writer, makes them one after the other on one connection: the
most that it can. `more` tells how many syncs of logweir a round took, as a median.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from logweir import aio
from logweir.errors import Unreachable
from logweir.store import open as open_store
from logweir.store.log import Log
from logweir.store.transaction import Transaction
from logweir.tools.bench.append import BENCH_FORMAT, open_sqlite
from logweir.tools.bench.cells import Cell, Figure, measure
from logweir.tools.bench.requests import TUPLE_BYTES, bench_tuple, number_of

_BATCH: Final = 1000
_CONCURRENT: Final = 200

_INSERT: Final = "INSERT INTO bench VALUES (?, ?, ?, ?, ?)"
_REPLACE: Final = "REPLACE INTO bench VALUES (?, ?, ?, ?, ?)"
_UPDATE: Final = "UPDATE bench SET number = number + 1 WHERE id = ?"
_GET: Final = "SELECT * FROM bench WHERE id = ?"
_SCAN: Final = "SELECT * FROM bench ORDER BY id"
_BY_NUMBER: Final = "SELECT * FROM bench WHERE number = ?"

Row = tuple[Any, ...]


def embedded_cells(durability: str) -> list[Cell]:
    """The cells, in order."""
    many, one = f"{_BATCH} in a transaction", "1"
    told: list[tuple[str, str, str, str]] = [
        ("append/plain", many, durability, "rows"),
        ("append/index", many, durability, "rows"),
        ("transaction-insert/plain", many, durability, "rows"),
        ("transaction-insert/index", many, durability, "rows"),
        ("transaction-insert/plain/many", many, durability, "rows"),
        ("transaction-insert/index/many", many, durability, "rows"),
        ("transaction-update/index", many, durability, "rows"),
        ("get/plain", one, "none", "requests"),
        ("select-secondary/index", "10 found", "none", "requests"),
        ("scan/plain", "all", "none", "rows"),
        ("insert/plain", one, durability, "requests"),
        ("insert/index", one, durability, "requests"),
        ("replace-get/plain", one, durability, "requests"),
        ("threads/plain", f"{_CONCURRENT} at once", durability, "transactions"),
        ("asyncio/plain", f"{_CONCURRENT} at once", durability, "transactions"),
    ]
    return [
        Cell(f"embedded/{name}", batch, TUPLE_BYTES, synced, what)
        for name, batch, synced, what in told
    ]


def run_embedded(
    directory: Path, cells: Sequence[Cell], rows: int, rounds: int, durability: str
) -> Iterator[Figure]:
    """Measure some of the cells. `rows`: in each space before, and of a round of the fast ones.

    Raises `Unreachable` if SQLite and logweir do not hold the same in the end.
    """
    for cell in cells:
        _, what, kind, *more = cell.name.split("/")
        with _Pair(directory, rows, kind == "index", durability) as pair:
            work = _WORKS[what](pair, *more)
            figure = measure(
                cell,
                ours=pair.counted(work.ours),
                theirs=work.theirs,
                peer=f"SQLite {sqlite3.sqlite_version}, {pair.synchronous}",
                units=work.units,
                rounds=rounds,
                more=lambda pair=pair: {"syncs": statistics.median(pair.syncs)},  # type: ignore[misc]
            )
            pair.compare(cell.name)
        shutil.rmtree(directory)
        yield figure


class _Pair:
    """A store and a database with the same tuples; a context manager."""

    def __init__(self, directory: Path, rows: int, index: bool, durability: str) -> None:
        directory.mkdir(exist_ok=True)
        self.rows = rows
        self.synchronous = "FULL" if durability == "fsync" else "NORMAL"
        self._stack = ExitStack()
        self.log: Log = self._stack.enter_context(
            open_store(directory / "store", durability=durability, checkpoint_interval=0)  # type: ignore[arg-type]
        )
        self.log.create_space("bench", BENCH_FORMAT)
        self.db = open_sqlite(directory / "peer.sqlite", durability)
        self._stack.callback(self.db.close)
        if index:
            self.log.create_index("bench", "number", {"parts": ["number"], "unique": False})
            self.db.execute("CREATE INDEX number ON bench (number)")
        tuples = [bench_tuple(key, number_of(key, rows)) for key in range(rows)]
        self.log.append("bench", tuples)
        with self.transaction():
            self.db.executemany(_INSERT, tuples)
        self._first = {"ours": rows, "theirs": rows}
        self.syncs: list[int] = []

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One of SQLite."""
        self.db.execute("BEGIN IMMEDIATE")
        yield
        self.db.execute("COMMIT")

    def fresh(self, side: str, count: int) -> list[Row]:
        """Tuples that come behind all that this side was given."""
        first = self._first[side]
        self._first[side] += count
        return [bench_tuple(key, number_of(key, self.rows)) for key in range(first, first + count)]

    def keys(self, count: int) -> list[int]:
        """Ids of tuples that are there, in any order; in each round the same."""
        order = list(range(self.rows)) * (1 + count // self.rows)
        Random(1).shuffle(order)  # noqa: S311 - an order only
        return [bench_tuple(key, 0)[0] for key in order[:count]]

    def asynchronous(self) -> tuple[aio.AsyncLog, asyncio.Runner]:
        """The store with awaited methods, and what runs its tasks."""
        runner = self._stack.enter_context(asyncio.Runner())
        store = aio.AsyncLog(self.log)
        self._stack.callback(lambda: runner.run(store.close()))
        return store, runner

    def counted(self, work: Callable[[], float]) -> Callable[[], float]:
        """The same, with its syncs counted."""

        def run() -> float:
            before = self.log.status()["syncs"]
            seconds = work()
            self.syncs.append(self.log.status()["syncs"] - before)
            return seconds

        return run

    def compare(self, name: str) -> None:
        """Raises `Unreachable` if the two do not hold the same."""
        rows = self.db.execute(_SCAN).fetchall()
        if self.log.select("bench") != rows:
            raise Unreachable(name, "logweir and SQLite hold different rows afterwards.")


@dataclass(frozen=True, slots=True)
class _Work:
    """What a cell does. `ours`, `theirs`: a round of `units`, which returns its seconds."""

    units: int
    ours: Callable[[], float]
    theirs: Callable[[], float]


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _insert_rows(tx: Transaction, rows: Sequence[Row]) -> None:
    for row in rows:
        tx.insert("bench", row)


def _append(pair: _Pair) -> _Work:
    commits = max(1, pair.rows // _BATCH)

    def ours() -> float:
        batches = [pair.fresh("ours", _BATCH) for _ in range(commits)]
        return _timed(lambda: [pair.log.append("bench", batch) for batch in batches])

    return _Work(commits * _BATCH, ours, lambda: _insert_many(pair, commits))


def _insert_many(pair: _Pair, commits: int) -> float:
    batches = [pair.fresh("theirs", _BATCH) for _ in range(commits)]

    def insert() -> None:
        for batch in batches:
            with pair.transaction():
                pair.db.executemany(_INSERT, batch)

    return _timed(insert)


def _transaction_insert(pair: _Pair, many: str = "") -> _Work:
    commits = max(1, pair.rows // _BATCH // 4)

    def ours() -> float:
        batches = [pair.fresh("ours", _BATCH) for _ in range(commits)]

        def insert() -> None:
            for batch in batches:
                with pair.log.transaction() as tx:
                    if many:
                        tx.append("bench", batch)
                    else:
                        _insert_rows(tx, batch)

        return _timed(insert)

    def theirs() -> float:
        if many:
            return _insert_many(pair, commits)
        batches = [pair.fresh("theirs", _BATCH) for _ in range(commits)]
        return _timed(lambda: _execute_all(pair, _INSERT, batches))

    return _Work(commits * _BATCH, ours, theirs)


def _execute_all(pair: _Pair, statement: str, batches: Sequence[Sequence[Row]]) -> None:
    """A transaction for each batch, and a call for each of its rows."""
    for batch in batches:
        with pair.transaction():
            for one in batch:
                pair.db.execute(statement, one)


def _transaction_update(pair: _Pair) -> _Work:
    commits = max(1, pair.rows // _BATCH // 4)
    keys = pair.keys(commits * _BATCH)
    batches = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
    operations = [["+", "number", 1]]

    def ours() -> None:
        for batch in batches:
            with pair.log.transaction() as tx:
                for key in batch:
                    tx.update("bench", key, operations)

    def theirs() -> None:
        _execute_all(pair, _UPDATE, [[(key,) for key in batch] for batch in batches])

    return _Work(len(keys), lambda: _timed(ours), lambda: _timed(theirs))


def _reads(
    units: int, ours: Callable[[], Sequence[object]], theirs: Callable[[], Sequence[object]]
) -> _Work:
    """Raises `Unreachable`, in ours, where the two do not find the same."""
    found: list[object] = []

    def run_ours() -> float:
        rows: list[object] = []
        seconds = _timed(lambda: rows.extend(ours()))
        if rows != found:
            raise Unreachable("bench", "logweir and SQLite find different rows.")
        return seconds

    def run_theirs() -> float:
        found.clear()
        return _timed(lambda: found.extend(theirs()))

    return _Work(units, run_ours, run_theirs)


def _get(pair: _Pair) -> _Work:
    keys = pair.keys(pair.rows)
    log, db = pair.log, pair.db
    return _reads(
        len(keys),
        lambda: [log.get("bench", key) for key in keys],
        lambda: [db.execute(_GET, (key,)).fetchone() for key in keys],
    )


def _select_secondary(pair: _Pair) -> _Work:
    count = max(1, pair.rows // 10)
    numbers = [bench_tuple(0, number_of(key, pair.rows))[3] for key in range(count)]
    log, db = pair.log, pair.db
    return _reads(
        count,
        lambda: [log.select("bench", number, index="number") for number in numbers],
        lambda: [db.execute(_BY_NUMBER, (number,)).fetchall() for number in numbers],
    )


def _scan(pair: _Pair) -> _Work:
    log, db = pair.log, pair.db
    return _reads(
        pair.rows,
        lambda: log.select("bench"),
        lambda: db.execute(_SCAN).fetchall(),
    )


def _insert(pair: _Pair) -> _Work:
    count = max(20, pair.rows // 20)

    def ours() -> float:
        rows = pair.fresh("ours", count)
        return _timed(lambda: [pair.log.insert("bench", row) for row in rows])

    def theirs() -> float:
        rows = pair.fresh("theirs", count)
        return _timed(lambda: [pair.db.execute(_INSERT, row) for row in rows])

    return _Work(count, ours, theirs)


def _replace_get(pair: _Pair) -> _Work:
    keys = pair.keys(max(20, pair.rows // 20))
    rows = [(key, *bench_tuple(0, 5)[1:]) for key in keys]

    def ours() -> None:
        for row in rows:
            pair.log.replace("bench", row)
            pair.log.get("bench", row[0])

    def theirs() -> None:
        for row in rows:
            pair.db.execute(_REPLACE, row)
            pair.db.execute(_GET, (row[0],)).fetchone()

    return _Work(len(rows), lambda: _timed(ours), lambda: _timed(theirs))


def _one_by_one(pair: _Pair) -> float:
    rows = pair.fresh("theirs", _CONCURRENT)
    return _timed(lambda: _execute_all(pair, _INSERT, [[row] for row in rows]))


def _threads(pair: _Pair) -> _Work:
    def insert(row: Row) -> None:
        with pair.log.transaction() as tx:
            tx.insert("bench", row)

    def ours() -> float:
        rows = pair.fresh("ours", _CONCURRENT)
        ready = threading.Barrier(_CONCURRENT + 1)
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            for _ in range(_CONCURRENT):
                pool.submit(ready.wait)  # so that every thread has started
            ready.wait()
            return _timed(lambda: list(pool.map(insert, rows)))

    return _Work(_CONCURRENT, ours, lambda: _one_by_one(pair))


def _asyncio(pair: _Pair) -> _Work:
    async def insert(store: aio.AsyncLog, row: Row) -> None:
        async with store.transaction() as tx:
            await tx.insert("bench", row)

    async def work(store: aio.AsyncLog, rows: Sequence[Row]) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(insert(store, row) for row in rows))
        return time.perf_counter() - started

    store, loop = pair.asynchronous()

    def ours() -> float:
        return loop.run(work(store, pair.fresh("ours", _CONCURRENT)))

    return _Work(_CONCURRENT, ours, lambda: _one_by_one(pair))


_WORKS: Final[dict[str, Callable[..., _Work]]] = {
    "append": _append,
    "transaction-insert": _transaction_insert,
    "transaction-update": _transaction_update,
    "get": _get,
    "select-secondary": _select_secondary,
    "scan": _scan,
    "insert": _insert,
    "replace-get": _replace_get,
    "threads": _threads,
    "asyncio": _asyncio,
}
