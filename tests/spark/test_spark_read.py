"""The format `logweir` in a real Spark session: reading in batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo
from samples import sample
from spark.feeding import fill, forget_last_commit

from interop.serving import Serving
from logweir import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_folder_is_read_without_registration(spark: SparkSession) -> None:
    """Spark finds the format by itself and reads every row of a real Tarantool's folder."""
    folder = sample("02-spaces").folder
    rows = spark.read.format("logweir").load(str(folder)).collect()
    expected = [row for file in sample("02-spaces").files for row in file.rows]
    assert len(rows) == len(expected)
    tuples = [row["body"].get("tuple_mp") for row in expected if row["type"] == "INSERT"]
    assert sorted(row["tuple"].hex() for row in rows if row["type"] == 2) == sorted(tuples)


def test_tasks_take_the_installed_pyspark(spark: SparkSession) -> None:
    """Not that of a zip file, which each process would compile anew; no other program gets the
    home of Spark that is without it, nor the options of this Java."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyspark

        list(batches)
        yield pa.RecordBatch.from_arrays([pa.array([pyspark.__file__])], names=["file"])

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(look, "file STRING").collect()
    assert row.file == pyspark.__file__
    assert "SPARK_HOME" not in os.environ
    assert "classes" not in os.environ["SPARK_SUBMIT_OPTS"]


def test_columns_come_as_asked(spark: SparkSession) -> None:
    """`columns` and a user's schema choose columns and their order; a wrong type is refused."""
    folder = sample("04-crashed").folder
    found = pipeline.scan(spark, folder, columns=["lsn", "time", "tuple_json"])
    assert found.columns == ["lsn", "time", "tuple_json"]
    assert found.count() == 1303
    reader = spark.read.format("logweir")
    assert reader.schema("key BINARY, lsn BIGINT").load(str(folder)).columns == ["key", "lsn"]
    with pytest.raises(Exception, match="is BIGINT, not int"):
        reader.schema("lsn INT").load(str(folder)).collect()


