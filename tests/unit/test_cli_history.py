"""What was: `logweir history`, and `get` and `select` of an earlier moment, of a folder that is in
use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.store.recover.history import folder_history
from logweir.tools.cli.main import app
from logweir.wal.mp import pack


def run(*arguments: object, command: str = "history") -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [command, *map(str, arguments)])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store that is open, with a thing that was changed and removed."""
    with logweir.open(tmp_path / "store", "write") as log:
        log.create_space("things", format=[("id", "unsigned"), ("data", "varbinary")])
        log.insert("things", (1, b"\xde\xad"))
        log.update("things", 1, [["=", "data", b""]])
        log.delete("things", 1)
        yield log


def test_damage_is_not_the_end_of_the_story(log: logweir.Log) -> None:
    """Exit code 3 and where: a key behind it was never said to have no change."""
    (path,) = log.path.glob("*.xlog")
    data = bytearray(path.read_bytes())
    data[data.index(b"\xde\xad")] ^= 1
    path.write_bytes(data)
    done = run(log.path, "things", 1)
    assert done.exit_code == 3
    assert f"{path.name} at byte" in done.stderr


def test_each_change_is_a_line_of_text_or_json(log: logweir.Log) -> None:
    """All, behind a position, the first ones; the space by its name or id."""
    text = run(log.path, "things", 1)
    assert (text.exit_code, text.stderr) == (0, "")
    assert text.stdout.splitlines()[0].split() == ["-", "{}", "SNAPSHOT", "-"]
    assert text.stdout.splitlines()[-1].split()[1:] == [f"1:{log.vclock.lsn(1)}", "DELETE", "-"]
    objects = [json.loads(line) for line in run(log.path, 512, "[1]", "--json").stdout.splitlines()]
    assert [one["tuple"] for one in objects] == [
        None,
        [1, {"$bin": "3q0="}],
        [1, {"$bin": ""}],
        None,
    ]
    assert [one["type"] for one in objects] == ["SNAPSHOT", "INSERT", "UPDATE", "DELETE"]
    assert objects[-1]["vclock"] == {"1": log.vclock.lsn(1)}
    start = f"{{1: {objects[1]['lsn']}}}"
    behind = run(log.path, "things", 1, "--json", "--from", start, "--limit", 1)
    assert [json.loads(line) for line in behind.stdout.splitlines()] == objects[2:3]


def test_what_cannot_be_told_is_said(log: logweir.Log, tmp_path: Path) -> None:
    """No such tuple, key, space, folder, position."""
    never = run(log.path, "things", 2)
    assert (never.exit_code, never.stderr) == (1, "logweir: there is no change of that key\n")
    for arguments, code, text in (
        ((log.path, "none", 1), 1, "Space 'none' does not exist"),
        ((log.path, "things", "[1, 2]"), 1, "expected 1, got 2"),
        ((log.path, "things", "x"), 2, "KEY"),
        ((log.path, "things", 1, "--from", "5"), 2, "is no vclock"),
        ((tmp_path / "nowhere", "things", 1), 2, "nowhere"),
        ((tmp_path, "things", 1), 1, "no snapshot"),
    ):
        found = run(*arguments)
        assert found.exit_code == code
        assert text in found.stderr


def test_a_folder_that_lacks_files_says_what_it_lacks(log: logweir.Log) -> None:
    """Without a log the newest snapshot begins; without a snapshot, or with a file that cannot be
    read where a position may be, that is the reason, not the position."""
    log.insert("things", (2, b""))
    at = f"{{1: {log.vclock.lsn(1)}}}"
    log.snapshot()
    log.close()
    for path in log.path.glob("*.xlog"):
        path.rename(path.with_suffix(".kept"))
    story = run(log.path, "things", 2)
    assert (story.exit_code, story.stderr) == (0, "")
    assert story.stdout.split()[1:] == [*at.split(), "SNAPSHOT", "[2,", '{"$bin":', '""}]']
    assert run(log.path, "things", 2, "--from", "{}").exit_code == 1
    for path in log.path.glob("*.kept"):
        path.rename(path.with_suffix(".xlog"))
    snaps = list(log.path.glob("*.snap"))
    for path in snaps:
        path.rename(path.with_suffix(".kept"))
    for command, place in (("history", ()), ("select", ("--as-of", at))):
        key = (2,) if command == "history" else ()
        found = run(log.path, "things", *key, *place, command=command)
        assert found.exit_code == 3
        assert "there are logs but no snapshot" in found.stderr
    for path in snaps:
        path.with_suffix(".kept").rename(path)
    newest = max(log.path.glob("*.xlog"))
    newest.write_bytes(b"x" + newest.read_bytes()[1:])
    found = run(log.path, "things", "--as-of", "{1: 1000}", command="select")
    assert found.exit_code == 3
    assert f"{newest.name} at byte 0" in found.stderr


def test_tuples_as_they_were_are_printed(log: logweir.Log) -> None:
    """At a vclock and at a time, arrays and objects; what is not there is told as ever."""
    inserted, changed, _ = list(log.history("things", 1))[1:]
    place = ("--as-of", f"1:{inserted.lsn}")
    assert run(log.path, "things", 1, *place, command="get").stdout == '[1, {"$bin": "3q0="}]\n'
    moment = ("--as-of", repr(changed.timestamp))
    found = run(log.path, "things", *moment, "--names", command="select")
    assert found.stdout == '{"id": 1, "data": {"$bin": ""}}\n'
    found = run(log.path, "things", "--as-of", datetime.now(UTC).isoformat(), command="select")
    assert (found.exit_code, found.stdout) == (0, "")
    now = f"{{1: {log.vclock.lsn(1)}}}"
    assert run(log.path, "things", 1, "--as-of", now, command="get").exit_code == 1
    for place, code, text in (
        ("{1: 10000}", 1, "is not in the log, which holds {} to"),
        ("2999-01-01", 1, "is not in the log"),
        ("5 o'clock", 2, "is no time"),
    ):
        refused = run(log.path, "things", 1, "--as-of", place, command="get")
        assert refused.exit_code == code
        assert text in refused.stderr
    server = run("tarantool://127.0.0.1:1", "things", "--as-of", now, command="select")
    assert (server.exit_code, "name a folder" in server.stderr) == (2, True)


@pytest.mark.parametrize("max_bytes", [400, 2**20])
def test_history_ends_though_each_change_brings_another(tmp_path: Path, max_bytes: int) -> None:
    """With the newest of the moment when it began, in one log file and in many."""
    with logweir.open(tmp_path, "write", wal_max_size=max_bytes) as log:
        log.create_space("t")
        for number in range(20):
            log.replace("t", (1, number))
        told = []
        for change in log.history("t", 1):
            told.append(change)
            log.replace("t", (1, "since"))
            assert len(told) < 100
        assert [one.tuple for one in told[1:]] == [(1, number) for number in range(20)]
        count = 0
        for _ in folder_history(tmp_path, "t", pack([1]), after=None, limit=None):
            log.replace("t", (1, "since"))
            count += 1
            assert count < 400
        assert count > 40
