"""`logweir bench append`: durable appends of ~100-byte rows, next to the raw disk and to peers.

Baseline is one `write` and one `fdatasync` of the same bytes. "log, encoded" makes and writes the
log's rows and block from tuples that are MsgPack already, without a state; "store" is the whole
of `Log.append`: checks, keys, log, sync, state; "objects" means that it starts from Python tuples.
The tuples, or their MsgPack, are there before the clock starts, for each case alike.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from logweir.store import open as open_store
from logweir.store.log import Log
from logweir.store.state import base
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.tarantool import TarantoolPeer, find_tarantool
from logweir.wal.columns import encode_run
from logweir.wal.mp import packer
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import RowType

BATCHES: Final = (1, 10, 100, 1000, 10_000)
BENCH_FORMAT: Final = (
    ("id", "unsigned"),
    ("name", "string"),
    ("text", "string"),
    ("number", "unsigned"),
    ("price", "number"),
)
_PREFIX: Final = b"\x82\x10\xcd\x02\x00\x21"

_LUA: Final = """
local mode = '%s'
box.cfg{wal_mode = mode, log = 'peer.log', memtx_memory = 2^30, checkpoint_interval = 0}
local s = box.schema.space.create('bench', {if_not_exists = true})
s:create_index('primary', {parts = {1, 'unsigned'}, if_not_exists = true})
local clock = require('clock')
local id = 0
local text = string.rep('x', 40)
while true do
    local line = io.read('*l')
    if line == nil then os.exit(0) end
    local count, batch = line:match('(%%d+) (%%d+)')
    if count == nil then print(0) else
        local start = clock.monotonic()
        for _ = 1, tonumber(count) do
            box.begin()
            for _ = 1, tonumber(batch) do
                id = id + 1
                s:insert{id, 'customer', text, 12345678, 1.5}
            end
            box.commit()
        end
        print(clock.monotonic() - start)
    end
    io.flush()
end
"""


def bench_tuples(count: int, first: int) -> list[tuple[Any, ...]]:
    """`count` tuples of the benchmark's space, with ids from `first` on; about 70 bytes each."""
    text = "x" * 40
    return [(first + i, "customer", text, 12345678, 1.5) for i in range(count)]


def open_sqlite(path: Path, durability: str) -> sqlite3.Connection:
    """A database with a table `bench`, which syncs each change if `durability` is `fsync`."""
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("PRAGMA journal_mode=WAL")
    made.execute(f"PRAGMA synchronous={'FULL' if durability == 'fsync' else 'NORMAL'}")
    made.execute(
        "CREATE TABLE bench (id INTEGER PRIMARY KEY, name TEXT, text TEXT, number INT, price)"
    )
    return made


