"""A state is used where it belongs to the log beside it, else rebuilt, and that is said."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import RecoveryRefused, WalError
from logweir.recovery.restore import restore
from logweir.store.log import Durability, Log
from logweir.store.state import epoch
from logweir.testing import CrashStore
from logweir.wal.filesystem import OsFileSystem, ReadFile
from logweir.wal.vclock import VClock

Reasons = Callable[[], list[str]]


@pytest.fixture
def rebuilt(caplog: pytest.LogCaptureFixture) -> Reasons:
    """The reasons why states were rebuilt since it was last called."""
    caplog.set_level("WARNING", logger="logweir.store")

    def reasons() -> list[str]:
        found = [one.getMessage() for one in caplog.records if "state.rebuilt" in one.getMessage()]
        caplog.clear()
        return found

    return reasons


def filled(folder: Path, first: int, count: int = 20, **options: Any) -> Log:
    """A store with rows from `first` on, open."""
    log = logweir.open(folder, **options)
    log.create_space("t", format=[("id", "unsigned")])
    for i in range(first, first + count):
        log.insert("t", (i,))
    return log


def ids(log: Log) -> list[Any]:
    return [row[0] for row in log.select("t")]


def test_state_of_another_store_is_not_served(tmp_path: Path, rebuilt: Reasons) -> None:
    """The instance in it is not that of the folder."""
    filled(tmp_path / "a", 1000).close()
    filled(tmp_path / "b", 2000).close()
    shutil.rmtree(tmp_path / "a" / "state")
    shutil.copytree(tmp_path / "b" / "state", tmp_path / "a" / "state")
    for line in ("it is of instance", None):
        with logweir.open(tmp_path / "a") as log:
            assert ids(log) == list(range(1000, 1020))
        said = rebuilt()
        assert len(said) == (line is not None)
        assert line is None or line in said[0]


def put_over(folder: Path, restored: Path) -> None:
    """Copy the logs and snapshots of one folder over those of another, whose state stays."""
    for old in [*folder.glob("*.xlog"), *folder.glob("*.snap")]:
        old.unlink()
    for new in [*restored.glob("*.xlog"), *restored.glob("*.snap")]:
        shutil.copy(new, folder)


@pytest.mark.parametrize("is_killed", [False, True])
def test_restored_folder_put_over_the_old_one_is_what_counts(
    is_killed: bool, tmp_path: Path, rebuilt: Reasons
) -> None:
    """Same instance, same lsns, other rows: the two histories are not mixed."""
    old, new = tmp_path / "old", tmp_path / "new"
    log = filled(old, 0)
    take(log)
    log.inner.abandon() if is_killed else log.close()
    restore(old, new, at=VClock({1: 10}))
    with logweir.open(new) as log:
        for i in range(100, 130):
            log.insert("t", (i,))
    put_over(old, new)
    with logweir.open(old) as log:
        assert ids(log) == [*range(7), *range(100, 130)]
        log.insert("t", (1000,))
    assert len(rebuilt()) == 1
    with logweir.open(old) as log:
        assert ids(log) == [*range(7), *range(100, 130), 1000]
    assert rebuilt() == []


def test_restored_folder_without_the_log_of_the_state_is_what_counts(
    tmp_path: Path, rebuilt: Reasons
) -> None:
    """The file in which the state's last block stood is gone, and other rows reach as far."""
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, 0, 60, wal_max_size=2048).close()
    restore(old, new, at=VClock({1: 10}))
    with logweir.open(new) as log:
        for i in range(100, 200):
            log.insert("t", (i,))
    put_over(old, new)
    with logweir.open(old) as log:
        assert ids(log) == [*range(7), *range(100, 200)]
    (reason,) = rebuilt()
    assert "the block that it applied last is not at" in reason


def test_older_copy_put_over_is_refused_until_the_state_is_removed(tmp_path: Path) -> None:
    """Nothing tells it from a log that lost its newest rows: the end mark and the state both say
    what was there; each may be removed by who knows better."""
    folder = tmp_path / "folder"
    filled(folder, 0, 5).close()
    shutil.copytree(folder, tmp_path / "copy")
    with logweir.open(folder, wal_max_size=2048) as log:
        for i in range(100, 200):
            log.insert("t", (i,))
    put_over(folder, tmp_path / "copy")
    with pytest.raises(RecoveryRefused, match="newest rows are gone") as caught:
        logweir.open(folder)
    assert "logweir.end" in caught.value.hint
    (folder / "logweir.end").unlink()
    with pytest.raises(RecoveryRefused, match="newest rows are gone") as caught:
        logweir.open(folder)
    assert "remove the folder `state`" in caught.value.hint
    shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        assert ids(log) == list(range(5))


