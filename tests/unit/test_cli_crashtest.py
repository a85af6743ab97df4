"""`logweir crashtest` with kills: what it does to programs, what it finds, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import crashing
from support.crashing import program, told
from support.waiting import until
from typer.testing import CliRunner, Result

import logweir
from logweir.store.workload import check_store
from logweir.tools.cli.main import app

WRITER = """
import os, sys
out = open(sys.argv[1] + "/log", "ab", buffering=0)
for n in range(100):
    out.write(b"%d\\n" % n)
    os.write(1, b"%d\\n" % n)
"""
LIAR = """
import os, sys, time
for n in range(100):
    os.write(1, b"%d\\n" % n)
    time.sleep(0.002)
    with open(sys.argv[1] + "/log", "ab") as out:
        out.write(b"%d\\n" % n)
"""
PARENT = """
import os, signal, sys
if (child := os.fork()) == 0:
    signal.pause()
with open(sys.argv[1] + "/../../child", "a") as out:
    out.write(f"{child}\\n")
os.write(1, b"0\\n")
signal.pause()
"""
ONCE = """
import os, signal, sys
if os.path.exists(sys.argv[1] + "/lock"):
    sys.exit("it is locked")
open(sys.argv[1] + "/lock", "w").close()
os.write(1, b"0\\n")
signal.pause()
"""
FILE = """
import sys
for n in range(100):
    for name in ("log", "acks"):
        with open(sys.argv[1] + "/" + name, "a") as out:
            out.write(f"{n}\\n")
"""
CHECK = """
import sys
try:
    there = set(open(sys.argv[1] + "/log").read().split())
except FileNotFoundError:
    there = set()
missing = [n for n in open(sys.argv[2]).read().split() if n not in there]
if missing:
    sys.exit(f"missing: {missing[0]}")
"""
PASS = ""


def crashtest(folder: Path, text: str, check: str, *options: str) -> Result:
    """What the command says of a program and a check."""
    run = program(folder / "run.py", text, "{dir}")
    check = program(folder / "check.py", check, "{dir} {acked}")
    short = ["--rounds", "2", "--lives", "2"]
    return crashing.crashtest(folder, "--run", run, "--check", check, *short, *options)


@pytest.mark.kill
def test_a_program_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    """All lives are lived, lines were acknowledged, nothing is kept."""
    result = crashtest(tmp_path, WRITER, CHECK)
    assert result.exit_code == 0, result.output
    fault = told(result)
    assert (fault["fault"], fault["tried"], fault["failure"]) == ("kill", 4, None)
    assert fault["acknowledged"] > 4
    assert not (tmp_path / "kept").exists()


@pytest.mark.kill
def test_a_program_that_acknowledges_too_early_is_caught_and_shown_again(tmp_path: Path) -> None:
    """The kept folder has what the kill left; one command checks it once more."""
    result = crashtest(tmp_path, LIAR, CHECK, "--rounds", "20")
    assert result.exit_code == 1, result.output
    failure = told(result)["failure"]
    assert failure["wrong"] == "the check ended with code 1"
    assert "missing: " in failure["output"]
    kept = Path(failure["folder"])
    assert {one.name for one in kept.iterdir()} == {
        *("before", "after", "acked", "output", "failure.json")
    }
    again = CliRunner().invoke(app, ["crashtest", "--again", str(kept)])
    assert again.exit_code == 1
    assert failure["output"].strip() in again.stdout
    (kept / "acked").write_text("")
    again = CliRunner().invoke(app, ["crashtest", "--again", str(kept)])
    assert (again.exit_code, again.stdout) == (0, "the check passes now\n")


@pytest.mark.kill
def test_the_whole_group_of_processes_is_killed(tmp_path: Path) -> None:
    """A child does not outlive the program."""
    run = PARENT.replace('sys.argv[1] + "/../../child"', repr(str(tmp_path / "child")))
    result = crashtest(tmp_path, run, PASS, "--rounds", "1")
    assert result.exit_code == 0, result.output
    children = (tmp_path / "child").read_text().split()
    assert len(children) == 3  # the trial, and two lives
    for child in children:
        state = Path("/proc", child, "stat")
        until(lambda state=state: not state.exists() or ") Z " in state.read_text())


@pytest.mark.kill
def test_a_program_that_does_not_start_again_is_caught(tmp_path: Path) -> None:
    """What a kill left must not keep it from starting."""
    result = crashtest(tmp_path, ONCE, PASS)
    assert result.exit_code == 1, result.output
    failure = told(result)["failure"]
    assert failure["what"] == "the program was started again on what life 1 had left"
    assert "it is locked" in failure["output"]
    again = CliRunner().invoke(app, ["crashtest", "--again", failure["folder"]])
    assert again.exit_code == 1
    assert "the program ended with code 1: it is locked" in again.stdout


@pytest.mark.kill
def test_acknowledgements_are_taken_from_a_file(tmp_path: Path) -> None:
    """One in the folder, too."""
    result = crashtest(tmp_path, FILE, CHECK, "--acks", "{dir}/acks")
    assert result.exit_code == 0, result.output
    assert told(result)["acknowledged"] > 4


@pytest.mark.kill
def test_a_check_that_hangs_is_a_failure(tmp_path: Path) -> None:
    """It is stopped when its time is over."""
    hang = "import signal, sys, os\nif not os.path.exists(sys.argv[1] + '/x'): signal.pause()"
    run = WRITER.replace("for n", "if 'trial' in sys.argv[1]: open(sys.argv[1] + '/x', 'w')\nfor n")
    result = crashtest(tmp_path, run, hang, "--timeout", "3")
    assert result.exit_code == 1, result.output
    assert told(result)["failure"]["wrong"] == "the check took more than 3 seconds"


REFUSED = {
    "no such program": (["--run", "nothing-of-that-name {dir}"], "there is no program"),
    "no folder": (["--run", "true"], "has no {dir}"),
    "no words": (["--run", "'{dir}"], "cannot be split into words"),
    "silent": (["--run", "true {dir}"], "acknowledged nothing"),
    "failing": (["--run", "cat {dir}/nothing"], "ended with code 1 though nothing was done to it"),
    "check fails": (
        ["--check", "false {dir}"],
        "code 1 though nothing was done to the program. hint",
    ),
    "an engine too": (["--engine", "logweir"], "has a program and a check of its own"),
    "unknown engine": (["--engine", "x"], "there is no 'x'. hint: logweir, sqlite, tarantool"),
    "no check": (["--check", ""], "--check (argument): is missing"),
    "nothing kept": (["--again", "."], "holds no failure that was kept"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_tested_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    """Exit code 2, and the reason: none of it is a failure of the program."""
    options, reason = REFUSED[name]
    result = crashtest(tmp_path, WRITER, PASS, *options)
    assert result.exit_code == 2, result.output
    assert reason in result.stderr


@pytest.mark.kill
def test_the_store_keeps_its_promises(tmp_path: Path) -> None:
    """The ready-made pair of logweir itself."""
    result = crashing.crashtest(tmp_path, "--engine", "logweir", "--rounds", "1", "--lives", "4")
    assert result.exit_code == 0, result.output
    assert told(result)["acknowledged"] > 0


def test_what_is_lost_doubled_or_torn_is_found(tmp_path: Path) -> None:
    """The check of logweir's own pair sees each kind of broken promise."""
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
