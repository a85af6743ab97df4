"""Files that somebody reads, copies or restores from are not collected under them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import logweir
from logweir import pipeline
from logweir.errors import CorruptBlock, PositionUnavailable, WalError
from logweir.pipeline.frames import scan_options
from logweir.pipeline.plan import plan
from logweir.recovery import repair, restore
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store.recover import checkpoint
from logweir.store.recover.compare import compare_states
from logweir.tools.cli.main import app
from logweir.wal import failpoint
from logweir.wal.filesystem import OS, OsFileSystem, ReadFile
from logweir.wal.follow import Follower
from logweir.wal.lease import LOCK_NAME, Lease, holders, is_leased, leased, unleased
from logweir.wal.vclock import VClock

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="leases are open file description locks of Linux"
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store that keeps one snapshot, with five rows and a snapshot."""
    with logweir.open(tmp_path / "store", checkpoint_count=1, checkpoint_interval=0) as opened:
        opened.create_space("t", format=[("id", "unsigned")])
        move_on(opened, 5)
        yield opened


def move_on(log: logweir.Log, count: int = 1) -> None:
    """Rows, each with a snapshot behind it."""
    for _ in range(count):
        log.insert("t", (log.vclock.signature,))
        log.snapshot()


def names(folder: Path) -> set[str]:
    """The logs and snapshots of a folder."""
    return {path.name for path in folder.iterdir() if path.suffix in (".xlog", ".snap")}


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds all files of a folder, without a right to write there."""
    code = (
        "import sys, pathlib; from logweir.wal.lease import leased\n"
        "with leased(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


# --- the locks ------------------------------------------------------------------------------------


def test_lease_holds_its_range_and_no_more(tmp_path: Path) -> None:
    """Moving it on frees what lies behind, never what stays held."""
    (tmp_path / LOCK_NAME).touch()
    with Lease(tmp_path) as lease:
        lease.hold(10, 20)
        assert [is_leased(tmp_path, n, n) for n in (9, 10, 20, 21)] == [False, True, True, False]
        lease.hold(15)
        assert [is_leased(tmp_path, n, n) for n in (14, 15, 2**62)] == [False, True, True]
        with unleased(tmp_path, 14) as free, unleased(tmp_path, 15) as held:
            assert (free, held) == (True, False)
        assert holders(tmp_path) == {os.getpid(): 15}
    assert not is_leased(tmp_path, 0)
    assert holders(tmp_path) == {}


def test_what_giving_a_lease_back_says_stops_nobody(log: logweir.Log) -> None:
    """Its descriptor is gone already, which the system tells as it tells of a disk that fails."""
    with leased(log.path), Lease(log.path) as lease:
        lease.hold(0)
        os.close(lease._fd)
    assert not is_leased(log.path, 0)


def test_folder_without_a_lock_file_has_no_leases(tmp_path: Path) -> None:
    """Nobody has written there, so nobody collects; reading it makes no file."""
    with leased(tmp_path):
        assert not is_leased(tmp_path, 0)
    with unleased(tmp_path, 3) as free:
        assert free
    assert list(tmp_path.iterdir()) == []


# --- what is kept ---------------------------------------------------------------------------------


def test_files_of_a_backup_stay_though_the_log_ends_at_the_snapshot(log: logweir.Log) -> None:
    """All that were named can be copied to the end, and make a store."""
    with log.backup() as files:
        move_on(log, 4)
        log.inner.collect()
        copy = log.path.with_name("copy")
        copy.mkdir()
        for file in files:
            shutil.copy(file, copy)
    log.inner.collect()
    assert not any(file.exists() for file in files)
    with logweir.open(copy) as copied:
        assert copied.count("t") == 5


def test_open_iterator_keeps_what_it_has_not_read(log: logweir.Log) -> None:
    """It gets every row, however often it is collected meanwhile; then all goes."""
    log.insert("t", (1000,))
    rows = log.rows()
    assert next(rows).rows[0].lsn == 8
    move_on(log, 4)
    assert log.status()["leases"] == {str(os.getpid()): 7}
    assert sum(len(one.rows) for one in rows) == 5
    log.inner.collect()
    assert log.status()["leases"] == {}
    assert log.status()["log_files"] == 1


def test_files_that_another_process_reads_stay_until_it_ends(log: logweir.Log) -> None:
    """`status` names it; a kill frees them at once."""
    before = names(log.path)
    with reader(log.path) as process:
        move_on(log, 3)
        assert before <= names(log.path)
        assert log.status()["leases"] == {str(process.pid): 0}
        process.send_signal(signal.SIGKILL)
        process.wait()
        removed = {path.name for path in log.inner.collect()}
    assert before <= removed
    assert log.status()["leases"] == {}


def test_lease_counts_no_more_after_its_time(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stops reading does not keep the log for ever."""
    before = names(log.path)
    with leased(log.path):
        move_on(log, 3)
        assert before <= names(log.path)
        monkeypatch.setattr(checkpoint, "LEASE_SECONDS", -1)
        log.inner.collect()
        assert not before & names(log.path)


