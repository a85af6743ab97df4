"""The archiver, or who writes the store, is killed; what was said to be archived is restored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from disk.test_failpoints import forked, kill
from support.waiting import until

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.catalog import Catalog, Keep
from logweir.archive.fetch import drill, restore_archive
from logweir.archive.objects import open_objects
from logweir.wal import failpoint

STEPS = [
    "archive.after_identity",
    "archive.before_put",
    "archive.in_put",
    "archive.after_put",
    "archive.before_entry",
    "archive.after_entry",
    "archive.before_remove",
    "archive.after_remove_entry",
    "archive.before_lease",
]


def archive_some(
    folder: Path, place: Path, name: str, passes: int, acknowledge: Callable[[int], None]
) -> None:
    """Rows, logs, snapshots and looks; killed when `name` was passed so often. Acknowledged is how
    many tuples the archive is said to have."""
    left = [passes]

    def at_failpoint() -> None:
        left[0] -= 1
        if left[0] == 0:
            kill()

    failpoint.arm(name, at_failpoint)
    with (
        logweir.open(folder, wal_max_size=600, checkpoint_count=1) as log,
        Archiver(folder, open_objects(str(place)), keep=Keep(snapshots=2)) as archiver,
    ):
        for number in range(60):
            log.insert("t", (number, f"v{number}"))
            if number % 4 == 3:
                archiver.look()
                acknowledge(number + 1)
            if number % 10 == 9:
                log.snapshot()
    kill()


def tuples(folder: Path) -> list[tuple[int, str]]:
    """What a restored store holds."""
    with logweir.open(folder, create=False) as log:
        return log.select("t")


@pytest.mark.kill
@pytest.mark.parametrize("passes", [1, 7])
@pytest.mark.parametrize("step", STEPS)
def test_an_archiver_that_is_killed_doubles_and_loses_nothing(
    step: str, passes: int, tmp_path: Path
) -> None:
    """After SIGKILL exactly there what was acknowledged is restored, each entry has its object, and
    the next archiver goes on."""
    folder, place = tmp_path / "s", tmp_path / "a"
    with logweir.open(folder) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")])
    status, acknowledged = forked(
        lambda acknowledge: archive_some(folder, place, step, passes, acknowledge)
    )
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    catalog = Catalog.load(open_objects(str(place)))
    assert (catalog.damaged, catalog.missing()) == ([], [])
    if acknowledged:
        restore_archive(str(place), tmp_path / "r")
        found = tuples(tmp_path / "r")
        assert len(found) >= acknowledged[-1]
        assert found == [(number, f"v{number}") for number in range(len(found))]
    with Archiver(folder, open_objects(str(place)), keep=Keep(snapshots=2)) as archiver:
        archiver.look()
        assert archiver.look().objects == archiver.progress.objects
        catalog = archiver.catalog
    assert drill(str(place), folder).ok
    assert len(catalog.points()) == 1
    newest = catalog.logs()[-1].file
    alone = {path.name for path in (place / "data").iterdir()} - catalog.entries.keys()
    assert all(name.startswith(newest) for name in alone)


WRITER = """
import sys, logweir
with logweir.open(sys.argv[1], wal_max_size=20_000, checkpoint_count=100) as log:
    number = log.count("t")
    while True:
        with log.transaction() as tx:
            for part in range(3):
                tx.insert("t", (number + part, "x" * (number % 50)))
        number += 3
        if number % 3000 == 0:
            log.snapshot()
        print(number, flush=True)
"""
"""Writes without end, and says how many tuples are durable. Keeps its logs, since
no archiver does that while it is killed."""


@pytest.mark.kill
def test_kills_of_writer_and_archiver_under_load(tmp_path: Path) -> None:
    """In turns, while the other goes on; in the end every tuple is as in the store, and every state
    on the way was that of a transaction."""
    folder, place = tmp_path / "s", tmp_path / "a"
    with logweir.open(folder) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")])
    program = "from logweir.tools.cli.main import run; run()"
    words = ["archive", str(folder), "--to", str(place), "--follow", "--every", "0.05", "--json"]

    def start_archiver() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    archiver = start_archiver()
    for turn in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert archiver.stdout is not None
        told = {}
        for _ in range(3):  # while it writes, so many looks put something
            assert writer.stdout.readline()
            told = json.loads(archiver.stdout.readline())
            assert told["error"] == ""
        killed, other = (writer, archiver) if turn % 2 else (archiver, writer)
        killed.kill()
        killed.communicate()
        assert other.poll() is None
        if killed is archiver:
            to = tmp_path / f"r{turn}"
            vclock = restore_archive(str(place), to).vclock
            assert vclock.lsn(1) >= told["vclock"]["1"]
            found = tuples(to)
            assert len(found) % 3 == 0
            assert found == [(number, "x" * (number // 3 * 3 % 50)) for number in range(len(found))]
            writer.kill()
            writer.communicate()
            archiver = start_archiver()
    with logweir.open(folder) as log:
        end = log.vclock
    until(lambda: Catalog.load(open_objects(str(place))).points()[-1].vclock == end, 60)
    archiver.terminate()
    _, complaints = archiver.communicate()
    assert (archiver.returncode, complaints) == (0, "")
    assert drill(str(place), folder).ok
    assert len(Catalog.load(open_objects(str(place))).points()) == 1
