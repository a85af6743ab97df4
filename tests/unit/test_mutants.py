"""The list of mutants fits the tree, and what is run of it says what was noticed."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.rooms import ROOMS

from logweir.tools.mutate import Mutant, read_mutants, run_mutants, stale

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = read_mutants(ROOT / "tests" / "mutants")


@cache
def names_of(path: Path) -> frozenset[str]:
    """The names of a test file, of classes with what is in them."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):  # a state machine of Hypothesis
            found |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("room", sorted({one.room for one in MUTANTS}))
def test_mutants_fit_the_tree(room: str) -> None:
    """Each text stands exactly once where it is said to, and the tests are there."""
    assert room in ROOMS
    mine = [one for one in MUTANTS if one.room == room]
    assert [(one.name, text) for one in mine if (text := stale(one, ROOT))] == []
    for one in mine:
        assert one.tests, one.name
        for test in one.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), (one.name, test)
            assert not name or name.partition("[")[0] in names_of(ROOT / file), (one.name, test)


def test_names_of_mutants_are_their_own() -> None:
    """A name is that of one mutant, and of no room."""
    names = [one.name for one in MUTANTS]
    assert len(set(names)) == len(names)
    assert not set(names) & set(ROOMS)


HALF = Mutant("wal", "half", "half", "half.py", "value // 2", "value / 2", ("test_half.py",))


def toy(folder: Path, check: str) -> Path:
    """A tree with one module and one test of it."""
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "half.py").write_text("def half(value):\n    return value // 2\n")
    text = f"from logweir.half import half\n\ndef test_half():\n    assert {check}\n"
    (folder / "test_half.py").write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_what_a_test_notices_is_killed_and_else_survives(tmp_path: Path) -> None:
    """In a copy: the tree keeps its text. What does not fit is told, and run by nobody."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    unseen = replace(HALF, name="unseen", into="(value + 0) // 2")
    old = replace(HALF, name="old", text="value // 3")
    said: list[str] = []
    verdicts = run_mutants([HALF, unseen, old], tree, said.append, seconds=60)
    assert [one.outcome for one in verdicts] == ["killed", "survived", "stale"]
    assert "its text stands 0 times in half.py" in said[-1]
    assert "value // 2" in (tree / "half.py").read_text()


def test_tests_that_fail_without_a_mutant_say_nothing_of_it(tmp_path: Path) -> None:
    """Nothing is called killed then."""
    tree = toy(tmp_path / "tree", "half(3) == 2")
    with pytest.raises(ValueError, match="not all tests pass as the tree stands"):
        run_mutants([HALF], tree, lambda text: None, seconds=60)
