"""A restore or repair that is broken off: nobody takes it for whole, and it can go again."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from disk.test_failpoints import forked, kill
from sim.test_failing_calls import FOLDER, prepared_disk
from sim.writing import rows_of
from support.logs import INSTANCE, SPACE_ROW, forget_end, insert, transaction, write_snapshot
from typer.testing import CliRunner

import logweir
from logweir.errors import ConfigError, CorruptFile, DirectoryLocked, RecoveryRefused, WalError
from logweir.recovery import examine, plan, repair, restore
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.recovery.faults.cuts import Recorder
from logweir.recovery.faults.faulty import WRITING
from logweir.recovery.unfinished import UNFINISHED_NAME
from logweir.tools.cli.main import app
from logweir.wal import failpoint
from logweir.wal.damage import DamageKind
from logweir.wal.filesystem import OS
from logweir.wal.lease import LOCK_NAME
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter

Copy = Callable[..., Any]
TARGET = Path("/new")
BOTH = pytest.mark.parametrize("copy", [repair, restore])


def names(disk: SimFileSystem) -> set[str]:
    try:
        return set(disk.list_directory(TARGET))
    except FileNotFoundError:
        return set()


@BOTH
def test_a_power_cut_at_any_call_leaves_what_is_begun_anew(copy: Copy) -> None:
    """What is left has its mark, or nothing, or all; the same call makes it whole."""
    disk, _ = prepared_disk()
    whole = rows_of(examine(FOLDER, filesystem=disk))
    recorder = Recorder(disk, lambda: None, each=2)
    copy(FOLDER, TARGET, filesystem=recorder)
    recorder.cut("end")
    marked = 0
    for image in recorder.images:
        left = names(image.disk)
        if UNFINISHED_NAME in left:
            marked += 1
            report = examine(TARGET, filesystem=image.disk)
            assert report.unforceable[0].kind is DamageKind.UNFINISHED
            for force in (False, True):
                with pytest.raises(RecoveryRefused, match=r"unfinished: .* of .* broken off"):
                    plan(report, force=force)
        elif left - {f"{UNFINISHED_NAME}.new"}:
            assert rows_of(examine(TARGET, filesystem=image.disk)) == whole, image.where
            continue
        copy(FOLDER, TARGET, filesystem=image.disk)
        report = examine(TARGET, filesystem=image.disk)
        assert report.ok
        assert rows_of(report) == rows_of(examine(FOLDER, filesystem=image.disk)), image.where
        assert not [name for name in names(image.disk) if name.startswith(UNFINISHED_NAME)]
    assert marked > 10


def test_a_power_cut_while_a_broken_off_one_is_removed() -> None:
    """What is left has its mark, or is empty: it is never half a copy without."""
    disk, _ = prepared_disk()
    restore(FOLDER, TARGET, filesystem=disk)
    disk.put(TARGET / UNFINISHED_NAME, b"restore of something\n")
    recorder = Recorder(disk, lambda: None, each=4)
    restore(FOLDER, TARGET, filesystem=recorder)
    seen = [names(image.disk) for image in recorder.images]
    assert any(len(left) > 2 for left in seen)
    whole = rows_of(examine(TARGET, filesystem=disk))
    for image, left in zip(recorder.images, seen, strict=True):
        if UNFINISHED_NAME not in left and left - {f"{UNFINISHED_NAME}.new"}:
            assert rows_of(examine(TARGET, filesystem=image.disk)) == whole, image.where


@BOTH
def test_a_power_cut_while_a_failed_one_is_removed(copy: Copy) -> None:
    """Also where the last call failed, behind which the mark is gone: what is removed has one."""
    disk, _ = prepared_disk()
    whole = rows_of(examine(FOLDER, filesystem=disk))
    counter = FaultyFileSystem(disk.copy())
    copy(FOLDER, TARGET, filesystem=counter)
    calls = sum(counter.counts[kind] for kind in WRITING)
    seen = 0
    for at in range(calls - 4, calls + 1):
        recorder = Recorder(disk.copy(), lambda: None, each=3)
        recorder.fault = Fault(at)
        with contextlib.suppress(WalError):
            copy(FOLDER, TARGET, filesystem=recorder)
        assert recorder.failed
        for image in recorder.images:
            left = names(image.disk)
            if UNFINISHED_NAME in left or not left - {f"{UNFINISHED_NAME}.new"}:
                continue
            seen += 1
            assert rows_of(examine(TARGET, filesystem=image.disk)) == whole, image.where
    assert seen


def store(folder: Path) -> Path:
    with logweir.open(folder) as log:
        log.create_space("t")
        log.append("t", [(number,) for number in range(100)])
    return folder


@BOTH
def test_one_that_was_killed_is_named_and_made_again(copy: Copy, tmp_path: Path) -> None:
    """Killed when all but the mark's end is done."""
    source, to = store(tmp_path / "store"), tmp_path / "new"

    def work(_: object) -> None:
        failpoint.arm("rewrite.before_unmark", kill)
        copy(source, to)

    status, _ = forked(work)
    assert os.WIFSIGNALED(status)
    told = CliRunner().invoke(app, ["verify", str(to)])
    assert told.exit_code == 3
    what = copy.__name__
    assert f"unfinished: {what} of {source} was broken off" in " ".join(told.stdout.split())
    for force in (False, True):
        with pytest.raises(RecoveryRefused, match="is unfinished"):
            logweir.open(to, force_recovery=force)
    done = CliRunner().invoke(app, [what, str(source), "--to", str(to)])
    assert done.exit_code == 0, done.stderr
    with logweir.open(to) as log:
        assert log.count("t") == 100


