"""How an examination tells what it does not open, and what a folder in use is to it."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from support.logs import SPACE_ROW, insert, write_log, write_snapshot

from logweir.errors import RecoveryRefused, WalError
from logweir.recovery import examine, plan
from logweir.wal.block import MAGIC_PLAIN
from logweir.wal.filesystem import OsFileSystem, ReadFile
from logweir.wal.vclock import VClock


def flip(path: Path, offset: int) -> None:
    """One wrong bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("times", [4, 5])
def test_a_folder_from_which_files_go_is_looked_at_five_times(times: int, tmp_path: Path) -> None:
    """They go between the listing and the reading of one that is in use."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, [[insert(512, [1])]])
    left = times
    opened: list[Path] = []

    class Live(OsFileSystem):
        def open_read(self, path: Path) -> ReadFile:
            nonlocal left
            opened.append(path)
            if path.suffix == ".xlog" and left and opened.count(path) % 2 == 0:  # first its header
                left -= 1
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return super().open_read(path)

    if times < 5:
        assert examine(tmp_path, filesystem=Live()).vclock == VClock({1: 1})
    else:
        with pytest.raises(WalError, match="no such file"):
            examine(tmp_path, filesystem=Live())
    assert left == 0


def test_a_refusal_says_how_many_more_places_are_damaged(tmp_path: Path) -> None:
    """Nothing of them where there is one."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, [[insert(512, [number, "x" * 50])] for number in range(8)])
    (path,) = tmp_path.glob("*.xlog")
    places = [one.start() for one in re.finditer(re.escape(MAGIC_PLAIN), path.read_bytes())]
    flip(path, places[2] + 40)
    with pytest.raises(RecoveryRefused) as one:
        plan(examine(tmp_path))
    flip(path, places[5] + 40)
    with pytest.raises(RecoveryRefused, match=r" Behind it: 1 more damaged place\."):
        plan(examine(tmp_path))
    assert "Behind it" not in str(one.value)
