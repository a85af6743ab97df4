"""How often a store asks what room the disk has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from logweir.errors import WriteFailed
from logweir.store.state.state import State
from logweir.wal.filesystem import OsFileSystem

GIB = 1 << 30


class Disk(OsFileSystem):
    """A disk whose room, and a clock whose time, are set; it counts who asks."""

    def __init__(self) -> None:
        self.free = 64 * GIB
        self.now = 100.0
        self.asked = 0

    def free_bytes(self, path: Path) -> int | None:
        self.asked += 1
        return self.free


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def test_much_room_is_believed_for_a_while(tmp_path: Path, disk: Disk) -> None:
    """Not longer, though: a disk that others have filled refuses the next change."""
    state = State(tmp_path, filesystem=disk)
    for _ in range(3):
        state.check_disk(1000)
    assert disk.asked == 1
    disk.free = 0
    disk.now += 1
    with pytest.raises(WriteFailed):
        state.check_disk(1000)
    with pytest.raises(WriteFailed):  # what was refused is not believed afterwards
        state.check_disk(1000)


def test_more_than_was_seen_is_asked_for(tmp_path: Path, disk: Disk) -> None:
    """What was stored since the system was asked counts."""
    state = State(tmp_path, filesystem=disk)
    state.check_disk(0)
    state.check_disk(40 * GIB)
    disk.free = 24 * GIB
    with pytest.raises(WriteFailed):
        state.check_disk(40 * GIB)
    assert disk.asked == 2


def test_little_room_is_looked_at_each_time(tmp_path: Path, disk: Disk) -> None:
    """Where others could fill the rest meanwhile, nothing is believed."""
    disk.free = 2 * GIB
    state = State(tmp_path, filesystem=disk)
    state.check_disk(1000)
    state.check_disk(1000)
    assert disk.asked == 2
