"""Large tuples to which the state refers: they are read from the log, and moved before it goes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import logweir
from logweir.errors import CorruptBlock
from logweir.store.commit.append import append_tuples
from logweir.store.commit.jobs import Job
from logweir.store.schema.values import LargeTuple
from logweir.store.state import references as references_module
from logweir.store.state import state, statetxn
from logweir.store.state.references import REFERENCE
from logweir.store.state.statetxn import Txn
from logweir.wal.failpoint import arm, disarm
from logweir.wal.mp import pack, unpack

FIELDS = (
    ("partition", "unsigned"),
    ("first", "unsigned"),
    ("last", "unsigned"),
    ("time", "unsigned"),
    ("bundle", "varbinary"),
)
Row = tuple[int, int, int, int, bytes]


def topic(path: Path, **options: object) -> logweir.Log:
    """A store with the space t, opened with weak durability unless told otherwise."""
    log = logweir.open(path, **{"durability": "write", **options})  # type: ignore[arg-type]
    log.create_space("t", FIELDS, primary=["partition", "first"], if_not_exists=True)
    return log


def rows_of(count: int, *, start: int = 0, size: int = 30_000) -> list[Row]:
    """Rows that no compression makes smaller."""
    return [(0, n, n, 7, os.urandom(size)) for n in range(start + 1, start + count + 1)]


def append(log: logweir.Log, rows: list[Row]) -> None:
    """Store rows as a topic does."""
    space = log.schema.space("t").id
    tuples = []
    for row in rows:
        data = pack(list(row))
        tuples.append(LargeTuple(data[: len(data) - len(row[4])], row[4]))
    log.inner.run_job(Job(lambda group: append_tuples(group, space, tuples)))


def references(log: logweir.Log) -> int:
    """How many entries of t are references."""
    name = log.schema.space("t").id, 0

    def count(txn: Txn) -> int:
        tree = txn.tree(*name)
        assert tree is not None
        with txn.raw.cursor(tree.handle) as cursor:
            return sum(value[0] == REFERENCE for value in cursor.iternext(keys=False))

    return log.inner.change_base(count)


def files_referred_to(log: logweir.Log) -> list[int]:
    """The numbers of the log files that the state knows references to."""
    return log.inner.change_base(lambda txn: txn.log_files())


def test_tuple_that_the_log_takes_as_it_is_is_not_stored_twice(tmp_path: Path) -> None:
    """All ways to read give it; the state holds 33 bytes for it."""
    rows = rows_of(20)
    with topic(tmp_path) as log:
        append(log, rows)
        assert references(log) == 20
        assert log.select("t") == rows
        assert log.select("t", [0, 5], iterator="LT") == rows[3::-1]
        assert log.get("t", [0, 7]) == rows[6]
        assert log.count("t") == 20
        logged = [row.decoded().get("tuple") for batch in log.rows() for row in batch.rows]
        assert logged[-20:] == [list(row) for row in rows]


@pytest.mark.parametrize("payload", [b"text " * 10_000, bytes(50_000)], ids=["text", "zeros"])
def test_tuple_that_is_compressed_in_the_log_stands_in_the_state(
    tmp_path: Path, payload: bytes
) -> None:
    """There is no place in the log where its bytes are."""
    with topic(tmp_path) as log:
        append(log, [(0, 1, 1, 7, payload)])
        assert references(log) == 0
        assert log.get("t", [0, 1]) == (0, 1, 1, 7, payload)


def test_store_without_a_log_refers_to_nothing(tmp_path: Path) -> None:
    """With durability "none" nothing is written that could be referred to."""
    rows = rows_of(3)
    with topic(tmp_path, durability="none") as log:
        append(log, rows)
        assert references(log) == 0
        assert log.select("t") == rows


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_references_hold_after_a_crash_and_after_a_close(tmp_path: Path, durability: str) -> None:
    """The state is used again as it is, across several log files."""
    rows = rows_of(30)
    log = topic(tmp_path, durability=durability, wal_max_size=200_000)
    for row in rows[:20]:
        append(log, [row])
    log.inner.change_base(lambda txn: None)
    log.inner.abandon()
    with topic(tmp_path, durability=durability, wal_max_size=200_000) as log:
        assert references(log) == 20
        assert len(files_referred_to(log)) > 2
        assert log.select("t") == rows[:20]
        append(log, rows[20:])
    with topic(tmp_path) as log:
        assert references(log) == 30
        assert log.select("t") == rows


def test_changes_of_tuples_that_are_referred_to(tmp_path: Path) -> None:
    """They are deleted, updated and replaced like others, and a rollback brings them back."""
    rows = rows_of(4)
    with topic(tmp_path) as log:
        append(log, rows)
        undone = log.transaction()
        with contextlib.suppress(ZeroDivisionError), undone as tx:
            tx.delete("t", [0, 1])
            tx.update("t", [0, 2], [["=", "time", 8]])
            raise ZeroDivisionError
        assert log.select("t") == rows
        assert references(log) == 4
        log.delete("t", [0, 1])
        log.update("t", [0, 2], [["=", "time", 8]])
        log.replace("t", (0, 3, 3, 9, b"small"))
        changed = [(*rows[1][:3], 8, rows[1][4]), (0, 3, 3, 9, b"small"), rows[3]]
        assert log.select("t") == changed
        assert references(log) == 1
        with pytest.raises(logweir.RequestError, match="Duplicate key"):
            append(log, [rows[3]])


def test_log_that_is_removed_leaves_its_tuples_in_the_state(tmp_path: Path) -> None:
    """Also for a view from before; what was changed meanwhile stays changed."""
    rows = rows_of(12)
    with topic(tmp_path, checkpoint_count=1) as log:
        append(log, rows)
        first = sorted(tmp_path.glob("*.xlog"))[0]
        log.delete("t", [0, 3])
        kept = rows[:2] + rows[3:]
        with log.read_view() as view:
            log.snapshot()
            append(log, rows_of(1, start=50))
            log.snapshot()
            assert not first.exists()
            space = log.schema.space("t")
            seen = [unpack(data) for data in view.tuples(space)]
            assert seen == [list(row) for row in kept]
        assert int(first.stem) not in files_referred_to(log)
        assert references(log) == 1  # of the newest log
        held = [
            os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
        ]
        assert not any(str(first) in name for name in held)  # the last view ended: it is closed
        assert log.select("t")[:-1] == kept
    with topic(tmp_path) as log:
        assert log.select("t")[:-1] == kept


def test_a_view_that_opens_while_tuples_are_moved_reads_them_to_its_end(tmp_path: Path) -> None:
    """The move is not committed yet, an older view ends, the log goes: the view has the file."""
    rows = rows_of(4)
    with topic(tmp_path, checkpoint_count=1) as log, contextlib.ExitStack() as stack:
        append(log, rows)
        old = sorted(tmp_path.glob("*.xlog"))[0]
        opened = []

        def look() -> None:
            with log.read_view():  # one that ends before the move is committed
                pass
            opened.append(stack.enter_context(log.read_view()))
            disarm()

        log.insert("t", (1, 1, 1, 7, b"x"))
        arm("store.before_apply_commit", look)
        try:
            log.snapshot()
            append(log, rows_of(1, start=50))
            log.snapshot()
        finally:
            disarm()
        assert not old.exists()
        assert len(opened) == 1
        seen = [unpack(data) for data in opened[0].tuples(log.schema.space("t"))]
        assert seen[:4] == [list(row) for row in rows]


def test_few_log_files_are_open_however_many_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read longest ago is closed, and opened again when it is asked for."""
    monkeypatch.setattr(references_module, "LOG_FILES_OPEN", 3)
    rows = rows_of(12)
    with topic(tmp_path, wal_max_size=2) as log:
        for row in rows:
            append(log, [row])
        assert len(files_referred_to(log)) == 12
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            assert log.select("t") == rows
        assert len(os.listdir("/proc/self/fd")) == before + 3


