"""The format `logweir` in a real Spark session: upstreams that are followed into a spool."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from spark.driver_job import follow_upstream
from spark.feeding import forget_last_commit
from spark.test_spark_kill import JOB, below, killed
from support.objectstore import object_store, s3_url

import logweir
from interop.tapserver import TapServer
from interop.test_pipeline_spools import bucket_server, homeserver, item
from logweir import pipeline
from logweir.wal.mp import unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def keys(frame: DataFrame) -> list[bytes]:
    """The first fields of all tuples."""
    return sorted(unpack(row.tuple)[0] for row in frame.select("tuple").collect())


def run_once(spark: SparkSession, url: str, folder: Path, **options: Any) -> list[int]:
    """Take what the upstream has into Parquet; the numbers of rows of the batches."""
    query = (
        spark.readStream.format("logweir")
        .options(url=url, spool=str(folder / "spool"), columns="lsn,tuple", **options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def test_a_batch_needs_no_spool(spark: SparkSession, tmp_path: Path) -> None:
    """A task that fails behind half of its rows is done again with a fresh folder: each row is
    there once. With a spool the tasks only read, and the next batch has what came meanwhile."""

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            yield batch
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt")

    with bucket_server(tmp_path / "up", "tap", 40) as (server, url):
        wanted = sorted(b"k%d" % number for number in range(40))
        options = {"spaces": "b", "batch_rows": 10, "columns": "lsn,tuple"}
        rows = pipeline.scan(spark, url=url, **options)
        assert keys(rows.mapInArrow(fail_once, rows.schema)) == wanted
        spooled = {**options, "spool": tmp_path / "spool"}
        assert keys(pipeline.scan(spark, url=url, **spooled)) == wanted
        server.log.replace("b", item(99))
        assert keys(pipeline.scan(spark, url=url, **spooled)) == sorted([*wanted, b"k99"])
    # In the system's own folder other tests have theirs meanwhile.
    assert not list(Path(SparkFiles.getRootDirectory()).glob("logweir-scratch-*"))


def test_available_now_is_exactly_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """A run with news, and one whose last batch's commit was lost."""
    with bucket_server(tmp_path / "up", "greenstack", 30) as (server, url):
        assert sum(run_once(spark, url, tmp_path, spaces="b")) == 30
        for number in range(30, 36):
            server.log.replace("b", item(number))
        assert sum(run_once(spark, url, tmp_path, spaces="b", max_rows_per_batch=2)) == 6
        forget_last_commit(tmp_path / "checkpoint")
        run_once(spark, url, tmp_path, spaces="b")
    found = keys(spark.read.parquet(str(tmp_path / "out")))
    assert found == sorted(b"k%d" % number for number in range(36))


def test_a_query_that_runs_hears_of_its_upstream(spark: SparkSession, tmp_path: Path) -> None:
    """Rows as they are written; stopped, and its reader killed, and started again each time with
    the same spool; at the end the upstream is gone, which the next one says."""
    with homeserver("D1") as (home, loop):
        url = f"synapse://127.0.0.1:{home.port}?start=all"

        def start() -> Any:
            return (
                spark.readStream.format("logweir")
                .options(url=url, spool=str(tmp_path / "s"), spaces="synapse_events")
                .load()
                .writeStream.format("logweir")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(processingTime="50 milliseconds")
                .start(str(tmp_path / "out"))
            )

        def written(query: Any, count: int) -> None:
            while len(stored(tmp_path / "out")) < count:
                assert query.isActive, query.exception()
                query.awaitTermination(0.1)

        for token in range(1, 11):
            loop.call_soon_threadsafe(home.add, "events", token, [token])
        query = start()
        written(query, 10)
        query.stop()
        loop.call_soon_threadsafe(home.add, "events", 11, [11])
        query = start()
        written(query, 11)
        (reader,) = readers()
        os.kill(reader, signal.SIGKILL)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        loop.call_soon_threadsafe(home.add, "events", 12, [12])
        query = start()
        written(query, 12)
        query.stop()
    assert stored(tmp_path / "out") == [[token] for token in range(1, 13)]
    query = start()
    with pytest.raises(Exception, match=r"logweir\.errors\.Unreachable: synapse://127\.0\.0\.1"):
        query.awaitTermination()


