"""Bugs of the commit path, one test each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import ErrorCode, LogweirError, RequestError, WalError
from logweir.limits import GROUP_BYTES
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.store.engine.statements import Statements
from logweir.store.state import stacked, state
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.statetxn import Txn
from logweir.testing.forking import in_child
from logweir.wal import failpoint
from logweir.wal.filesystem import AppendFile, OsFileSystem
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

FORMAT = [("id", "unsigned"), ("value", "string")]
WAIT_SECONDS = 20.0


class Stop(BaseException):
    """What a KeyboardInterrupt is to the commit path."""


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    failpoint.disarm()


def opened(folder: Path, **options: object) -> logweir.Log:
    log = logweir.open(folder, **options)
    if log.schema.get("kv") is None:
        log.create_space("kv", FORMAT)
    return log


def insert(log: logweir.Log, key: int) -> Request:
    space = log.schema.space("kv")
    return Request(RowType.INSERT, space.id, tuple=pack([key, "x"]))


@pytest.mark.parametrize(
    "place",
    [
        "wal.before_write",
        "wal.after_write_before_sync",
        "wal.after_sync",
        "store.after_sync_before_publish",
        "store.after_publish",
    ],
)
def test_an_interrupted_commit_never_gives_an_lsn_twice(place: str, tmp_path: Path) -> None:
    """Rows that an interrupt left in the log keep their lsns; nothing is written behind them."""
    log = opened(tmp_path / "store")

    def stop() -> None:
        failpoint.disarm()
        raise Stop

    failpoint.arm(place, stop)
    with pytest.raises(Stop):
        log.insert("kv", (1, "interrupted"))
    kept = []
    if place == "store.after_publish":
        log.insert("kv", (2, "after"))
        kept.append(2)
    else:
        with pytest.raises(WalError, match="open the folder again"):
            log.insert("kv", (2, "after"))
        assert log.status()["state"] == "failed"
    log.close()
    shutil.rmtree(tmp_path / "store" / "state")
    with opened(tmp_path / "store") as log:
        assert log.report.ok
        found = [row[0] for row in log.select("kv")]
        assert [key for key in found if key != 1] == kept
        rows = [row for transaction in log.rows() for row in transaction.rows]
        assert [row.lsn for row in rows] == list(range(1, len(rows) + 1))
        assert [row.decoded()["tuple"][0] for row in rows[3:]] == found


def test_a_position_is_seen_when_its_rows_can_be_read(tmp_path: Path) -> None:
    """Else who reads the log to a position that it has seen ends before it, and tells the position
    as if it had not."""
    found: list[list[int]] = []
    with opened(tmp_path / "store") as log:
        before = log.vclock

        def look() -> None:
            rows = [row for transaction in log.rows(before) for row in transaction.rows]
            found.append([log.vclock.signature - before.signature, len(rows)])

        failpoint.arm("store.after_publish", look)
        log.insert("kv", (1, "x"))
        log.insert("kv", (2, "y"))
    assert found == [[1, 1], [2, 2]]


def test_an_interrupted_leader_leaves_nobody_waiting(tmp_path: Path) -> None:
    """A thread stopped while it waits for the log gives the lead away."""
    armed = threading.Event()

    def stop_once() -> float:
        if armed.is_set():
            armed.clear()
            raise Stop
        return 0.0

    log = opened(tmp_path / "store", clock=stop_once)
    armed.set()
    with pytest.raises(Stop):
        log.insert("kv", (0, "x"))
    done = []

    def write(key: int) -> None:
        done.append(log.insert("kv", (key, "x")))

    threads = [threading.Thread(target=write, args=(key,), daemon=True) for key in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert sorted(row[0] for row in done) == list(range(1, 9))
    assert log.count("kv") == 8
    log.close()


def test_a_stopped_leader_tells_the_others_of_its_group(tmp_path: Path) -> None:
    """They are neither made nor said to be."""
    with opened(tmp_path) as log:

        def stop(group: Any) -> None:
            raise Stop

        request = insert(log, 1)
        other = Job(lambda group: group.answer(request))
        with pytest.raises(Stop):
            log.inner.run_job(Job(stop), before=[other])
        assert isinstance(other.error, WalError)
        assert log.count("kv") == 0


def test_a_group_is_bounded_in_bytes(tmp_path: Path) -> None:
    """What waits is committed in several, each with no more than one job over the bound."""
    with opened(tmp_path) as log:
        requests = [insert(log, key) for key in range(6)]
        jobs = [
            Job(partial(Group.answer, request=request), GROUP_BYTES // 2) for request in requests
        ]
        before = log.inner.commits
        log.inner.run_job(jobs[-1], before=jobs[:-1])
        assert log.inner.commits == before + 3


WAITING = """
import signal, sys, threading
import logweir
log = logweir.open(sys.argv[1])
log.create_space("kv", [("id", "unsigned")])
inside, leave, written = threading.Event(), threading.Event(), []

