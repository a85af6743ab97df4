"""Which objects an archive has: merged, replaced and retained ones, and what is held for it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support.archives import (
    DEFINITION,
    archived,
    catalog_of,
    contents,
    fill,
    kinds,
    opened,
    rows,
    with_snapshots,
)

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.catalog import Catalog, Keep
from logweir.archive.fetch import drill, restore_archive
from logweir.archive.objects import FolderObjects, open_objects
from logweir.errors import (
    ConfigError,
    LogweirError,
    PositionUnavailable,
    WalError,
)
from logweir.pipeline.storage import open_storage
from logweir.pipeline.targets import open_target
from logweir.recovery.faults import SimFileSystem
from logweir.recovery.faults.faulty import WRITING, Fault, FaultyFileSystem
from logweir.wal.filesystem import OS


def test_the_whole_of_a_closed_log_takes_the_place_of_its_tails(tmp_path: Path) -> None:
    """There is one object for each log then, and nothing is left without an entry."""
    with opened(tmp_path / "s") as log:
        fill(log, 3)
        archived(tmp_path / "s", tmp_path / "a")
        fill(log, 3)
        archived(tmp_path / "s", tmp_path / "a")
        assert kinds(tmp_path / "a") == ["snapshot", "tail", "tail"]
        fill(log, 100)
        archiver = archived(tmp_path / "s", tmp_path / "a")
    assert archiver.progress.removed == 2
    found = kinds(tmp_path / "a")
    assert (found.count("tail"), found.count("log") > 1) == (1, True)
    names = {path.name for path in (tmp_path / "a" / "data").iterdir()}
    assert names == set(catalog_of(tmp_path / "a").entries)


@pytest.mark.parametrize("keep", [2, 1])
def test_retention_leaves_the_newest_snapshots_and_what_is_behind(
    keep: int, tmp_path: Path
) -> None:
    """All points from the oldest one that is kept on are restored, by time too; none before."""
    counts = with_snapshots(tmp_path / "s", tmp_path / "a", 4, keep=Keep(snapshots=keep))
    catalog = catalog_of(tmp_path / "a")
    assert len(catalog.snapshots()) == keep
    (points,) = catalog.points()
    assert points.start == catalog.snapshots()[0].vclock
    found = restore_archive(str(tmp_path / "a"), tmp_path / "r", at=points.start)
    assert contents(tmp_path / "r") == rows(counts[-keep])
    assert found.vclock == points.start
    earlier = points.start.with_lsn(1, points.start.lsn(1) - 1)
    with pytest.raises(PositionUnavailable):
        restore_archive(str(tmp_path / "a"), tmp_path / "no", at=earlier)
    assert catalog.missing() == []
    names = {path.name for path in (tmp_path / "a" / "data").iterdir()}
    assert names == set(catalog.entries)
    assert archived(tmp_path / "s", tmp_path / "a").progress.objects == 0


def test_retention_by_time_keeps_every_point_since(tmp_path: Path) -> None:
    """The newest snapshot that is old enough stays, and goes when a later one is."""
    clock = [1_000_000.0]
    with opened(tmp_path / "s", clock=lambda: clock[0]) as log:
        for _ in range(5):
            fill(log, 10)
            log.snapshot()
            clock[0] += 100
            archived(
                tmp_path / "s",
                tmp_path / "a",
                keep=Keep(seconds=250),
                clock=lambda: clock[0],
            )
    times = [one.archived for one in catalog_of(tmp_path / "a").snapshots()]
    assert times == [1_000_200.0, 1_000_300.0, 1_000_400.0, 1_000_500.0]
    restore_archive(str(tmp_path / "a"), tmp_path / "r", at=1_000_250.0)
    assert contents(tmp_path / "r") == rows(30)


def test_files_that_are_not_archived_are_not_collected(tmp_path: Path) -> None:
    """Until the next look; with a bound only as many bytes of them."""
    with opened(tmp_path / "s", checkpoint_count=1) as log:
        archiver = Archiver(tmp_path / "s", open_objects(str(tmp_path / "a")))
        archiver.look()
        fill(log, 100)
        log.snapshot()
        log.inner.collect()
        archiver.look()
        fill(log, 100)
        archiver.close()
        assert len(catalog_of(tmp_path / "a").points()) == 1
        log.snapshot()
        assert log.inner.collect() == []  # the snapshot has collected
        told: list[LogweirError] = []
        archived(tmp_path / "s", tmp_path / "a", tell=told.append)
    assert "archived is what goes to" in str(told[0])
    assert len(catalog_of(tmp_path / "a").points()) == 2
    restore_archive(str(tmp_path / "a"), tmp_path / "r")
    assert contents(tmp_path / "r") == rows(200)


def test_small_tails_become_one(tmp_path: Path) -> None:
    """However often a look finds a little more there are few objects, and every point is kept."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t")
        points = []
        with Archiver(tmp_path / "s", open_objects(str(tmp_path / "a"))) as archiver:
            for _ in range(40):
                fill(log, 1)
                archiver.look()
                points.append(log.vclock)
    tails = catalog_of(tmp_path / "a").logs()[-1].parts
    assert [one.offset for one in tails[1:]] == [one.end for one in tails[:-1]]
    assert len(tails) < 16
    names = {path.name for path in (tmp_path / "a" / "data").iterdir()}
    assert names == set(catalog_of(tmp_path / "a").entries)
    for count in (1, 17, 39):
        restore_archive(str(tmp_path / "a"), tmp_path / f"r{count}", at=points[count - 1])
        assert contents(tmp_path / f"r{count}") == rows(count)
    assert drill(str(tmp_path / "a"), tmp_path / "s").ok


