"""The format `logweir` and the jobs in a real Spark session: rows that wait for their CONFIRM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from property.test_settled_rows import Shown, commit
from property.test_synchronous_rows import OWNER, prepared
from spark.test_spark_streams import run_once

import logweir
from logweir import pipeline
from logweir.wal.mp import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPACES = {"spaces": "600,601", "columns": "replica_id,lsn,type"}


def test_what_waits_is_not_read_and_what_is_undone_never(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By a scan, by a stream over restarts, and by the state; `settled=false` gives all rows."""
    source, model, lsn = tmp_path / "log", Shown(), 0
    prepared(source)
    for step in (
        [("s", 1), ("a", 1), ("confirm", 2)],  # and what stood behind it
        [("s", 2), ("a", 2)],
        [("all", 0), ("a", 3), ("s", 3)],
        [("s", 4), ("confirm", 1)],  # of the first of both
        [("confirm", 1)],
    ):
        rows = []
        for what, number in step:
            lsn += 1
            rows.append(model.change(lsn, what, number))
        with logweir.open(source) as log:
            commit(log, rows)
            held = {(600, *row) for row in log.select("s")} | {
                (601, *row) for row in log.select("a")
            }
        read = pipeline.scan(spark, source, kinds="xlog", **SPACES).where(
            f"replica_id = {OWNER} and type <> 12"
        )
        assert sorted(row.lsn for row in read.collect()) == model.lsns
        state = pipeline.state(spark, source).where("space_id in (600, 601)").collect()
        assert {(row.space_id, *unpack(bytes(row.tuple))) for row in state} == held
        run_once(spark, source, tmp_path / "checkpoint", tmp_path / "out", **SPACES)
        streamed = spark.read.parquet(str(tmp_path / "out")).where(f"replica_id = {OWNER}")
        given = sorted(row.lsn for row in streamed.collect())
        assert given == model.lsns[: len(given)]
    assert not model.queue
    assert given == model.lsns
    every = pipeline.scan(spark, source, kinds="xlog", settled=False, columns=["replica_id"])
    assert every.where(f"replica_id = {OWNER}").count() == lsn
