"""Type checkers find logweir where it is installed, also from a clone (`tools/setup.sh`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLANTED = """import logweir

with logweir.open("library") as log:
    log.insert("users", 7)
    log.get(5.5, 1)
    rows: list[str] = log.select("users")
"""


def test_mypy_finds_planted_errors(tmp_path: Path) -> None:
    """Those and no others: the package itself is found, with its types."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "planted.py").write_text(PLANTED)
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--cache-dir", "/dev/null"]
    done = subprocess.run(
        [*command, "planted.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    found = [line.split(": ")[0] for line in done.stdout.splitlines() if ": error: " in line]
    assert found == ["planted.py:4", "planted.py:5", "planted.py:6"], done.stdout + done.stderr
