"""The list of mutants fits the tree, and what is run of it says what was noticed."""

from __future__ import annotations

import ast
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.rooms import ROOMS

from logweir.tools.mutate import Mutant, Tree, random_mutants, read_mutants, run_mutants, stale
from logweir.tools.randommutants import SOURCES, changes, room_of

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


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of toys need none, and to load all of them takes longer than the tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


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


def kernels(tree: Path) -> set[Path]:
    """Those of a tree that are compiled."""
    found = (path.relative_to(tree) for path in tree.glob("[a-z]*/**/*kernel.*.so"))
    return {path for path in found if path.parts[0] != "build"}


def test_a_copy_of_the_tree_has_all_its_kernels(tmp_path: Path) -> None:
    """Those without a source of their own, too, which others need."""
    assert kernels(Tree(ROOT, tmp_path).path) == kernels(ROOT)


def test_tests_that_fail_without_a_mutant_say_nothing_of_it(tmp_path: Path) -> None:
    """Nothing is called killed then."""
    tree = toy(tmp_path / "tree", "half(3) == 2")
    with pytest.raises(ValueError, match="not all tests pass as the tree stands"):
        run_mutants([HALF], tree, lambda text: None, seconds=60)


SUM = """
def total(values: list[int], least: int = 0) -> int:
    '''Of those above it.'''
    found = 0
    for value in values:
        if not value > least and True:
            continue
        found += value
    return found
"""


def test_places_of_a_source_are_changed_one_by_one() -> None:
    """Operators, conditions, numbers, statements; each change leaves a program. No signatures, no
    strings."""
    source = SUM.encode()
    found = changes(source)
    assert {(one.line, one.text, one.into) for one in found} == {
        (4, "0", "1"),
        (6, "not value > least and True", "(not (not value > least and True))"),
        (6, "not value > least and True", "(not value > least or True)"),
        (6, "not value > least", "(value > least)"),
        (6, "value > least", "(value >= least)"),
        (6, "True", "False"),
        (7, "continue", "break"),
        (8, "found += value", "pass"),
        (9, "return found", "return None"),
    }
    for one in found:
        assert one.applied(source) != source
        ast.parse(one.applied(source))


def test_each_room_has_sources() -> None:
    """And every file of the product that tests are dealt out for is of one room."""
    assert set(SOURCES) == set(ROOMS)
    files = {name for room in SOURCES.values() for name in room}
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert room_of("replication/iproto/push.py") == "iproto"
    assert room_of("replication/server.py") == "hub"
    assert room_of("tests/conftest.py") == ""


def test_mutants_that_nobody_chose_are_run_on_lines_that_tests_run(tmp_path: Path) -> None:
    """The seed decides which; a test of one value notices half of them."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    for folder in ("wal", "tools"):
        (tree / folder).mkdir()
        (tree / folder / "__init__.py").touch()
    text = "def half(value):\n    if value < 0:\n        return 1\n    return value // 2\n"
    (tree / "wal/half.py").write_text(text)
    (tree / "test_half.py").write_text(
        "from logweir.wal.half import half\n\ndef test_half():\n    assert half(9) == 4\n"
    )
    shutil.copy(ROOT / "tools/linetrace.py", tree / "tools")
    said: list[str] = []
    verdicts = random_mutants(
        "wal", tree, said.append, tests=["test_half.py"], count=2, seed=46, seconds=60
    )
    assert {(one.mutant.breaks, one.outcome) for one in verdicts} == {
        ("'value < 0' is '(value <= 0)'", "survived"),
        ("'value // 2' is '(value * 2)'", "killed"),
    }
    assert (tree / "wal/half.py").read_text() == text
    with pytest.raises(ValueError, match="no test ran a line of the room 'store'"):
        random_mutants(
            "store", tree, said.append, tests=["test_half.py"], count=1, seed=1, seconds=9
        )