def test_a_worker_leaves_modules_out_of_its_collections(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After a task's first scan what was imported is in the permanent generation; garbage that is
    made later, by scans too, is collected as ever."""
    fill(tmp_path / "log", 0, 200)
    folder = str(tmp_path / "log")

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import gc
        import weakref

        import pyarrow as pa

        from logweir.pipeline.options import ScanOptions
        from logweir.pipeline.readers import LogweirReader
        from logweir.wal.reader import WalReader

        class Loop:
            me: object = None

        def scan() -> int:
            rows = sum(batch.num_rows for one in parts for batch in reader.read(one))
            gc.collect()
            return rows

        list(batches)
        reader = LogweirReader(ScanOptions.parse({"path": folder, "kinds": "xlog"}))
        parts = reader.partitions()
        rows = scan()
        assert gc.get_freeze_count() > 1000
        assert not any(one is WalReader for one in gc.get_objects())
        loop = Loop()
        loop.me = loop
        gone = weakref.ref(loop)
        del loop
        scan()
        assert gone() is None
        before = len(gc.get_objects())
        for _ in range(5):
            scan()
        yield pa.RecordBatch.from_pydict({"rows": [rows], "more": [len(gc.get_objects()) - before]})

    (found,) = (
        spark.range(1, numPartitions=1).mapInArrow(look, "rows BIGINT, more BIGINT").collect()
    )
    assert found.rows > 200
    assert found.more < 100


def test_a_space_is_read_as_typed_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The option `space` gives the rows that `batches` gives, in a DataFrame, by a chosen schema
    and in a stream, which goes on by its checkpoint."""
    folder, to = tmp_path / "log", tmp_path / "out"
    fill(folder, 0, 50)
    wanted = pipeline.batches(folder, space="t", integers="long").read_all().to_pylist()
    reader = spark.read.format("logweir").option("space", "t").option("integers", "long")
    frame = reader.load(str(folder))
    assert [row.asDict() | {"time": None} for row in frame.collect()] == [
        row | {"time": None} for row in wanted
    ]
    some = reader.schema("_rest STRING, lsn BIGINT").load(str(folder))
    assert [tuple(row) for row in some.collect()] == [(row["_rest"], row["lsn"]) for row in wanted]
    with pytest.raises(Exception, match="nothing"):
        reader.schema("nothing INT").load(str(folder)).collect()

    def follow() -> int:
        changes = spark.readStream.format("logweir").option("space", "t").load(str(folder))
        stream = changes.writeStream.option("checkpointLocation", str(tmp_path / "cp"))
        query = stream.format("parquet").trigger(availableNow=True).start(str(to))
        query.awaitTermination()
        return spark.read.parquet(str(to)).count()

    assert follow() == len(wanted)
    fill(folder, 50, 20)
    assert follow() == len(wanted) + 20


def test_a_mistyped_option_fails_the_load(spark: SparkSession) -> None:
    """It does not silently widen the scan."""
    with pytest.raises(Exception, match=r"vclock_form .*is no option"):
        spark.read.format("logweir").option("vclock_form", "{1: 5}").load("/data")


def test_damage_fails_the_job_with_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    """What the task raised is in what the action raises."""
    fill(tmp_path / "log", 0, 20)
    path = next((tmp_path / "log").glob("*.xlog"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(Exception, match=rf"{path.name} at byte \d+"):
        pipeline.scan(spark, path).collect()


def test_two_filters_of_one_dataframe_see_their_own_rows(spark: SparkSession) -> None:
    """Why no reader takes filters from Spark: a source that does gives wrong rows when one
    loaded DataFrame feeds two queries (Spark 4.3.0); ours gives each its own."""

    class Pushing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushing"

        def schema(self) -> str:
            return "x BIGINT"

        def reader(self, schema: Any) -> Any:
            class Reader(DataSourceReader):
                wanted: Any = None

                def pushFilters(self, filters: Any) -> Any:
                    for one in filters:
                        if isinstance(one, EqualTo):
                            self.wanted = one.value
                        else:
                            yield one

                def read(self, partition: Any) -> Any:
                    return iter([(x,) for x in range(10) if self.wanted in (None, x)])

            return Reader()

    setting = "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(Pushing)
    ours = pipeline.scan(spark, sample("01-fresh").folder, columns=["lsn"])
    for pushes, expected in ((True, [4, 4]), (False, [3, 4])):
        if pushes:
            spark.conf.set(setting, "true")
            frame = spark.read.format("pushing").load().withColumnRenamed("x", "lsn")
        else:
            frame = ours
        both = frame.filter("lsn = 3").union(frame.filter("lsn = 4"))
        assert sorted(row.lsn for row in both.collect()) == expected
        spark.conf.unset(setting)


def test_a_running_server_is_read_and_followed(spark: SparkSession, tmp_path: Path) -> None:
    """A stream of a server's rows lands in another server, once, with its position beside it."""
    with Serving(tmp_path / "a", guest="replicate") as source:
        source.log.create_space("t", format=[("id", "unsigned")])
        for number in range(40):
            source.log.insert("t", (number,))
        url = f"tarantool://127.0.0.1:{source.port}"
        assert spark.read.format("logweir").option("url", url).load().count() >= 43
        allowed = {"guest": "all", "functions": "logweir.pipeline.landing"}
        with Serving(tmp_path / "b", **allowed) as target:
            target.log.create_space("t", format=[("id", "unsigned")])
            for _ in range(2):
                query = (
                    spark.readStream.format("logweir")
                    .options(url=url, spaces=512)
                    .load()
                    .writeStream.format("logweir")
                    .option("url", f"tarantool://127.0.0.1:{target.port}")
                    .option("checkpointLocation", str(tmp_path / "checkpoint"))
                    .option("staging", str(tmp_path))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                forget_last_commit(tmp_path / "checkpoint")
            assert [row[0] for row in target.log.select("t")] == list(range(40))