def test_no_log_goes_before_an_older_one_that_is_held(log: logweir.Log) -> None:
    """A gap in between would stop every later opening."""
    log.insert("t", (1000,))
    oldest = int(min(log.path.glob("*.xlog")).stem)
    with Lease(log.path) as lease:
        lease.hold(oldest, oldest)
        move_on(log, 4)
        logs = sorted(int(path.stem) for path in log.path.glob("*.xlog"))
        assert logs[0] == oldest
        assert len(logs) > 4
    assert [path.suffix for path in log.inner.collect()].count(".xlog") >= 4


def test_reader_whose_log_is_collected_is_told_the_oldest_position(log: logweir.Log) -> None:
    """Not that a row is missing: that the place is no longer there."""
    log.insert("t", (1000,))
    with Follower(log.path, log.oldest_position) as follower:  # as one without a lease
        assert len(list(follower.poll())) == 2
        move_on(log, 4)
        with pytest.raises(PositionUnavailable) as caught:
            list(follower.poll())
    assert caught.value.oldest == log.oldest_position


def test_file_that_is_taken_just_before_its_removal_stays(log: logweir.Log) -> None:
    """And no log behind it goes; a lease may come at any moment."""
    log.insert("t", (1000,))
    oldest = int(min(log.path.glob("*.xlog")).stem)
    with Lease(log.path) as lease:
        failpoint.arm("checkpoint.before_remove", lambda: lease.hold(oldest, oldest))
        try:
            move_on(log, 3)
        finally:
            failpoint.disarm()
        logs = sorted(int(path.stem) for path in log.path.glob("*.xlog"))
        assert logs[0] == oldest
        assert len(logs) > 3
    assert [path.suffix for path in log.inner.collect()].count(".xlog") >= 3


class Overtaken(OsFileSystem):
    """A disk on which the store moves on just behind the first look at its folder."""

    def __init__(self, log: logweir.Log) -> None:
        self.log = log
        self.is_over = False

    def list_directory(self, path: Path) -> list[str]:
        """What was there before."""
        found = super().list_directory(path)
        if not self.is_over:
            self.is_over = True
            move_on(self.log, 3)
        return found


def test_nothing_goes_between_the_look_at_a_folder_and_the_opening(log: logweir.Log) -> None:
    """Who follows from the oldest position finds its log there."""
    log.insert("t", (1000,))
    disk, start = Overtaken(log), log.oldest_position
    with Follower(log.path, start, filesystem=disk, lease=Lease(log.path)) as follower:
        assert sum(len(block.columns) for block in follower.poll()) == 5
    assert disk.is_over
    log.inner.collect()
    assert log.oldest_position.signature > start.signature


def run_command(*words: str | Path) -> int:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout.count("\n")


READERS: dict[str, Callable[[Path, Path], int]] = {
    "read": lambda folder, _: sum(1 for _ in logweir.read(folder)),
    "batches": lambda folder, _: sum(one.num_rows for one in pipeline.batches(folder)),
    "plan": lambda folder, _: len(plan(scan_options(folder)).sources),
    "diff": lambda folder, scratch: len(list(compare_states(folder, folder, scratch))),
    "cat": lambda folder, _: run_command("cat", folder),
    "verify": lambda folder, _: run_command("verify", folder),
    "info": lambda folder, _: run_command("info", folder),
    "restore": lambda folder, scratch: len(restore(folder, scratch / "new").files),
}