def readers() -> list[int]:
    """The processes that streams of this session ask for offsets."""
    found = []
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            if b"streaming_source_runner" in Path("/proc", str(pid), "cmdline").read_bytes():
                found.append(pid)
    return found


def stored(folder: Path) -> list[Any]:
    """The rows that the sink has published, in order."""
    found = []
    for path in sorted(folder.glob("*.xlog")) if folder.exists() else []:
        found += [row.decoded()["tuple"][3] for row in logweir.read(path)]
    return found


def test_a_spool_in_use_and_a_wrong_option_fail_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each with its own error, in what Spark raises."""
    with TapServer(lambda peer: None) as upstream:
        url = f"tap://127.0.0.1:{upstream.port}"
        with (
            logweir.open(tmp_path / "spool"),
            pytest.raises(Exception, match=r"DirectoryLocked: .*in use by"),
        ):
            pipeline.scan(spark, url=url, spool=tmp_path / "spool").collect()
    rows = spark.readStream.format("logweir").option("url", url).load()
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = sink.start()
    with pytest.raises(StreamingQueryException, match=r"spool \(option\): is needed"):
        query.awaitTermination()
    with pytest.raises(Exception, match=r"Unreachable: tap://127\.0\.0\.1"):
        pipeline.scan(spark, url=url).collect()


@pytest.mark.kill
def test_a_driver_killed_between_spool_and_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are on disk in the spool, and no offset says so: the next driver has every row once, and
    nothing of the first one holds the spool."""
    with bucket_server(tmp_path / "up", "tap", 60) as (server, url):
        places = (tmp_path / name for name in ("to", "checkpoint", "spool"))
        words = [url, *map(str, places)]
        killed([str(JOB), "follow_upstream", *words], tmp_path, "spool.before_offset")
        assert not (tmp_path / "to").exists()
        assert list((tmp_path / "spool").glob("*.xlog"))
        assert not list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
        server.log.replace("b", item(60))
        follow_upstream(spark, *words)
        found = [
            row.decoded()["tuple"][0]
            for path in sorted((tmp_path / "to").glob("*.xlog"))
            for row in logweir.read(path)
        ]
        assert sorted(found) == sorted(b"k%d" % number for number in range(61))


@pytest.mark.kill
def test_a_driver_with_a_spool_in_an_object_store_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One time after the other, its disk with it, while the upstream goes on: each row once. At two
    steps; with `LOGWEIR_SPOOLS=all` at all."""
    pytest.importorskip("moto.server")
    steps = ["spool.after_put", "pipeline.after_publish"]
    if os.environ.get("LOGWEIR_SPOOLS") == "all":
        steps = ["spool.before_begun", "spool.before_put", *steps, "spool.before_offset"]
        steps.append("pipeline.after_commit")
    with object_store() as port, bucket_server(tmp_path / "up", "tap", 60) as (server, url):
        words = [url, *(str(tmp_path / name) for name in ("to", "checkpoint"))]
        words.append(s3_url(port, "spool"))
        for number, step in enumerate(steps, 60):
            disk = tmp_path / step
            disk.mkdir()
            killed([str(JOB), "follow_upstream", *words], tmp_path, step, TMPDIR=str(disk))
            shutil.rmtree(disk)
            server.log.replace("b", item(number))
        follow_upstream(spark, *words)
        found = [
            row.decoded()["tuple"][0]
            for path in sorted((tmp_path / "to").glob("*.xlog"))
            for row in logweir.read(path)
        ]
        assert sorted(found) == sorted(b"k%d" % number for number in range(60 + len(steps)))
