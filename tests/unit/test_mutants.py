"""The list of mutants fits the tree, and what is run of it says what was noticed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.rooms import ROOMS

from logweir.tools.kernelmutants import declared, joined, switched, switches
from logweir.tools.mutantforks import changed_code
from logweir.tools.mutantrecords import read_equivalents, stale_equivalent
from logweir.tools.mutanttree import Lines, Tree
from logweir.tools.mutate import Mutant, Run, read_mutants, stale
from logweir.tools.randommutants import SOURCES, changes, room_of
from logweir.wal import kernel
from logweir.wal.built import RECORD

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
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of toys need none but Hypothesis', which is given a seed; to load all of them takes
    longer than the tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "_hypothesis_pytestplugin")


def toy(folder: Path, check: str) -> Path:
    """A tree with one module and one test of it."""
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "half.py").write_text("def half(value):\n    return value // 2\n")
    text = f"from logweir.half import half\n\ndef test_half():\n    assert {check}\n"
    (folder / "test_half.py").write_text(text)
    freeze = "import gc\n\ndef pytest_collection_finish():\n    gc.freeze()\n"
    (folder / "conftest.py").write_text(freeze)  # as that of the project does
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_what_a_test_notices_is_killed_and_else_survives(tmp_path: Path) -> None:
    """In a copy: the tree keeps its text. What does not fit is told, and run by nobody."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    unseen = replace(HALF, name="unseen", into="(value + 0) // 2")
    at_import = replace(HALF, name="at import", text="def half(value):", into="def half(number):")
    old = replace(HALF, name="old", text="value // 3")
    ends = replace(HALF, name="ends", into="__import__('os').kill(__import__('os').getpid(), 11)")
    said: list[str] = []
    run = Run(tree, tmp_path / "scratch", said.append, tmp_path / "results/lines")
    mutants = [HALF, unseen, at_import, old, ends]
    verdicts = run.judge(mutants)
    assert [one.outcome for one in verdicts] == ["killed", "survived", "killed", "stale", "killed"]
    assert verdicts[0].detail == "test_half.py::test_half"
    assert run._alone(HALF).detail.startswith("FAILED test_half.py::test_half")
    assert verdicts[3].detail == "its text stands 0 times in half.py"
    assert verdicts[4].detail == "(signal)"  # the process of the tests goes on
    alone = run._alone(ends)
    assert (alone.outcome, alone.detail) == ("killed", "the tests ended by signal 11")
    assert "value // 2" in (tree / "half.py").read_text()

    said.clear()
    more = Run(tree, tmp_path / "again", said.append, tmp_path / "results/lines")
    assert [one.outcome for one in more.judge(mutants)] == [one.outcome for one in verdicts]
    assert [line.split()[0] for line in said] == ["survived"]  # what was killed is known


def kernels(tree: Path) -> set[Path]:
    """Those of a tree that are compiled."""
    return {path.relative_to(tree) for path in tree.glob("*.so")}


def test_a_copy_of_the_tree_has_all_its_kernels(tmp_path: Path) -> None:
    """Those without a source of their own, too, which others need."""
    assert kernels(Tree(ROOT, tmp_path).path) == kernels(ROOT)


