"""What a driver does that is killed, as a program of its own: the name of a function of this file,
and its words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logweir import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact_and_follow(spark: SparkSession, folder: str, snap: str, *words: str) -> None:
    """Make a snapshot of a folder, and follow another one."""
    pipeline.compact(spark, folder, snap)
    follow(spark, *words)


def follow(spark: SparkSession, source: str, target: str, checkpoint: str) -> None:
    """A stream from folder to folder: take what is there, in small batches."""
    reader = spark.readStream.format("logweir").options(spaces="t", max_rows_per_batch="20")
    _write(reader.load(source), target, checkpoint)


def follow_upstream(
    spark: SparkSession, url: str, target: str, checkpoint: str, spool: str
) -> None:
    """Take what the upstream at `url` has in bucket b."""
    reader = spark.readStream.format("logweir").options(url=url, spool=spool, spaces="b")
    _write(reader.load(), target, checkpoint)


def _write(rows: DataFrame, target: str, checkpoint: str) -> None:
    query = (
        rows.writeStream.format("logweir")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = pipeline.session("local[1]", spark__driver__memory="512m")
    globals()[sys.argv[1]](session, *sys.argv[2:])
