"""A sync that failed, then an opening that reads what it did not save, then a power cut."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from pathlib import Path

import pytest
from samples import sample

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.wal import failpoint
from logweir.wal.filesystem import make_folders

STATES = 12


class Stop(BaseException):
    """A kill."""


def failed_once(path: Path, durability: str, *, kept: bool) -> SimFileSystem:
    """A disk with a store whose third insert was not saved: its sync failed. `kept`: LMDB's file
    stays, as where the machine goes on; else the state is gone, as after a reboot."""
    disk = SimFileSystem(seed=1)
    make_folders(disk, path.parent)
    calls = FaultyFileSystem(disk)
    log = logweir.open(path, filesystem=calls, durability=durability)
    log.create_space("kv", [("id", "unsigned"), ("value", "string")])
    for key in range(2):
        log.insert("kv", (key, "saved"))
    calls.fault = Fault(1, frozenset({"sync"}), errno.EIO)
    with contextlib.suppress(LogweirError):
        log.insert("kv", (2, random.Random(1).randbytes(4000).hex()))
        log.close()
    assert calls.failed
    with contextlib.suppress(LogweirError):
        log.close()
    if not kept:
        shutil.rmtree(path / "state", ignore_errors=True)
    return disk


def rows_of(path: Path, disk: SimFileSystem) -> list[int]:
    shutil.rmtree(path / "state", ignore_errors=True)
    with logweir.open(path, filesystem=disk) as log:
        return [row[0] for row in log.select("kv")]


@pytest.mark.parametrize("kept", [True, False])
def test_what_an_opening_shows_is_stable(kept: bool, tmp_path: Path) -> None:
    """The next sync of the same bytes saves nothing of them: they have to be written again."""
    path = tmp_path / "store"
    disk = failed_once(path, "fsync", kept=kept)
    with logweir.open(path, filesystem=disk) as log:
        seen = [row[0] for row in log.select("kv")]
        log.insert("kv", (9, "behind it"))
        after = [disk.crash(seed=number) for number in range(STATES)]
    assert seen == [0, 1, 2]
    for one in after:
        assert rows_of(path, one) == [0, 1, 2, 9]


def test_an_opening_that_is_killed_leaves_it_to_the_next(tmp_path: Path) -> None:
    """The state must not hold rows of which the log has none after a power cut."""
    path = tmp_path / "store"
    disk = failed_once(path, "fsync", kept=True)

    def stop() -> None:
        failpoint.disarm()
        raise Stop

    failpoint.arm("wal.before_resync", stop)
    with pytest.raises(Stop):
        logweir.open(path, filesystem=disk)
    with logweir.open(path, filesystem=disk) as log:
        seen = [row[0] for row in log.select("kv")]
        after = [disk.crash(seed=number) for number in range(STATES)]
    for one in after:
        assert rows_of(path, one) == seen == [0, 1, 2]


def test_a_log_of_weaker_durability_becomes_stable_as_a_whole(tmp_path: Path) -> None:
    """Its header promises nothing, so nothing of it is taken for synced by who promises more."""
    path = tmp_path / "store"
    disk = failed_once(path, "write", kept=True)
    with logweir.open(path, filesystem=disk, durability="fsync") as log:
        seen = [row[0] for row in log.select("kv")]
        log.insert("kv", (9, "behind it"))
        after = [disk.crash(seed=number) for number in range(STATES)]
    assert seen[:2] == [0, 1]
    for one in after:
        assert rows_of(path, one) == [*seen, 9]


def test_the_log_of_another_program_is_synced_before_one_behind_it(tmp_path: Path) -> None:
    """A Tarantool that was killed need not have synced what it acknowledged."""
    source = sample("04-crashed").folder
    path = tmp_path / "store"
    disk = SimFileSystem(seed=1)
    make_folders(disk, path)
    for file in sorted(source.iterdir()):
        target = disk.create(path / file.name)
        target.write([file.read_bytes()])
        if file.suffix == ".snap":
            target.sync()
        target.close()
    disk.sync_directory(path)
    with logweir.open(path, filesystem=disk) as log:
        before = log.vclock
        log.create_space("behind", [("id", "unsigned")])
        after = [disk.crash(seed=number) for number in range(STATES)]
    for one in after:
        shutil.rmtree(path / "state", ignore_errors=True)
        with logweir.open(path, filesystem=one) as log:
            assert log.vclock.covers(before)
            assert "behind" in {space.name for space in log.schema}
