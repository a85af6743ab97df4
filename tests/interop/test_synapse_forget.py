"""`logweir forget`: rows that name a user are removed, and from the files where that is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import logweir
from logweir.errors import ConfigError
from logweir.replication.synapse.follow.forgetting import forget_user
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.wire.codec import encode_row
from logweir.replication.synapse.wire.units import Cursor, Unit

PROGRAM = Path(sys.executable).parent / "logweir"
USER = "@ann:matrix.test"
READABLE = (".snap", ".xlog")

NAMED = {
    "typing": [["!r", [USER, "@bob:matrix.test"]]],
    "receipts": [["!r", "m.read", USER, "$e", {"ts": 1}]],
    "events": [["ev", ["$m", "!r", "m.room.member", USER, None]]],
    "tag_account_data": [[USER, "!r", "{}"], ["x", "!r", f'{{"by":"{USER}"}}']],
    "federation": [["p", {"deep": [{USER: None}]}]],
}
OTHERS = {
    "typing": [["!r", ["@bob:matrix.test"]], ["!r", ["@ann:matrix.test.org"]]],
    "receipts": [["!r", "m.read", "@ann:matrix.test:8448", "$e", {}]],
    "events": [["ev", ["$x", "!r", "m.room.message", None, None]]],
    "federation": [["p", {"ann": 1}]],
    "device_lists": [["@anna:matrix.test"], ["@ann:matrix"]],
}


def fill(folder: Path) -> None:
    """A store with rows of both kinds, mixed, more than a page of them."""
    with logweir.open(folder) as log:
        intake = Intake(log, "matrix.test")
        for stream in NAMED | OTHERS:
            rows = [*NAMED.get(stream, ()), *OTHERS.get(stream, ())] * 500
            units = [
                Unit(stream, "master", 1, n, [encode_row(json.dumps(row))], False, Cursor(n, n))
                for n, row in enumerate(rows, 1)
            ]
            intake.store(units)
        log.create_space("synapse_mine", [("id", "unsigned"), ("who", "string")])
        log.insert("synapse_mine", [1, USER])


def left(folder: Path) -> dict[str, list[object]]:
    """The rows that are there, each once."""
    with logweir.open(folder) as log:
        found = {}
        for space in log.schema:
            if space.name.startswith("synapse_") and space.name != "synapse_mine":
                texts = {json.dumps(row[3]) for row in log.select(space.id)}
                found[space.name.removeprefix("synapse_")] = sorted(texts)
        assert log.get("synapse_mine", 1) == (1, USER)
    return found  # type: ignore[return-value]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """The program."""
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120)


def test_rows_that_name_a_user_go_and_all_others_stay(tmp_path: Path) -> None:
    """At any depth, as a whole name; what is left in files is said."""
    folder = tmp_path / "d"
    fill(folder)
    told = json.loads(run("--json", "forget", folder, USER).stdout)
    assert told["removed"] == {
        **{f"synapse_{stream}": 500 * len(rows) for stream, rows in NAMED.items()},
        "synapse_device_lists": 0,
    }
    wanted = {stream: sorted({json.dumps(row) for row in rows}) for stream, rows in OTHERS.items()}
    assert left(folder) == wanted | {"tag_account_data": []}
    again = run("forget", folder, USER)
    assert "still hold" not in again.stdout + again.stderr  # nothing was removed


def test_restored_folder_holds_nothing_of_it(tmp_path: Path) -> None:
    """Neither a row of it, nor the name in a file; the old folder's log still does, as is said."""
    folder, new = tmp_path / "d", tmp_path / "new"
    fill(folder)
    with logweir.open(folder) as log:
        log.delete("synapse_mine", 1)
    assert run("forget", folder, USER).returncode == 0
    assert any(f'"{USER}"' in run("cat", file).stdout for file in folder.glob("*.xlog"))
    for words in (("snapshot", folder), ("restore", folder, "--to", new)):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    shown = "".join(run("cat", file).stdout for file in new.iterdir() if file.suffix in READABLE)
    assert "@bob:matrix.test" in shown
    assert f'"{USER}"' not in shown


@pytest.mark.parametrize("user", ["ann", "@ann", "@:x y", "", "@a b:c"])
def test_what_is_no_user_is_refused(tmp_path: Path, user: str) -> None:
    """Before anything is removed."""
    with logweir.open(tmp_path) as log, pytest.raises(ConfigError, match="no user"):
        forget_user(log, user)
