"""The pytest plug-in, in suites of users: pytest runs them in a process of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    PYTHON,
    own_cache,  # noqa: F401 - a fixture
)

JOURNAL = Path(__file__).resolve().parents[2] / "docs/examples/journal.py"


def run(folder: Path, suite: str, *options: str) -> tuple[int, str]:
    """Exit code and output of pytest."""
    (folder / "test_suite.py").write_text(suite)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
            "--basetemp",
            str(folder / "base"),
            "-q",
            *options,
            "test_suite.py",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


UNUSED = """
import sys

def test_nothing():
    heavy = ("lmdb", "logweir.store", "logweir.recovery", "logweir.tools", "hypothesis")
    assert [one for one in heavy if one in sys.modules] == []
    assert "logweir.testing.plugin" in sys.modules
"""


def test_it_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    """pytest finds it by its entry point, and it loads no store."""
    code, output = run(tmp_path, UNUSED, "--strict-markers")
    assert code == 0, output


REWRITTEN = """
def test_modules_are_as_they_are():
    import logweir.store, own_plugin_package
    assert type(own_plugin_package.__loader__).__name__ == "AssertionRewritingHook"
    assert type(logweir.store.__loader__).__name__ != "AssertionRewritingHook"
"""


def test_the_package_s_modules_are_not_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is installed as a wheel, whose list of files pytest goes by."""
    record = tmp_path / "site/installed-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (record / "RECORD").write_text("logweir/__init__.py,,\nown_plugin_package/__init__.py,,\n")
    (record / "entry_points.txt").write_text("[pytest11]\nlogweir = logweir.testing.plugin\n")
    (tmp_path / "site/own_plugin_package").mkdir()
    (tmp_path / "site/own_plugin_package/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code, output = run(tmp_path, REWRITTEN)
    assert code == 0, output


EARLY = """
import pytest

@pytest.mark.power_cut(states=60, seed=4)
def test_promises(crash_store):
    def work(store):
        with store.open() as log:
            log.create_space("t", [("id", "unsigned")])
            for number in range(3):
                store.promise(number)
                log.insert("t", (number,))
    for cut in crash_store.power_cuts(work):
        with cut.open() as log:
            there = {row[0] for row in log.select("t")} if cut.promised else set()
        assert set(cut.promised) <= there
"""


def test_a_failure_names_the_cut_and_what_repeats_it(tmp_path: Path) -> None:
    """The command tries that one cut, and fails the same way; the disk is kept."""
    code, output = run(tmp_path, EARLY, "--strict-markers")
    assert code == 1, output
    assert "seed 4; power cut " in output
    assert "behind the promise of 0" in output
    kept = re.search(r"its disk: (.*)", output)
    assert kept is not None
    assert list(Path(kept[1]).glob("*.snap"))
    again = re.search(r"again: pytest (.*)", output)
    assert again is not None
    words = shlex.split(again[1])
    assert words[0] == "test_suite.py::test_promises"
    code, second = run(tmp_path, EARLY, *words[1:])
    assert code == 1, second
    assert again[0] in second
    fewer = [*words[1:-1], str(int(words[-1]) - 1)]
    assert run(tmp_path, EARLY.replace("store.promise(number)", "pass"), *fewer)[0] == 0


PROGRAMS = """
import pytest

@pytest.mark.power_cut(states=25)
@pytest.mark.parametrize("bug", ["", "early-ack"])
def test_journal(crash_program, bug):
    done = crash_program({run!r} + bug, {check!r} + bug, lives=1)
    assert [(one.fault, one.tried) for one in done] == [("power cut", 25)]

def test_failpoint(failpoint, tmp_path):
    import logweir
    passed = []
    failpoint("wal.after_sync", lambda: passed.append(1))
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", "unsigned")])
    assert passed

def test_nothing_is_armed():
    from logweir.wal import failpoint
    assert not failpoint.ARMED

@pytest.mark.power_cut(state=1)
def test_wrong_mark(crash_store):
    pass
"""


@NEEDS_COMPILER
@pytest.mark.kill
def test_programs_places_and_marks(tmp_path: Path) -> None:
    """A program with a planted mistake fails its test, with the command that shows it again; the
    right one passes; a mark with a word that is not known is told."""
    start = f"{PYTHON} {shlex.quote(str(JOURNAL))}"
    suite = PROGRAMS.format(run=f"{start} run {{dir}} ", check=f"{start} check {{dir}} {{acked}} ")
    code, output = run(tmp_path, suite, "-rA")
    assert code == 1, output
    lines = set(re.findall(r"^(?:PASSED|FAILED|ERROR) test_suite.py::\S+", output, re.MULTILINE))
    assert lines == {
        "PASSED test_suite.py::test_journal[]",
        "FAILED test_suite.py::test_journal[early-ack]",
        "PASSED test_suite.py::test_failpoint",
        "PASSED test_suite.py::test_nothing_is_armed",
        "ERROR test_suite.py::test_wrong_mark",
    }
    assert "before the file was synced" in output
    assert "again: logweir crashtest --again " in output
    assert "it is @pytest.mark.power_cut(states=…, seed=…)" in output
