"""`logweir crashtest` with calls to the disk that fail: what is caught, and what is not blamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    crashtest,
    journal,
    own_cache,  # noqa: F401 - a fixture
    program,
    told,
)
from typer.testing import CliRunner

from logweir.tools.cli.main import app

pytestmark = [pytest.mark.kill, NEEDS_COMPILER]


def test_the_right_program_is_not_blamed(tmp_path: Path) -> None:
    """Whichever of some calls fails in whichever way: what it had acknowledged is there."""
    faults = ["--disk-errors", "--full-disk", "--short-writes", "--interrupt"]
    result = crashtest(tmp_path, *journal(), *faults, "--states", "6")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["faults"]
    names = [one["fault"] for one in found]
    assert names == ["disk error", "full disk", "short write", "interrupt"]
    assert [one["tried"] for one in found] == [6] * 4


PROGRAM = """
import os, signal, sys
what = sys.argv[2]
log = os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_CREAT)
folder = os.open(sys.argv[1], os.O_RDONLY)
os.fsync(folder)
if what == "interrupt":
    signal.signal(signal.SIGINT, lambda *_: os.truncate(sys.argv[1] + "/log", 0))
for n in range(4):
    line = b"%08d\\n" % n
    if what == "retry":
        os.write(log, line)
    try:
        if what == "full-disk":
            with open(sys.argv[1] + "/log", "w") as again:
                again.writelines("%08d\\n" % m for m in range(n + 1))
        elif what != "retry":
            os.write(log, line)
        os.fsync(log)
    except OSError:
        if what == "crash":
            os.abort()
        if what == "hang" or (what == "late-hang" and n == 2):
            signal.pause()
        if what in ("full-disk", "late-hang"):
            sys.exit(1)
        os.fsync(log)
    os.write(1, line)
"""
CHECK = """
import sys
try:
    there = open(sys.argv[1] + "/log").read().split("\\n")[:-1]
except FileNotFoundError:
    there = []
missing = [n for n in open(sys.argv[2]).read().split() if n not in there]
if missing:
    sys.exit(f"missing: {missing[0]}")
"""
MISTAKES = {
    "retry": ("--disk-errors", "all was lost that no sync had saved", "check ended"),
    "short": ("--short-writes", "was made by half", "check ended with code 1"),
    "full-disk": ("--full-disk", "all later ones failed with ENOSPC", "check ended with code 1"),
    "interrupt": ("--interrupt", "SIGINT came before call", "check ended with code 1"),
    "crash": ("--disk-errors", "failed with EIO", "the program died by SIGABRT"),
    "hang": ("--disk-errors", "failed with EIO", "the program hung for 3 seconds"),
    "late-hang": ("--disk-errors", "failed with EIO", "the program hung for 3 seconds"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(mistake: str, tmp_path: Path) -> None:
    """A sync that is tried again, a short write that is not looked at, a file that is written anew
    in its place, a signal handler that spoils what is there, an abort, a wait for ever at once or
    behind acknowledgements; and the kept folder shows it again."""
    option, what, wrong = MISTAKES[mistake]
    run = program(tmp_path / "run.py", PROGRAM, f"{{dir}} {mistake}")
    check = program(tmp_path / "check.py", CHECK, "{dir} {acked}")
    result = crashtest(tmp_path, "--run", run, "--check", check, option, "--timeout", "3")
    assert result.exit_code == 1, result.output
    failure = told(result)["failure"]
    assert what in failure["what"]
    assert wrong in failure["wrong"]
    again = CliRunner().invoke(app, ["crashtest", "--again", failure["folder"]])
    assert again.exit_code == 1, again.output
    assert failure["what"] in again.stdout
    assert wrong in again.stdout


def test_a_hang_that_was_mended_is_not_shown_again(tmp_path: Path) -> None:
    """The run with the call that failed is made anew, with the program as it is now."""
    run = program(tmp_path / "run.py", PROGRAM, "{dir} crash")
    check = program(tmp_path / "check.py", CHECK, "{dir} {acked}")
    result = crashtest(tmp_path, "--run", run, "--check", check, "--disk-errors")
    kept = told(result)["failure"]["folder"]
    (tmp_path / "run.py").write_text(PROGRAM.replace("os.abort()", "sys.exit(1)"))
    again = CliRunner().invoke(app, ["crashtest", "--again", kept])
    assert (again.exit_code, again.stdout) == (0, "the check passes now\n")
