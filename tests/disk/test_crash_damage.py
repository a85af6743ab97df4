"""`logweir crashtest` with damage: what a program notices and tells is no broken promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    crashtest,
    own_cache,  # noqa: F401 - a fixture
    program,
)
from typer.testing import CliRunner

from logweir.tools.cli.main import app
from logweir.tools.crash.engines import ENGINES
from logweir.tools.crash.programs import TOLD, Commands, check

pytestmark = pytest.mark.kill

PROGRAM = """
import sys, zlib
open(__file__ + ".runs", "a").write("x")
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
    assert (tmp_path / "run.py.runs").read_text() == "xx"  # one run is enough for each fault


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


BLOCKS = """
import os, sys
log = os.open(sys.argv[1] + "/log", os.O_CREAT | os.O_WRONLY)
for n in range(20):
    os.write(log, b"head" + bytes(4000))
    print(n, flush=True)
"""
HEADS = """
import sys
data = open(sys.argv[1] + "/log", "rb").read()
sys.exit(any(data[at : at + 4] != b"head" for at in range(0, len(data), 4004)))
"""


def spoilt_heads(folder: Path) -> dict[str, Any]:
    """What 24 wrong bits do where four bytes of each 4004 matter."""
    run = program(folder / "run.py", BLOCKS, "{dir}")
    look = program(folder / "check.py", HEADS, "{dir}")
    result = crashtest(folder, "--run", run, "--check", look, "--wrong-bits", "--states", "24")
    (found,) = json.loads(result.stdout)["faults"]
    assert found["tried"] == 24
    return found


@NEEDS_COMPILER
def test_every_second_wrong_bit_is_where_a_write_begins(tmp_path: Path) -> None:
    """In its first sixteen bytes, four of which matter here."""
    found = spoilt_heads(tmp_path)
    assert 1 <= found["broken"] <= 9
    assert found["notes"] == []


def test_what_cannot_be_recorded_is_damaged_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is told."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = spoilt_heads(tmp_path)
    assert found["broken"] == 0
    (note,) = found["notes"]
    assert note.startswith("bits were drawn from all bytes alike: ")


ENDLESS = """
import itertools, sys, time
with open(sys.argv[1] + "/log", "a", buffering=1) as log:
    for n in itertools.count():
        log.write(f"{n}\\n")
        print(n, flush=True)
        time.sleep(0.001)
"""
COUNT = """
import sys
with open(sys.argv[3], "a") as counts:
    counts.write(f"{len(open(sys.argv[2]).readlines())}\\n")
"""


def test_a_program_that_never_ends_is_damaged_at_several_places(tmp_path: Path) -> None:
    """The first life is the longest; later ones end behind an acknowledgement of it."""
    run = program(tmp_path / "run.py", ENDLESS, "{dir}")
    look = program(tmp_path / "check.py", COUNT, f"{{dir}} {{acked}} {tmp_path / 'counts'}")
    options = ("--cut-files", "--states", "6", "--lives", "6")
    result = crashtest(tmp_path, "--run", run, "--check", look, *options)
    assert result.exit_code == 0, result.output
    first, *later = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(later) == 5
    assert min(later) < 0.8 * first


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
