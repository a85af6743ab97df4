"""A program for `spark-submit --py-files` on a small cluster: the format and jobs, or a slow task.

Arguments: the folder of a store, a folder to write to, and `jobs` or `slow`. Prints one line of
JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

WAIT_SECONDS = 100


def where(numbers: Iterator[Any]) -> Iterator[Any]:
    """Where a task's Python finds the package."""
    import pyarrow as pa

    import logweir

    for _ in numbers:
        yield pa.RecordBatch.from_arrays([pa.array([str(logweir.__file__)])], names=["file"])


def dawdle(batches: Iterator[Any]) -> Iterator[Any]:
    """The first attempt at the first partition waits behind its rows until it is killed."""
    from threading import Event

    from pyspark import TaskContext

    yield from batches
    task = TaskContext.get()
    if task is not None and task.partitionId() == 0 and task.attemptNumber() == 0:
        Event().wait(WAIT_SECONDS)


def jobs(spark: SparkSession, source: str, target: str) -> dict[str, Any]:
    """The format, batch and stream, and jobs."""
    from logweir import pipeline

    pipeline.register(spark)
    files = {row.file for row in spark.range(0, 4, 1, 4).mapInArrow(where, "file STRING").collect()}
    rows = pipeline.scan(spark, source, spaces=512, split_bytes=2000)
    rows.write.format("logweir").mode("append").save(f"{target}/log")
    changes = spark.readStream.format("logweir").option("spaces", "512").load(source)
    query = (
        changes.writeStream.format("logweir")
        .option("checkpointLocation", f"{target}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{target}/stream")
    )
    query.awaitTermination()
    return {
        "files": sorted(files),
        "partitions": rows.rdd.getNumPartitions(),
        "compacted": pipeline.compact(spark, source, f"{target}/snap", split_bytes=2000).rows,
        "verified": pipeline.verify(spark, source).ok,
    }


def slow(spark: SparkSession, source: str, target: str) -> dict[str, Any]:
    """A write whose first task hangs until Spark's quicker copy of it is done."""
    import time

    from logweir import pipeline

    rows = pipeline.scan(spark, source, spaces=512, split_bytes=800)
    started = time.monotonic()
    rows.mapInArrow(dawdle, rows.schema).write.format("logweir").mode("append").save(target)
    return {"seconds": time.monotonic() - started, "partitions": rows.rdd.getNumPartitions()}


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print(json.dumps({"jobs": jobs, "slow": slow}[sys.argv[3]](session, *sys.argv[1:3])))