@pytest.mark.parametrize("name", READERS)
def test_nothing_goes_under_who_reads_a_folder(
    name: str, log: logweir.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever it is: the store moves on at each file that is opened, and each is there and told of
    as if it had not."""
    with leased(log.path):
        move_on(log, 3)
    (tmp_path / "quiet").mkdir()
    found = READERS[name](log.path, tmp_path / "quiet")
    before, seen = names(log.path), set[str]()
    open_read, is_moving = OsFileSystem.open_read, False

    def open_and_move_on(disk: OsFileSystem, path: Path) -> ReadFile:
        nonlocal is_moving
        if not is_moving and path.parent == log.path and path.name in before - seen:
            seen.add(path.name)
            is_moving = True
            move_on(log)
            is_moving = False
        return open_read(disk, path)

    monkeypatch.setattr(OsFileSystem, "open_read", open_and_move_on)
    assert READERS[name](log.path, tmp_path) >= found
    assert len(seen) > 4
    log.inner.collect()
    assert not before & names(log.path)


# --- where there is no lease ----------------------------------------------------------------------


class Collecting(OsFileSystem):
    """A disk on which the store moves on at the first look into its newest log, as a store whose
    lock file this reader may not open does."""

    def __init__(self, log: logweir.Log, times: int) -> None:
        self.log = log
        self.times = times
        self.opened = 0

    def open_read(self, path: Path) -> ReadFile:
        """As ever, but that a snapshot may be gone by now."""
        if path.suffix == ".snap" and path.parent == self.log.path:
            self.opened += 1
            if self.times and self.opened % 3 == 0:  # header, rows, and then the copy
                self.times -= 1
                move_on(self.log, 2)
        return super().open_read(path)


@pytest.fixture
def unleasable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that keeps no locks."""
    monkeypatch.setattr("logweir.wal.lease._SET", None)


@pytest.mark.usefixtures("unleasable")
def test_restore_begins_again_where_its_files_go(log: logweir.Log, tmp_path: Path) -> None:
    """The newer snapshot does as well, and nothing of the first attempt is left."""
    disk = Collecting(log, 2)
    done = restore(log.path, tmp_path / "new", filesystem=disk)
    assert disk.times == 0
    assert done.vclock == log.vclock
    with logweir.open(tmp_path / "new") as restored:
        assert restored.count("t") == log.count("t")


@pytest.mark.usefixtures("unleasable")
def test_diff_begins_again_where_its_files_go(log: logweir.Log, tmp_path: Path) -> None:
    """No difference to itself is made up by it, and no file is missed."""
    with log.backup() as files:
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in files:
            shutil.copy(file, copy)
    (tmp_path / "scratch").mkdir()
    disk = Collecting(log, 1)
    found = list(compare_states(copy, log.path, tmp_path / "scratch", filesystem=disk))
    assert disk.times == 0
    assert [one.kind for one in found] == ["added"] * 2


def test_restore_of_a_live_folder_gets_through(log: logweir.Log, tmp_path: Path) -> None:
    """With leases the first attempt does, however often the store moves on."""
    disk = Collecting(log, 100)
    restore(log.path, tmp_path / "new", filesystem=disk)
    assert disk.times < 100


@pytest.mark.parametrize("work", [restore, repair])
def test_target_that_could_not_be_finished_is_empty_again(
    work: object, log: logweir.Log, tmp_path: Path
) -> None:
    """Whichever call to the disk fails, a second run into the same folder succeeds."""
    assert callable(work)
    for at in range(1, 200):
        target = tmp_path / f"new-{at}"
        disk = FaultyFileSystem(OS, Fault(at, {"create", "write", "sync", "rename"}))
        with contextlib.suppress(WalError):
            work(log.path, target, filesystem=disk)
            if not disk.failed:
                break
            continue  # only the end mark was hit
        assert not target.exists() or list(target.iterdir()) == []
        work(log.path, target)
    else:
        pytest.fail("it never got through")


# --- a file that is cut while it is read ----------------------------------------------------------


def test_reader_goes_on_where_a_torn_end_is_cut_off_meanwhile(tmp_path: Path) -> None:
    """Opening a folder does that; the rows before it and those behind it are read."""
    with logweir.open(tmp_path, checkpoint_interval=0) as log:
        log.create_space("t", format=[("id", "unsigned"), ("v", "string")])
        for number in range(40):
            log.insert("t", (number, os.urandom(2000).hex()))
    (path,) = tmp_path.glob("*.xlog")
    with path.open("ab") as file:
        file.truncate(path.stat().st_size - 4)
        file.write(bytes.fromhex("d5ba0bab") + b"\xce\x7f\xff\xff\xff" + bytes(3_000_000))
    found = []
    for row in logweir.read(path):
        if not found:
            with logweir.open(tmp_path, checkpoint_interval=0) as log:
                log.insert("t", (1000, "after"))
        found.append(row.lsn)
    assert found[:43] == list(range(1, 44))
    assert len(found) in (43, 44)


def test_file_that_is_cut_into_what_was_read_is_still_an_error(tmp_path: Path) -> None:
    """Whole rows went away: that is no opening's doing."""
    with logweir.open(tmp_path, checkpoint_interval=0) as log:
        log.create_space("t", format=[("id", "unsigned"), ("v", "string")])
        for number in range(40):
            log.insert("t", (number, os.urandom(200_000).hex()))
    (path,) = tmp_path.glob("*.xlog")
    rows = logweir.read(path)
    for _ in range(20):
        next(rows)
    os.truncate(path, 200_000)
    with pytest.raises((WalError, CorruptBlock), match="became shorter"):
        list(rows)


def test_position_in_the_middle_is_read_from_its_own_log(log: logweir.Log) -> None:
    """A start inside the oldest log is there; one before it is refused with where that begins."""
    log.insert("t", (1000,))
    log.insert("t", (1001,))
    oldest = log.oldest_position
    assert len(list(log.rows(oldest))) == 3
    assert len(list(log.rows(VClock({1: oldest.lsn(1) + 1})))) == 2
    with pytest.raises(PositionUnavailable) as caught:
        list(log.rows(VClock({1: oldest.lsn(1) - 1})))
    assert caught.value.oldest == oldest
