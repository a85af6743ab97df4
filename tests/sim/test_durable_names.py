"""Names on a disk that loses power: of new folders, of copies, of files that go one by one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from sim.writing import FOLDER, fresh_disk
from support.logs import INSTANCE, insert, transaction

import logweir
from interop.serving import Serving
from logweir.errors import WalError, WriteFailed
from logweir.pipeline.parts import Part, PartWriter, SinkLayout
from logweir.pipeline.publish import Target, publish
from logweir.recovery import examine, repair, restore
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.cuts import Recorder
from logweir.replication.iproto.follow.join import join
from logweir.wal import failpoint
from logweir.wal.filesystem import (
    OS,
    AppendFile,
    FileSystem,
    FolderGone,
    OsFileSystem,
    make_folders,
)
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter

FORMAT = [("id", "unsigned"), ("value", "string")]
CUTS = 30


def opened(folder: Path, disk: FileSystem) -> logweir.Log:
    """A store on another disk; its state is made anew."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    return logweir.open(
        folder, filesystem=disk, wal_max_size=600, checkpoint_count=1, checkpoint_interval=0.0
    )


def inserted(log: logweir.Log, numbers: Iterable[int]) -> None:
    for number in numbers:
        log.insert("t", (number, "x" * 60))


def filled(folder: Path, disk: FileSystem, count: int = 40) -> None:
    with opened(folder, disk) as log:
        log.create_space("t", FORMAT)
        inserted(log, range(count))


def ids_of(folder: Path, disk: FileSystem) -> list[int]:
    """What an opened store holds."""
    with opened(folder, disk) as log:
        return [row[0] for row in log.select("t")]


# --- new folders ----------------------------------------------------------------------------------


def test_a_folder_whose_name_cannot_be_synced_is_not_left_for_durable() -> None:
    """Whichever call fails: its folder is not left, since what a failed sync did not save a second
    one need not; what the next try returns for is there behind a power cut."""
    path = FOLDER / "a" / "b"

    def make(disk: FileSystem) -> None:
        make_folders(disk, path)

    failed = set()
    for run in every_fault(lambda: fresh_disk(1), make):
        failed.add(run.failed.partition(" ")[0])
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        if run.error is not None:
            assert "a" not in disk.list_directory(FOLDER) or not disk.list_directory(path.parent)
            make(disk)
        for seed in range(10):
            assert disk.crash(seed=seed).list_directory(path) == [], run.failed
    assert failed == {"make_directory", "sync_directory", ""}


def test_what_a_killed_process_left_of_new_folders_is_made_durable() -> None:
    """Whichever call was the last that reached the disk: another process makes the same folders,
    and what it puts there is there behind a power cut."""
    path = FOLDER / "a" / "b"
    tried = 0
    for at in itertools.count(1):
        disk = fresh_disk(at)
        killed = FaultyFileSystem(disk, Fault(at=at, lasts=True))
        with contextlib.suppress(OSError):
            make_folders(killed, path)
        make_folders(disk, path)
        with contextlib.closing(disk.create(path / "f")) as file:
            file.sync()
        disk.sync_directory(path)
        for seed in range(10):
            assert disk.crash(seed=seed).list_directory(path) == ["f"], killed.failed
        if not killed.failed:
            break
        tried += 1
    assert tried == 4  # two folders, two syncs


@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "killed before its sync"])
def test_no_folder_is_made_where_its_name_cannot_be_synced(is_killed: bool, tmp_path: Path) -> None:
    """In one that may be written to and not read: the same error each time, and nothing left."""

    class Killed(OsFileSystem):
        def sync_directory(self, path: Path) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    place = tmp_path / "drop"
    place.mkdir()
    place.chmod(0o333)
    for disk in (Killed() if is_killed else OS, OS):
        pid = os.fork()
        if pid == 0:
            found = 1
            try:
                os.chdir(place)
                if os.geteuid() == 0:  # who may read everything
                    os.setuid(65534)
                make_folders(disk, Path("store"))
            except PermissionError:
                found = 0
            finally:
                os._exit(found)
        assert os.waitpid(pid, 0)[1] == 0
    place.chmod(0o755)
    assert not [*place.iterdir()]