def hold():
    with log.transaction() as tx:
        inside.set()
        leave.wait()

def follow_up(key):
    written.append(log.insert("kv", (key,)))

holder = threading.Thread(target=hold)
holder.start()
inside.wait()
role = sys.argv[2]
others = []
if role == "waiter":  # somebody else leads: this thread waits in line behind it
    others.append(threading.Thread(target=follow_up, args=(1,)))
    others[0].start()
    while log.inner.queue._leader is None:
        pass
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    log.insert("kv", (2,))
except KeyboardInterrupt:
    print("interrupted")
others.append(threading.Thread(target=follow_up, args=(3,)))
others[-1].start()
leave.set()
for thread in [holder, *others]:
    thread.join(20)
    assert not thread.is_alive(), "somebody waits for ever"
log.insert("kv", (4,))
print([row[0] for row in log.select("kv")])
log.close()
"""


@pytest.mark.parametrize(("role", "keys"), [("leader", [3, 4]), ("waiter", [1, 3, 4])])
def test_ctrl_c_while_waiting_in_line_holds_nobody_up(
    role: str, keys: list[int], tmp_path: Path
) -> None:
    """KeyboardInterrupt in a change takes it out of the line; all others go on."""
    run = subprocess.run(
        [sys.executable, "-c", WAITING, str(tmp_path / "store"), role],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"interrupted\n{keys}\n"


def test_a_failing_callback_neither_fails_the_change_nor_stops_the_queue(tmp_path: Path) -> None:
    """What `on_commit` callbacks raise is logged; the change is made and said to be made."""
    with opened(tmp_path / "store") as log:
        seen: list[VClock] = []
        log.on_commit(lambda _: [][1])
        log.on_commit(seen.append)
        assert log.insert("kv", (1, "a")) == (1, "a")
        for key in (2, 3):
            assert log.inner.submit(insert(log, key)).result(WAIT_SECONDS)
        with log.transaction() as tx:
            tx.insert("kv", (4, "d"))
        assert log.count("kv") == len(seen) == 4


def test_a_failing_done_callback_does_not_stop_the_queue(tmp_path: Path) -> None:
    """A future cannot be cancelled once its change is in line, and resolves."""
    with opened(tmp_path / "store") as log:
        futures = [log.inner.submit(insert(log, key)) for key in range(50)]
        assert not any(future.cancel() for future in futures)
        assert all(future.result(WAIT_SECONDS) for future in futures)
        assert log.count("kv") == 50


def test_a_change_submitted_while_the_log_is_closing_is_refused(tmp_path: Path) -> None:
    """Between the last group and the end of `close` nothing is put in a line that nobody reads."""
    log = opened(tmp_path / "store")
    log.inner.submit(insert(log, 1)).result(WAIT_SECONDS)
    log.inner.queue.close()
    with pytest.raises(RequestError) as caught:
        log.inner.submit(insert(log, 2))
    assert caught.value.code == ErrorCode.SESSION_CLOSED
    log.close()


def test_status_of_a_failed_log_says_so(tmp_path: Path) -> None:
    """Status is there when it is needed most."""
    log = opened(tmp_path / "store")

    def fail() -> None:
        raise OSError(5, "lost")

    failpoint.arm("store.after_sync_before_publish", fail)
    with pytest.raises(WalError):
        log.insert("kv", (1, "a"))
    failpoint.disarm()
    status = log.status()
    assert status["state"] == "failed"
    assert "lost" in status["error"]
    log.close()


# --- the state's memory map -----------------------------------------------------------------------


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that begins with 1 MiB."""
    monkeypatch.setattr(state, "STATE_MAP_START_BYTES", 1024 * 1024)


