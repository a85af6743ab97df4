"""`logweir repair` and `logweir restore`: what they say; they touch only the new folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.tools.cli.main import app

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "tarantool"


def run(*arguments: str | Path) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def damaged(name: str) -> Path:
    """One of the damaged folders that a real Tarantool's were made into."""
    return SAMPLES / "05-damaged" / name


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_repair_says_what_is_saved_and_lost(tmp_path: Path) -> None:
    """One lost row is exit code 1; the new folder is whole, the old one as it was."""
    folder = damaged("c-flipped-payload-byte")
    before = contents(folder)
    result = run("repair", folder, "--to", tmp_path / "new")
    assert result.exit_code == 1
    assert "114 rows" in result.stdout
    assert "lost: 1 row" in result.stdout
    assert "rows behind {1: 40} are missing, up to {1: 41}" in result.stdout
    assert run("verify", tmp_path / "new").exit_code == 0
    assert contents(folder) == before


def test_repair_without_loss_is_success(tmp_path: Path) -> None:
    """Where a wrong length field is all that was damaged, nothing is lost."""
    result = run("repair", damaged("i-huge-length"), "--to", tmp_path / "new")
    assert result.exit_code == 0
    assert "nothing is lost" in result.stdout


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    """--dry-run says the same and makes no folder."""
    result = run("repair", damaged("v-gap"), "--to", tmp_path / "new", "--dry-run")
    assert result.exit_code == 1
    assert "59 rows" in result.stdout
    assert "dry run" in result.stderr
    assert not (tmp_path / "new").exists()


def test_repair_as_json_is_one_object(tmp_path: Path) -> None:
    """--json prints the documented keys on one line."""
    result = run("repair", "--json", damaged("g-zeroed-tail"), "--to", tmp_path / "new")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["rows"] == 110
    assert report["rows_lost"] is None
    assert report["holes"] == [{"after": {"1": 110}, "before": {"1": 361}, "rows": None}]
    assert report["vclock"] == {"1": 361}


def test_folder_without_whole_snapshot_is_refused(tmp_path: Path) -> None:
    """Where there is nothing to start from: exit code 3, nothing written."""
    result = run("repair", damaged("q-snap-flipped-byte"), "--to", tmp_path / "new")
    assert result.exit_code == 3
    assert "cannot be repaired" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["repair", "restore"])
def test_folder_that_is_not_empty_is_not_written_to(command: str, tmp_path: Path) -> None:
    """An existing file in the new folder stops everything before anything is written."""
    (tmp_path / "mine").write_text("precious")
    result = run(command, SAMPLES / "04-crashed", "--to", tmp_path)
    assert result.exit_code == 2
    assert "not empty" in result.stderr
    assert contents(tmp_path) == {"mine": b"precious"}


@pytest.mark.parametrize("command", ["repair", "restore"])
def test_missing_folder_is_wrong_usage(command: str, tmp_path: Path) -> None:
    """A folder that is not there is exit code 2."""
    assert run(command, tmp_path / "none", "--to", tmp_path / "new").exit_code == 2
    assert run(command, SAMPLES / "04-crashed").exit_code == 2


@pytest.mark.parametrize("vclock", ["{1: 120}", "1:120", " 1: 120,"])
def test_restore_to_a_vclock(vclock: str, tmp_path: Path) -> None:
    """The new folder ends at the vclock that was asked for, with braces or without."""
    folder = SAMPLES / "04-crashed"
    before = contents(folder)
    result = run("restore", folder, "--to", tmp_path / "new", "--at-vclock", vclock)
    assert result.exit_code == 0
    assert "{1: 120}" in result.stdout
    report = json.loads(run("verify", "--json", tmp_path / "new").stdout)
    assert (report["ok"], report["vclock"]) == (True, {"1": 120})
    assert contents(folder) == before


def test_restore_without_a_point_is_the_newest_state(tmp_path: Path) -> None:
    """Everything is there."""
    result = run("restore", "--json", SAMPLES / "04-crashed", "--to", tmp_path / "new")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["vclock"] == {"1": 174}
    assert report["is_exact"] is True


def test_restore_inside_a_transaction_is_the_state_before_it(tmp_path: Path) -> None:
    """A transaction is never cut; the message says that the state is the one before it."""
    folder = SAMPLES / "04-crashed"
    text = run("cat", "--format", "jsonl", folder).stdout
    rows = [json.loads(line) for line in text.splitlines()]
    first = next(row for row in rows if not row["commit"])
    inside = f"{{1: {first['lsn']}}}"
    result = run("restore", folder, "--to", tmp_path / "new", "--at-vclock", inside)
    assert result.exit_code == 0
    assert f"{{1: {first['lsn'] - 1}}}" in result.stdout
    assert "inside a transaction" in result.stderr