def test_a_folder_whose_parent_was_not_synced_may_be_lost_with_all_in_it() -> None:
    """So that tests on this disk notice who forgets it."""
    disk = SimFileSystem()
    disk.make_directory(Path("/d"))
    disk.make_directory(Path("/d/e"))
    file = disk.create(Path("/d/e/f"))
    file.write([b"x"])
    file.sync()
    disk.sync_directory(Path("/d/e"))
    disk.sync_directory(Path("/d"))
    left = {tuple(disk.crash(seed=seed).list_directory(Path("/"))) for seed in range(CUTS)}
    assert left == {(), ("d",)}
    disk.sync_directory(Path("/"))
    for seed in range(CUTS):
        assert disk.crash(seed=seed).contents(Path("/d/e/f")) == b"x"


def test_a_renamed_folder_has_one_of_its_names_after_a_power_cut() -> None:
    """With all that is in it; synced, the new one."""
    disk = SimFileSystem()
    disk.put(Path("/a/f"), b"x")
    disk.rename(Path("/a"), Path("/b"))
    left = {tuple(disk.crash(seed=seed).list_directory(Path("/"))) for seed in range(CUTS)}
    assert left == {("a",), ("b",)}
    disk.sync_directory(Path("/"))
    for seed in range(CUTS):
        assert disk.crash(seed=seed).contents(Path("/b/f")) == b"x"


def test_the_folder_of_a_new_store_is_durable(tmp_path: Path) -> None:
    """With its parents, once the first change is acknowledged."""
    folder = tmp_path / "several" / "new" / "folders"
    disk = SimFileSystem()
    filled(folder, disk, 3)
    for seed in range(CUTS):
        assert ids_of(folder, disk.crash(seed=seed)) == [0, 1, 2]


def test_an_empty_folder_that_somebody_made_is_made_durable(tmp_path: Path) -> None:
    """As we did, before a crash."""
    folder = tmp_path / "store"
    disk = SimFileSystem()
    make_folders(disk, tmp_path)
    disk.make_directory(folder)
    filled(folder, disk, 3)
    for seed in range(CUTS):
        assert ids_of(folder, disk.crash(seed=seed)) == [0, 1, 2]


@pytest.mark.parametrize("copy", [restore, repair])
def test_a_copy_is_durable_with_its_folder(copy: Callable[..., object], tmp_path: Path) -> None:
    """When `restore` and `repair` return."""
    disk = SimFileSystem()
    filled(tmp_path / "store", disk)
    to = tmp_path / "new" / "copy"
    copy(tmp_path / "store", to, filesystem=disk)
    for seed in range(CUTS):
        image = disk.crash(seed=seed)
        assert not examine(to, filesystem=image).damage
    assert ids_of(to, disk.crash(seed=1)) == list(range(40))


def test_a_joined_copy_is_durable_with_its_name(tmp_path: Path) -> None:
    """A master is copied onto a disk that then loses power; before, there is nothing or all."""
    with Serving(tmp_path / "master", guest="all") as serving:
        serving.log.create_space("t", FORMAT)
        serving.log.append("t", [(number, "x") for number in range(40)])
        recorder = Recorder(SimFileSystem(seed=1), lambda: None, each=2)
        folder = tmp_path / "new" / "copy"
        url = serving.url
        joined = asyncio.run(join(url, folder, filesystem=recorder))
        assert joined.rows
    for image in recorder.images:
        assert_whole_or_absent(image.disk, folder, joined.vclock)
    for seed in range(CUTS):
        report = examine(folder, filesystem=recorder.disk.crash(seed=seed))
        assert not report.damage
        assert report.vclock == joined.vclock
    assert recorder.disk.list_directory(folder.parent) == ["copy"]


def assert_whole_or_absent(disk: SimFileSystem, folder: Path, vclock: VClock) -> None:
    try:
        disk.list_directory(folder)
    except FileNotFoundError:
        return
    report = examine(folder, filesystem=disk)
    assert not report.damage
    assert report.vclock == vclock


# --- files of a store -----------------------------------------------------------------------------


def test_old_files_go_one_by_one(tmp_path: Path) -> None:
    """At any power cut in a snapshot and the removal behind it the log has no gap."""
    folder = tmp_path / "store"
    disk = SimFileSystem(seed=3)
    filled(folder, disk)
    recorder = Recorder(disk, lambda: None, each=8)
    with opened(folder, recorder) as log:
        logs = len([name for name in disk.list_directory(folder) if name.endswith(".xlog")])
        assert logs > 4
        recorder.images.clear()
        log.snapshot()
        assert len(disk.list_directory(folder)) < logs
    for number, image in enumerate(recorder.images):
        assert not examine(folder, filesystem=image.disk).damage, image.where
        if number % 8 == 0:
            assert ids_of(folder, image.disk) == list(range(40)), image.where


