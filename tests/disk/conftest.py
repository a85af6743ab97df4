"""Where these tests have their files: on a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK = Path("/var/tmp")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on the disk, where others may have theirs in memory, see `tools/test`. That of a
    test that failed stays."""
    failed = request.session.testsfailed
    folder = Path(tempfile.mkdtemp(prefix="logweir-", dir=DISK if DISK.is_dir() else None))
    yield folder
    if request.session.testsfailed == failed:
        shutil.rmtree(folder, ignore_errors=True)