@BOTH
def test_what_is_somebody_elses_is_not_removed(copy: Copy, tmp_path: Path) -> None:
    """Also not out of a folder that is unfinished."""
    source, to = store(tmp_path / "store"), tmp_path / "new"
    to.mkdir()
    (to / UNFINISHED_NAME).write_text("restore of something\n")
    (to / "00000000000000000000.xlog").write_text("half")
    (to / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt is no part of it"):
        copy(source, to)
    assert (to / "notes.txt").read_text() == "mine"
    (to / "notes.txt").unlink()
    copy(source, to)
    assert UNFINISHED_NAME not in os.listdir(to)
    assert LOCK_NAME not in os.listdir(to)


@BOTH
def test_two_at_once_do_not_meet(copy: Copy, tmp_path: Path) -> None:
    """The second one is told of the first, and changes nothing."""
    source, to = store(tmp_path / "store"), tmp_path / "new"
    to.mkdir()
    with OS.lock(to / LOCK_NAME):
        (to / UNFINISHED_NAME).write_text("restore of something\n")
        with pytest.raises(DirectoryLocked):
            copy(source, to)
        assert (to / UNFINISHED_NAME).read_text() == "restore of something\n"


class Rotting(Recorder[None]):
    """A disk on which a byte of one new file turns once the snapshot, the last, has its name."""

    suffix = ""

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.parent == TARGET and new.suffix == ".snap":
            name = max(name for name in names(self.disk) if name.endswith(self.suffix))
            with closing(self.disk.open_read(TARGET / name)) as file:
                data = bytearray(file.read(file.size(), 0))
            data[len(data) // 2 + 60] ^= 1  # in a row
            self.disk.put(TARGET / name, bytes(data))


@pytest.mark.parametrize("suffix", [".snap", ".xlog"])
def test_a_restore_is_compared_with_what_was_read(suffix: str) -> None:
    """`verify` reads it back: a byte that turned is told, and nothing is left."""
    disk, written = prepared_disk()
    assert restore(FOLDER, Path("/good"), verify=True, filesystem=disk).verified
    rotting = Rotting(disk, lambda: None, rate=0.0)
    rotting.suffix = suffix
    with pytest.raises(CorruptFile):
        restore(FOLDER, TARGET, verify=True, filesystem=rotting)
    assert names(disk) == set()
    assert rows_of(examine(Path("/good"), filesystem=disk)) == written.rows


class Swapping(FaultyFileSystem):
    """A disk on which the new log is another one of as many rows once the snapshot has its name."""

    other = Path()

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.suffix == ".snap":
            for log in self.other.glob("*.xlog"):
                shutil.copy(log, new.parent)


def test_a_restore_with_other_rows_is_told(tmp_path: Path) -> None:
    """Rows that are whole and not those that were read."""
    source, other = tmp_path / "source", tmp_path / "other"
    for folder, text in ((source, "a"), (other, "b")):
        folder.mkdir()
        write_snapshot(folder, {space: [SPACE_ROW] for space in (272, 276, 280, 288)})
        writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()))
        writer.write([transaction(1, [insert(512, [text])])], VClock({1: 1}))
        writer.close()
        forget_end(folder)
    disk = Swapping(OS)
    disk.other = other
    with pytest.raises(CorruptFile, match=r"1 rows up to {1: 1} were read back, not the 1 rows"):
        restore(source, tmp_path / "new", verify=True, filesystem=disk)
    assert os.listdir(tmp_path / "new") == []


def test_a_dry_run_of_a_restore_writes_nothing(tmp_path: Path) -> None:
    """It says what would be there."""
    source, to = store(tmp_path / "store"), tmp_path / "new"
    done = CliRunner().invoke(app, ["restore", str(source), "--to", str(to), "--dry-run"])
    assert done.exit_code == 0
    assert f"{to} would hold the state at" in done.stdout
    assert not to.exists()