@pytest.mark.parametrize("failing", [False, True], ids=["not yet", "it failed"])
def test_nothing_goes_before_the_name_of_a_snapshot_is_durable(
    failing: bool, tmp_path: Path
) -> None:
    """While its folder is not synced somebody else removes old files, as a server does."""
    folder = tmp_path / "store"
    disk = SimFileSystem(seed=3)
    filled(folder, disk)
    recorder = Recorder(disk, lambda: None, each=8)
    point = "snapshot.after_rename_before_directory_sync"
    with opened(folder, recorder) as log:

        def meanwhile() -> None:
            failpoint.disarm()
            if failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            log.inner.collect()

        recorder.images.clear()
        failpoint.arm(point, meanwhile)
        with pytest.raises(WalError) if failing else contextlib.nullcontext():
            log.snapshot()
        log.inner.collect()
        assert f"{0:020d}.snap" not in disk.list_directory(folder)
    for image in recorder.images:
        assert not examine(folder, filesystem=image.disk).damage, image.where


def test_names_that_a_killed_process_left_are_made_durable(tmp_path: Path) -> None:
    """Of a new log: who goes on in it acknowledges rows that have no other name."""
    folder = tmp_path / "store"
    disk = SimFileSystem(seed=3)
    point = "wal.after_rename_before_directory_sync"
    filled(folder, disk)

    class Kill(BaseException):
        """A kill."""

    def kill() -> None:
        raise Kill

    log = opened(folder, disk)
    failpoint.arm(point, kill)
    try:
        with pytest.raises(Kill):
            inserted(log, range(100, 200))
    finally:
        failpoint.disarm()
    log.inner.abandon()
    with logweir.open(folder, filesystem=disk) as log:
        log.insert("t", (1000, "acknowledged"))
        images = [disk.crash(seed=seed) for seed in range(CUTS)]
    for image in images:
        assert ids_of(folder, image)[-1] == 1000