def test_log_that_a_follower_needs_stays_and_is_referred_to(tmp_path: Path) -> None:
    """What is not removed is not moved."""
    rows = rows_of(5)
    with topic(tmp_path, checkpoint_count=1) as log:
        log.retain("follower", log.vclock)
        append(log, rows)
        log.snapshot()
        append(log, rows_of(1, start=50))
        log.snapshot()
        assert references(log) == 6
        assert log.select("t")[:5] == rows


def test_moving_takes_several_steps_and_lets_the_state_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map that is full and more than one step of work lose nothing."""
    monkeypatch.setattr(state, "STATE_MAP_START_BYTES", 2 * 1024 * 1024)
    monkeypatch.setattr(statetxn, "_MOVED_BYTES", 2_500_000)
    rows = rows_of(60, size=100_000)
    with topic(tmp_path, checkpoint_count=1) as log:
        for at in range(0, 60, 4):
            append(log, rows[at : at + 4])
        before = log.status()["state_bytes"]
        log.snapshot()
        append(log, rows_of(1, start=70))
        log.snapshot()
        assert references(log) == 1  # of the newest log
        assert log.status()["state_bytes"] > before
        assert log.select("t")[:-1] == rows


def test_missing_log_is_made_good_by_the_snapshot(tmp_path: Path) -> None:
    """Logs from before a snapshot may be removed by hand, as with Tarantool."""
    rows = rows_of(5)
    with topic(tmp_path) as log:
        append(log, rows)
        log.snapshot()
        log.replace("t", (1, 1, 1, 1, b"later"))
        old = sorted(tmp_path.glob("*.xlog"))[0]
        assert references(log) == 5
    old.unlink()
    with topic(tmp_path) as log:
        assert references(log) == 0
        assert log.select("t") == [*rows, (1, 1, 1, 1, b"later")]


def test_state_is_rebuilt_from_the_log_alone(tmp_path: Path) -> None:
    """What was referred to is then held."""
    rows = rows_of(5)
    with topic(tmp_path) as log:
        append(log, rows)
    for file in (tmp_path / "state").iterdir():
        file.unlink()
    with topic(tmp_path) as log:
        assert references(log) == 0
        assert log.select("t") == rows


def test_damage_under_a_running_store_is_named_and_not_served(tmp_path: Path) -> None:
    """One flipped bit in the log: the error says which file and where."""
    rows = rows_of(3)
    with topic(tmp_path) as log:
        append(log, rows)
        path = sorted(tmp_path.glob("*.xlog"))[-1]
        data = path.read_bytes()
        at = data.index(rows[1][4]) + 100
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes((data[at] ^ 1,)))
        assert log.get("t", [0, 1]) == rows[0]
        with pytest.raises(CorruptBlock, match="no longer the same") as caught:
            log.get("t", [0, 2])
        assert caught.value.path == str(path)
        assert caught.value.offset is not None
        assert caught.value.offset < at < caught.value.offset + 30_100
