"""How often a store asks what room the disk has."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from logweir.errors import WriteFailed
from logweir.store.state import State

GIB = 1 << 30


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk whose room, and a clock whose time, are set; it counts who asks."""
    made = SimpleNamespace(free=64 * GIB, now=100.0, asked=0)

    def statvfs(path: object) -> SimpleNamespace:
        made.asked += 1
        return SimpleNamespace(f_blocks=1, f_bavail=made.free, f_frsize=1)

    def clock() -> float:
        return made.now

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(time, "monotonic", clock)
    return made


def test_much_room_is_believed_for_a_while(tmp_path: Path, disk: SimpleNamespace) -> None:
    """Not longer, though: a disk that others have filled refuses the next change."""
    state = State(tmp_path)
    for _ in range(3):
        state.check_disk(1000)
    assert disk.asked == 1
    disk.free = 0
    disk.now += 1
    with pytest.raises(WriteFailed):
        state.check_disk(1000)
    with pytest.raises(WriteFailed):  # what was refused is not believed afterwards
        state.check_disk(1000)


def test_more_than_was_seen_is_asked_for(tmp_path: Path, disk: SimpleNamespace) -> None:
    """What was stored since the system was asked counts."""
    state = State(tmp_path)
    state.check_disk(0)
    state.check_disk(40 * GIB)
    disk.free = 24 * GIB
    with pytest.raises(WriteFailed):
        state.check_disk(40 * GIB)
    assert disk.asked == 2


def test_little_room_is_looked_at_each_time(tmp_path: Path, disk: SimpleNamespace) -> None:
    """Where others could fill the rest meanwhile, nothing is believed."""
    disk.free = 2 * GIB
    state = State(tmp_path)
    state.check_disk(1000)
    state.check_disk(1000)
    assert disk.asked == 2
