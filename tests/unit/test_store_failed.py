"""A store that has failed: what it still does, what it says, and what was acknowledged."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from support.waiting import until

import logweir
from logweir.errors import LogStopped, StateFailed, WriterPoisoned
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store.commit.jobs import Job
from logweir.store.commit.syncer import BackgroundSync
from logweir.store.state import base
from logweir.wal import failpoint
from logweir.wal.filesystem import OS

FORMAT = [("id", "unsigned"), ("value", "string")]


def failing_store(folder: Path, **options: object) -> tuple[logweir.Log, FaultyFileSystem]:
    """An open store with ten rows on a disk that can be told to fail."""
    disk = FaultyFileSystem(OS)
    log = logweir.open(folder, filesystem=disk, **options)
    log.create_space("kv", FORMAT)
    log.append("kv", [(number, "x") for number in range(10)])
    return log, disk


@pytest.mark.parametrize("kinds", [{"sync"}, {"write", "truncate"}], ids=["sync", "cut"])
def test_reads_go_on_after_a_failed_write(kinds: set[str], tmp_path: Path) -> None:
    """Everything up to the published position can be read; writes get the typed error."""
    log, disk = failing_store(tmp_path / "store")
    position = log.vclock
    disk.fault = Fault(1, kinds, errno.EIO, lasts=True)
    for _ in range(3):
        with pytest.raises(WriterPoisoned):
            log.insert("kv", (10, "refused"))
        with pytest.raises(WriterPoisoned), log.transaction():
            pass
        with pytest.raises(WriterPoisoned):
            log.snapshot()
    assert log.get("kv", 9) == (9, "x")
    assert log.get("kv", 10) is None
    assert [row[0] for row in log.select("kv")] == list(range(10))
    assert log.count("kv") == 10
    with log.read_view() as view:
        assert view.vclock == position
        assert view.count("kv") == 10
    assert log.vclock == position
    assert [row.lsn for one in log.rows() for row in one.rows][-1] == position.lsn(1)
    assert log.status()["state"] == "failed"
    with pytest.raises(WriterPoisoned):
        list(log.rows(follow=True))
    log.close()
    assert log.is_closed


def test_rows_that_were_acknowledged_are_read_after_a_failed_write(tmp_path: Path) -> None:
    """They stand in layers, and the state can take them though the log takes nothing more."""
    log, disk = failing_store(tmp_path / "store")
    for number in range(200):
        log.replace("kv", (2000 + number, "y"))
    disk.fault = Fault(1, {"sync"}, errno.EIO, lasts=True)
    with pytest.raises(WriterPoisoned):
        log.replace("kv", (1, "refused"))
    assert log.count("kv") == 210
    assert log.get("kv", 1) == (1, "x")
    log._committer.layers.apply()
    assert log.count("kv") == 210
    log.close()


def test_who_follows_is_told_when_the_log_fails(tmp_path: Path) -> None:
    """One who waits for more rows gets the error instead of waiting for ever."""
    log, disk = failing_store(tmp_path / "store")
    found: list[BaseException] = []
    reached = threading.Event()

    def follow() -> None:
        try:
            for _ in log.rows(log.vclock.without_local(), follow=True):
                reached.set()
        except WriterPoisoned as error:
            found.append(error)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    while not reached.is_set():
        log.replace("kv", (1, "again"))
        reached.wait(0.01)
    disk.fault = Fault(1, {"sync"}, errno.EIO, lasts=True)
    with pytest.raises(WriterPoisoned):
        log.insert("kv", (10, "refused"))
    reader.join(60)
    assert len(found) == 1
    log.close()


def test_a_failed_sync_in_the_background_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With durability "write" nobody waits for it: `status` and `close` say that it failed."""
    monkeypatch.setattr("logweir.store.commit.committer.SYNC_ASIDE_BYTES", 1)
    log, disk = failing_store(tmp_path / "store", durability="write")
    log._committer._background_sync.close()
    log._committer.writer.sync()
    disk.fault = Fault(1, {"sync"}, errno.EIO)
    log.insert("kv", (100, "written"))
    until(lambda: log.failure is not None)
    status = log.status()
    assert status["state"] == "failed"
    assert "Input/output error" in status["error"]
    with pytest.raises(WriterPoisoned):
        log.insert("kv", (200, "refused"))
    with pytest.raises(WriterPoisoned, match="Input/output error"):
        log.close()
    assert log.is_closed
    log.close()
    with logweir.open(tmp_path / "store") as log:
        assert log.count("kv") >= 10


