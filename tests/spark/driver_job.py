"""A stream from folder to folder, as a program of its own: source, target, checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logweir import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follow(spark: SparkSession, source: str, target: str, checkpoint: str) -> None:
    """Take what is there, in small batches."""
    query = (
        spark.readStream.format("logweir")
        .options(spaces="t", max_rows_per_batch="20")
        .load(source)
        .writeStream.format("logweir")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = pipeline.session(
        "local[1]",
        spark__driver__memory="512m",
        spark__driver__extraJavaOptions="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    )
    follow(session, *sys.argv[1:4])
