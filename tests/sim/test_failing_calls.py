"""Every durable operation with its 1st, 2nd, … call to the disk failing, until none does."""

from __future__ import annotations

import errno
import random
from contextlib import closing
from pathlib import Path

import pytest
from sim.writing import (
    FOLDER,
    Written,
    check_image,
    fresh_disk,
    open_writer,
    rows_of,
    write_batch,
    write_some,
)
from support.logs import INSTANCE

from logweir.errors import LogweirError, WalError, WriteFailed, WriterPoisoned
from logweir.recovery import examine, plan, repair, restore
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, WRITING
from logweir.wal.filesystem import make_folders
from logweir.wal.mp import pack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter, WriterOptions

STEPS = ("write", "sync", "write", "write", "rotate", "write", "sync", "rotate", "write", "close")


def prepared_disk() -> tuple[SimFileSystem, Written]:
    """A disk with a log that was written, closed, reopened and killed."""
    disk, written = fresh_disk(3), Written()
    rng = random.Random(3)
    for _ in range(3):
        write_some(disk, written, rng, 4)
    return disk, written


def step(writer: WalWriter, what: str, written: Written, rng: random.Random) -> None:
    """One operation; what it acknowledges is noted."""
    if what == "write":
        write_batch(writer, written, rng)
        return
    {"sync": writer.sync, "rotate": writer.rotate, "close": writer.close}[what]()
    written.synced = len(written.rows)


def use_log(disk: FaultyFileSystem, written: Written) -> bool:
    """Open, write, sync, rotate and close, going on after failed writes.

    Returns whether the log was closed in order.
    """
    rng = random.Random(11)
    writer = open_writer(disk, written, WriterOptions(max_bytes=4000))
    closed = False
    for what in STEPS:
        before = len(written.rows)
        try:
            step(writer, what, written, rng)
        except WriteFailed:
            assert len(written.rows) == before
            assert not writer.is_poisoned
            continue
        except WriterPoisoned:
            with pytest.raises(WriterPoisoned):
                writer.write([b""], writer.vclock)
            with pytest.raises(WriterPoisoned):
                writer.sync()
            break
        closed = what == "close"
    if not closed:
        writer.abandon()
    return closed


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_writer_survives_every_failing_call(number: int, part: float, lasts: bool) -> None:
    """What was acknowledged is there, after a restart and after a power cut; nothing is torn."""
    base, start = prepared_disk()
    truth: list[Written] = []

    def make() -> SimFileSystem:
        disk = base.copy()
        truth.append(Written(list(start.rows), list(start.block_ends), start.synced))
        return disk

    failed = set()
    for run in every_fault(
        make, lambda disk: use_log(disk, truth[-1]), number=number, part=part, lasts=lasts
    ):
        failed.add(run.failed.partition(" ")[0])
        assert run.error is None or isinstance(run.error, WalError), run.failed
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        assert disk.open_files == 0, run.failed
        for seed in range(6):
            check_image(disk.crash(seed=seed), truth[-1])
        kept = check_image(disk.copy(), truth[-1])  # the process alone died
        if not run.failed:
            assert run.outcome
            assert kept == len(truth[-1].rows)
    expected = {"create", "open_append", "write", "sync", "close", "rename", "sync_directory", ""}
    assert failed >= expected


@pytest.mark.parametrize("part", [0.0, 0.7])
def test_after_a_failed_write_the_log_goes_on_without_the_batch(part: float) -> None:
    """The file is cut back: a reader finds the rows before and those written afterwards."""
    runs = every_fault(
        fresh_disk,
        lambda disk: use_log(disk, written[-1]),
        kinds={"write"},
        number=errno.ENOSPC,
        part=part,
    )
    written = [Written()]
    for run in runs:
        disk = run.filesystem.inner
        assert rows_of(examine(FOLDER, filesystem=disk)) == written[-1].rows
        written.append(Written())
    assert len(written) > 6


def test_a_cut_is_durable_before_what_is_written_behind_it() -> None:
    """A crash then brings back nothing of the batch that failed."""
    disk = FaultyFileSystem(fresh_disk())
    written = Written()
    rng = random.Random(1)
    writer = open_writer(disk, written)
    write_batch(writer, written, rng)
    disk.fault = Fault(1, {"write"}, errno.ENOSPC, part=0.9)
    with pytest.raises(WriteFailed):
        write_batch(writer, written, rng)
    for seed in range(60):
        image = disk.inner.crash(seed=seed)
        assert rows_of(examine(FOLDER, filesystem=image)) == written.rows, seed
    writer.abandon()


def test_a_new_log_replaces_none_of_its_name() -> None:
    """What is there stays as it is, and the change is refused."""
    disk, written = fresh_disk(), Written()
    writer = open_writer(disk, written)
    place = FOLDER / f"{0:020}.xlog"
    with closing(disk.create(place)) as file:
        file.write([b"somebody's"])
    with pytest.raises(WriteFailed):
        write_batch(writer, written, random.Random(1))
    writer.abandon()
    with closing(disk.open_read(place)) as found:
        assert found.read(100, 0) == b"somebody's"