def test_lsns_that_only_the_state_knows_are_not_given_again(tmp_path: Path) -> None:
    """The newest log is gone, its mark too, and the rows are given up: somebody may have them."""
    log = filled(tmp_path, 0, 100, wal_max_size=2048)
    reached = log.vclock.lsn(1)
    log.close()
    max(tmp_path.glob("*.xlog")).unlink()
    (tmp_path / "logweir.end").unlink()
    with logweir.open(tmp_path, force_recovery=True) as log:
        assert len(ids(log)) < 100
        log.insert("t", (1000,))
        assert log.vclock.lsn(1) == reached + 1


def test_all_logs_gone_is_no_fresh_folder(tmp_path: Path, rebuilt: Reasons) -> None:
    """A new store is not begun beside a state that says what was there."""
    filled(tmp_path, 0).close()
    for file in [*tmp_path.glob("*.xlog"), *tmp_path.glob("*.snap")]:
        file.unlink()
    with pytest.raises(RecoveryRefused, match="is not opened"):
        logweir.open(tmp_path)
    (tmp_path / "logweir.end").unlink()
    with pytest.raises(RecoveryRefused, match="newest rows are gone"):
        logweir.open(tmp_path)
    with logweir.open(tmp_path, force_recovery=True) as log:
        assert [space.name for space in log.spaces()] == []
    assert len(rebuilt()) == 1


def test_state_of_the_format_before_is_rebuilt_once(tmp_path: Path, rebuilt: Reasons) -> None:
    """A folder that an older version closed in order."""
    filled(tmp_path, 0).close()
    found = json.loads((tmp_path / "state" / "epoch").read_bytes())
    before = {"format": "2/" + found["format"][2:], "boot": found["boot"], "clean": True}
    (tmp_path / "state" / "epoch").write_text(json.dumps(before))
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
    (said,) = rebuilt()
    assert "its format is 2/" in said
    logweir.open(tmp_path).close()
    assert rebuilt() == []


def take(log: Log) -> None:
    """Have the state take what stands in layers."""
    log.inner.change_base(lambda txn: None)


ACTIONS: dict[str, Callable[[Log], Any]] = {
    "nothing": lambda log: None,
    "one row": lambda log: log.insert("t", (60,)),
    "bulk": lambda log: log.append("t", ((i,) for i in range(300, 3000))),
    "definitions": lambda log: log.create_index("t", "second", ["id"]),
    "snapshot": lambda log: log.snapshot(),
    "snapshot and a row": lambda log: (log.snapshot(), log.insert("t", (60,))),
    "rotations": lambda log: [log.insert("t", (i,)) for i in range(300, 400)],
    "snapshots and rotations": lambda log: [
        (log.insert("t", (i,)), log.snapshot() if i % 30 == 0 else None) for i in range(300, 391)
    ],
    "transaction of many blocks": lambda log: log.append(
        "t", ((i,) for i in range(1000, 40_000)), one_transaction=True
    ),
}


@pytest.mark.parametrize("durability", ["fsync", "write", "none"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_state_of_this_very_log_is_used(
    action: str, is_killed: bool, durability: Durability, tmp_path: Path, rebuilt: Reasons
) -> None:
    """Also with no log behind the snapshot, and with the log of its position collected."""
    log = filled(tmp_path, 0, 5, durability=durability, wal_max_size=2048, checkpoint_count=1)
    ACTIONS[action](log)
    wanted, vclock = ids(log), log.vclock
    if durability == "none":
        take(log)  # what the state has not taken is nowhere else
    log.inner.abandon() if is_killed else log.close()
    for _ in range(3):
        log = logweir.open(tmp_path, durability, wal_max_size=2048)
        assert (ids(log), log.vclock) == (wanted, vclock)
        log.inner.abandon() if is_killed else log.close()
    assert rebuilt() == []
    shutil.rmtree(tmp_path / "state")
    if durability != "none" or not is_killed:
        with logweir.open(tmp_path) as log:
            assert (ids(log), log.vclock) == (wanted, vclock)


def epoch_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "state" / "epoch").read_bytes())
    return found


