"""`logweir verify`: what it says, what it prints as JSON, and that it never writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.logs import ORDERS, SPACE_ROW, write_log, write_snapshot
from typer.testing import CliRunner, Result

from logweir.tools.cli.main import app

LOG = f"{0:020d}.xlog"
SNAP = f"{0:020d}.snap"


def verify(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole folder: a snapshot and a log of six rows."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, ORDERS)
    return tmp_path


def flip(path: Path, text: bytes) -> int:
    """Invert the first byte of `text` in a file. Returns where that is."""
    data = bytearray(path.read_bytes())
    at = data.index(text)
    data[at] ^= 0xFF
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("name", ["", LOG, SNAP])
def test_whole_folder_and_whole_files_are_good(folder: Path, name: str) -> None:
    """Nothing damaged: exit code 0, and it says so."""
    result = verify(folder / name)
    assert result.exit_code == 0
    assert "everything is whole" in result.stdout


@pytest.mark.parametrize("name", ["", LOG])
def test_damage_is_named_with_place_and_neighbours(folder: Path, name: str) -> None:
    """A flipped byte is exit code 3, with file, byte, the lsns around it and the rows lost."""
    flip(folder / LOG, b"apple")
    result = verify(folder / name)
    assert result.exit_code == 3
    assert f"checksum in {LOG} at byte " in result.stdout
    assert "between lsn 1 and lsn 3 of replica 1, 1 row lost" in result.stdout
    assert "1 damaged place, 1 row lost" in result.stdout


def test_verdict_on_the_folder_is_given(folder: Path) -> None:
    """For a folder it says whether it is opened like that."""
    flip(folder / LOG, b"apple")
    assert "not opened like that, since 1 row would be lost" in verify(folder).stdout


def test_snapshot_without_end_is_damage(folder: Path) -> None:
    """A snapshot that is not complete is no state."""
    path = folder / SNAP
    path.write_bytes(path.read_bytes()[:-4])
    for place in (folder, path):
        result = verify(place)
        assert result.exit_code == 3
        assert "no_eof" in result.stdout


def test_unfinished_write_is_a_note(folder: Path) -> None:
    """A log that ends inside its last block is good; a note says that it is torn."""
    path = folder / LOG
    path.write_bytes(path.read_bytes()[:-7])
    for place in (folder, path):
        result = verify(place)
        assert result.exit_code == 0
        assert "everything is whole" in result.stdout
        assert "note: " in result.stderr
        assert "unfinished write" in result.stderr


def test_zeros_at_the_end_of_a_foreign_log_are_damage(folder: Path) -> None:
    """Another program's log that ends in zeros is refused by that program too."""
    path = folder / LOG
    data = path.read_bytes()[:-4] + bytes(100)
    path.write_bytes(data)
    assert verify(path).exit_code == 0
    start = data.index(b"Version: ")
    end = data.index(b"\n", start)
    path.write_bytes(data[:start] + b"Version: 2.6.0-0-g47aa4e01e" + data[end:])
    assert verify(path).exit_code == 3


@pytest.mark.parametrize("name", ["", LOG])
def test_json_is_one_object_with_the_documented_keys(folder: Path, name: str) -> None:
    """--json prints one object on one line; the keys are those of docs/json.md."""
    flip(folder / LOG, b"apple")
    result = verify("--json", folder / name)
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    keys = {"ok", "files", "damage", "vclock", "warnings", "holes", "unfinished", "verdict"}
    assert set(report) == keys
    assert report["ok"] is False
    assert report["vclock"] == {"1": 6}
    (damage,) = report["damage"]
    assert damage["kind"] == "checksum"
    assert damage["file"] == str(folder / LOG)
    assert (damage["lsn_before"], damage["lsn_after"], damage["rows_lost"]) == (1, 3, 1)
    assert set(damage) == {
        "kind",
        "file",
        "offset",
        "lsn_before",
        "lsn_after",
        "replica_id",
        "rows_lost",
        "message",
        "hint",
    }


@pytest.mark.parametrize("command", ["verify", "info", "cat"])
@pytest.mark.parametrize("others", [(), ("notes.txt", "vmlinuz")], ids=["empty", "foreign"])
def test_folder_without_a_store_is_a_problem(
    command: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    """A disk that is not mounted keeps no timer green: exit code 1, and a sentence."""
    for name in others:
        (tmp_path / name).write_text("x")
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 1
    assert "there is no snapshot and no log in the folder" in result.stderr
    assert result.stdout == ""


def test_vinyl_metadata_is_refused_by_name(tmp_path: Path) -> None:
    """A .vylog is nothing that logweir reads."""
    path = tmp_path / f"{0:020d}.vylog"
    path.write_bytes(b"VYLOG\n0.13\nVersion: 2.6.0\nVClock: {}\n\n")
    result = verify(path)
    assert result.exit_code == 3
    assert "vinyl metadata" in result.stderr


def test_nothing_is_written(folder: Path) -> None:
    """After verify of a damaged folder every byte is as before."""
    flip(folder / LOG, b"apple")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert verify(folder).exit_code == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