def test_a_failed_cut_poisons_the_writer() -> None:
    """When neither the write nor the cut works nothing more may be acknowledged."""
    disk = FaultyFileSystem(fresh_disk())
    written = Written()
    rng = random.Random(1)
    writer = open_writer(disk, written)
    write_batch(writer, written, rng)
    writer.sync()
    written.synced = len(written.rows)
    disk.fault = Fault(1, {"write", "truncate"}, errno.EIO, part=0.5, lasts=True)
    with pytest.raises(WriterPoisoned) as caught:
        write_batch(writer, written, rng)
    assert isinstance(caught.value.first_cause, OSError)
    assert writer.is_poisoned
    with pytest.raises(WriterPoisoned):
        writer.sync()
    writer.abandon()
    check_image(disk.inner, written)


def test_zeros_that_fail_take_nothing_back() -> None:
    """Neither they nor the cut work: what was synced before is acknowledged, nothing later is."""
    disk = FaultyFileSystem(fresh_disk())
    written = Written()
    rng = random.Random(1)
    writer = open_writer(disk, written, WriterOptions(is_synced=True))
    write_batch(writer, written, rng)
    disk.fault = Fault(1, {"write", "truncate"}, errno.EIO, part=0.5, lasts=True)
    writer.sync()
    written.synced = len(written.rows)
    assert disk.failed
    assert writer.is_poisoned
    with pytest.raises(WriterPoisoned):
        write_batch(writer, written, rng)
    writer.abandon()
    check_image(disk.inner, written)
    check_image(disk.inner.crash(seed=1), written)


def write_snapshot(disk: FaultyFileSystem) -> None:
    """A snapshot of some tuples at vclock {1: 5}."""
    vclock = VClock({1: 5})
    writer = SnapshotWriter(FOLDER, vclock, INSTANCE, timestamp=1.0, filesystem=disk)
    try:
        writer.write(512, [pack([i, "x" * 100]) for i in range(3000)])
        writer.finish()
    except BaseException:
        writer.abort()
        raise


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_snapshot_is_whole_or_not_there(part: float) -> None:
    """A snapshot that could not be finished is never seen, also not after a power cut."""
    for run in every_fault(fresh_disk, write_snapshot, number=errno.ENOSPC, part=part):
        assert (run.error is None) == (not run.failed)
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        assert disk.open_files == 0, run.failed
        for image in [disk.copy(), *(disk.crash(seed=seed) for seed in range(4))]:
            report = examine(FOLDER, filesystem=image)
            assert report.ok
            names = [one.path.name for one in report.files]
            assert len(names) in (1, 2)
            if not run.failed:
                assert names[-1] == "00000000000000000005.snap"


@pytest.mark.parametrize("what", [repair, restore])
def test_a_copy_that_was_not_finished_is_never_taken_for_whole(what) -> None:  # type: ignore[no-untyped-def]
    """Repair and restore write the snapshot last; whatever failed, no half folder opens."""
    base, written = prepared_disk()
    target = Path("/new")
    for run in every_fault(
        base.copy, lambda disk: what(FOLDER, target, filesystem=disk), number=errno.ENOSPC, part=0.5
    ):
        assert run.error is None or isinstance(run.error, LogweirError)
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        assert disk.open_files == 0, run.failed
        assert rows_of(examine(FOLDER, filesystem=disk)) == written.rows
        for image in [disk.copy(), *(disk.crash(seed=seed) for seed in range(4))]:
            make_folders(image, target)
            report = examine(target, filesystem=image)
            if report.snapshot is not None:
                assert report.ok
                assert rows_of(report) == written.rows
        if not run.failed:
            assert rows_of(examine(target, filesystem=disk)) == written.rows


def test_reading_reports_every_failing_call_as_an_error_or_as_damage() -> None:
    """No call that fails while reading makes a folder look whole."""
    base, written = prepared_disk()
    reading = KINDS - WRITING

    def scenario(disk: FaultyFileSystem) -> list[bytes]:
        return rows_of(examine(FOLDER, filesystem=disk))

    for run in every_fault(base.copy, scenario, kinds=reading):
        if run.error is None:
            assert run.outcome == written.rows
        else:
            assert isinstance(run.error, WalError), run.failed
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        assert disk.open_files == 0, run.failed


def test_moving_a_file_out_of_the_way_survives_every_failing_call() -> None:
    """`prepare` either did it or says that it did not, and can be repeated."""

    def make() -> SimFileSystem:
        disk = fresh_disk()
        disk.put(FOLDER / "00000000000000000000.xlog", b"no log at all")
        return disk

    def scenario(disk: FaultyFileSystem) -> None:
        plan(examine(FOLDER, filesystem=disk), force=True).prepare()

    for run in every_fault(make, scenario):
        assert (run.error is None) == (not run.failed)
        disk = run.filesystem.inner
        again = plan(examine(FOLDER, filesystem=disk), force=True)
        again.prepare()
        assert examine(FOLDER, filesystem=disk).ok
