"""`logweir init`, `snapshot` and `diff`: commands that open a store."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.tools.cli.main import app

PROGRAM = Path(sys.executable).parent / "logweir"


def run(*arguments: str | Path) -> Result:
    """Run the program in this process; its stdout is no terminal."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def lines(result: Result) -> list[dict[str, object]]:
    """The JSON lines that were printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three fruits."""
    path = tmp_path / "store"
    with logweir.open(path) as log:
        log.create_space("fruit", format=[("id", "unsigned"), ("name", "string")])
        log.append("fruit", [(1, "apple"), (2, "pear"), (3, "plum")])
    return path


def test_init_makes_a_store_that_opens(tmp_path: Path) -> None:
    """A fresh folder holds one snapshot, is whole, and can be opened and changed."""
    result = run("init", tmp_path / "new")
    assert result.exit_code == 0
    assert [path.name for path in (tmp_path / "new").glob("*.snap")] == [f"{0:020d}.snap"]
    assert run("verify", tmp_path / "new").exit_code == 0
    with logweir.open(tmp_path / "new", create=False) as log:
        assert str(log.instance) in result.stdout


def test_init_twice_changes_nothing(store: Path) -> None:
    """A second init says so, succeeds, and keeps what is there."""
    result = run("init", store)
    assert result.exit_code == 0
    assert result.stdout.startswith("already_initialized")
    assert lines(run("init", "--json", store))[0]["already_initialized"] is True
    with logweir.open(store) as log:
        assert log.count("fruit") == 3


def test_init_does_not_pave_over_damage(store: Path) -> None:
    """A folder whose log is damaged is refused, not made anew."""
    log = next(store.glob("*.xlog"))
    log.write_bytes(b"XLOG\n0.99\n\n")
    assert run("init", store).exit_code == 3


def test_snapshot_writes_the_newest_state(store: Path) -> None:
    """The snapshot is named after the position, and its path is printed."""
    result = run("snapshot", store)
    assert result.exit_code == 0
    path = Path(result.stdout.strip())
    assert path.is_file()
    assert run("verify", path).exit_code == 0
    assert lines(run("cat", path, "--space", "fruit"))[0]["tuple"] == [1, "apple"]


def test_snapshot_without_a_change_writes_nothing(store: Path) -> None:
    """A second snapshot says that it is there already."""
    run("snapshot", store)
    before = sorted(path.name for path in store.iterdir())
    result = run("snapshot", store)
    assert result.exit_code == 0
    assert result.stdout.startswith("already_there")
    assert lines(run("snapshot", "--json", store))[0]["already_there"] is True
    assert sorted(path.name for path in store.iterdir()) == before


def test_snapshot_of_a_store_in_use_is_refused(store: Path) -> None:
    """Another process that has the folder is named, exit code 4."""
    with logweir.open(store):
        done = subprocess.run([PROGRAM, "snapshot", store], capture_output=True, text=True)
    assert done.returncode == 4
    assert f"in use by process {os.getpid()}" in done.stderr


def test_snapshot_of_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """An empty folder stays empty, a missing one is wrong usage."""
    assert run("snapshot", tmp_path).exit_code == 1
    assert list(tmp_path.iterdir()) == []
    assert run("snapshot", tmp_path / "none").exit_code == 2


