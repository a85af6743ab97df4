"""A process is killed at each step of changes that come one by one, each of which is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import logweir

STEPS = (
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
    "store.before_apply_commit",
    "store.after_apply_commit",
)
CHANGES = 100_000  # far more than any step needs: the writer is killed, never done
WRITER = """
import os, sys
import logweir
from logweir.store.state import layers
from logweir.store.engine.statements import request_for
from logweir.wal.xrow import RowType
layers.LAYER_SECONDS = 0.005  # the state takes them again and again
folder, way, changes = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = logweir.open(folder)
for number in range(1, changes + 1):
    row = (number % 7, number)
    if way == "one":
        log.replace("t", row)
    elif way == "submitted":
        log.inner.submit(request_for(RowType.REPLACE, log.schema, "t", row)).result()
    else:
        with log.transaction() as tx:
            tx.replace("t", row)
    os.write(1, b"%d\\n" % number)
os.write(1, b"end\\n")
"""


@pytest.mark.kill
@pytest.mark.parametrize("way", ["one", "submitted", "transaction"])
@pytest.mark.parametrize("step", STEPS)
def test_what_was_told_is_there_once(tmp_path: Path, step: str, way: str) -> None:
    """The log and the state hold all that was told and at most one change more, each once."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        space, before = log.schema.space("t").id, dict(log.vclock)[1]
    passes = 20 if step.endswith("apply_commit") else 200
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRITER, str(tmp_path / "s"), way, str(CHANGES)],
        env={**os.environ, "LOGWEIR_FAILPOINTS": f"{step}=kill@{passes}"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    told = [int(line) for line in done.stdout.split()]
    assert told == list(range(1, len(told) + 1))
    assert len(told) > 10
    with logweir.open(tmp_path / "s") as log:
        rows = [row for each in log.rows() for row in each.rows if row.space_id == space]
        logged = [row.decoded()["tuple"][1] for row in rows]
        assert logged == list(range(1, len(logged) + 1))
        assert len(logged) - len(told) in (0, 1)
        assert [row.lsn for row in rows] == list(range(before + 1, before + 1 + len(rows)))
        newest = {number % 7: number for number in logged}
        assert {row[0]: row[1] for row in log.select("t")} == newest
