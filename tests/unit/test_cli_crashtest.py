"""`logweir crashtest`: what it does to a store of its own, and that it can find something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import logweir
from logweir.store.workload import check_store
from logweir.tools.cli.main import app


@pytest.mark.kill
def test_kills_cost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The folder is left as the last kill left it, with all that was acknowledged."""
    folder = tmp_path / "store"
    result = CliRunner().invoke(app, ["--json", "crashtest", str(folder), "--rounds", "6"])
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["ok"], told["kills"], told["problems"]) == (True, 6, [])
    with logweir.open(folder) as log:
        assert log.count("crashtest") >= 3 * told["acknowledged"] > 0


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    """It writes, so it does that only where nothing is."""
    (tmp_path / "notes").write_text("mine")
    result = CliRunner().invoke(app, ["crashtest", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_what_is_lost_doubled_or_torn_is_found(tmp_path: Path) -> None:
    """The check behind every round sees each kind of broken promise."""
    with logweir.open(tmp_path) as log:
        log.create_space("crashtest", [("id", "unsigned"), ("number", "unsigned"), ("data", "any")])
        log.create_index("crashtest", "number", {"parts": ["number"], "unique": False})
    assert check_store(tmp_path, 0) == []
    assert "transaction 1 was acknowledged" in check_store(tmp_path, 1)[0]
    with logweir.open(tmp_path) as log:
        log.insert("crashtest", (3, 1, b""))
    assert "are not those of 0 transactions" in check_store(tmp_path, 0)[0]
    (tmp_path / "00000000000000000000.snap").unlink()
    (tmp_path / "state").rename(tmp_path / "gone")
    assert "cannot be opened" in check_store(tmp_path, 0)[0]
