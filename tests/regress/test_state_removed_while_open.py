"""Removing the folder of the state under an open store gave raw errors of the system."""

from __future__ import annotations

import shutil
from pathlib import Path

import logweir


def test_a_store_goes_on_without_the_folder_of_its_state(tmp_path: Path) -> None:
    """It is no durable copy: changes are logged, closing is quiet, opening makes it anew."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        shutil.rmtree(tmp_path / "state")
        log.insert("kv", (1,))
        assert log.select("kv") == [(1,)]
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,)]
