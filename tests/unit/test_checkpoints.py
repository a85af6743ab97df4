"""When snapshots are made, and what may be removed after one."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from pathlib import Path

import pytest

import logweir
from logweir.errors import (
    ConfigError,
    CorruptBlock,
    LogweirError,
    PositionUnavailable,
    RequestError,
    WriteFailed,
)
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.testing.scheduler import Scheduler
from logweir.wal import failpoint
from logweir.wal.filesystem import OsFileSystem, make_folders
from logweir.wal.snapshot import read_snapshot
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType


def names(folder: Path, suffix: str) -> list[str]:
    """The logs or snapshots of a folder."""
    return sorted(path.name for path in folder.glob(f"*.{suffix}"))


def fill(log: logweir.Log, first: int, count: int = 30) -> None:
    """Some transactions, over several files where those are small."""
    for number in range(first, first + count):
        log.insert("kv", (number, "x" * 20))


def opened(folder: Path, **options: object) -> logweir.Log:
    """A store with small files and a space."""
    log = logweir.open(folder, "write", wal_max_size=500, **options)  # type: ignore[arg-type]
    if log.schema.get("kv") is None:
        log.create_space("kv", [("id", "unsigned"), ("text", "string")])
    return log


def wait_for_checkpoint(log: logweir.Log) -> None:
    """Closing waits for a checkpoint under way."""
    log.close()


def test_as_many_snapshots_as_asked_are_kept_with_the_logs_behind_them(tmp_path: Path) -> None:
    """The oldest snapshot kept can still be followed to the end; what is older is gone."""
    with opened(tmp_path, checkpoint_count=2) as log:
        for turn in range(4):
            fill(log, 100 * turn)
            log.snapshot()
        snaps, logs = names(tmp_path, "snap"), names(tmp_path, "xlog")
        assert len(snaps) == 2
        assert logs[0] <= snaps[0].replace("snap", "xlog")
        assert log.oldest_position.signature <= int(snaps[0][:20])
        with pytest.raises(PositionUnavailable):
            list(log.rows({}))
    with opened(tmp_path) as log:
        assert log.count("kv") == 120


def test_snapshot_without_a_change_is_the_one_that_is_there(tmp_path: Path) -> None:
    """Nothing new is written for nothing."""
    with opened(tmp_path) as log:
        fill(log, 0)
        first = log.snapshot()
        assert log.snapshot() == first
        assert len(names(tmp_path, "snap")) == 2


def test_rows_of_a_snapshot_are_numbered_and_of_no_instance(tmp_path: Path) -> None:
    """As a Tarantool writes them."""
    with opened(tmp_path) as log:
        fill(log, 0)
        rows = [row for block in read_snapshot(log.snapshot()) for row in block.rows()]
    assert [row.lsn for row in rows] == list(range(len(rows)))
    assert {(row.replica_id, row.type, row.commit) for row in rows} == {(0, RowType.INSERT, True)}


def test_logs_of_local_rows_stay_until_a_snapshot_has_them(tmp_path: Path) -> None:
    """They raise no lsn but those of id 0, which followers are not told of."""
    with opened(tmp_path, checkpoint_count=1) as log:
        log.create_space("ours", [("id", "unsigned"), ("text", "string")], local=True)
        log.snapshot()
        for number in range(30):
            log.insert("ours", (number, "x" * 20))
        log.retain("follower", log.vclock.without_local())
        log.inner.collect()
        assert len(names(tmp_path, "xlog")) > 2
    shutil.rmtree(tmp_path / "state")
    with opened(tmp_path, checkpoint_count=1) as log:
        assert log.count("ours") == 30
        log.snapshot()
        assert len(names(tmp_path, "xlog")) == 1  # the newest: what it has is in the snapshot


def test_a_snapshot_that_is_damaged_takes_the_place_of_nothing(tmp_path: Path) -> None:
    """It is not the one that is there: a new one is written, and what is before that stays so long;
    nor is it what a backup has."""
    with opened(tmp_path, checkpoint_count=2) as log:
        fill(log, 0)
        path = log.snapshot()
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    shutil.rmtree(tmp_path / "state")
    with opened(tmp_path, checkpoint_count=1) as log:
        assert log.inner.collect() == []
        with log.backup() as files:
            assert files[0].name == f"{0:020d}.snap"
        assert log.snapshot() == path
        assert names(tmp_path, "snap") == [path.name]
    shutil.rmtree(tmp_path / "state")
    with opened(tmp_path) as log:
        assert log.count("kv") == 30
        assert not log.report.damage


def test_a_damaged_snapshot_goes_when_a_newer_one_is_there(tmp_path: Path) -> None:
    """As any other does."""
    with opened(tmp_path, checkpoint_count=2) as log:
        fill(log, 0)
        path = log.snapshot()
        fill(log, 100)
    path.write_bytes(path.read_bytes()[:-4])
    shutil.rmtree(tmp_path / "state")
    with opened(tmp_path, checkpoint_count=1) as log:
        log.snapshot()
        assert len(names(tmp_path, "snap")) == 1
        assert not path.exists()


def test_what_a_killed_process_did_not_finish_is_removed(tmp_path: Path) -> None:
    """Else a store that is killed in each snapshot fills its disk."""
    with opened(tmp_path) as log:
        fill(log, 0)
    left = [
        f"{number:020d}.{suffix}.inprogress" for number in (3, 99) for suffix in ("snap", "xlog")
    ]
    for name in (*left, "notes.inprogress"):
        (tmp_path / name).write_bytes(b"half")
    with opened(tmp_path) as log:
        assert log.count("kv") == 30
    assert [one.name for one in tmp_path.glob("*.inprogress")] == ["notes.inprogress"]


def test_checkpoint_is_made_after_so_many_bytes_of_log(tmp_path: Path) -> None:
    """By itself, in the background, and the log goes on meanwhile."""
    log = opened(tmp_path, checkpoint_wal_threshold=1000, checkpoint_interval=0)
    fill(log, 0, 60)
    wait_for_checkpoint(log)
    assert names(tmp_path, "snap")[-1] > "00000000000000000000.snap"


def test_checkpoint_is_made_after_so_long(tmp_path: Path) -> None:
    """The interval counts from the last one and is looked at after a commit."""
    log = opened(tmp_path, checkpoint_interval=1e-9)
    fill(log, 0, 5)
    wait_for_checkpoint(log)
    assert names(tmp_path, "snap")[-1] > "00000000000000000000.snap"
    log = opened(tmp_path, checkpoint_interval=0)
    before = names(tmp_path, "snap")
    fill(log, 100, 50)
    wait_for_checkpoint(log)
    assert names(tmp_path, "snap") == before


def test_follower_keeps_its_logs_also_over_a_restart_until_it_is_released(tmp_path: Path) -> None:
    """A registered position holds back removal; moving or releasing it lets go."""
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 0)
        position = log.vclock
        log.retain("replica", position)
        fill(log, 100)
        log.retain("quicker", log.vclock)
        log.snapshot()
        assert log.status()["oldest_log_kept_by"] == "replica"
        log.release("quicker")
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 200)
        log.snapshot()
        rows = [row for transaction in log.rows(position) for row in transaction.rows]
        assert len(rows) == 60
        kept = len(names(tmp_path, "xlog"))
        log.release("replica")
        fill(log, 300)
        log.snapshot()
        assert len(names(tmp_path, "xlog")) < kept
        with pytest.raises(PositionUnavailable):
            list(log.rows(position))


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_a_follower_has_a_name_that_can_be_shown(name: str, tmp_path: Path) -> None:
    """Neither nothing, nor lines, nor books."""
    with opened(tmp_path) as log:
        with pytest.raises(RequestError, match="cannot name a follower"):
            log.retain(name, log.vclock)
        assert log.status()["followers"] == {}


def test_no_logs_are_kept_behind_a_position_that_is_not_there(tmp_path: Path) -> None:
    """Neither one that is not reached yet, nor one whose rows are gone."""
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 0)
        with pytest.raises(PositionUnavailable):
            log.retain("ahead", {1: log.vclock[1] + 1})
        log.snapshot()
        fill(log, 100)
        log.snapshot()
        with pytest.raises(PositionUnavailable):
            log.retain("behind", {1: 1})
        assert log.status()["followers"] == {}


def test_what_is_kept_for_a_follower_is_there(tmp_path: Path) -> None:
    """Who asks while it is being removed is told that it is not."""
    for seed in range(8):
        with opened(folder := tmp_path / str(seed), checkpoint_interval=0) as log:
            fill(log, 0)
            position = log.vclock
            fill(log, 100)

        def race(folder: Path = folder, position: VClock = position) -> None:
            log = opened(folder, checkpoint_count=1, checkpoint_interval=0)
            refused: list[bool] = []

            def retain() -> None:
                with contextlib.suppress(PositionUnavailable):
                    log.retain("somebody", position)
                refused.append("somebody" not in log.status()["followers"])

            asking = threading.Thread(target=retain)

            def removing() -> None:
                failpoint.disarm()
                asking.start()

            failpoint.arm("checkpoint.before_remove", removing)
            log.snapshot()
            asking.join()
            assert refused == [True]
            with pytest.raises(PositionUnavailable):
                list(log.rows(position))
            log.close()

        Scheduler(seed, packages=("logweir", __name__.split(".")[0])).run(race)


def test_files_of_a_backup_stay_while_it_is_open(tmp_path: Path) -> None:
    """Checkpoints go on, but what the backup names is not removed before it ends."""
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 0)
        log.snapshot()
        fill(log, 100)
        with log.backup() as files:
            assert files[0].suffix == ".snap"
            for turn in range(2, 5):
                fill(log, 100 * turn)
                log.snapshot()
            assert all(path.exists() for path in files)
        fill(log, 1000)
        log.snapshot()
        assert not any(path.exists() for path in files)


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_count": 0},
        {"checkpoint_interval": -1.0},
        {"checkpoint_wal_threshold": -1},
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, float], tmp_path: Path) -> None:
    """A typed error that names the setting, before anything is written."""
    with pytest.raises(ConfigError) as caught:
        logweir.open(tmp_path / "store", **options)  # type: ignore[arg-type]
    assert caught.value.key in options
    assert not (tmp_path / "store").exists()


class Counting(OsFileSystem):
    """The disk, with a count of the looks at the folder."""

    def __init__(self) -> None:
        self.looked: list[Path] = []

    @property
    def looks(self) -> int:
        return len(self.looked)

    def list_directory(self, path: Path) -> list[str]:
        self.looked.append(path)
        return super().list_directory(path)


def test_oldest_position_is_looked_for_only_after_a_removal(tmp_path: Path) -> None:
    """A server tells it to whoever asks, as often as he likes; it is right all the same."""
    disk = Counting()
    with opened(tmp_path, checkpoint_count=1, filesystem=disk) as log:
        fill(log, 0)
        first = log.oldest_position
        fill(log, 100)
        before = disk.looks
        assert all(log.oldest_position == first for _ in range(50))
        assert disk.looks == before
        log.snapshot()
        assert log.oldest_position.signature > first.signature
        assert log.oldest_position.signature == int(names(tmp_path, "xlog")[0][:20])
        before = disk.looks
        assert log.oldest_position.covers(first)
        assert disk.looks == before


def test_oldest_position_without_a_log_is_the_newest(tmp_path: Path) -> None:
    """A fresh store, before and after its first row."""
    with logweir.open(tmp_path) as log:
        assert log.oldest_position == log.vclock
        log.create_space("kv", [("id", "unsigned"), ("text", "string")])
        assert log.oldest_position == {}
        assert log.vclock.signature > 0


def test_a_backup_without_a_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Its files would restore to a store without the rows of that log."""
    disk = FaultyFileSystem(OsFileSystem())
    with opened(tmp_path, filesystem=disk) as log:
        fill(log, 0)
        newest = names(tmp_path, "xlog")[-1]
        disk.fault = Fault(
            at=len(names(tmp_path, "xlog")) + len(names(tmp_path, "snap")), kinds={"open_read"}
        )
        with pytest.raises(CorruptBlock, match=newest), log.backup():
            pass
        with log.backup() as files:
            assert files[-1].name == newest


