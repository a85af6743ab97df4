"""`verify` on a real Spark session says what one process says; large files are many tasks' work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import damaged

import logweir
from logweir import pipeline
from logweir.errors import ConfigError
from logweir.recovery import examine
from logweir.store.recover.compare import compare_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OPTIONS: Any = {"checkpoint_interval": 0, "checkpoint_count": 9, "durability": "write"}
STEP = 2000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a snapshot in the middle of its changes, which are in two logs."""
    path = tmp_path / "data"
    with logweir.open(path, **OPTIONS) as log:
        log.create_space("counts", format=[("id", "unsigned"), ("n", "integer")])
        for n in range(100):
            log.insert("counts", [n, n])
        log.snapshot()
        for n in range(0, 100, 3):
            log.update("counts", n, [("+", "n", 1)])
    return path


def widest(spark: SparkSession, name: str, run: Callable[[], object]) -> tuple[object, list[int]]:
    """What `run` gives, and how many tasks each of its jobs has in its widest stage."""
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup(name, "")
    given = run()
    found = []
    for number in sorted(tracker.getJobIdsForGroup(name)):
        job = tracker.getJobInfo(number)
        assert job is not None
        stages = [tracker.getStageInfo(one) for one in job.stageIds]
        found.append(max(one.numTasks for one in stages if one is not None))
    return given, found


@pytest.mark.parametrize("split_bytes", [None, 500])
@pytest.mark.parametrize(
    "name",
    ["c-flipped-payload-byte", "h-flipped-magic", "v-gap", "l-foreign-uuid", "s-snap-truncated"],
)
def test_verify_reports_what_the_plain_check_reports(
    spark: SparkSession, name: str, split_bytes: int | None
) -> None:
    """Damaged folders give the same report, byte for byte, as one process gives, however they are
    cut."""
    path = damaged(name).folder
    given = {} if split_bytes is None else {"split_bytes": split_bytes}
    assert pipeline.verify(spark, path, **given).to_json() == examine(path).to_json()


def test_small_files_are_checked_in_one_task(spark: SparkSession, folder: Path) -> None:
    """A task for each would take longer than the files."""
    assert len([*folder.glob("*.xlog"), *folder.glob("*.snap")]) > 1
    for level in ("rows", "crc", "unpack"):
        _, tasks = widest(
            spark,
            f"small {level}",
            lambda level=level: pipeline.verify(spark, folder, level=level),  # type: ignore[misc]
        )
        assert tasks == [1]


def test_what_fits_into_one_task_is_not_shuffled(spark: SparkSession, folder: Path) -> None:
    """States and counts of a small folder are made where it is read; cut, they are the same."""
    jobs: dict[str, Callable[..., Any]] = {
        "state": lambda **o: pipeline.state(spark, folder, **o),
        "table": lambda **o: pipeline.table(spark, folder, "counts", **o),
        "stats": lambda **o: pipeline.stats(spark, folder, **o),
    }
    for name, job in jobs.items():
        whole, cut = job(), job(split_bytes=500)
        plans = [one._jdf.queryExecution().executedPlan().toString() for one in (whole, cut)]
        assert ["Exchange" in plan for plan in plans] == [False, True], name
        rows, tasks = widest(spark, f"one task, {name}", whole.collect)
        assert tasks == [1], name
        assert sorted(map(str, cut.collect())) == sorted(map(str, rows)), name


def test_one_large_file_is_many_tasks_of_every_job(spark: SparkSession, tmp_path: Path) -> None:
    """And what they give is what they give of it in one piece."""
    path = tmp_path / "data"
    with logweir.open(path, **OPTIONS) as log:
        log.create_space("t", format=[("id", "unsigned"), ("n", "integer")])
        for n in range(300):
            log.replace("t", [n % 50, n])
    (large,) = path.glob("*.xlog")
    least = large.stat().st_size // STEP
    assert least > 6
    done: list[Path] = []

    def compacted(**options: Any) -> list[Any]:
        done.append(tmp_path / f"new{len(done)}")
        pipeline.compact(spark, path, done[-1], **options)
        (tmp_path / f"scratch{len(done)}").mkdir()
        return list(compare_states(path, done[-1], tmp_path / f"scratch{len(done)}"))

    def exported(**options: Any) -> list[Any]:
        done.append(tmp_path / f"out{len(done)}")
        pipeline.export(spark, path, done[-1], space="t", **options)
        return sorted(map(str, spark.read.parquet(str(done[-1])).collect()))

    def rows(frame: Any) -> list[Any]:
        return sorted(map(str, frame.collect()))

    jobs: dict[str, Callable[..., object]] = {
        "scan": lambda **o: rows(pipeline.scan(spark, path, **o)),
        "typed scan": lambda **o: rows(pipeline.scan(spark, path, space="t", **o)),
        "changes": lambda **o: rows(pipeline.changes(spark, path, **o)),
        "stats": lambda **o: rows(pipeline.stats(spark, path, **o)),
        "state": lambda **o: rows(pipeline.state(spark, path, **o)),
        "table": lambda **o: rows(pipeline.table(spark, path, "t", **o)),
        "compact": compacted,
        "export": exported,
        "verify": lambda **o: pipeline.verify(spark, path, **o).to_json(),
        "crc": lambda **o: pipeline.verify(spark, path, level="crc", **o).to_json(),
        "unpack": lambda **o: pipeline.verify(spark, path, level="unpack", **o).to_json(),
    }
    for name, job in jobs.items():
        whole, _ = widest(spark, f"{name} whole", job)
        cut, tasks = widest(spark, f"{name} cut", lambda job=job: job(split_bytes=STEP))  # type: ignore[misc]
        assert cut == whole, name
        assert max(tasks) >= least - 1, name


def test_quick_levels_find_flipped_bits_and_short_files(spark: SparkSession, folder: Path) -> None:
    """Checksums only: whole files pass; a bit and a cut are found where they are, and a log that is
    gone, between others or the newest."""
    assert pipeline.verify(spark, folder, level="crc").ok
    log = min(folder.glob("*.xlog"))
    whole = log.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    log.write_bytes(flipped)
    report = pipeline.verify(spark, folder, level="crc", split_bytes=STEP)
    bad = [one for one in report.files if not one.ok]
    assert [one.file for one in bad] == [str(log)]
    assert 0 < (bad[0].offset or 0) <= len(whole) // 2
    assert not report.ok
    log.write_bytes(whole[:-30])
    report = pipeline.verify(spark, folder, level="crc")
    assert [one.file for one in report.files if not one.ok] == [str(log)]
    log.write_bytes(whole)
    with logweir.open(folder, **OPTIONS) as store:
        store.snapshot()
        store.insert("counts", [1000, 1])
    _, middle, newest = sorted(folder.glob("*.xlog"))
    for gone, told in ((middle, "a log is missing"), (newest, "newest rows are gone")):
        data = gone.read_bytes()
        gone.unlink()
        files = pipeline.verify(spark, folder, level="crc").files
        assert any(told in one.reason for one in files)
        gone.write_bytes(data)


def test_a_level_that_is_none_is_refused(spark: SparkSession, folder: Path) -> None:
    """By name, before anything is read."""
    shutil.rmtree(folder)
    level: Any = "row"
    with pytest.raises(ConfigError, match=r"level.*'row'.*rows, crc or unpack"):
        pipeline.verify(spark, folder, level=level)
