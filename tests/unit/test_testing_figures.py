"""The tables of docs/reliability.md: measured in the quick form, and able to show a failure."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    journal,
    own_cache,  # noqa: F401 - a fixture
)

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults import FaultyFileSystem
from logweir.testing import CrashStore, figures, measuring, operations
from logweir.testing.meshing import mesh
from logweir.testing.operations import OPERATIONS
from logweir.tools.crash.suite import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def rows(text: str) -> list[list[str]]:
    """The lines of the tables: what, options, tried, broken, found."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines if line[0] != "what"]


def test_the_quick_form_measures_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of everything that is done to a store in one process; the rest of the page stays, other
    tables too."""
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    assert figures.main(["--quick", "--page", str(page), "store"]) == 0
    title = f"### {figures.TABLES['store'].title}\n"
    before, _, old = PAGE.read_text().partition(title)
    same, _, new = page.read_text().partition(title)
    assert same == before
    assert new.partition("\n### ")[2] == old.partition("\n### ")[2]
    found = rows(new.partition("\n### ")[0])
    assert found == rows(capsys.readouterr().out)
    assert len(found) == 15
    for what, options, tried, broken, _ in found:
        assert (options, int(broken)) == ("`--states 3`", 0), what
        # A signal may come when its process has ended.
        assert int(tried) >= 3 - what.startswith("Ctrl-C"), what


@pytest.mark.kill
def test_servers_that_follow_one_another_are_measured() -> None:
    """One is killed, and comes again; all have all that any of them acknowledged."""
    measured = mesh(1, 0, kills=True)
    assert measured[:2] == (1, 0)
    assert int(measured.found.partition(" ")[0]) > 0


@pytest.mark.parametrize(
    ("name", "states", "tried"),
    [
        ("a backup", 10, 10),
        ("a restore", 10, 10),
        ("a repair", 200, 86),
        ("a trim", 99, 24),
        ("an archive", 10, 10),
        ("a join", 99, 19),
        ("publishes", 10, 10),
        ("changes of topics", 10, 10),
    ],
)
def test_each_failing_call_of_an_operation_is_measured(name: str, states: int, tried: int) -> None:
    """What it left is whole, or made whole by the same once more, and no file stays open."""
    measured = OPERATIONS[name](states, {"number": errno.EIO})
    assert measured[:2] == (tried, 0)
    assert int(measured.found.partition(" ")[0]) >= tried // 3


def test_an_operation_that_breaks_its_promise_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish and a change of topics that are acknowledged before they are there; a trim and a
    repair that tell nothing of what failed."""

    async def early(log: logweir.Log, promise: Callable[[int], None]) -> None:
        promise(99)
        await published(log, promise)

    def early_change(store: CrashStore) -> None:
        store.promise(4)
        changed(store)

    def quiet(call: Callable[..., Any]) -> Callable[..., Any]:
        def tell_nothing(*where: Path, filesystem: FaultyFileSystem) -> Any:
            with contextlib.suppress(LogweirError):
                return call(*where, filesystem=filesystem)

        return tell_nothing

    published, changed = operations._publish_some, operations._change_topics
    monkeypatch.setattr(operations, "_publish_some", early)
    monkeypatch.setattr(operations, "_change_topics", early_change)
    monkeypatch.setattr(operations, "trim", quiet(operations.trim))
    monkeypatch.setattr(operations, "repair", quiet(operations.repair))
    for name, states in (("publishes", 10), ("changes of topics", 60), ("a trim", 99)):
        assert OPERATIONS[name](states, {"number": errno.EIO}).broken > 0, name
    assert OPERATIONS["a repair"](99, {"number": errno.ENOSPC, "lasts": True}).broken > 0


@NEEDS_COMPILER
@pytest.mark.kill
def test_a_program_is_measured_with_every_kind_of_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options of each line are those of the command; the first broken promise is named."""
    _, run, _, check = journal()
    table = figures.Table(
        "a journal", "logweir crashtest", "", partial(figures.program, run, check)
    )
    monkeypatch.setitem(figures.TABLES, "journal", table)
    assert figures.main(["--states", "2", "--rounds", "1", "journal"]) == 0
    found = rows(capsys.readouterr().out)
    assert [line[0] for line in found] == ["power cut, posix", "power cut, ext4", *list(KINDS)[1:]]
    known = (ROOT / "docs/cli.md").read_text()
    for _, options, tried, *_ in found:
        assert int(tried) >= 1
        for option in re.findall(r"--[\w-]+", options):
            assert f"`{option}" in known
    broken = {line[0]: (int(line[3]), line[4]) for line in found if line[3] != "0"}
    assert set(broken) == {"wrong bit", "cut file"}
    assert "; the first: " in broken["cut file"][1]


def test_a_broken_promise_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By each measurement of work that promises what it does afterwards."""

    def early(store: CrashStore) -> None:
        with store.open() as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")], if_not_exists=True)
            for number in range(6):
                store.promise(number)
                log.insert("t", (number, "x"))

    monkeypatch.setattr(measuring, "work", early)
    assert measuring.power_cuts(20, 0).broken > 0
    assert measuring.failing_calls(45, 0, number=errno.EIO).broken > 0


def test_what_cannot_be_measured_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that is not there, a table that is unknown, a page without a place for tables."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert figures.main(["tarantool"]) == 0
    assert "there was no program `tarantool`" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        figures.main(["nothing"])
    assert "there is no table 'nothing'" in capsys.readouterr().err
    (tmp_path / "page.md").touch()
    assert figures.main(["--page", str(tmp_path / "page.md"), "store"]) == 2
    assert "has no place for what was measured" in capsys.readouterr().err