class Refusing(OsFileSystem):
    """A disk that refuses to sync, list or read what has a name, where there is a `number` of an
    error."""

    def __init__(self, number: int, name: str, call: str) -> None:
        self.number, self.name, self.call = number, name, call

    def _refuse(self, call: str, path: Path) -> None:
        if self.number and (path.name, call) == (self.name, self.call):
            raise OSError(self.number, os.strerror(self.number), str(path))

    def sync_directory(self, path: Path) -> None:
        self._refuse("sync", path)
        super().sync_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        self._refuse("list", path)
        return super().list_directory(path)

    def open_read(self, path: Path) -> ReadFile:
        self._refuse("read", path)
        return super().open_read(path)


@pytest.mark.parametrize(
    ("number", "name", "call"),
    [
        (errno.ENOSPC, "state", "sync"),
        (errno.EMFILE, "state", "sync"),
        (errno.EACCES, "state", "sync"),
        (errno.EMFILE, "state", "list"),
        (errno.EMFILE, "epoch", "read"),
        (errno.EACCES, "epoch", "read"),
    ],
)
def test_a_state_stays_where_the_system_refuses_to_open_it(
    number: int, name: str, call: str, tmp_path: Path, rebuilt: Reasons
) -> None:
    """What it says is about the disk, or this process: the state may be the only one that knows
    that the newest rows are gone, and takes long to make anew."""
    log = filled(tmp_path, 0, durability="none")
    take(log)
    log.inner.abandon()
    disk = Refusing(number, name, call)
    with pytest.raises(WalError, match=os.strerror(number).lower()):
        logweir.open(tmp_path, filesystem=disk)
    disk.number = 0
    with logweir.open(tmp_path, filesystem=disk) as log:
        assert ids(log) == list(range(20))
    assert rebuilt() == []


def test_a_state_stays_where_the_boot_cannot_be_asked_for(
    tmp_path: Path, rebuilt: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file can be opened: that is no other start of the machine."""
    log = filled(tmp_path, 0, durability="none")
    take(log)
    log.inner.abandon()
    read = Path.read_text

    def refused(path: Path, *options: Any) -> str:
        if path.name == "boot_id":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(path, *options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        with pytest.raises(WalError, match="too many open files"):
            logweir.open(tmp_path)
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
    assert rebuilt() == []


def test_a_changed_state_has_no_mark_of_an_orderly_close(
    tmp_path: Path, rebuilt: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it may hold anything, so it must not say that it is whole."""
    filled(tmp_path, 0).close()
    assert epoch_of(tmp_path)["clean"] is True
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
        assert epoch_of(tmp_path)["clean"] is True  # reading changes nothing
    log = logweir.open(tmp_path)
    log.insert("t", (20,))
    take(log)
    assert epoch_of(tmp_path)["clean"] is False
    assert "seal" not in epoch_of(tmp_path)
    log.inner.abandon()
    assert rebuilt() == []
    monkeypatch.setattr(OsFileSystem, "boot_id", lambda disk: "the machine was started again")
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(21))
    (said,) = rebuilt()
    assert "before the machine was started again" in said


def test_a_simulated_machine_is_started_again_behind_a_power_cut_alone(
    tmp_path: Path, rebuilt: Reasons
) -> None:
    """A kill leaves what the state had, a power cut nothing that was not synced."""
    with CrashStore(tmp_path) as store:
        with store.open() as log:
            log.create_space("t", [("id", "unsigned")])
            log.append("t", [(number,) for number in range(20)])
        log = store.open(durability="write")
        log.insert("t", (20,))
        take(log)
        store.kill()
        log = store.open(durability="write")
        assert ids(log) == list(range(21))
        log.insert("t", (21,))
        take(log)
        assert rebuilt() == []
        store.power_cut(seed=0)
        with store.open() as log:
            assert ids(log) == list(range(21))  # the last one was not synced, and is lost
        (said,) = rebuilt()
        assert "before the machine was started again" in said


