"""Jobs and streams over a folder that is reached by URL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from samples import sample
from spark.feeding import fill, forget_last_commit
from support.objectstore import object_store, s3_url

import logweir
from logweir import pipeline
from logweir.errors import ConfigError
from logweir.pipeline.jobs.commits import named_files
from logweir.pipeline.jobs.places import Place
from logweir.recovery import examine
from logweir.wal import failpoint

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
    assert pipeline.verify(spark, url, split_bytes=300).to_json() == examine(folder).to_json()
    assert [(one.file, one.blocks) for one in pipeline.verify(spark, url, level="crc").files] == [
        (one.file, one.blocks) for one in pipeline.verify(spark, folder, level="crc").files
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


def texts(place: Place) -> list[str]:
    """The lines of all files that a manifest names, sorted."""
    found: list[str] = []
    for one in named_files(place):
        filesystem, path = one.arrow()
        with filesystem.open_input_stream(path) as file:
            found += file.read().decode().splitlines()
    return sorted(found)


def test_files_go_into_an_object_store_and_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet, lines and CSV are what Spark writes into a folder; Parquet and lines are imported;
    a second export, other formats and a store under way are refused."""
    pytest.importorskip("moto.server")
    folder = tmp_path / "log"
    with logweir.open(folder) as log:
        fields = [("id", "unsigned"), ("a text", "string"), ("blob", "varbinary")]
        log.create_space("t", format=fields)
        rows = [(1, 'a, "b"', b"\x00"), (2, "", b""), (3, "\u00fc\\", b"\xff"), (2**63, "z", b"z")]
        for row in rows:
            log.insert("t", row)
    with object_store() as port:
        for format in ("parquet", "json", "csv"):
            url, here = s3_url(port, format), tmp_path / format
            made = pipeline.export(spark, folder, url, format=format, what="state", space="t")
            assert (made.path, made.format) == (f"s3://bucket/{format}", format)
            pipeline.export(spark, folder, here, format=format, what="state", space="t")
            if format == "parquet":
                store, root = Place(url).arrow()
                found = pq.read_table(root, filesystem=store).sort_by("id").to_pylist()
                assert found == pq.read_table(here).sort_by("id").to_pylist()
            else:
                local = [one.read_text().splitlines() for one in here.glob("part-*")]
                assert set(texts(Place(url))) == {line for lines in local for line in lines}
            with pytest.raises(ConfigError, match="is there already"):
                pipeline.export(spark, folder, url, format=format, what="state", space="t")
            if format == "csv":
                with pytest.raises(ConfigError, match="csv is not read from an object store"):
                    pipeline.import_rows(spark, url, tmp_path / "no", "t", format=format)
                continue
            back = tmp_path / f"back-{format}"
            done = pipeline.import_rows(spark, url, back, "t", format=format, primary=["id"])
            assert (done.rows, done.created) == (4, True)
            with logweir.open(back) as log:
                names = ["id", "a text", "blob"]
                names = sorted(names) if format == "json" else names  # as Spark does
                found = [dict(zip(names, one, strict=True)) for one in log.select("t")]
            assert [(one["id"], one["a text"]) for one in found] == [row[:2] for row in rows]
            assert format == "json" or [one["blob"] for one in found] == [row[2] for row in rows]
        lines = Place(s3_url(port, "lines"))
        pipeline.export(spark, folder, lines.location, format="json")
        assert len(texts(lines)) == pipeline.changes(spark, folder).count()
        unfinished = Place(s3_url(port, "unfinished"))
        list(
            unfinished.writing(pa.schema({"id": pa.int64()}))(iter([pa.record_batch({"id": [1]})]))
        )
        with pytest.raises(ConfigError, match="has no _SUCCESS"):
            pipeline.import_rows(spark, unfinished.location, tmp_path / "no", "t")


def test_a_stream_into_an_object_store_has_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Though its driver ends in front of a manifest, or between that and Spark's own note; another
    checkpoint is refused."""
    pytest.importorskip("moto.server")
    folder = tmp_path / "log"

    def fail() -> None:
        raise RuntimeError("failed here")

    with object_store() as port:
        place = Place(s3_url(port, "stream"))

        def run(checkpoint: str = "checkpoint") -> None:
            query = pipeline.cdc(
                spark,
                folder,
                place.location,
                tmp_path / checkpoint,
                format="json",
                space="t",
                max_rows_per_batch=15,
            )
            query.awaitTermination()

        fill(folder, 0, 20)
        failpoint.arm("place.before_manifest", fail)
        try:
            with pytest.raises(Exception, match="failed here"):
                run()
        finally:
            failpoint.disarm()
        assert texts(place) == []
        assert place.below("batch=000000000000").files()
        for count in (20, 40):
            run()
            forget_last_commit(tmp_path / "checkpoint")
            run()
            ids = [json.loads(line)["id"] for line in texts(place)]
            assert sorted(ids) == list(range(count))
            fill(folder, count, 20)
        with pytest.raises(Exception, match="is there already"):
            run("another")