def test_restore_to_a_time(tmp_path: Path) -> None:
    """Rows up to that time are there, later ones are not."""
    folder = SAMPLES / "04-crashed"
    rows = [json.loads(line) for line in run("cat", folder).stdout.splitlines()]
    time = rows[50]["timestamp"]
    expected = max(row["lsn"] for row in rows if row["timestamp"] <= time)
    result = run("restore", "--json", folder, "--to", tmp_path / "new", "--at-time", repr(time))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["vclock"] == {"1": expected}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--at-vclock", "5"], 2),
        (["--at-vclock", "{1: x}"], 2),
        (["--at-time", "soon"], 2),
        (["--at-time", "2026-01-01", "--at-vclock", "{1: 5}"], 2),
        (["--at-vclock", "{1: 100000}"], 1),
    ],
)
def test_points_that_cannot_be_are_refused(options: list[str], code: int, tmp_path: Path) -> None:
    """A point that is none is wrong usage, one that the log does not reach a problem."""
    result = run("restore", SAMPLES / "04-crashed", "--to", tmp_path / "new", *options)
    assert result.exit_code == code
    assert result.stderr.startswith("logweir: error: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a-truncated-in-payload", 0),
        ("b-truncated-in-fixheader", 0),
        ("c-flipped-payload-byte", 3),
        ("d-flipped-tx-byte", 3),
        ("e-flipped-zstd-byte", 3),
        ("f-zeroed-block", 3),
        ("g-zeroed-tail", 3),
        ("h-flipped-magic", 3),
        ("i-huge-length", 3),
        ("j-bad-version-line", 3),
        ("k-wrong-filetype", 3),
        ("l-foreign-uuid", 3),
        ("m-no-blank-line", 3),
        ("n-empty-xlog", 3),
        ("o-data-after-eof", 3),
        ("p-data-after-eof-valid-block", 3),
        ("q-snap-flipped-byte", 3),
        ("r-snap-no-eof", 3),
        ("s-snap-truncated", 3),
        ("t-no-eof-clean", 0),
        ("u-three-logs-ok", 0),
        ("v-gap", 3),
        ("w-first-log-no-eof", 0),
        ("x-first-log-short", 3),
    ],
)
def test_every_damaged_sample_is_told_from_every_whole_one(name: str, code: int) -> None:
    """`verify` never calls a damaged folder whole, nor an unfinished write damage."""
    result = run("verify", damaged(name))
    assert result.exit_code == code
    claims = ("everything is whole", "whole up to byte")
    assert any(one in result.stdout for one in claims) is (code == 0)
    assert run("info", damaged(name)).exit_code == code


def test_repair_never_changes_its_source(tmp_path: Path) -> None:
    """Not even a time of a file is changed, whatever the damage."""
    for name in ("d-flipped-tx-byte", "x-first-log-short", "p-data-after-eof-valid-block"):
        folder = tmp_path / name
        shutil.copytree(damaged(name), folder)
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        run("repair", folder, "--to", tmp_path / f"new-{name}")
        assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_times_that_are_not_there_are_told_as_times(tmp_path: Path) -> None:
    """With the earliest and the latest of the rows, though the clock went back between them."""
    with logweir.open(tmp_path / "store", clock=lambda: 2e9, checkpoint_count=1) as log:
        log.create_space("before")
        log.snapshot()  # nothing older is left
        log.create_space("at 2e9")
    with logweir.open(tmp_path / "store", clock=lambda: 1.9e9) as log:
        log.create_space("at 1.9e9")
    result = run("restore", tmp_path / "store", "--to", tmp_path / "new", "--at-time", "1")
    assert "time 1970-01-01T00:00:01Z is not in the log" in result.stderr
    assert "holds 2030-03-17T17:46:40Z to 2033-05-18T03:33:20Z" in result.stderr


def test_a_store_without_rows_has_no_times_to_restore_to(tmp_path: Path) -> None:
    """It says so, and names no two times to choose between."""
    logweir.open(tmp_path / "store").close()
    result = run("restore", tmp_path / "store", "--to", tmp_path / "new", "--at-time", "5")
    assert result.exit_code == 1
    assert "is not in the log, which holds nothing. hint: no row of this folder" in result.stderr
    assert not (tmp_path / "new").exists()