@pytest.fixture
def changed(store: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The store as it was, restored beside it, and as it is after four changes."""
    old = tmp_path / "old"
    assert run("restore", store, "--to", old).exit_code == 0
    with logweir.open(store) as log:
        log.delete("fruit", 1)
        log.update("fruit", 2, [["=", "name", "quince"]])
        log.insert("fruit", (4, "fig"))
        log.replace("fruit", (3, "plum"))
    return old, store


def test_equal_states_have_no_difference(store: Path, tmp_path: Path) -> None:
    """A restored folder holds the same; exit code 0 and no output, but a word for people."""
    assert run("restore", store, "--to", tmp_path / "same").exit_code == 0
    result = run("diff", store, tmp_path / "same")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "logweir: nothing differs\n"


def test_differences_are_added_removed_and_changed_tuples(changed: tuple[Path, Path]) -> None:
    """Each tuple that differs is one line; a tuple written anew with the same bytes is none."""
    result = run("diff", *changed)
    assert result.exit_code == 1
    assert lines(result) == [
        {"space_id": 512, "space": "fruit", "change": "removed", "before": [1, "apple"]},
        {
            "space_id": 512,
            "space": "fruit",
            "change": "changed",
            "before": [2, "pear"],
            "after": [2, "quince"],
        },
        {"space_id": 512, "space": "fruit", "change": "added", "after": [4, "fig"]},
    ]


def test_diff_the_other_way_round_is_the_reverse(changed: tuple[Path, Path]) -> None:
    """What is added one way is removed the other way."""
    old, new = changed
    kinds = [line["change"] for line in lines(run("diff", new, old))]
    assert kinds == ["added", "changed", "removed"]


def test_diff_counts_with_summary(changed: tuple[Path, Path]) -> None:
    """--summary is one line per space."""
    result = run("diff", *changed, "--summary")
    assert result.exit_code == 1
    assert lines(result) == [
        {"space_id": 512, "space": "fruit", "added": 1, "removed": 1, "changed": 1}
    ]


def test_diff_of_one_space_leaves_out_the_others(changed: tuple[Path, Path]) -> None:
    """--space takes a name or an id; what differs elsewhere does not count."""
    assert run("diff", *changed, "--space", "_space").exit_code == 0
    assert len(lines(run("diff", *changed, "--space", "512"))) == 3


def test_diff_of_snapshots(store: Path) -> None:
    """Two snapshots of one folder are compared without the logs around them."""
    first = Path(run("snapshot", store).stdout.strip())
    with logweir.open(store) as log:
        log.insert("fruit", (9, "lime"))
    second = Path(run("snapshot", store).stdout.strip())
    assert [line["after"] for line in lines(run("diff", first, second))] == [[9, "lime"]]


def test_diff_of_new_definitions_shows_them_as_tuples(store: Path, tmp_path: Path) -> None:
    """A space that only one side has: its definition and its tuples are differences."""
    old = tmp_path / "old"
    run("restore", store, "--to", old)
    with logweir.open(store) as log:
        log.create_space("colour", format=[("id", "unsigned")])
        log.insert("colour", (1,))
    found = lines(run("diff", old, store))
    assert {line["space"] for line in found} >= {"_space", "_index", "colour"}
    assert lines(run("diff", old, store, "--space", "colour")) == [
        {"space_id": 513, "space": "colour", "change": "added", "after": [1]}
    ]


def test_diff_of_another_primary_key_pairs_nothing(store: Path, tmp_path: Path) -> None:
    """Where the key is another one, all tuples are removed and added."""
    other = tmp_path / "other"
    with logweir.open(other) as log:
        log.create_space("fruit", format=[("id", "unsigned"), ("name", "string")], primary=["name"])
        log.append("fruit", [(1, "apple"), (2, "pear")])
    kinds = [line["change"] for line in lines(run("diff", store, other, "--space", "fruit"))]
    assert kinds == ["removed"] * 3 + ["added"] * 2


def test_diff_on_a_terminal_is_for_people(changed: tuple[Path, Path]) -> None:
    """On a terminal each difference is a sign, the space and the tuples."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run([PROGRAM, "diff", *changed], stdout=theirs, env=environment)
    os.close(theirs)
    printed = os.read(ours, 65536).decode().splitlines()
    os.close(ours)
    assert done.returncode == 1
    assert printed == [
        '- fruit [1, "apple"]',
        '~ fruit [2, "pear"] → [2, "quince"]',
        '+ fruit [4, "fig"]',
    ]


def test_diff_refuses_what_cannot_be_loaded(store: Path, tmp_path: Path) -> None:
    """A log file, an empty folder, damage and missing paths each have their exit code."""
    (tmp_path / "empty").mkdir()
    assert run("diff", store, tmp_path / "none").exit_code == 2
    assert run("diff", store, tmp_path / "empty").exit_code == 1
    assert run("diff", store, next(store.glob("*.xlog"))).exit_code == 3
    snap = next(store.glob("*.snap"))
    snap.write_bytes(snap.read_bytes()[:-10])
    assert run("diff", snap, store).exit_code == 3


def test_diff_changes_neither_side(changed: tuple[Path, Path]) -> None:
    """Nothing is written into the folders that are compared."""
    before = [{path.name: path.stat().st_mtime_ns for path in side.iterdir()} for side in changed]
    run("diff", *changed)
    after = [{path.name: path.stat().st_mtime_ns for path in side.iterdir()} for side in changed]
    assert before == after


def test_a_store_that_is_not_there_or_in_use_says_what_to_do(store: Path) -> None:
    """Make one; give its server's address."""
    done = run("insert", store.parent / "none", "fruit", "[4]")
    assert done.exit_code == 2
    assert "there is no such folder. hint: look at the path, or make a store" in done.stderr
    with logweir.open(store):
        done = run("space", "drop", store, "fruit")
    assert done.exit_code == 4
    assert "if that is a server, give its address (tarantool://…)" in done.stderr


def typed_at(answers: list[tuple[bytes, bytes]], *words: str | Path) -> tuple[int, str]:
    """Exit code and what is shown at a terminal where each answer is typed once its question is."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(PROGRAM, [str(PROGRAM), *map(str, words)])
    shown = told = b""
    try:
        while more := os.read(terminal, 1000):
            shown, told = shown + more, told + more
            if answers and answers[0][0] in told:
                os.write(terminal, answers.pop(0)[1])
                told = b""
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode("utf-8", "replace")


def test_passwords_are_typed_unseen(store: Path) -> None:
    """Twice, again where they differ or are empty; Ctrl-C and what is no text end it."""
    first, again = b"Password: ", b"confirmation: "
    wrong = [(first, b"\n"), (first, b"one\n"), (again, b"two\n")]
    right = [(first, b"secret\n"), (again, b"secret\n")]
    code, shown = typed_at([*wrong, *right], "user", "add", store, "bob")
    assert (code, "added bob" in shown, "secret" in shown) == (0, True, False), shown
    assert "It is empty." in shown
    assert "The two are not the same." in shown
    for answer, expected in ((b"\x03", 130), (b"\xff\n", 2), (b"\x04", 2)):
        code, shown = typed_at([(first, answer)], "user", "passwd", store, "bob")
        assert (code, "Traceback" in shown) == (expected, False), shown
    done = subprocess.run(
        [PROGRAM, "user", "passwd", store, "bob", "--password-stdin"],
        input=b"\xff\n",
        capture_output=True,
    )
    assert (done.returncode, b"it is not in UTF-8" in done.stderr) == (2, True), done.stderr
