"""The fault kit does to a disk what it says, and can be repeated."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from logweir.errors import DirectoryLocked
from logweir.recovery.faults import (
    Fault,
    FaultyFileSystem,
    SimFileSystem,
    every_fault,
)
from logweir.recovery.faults.cuts import Recorder
from logweir.recovery.faults.surviving import (
    Change,
    Dice,
    Disk,
    Inode,
    Model,
    answered,
    settled,
)
from logweir.wal.filesystem import FileSystem, make_folders

FOLDER = Path("/d")


def disk_with_folder(seed: int = 0) -> SimFileSystem:
    """A disk with one folder."""
    disk = SimFileSystem(seed=seed)
    make_folders(disk, FOLDER)
    return disk


def images(disk: SimFileSystem, count: int = 300) -> set[bytes | None]:
    """What a file may hold after a power cut, None for its absence."""
    found: set[bytes | None] = set()
    for seed in range(count):
        after = disk.crash(seed=seed)
        names = after.list_directory(FOLDER)
        found.add(after.contents(FOLDER / "a") if "a" in names else None)
    return found


def test_what_was_synced_survives_every_power_cut() -> None:
    """Contents by the file's sync, the name by the folder's."""
    disk = disk_with_folder()
    file = disk.create(FOLDER / "a")
    file.write([b"one"])
    file.sync()
    assert images(disk) == {None, b"one"}
    disk.sync_directory(FOLDER)
    assert images(disk) == {b"one"}


def test_what_was_not_synced_may_survive_in_any_sectors() -> None:
    """Three sectors that each are there or are zeros, and every size that the file had."""
    disk = disk_with_folder()
    file = disk.create(FOLDER / "a")
    disk.sync_directory(FOLDER)
    parts = [bytes((65 + i,)) * 512 for i in range(3)]
    file.write(parts)
    zero = bytes(512)
    expected: set[bytes | None] = {b""}
    for choice in range(8):
        expected.add(b"".join(part if choice >> i & 1 else zero for i, part in enumerate(parts)))
    assert images(disk) == expected


def test_a_sector_is_written_whole_as_it_was_at_one_moment() -> None:
    """Two writes into one sector: none, the first, or both; never the second alone."""
    disk = disk_with_folder()
    file = disk.create(FOLDER / "a")
    disk.sync_directory(FOLDER)
    file.write([b"one"])
    file.write([b"two"])
    expected = {b"", b"one", b"onetwo", bytes(3), bytes(6), b"one\0\0\0"}
    assert images(disk, 600) == expected


@pytest.mark.parametrize(("lost", "left"), [(0, b"c"), (1, b"b"), (2, b"a"), (3, b"-")])
def test_a_sector_loses_its_newest_writes_first(lost: int, left: bytes) -> None:
    """So many of three as the answer says."""
    written = [Change(0, piece, number) for number, piece in enumerate((b"a", b"b", b"c"), 1)]
    file = Inode(seen=bytearray(b"c"), stable=b"-", pending=written)
    assert file.survivor(lambda doubt: lost, 512, "posix") == left


def test_a_disk_takes_what_it_has_room_for() -> None:
    """The rest of a write is refused; what is cut away is room again."""
    disk = SimFileSystem(room_bytes=10)
    make_folders(disk, FOLDER)
    file = disk.create(FOLDER / "a")
    file.write([b"123456"])
    file.put([b"abc"], 1)  # over what is there
    with pytest.raises(OSError, match="No space left"):
        file.write([b"789012"])
    assert disk.contents(FOLDER / "a") == b"1abc567890"
    file.truncate(2)
    file.write([b"23456789"])
    assert disk.contents(FOLDER / "a") == b"1a23456789"


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_power_is_cut_before_calls_that_write_and_at_no_others(rate: float) -> None:
    """Before all of them, or none."""
    disk = Recorder(disk_with_folder(), lambda: None, rate=rate)
    file = disk.create(FOLDER / "a")
    file.write([b"x"])
    file.sync()
    file.close()
    disk.list_directory(FOLDER)
    disk.open_read(FOLDER / "a").close()
    found = [one.where for one in disk.images]
    assert found == (
        [f"before {what} a" for what in ("create", "write", "sync", "close")] if rate else []
    )


def test_a_cut_that_was_not_synced_may_not_have_happened() -> None:
    """What stood behind the cut may come back, whole, behind what was written since."""
    disk = disk_with_folder()
    file = disk.create(FOLDER / "a")
    file.write([b"abcdef"])
    file.sync()
    disk.sync_directory(FOLDER)
    file.truncate(2)
    found = images(disk)
    assert {b"abcdef", b"ab"} <= found
    file.sync()
    assert images(disk) == {b"ab"}


def test_a_failed_sync_is_never_made_good() -> None:
    """What it should have saved stays doubtful though a later sync succeeds."""
    disk = disk_with_folder()
    faulty = FaultyFileSystem(disk, Fault(1, {"sync"}))
    file = faulty.create(FOLDER / "a")
    disk.sync_directory(FOLDER)
    file.write([bytes((65,)) * 512])
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write([bytes((66,)) * 512])
    file.sync()
    assert disk.contents(FOLDER / "a") == b"A" * 512 + b"B" * 512
    assert b"\0" * 512 + b"B" * 512 in images(disk)


def test_a_power_cut_is_repeated_by_its_number() -> None:
    """Same history, same number, same disk; other numbers give other disks."""

    def history(seed: int) -> list[bytes]:
        disk = disk_with_folder(seed)
        file = disk.create(FOLDER / "a")
        disk.sync_directory(FOLDER)
        file.write([bytes(range(1, 256)) * 40])
        return [disk.crash().contents(FOLDER / "a") for _ in range(5)]

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_a_power_cut_leaves_the_running_disk_as_it_is() -> None:
    """The same moment can be looked at many times."""
    disk = disk_with_folder()
    file = disk.create(FOLDER / "a")
    file.write([b"x" * 5000])
    disk.crash()
    assert disk.contents(FOLDER / "a") == b"x" * 5000
    file.write([b"y"])
    assert file.size() == 5001


def test_a_lock_is_held_by_one() -> None:
    """A second one is refused until the first lets go."""
    disk = disk_with_folder()
    with disk.lock(FOLDER / "lock"), pytest.raises(DirectoryLocked), disk.lock(FOLDER / "lock"):
        pass
    with disk.lock(FOLDER / "lock"):
        pass


def test_every_call_fails_once_and_the_last_run_is_clean() -> None:
    """The loop names each call in turn and ends with a run in which none failed."""

    def scenario(disk: FaultyFileSystem) -> str:
        file = disk.create(FOLDER / "a")
        try:
            file.write([b"0123456789"])
            file.sync()
        finally:
            file.close()
        disk.sync_directory(FOLDER)
        return "done"

    runs = list(every_fault(disk_with_folder, scenario, number=errno.ENOSPC, part=0.5))
    calls = [run.failed.partition(" ")[0] for run in runs]
    assert calls == ["create", "write", "sync", "close", "sync_directory", ""]
    assert [run.outcome for run in runs] == [None] * 5 + ["done"]
    assert all(isinstance(run.error, OSError) for run in runs[:-1])
    second = runs[1].filesystem.inner
    assert isinstance(second, SimFileSystem)
    assert second.contents(FOLDER / "a") == b"01234"


def test_a_mistake_of_the_scenario_is_not_taken_for_a_fault() -> None:
    """Only logweir's errors and the system's count; anything else is a bug and passes through."""

    def scenario(disk: FileSystem) -> None:
        try:
            disk.create(FOLDER / "a")
        except OSError:
            raise KeyError("a bug in handling it") from None

    with pytest.raises(KeyError):
        list(every_fault(disk_with_folder, scenario))


def test_a_lasting_fault_fails_all_later_calls() -> None:
    """A disk that is gone stays gone."""
    disk = FaultyFileSystem(disk_with_folder(), Fault(2, {"create", "remove"}, lasts=True))
    disk.create(FOLDER / "a").close()
    for call in (disk.create, disk.remove, disk.create):
        with pytest.raises(OSError, match="Input/output"):
            call(FOLDER / "b")
    assert disk.counts["create"] == 3
    assert disk.failed.startswith("create")


def test_ext4_loses_names_from_the_newest_on() -> None:
    """Never an older one without the newer ones; a sync of any file saves those before it."""
    disk = Disk()
    for name in "abc":
        disk.name((disk.root, name, disk.file()))
    (doubt,) = disk.doubts(model="ext4")
    found = {
        "".join(disk.crash(answered({doubt.key: lost}), model="ext4").seen) for lost in range(4)
    }
    assert found == {"", "a", "ab", "abc"}
    file = disk.root.seen["b"]
    disk.sync(file)
    disk.name((disk.root, "a", None), (disk.root, "d", file))
    (doubt,) = disk.doubts(model="ext4")
    after = disk.crash(answered({doubt.key: 1}), model="ext4")
    assert sorted(after.seen) == ["a", "b", "c"]


def test_ext4_shows_no_size_without_its_data() -> None:
    """Blocks that are new to a file are whole as far as its size goes; the block that it ended in
    may be zeros. In POSIX all may."""
    disk = Disk()
    file = disk.file(b"x" * 100)
    disk.root.seen["a"] = disk.root.stable["a"] = file
    disk.write(file, 100, b"y" * 9000)
    models: tuple[Model, ...] = ("posix", "ext4")
    sizes: dict[Model, set[bytes]] = {model: set() for model in models}
    for model in models:
        for seed in range(200):
            after = disk.crash(Dice(seed), model=model).seen["a"]
            assert isinstance(after, Inode)
            sizes[model].add(bytes(after.seen))
    assert {len(one) for one in sizes["ext4"]} == {100, 4096, 8192, 9100}
    assert all(one[4096:] == b"y" * (len(one) - 4096) for one in sizes["ext4"] if len(one) > 4096)
    assert any(b"\0" in one[:4096] for one in sizes["ext4"])
    assert any(b"\0" in one[4096:] for one in sizes["posix"])


def test_ext4_has_the_data_of_a_file_that_replaces_another_one() -> None:
    """Where the rename is there; and where a cut is lost, so is what was written behind it."""
    disk = Disk()
    old, new, cut = disk.file(b"old"), disk.file(), disk.file(b"cut")
    disk.root.seen |= {"a": old, "b": new, "c": cut}
    disk.write(new, 0, b"new")
    disk.name((disk.root, "b", None), (disk.root, "a", new), flushed=new)
    disk.resize(cut, 0)
    disk.write(cut, 0, b"x")
    found = set()
    for seed in range(200):
        after = dict(settled(disk.crash(Dice(seed), model="ext4")))
        found.add(" ".join(f"{name}={(data or b'').decode()}" for name, data in after.items()))
    assert found == {"a=new c=x", "a=new c=", "a=new c=cut", "a=old b=new c=cut", "a=old b= c=cut"}