def test_tests_that_fail_without_a_mutant_say_nothing_of_it(tmp_path: Path) -> None:
    """Nothing is called killed then; the tests behind them are asked."""
    tree = toy(tmp_path / "tree", "half(3) == 2")
    with open(tree / "test_half.py", "a") as file:
        file.write("\ndef test_other():\n    assert half(4) == 2\n")
    seen = replace(HALF, name="seen", into="value // 3")
    verdicts = Run(tree, tmp_path / "scratch", lambda text: None).judge([HALF, seen])
    assert [one.outcome for one in verdicts] == ["survived", "killed"]
    assert verdicts[1].detail == "test_half.py::test_other"


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
    """The seed decides which; a test of one value notices half of them. What is known to change
    nothing is not drawn."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    for folder in ("wal", "tools"):
        (tree / folder).mkdir()
        (tree / folder / "__init__.py").touch()
    text = "def half(value):\n    if value < 0:\n        return 1\n    return value // 2\n"
    (tree / "wal/half.py").write_text(text)
    (tree / "test_half.py").write_text(
        "from logweir.wal.half import half\n\ndef test_half():\n    assert half(9) == 4\n"
    )
    for name in ("linetrace", "mutantforks"):
        shutil.copy(ROOT / f"tools/{name}.py", tree / "tools")
    (tree / "tests").mkdir()
    (tree / "tests/equivalents.toml").write_text(
        '[[equivalent]]\nfile = "wal/half.py"\nline = "if value < 0:"\ntext = "0"\ninto = "1"\n'
        'why = "half of 0 is 0"\n'
    )
    run = Run(tree, tmp_path / "scratch", lambda text: None)
    mutants = run.draw("wal", 20, 1, 60, ["test_half.py"])
    verdicts = run.judge(mutants, 1)
    assert {(one.mutant.breaks, one.outcome) for one in verdicts} == {
        ("'value < 0' is '(value <= 0)'", "survived"),
        ("'value < 0' is '(not (value < 0))'", "killed"),
        ("'value // 2' is '(value * 2)'", "killed"),
        ("'2' is '3'", "killed"),
        ("'return value // 2' is 'return None'", "killed"),
    }
    assert (tree / "wal/half.py").read_text() == text
    assert run.draw("wal", 2, 1, 60, ["test_half.py"]) == mutants[:2]
    with pytest.raises(ValueError, match="no test ran a line of the room 'store'"):
        run.draw("store", 1, 1, 60, ["test_half.py"])


def test_tests_that_cannot_be_imported_or_end_the_process_are_told(tmp_path: Path) -> None:
    """Instead of lines that nobody ran."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    (tree / "tools").mkdir()
    (tree / "tools/__init__.py").touch()
    shutil.copy(ROOT / "tools/linetrace.py", tree / "tools")
    (tree / "test_not.py").write_text("import nowhere\n")
    (tree / "test_end.py").write_text(
        "import os\ndef test_passes(): pass\ndef test_end():\n    os.kill(os.getpid(), 11)\n"
    )
    run = Run(tree, tmp_path / "scratch", lambda text: None)
    at = r'Fatal Python error: Segmentation fault; File ".*test_end.py", line 4 in test_end'
    for file, told in (("test_not.py", r"\(2\)"), ("test_end.py", rf"\(-11\): {at}")):
        with pytest.raises(ValueError, match=f"come to their end {told}"):
            run.draw("wal", 1, 1, 60, [file])


KERNEL = """
cdef int more(int value, int least) noexcept nogil:
    cdef int found = <int> value + 1
    cdef int[4] fields = [0] * 4
    if (value < least
            and value != 0):  # small
        found -= 1
    told(found)
    return found
"""


def test_places_of_a_kernel_are_conditions_answers_and_what_is_assigned() -> None:
    """No types, heads or arrays; each is one word, a condition denied, or a line left out."""
    assert {(one.line, one.text, one.into) for one in switches(KERNEL)} == {
        (3, "< int > value + 1", "< int > value - 1"),
        (3, "< int > value + 1", "< int > value + 2"),
        *(
            (5, "( value < least and value != 0 )", into)
            for into in (
                "not ( ( value < least and value != 0 ) )",
                "( value <= least and value != 0 )",
                "( value < least or value != 0 )",
                "( value < least and value == 0 )",
                "( value < least and value != 1 )",
            )
        ),
        (7, "found -= 1", "pass"),
        (7, "1", "2"),
        (8, "told ( found )", "pass"),
    }


PLAIN = """def clipped(value, least):
    if value < least:
        value = least
    told.append(value)
    return value + 0
"""


def test_a_kernel_with_all_its_mutants_does_as_before_until_one_is_put_in() -> None:
    """And tells which were reached."""
    chosen = switches(PLAIN)
    source = switched(PLAIN, chosen)
    assert len(source.split("\n")) == len(PLAIN.split("\n"))
    told: list[int] = []
    space: dict[str, object] = {"told": told}
    exec(source + declared(len(chosen), is_python=True)[0], space)
    clipped, put_in, reached = (space[name] for name in ("clipped", "_put_in", "_take_reached"))
    assert clipped(5, 5) == 5  # type: ignore[operator]
    assert reached() == list(range(len(chosen)))  # type: ignore[operator]
    assert reached() == []  # type: ignore[operator]
    found = {}
    for number, one in enumerate(chosen):
        put_in(number)  # type: ignore[operator]
        told.clear()
        found[one.into] = [clipped(value, 5) for value in (4, 5, 6)] + [len(told)]  # type: ignore[operator]
    assert found == {
        "not ( value < least )": [4, 5, 5, 3],
        "value <= least": [5, 5, 6, 3],
        "pass": [5, 5, 6, 0],
        "value - 0": [5, 5, 6, 3],
        "value + 1": [6, 6, 7, 3],
    }


def test_a_condition_stays_one() -> None:
    """As a value of a choice Cython makes an object of an `and` of a size and a truth value, by a
    cast of the latter: the kernel ends the process where that is not so."""
    plain = "def f(size, stop):\n    if size and stop >= 0:\n        return size\n"
    chosen = [one for one in switches(plain) if one.into == "size or stop >= 0"]
    line = switched(plain, chosen).split("\n")[1]
    assert line == (
        "    if (_at(0) and (size or stop >= 0) or not _at(0) and (size and stop >= 0)):"
    )


