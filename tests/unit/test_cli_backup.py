"""`logweir backup` and `logweir retain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from interop.serving import Serving
from logweir.errors import PositionUnavailable
from logweir.tools.cli.main import app


def run(*arguments: object) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def contents(folder: Path) -> list[tuple[object, ...]]:
    """The tuples of the space of a copy."""
    with logweir.open(folder, create=False) as log:
        return log.select("t")


def test_a_store_in_use_is_copied(tmp_path: Path) -> None:
    """Its log is open and goes on; the copy has all that was there, and opens by itself."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t")
        log.insert("t", (1, "x"))
        log.snapshot()
        log.insert("t", (2, "y"))
        done = run("backup", tmp_path / "s", "--to", tmp_path / "copy", "--json")
        position = {str(one): lsn for one, lsn in log.vclock.without_local().items()}
        log.insert("t", (3, "z"))
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["damage"], told["vclock"]) == ([], position)
    assert contents(tmp_path / "copy") == [(1, "x"), (2, "y")]
    again = run("backup", tmp_path / "s", "--to", tmp_path / "copy")
    assert again.exit_code == 2
    assert "not empty" in again.stderr


def test_a_server_is_copied(tmp_path: Path) -> None:
    """With all its spaces, as an instance of its own."""
    with Serving(tmp_path / "s", guest="all") as server:
        server.log.create_space("t")
        server.log.insert("t", (1, "x"))
        done = run("backup", f"tarantool://127.0.0.1:{server.port}", "--to", tmp_path / "copy")
        assert done.exit_code == 0, done.stderr
    assert contents(tmp_path / "copy") == [(1, "x")]
    gone = run("backup", f"tarantool://127.0.0.1:{server.port}", "--to", tmp_path / "other")
    assert gone.stderr.startswith(f"logweir: error: tarantool://127.0.0.1:{server.port}: ")
    refused = run("backup", "tank://127.0.0.1:1", "--to", tmp_path / "other")
    assert refused.exit_code == 2
    assert "cannot be copied" in refused.stderr


def test_damage_is_told_and_nothing_copied(tmp_path: Path) -> None:
    """A byte in the middle of the log is other than it was."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t")
        for number in range(50):
            log.insert("t", (number, "x" * 100))
        (path,) = (tmp_path / "s").glob("*.xlog")
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 100, len(data) // 2)] ^= 1
    path.write_bytes(data)
    done = run("backup", tmp_path / "s", "--to", tmp_path / "copy")
    assert done.exit_code == 3
    assert path.name in done.stderr
    assert not (tmp_path / "copy").exists()


def test_followers_are_listed_and_forgotten(tmp_path: Path) -> None:
    """Also while the store is in use; with the bytes that each one has still to read."""
    with logweir.open(tmp_path) as log:
        log.create_space("t")
        assert run("retain", "list", tmp_path).stderr == "logweir: logs are kept for nobody\n"
        begin = log.vclock
        log.insert("t", (1,))
        log.retain("backup server", begin)
        log.retain("other", log.vclock)
        done = run("retain", "list", tmp_path, "--json")
        assert run("retain", "release", tmp_path, "other").exit_code == 4  # it is in use
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["name"] for one in told] == ["backup server", "other"]
    assert told[0]["vclock"] == {str(one): lsn for one, lsn in begin.items()}
    assert told[0]["unread_bytes"] > 0
    assert "backup server" in run("retain", "list", tmp_path).stdout
    assert run("retain", "release", tmp_path, "backup server").exit_code == 0
    unknown = run("retain", "release", tmp_path, "backup server")
    assert unknown.exit_code == 2
    assert "they are for other" in unknown.stderr
    with logweir.open(tmp_path) as log:
        assert list(log.status()["followers"]) == ["other"]
        with pytest.raises(PositionUnavailable):
            log.retain("other", {1: 10})