def test_what_is_asked_for_while_a_call_runs_is_done_after_it() -> None:
    """A background sync that began before the newest write does not cover it."""
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)
    calls: list[int] = []

    def call() -> None:
        began.release()
        assert go_on.acquire(timeout=60)
        calls.append(len(calls))

    background = BackgroundSync(call)
    background.ask()
    assert began.acquire(timeout=60)
    for _ in range(3):
        background.ask()  # once more, however often
    go_on.release()
    assert began.acquire(timeout=60)
    go_on.release()
    background.close()
    assert calls == [0, 1]


def test_a_failed_sync_of_many_rows_is_not_acknowledged(tmp_path: Path) -> None:
    """None of them is seen, and the position stays."""
    log, disk = failing_store(tmp_path / "store")
    before = log.vclock
    disk.fault = Fault(1, {"sync"}, errno.EIO)
    with pytest.raises(WriterPoisoned):
        log.append("kv", [(number, "x") for number in range(100, 2100)])
    assert log.vclock == before
    assert log.count("kv") == 10
    log.close()


def fail_as_lmdb_does() -> None:
    raise base.DiskError("mdb_txn_commit: Input/output error")


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_a_change_that_only_the_log_has_is_said_to_be_made(durability: str, tmp_path: Path) -> None:
    """`StateFailed`: the change is made, and there after opening again; later ones are not."""
    folder = tmp_path / "store"
    log, _ = failing_store(folder, durability=durability)
    failpoint.arm("store.after_sync_before_publish", fail_as_lmdb_does)
    with pytest.raises(StateFailed, match="in the log") as caught:
        log.insert("kv", (10, "made"))
    failpoint.disarm()
    assert "open the folder again" in caught.value.hint
    assert isinstance(caught.value.__cause__, base.Error)
    for _ in range(2):
        with pytest.raises(LogStopped):
            log.insert("kv", (11, "not made"))
        with pytest.raises(LogStopped), log.transaction() as tx:
            tx.insert("kv", (12, "not made"))
    assert log.get("kv", 10) is None
    assert log.get("kv", 9) == (9, "x")
    log.close()
    with logweir.open(folder) as log:
        assert [row[0] for row in log.select("kv")] == list(range(11))


def test_no_read_passes_over_rows_that_the_state_did_not_take(tmp_path: Path) -> None:
    """What was acknowledged ahead of the state stands in layers, and after opening again in the
    state."""
    log, _ = failing_store(tmp_path / "store")
    log.insert("kv", (10, "made"))
    failpoint.arm("store.before_apply_commit", fail_as_lmdb_does)
    try:
        for _ in range(2):
            with pytest.raises(LogStopped, match="before log and state were alike"):
                log.inner.change_base(lambda txn: None)
            assert log.get("kv", 10) == (10, "made")
            assert log.count("kv") == 11
        with pytest.raises(LogStopped):
            log.insert("kv", (11, "not made"))
    finally:
        failpoint.disarm()
    log.close()
    with logweir.open(tmp_path / "store") as log:
        assert [row[0] for row in log.select("kv")] == list(range(11))


def test_nothing_is_said_to_be_made_where_nothing_is_logged(tmp_path: Path) -> None:
    """With durability "none" a change that the state could not take is not made."""
    log, _ = failing_store(tmp_path / "store", durability="none")
    log.snapshot()
    failpoint.arm("store.after_sync_before_publish", fail_as_lmdb_does)
    try:
        with pytest.raises(LogStopped):
            log.insert("kv", (10, "not made"))
    finally:
        failpoint.disarm()
    with pytest.raises(LogStopped):  # what came behind the snapshot could not be saved
        log.close()
    with logweir.open(tmp_path / "store") as log:
        assert log.count("kv") == 10


def test_an_error_of_lmdb_in_a_statement_is_one_of_ours(tmp_path: Path) -> None:
    """Single changes, transactions and views: `base.Error` does not come out."""
    log, _ = failing_store(tmp_path / "store")

    def apply(group: object) -> None:
        raise base.CorruptedError("mdb_put: page is corrupt")

    with pytest.raises(logweir.WalError, match="the state failed"):
        log.inner.run_job(Job(apply))
    with pytest.raises(logweir.WalError, match="the state failed"), log.read_view():
        raise base.CorruptedError("mdb_get: page is corrupt")
    with pytest.raises(logweir.WalError, match="the state failed"), log.transaction() as tx:
        tx._define(lambda engine: apply(None))  # type: ignore[arg-type, return-value, func-returns-value]
    assert log.get("kv", 9) == (9, "x")
    log.insert("kv", (10, "after it"))
    log.close()