def test_what_a_kernel_does_at_import_it_does_as_before() -> None:
    """Compiled, and as plain Python, where what is declared comes first."""
    source = "from __future__ import annotations\n\n"
    source += "def f(value):\n    return value + 1\n\nTABLE = f(1)\n"
    chosen = switches(source)
    whole, line_of = joined(switched(source, chosen), declared(len(chosen), is_python=True)[0])
    space: dict[str, object] = {}
    exec(whole, space)
    assert space["TABLE"] == 2
    lines = whole.split("\n")
    assert line_of(1) == 1
    assert line_of(lines.index("TABLE = f(1)") + 1) == 6


def test_a_change_in_place_is_left_out_or_another() -> None:
    """Both mutants of one line, of which the one's place is in the other's."""
    plain = "def moved(at):\n    at += 8\n    return at\n"
    chosen = [one for one in switches(plain) if one.line == 2]
    assert [one.into for one in chosen] == ["pass", "9"]
    space: dict[str, object] = {}
    exec(switched(plain, chosen) + declared(len(chosen), is_python=True)[0], space)
    moved, put_in = space["moved"], space["_put_in"]
    found = []
    for number in (-1, 0, 1):
        put_in(number)  # type: ignore[operator]
        found.append(moved(5))  # type: ignore[operator]
    assert found == [13, 5, 14]


@pytest.mark.skipif(not kernel.COMPILED, reason="nothing was compiled")
def test_mutants_of_a_kernel_are_compiled_once_and_put_in_by_number(tmp_path: Path) -> None:
    """What does not compile is left out: the sum of two pointers."""
    tree = toy(tmp_path / "tree", "half(3) == 1")
    (tree / "wal").mkdir()
    (tree / "wal/__init__.py").touch()
    (tree / "wal/halfkernel.pyx").write_text(
        "cpdef int half(int value):\n"
        "    cdef int* place = &value\n"
        "    cdef Py_ssize_t size = place - place\n"
        "    return value // 2 if size == 0 else 0\n"
        "TABLE = [half(value) for value in range(4)]\n"
    )
    (tree / f"kernels{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    (tree / RECORD).parent.mkdir()
    (tree / RECORD).write_text('{"logweir.wal.halfkernel": ["wal/halfkernel.pyx", ""]}')
    (tree / "test_half.py").write_text(
        "from logweir.wal.halfkernel import TABLE, half\n\n"
        "def test_half():\n    assert half(3) == 1\n    assert TABLE == [0, 0, 1, 1]\n"
    )
    (tree / "tools").mkdir()
    (tree / "tools/__init__.py").touch()
    for name in ("linetrace", "mutantforks"):
        shutil.copy(ROOT / f"tools/{name}.py", tree / "tools")
    run = Run(tree, tmp_path / "scratch", lambda text: None)
    verdicts = run.judge(run.draw("wal", 30, 1, 60, ["test_half.py"]), 1)
    assert {(one.mutant.breaks.split(" is ")[1], one.outcome) for one in verdicts} == {
        ("'value * 2 if size == 0 else 0'", "killed"),
        ("'value // 3 if size == 0 else 0'", "survived"),
        ("'value // 2 if size != 0 else 0'", "killed"),
        ("'value // 2 if size == 1 else 0'", "killed"),
        ("'value // 2 if size == 0 else 1'", "survived"),
    }


TWO = (
    "class C:\n    def f(self):\n        return {}\n\n    def g(self):\n        return lambda: {}\n"
)


def test_functions_get_the_code_of_another_source() -> None:
    """Those that differ, at whatever line; what is done at import cannot be changed any more."""
    sound = compile(TWO.format(1, 2), "c.py", "exec")
    broken = compile(TWO.format(1, 3), "c.py", "exec")
    changed = changed_code(sound, broken)
    assert changed is not None
    assert sorted(one.co_name for one in changed) == ["<lambda>", "g"]
    assert changed_code(sound, compile(TWO.format(1, 2) + "x = 1\n", "c.py", "exec")) is None
    assert changed_code(sound, sound) == {}


def test_equivalent_mutants_are_of_the_tree() -> None:
    """Each with a reason."""
    known = read_equivalents(ROOT)
    assert [(one, why) for one in known if (why := stale_equivalent(one, ROOT))] == []
    assert all(len(why) > 10 for why in known.values())


def test_lines_of_tests_that_are_run_again_take_the_place_of_the_old() -> None:
    """Others stay."""
    old = Lines({"a.py": {1: ["t.py::a", "u.py::b"]}}, {"t.py::a": 1.0, "u.py::b": 0.5})
    new = Lines({"a.py": {2: ["t.py::c"]}}, {"t.py::c": 1e9})
    both = old.joined(new)
    assert both == Lines(
        {"a.py": {1: ["u.py::b"], 2: ["t.py::c"]}}, {"u.py::b": 0.5, "t.py::c": 1e9}
    )
    assert both.tests("a.py", 1, 10) == ("u.py::b",)
    assert both.tests("a.py", 2, 10) == ()  # it failed
    assert Lines.of(both.told()) == both