def test_positions_of_followers_are_the_old_or_the_new_ones(tmp_path: Path) -> None:
    """Whole at any power cut, and the new ones once `retain` returned."""
    folder = tmp_path / "store"
    filled(folder, disk := SimFileSystem(seed=4))
    recorder = Recorder(disk, lambda: None, each=3)
    with opened(folder, recorder) as log:
        log.retain("a", VClock({1: 5}))
        recorder.images.clear()
        log.retain("b", VClock({1: 7}))
        during = [image.disk for image in recorder.images]
        after = [disk.crash(seed=seed) for seed in range(CUTS // 2)]
    for images, allowed in ((during, ({"a"}, {"a", "b"})), (after, ({"a", "b"},))):
        assert images
        for image in images:
            with opened(folder, image) as log:
                assert set(log.status()["followers"]) in allowed


def test_a_store_in_a_renamed_folder_writes_nothing_into_the_new_one(tmp_path: Path) -> None:
    """The simulated disk knows folders by what they are, as the real one does."""
    folder, disk = tmp_path / "store", SimFileSystem()
    with opened(folder, disk) as log:
        log.create_space("t", FORMAT)
        disk.rename(folder, tmp_path / "moved")
        make_folders(disk, folder)
        with pytest.raises(WriteFailed, match="renamed, removed or replaced"):  # noqa: PT012
            for number in range(40):
                log.insert("t", (number, "x" * 60))
        assert log.count("t") == number
        assert disk.list_directory(folder) == []
    with disk.lock(tmp_path / "moved" / "lock") as held:
        disk.rename(tmp_path / "moved", folder)
        with pytest.raises(FolderGone):
            held.create(tmp_path / "moved" / "file")
    assert ids_of(folder, disk) == list(range(number))


def test_a_full_simulated_disk_refuses_and_takes_again(tmp_path: Path) -> None:
    """Room is asked for before a change, and a file that gets none keeps what it held."""
    folder = tmp_path / "store"
    disk = SimFileSystem(room_bytes=200_000)
    with opened(folder, disk) as log:
        log.create_space("t", FORMAT)
        with pytest.raises(WriteFailed) as caught:
            log.insert("t", (1, "x" * 150_000))
        assert caught.value.errno == errno.ENOSPC
        log.insert("t", (2, "x"))
    assert ids_of(folder, disk) == [2]
    disk = SimFileSystem(room_bytes=5)
    disk.put(Path("/f"), b"")
    file = disk.open_append(Path("/f"))
    with pytest.raises(OSError, match="No space"):
        file.write([b"1234", b"5678"])
    assert disk.contents(Path("/f")) == b"12345"
    file.truncate(2)
    file.write([b"345"])
    assert disk.free_bytes(Path("/")) == 0


# --- the pipeline ---------------------------------------------------------------------------------


def staged(folder: Path, kind: str) -> Sequence[Part]:
    """A part with 500 rows, on the real disk."""
    layout = SinkLayout(kind=kind, keeps=False, timestamp=5.0)
    writer = PartWriter(folder / "part", layout)
    columns = {
        "type": pa.array([2] * 500, pa.int16()),
        "space_id": pa.array([512] * 500, pa.int64()),
        "tuple": pa.array([pack([one, "x" * 300]) for one in range(500)], pa.binary()),
    }
    writer.add(pa.record_batch(columns))
    return [writer.finish()]


@pytest.mark.parametrize("kind", ["xlog", "snap"])
def test_a_published_file_is_durable_with_its_folder(kind: str, tmp_path: Path) -> None:
    """At a power cut before there is nothing of it or all, behind it all."""
    parts = staged(tmp_path, kind)
    disk = SimFileSystem(seed=5)
    disk.put(Path(parts[0].path), Path(parts[0].path).read_bytes())
    folder = tmp_path / "new" / "target"
    recorder = Recorder(disk, lambda: None, each=4)
    vclock = VClock({1: 7}) if kind == "snap" else None
    layout = SinkLayout(kind=kind, keeps=False, timestamp=5.0)
    path = publish(Target(folder, layout, vclock=vclock), parts, recorder)
    assert path is not None
    whole = disk.contents(path)
    for image in recorder.images:
        try:
            names = image.disk.list_directory(folder)
        except FileNotFoundError:
            continue
        assert path.name not in names or image.disk.contents(path) == whole, image.where
    for seed in range(CUTS):
        assert disk.crash(seed=seed).contents(path) == whole


# --- background sync ------------------------------------------------------------------------------


class Barrier(SimFileSystem):
    """A disk whose next sync, once `armed`, waits in its middle until `go`."""

    def __init__(self) -> None:
        super().__init__(seed=6)
        self.armed, self.begun, self.go = (threading.Event() for _ in range(3))

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        sync = file.sync

        def waiting() -> None:
            sync()
            if self.armed.is_set():
                self.armed.clear()
                self.begun.set()
                assert self.go.wait(30)

        file.sync = waiting  # type: ignore[method-assign]
        return file


def test_what_is_written_during_a_sync_in_background_is_not_taken_for_synced() -> None:
    """Closing the file syncs it before the marker that says that all before it was synced."""
    disk = fresh_disk()
    path = FOLDER / f"{0:020d}.xlog"
    first = WalWriter(FOLDER, INSTANCE, AppendPoint(VClock()), filesystem=disk)
    first.write([transaction(1, [insert(512, [1])])], VClock({1: 1}))
    first.sync()
    size = first.size
    first.abandon()
    barrier = Barrier()
    barrier._shared = disk._shared
    at = AppendPoint(VClock({1: 1}), VClock(), path, size)
    writer = WalWriter(FOLDER, INSTANCE, at, filesystem=barrier)
    writer.write([transaction(2, [insert(512, [2])])], VClock({1: 2}))
    barrier.armed.set()
    background = threading.Thread(target=writer.sync_in_background)
    background.start()
    assert barrier.begun.wait(30)
    writer.write([transaction(3, [insert(512, [3])])], VClock({1: 3}))
    barrier.go.set()
    background.join(30)
    assert writer.unsynced_bytes > 0
    writer.sync()
    assert writer.unsynced_bytes == 0
    for seed in range(CUTS):
        assert examine(FOLDER, filesystem=disk.crash(seed=seed)).vclock == VClock({1: 3})
