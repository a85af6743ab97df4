"""Appending to a Delta table: tasks write its files, the driver commits their names.

A batch is one transaction, which notes the batch's number: one that is written again, because a
driver was killed before Spark noted it, is found there and adds nothing. Files of tasks that were
tried again, or of a driver that was killed before it committed, stand in the table's folder without
being in the table, until `DeltaTable.vacuum`, as any writer's do.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.jobs.work import carrying
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, explain, make_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WRITTEN_DDL", "appending", "delta"]

WRITTEN_DDL: Final = "name STRING, rows BIGINT, size BIGINT"
"""What tasks tell of the files that they wrote."""


def delta() -> Any:
    """The module `deltalake`. Raises `ConfigError` where it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(
            "format", f"delta needs deltalake: {error}", hint="pip install deltalake"
        ) from error
    return deltalake


def appending(to: Path, checkpoint: str) -> Callable[[DataFrame, int], None]:
    """Appends a batch to the table `to`, which is made if need be, unless it is in it already.

    What it does raises `ConfigError` for a table of other columns.
    """
    deltalake = delta()

    def write(batch: DataFrame, number: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        name = query_id(checkpoint)
        table = None
        if deltalake.DeltaTable.is_deltatable(str(to)):
            table = deltalake.DeltaTable(str(to))
            done = table.transaction_version(name)
            if done is not None and done >= number:
                return  # written, and killed before Spark noted it
        schema = to_arrow_schema(batch.schema, timezone="UTC")
        columns = deltalake.Schema.from_arrow(schema)
        if table is not None and table.schema() != columns:
            raise ConfigError(
                "to",
                f"{to} has other columns than what is to be added.",
                hint="begin a new table with a new checkpoint",
            )
        staged = batch.mapInArrow(carrying(_written(to, schema)), WRITTEN_DDL).collect()
        if not staged:
            return
        failpoint("delta.before_commit")
        now = time.time_ns() // 1_000_000
        actions = [
            deltalake.transaction.AddAction(
                one["name"], one["size"], {}, now, True, json.dumps({"numRecords": one["rows"]})
            )
            for one in staged
        ]
        marked = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(name, number)])
        if table is None:
            deltalake.transaction.create_table_with_add_actions(
                str(to), columns, actions, commit_properties=marked
            )
        else:
            table.create_write_transaction(actions, "append", columns, commit_properties=marked)

    return write


def _written(
    to: Path, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """In a task: its rows in a new file of the folder, and the file's name, rows and size."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyarrow.parquet import ParquetWriter

        name, rows = f"part-{uuid.uuid4().hex}.parquet", 0
        path = to / name
        writer: ParquetWriter | None = None
        try:
            for batch in batches:
                if writer is None and batch.num_rows:
                    make_folders(OS, to)
                    writer = ParquetWriter(str(path), schema)
                if writer is not None:
                    writer.write_batch(batch.cast(schema))
                    rows += batch.num_rows
            if writer is not None:
                writer.close()
                OS.sync_file(path)
                size = path.stat().st_size
                yield pa.RecordBatch.from_arrays(
                    [pa.array([name]), pa.array([rows]), pa.array([size])],
                    names=["name", "rows", "size"],
                )
        except BaseException as error:
            if writer is not None:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise explain(error, str(path)) from error
            raise

    return run
