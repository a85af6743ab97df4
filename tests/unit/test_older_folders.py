"""Folders that older commits of this repository wrote are opened, and hold what they held."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import logweir
from logweir.recovery import examine
from logweir.wal.vclock import VClock

ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "older").glob("*.tar.xz"))


def content() -> list[tuple[int, str, int]]:
    """What they hold: see their README."""
    rows = {n: (n, "x" * n, -n) for n in range(20)} | {n: (n, "y", n) for n in range(20, 30)}
    del rows[3]
    rows[5] = (5, "changed", 95)
    rows[6] = (6, "upserted", -6)
    rows[7] = (7, "z" * 2500, 7)
    rows |= {100 + n: (100 + n, "appended", n) for n in range(20)}
    return [rows[key] for key in sorted(rows)]


@pytest.mark.parametrize("keeps_state", [True, False], ids=["state", "log alone"])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_folder_of_an_older_commit_opens(
    archive: Path, keeps_state: bool, tmp_path: Path
) -> None:
    """With its state, whatever becomes of that, and from snapshot and log alone; every index, the
    rows behind its snapshot, its follower; it goes on from there."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = next(tmp_path.iterdir())
    if not keeps_state:
        for file in (folder / "state").iterdir():
            file.unlink()
        (folder / "state").rmdir()
    assert not examine(folder).damage
    with logweir.open(folder) as log:
        assert log.select("t") == content()
        by_number = sorted(content(), key=lambda row: (row[2], row[0]))
        assert log.select("t", index="number") == by_number
        assert log.status()["followers"] == {"follower": {1: 5}}
        lsns = [row.lsn for one in log.rows(VClock({1: 24})) for row in one.rows]
        assert lsns == list(range(25, log.vclock.signature + 1))
        log.insert("t", (1000, "new", 0))
        log.snapshot()
    with logweir.open(folder) as log:
        assert log.select("t") == [*content(), (1000, "new", 0)]


def test_there_are_folders_of_several_commits() -> None:
    """Closed in order and killed, each small."""
    names = [path.name.partition(".")[0].split("-") for path in ARCHIVES]
    assert {how for _, how in names} == {"closed", "killed"}
    assert len({commit for commit, _ in names}) >= 4
    assert all(path.stat().st_size < 50_000 for path in ARCHIVES)
