"""Drivers that are killed, with all that they started, and started again.

A Java takes longer to start than the rest of a test. So one driver is killed, at the last place,
and at each place before it what a kill there would leave is copied: nothing else outlives one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples import sample
from spark.driver_job import follow
from spark.feeding import fill, thaw
from support.objectstore import object_store, s3_url

import logweir
from logweir import pipeline
from logweir.pipeline.jobs.commits import MANIFEST, committed, named_files
from logweir.pipeline.jobs.places import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kill]

JOB = Path(__file__).with_name("driver_job.py")

STOPPER = """
import os, shutil, signal
if os.environ.get("STOP_AT"):
    from logweir.wal import failpoint

    def freeze(place):
        to = os.path.join(os.environ["FREEZE_TO"], place)
        if not os.path.exists(to):
            shutil.copytree(os.environ["FREEZE"], f"{to}.part")
            os.rename(f"{to}.part", to)

    def stop():
        with open(os.environ["STOP_TELL"], "w") as told:
            told.write("here")
        signal.pause()

    for place in filter(None, os.environ.get("FREEZE_AT", "").split(",")):
        failpoint.arm(place, lambda place=place: freeze(place))
    failpoint.arm(os.environ["STOP_AT"], stop)
"""
"""What every Python process of a driver runs first: at one place it says so, and waits; at others
it copies a folder."""


def below(pid: int) -> list[int]:
    """A process and all that it started, and those started."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                told = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(told[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def killed(
    words: Sequence[str],
    folder: Path,
    place: str,
    meanwhile: Callable[[], object] = lambda: None,
    **told: str,
) -> None:
    """Run Python with these words, and kill it and all its processes at `place`. `meanwhile`: what
    to do while it runs; `told`: of its environment."""
    fifo = folder / f"told-{place}"
    os.mkfifo(fifo)
    (folder / "sitecustomize.py").write_text(STOPPER)
    environ = {**os.environ, "PYTHONPATH": str(folder), "STOP_AT": place, **told}
    environ["STOP_TELL"] = str(fifo)
    with open(folder / f"log-{place}", "w") as log:
        process = subprocess.Popen([sys.executable, *words], env=environ, stderr=log)
        watch = threading.Thread(target=_tell_end, args=(process, fifo), daemon=True)
        watch.start()
        try:
            meanwhile()
            with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as told:
                assert told.read(4) == b"here", (folder / f"log-{place}").read_text()[-2000:]
        finally:
            for pid in below(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(60)


def _tell_end(process: subprocess.Popen[bytes], fifo: Path) -> None:
    """Tell where the program ended by itself, so that nobody waits for it."""
    process.wait()
    with contextlib.suppress(OSError), open(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb") as to:
        to.write(b"over")


def ids(folder: Path) -> list[int]:
    """The first fields of all tuples, of files that are whole."""
    found = []
    for path in sorted(folder.glob("*.xlog")):
        assert path.read_bytes().endswith(b"\xd5\x10\xad\xed")
        found += [row.decoded()["tuple"][0] for row in logweir.read(path)]
    return found


STEPS = [
    f"pipeline.{name}"
    for name in ("after_stage", "before_rename", "after_rename", "after_publish", "after_commit")
]
"""Behind a task's part, before and after the rename, after the publishing and after the commit."""

COMPACTING = ("compact.before_end", "compact.before_rename")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a driver compacted and followed until it was killed; beside it in `kept` is what there
    was at each step."""
    folder = tmp_path_factory.mktemp("driver")
    fill(folder / "from", 0, 40)
    job, kept = folder / "job", folder / "kept"
    words = [sample("04-crashed").folder, job / "snap", folder / "from", job / "to", job / "c"]
    told = {"FREEZE": str(job), "FREEZE_TO": str(kept)}
    told["FREEZE_AT"] = ",".join((*COMPACTING, *STEPS[:-1]))
    killed([str(JOB), "compact_and_follow", *map(str, words)], folder, STEPS[-1], **told)
    shutil.copytree(job, kept / STEPS[-1])
    return job


def test_a_stream_survives_a_killed_driver_at_every_step(spark: SparkSession, job: Path) -> None:
    """At each moment the target holds whole batches in order, and after a new start every row
    once, and nothing else."""
    target, seen = job / "to", []
    for place in STEPS:
        thaw(job.with_name("kept") / place, job)
        found = ids(target) if target.exists() else []
        assert found == list(range(len(found)))
        seen.append(len(found))
        follow(spark, str(job.with_name("from")), str(target), str(job / "c"))
        assert ids(target) == list(range(40))
        assert not [one.name for one in target.iterdir() if one.suffix not in (".xlog", ".lock")]
    assert seen[:2] == [0, 0]
    assert 0 < seen[2] <= seen[3] <= seen[4] < 40


def test_a_stream_into_an_object_store_survives_a_killed_driver_at_every_step(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Killed one time after the other, each time with what the one before has left: in a task's
    file, in front of the sweep, in front of the manifest, behind it (the first and the last alone,
    unless `LOGWEIR_SPOOLS=all`). After each kill a reader by the manifests has whole batches in
    order; in the end every row once, and no other file."""
    pytest.importorskip("moto.server")
    folder, checkpoint = tmp_path / "from", tmp_path / "checkpoint"
    fill(folder, 0, 40)
    with object_store() as port:
        place = Place(s3_url(port, "stream"))
        words = ["-c", "from logweir.tools.cli.main import run; run()", "pipeline", "cdc"]
        words += [str(folder), "--to", place.location, "--checkpoint", str(checkpoint)]
        words += ["--space", "t", "--format", "json", "--option", "max_rows_per_batch=15"]
        seen, steps = [], ("in_part", "before_sweep", "before_manifest", "after_manifest")
        for step in steps if os.environ.get("LOGWEIR_SPOOLS") == "all" else steps[::3]:
            killed([*words, "--master", "local[1]"], tmp_path, f"place.{step}")
            found = ids_in(place)
            assert found == list(range(len(found)))
            seen.append(len(found))
        assert seen[:-1] == [0] * (len(seen) - 1)
        assert 0 < seen[-1] < 40
        query = pipeline.cdc(
            spark,
            folder,
            place.location,
            checkpoint,
            format="json",
            space="t",
            max_rows_per_batch=15,
        )
        query.awaitTermination()
        assert ids_in(place) == list(range(40))
        for name in place.names():
            told = committed(place.below(name))
            assert told is not None
            assert place.below(name).files().keys() == {*told["files"], MANIFEST}


def ids_in(place: Place) -> list[int]:
    """The ids of the lines of batches that have their manifest."""
    found: list[int] = []
    for one in named_files(place) if place.names() else []:
        filesystem, path = one.arrow()
        with filesystem.open_input_stream(path) as file:
            found += [json.loads(line)["id"] for line in file.read().splitlines()]
    return sorted(found)


def test_a_killed_compaction_shows_nothing(spark: SparkSession, job: Path) -> None:
    """Killed while it puts the snapshot together: none is there under its name; done again, it is,
    and what was left is gone."""
    target = job / "snap"
    for place in COMPACTING:
        thaw(job.with_name("kept") / place, job)
        assert not list(target.glob("*.snap"))
        assert list(target.iterdir())
        done = pipeline.compact(spark, sample("04-crashed").folder, target)
        assert [path.name for path in target.iterdir()] == [done.path.name]
    with logweir.open(target, create=False) as log:
        assert log.vclock.lsn(1) == 174
