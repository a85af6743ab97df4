"""The program where things are not as usual: odd names, no terminal, closed streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.logs import SPACE_ROW, delete, insert, write_log, write_snapshot

import logweir
from logweir.tools.cli.output import Output

PROGRAM = Path(sys.executable).parent / "logweir"


def run(*arguments: str | bytes | Path, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the program with a closed terminal."""
    given.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, errors="replace", timeout=60, **given
    )


@pytest.mark.parametrize("name", [b"\xff\xe4.d", "with space"])
def test_a_store_may_have_any_name(name: str | bytes, tmp_path: Path) -> None:
    """Made, written, snapshotted, examined and repaired, though its name need not be text."""
    folder = tmp_path / os.fsdecode(name)
    assert run("init", folder).returncode == 0
    with logweir.open(folder) as log:
        log.create_space("s", [("id", "unsigned")])
        log.insert("s", [1])
    with logweir.open(folder) as log:
        assert log.select("s") == [(1,)]
    for command in (["snapshot"], ["cat"], ["user", "list"]):
        done = run(*command, folder)
        assert (done.returncode, done.stderr) == (0, ""), command
    assert run("repair", folder, "--to", tmp_path / "new").returncode == 0
    assert run("diff", folder, tmp_path / "new").returncode == 0


def test_an_empty_argument_is_refused(tmp_path: Path) -> None:
    """As a path it would mean the folder that one is in."""
    for arguments in (["init", ""], ["--json", "info", ""], ["restore", "", "--to", "x"]):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert "an argument is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert run("serve", tmp_path / "s", "--metrics", "", "--listen", "x").returncode == 2


def test_a_file_where_the_store_should_be_is_told(tmp_path: Path) -> None:
    """With what to do."""
    (tmp_path / "file").write_text("x")
    done = run("init", tmp_path / "file")
    assert done.returncode not in (0, 1)
    assert "hint: something of that name is there already" in done.stderr


@pytest.mark.parametrize("closed", [[1], [0, 1, 2]])
def test_closed_streams_end_nothing(closed: list[int], tmp_path: Path) -> None:
    """Nor does a file of the store get the number of one."""
    folder = tmp_path / "s"
    shell = f'"$0" init "$1" {" ".join(f"{number}>&-" for number in closed)}'
    done = subprocess.run(
        ["/bin/sh", "-c", shell, PROGRAM, folder], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert run("verify", folder).returncode == 0


def test_a_password_is_not_asked_for_without_a_terminal(tmp_path: Path) -> None:
    """Neither shown on the screen nor taken as empty where stdin holds nothing."""
    run("init", tmp_path / "s")
    done = run("user", "add", tmp_path / "s", "bob")
    assert done.returncode == 2
    assert "hint: give --password-stdin" in done.stderr
    done = run("user", "add", tmp_path / "s", "bob", "--password-stdin")
    assert done.returncode == 2
    assert "stdin ended before it" in done.stderr
    assert "bob" not in run("user", "list", tmp_path / "s").stdout


def test_each_row_of_a_table_is_a_line_on_a_narrow_terminal(tmp_path: Path) -> None:
    """Which the terminal breaks, if need be: no cell is."""
    write_snapshot(tmp_path, {space: [SPACE_ROW] for space in (272, 276, 280, 288)})
    write_log(tmp_path, [[insert(512, [number])] for number in range(3)])
    code = (
        "import pty, sys; sys.stdout.flush(); "
        "sys.exit(pty.spawn([sys.argv[1], 'verify', sys.argv[2]]) >> 8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "50", "TERM": "dumb"},
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert " ".join(lines[0].split()) == "file size blocks rows from up to end damage"
    for line, name in zip(lines[1:], ("snap", "xlog"), strict=False):
        assert line.split()[0] == f"00000000000000000000.{name}"
        assert line.split()[-1] == "clean"


def test_columns_of_wide_letters_stand_one_below_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two columns for a letter of Chinese, none for an accent that is set on another letter."""
    Output().table(("name", "rows"), [("数据", 1), ("e\u0301", 22), ("a", 333)], right=("rows",))
    assert capsys.readouterr().out.splitlines() == [
        "name  rows",
        "数据     1",
        "e\u0301       22",
        "a      333",
    ]


ODD = "a\x1b[31mb\x9b2Jc\u202ed\ne\tf"
NAMED = [512, 1, ODD, "memtx", 0, {}, [{"name": "id", "type": "string"}]]
KEYED = [512, 0, "pk", "tree", {"unique": True}, [[0, "string"]]]


@pytest.mark.parametrize(
    "command",
    [
        *(["cat", "DIR", "--format", style] for style in ("jsonl", "table", "yaml", "hex")),
        *(["info", "DIR"], ["info", "DIR", "--json"], ["report", "DIR", "--json"]),
        *(["verify", "DIR"], ["diff", "OTHER", "DIR"], ["diff", "OTHER", "DIR", "--json"]),
        *(["history", "DIR", "512", json.dumps([ODD])], ["select", "DIR", "512"]),
        *(["export", "DIR", "512"], ["space", "list", "DIR"], ["get", "DIR", "512", "no"]),
        *(["user", "list", "DIR"], ["user", "drop", "DIR", ODD], ["topic", "list", "DIR"]),
        *(["space", "drop", "OTHER", ODD], ["cat", "DIR", "--space", ODD + "?"]),
    ],
    ids=lambda words: " ".join(words[:4]).replace(ODD, "ODD"),
)
def test_text_of_data_is_escaped_in_pipes_too(command: list[str], tmp_path: Path) -> None:
    """What it may hold neither ends a line of output nor steers the terminal that is shown it."""
    for name in ("DIR", "OTHER"):
        (tmp_path / name).mkdir()
        write_snapshot(tmp_path / name, {272: [], 280: [NAMED], 288: [KEYED]})
    write_log(
        tmp_path / "DIR", [[insert(512, [ODD, ODD])], [delete(512, [ODD])], [insert(512, [ODD])]]
    )
    folders = ("DIR", "OTHER")
    done = run(*(str(tmp_path / one) if one in folders else one for one in command))
    printed = done.stdout + done.stderr
    assert printed
    assert all(letter.isprintable() or letter == "\n" for letter in printed), printed
    for line in done.stdout.splitlines() if "--json" in command else ():
        json.loads(line)