def test_two_archivers_of_one_store_do_no_harm(tmp_path: Path) -> None:
    """They find other ends and merge other tails; what either told is there when one is gone."""
    place = tmp_path / "a"
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t")
        with Archiver(tmp_path / "s", open_objects(str(place))) as one:
            with Archiver(tmp_path / "s", open_objects(str(place))) as other:
                for number in range(50):
                    fill(log, 1)
                    (one if number % 3 else other).look()
            fill(log, 1)
            assert one.look().vclock == log.vclock
    assert drill(str(place), tmp_path / "s").vclock == log.vclock


def test_a_store_that_was_archived_empty_has_every_point(tmp_path: Path) -> None:
    """There was no log then; what is closed since is archived from its begin on."""
    logweir.open(tmp_path / "s").close()
    archived(tmp_path / "s", tmp_path / "a")
    with opened(tmp_path / "s") as log:
        fill(log, 100)
        log.snapshot()
        fill(log, 1)
    archived(tmp_path / "s", tmp_path / "a")
    (points,) = catalog_of(tmp_path / "a").points()
    assert (points.start.signature, points.vclock) == (0, log.vclock)


def test_no_more_is_held_than_is_allowed(tmp_path: Path) -> None:
    """While the place fails: with a bound the oldest logs may go, without one none."""
    kept = {}
    for hold_bytes in (3000, 0):
        folder, place = tmp_path / f"s{hold_bytes}", tmp_path / f"a{hold_bytes}"
        with opened(folder, checkpoint_count=1) as log:
            faulty = FaultyFileSystem(OS)
            objects = FolderObjects(place, faulty)
            with Archiver(folder, objects, hold_bytes=hold_bytes) as archiver:
                archiver.look()
                fill(log, 300)
                faulty.fault = Fault(1, WRITING, lasts=True)
                with pytest.raises(WalError):
                    archiver.look()
                log.snapshot()
                kept[hold_bytes] = sum(one.stat().st_size for one in folder.glob("*.xlog"))
                faulty.fault = None
                archiver.look()
        points = catalog_of(place).points()
        assert points[-1].vclock.lsn(1) == 300 + DEFINITION
        assert len(points) == (2 if hold_bytes else 1)
    assert kept[3000] < 6000 < kept[0]


def test_the_log_is_archived_while_a_snapshot_is(tmp_path: Path) -> None:
    """A snapshot may take long; rows that come meanwhile do not wait for its end."""
    counted: list[int] = []

    class Slow(FolderObjects):
        """A place that takes snapshots slowly: rows are written between the pieces."""

        def put(self, name: str, pieces: Iterable[bytes]) -> None:
            """See `Objects`."""
            is_snapshot = name.startswith("data/") and name.endswith(".snap")

            def slowly() -> Iterator[bytes]:
                for piece in pieces:
                    fill(log, 1)
                    yield piece
                    counted.append(catalog_of(tmp_path / "a").logs()[-1].vclock.lsn(1))

            super().put(name, slowly() if is_snapshot else pieces)

    with logweir.open(tmp_path / "s") as log:
        log.create_space("t")
        for number in range(3):
            log.insert("t", (number, "value 0".ljust(500_000, chr(97 + number))))
        stop = threading.Event()
        stop.set()
        log.snapshot()
        with Archiver(tmp_path / "s", Slow(tmp_path / "a")) as archiver:
            archiver.follow(1e-6, stop, lambda progress: None)
            assert archiver.progress.error == ""
    assert counted == sorted(counted)
    assert len(set(counted)) == len(counted) > 0
    assert drill(str(tmp_path / "a"), tmp_path / "s").ok


@pytest.mark.parametrize("opened", [open_objects, open_storage, partial(open_target, "to")])
def test_a_place_without_a_folder_is_refused(opened: Callable[[str], object]) -> None:
    """Before anything is asked of it."""
    with pytest.raises(ConfigError, match="names no folder of the place"):
        opened("memory://")


class Cuts(FaultyFileSystem):
    """A disk with what power cuts behind each removal leave of it: `images`."""

    def __init__(self, disk: SimFileSystem) -> None:
        super().__init__(disk)
        self._disk = disk
        self.images: list[SimFileSystem] = []

    def cut(self) -> None:
        self.images += [self._disk.crash(seed=seed) for seed in range(6)]

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.cut()


def test_what_a_killed_archiver_left_is_durable_when_the_next_counts_it(tmp_path: Path) -> None:
    """Whichever call was its last: what the next one says to have is there behind a power cut, and
    a log is not lost by the removal of its tails."""
    folder, place = tmp_path / "s", Path("/place")
    with opened(folder) as log:
        fill(log, 60)
        base = SimFileSystem(seed=1)
        with Archiver(folder, FolderObjects(place, base)) as archiver:
            archiver.look()
        fill(log, 60)  # the log whose tail is archived is closed
    for number in itertools.count(1):
        disk = base.killed()
        faulty = FaultyFileSystem(disk, Fault(number, WRITING, lasts=True))
        with suppress(WalError), Archiver(folder, FolderObjects(place, faulty)) as archiver:
            archiver.look()
        cuts = Cuts(disk)
        with Archiver(folder, FolderObjects(place, cuts)) as archiver:
            told = archiver.progress.vclock
            cuts.cut()
            archiver.look()
        for image in cuts.images:
            found = Catalog.load(FolderObjects(place, image))
            assert found.points()[-1].vclock.covers(told), faulty.failed
        if not faulty.failed:
            break
    assert number > 20
