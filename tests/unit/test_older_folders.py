"""Folders that older commits of this repository wrote are opened, and hold what they held."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from support.older import NEW, content, gone_on

ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "older").glob("*.tar.xz"))


@pytest.mark.parametrize("keeps_state", [True, False], ids=["state", "log alone"])
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_folder_of_an_older_commit_opens(
    archive: Path, keeps_state: bool, tmp_path: Path
) -> None:
    """With its state, whatever becomes of that, and from snapshot and log alone."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert gone_on(next(tmp_path.iterdir()), keeps_state) == [*content(), NEW]


def test_there_are_folders_of_several_commits() -> None:
    """Closed in order and killed, each small."""
    names = [path.name.partition(".")[0].split("-") for path in ARCHIVES]
    assert {how for _, how in names} == {"closed", "killed"}
    assert len({commit for commit, _ in names}) >= 4
    assert all(path.stat().st_size < 50_000 for path in ARCHIVES)
