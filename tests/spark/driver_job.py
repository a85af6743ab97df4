"""A stream from a folder to a folder, as a program of its own: source, target, checkpoint. With a
fourth word, a spool, the source is the address of an upstream with bucket b."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logweir import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def follow(spark: SparkSession, source: str, target: str, checkpoint: str) -> None:
    """Take what is there, in small batches."""
    reader = spark.readStream.format("logweir").options(spaces="t", max_rows_per_batch="20")
    _write(reader.load(source), target, checkpoint)


def follow_upstream(
    spark: SparkSession, url: str, target: str, checkpoint: str, spool: str
) -> None:
    """Take what the upstream has."""
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
    if len(sys.argv) == 4:
        follow(session, *sys.argv[1:])
    else:
        follow_upstream(session, *sys.argv[1:])
