"""Programs of `tests/data/node` with the clients that `tools/test` got from npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(sys.prefix) / "node-clients" / "node_modules"
PROGRAMS = Path(__file__).parents[1] / "data" / "node"

needed = pytest.mark.skipif(
    shutil.which("node") is None or not PACKAGES.is_dir(), reason="no clients of npm here"
)


def told(program: str, port: int) -> Any:
    """What the clients of a program were answered by the server of `port`."""
    done = subprocess.run(
        ["node", PROGRAMS / program, str(port)],
        env={**os.environ, "NODE_PATH": str(PACKAGES)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])  # memjs logs in front
