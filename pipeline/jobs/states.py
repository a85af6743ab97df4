"""`state`, `diff`, `stats`: what an archive holds at a position, how two differ, what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.columns import ddl
from logweir.pipeline.counting import COUNTS, TOTALS, totals
from logweir.pipeline.frames import scan_options
from logweir.pipeline.jobs.fold import Folder
from logweir.pipeline.jobs.folding import Prepared, by_part, looking, prepare
from logweir.pipeline.jobs.history import History
from logweir.pipeline.jobs.keyed import keyer_of
from logweir.pipeline.jobs.survey import Until
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.jobs.work import carrying, per_item
from logweir.pipeline.options import place_texts
from logweir.pipeline.readers import counting_reader
from logweir.pipeline.sessions import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | Path | Sequence[str | Path]

_OPTIONS: Final = frozenset(("snapshot", "parts", "split_bytes", "spaces"))
_STATE_DDL: Final = "space_id INT, space STRING, key BINARY, tuple BINARY"


def prepared_state(
    spark: SparkSession, paths: Paths, until: Until = None, **options: Any
) -> Prepared:
    """What `state` folds. Arguments and errors as `folding.prepare`; `ConfigError` for others."""
    for key in options.keys() - _OPTIONS:
        hint = "options are " + ", ".join(sorted(_OPTIONS))
        raise ConfigError(key, "is no option of a state.", hint=hint)
    prepared = prepare(looking(spark), place_texts("paths", paths), until=until, **options)
    prepared.history.refuse_other_engines(prepared.plan.wants)
    return prepared


def state(
    spark: SparkSession,
    paths: Paths,
    *,
    until: Until = None,
    system: bool = False,
    prepared: Prepared | None = None,
    **options: Any,
) -> DataFrame:
    """All tuples at a vclock, a time, or the end: space_id, space, key, tuple.

    `key` sorts as the primary index does (it is `store.schema.keys`' encoding, no MsgPack);
    `system`: with the system spaces; `options`: `spaces`, names or ids of those that are wanted,
    `snapshot`, `parts`. Raises what `folding.prepare` raises; damage met later by the
    first action.
    """
    decided = prepared or prepared_state(spark, paths, until, **options)
    text = decided.plan.to_text()

    def fold(_: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyer = keyer_of(text)
        for batch in Folder(keyer.history, keyer.plan.files).fold(rows):
            kept = batch if system else _users(batch)
            if kept.num_rows:
                yield _named(kept, keyer.history)

    frame = by_part(spark, decided, fold, _STATE_DDL)
    if not system:
        return frame
    rows = _system_rows(decided.history)
    return spark.createDataFrame(rows, _STATE_DDL).unionByName(frame)


def _users(batch: pa.RecordBatch) -> pa.RecordBatch:
    spaces = batch.column("space_id").to_numpy()
    system = (spaces >= 256) & (spaces <= 511)
    return batch.take(pa.array(np.flatnonzero(~system))) if system.any() else batch


def _named(batch: pa.RecordBatch, history: History) -> pa.RecordBatch:
    names = [history.schema.space(one).name for one in batch.column("space_id").to_pylist()]
    return pa.RecordBatch.from_arrays(
        [
            batch.column("space_id"),
            pa.array(names, pa.string()),
            batch.column("key"),
            batch.column("tuple"),
        ],
        names=["space_id", "space", "key", "tuple"],
    )


def _system_rows(history: History) -> list[tuple[int, str, bytearray, bytearray]]:
    rows = []
    for space in history.system_spaces:
        for key, data in history.pairs(space.id):
            rows.append((space.id, space.name, bytearray(key), bytearray(data)))
    return rows


def table(
    spark: SparkSession,
    paths: Paths,
    space: str | int,
    *,
    until: Until = None,
    integers: str = "decimal",
    decimals: str | int = "string",
    **options: Any,
) -> DataFrame:
    """The tuples of one space as typed columns, from its own format (see `typed`).

    Raises `RequestError` 36 where there is no such space, and what `state` raises.
    """
    prepared = prepared_state(spark, paths, until, **options, spaces=[space])
    found = prepared.history.schema.space(space)
    columns = TypedColumns(found, integers, str(decimals))
    wanted = found.id
    text = prepared.plan.to_text()

    def fold(_: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyer = keyer_of(text)
        typed = TypedColumns(keyer.history.schema.space(wanted), integers, str(decimals))
        for batch in Folder(keyer.history, keyer.plan.files).fold(rows):
            mine = np.flatnonzero(batch.column("space_id").to_numpy() == wanted)
            if len(mine):
                tuples = batch.column("tuple").take(pa.array(mine))
                yield pa.RecordBatch.from_arrays(typed.of(tuples), schema=typed.schema)

    return by_part(spark, prepared, fold, ddl(tuple(columns.types), columns.types))


def diff(
    spark: SparkSession,
    first: Paths,
    second: Paths,
    *,
    first_until: Until = None,
    second_until: Until = None,
    **options: Any,
) -> DataFrame:
    """What has to change in `first` to become `second`: space_id, space, change, before, after.

    `change` is added, removed or changed; tuples are the same if their bytes are. A space with
    another primary key on the two sides has all of the one removed and all of the other added. The
    rows of system spaces are among them. Arguments may be the same archive at two positions.
    """
    from pyspark.sql import functions as sql

    one = prepared_state(spark, first, first_until, **options)
    other = prepared_state(spark, second, second_until, **options)
    apart = _keyed_otherwise(one.history, other.history)
    before = state(spark, first, system=True, prepared=one)
    after = state(spark, second, system=True, prepared=other)
    key = sql.col("key")
    if apart:
        lifted = sql.concat(sql.lit(b"\xff"), key)
        key = sql.when(sql.col("space_id").isin(apart), lifted).otherwise(key)
    left = before.select("space_id", "space", "key", sql.col("tuple").alias("before"))
    right = after.select(
        "space_id",
        sql.col("space").alias("named"),
        key.alias("key"),
        sql.col("tuple").alias("after"),
    )
    both = left.join(right, ["space_id", "key"], "full_outer")
    changed = both.filter(~sql.col("before").eqNullSafe(sql.col("after")))
    kind = (
        sql.when(sql.col("before").isNull(), "added")
        .when(sql.col("after").isNull(), "removed")
        .otherwise("changed")
    )
    name = sql.coalesce(sql.col("named"), sql.col("space"))
    shown = changed.select(
        "space_id", name.alias("space"), kind.alias("change"), "key", "before", "after"
    )
    return shown.orderBy("space_id", "key").drop("key")


def _keyed_otherwise(one: History, other: History) -> list[int]:
    """Spaces whose primary key differs, so that their tuples cannot be paired."""
    apart = []
    for space in one.schema:
        same = other.schema.get(space.id)
        if same is not None and same.primary != space.primary:
            apart.append(space.id)
    return apart


def stats(spark: SparkSession, *paths: str | Path, **options: Any) -> DataFrame:
    """What the rows of an archive are: a row per kind of file, space and type of row.

    kind, space_id, type_name, rows, bytes (of keys, tuples and operations), keys (about how many
    different ones, to some 2 %; of updates and deletes), first_lsn, last_lsn, first_ts, last_ts.
    `options`: of the scan.
    """
    given = scan_options(*paths, **options)
    columns, shown = ddl(tuple(COUNTS), COUNTS), ddl(tuple(TOTALS), TOTALS)
    if given.url:  # the source keeps what it copies as long as Spark needs it
        register(spark)
        counted = spark.read.format("logweir").options(**given.to_text(), counts="true").load()
        return counted.repartition(1).mapInArrow(carrying(totals), shown)
    reader = counting_reader(given.to_text())
    tasks = reader.partitions()
    if len(tasks) == 1:
        return per_item(spark, tasks, lambda one: totals(reader.read(one)), shown)
    return (
        per_item(spark, tasks, reader.read, columns)
        .repartition(1)
        .mapInArrow(carrying(totals), shown)
    )
