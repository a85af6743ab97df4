"""The format `logweir` in a real Spark session: sinks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import sample
from spark.feeding import fill, forget_last_commit

import logweir
from logweir import pipeline
from logweir.recovery import examine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """What a log holds, by the plain reader."""
    return [(row.replica_id, row.lsn, row.tsn, row.commit, row.body) for row in logweir.read(path)]


def test_a_copy_of_a_log_keeps_its_rows_and_positions(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a real Tarantool's logs, written in ordered partitions, are the same rows."""
    folder = sample("02-spaces").folder
    rows = pipeline.scan(
        spark,
        folder,
        kinds="xlog",
        columns=["type", "replica_id", "lsn", "tsn", "ts", "flags", "group_id", "body"],
        split_bytes=20000,
    )
    assert rows.rdd.getNumPartitions() > 2
    rows.write.format("logweir").mode("append").save(str(tmp_path / "copy"))
    expected = [row for path in sorted(folder.glob("*.xlog")) for row in rows_of(path)]
    assert rows_of(tmp_path / "copy") == expected
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [
        "00000000000000000000.xlog",
        "logweir.lock",
    ]


def test_a_failing_task_leaves_nothing_visible(spark: SparkSession, tmp_path: Path) -> None:
    """A row that is no MsgPack fails the job: no file is there, and none of the staging."""
    rows = spark.createDataFrame(
        [(512, bytearray(b"\x91\x01")), (512, bytearray(b"\xc1"))], "space_id BIGINT, tuple BINARY"
    )
    target = tmp_path / "log"
    with pytest.raises(Exception, match="no MsgPack array"):
        rows.write.format("logweir").mode("append").save(str(target))
    assert not list(target.glob("*.xlog*"))


def test_a_repeated_batch_is_published_once(spark: SparkSession, tmp_path: Path) -> None:
    """A stream from folder to folder, restarted after its commit was lost, doubles nothing."""
    source, target = tmp_path / "from", tmp_path / "to"
    fill(source, 0, 30)

    def run() -> None:
        query = (
            spark.readStream.format("logweir")
            .option("max_rows_per_batch", 11)
            .load(str(source))
            .writeStream.format("logweir")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(target))
        )
        query.awaitTermination()

    run()
    assert len(list(target.glob("*.xlog"))) == 3
    forget_last_commit(tmp_path / "checkpoint")
    run()
    expected = [row for path in sorted(source.glob("*.xlog")) for row in rows_of(path)]
    assert rows_of(target) == expected
    assert not list(target.glob(".logweir-stage*"))


def test_a_checkpoint_that_is_begun_anew_or_moved_neither_drops_nor_doubles(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches are known by the query's id, not by the checkpoint's place: with a new checkpoint at
    the old place new rows arrive, with the old one at a new place none comes twice."""
    source, target = tmp_path / "from", tmp_path / "to"
    checkpoint, moved = tmp_path / "checkpoint", tmp_path / "moved"

    def run(place: Path, **options: str) -> None:
        (
            spark.readStream.format("logweir")
            .options(**options)
            .load(str(source))
            .writeStream.format("logweir")
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start(str(target))
            .awaitTermination()
        )

    fill(source, 0, 30)
    run(checkpoint)
    first = rows_of(target)
    forget_last_commit(checkpoint)
    shutil.move(checkpoint, moved)
    run(moved)
    assert rows_of(target) == first
    end = examine(source).vclock
    fill(source, 30, 20)
    run(checkpoint, **{"from": str(end)})
    assert len(rows_of(target)) == len(first) + 20


def test_a_task_that_is_tried_again_writes_its_rows_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first attempt of every task fails behind its rows: one copy of them is published."""

    def fails_at_first(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise OSError("the first attempt fails")

    fill(tmp_path / "from", 0, 30)
    rows = pipeline.scan(spark, tmp_path / "from", spaces=512, split_bytes=500)
    tried = rows.mapInArrow(fails_at_first, rows.schema)
    assert rows.rdd.getNumPartitions() > 2
    tried.write.format("logweir").mode("append").save(str(tmp_path / "to"))
    found = [row.decoded()["tuple"][0] for row in logweir.read(tmp_path / "to")]
    assert found == list(range(30))
    assert not list((tmp_path / "to").glob(".logweir-stage*"))
