"""Folders below a folder that is scanned, and those that killed jobs leave beside a target."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from samples import sample

from logweir import pipeline
from logweir.errors import WalError
from logweir.pipeline.jobs import exports
from logweir.wal.filesystem import OsFileSystem

NO_FRAME: Any = None


def every(folder: Path, **given: Any) -> Any:
    """All batches."""
    return pipeline.batches(folder, **given)


def lsns(batches: Any) -> list[int]:
    """Of all rows."""
    return [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]


def test_a_folder_that_links_lead_to_is_read_once(tmp_path: Path) -> None:
    """A link to the folder above gave each row 41 times, one beside it each row twice; those that
    lead nowhere, or to themselves, are no folders."""
    shutil.copytree(sample("02-spaces").folder, tmp_path / "all" / "one")
    wanted = lsns(every(tmp_path / "all", recursive=True))
    assert wanted
    for name, target in (("one/up", ".."), ("same", "one"), ("loop", "loop"), ("gone", "nothing")):
        (tmp_path / "all" / name).symlink_to(target)
    assert lsns(every(tmp_path / "all", recursive=True)) == wanted


class Unlisted(OsFileSystem):
    """A disk of which one folder may not be listed."""

    def list_directory(self, path: Path) -> list[str]:
        if path.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return super().list_directory(path)


def test_a_folder_below_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, or listed as damage if that is asked for; its rows were left out in silence."""
    for name in ("closed", "open"):
        shutil.copytree(sample("02-spaces").folder, tmp_path / "all" / name)
    rows = len(lsns(every(tmp_path / "all", recursive=True)))
    places = "logweir.pipeline.plan.open_storage"
    monkeypatch.setattr(places, lambda place: (Unlisted(), Path(place)))
    with pytest.raises(WalError, match="closed: permission denied") as caught:
        lsns(every(tmp_path / "all", recursive=True))
    assert "give this user the right" in caught.value.hint
    assert 2 * len(lsns(every(tmp_path / "all", recursive=True, on_error="skip"))) == rows
    columns = ["file", "crc_ok", "damage"]
    listed = every(tmp_path / "all", recursive=True, on_error="report", columns=columns)
    told = [row for row in listed.read_all().to_pylist() if row["damage"]]
    (one,) = [row for row in told if row["file"].endswith("closed")]
    assert one["damage"] == "unreadable: permission denied."
    assert one["crc_ok"] is False


def test_what_a_killed_export_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the same target, from this machine; what one that lives has stays, and another's."""

    def write(frame: object, to: str, format: str) -> None:
        Path(to).mkdir()
        Path(to, "part-0.parquet").write_bytes(b"rows")

    monkeypatch.setattr(exports, "_write", write)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host, now = socket.gethostname(), int(time.time())
    owners = [(host, ended.pid, now), (host, os.getpid(), now), ("elsewhere", 1, now)]
    names = [f".logweir-stage-out-{'-'.join(map(str, owner))}-ab" for owner in owners]
    names.append(f".logweir-stage-other-{host}-{ended.pid}-{now}-ab")
    for name in names:
        (tmp_path / name).mkdir()
    done = exports._written(NO_FRAME, tmp_path / "out", "parquet")
    assert done.sizes == {"part-0.parquet": 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "out"])