def fill(log: logweir.Log) -> list[tuple[int, str]]:
    rows = [(key, "x" * 1000) for key in range(5000)]
    for at in range(0, len(rows), 500):
        log.append("kv", rows[at : at + 500])
    return rows


@pytest.mark.usefixtures("small_map")
@pytest.mark.parametrize("snapshot", [False, True], ids=["log", "snapshot"])
def test_a_rebuilt_state_grows_its_map(snapshot: bool, tmp_path: Path) -> None:
    """A store larger than the map at first is opened without its state."""
    folder = tmp_path / "store"
    with opened(folder) as log:
        log.create_index("kv", "id", {"parts": ["id"], "unique": False})
        rows = fill(log)
        if snapshot:
            log.snapshot()
            log.insert("kv", (5000, "behind"))
            rows.append((5000, "behind"))
    shutil.rmtree(folder / "state")
    with opened(folder) as log:
        assert log.select("kv") == rows
        assert len(log.select("kv", index="id")) == len(rows)
        assert log.status()["state_bytes"] > 4 * 1024 * 1024


@pytest.mark.usefixtures("small_map")
def test_a_transaction_and_threads_grow_the_map(tmp_path: Path) -> None:
    """Statements, commits and groups each find the map full, and go on in a larger one."""
    with opened(tmp_path / "store") as log:
        with log.transaction() as tx:
            for key in range(3000):
                tx.insert("kv", (key, "y" * 1000))

        def write(first: int) -> None:
            for key in range(first, first + 50):
                log.insert("kv", (key, "z" * 20_000))

        threads = [threading.Thread(target=write, args=(10_000 * n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert log.count("kv") == 3200


@pytest.mark.usefixtures("small_map")
def test_a_change_inside_a_view_is_refused_rather_than_waiting_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map cannot grow under a view whose own thread waits for the growth."""
    monkeypatch.setattr(stacked, "LAYER_BYTES", 256 * 1024)
    with opened(tmp_path / "store") as log:

        def write_many(to: Statements, first: int) -> None:
            for key in range(first, first + 5000):
                to.insert("kv", (key, "x" * 1000))

        def write_in_transaction() -> None:
            with log.transaction() as tx:
                write_many(tx, 10_000)

        with log.read_view():
            with pytest.raises(RequestError) as caught:
                write_many(log, 0)
            assert caught.value.code == ErrorCode.MEMORY_ISSUE
            with pytest.raises(RequestError) as caught:
                write_in_transaction()
            assert caught.value.code == ErrorCode.MEMORY_ISSUE
        done = log.count("kv")
        log.insert("kv", (99_999, "x" * 100_000))
        assert log.count("kv") == done + 1


@pytest.mark.usefixtures("small_map")
def test_readers_that_never_pause_do_not_keep_the_map_from_growing(tmp_path: Path) -> None:
    """Views that overlap without end let a writer's growth through."""
    with opened(tmp_path / "store") as log:
        stop = threading.Event()
        started = threading.Barrier(4)
        turn = threading.Condition()
        entered = 0

        def stay() -> None:
            """Nobody leaves before another one is inside."""
            nonlocal entered
            stop.wait(0.001)  # three that spin would leave the writer no interpreter
            with turn:
                entered += 1
                mine = entered
                turn.notify_all()
                turn.wait_for(lambda: entered > mine, timeout=0.1)

        def read() -> None:
            started.wait()
            while not stop.is_set():
                with log.read_view() as view:
                    view.count("kv")
                    log.get("kv", 1)  # a view inside a view
                    stay()

        readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for reader in readers:
            reader.start()
        started.wait()
        writer = threading.Thread(target=fill, args=(log,), daemon=True)
        writer.start()
        writer.join(60)
        stop.set()
        assert not writer.is_alive()
        for reader in readers:
            reader.join(WAIT_SECONDS)
        assert log.count("kv") == 5000


# --- followers ------------------------------------------------------------------------------------


class HeldSync(OsFileSystem):
    """A disk whose syncs wait while `hold` is set."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.waiting = threading.Event()
        self.go = threading.Event()

    def create(self, path: Path) -> AppendFile:
        return self._held(super().create(path))

    def open_append(self, path: Path) -> AppendFile:
        return self._held(super().open_append(path))

    def _held(self, file: AppendFile) -> AppendFile:
        sync = file.sync

        def slow() -> None:
            is_header = file.path.suffix != ".xlog" and file.path.exists()  # not renamed yet
            if self.hold.is_set() and not is_header:
                self.waiting.set()
                self.go.wait(WAIT_SECONDS)
            sync()

        file.sync = slow  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("how", ["same-file", "by-size", "by-snapshot", "first-file"])
def test_rows_that_are_not_synced_are_not_followed(how: str, tmp_path: Path) -> None:
    """A row in the file but not yet on stable storage is not given out, in a new file neither."""
    disk = HeldSync()
    size = 2000 if how == "by-size" else 2**30
    log = opened(tmp_path / "store", filesystem=disk, wal_max_size=size)
    while how == "by-size" and log.status()["log_bytes"] < size:
        log.insert("kv", (log.count("kv"), "x"))
    if how == "by-snapshot":
        log.snapshot()
    if how == "first-file":
        log.close()
        log = opened(tmp_path / "store", filesystem=disk)
        log.snapshot()
        log.close()
        log = opened(tmp_path / "store", filesystem=disk)
    before = [transaction.rows[-1].lsn for transaction in log.rows()]
    disk.hold.set()
    writer = threading.Thread(target=log.insert, args=("kv", (5000, "x" * 500)), daemon=True)
    writer.start()
    assert disk.waiting.wait(WAIT_SECONDS)
    assert [transaction.rows[-1].lsn for transaction in log.rows()] == before
    disk.hold.clear()
    disk.go.set()
    writer.join(WAIT_SECONDS)
    after = [transaction.rows[-1].lsn for transaction in log.rows()]
    assert after == [*before, (before[-1] if before else 3) + 1]
    log.close()


def test_following_ends_quietly_when_the_log_is_closed_between_two_rows(tmp_path: Path) -> None:
    """Closing while the reader is busy with a row ends the iteration, without an error."""
    log = opened(tmp_path / "store")
    rows = log.rows(follow=True)
    next(rows)
    log.close()
    assert list(rows) == []
    with pytest.raises(LogweirError):
        next(log.rows())


def test_a_state_that_cannot_be_thrown_away_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of an untrusted state is an error, not the ground for a new one."""
    folder = tmp_path / "store"
    with opened(folder) as log:
        log.insert("kv", (1, "a"))
    (folder / "state" / "epoch").unlink()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(WalError, match="permission denied"):
        logweir.open(folder)
    monkeypatch.undo()
    with opened(folder) as log:
        assert log.select("kv") == [(1, "a")]


def test_what_a_child_gives_back_is_its_parents(tmp_path: Path) -> None:
    """The transaction on the state that a group was lent is not lent to the child, nor ended there:
    its slot of a reader is memory that both share."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", [("id", "unsigned")])
        state = log.inner.committer.state

        def give_back(txn: LayeredTxn | Txn) -> object:
            txn.abort()
            return len(state._spare)

        with log.transaction() as tx:
            tx.insert("t", (1,))
            txn = tx._group.txn
            assert in_child(lambda: give_back(txn)) == "0"
        log.insert("t", (2,))
        assert log.select("t") == [(1,), (2,)]
