"""A program for `spark-submit --py-files` on a small cluster, which it starts: the format and jobs,
a slow task, and streams and batches of servers, whose executors die.

Arguments: the folder of a store, a file with the options of servers, and a folder to write to.
Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

WAIT_SECONDS = 100
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of the executors: Spark makes no second copy of a task on the host that has the first."""


def cluster(folder: str) -> str:
    """The address of a master with one worker for each host. They are in the Java of the driver,
    as those of Spark's `local-cluster` are, which has one host; executors are not."""
    SparkContext._ensure_initialized()
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    deploy, none = jvm.org.apache.spark.deploy, jvm.scala.Option.empty()
    conf = jvm.org.apache.spark.SparkConf()
    started = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)
    addresses = gateway.new_array(jvm.String, 1)
    addresses[0] = f"spark://{started._1().address().hostPort()}"
    for host in HOSTS:
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 768, addresses, f"{folder}/{host}", none, conf, none
        )
    return str(addresses[0])


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


def executor() -> int:
    """The process that started this task's Python."""
    pid = os.getppid()
    while Path("/proc", str(pid), "comm").read_text() != "java\n":
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid


def is_first(flag: str) -> bool:
    """Whether nobody made this file before."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        return True
    return False


def dying(place: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first task that has a row kills its executor behind it."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if batch.num_rows and is_first(f"{place}-killed"):
                os.kill(executor(), signal.SIGKILL)

    return run


def hanging(place: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The second task waits behind its rows, until it is killed since a copy of it is done."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from threading import Event

        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.partitionId() == 1 and is_first(f"{place}-hung"):
            Event().wait(WAIT_SECONDS)
            is_first(f"{place}-waited")

    return run


def servers(spark: SparkSession, source: str, target: str) -> dict[str, Any]:
    """What a batch and a stream of each server have, in one column, and what happened to them."""
    from logweir import pipeline

    pipeline.register(spark)
    told: dict[str, Any] = {}
    for name, (column, options) in json.loads(Path(source).read_text()).items():
        place = f"{target}/{name}"
        rows = pipeline.scan(spark, **options).select(column)
        rows.mapInArrow(hanging(place), rows.schema).write.parquet(f"{place}-batch")
        live = spark.readStream.format("logweir").options(**options).load().select(column)
        query = (
            live.mapInArrow(dying(place), live.schema)
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{place}-checkpoint")
            .trigger(availableNow=True)
            .start(f"{place}-stream")
        )
        query.awaitTermination()
        told[name] = {
            kind: sorted(
                bytes(row[0]).hex() for row in spark.read.parquet(f"{place}-{kind}").collect()
            )
            for kind in ("batch", "stream")
        }
        flags = ("killed", "hung", "waited")
        told[name]["seen"] = [one for one in flags if Path(f"{place}-{one}").exists()]
    return told


if __name__ == "__main__":
    store, options, to = sys.argv[1:]
    session = SparkSession.builder.master(cluster(to)).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    told = {
        "jobs": jobs(session, store, to),
        "slow": slow(session, store, f"{to}/slow"),
        "servers": servers(session, options, to),
    }
    print(json.dumps(told))
