"""Folders for temporary files, of processes that end in order or are killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logweir.pipeline.scratch import scratch
from logweir.wal.failpoint import arm, disarm

HOLDS = """
import sys
from logweir.pipeline.scratch import scratch

with scratch(sys.argv[1]) as folder:
    (folder / "copy").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder until its input ends, and that folder."""
    words = [sys.executable, "-c", HOLDS, str(parent)]
    ran = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ran.stdout is not None
    return ran, Path(ran.stdout.readline().strip())


@pytest.mark.kill
def test_what_a_killed_process_left_goes_and_what_a_live_one_has_stays(tmp_path: Path) -> None:
    """With the next one that makes such a folder there. Nothing else is touched."""
    other, file, link = (tmp_path / f"logweir-{name}" for name in ("spool-1", "scratch-2", "link"))
    elsewhere = tmp_path / "logweir-scratch-3"
    for one in (other, link):
        one.mkdir()
        (one / "kept").touch()
    file.touch()
    elsewhere.symlink_to(link)
    killed, left = holder(tmp_path)
    lives, kept = holder(tmp_path)
    with killed, lives:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "copy").exists()
        with scratch(str(tmp_path)) as ours:
            assert not left.parent.exists()
            assert (kept / "copy").read_bytes() == b"x"
            with scratch(str(tmp_path)) as second:
                assert ours.is_dir()
                assert second.is_dir()
        assert not ours.parent.exists()
        assert not second.parent.exists()
        lives.communicate()
    assert lives.returncode == 0
    assert {one.name for one in tmp_path.iterdir()} == {
        *("logweir-spool-1", "logweir-scratch-2", "logweir-link", "logweir-scratch-3")
    }
    assert (other / "kept").exists()
    assert (link / "kept").exists()


@pytest.mark.parametrize("takes", ["removes", "looks"])
def test_who_is_taken_for_one_that_was_left_makes_another(tmp_path: Path, takes: str) -> None:
    """Between making a folder and locking it somebody else may come."""
    disarm()
    seen: list[Path] = []

    def comes() -> None:
        disarm()
        seen.extend(tmp_path.iterdir())
        if takes == "looks":
            with scratch(str(tmp_path)):
                assert not seen[0].exists()
        else:
            shutil.rmtree(seen[0])

    arm("scratch.after_made", comes)
    try:
        with scratch(str(tmp_path)) as folder:
            assert folder.parent not in seen
            assert list(tmp_path.iterdir()) == [folder.parent]
    finally:
        disarm()
    assert len(seen) == 1
    assert not list(tmp_path.iterdir())
