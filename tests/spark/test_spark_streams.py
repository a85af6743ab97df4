"""The format `logweir` in a real Spark session: streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark.feeding import fill, forget_last_commit

import logweir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def run_once(spark: SparkSession, source: Path, checkpoint: Path, out: Path, **options: Any) -> Any:
    """Read what is there now into Parquet; returns the progress of each batch."""
    query = (
        spark.readStream.format("logweir")
        .options(**{"columns": "lsn,tuple", "spaces": "t", **options})
        .load(str(source))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()
    return [one for one in query.recentProgress if one["numInputRows"]]


def lsns(spark: SparkSession, out: Path) -> list[int]:
    """The lsns that were written."""
    return sorted(row.lsn for row in spark.read.parquet(str(out)).collect())


def test_a_folder_is_followed_across_restarts_exactly_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Capped batches, a restart with more rows, and a batch whose commit was lost: every row is
    there once."""
    source, checkpoint, out = tmp_path / "log", tmp_path / "checkpoint", tmp_path / "out"
    fill(source, 0, 50)
    batches = run_once(spark, source, checkpoint, out, max_rows_per_batch=20)
    assert [one["numInputRows"] for one in batches] == [17, 20, 13]
    fill(source, 50, 10)
    run_once(spark, source, checkpoint, out)
    forget_last_commit(checkpoint)
    run_once(spark, source, checkpoint, out)
    inserted = [row.lsn for row in logweir.read(source) if row.decoded().get("space_id") == 512]
    assert len(inserted) == 60
    assert lsns(spark, out) == sorted(inserted)
