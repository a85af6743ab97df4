"""Gaps of what is followed, as commands tell them: lines, JSON and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import logweir
from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url
from logweir.replication.stream import positions
from logweir.replication.stream.recorded import read_folder
from logweir.store import Log

PROGRAM = Path(sys.executable).parent / "logweir"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The program."""
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def note(log: Log, stream: str, start: int, reason: str = "lost") -> None:
    """Put a loss on record."""
    positions.make_spaces(log)
    row = ["synapse:x", stream, "master", start, start + 1, reason, 1000]
    log.replace(positions.GAP_SPACE, row)


def test_follow_ends_with_1_if_rows_are_missing_and_status_tells_it(tmp_path: Path) -> None:
    """D3 without an address for missed rows: what there was is a gap, once, and stays on record
    until somebody strikes it off; the folder may be served meanwhile."""
    listen = [parse_listen_url("synapse://:0?dialect=D3")]
    copy = tmp_path / "copy"
    with Serving(tmp_path / "one", listen=listen) as one:
        one.log.create_space("s", [("id", "unsigned")], primary=["id"])
        one.log.insert("s", [1])
        end = one.log.vclock.signature
        url = f"synapse://127.0.0.1:{one.port}?start=all"
        first = run("follow", url, copy, "--once")
        assert first.returncode == 1
        assert f"missing: s/logweir 1 to {end}: no address for writer logweir" in first.stderr
        again = run("--json", "follow", url, copy, "--once")
        assert again.returncode == 0
        assert json.loads(again.stdout)["gaps"] == []
    with Serving(copy):
        told = run("status", copy)
        assert told.returncode == 1
        assert "no address for writer logweir" in told.stdout
        found = json.loads(run("--json", "status", copy).stdout)
        assert [one["stream"] for one in found["positions"]] == ["s"]
        assert [(one["start"], one["end"]) for one in found["gaps"]] == [(1, end)]
        assert run("gaps", copy).returncode == 1
        assert run("gaps", copy, "--forget").returncode == 4
    other = run("gaps", copy, "--stream", "other")
    assert (other.returncode, other.stdout) == (0, "")
    assert other.stderr == "logweir: nothing is known to be missing\n"
    assert run("gaps", copy, "--forget").returncode == 0
    assert run("status", copy).returncode == 0


def test_stream_that_stopped_is_told_by_status(tmp_path: Path) -> None:
    """Exit code 1, and why."""
    with logweir.open(tmp_path) as log:
        positions.make_spaces(log)
        row = ["tank://x:1", "t", "0", {"last": 3, "stopped": "a hole"}, 1000]
        log.insert(positions.POSITION_SPACE, row)
    told = run("status", tmp_path)
    assert told.returncode == 1
    assert "STOPPED: a hole" in told.stdout
    assert (
        json.loads(run("--json", "status", tmp_path).stdout)["positions"][0]["stopped"] == "a hole"
    )


def test_files_of_a_folder_say_what_the_store_says(tmp_path: Path) -> None:
    """After snapshots, replaced and deleted rows, and a truncated space."""
    options = {"checkpoint_count": 1}
    with logweir.open(tmp_path, **options) as log:
        assert read_folder(tmp_path).gaps == []
        for start in range(5):
            note(log, "a", start)
        log.snapshot()
        note(log, "b", 1)
        note(log, "a", 3, "another reason")
        positions.forget(log, [one for one in positions.gaps(log) if one.start == 2])
        log.create_space("other", [("id", "unsigned")], primary=["id"])
        log.insert("other", [1])
        expected = list(positions.gaps(log))
        assert len(expected) == 5
        assert read_folder(tmp_path).gaps == expected
        assert read_folder(tmp_path).vclock == log.vclock
        log.truncate(positions.GAP_SPACE)
        note(log, "c", 1)
        expected = list(positions.gaps(log))
        assert [one.stream for one in expected] == ["c"]
    assert read_folder(tmp_path).gaps == expected


def test_homeserver_file_may_be_named_by_an_option(tmp_path: Path) -> None:
    """As `synapse+file` takes it, with options behind `synapse`; anything else is refused, without
    what may be a password."""
    file = tmp_path / "home server?.yaml"
    file.write_text("server_name: matrix.test\n")
    told = run("follow", "synapse?start=all", tmp_path / "d", "--homeserver", file)
    assert told.returncode == 2
    assert not (tmp_path / "d").exists()  # no store for what cannot be followed
    assert "instance_map.main" in told.stderr
    assert file.name in told.stderr
    wrong = run("follow", "tarantool://a:hidden@h", tmp_path / "d", "--homeserver", file)
    assert wrong.returncode == 2
    assert "--homeserver" in wrong.stderr
    assert "hidden" not in wrong.stderr