def test_the_mark_is_gone_before_the_first_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is there only when LMDB's file is on stable storage: each sync is watched."""
    filled(tmp_path, 0).close()
    data = tmp_path / "state" / "data.mdb"
    seen: list[tuple[str, bool, bytes]] = []
    sync = os.fsync

    def watched(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        seen.append((name, epoch_of(tmp_path)["clean"], data.read_bytes()))
        sync(fd)

    before = data.read_bytes()
    log = logweir.open(tmp_path)
    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr("logweir.wal.filesystem._sync_data", watched)
    log.insert("t", (20,))
    take(log)
    watched_names = ("data.mdb", "epoch.new", "state")
    breaking = [one[:2] for one in seen if one[2] == before and one[0] in watched_names]
    assert breaking[-2:] == [("epoch.new", True), ("state", False)]
    seen.clear()
    log.close()
    closing = [one for one in seen if one[0] in watched_names][-3:]
    assert [one[:2] for one in closing] == [
        ("data.mdb", False),
        ("epoch.new", False),
        ("state", True),
    ]
    assert closing[0][2] == data.read_bytes()  # nothing was written to it after its sync


def rot(folder: Path, data: bytes) -> None:
    """Have other bytes in the file, to which nobody has written as far as is known."""
    (folder / "state" / "data.mdb").write_bytes(data)
    noted = epoch_of(folder)
    known = (folder / "state" / "data.mdb").stat()
    noted["seal"]["file"] = [known.st_ino, known.st_mtime_ns, known.st_ctime_ns]
    (folder / "state" / "epoch").write_text(json.dumps(noted))


def test_pages_of_a_large_state_are_looked_at_before_it_is_read(
    tmp_path: Path, rebuilt: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it was closed in order and nobody wrote to it: LMDB would end the process."""
    filled(tmp_path, 0).close()
    monkeypatch.setattr(epoch, "STATE_CHECK_BYTES", 0)
    data = (tmp_path / "state" / "data.mdb").read_bytes()
    rot(tmp_path, data[:8192] + bytes(len(data) - 8192))
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
    (said,) = rebuilt()
    assert "data.mdb is damaged: page" in said


def test_late_damage_of_a_large_state_refuses_what_comes(
    tmp_path: Path, rebuilt: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that nobody wrote to is read at once; changes wait until it is compared."""
    filled(tmp_path, 0).close()
    monkeypatch.setattr(epoch, "STATE_CHECK_BYTES", 0)
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
        log.insert("t", (20,))
    assert rebuilt() == []
    data = bytearray((tmp_path / "state" / "data.mdb").read_bytes())
    data[2000] ^= 1  # behind what a meta page holds: no page is wrong
    rot(tmp_path, data)
    opened, compared = threading.Event(), epoch._checksum

    def compare(path: Path, stop: threading.Event | None = None) -> int:
        assert opened.wait(30)
        return compared(path, stop)

    monkeypatch.setattr(epoch, "_checksum", compare)
    log = logweir.open(tmp_path)
    assert len(log.select("t")) == 21  # which may be wrong
    opened.set()
    with pytest.raises(WalError, match="the state was damaged on the disk"):
        log.insert("t", (21,))
    with pytest.raises(WalError, match="the state was damaged on the disk"):
        log.select("t")
    log.close()
    assert rebuilt() == []
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(21))
    (said,) = rebuilt()
    assert "its checksum differs" in said


def test_a_large_state_that_somebody_wrote_to_is_compared_first(
    tmp_path: Path, rebuilt: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied or changed may be anything."""
    filled(tmp_path, 0).close()
    monkeypatch.setattr(epoch, "STATE_CHECK_BYTES", 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copied")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "copied").rename(tmp_path / "state")
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
    assert rebuilt() == []
    data = bytearray((tmp_path / "state" / "data.mdb").read_bytes())
    data[-1] ^= 1
    (tmp_path / "state" / "data.mdb").write_bytes(data)
    with logweir.open(tmp_path) as log:
        assert ids(log) == list(range(20))
    assert len(rebuilt()) == 1


def test_a_cut_log_of_a_killed_store_is_known_by_what_the_state_holds(tmp_path: Path) -> None:
    """Below that opening refuses, at each place; above it a cut is like a kill before the next
    write, of which no file tells: docs/recovery.md."""
    log = filled(tmp_path / "store", 0)
    log.inner.committer.layers.apply()
    applied, size = log.vclock, log.status()["log_bytes"]
    for number in range(100, 110):
        log.insert("t", (number, "later"))
    name, whole = log.status()["log_file"], log.status()["log_bytes"]
    log.inner.abandon()
    for cut in (size // 2, size - 1, size, (size + whole) // 2, whole):
        folder = tmp_path / str(cut)
        shutil.copytree(tmp_path / "store", folder)
        os.truncate(folder / name, cut)
        if cut < size:
            with pytest.raises(RecoveryRefused, match="the newest rows are gone from the log"):
                logweir.open(folder)
        else:
            with logweir.open(folder) as left:
                assert left.vclock.covers(applied)
