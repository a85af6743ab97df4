"""The format `logweir` in a real Spark session: reading in batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samples import sample

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


def test_columns_come_as_asked(spark: SparkSession) -> None:
    """`columns` and a user's schema choose columns and their order; a wrong type is refused."""
    folder = sample("04-crashed").folder
    found = pipeline.scan(spark, folder, columns=["lsn", "time", "tuple_json"])
    assert found.columns == ["lsn", "time", "tuple_json"]
    assert found.count() == 1303
