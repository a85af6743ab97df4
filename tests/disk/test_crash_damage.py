"""`logweir crashtest` with damage: what a program notices and tells is no broken promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.crashing import crashtest, program
from typer.testing import CliRunner

from logweir.tools.cli.main import app
from logweir.tools.crash.engines import ENGINES
from logweir.tools.crash.programs import TOLD, Commands, check

pytestmark = pytest.mark.kill

PROGRAM = """
import sys, zlib
data = b"".join(b"%d\\n" % n for n in range(40))
with open(sys.argv[1] + "/log", "wb") as log:
    log.write(data + b"%08x\\n" % zlib.crc32(data))
print(39, flush=True)
"""
CHECK = """
import sys, zlib
data = open(sys.argv[1] + "/log", "rb").read()
if data[-9:] != b"%08x\\n" % zlib.crc32(data[:-9]):
    sys.exit(int(sys.argv[3]))
"""
OPTIONS = ("--wrong-bits", "--cut-files", "--states", "12")


def damaged(folder: Path, code: int) -> tuple[int, list[dict[str, Any]]]:
    """Exit code, and what is told; the check ends with `code` where it notices damage."""
    run = program(folder / "run.py", PROGRAM, "{dir}")
    look = program(folder / "check.py", CHECK, f"{{dir}} {{acked}} {code}")
    result = crashtest(folder, "--run", run, "--check", look, *OPTIONS)
    return result.exit_code, json.loads(result.stdout)["faults"]


def test_damage_that_is_noticed_breaks_no_promise(tmp_path: Path) -> None:
    """Every bit and every cut of a file with a checksum."""
    code, found = damaged(tmp_path, 3)
    assert code == 0, found
    assert [one["fault"] for one in found] == ["wrong bit", "cut file"]
    assert [(one["tried"], one["told"], one["broken"]) for one in found] == [(12, 12, 0)] * 2
    assert not (tmp_path / "kept").exists()


def test_damage_that_is_not_told_is_counted_and_the_first_kept(tmp_path: Path) -> None:
    """And shown again, by the same sentence."""
    code, found = damaged(tmp_path, 1)
    assert code == 1
    assert [(one["tried"], one["told"], one["broken"]) for one in found] == [(12, 0, 12)] * 2
    assert [one["failure"]["number"] for one in found] == [1, 1]
    assert "of log, of 119 bytes, was wrong" in found[0]["failure"]["what"]
    assert "log, of 119 bytes, was cut to" in found[1]["failure"]["what"]
    for one in found:
        again = CliRunner().invoke(app, ["crashtest", "--again", one["failure"]["folder"]])
        assert again.exit_code == 1
        assert one["failure"]["what"] in again.stdout


SNAPSHOT = "00000000000000000000.snap"
NAMES = {"logweir": SNAPSHOT, "sqlite": "db", "tarantool": SNAPSHOT}


@pytest.mark.parametrize(
    "engine",
    ["logweir", "sqlite", pytest.param("tarantool", marks=pytest.mark.tarantool)],
)
def test_what_an_engine_refuses_counts_as_told(engine: str, tmp_path: Path) -> None:
    """Each in its own way: an error of the store, of SQLite, the end of Tarantool."""
    folder = tmp_path / "dir"
    folder.mkdir()
    (folder / NAMES[engine]).write_bytes(b"no such format" * 100)
    (tmp_path / "acked").touch()
    found = check(Commands(*ENGINES[engine]), folder, tmp_path / "acked")
    assert found.code == TOLD, found.output
