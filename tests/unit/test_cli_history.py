"""`logweir history`: one key of a folder that somebody may have open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.tools.cli.main import app


def run(*arguments: object) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, ["history", *map(str, arguments)])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store that is open, with a thing that was changed and removed."""
    with logweir.open(tmp_path / "store", "write") as log:
        log.create_space("things", format=[("id", "unsigned"), ("data", "varbinary")])
        log.insert("things", (1, b"\xde\xad"))
        log.update("things", 1, [["=", "data", b""]])
        log.delete("things", 1)
        yield log


def test_each_change_is_a_line_of_text_or_json(log: logweir.Log) -> None:
    """All, behind a position, the first ones; the space by its name or id."""
    text = run(log.path, "things", 1)
    assert (text.exit_code, text.stderr) == (0, "")
    assert text.stdout.splitlines()[0].split() == ["-", "{}", "SNAPSHOT", "-"]
    assert text.stdout.splitlines()[-1].split()[1:] == [f"1:{log.vclock.lsn(1)}", "DELETE", "-"]
    objects = [json.loads(line) for line in run(log.path, 512, "[1]", "--json").stdout.splitlines()]
    assert [one["tuple"] for one in objects] == [
        None,
        [1, {"$bin": "3q0="}],
        [1, {"$bin": ""}],
        None,
    ]
    assert [one["type"] for one in objects] == ["SNAPSHOT", "INSERT", "UPDATE", "DELETE"]
    assert objects[-1]["vclock"] == {"1": log.vclock.lsn(1)}
    start = f"{{1: {objects[1]['lsn']}}}"
    behind = run(log.path, "things", 1, "--json", "--from", start, "--limit", 1)
    assert [json.loads(line) for line in behind.stdout.splitlines()] == objects[2:3]


def test_what_cannot_be_told_is_said(log: logweir.Log, tmp_path: Path) -> None:
    """No such tuple, key, space, folder, position."""
    never = run(log.path, "things", 2)
    assert (never.exit_code, never.stderr) == (1, "logweir: there is no change of that key\n")
    for arguments, code, text in (
        ((log.path, "none", 1), 1, "Space 'none' does not exist"),
        ((log.path, "things", "[1, 2]"), 1, "expected 1, got 2"),
        ((log.path, "things", "x"), 2, "KEY"),
        ((log.path, "things", 1, "--from", "5"), 2, "is no vclock"),
        ((tmp_path / "nowhere", "things", 1), 2, "nowhere"),
        ((tmp_path, "things", 1), 1, "no snapshot"),
    ):
        found = run(*arguments)
        assert found.exit_code == code
        assert text in found.stderr
