"""Folders that older commits of this repository write, opened by the tree that is here.

    export PYTHONPATH=tests
    .venv/bin/python -P tests/support/older.py 20                              20 commits, evenly
    .venv/bin/python -P tests/support/older.py 60964dc --keep tests/data/older

Each commit is taken out of git and writes two folders without kernels, one closed in order and one
killed. Each has to hold the same with its state and without. `--keep`: they are packed there.
Exit code 1 if one does not. Commits before 2026-11-23 need `pip install zstandard`; what one cannot
write, for that or another reason, is told and counted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import logweir
from logweir.recovery import examine
from logweir.wal.vclock import VClock

HOWS = ("closed", "killed")
NEW = (1000, "new", 0)

WRITER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import logweir
log = logweir.open(sys.argv[2])
log.create_space("t", [("id", "unsigned"), ("value", "string"), ("number", "integer")])
log.create_index("t", "number", {"parts": ["number"], "unique": False})
for n in range(20):
    log.insert("t", (n, "x" * n, -n))
log.snapshot()
with log.transaction() as together:
    for n in range(20, 30):
        together.insert("t", (n, "y", n))
    together.delete("t", 3)
log.update("t", 5, [("=", 1, "changed"), ("+", 2, 100)])
log.upsert("t", (6, "nothing", 0), [("=", 1, "upserted")])
log.replace("t", (7, "z" * 2500, 7))
log.append("t", [(100 + n, "appended", n) for n in range(20)])
log.retain("follower", {1: 5})
log.close() if sys.argv[3] == "closed" else os.kill(os.getpid(), signal.SIGKILL)
"""


def content() -> list[tuple[int, str, int]]:
    """What they hold."""
    rows = {n: (n, "x" * n, -n) for n in range(20)} | {n: (n, "y", n) for n in range(20, 30)}
    del rows[3]
    rows[5] = (5, "changed", 95)
    rows[6] = (6, "upserted", -6)
    rows[7] = (7, "z" * 2500, 7)
    rows |= {100 + n: (100 + n, "appended", n) for n in range(20)}
    return [rows[key] for key in sorted(rows)]


def gone_on(folder: Path, keeps_state: bool) -> list[Any]:
    """Look at rows by each index, the log behind the snapshot and the follower, and go on from
    there; all rows once it is opened again. Raises `AssertionError`."""
    if not keeps_state:
        shutil.rmtree(folder / "state")
    assert not examine(folder).damage
    with logweir.open(folder) as log:
        assert log.select("t") == content()
        by_number = sorted(content(), key=lambda row: (row[2], row[0]))
        assert log.select("t", index="number") == by_number
        assert log.status()["followers"] == {"follower": {1: 5}}
        lsns = [row.lsn for one in log.rows(VClock({1: 24})) for row in one.rows]
        assert lsns == list(range(25, log.vclock.signature + 1))
        log.insert("t", NEW)
        log.snapshot()
    with logweir.open(folder) as log:
        return log.select("t")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], capture_output=True, check=True).stdout


def _written(commit: str, scratch: Path) -> list[Path]:
    """The folders of a commit, as many as it could write."""
    tree = scratch / "tree"
    (tree / "logweir").mkdir(parents=True)
    subprocess.run(
        ["tar", "-x", "-C", tree / "logweir"],
        input=_git("archive", commit, "--", ".", ":!tests", ":!docs"),
        check=True,
    )
    found = []
    for how in HOWS:
        folder = scratch / f"{commit}-{how}"
        command = [sys.executable, "-P", "-c", WRITER, str(tree), str(folder), how]
        said = subprocess.run(command, cwd=scratch, capture_output=True, check=False)
        if said.returncode not in (0, -signal.SIGKILL):
            print(f"{folder.name} was not written: {said.stderr.decode().splitlines()[-1]}")
        else:
            found.append(folder)
    shutil.rmtree(tree)
    return found


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="+", help="how many commits, or commits")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    commits = options.which
    if len(commits) == 1 and len(commits[0]) < 4:
        known = _git("log", "--reverse", "--format=%h", "--", "store").decode().split()
        commits = known[:: max(1, len(known) // int(commits[0]))]
    written = opened = 0
    with tempfile.TemporaryDirectory() as scratch:
        for folder in (one for commit in commits for one in _written(commit, Path(scratch))):
            if options.keep is not None:
                with tarfile.open(options.keep / f"{folder.name}.tar.xz", "w:xz") as packed:
                    packed.add(
                        folder,
                        folder.name,
                        filter=lambda one: None if one.name.endswith("lock.mdb") else one,
                    )
            for keeps_state in (True, False):
                written += 1
                copy = Path(scratch, "copy")
                shutil.copytree(folder, copy)
                try:
                    assert gone_on(copy, keeps_state) == [*content(), NEW]
                    opened += 1
                except (AssertionError, logweir.LogweirError) as error:
                    print(f"{folder.name}, {'with' if keeps_state else 'without'} state: {error}")
                shutil.rmtree(copy)
    print(f"{len(commits)} commits, {written} openings, {opened} had everything")
    return int(opened < written)


if __name__ == "__main__":
    sys.exit(_main())