def damage(path: Path, at: int) -> None:
    """One wrong bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_backup_has_no_snapshot_that_went_bad(tmp_path: Path) -> None:
    """Opening with a state has not read it."""
    folder, to = tmp_path / "store", tmp_path / "copy"
    with opened(folder, checkpoint_count=2) as log:
        first = log.snapshot()
        fill(log, 0)
        newest = log.snapshot()
        fill(log, 100)
    damage(newest, -100)
    with opened(folder, checkpoint_count=2) as log:
        assert not log.report.damage
        to.mkdir()
        with log.backup() as files:
            assert files[0] == first
            for file in files:
                shutil.copy(file, to)
        assert log.snapshot() > newest
    with opened(to) as log:
        assert log.count("kv") == 60


def test_a_snapshot_that_cannot_be_opened_now_is_not_damaged(tmp_path: Path) -> None:
    """Whichever file it is that a backup lacks, the next backup has it."""
    disk = FaultyFileSystem(OsFileSystem())
    with opened(tmp_path, filesystem=disk) as log:
        fill(log, 0)
        newest = log.snapshot()
        fill(log, 100)
        for number in range(1, 1000):
            disk.failed = ""
            disk.fault = Fault(number, {"open_read"}, errno.EMFILE)
            with contextlib.suppress(LogweirError), log.backup():
                pass
            if not disk.failed:
                break
            with log.backup() as files:
                assert files[0] == newest
    assert number > 3


def test_a_snapshot_does_not_go_for_one_that_went_bad(tmp_path: Path) -> None:
    """Fewer are to be kept than were; opening with a state has not read the newest."""
    with opened(tmp_path, checkpoint_count=2) as log:
        first = log.snapshot()
        fill(log, 0)
        newest = log.snapshot()
        fill(log, 100)
    damage(newest, -100)
    with opened(tmp_path, checkpoint_count=1) as log:
        assert first not in log.inner.collect()
    shutil.rmtree(tmp_path / "state")
    with opened(tmp_path, checkpoint_count=1) as log:
        assert log.count("kv") == 60
        log.snapshot()
    assert len(names(tmp_path, "snap")) == 1


def test_a_backup_without_a_whole_snapshot_is_refused_until_there_is_one(tmp_path: Path) -> None:
    """The only one went bad; a new one takes its place though nothing was changed."""
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 0)
        path = log.snapshot()
        damage(path, -100)
        with pytest.raises(RequestError, match="no whole snapshot"), log.backup():
            pass
        assert log.snapshot() == path
        with log.backup() as files:
            assert files[0] == path


def test_a_backup_of_a_log_that_went_bad_is_refused_until_a_snapshot_is_behind_it(
    tmp_path: Path,
) -> None:
    """The state has its rows; so has the snapshot then."""
    with opened(tmp_path, checkpoint_count=1) as log:
        fill(log, 0)
        logs = names(tmp_path, "xlog")
        for name in (logs[-1], logs[1]):
            damage(tmp_path / name, -30)
            with pytest.raises(CorruptBlock, match=name) as caught, log.backup():
                pass
            assert "Log.snapshot" in str(caught.value)
        log.snapshot()
        fill(log, 100)
        with log.backup() as files:
            assert files[0].name == names(tmp_path, "snap")[-1]


def test_a_snapshot_that_is_there_already_is_durable(tmp_path: Path) -> None:
    """Who wrote it could not sync its name: who finds it does so."""
    found = 0
    for number in range(1, 1000):
        disk = SimFileSystem(seed=number)
        make_folders(disk, tmp_path)
        calls = FaultyFileSystem(disk)
        log = opened(tmp_path / str(number), filesystem=calls)
        fill(log, 0, 3)
        calls.fault = Fault(number, {"sync_directory"})
        with contextlib.suppress(LogweirError):
            log.snapshot()
        calls.fault = None
        if not calls.failed:
            log.close()
            break
        with contextlib.suppress(WriteFailed):  # where the log could not go on to another file
            path = log.snapshot()
            found += 1
            assert all(
                path.name in disk.crash(seed=seed).list_directory(path.parent) for seed in range(9)
            )
        with contextlib.suppress(LogweirError):
            log.close()
    assert found > 0
