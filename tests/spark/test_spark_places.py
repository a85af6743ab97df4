"""Jobs and streams over a folder that is reached by URL."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from samples import sample
from spark.feeding import fill
from support.objectstore import object_store, s3_url

from logweir import pipeline
from logweir.errors import ConfigError
from logweir.recovery import examine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CRASHED = "04-crashed"


def test_every_job_reads_by_url(spark: SparkSession, tmp_path: Path) -> None:
    """Over fsspec's `local://`, which is read as any far file system is: scans, checks, states,
    differences, a snapshot, an export, and a stream are as of the folder itself."""
    folder = tmp_path / "log"
    shutil.copytree(sample(CRASHED).folder, folder)
    url = f"local://{folder}"
    rows = ["lsn", "space_id", "tuple"]
    here = pipeline.scan(spark, folder, columns=rows)
    there = pipeline.scan(spark, url, columns=rows, split_bytes=3000)
    assert there.rdd.getNumPartitions() > here.rdd.getNumPartitions()
    assert sorted(map(str, there.collect())) == sorted(map(str, here.collect()))
    assert pipeline.verify(spark, url).to_json() == examine(folder).to_json()
    assert [(one.file, one.blocks) for one in pipeline.quick_check(spark, url)] == [
        (one.file, one.blocks) for one in pipeline.quick_check(spark, folder)
    ]
    assert pipeline.diff(spark, url, folder).count() == 0
    done = pipeline.compact(spark, url, f"local://{tmp_path / 'snap'}")
    assert done.vclock == sample(CRASHED).vclock
    assert [one.name for one in (tmp_path / "snap").iterdir()] == [done.path.name]
    assert pipeline.diff(spark, tmp_path / "snap", folder).count() == 0
    with pytest.raises(ConfigError, match="is there already"):
        pipeline.compact(spark, url, f"local://{tmp_path / 'snap'}")
    made = pipeline.export(spark, url, tmp_path / "out", what="state")
    assert spark.read.parquet(made.path).count() > 0


def test_a_stream_follows_a_url(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that were appended between two runs come once, by the same checkpoint."""
    folder, out = tmp_path / "log", str(tmp_path / "out")
    for first in (0, 20):
        fill(folder, first, 20)
        query = (
            spark.readStream.format("logweir")
            .options(spaces="512", columns="lsn", max_rows_per_batch="15")
            .load(f"local://{folder}")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()
        found = [row.lsn for row in spark.read.parquet(out).collect()]
        assert len(set(found)) == len(found) == first + 20


def test_changes_go_into_an_object_store_as_a_table(spark: SparkSession) -> None:
    """What tasks put there has the rows that are read here; another export is refused."""
    pytest.importorskip("moto.server")
    folder = sample(CRASHED).folder
    with object_store() as port:
        url = s3_url(port, "changes")
        made = pipeline.export(spark, folder, url, format="delta")
        assert (made.path, made.format) == ("s3://bucket/changes", "delta")
        store, root = fs.FileSystem.from_uri(url)
        found = pq.read_table(root, filesystem=store)
        wanted = pipeline.batches(folder, kinds="xlog", columns=found.column_names).read_all()
        assert found.num_rows
        assert found.sort_by("lsn").to_pylist() == wanted.sort_by("lsn").to_pylist()
        with pytest.raises(ConfigError, match="is there already"):
            pipeline.export(spark, folder, url, format="delta")
        assert (
            pipeline.compact(spark, folder, s3_url(port, "snap")).vclock == sample(CRASHED).vclock
        )
        assert pipeline.diff(spark, s3_url(port, "snap"), folder).count() == 0
