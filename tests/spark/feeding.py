"""What the tests of the pipeline share: logs to read, checkpoints to spoil, and what a kill would
leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import logweir


def fill(folder: Path, first: int, count: int) -> None:
    """Insert `count` rows, each one transaction in a block of its own."""
    with logweir.open(folder) as log:
        if first == 0:
            log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
        for number in range(first, first + count):
            log.insert("t", (number, "x"))


def forget_last_commit(checkpoint: Path) -> None:
    """As a driver leaves it that is killed between the sink's commit and its own."""
    commits = checkpoint / "commits"
    newest = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)


def thaw(kept: Path, folder: Path) -> None:
    """Put what was frozen back into its place."""
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