def run_append(
    directory: Path,
    *,
    durability: str = "fsync",
    rounds: int = 7,
    batches: tuple[int, ...] = BATCHES,
) -> Iterator[tuple[int, int, list[Result]]]:
    """Yields for each batch size: the size, the bytes of its rows, and the cases' results."""
    with ExitStack() as stack:
        parts: list[Any] = [
            _Raw(directory),
            _Writer(directory, durability),
            _Store(directory, durability),
        ]
        parts += [_Sqlite(directory, durability), _Lmdb(directory, durability)]
        for part in parts:
            stack.callback(part.close)
        peer = None
        if find_tarantool() is not None:
            folder = directory / "tarantool"
            folder.mkdir()
            mode = durability
            peer = stack.enter_context(TarantoolPeer(folder, _LUA % mode))
        for batch in batches:
            commits = max(2, min(50, 20_000 // batch))
            cases, size = _cases(parts, peer, batch, commits, durability)
            results = compare(cases, rounds=rounds)
            yield batch, size, results


def _cases(
    parts: list[Any], peer: TarantoolPeer | None, batch: int, commits: int, durability: str
) -> tuple[list[Case], int]:
    raw, writer, store, sqlite, lmdb_peer = parts
    tuples = bench_tuples(batch, 1)
    encoded = writer.encode(b"".join(map(packer(), tuples)), batch)
    units = batch * commits
    synced = durability == "fsync"
    cases = [
        Case(
            "raw write" + (" + fdatasync" if synced else ""),
            _loop(lambda: raw.commit(encoded, synced), commits),
            units,
        ),
        Case("log, encoded", _loop(lambda: writer.commit(batch), commits), units),
        Case("store, encoded", _feed(store, store.commit_packed, batch, commits, _pack), units),
        Case("store, objects", _feed(store, store.commit, batch, commits), units),
        Case(
            "sqlite WAL " + ("FULL" if synced else "NORMAL"),
            _feed(sqlite, sqlite.commit, batch, commits),
            units,
        ),
        Case(
            "lmdb " + ("sync" if synced else "nosync"),
            _feed(lmdb_peer, lmdb_peer.commit, batch, commits),
            units,
        ),
    ]
    if peer is not None:
        cases.append(
            Case(
                f"tarantool {durability}, one fiber",
                lambda: peer.ask(f"{commits} {batch}"),
                units,
            )
        )
    return cases, len(encoded)


def _pack(tuples: list[tuple[Any, ...]]) -> bytes:
    return b"".join(map(packer(), tuples))


def _feed(
    part: _Fed,
    commit: Callable[[Any], None],
    batch: int,
    commits: int,
    make: Callable[[list[tuple[Any, ...]]], Any] = lambda tuples: tuples,
) -> Callable[[], float]:
    """A run that commits `commits` batches of new tuples, as `make` gives them."""

    def run() -> float:
        batches = [make(part.next(batch)) for _ in range(commits)]
        start = time.perf_counter()
        for each in batches:
            commit(each)
        return time.perf_counter() - start

    return run


def _loop(commit: Callable[[], None], commits: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(commits):
            commit()
        return time.perf_counter() - start

    return run


class _Raw:
    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def commit(self, data: bytes, synced: bool) -> None:
        os.write(self._fd, data)
        if synced:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class _Writer:
    """The log alone: rows, block, checksum, write, sync."""

    def __init__(self, directory: Path, durability: str) -> None:
        folder = directory / "wal"
        folder.mkdir()
        options = WriterOptions(compress_threshold_bytes=None)
        self._synced = durability == "fsync"
        self._writer = WalWriter(folder, uuid.uuid4(), AppendPoint(VClock()), options=options)
        self._lsn = 0
        self._inputs: dict[int, tuple[bytes, array[int]]] = {}

    def encode(self, packed: bytes, count: int) -> bytes:
        size = len(packed) // count
        sizes = [size] * (count - 1) + [len(packed) - size * (count - 1)]
        if count not in self._inputs:
            parts = [packer()(one) for one in bench_tuples(count, 1)]
            sizes = [len(part) for part in parts]
            self._inputs[count] = (packed, array("Q", accumulate(sizes, initial=0)))
        return bytes(self._rows(count))

    def _rows(self, count: int) -> bytearray:
        packed, bounds = self._inputs[count]
        return encode_run(
            type=RowType.INSERT,
            replica_id=1,
            first_lsn=self._lsn + 1,
            timestamp=1700000000.5,
            source=packed,
            bounds=bounds,
            prefix=_PREFIX,
            one_transaction=True,
        )

    def commit(self, count: int) -> None:
        rows = self._rows(count)
        self._lsn += count
        self._writer.write([rows], VClock({1: self._lsn}))
        if self._synced:
            self._writer.sync()

    def close(self) -> None:
        self._writer.close()


class _Fed:
    """What takes new tuples all the time."""

    _id = 0

    def next(self, count: int) -> list[tuple[Any, ...]]:
        """Tuples that come behind all it was given before."""
        tuples = bench_tuples(count, self._id + 1)
        self._id += count
        return tuples


class _Store(_Fed):
    def __init__(self, directory: Path, durability: str) -> None:
        self._log: Log = open_store(
            directory / "store",
            durability=durability,  # type: ignore[arg-type]
            compress_threshold=None,
            checkpoint_interval=0,
        )
        self._log.create_space("bench", BENCH_FORMAT)

    def commit(self, tuples: list[tuple[Any, ...]]) -> None:
        self._log.append("bench", tuples)

    def commit_packed(self, packed: bytes) -> None:
        self._log.inner.append_packed("bench", packed)

    def close(self) -> None:
        self._log.close()


class _Sqlite(_Fed):
    def __init__(self, directory: Path, durability: str) -> None:
        self._db = open_sqlite(directory / "peer.sqlite", durability)

    def commit(self, tuples: list[tuple[Any, ...]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO bench VALUES (?, ?, ?, ?, ?)", tuples)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class _Lmdb(_Fed):
    def __init__(self, directory: Path, durability: str) -> None:
        folder = directory / "lmdb"
        synced = durability == "fsync"
        self._env = base.Environment(str(folder), map_size=2**33, sync=synced, metasync=synced)
        self._pack = packer()

    def commit(self, tuples: list[tuple[Any, ...]]) -> None:
        pairs = [(one[0].to_bytes(8, "big"), self._pack(one)) for one in tuples]
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(pairs, append=True)

    def close(self) -> None:
        self._env.close()
