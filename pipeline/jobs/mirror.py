"""A Delta table that has what a space has: one row per key, kept fresh by a stream.

It begins with the state at a position of the log (`states`), in one commit that also notes that
position. Then each batch of the stream becomes one MERGE: the tasks leave of each key what the
batch's last row makes of it, with the tuples of the table below updates and upserts, and the merge
writes it with the batch's number in the same transaction. A truncation removes what stood before.

Columns are those of `typed`, in front of them `_key` (the primary key as the store sorts it, by
which rows are merged) and `_tuple` (the tuple as it is stored: an operation may count fields from
its end, which no columns tell).

The driver's process streams what a batch leaves from files into the merge, which keeps those rows
in memory: at most `max_rows_per_batch`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError, CorruptBlock, DecodeError, RequestError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.jobs.folding import Prepared
from logweir.pipeline.jobs.states import state
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.jobs.work import carrying
from logweir.pipeline.options import STAGE
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.definition import SpaceDef, SystemSpace
from logweir.store.schema.keys import exact_key, tuple_key
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["MIRROR_COLUMNS", "MIRROR_ROWS", "begin_mirror", "merging"]

MIRROR_COLUMNS: Final = (
    *("space_id", "type", "key", "tuple", "ops", "index_base"),
    *("file", "block_offset", "row_in_block"),
)
"""The columns of the stream."""

MIRROR_ROWS: Final = 100_000
"""How many rows a batch has at most, if nobody says otherwise."""

_KEY, _TUPLE, _GONE = "_key", "_tuple", "_gone"
_POSITION: Final = "logweir.vclock."
_PLACE: Final = ("file", "block_offset", "row_in_block")
_PLACED: Final = "file STRING, block_offset BIGINT, row_in_block INT"
_ROW_DDL: Final = (
    f"{_KEY} BINARY, type SMALLINT, tuple BINARY, ops BINARY, index_base SMALLINT, {_PLACED}"
)
_PARTS: Final = 8
_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_FULL: Final = (RowType.INSERT, RowType.REPLACE)


def _typed(space: SpaceDef, integers: str) -> TypedColumns:
    return TypedColumns(space, integers, (_KEY, _TUPLE, _GONE))


def _stage(to: Path) -> Path:
    """Where the files stand that are to be the table, or to be merged into it."""
    return to.with_name(f"{STAGE}{to.name}")


def _ddl(columns: TypedColumns, front: str) -> str:
    from logweir.pipeline.columns import ddl

    return f"{front}, {ddl(tuple(columns.types), columns.types)}"


# --- the beginning --------------------------------------------------------------------------------


def begin_mirror(
    spark: SparkSession,
    deltalake: Any,
    prepared: Prepared,
    space: SpaceDef,
    to: Path,
    checkpoint: str,
    integers: str,
) -> VClock:
    """Make the table, unless it is there, and return the vclock that it began with.

    `prepared`: the state to begin with. Raises `ConfigError` for a space without a key, and a table
    that another query, or another definition of the space, has written.
    """
    if space.primary is None:
        raise ConfigError("space", f"{space.name!r} has no primary key to tell rows apart")
    columns = _typed(space, integers)
    if not deltalake.DeltaTable.is_deltatable(str(to)):
        if to.exists():
            raise ConfigError("to", f"{to} is there and no Delta table", hint="name a new folder")
        _begin(spark, deltalake, prepared, space, columns, to)
    table = deltalake.DeltaTable(str(to))
    _check(table, columns, to, checkpoint)
    shutil.rmtree(_stage(to), ignore_errors=True)  # a killed driver left it
    names = ((number, f"{_POSITION}{number}") for number in range(VCLOCK_COMPONENTS))
    found = {number: table.transaction_version(name) for number, name in names}
    return VClock({number: lsn for number, lsn in found.items() if lsn is not None})


def _begin(
    spark: SparkSession,
    deltalake: Any,
    prepared: Prepared,
    space: SpaceDef,
    columns: TypedColumns,
    to: Path,
) -> None:
    def show(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tuples = batch.column("tuple")
            yield _with_names([batch.column("key"), tuples, *columns.of(tuples)], columns)

    rows = state(spark, prepared.options.paths, prepared=prepared).filter(f"space_id = {space.id}")
    front = f"{_KEY} BINARY, {_TUPLE} BINARY"
    stage = _stage(to)
    shutil.rmtree(stage, ignore_errors=True)  # a killed driver left it
    notes = [
        deltalake.Transaction(f"{_POSITION}{number}", lsn)
        for number, lsn in prepared.vclock.items()
    ]
    try:
        shown = rows.mapInArrow(carrying(show), _ddl(columns, front))
        shown.coalesce(_PARTS).write.parquet(str(stage))
        marked = deltalake.CommitProperties(app_transactions=notes)
        deltalake.convert_to_deltalake(str(stage), commit_properties=marked)
        failpoint("mirror.before_table")
        OS.rename(stage, to)
        OS.sync_directory(to.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    failpoint("mirror.after_table")


def _with_names(arrays: list[pa.Array], columns: TypedColumns) -> pa.RecordBatch:
    front = (_KEY, _TUPLE, _GONE)[: len(arrays) - len(columns.types)]
    return pa.RecordBatch.from_arrays(arrays, names=[*front, *columns.types])


def _check(table: Any, columns: TypedColumns, to: Path, checkpoint: str) -> None:
    """Refuse a table that is not this query's: its rows are ahead of a checkpoint that begins."""
    query = query_id(checkpoint)
    if table.version() and not (query and table.transaction_version(query) is not None):
        raise ConfigError(
            "checkpoint",
            f"{to} is kept by a query with another checkpoint than {checkpoint}.",
            hint="give its own checkpoint, or both a new table and a new checkpoint",
        )
    there = [one.name for one in table.schema().fields]
    if there != [_KEY, _TUPLE, *columns.types]:
        raise ConfigError(
            "to",
            f"{to} has other columns than the space has now.",
            hint="its definition was changed: begin a new table with a new checkpoint",
        )


# --- batches --------------------------------------------------------------------------------------


def merging(
    deltalake: Any, space: SpaceDef, to: Path, checkpoint: str, integers: str
) -> Callable[[DataFrame, int], None]:
    """Merges a batch of `MIRROR_COLUMNS` into the table, unless it is in it already."""
    stage = _stage(to)

    def write(batch: DataFrame, number: int) -> None:
        name = query_id(checkpoint)
        table = deltalake.DeltaTable(str(to))
        done = table.transaction_version(name)
        if done is not None and done >= number:
            return  # merged, and killed before Spark noted it
        marked = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(name, number)])
        rows = batch.mapInArrow(carrying(_keyed(space)), _ROW_DDL).persist()
        try:
            is_emptied, left = _left(rows, table, space, integers)
            left.write.mode("overwrite").parquet(str(stage))
        finally:
            rows.unpersist()
        failpoint("mirror.before_merge")
        _merge(table, stage, is_emptied, marked)
        failpoint("mirror.after_merge")
        shutil.rmtree(stage, ignore_errors=True)

    return write


def _merge(table: Any, stage: Path, is_emptied: bool, marked: Any) -> None:
    from pyarrow import dataset

    merge = table.merge(
        dataset.dataset(str(stage), format="parquet").scanner().to_reader(),
        f"t.{_KEY} = s.{_KEY}",
        source_alias="s",
        target_alias="t",
        commit_properties=marked,
    )
    merge.when_matched_delete(f"s.{_GONE}")
    merge.when_matched_update_all(f"NOT s.{_GONE}", except_cols=[_GONE])
    merge.when_not_matched_insert_all(f"NOT s.{_GONE}", except_cols=[_GONE])
    if is_emptied:
        merge.when_not_matched_by_source_delete()
    merge.execute()


def _keyed(space: SpaceDef) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows of `_ROW_DDL`; one without a key empties the space."""
    primary = space.primary
    assert primary is not None

    def key(row: dict[str, Any]) -> bytes | None:
        if row["space_id"] == SystemSpace.TRUNCATE:
            return None
        if row["type"] in _BY_KEY:
            return exact_key(row["key"], primary)
        return tuple_key(row["tuple"], primary)

    def wanted(row: dict[str, Any]) -> bool:
        if row["space_id"] == space.id:
            return True
        named = row["tuple"] or row["key"]
        emptied = row["type"] not in (RowType.INSERT, RowType.DELETE)
        return emptied and bool(unpack(named)[0] == space.id)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [row for row in batch.to_pylist() if row["space_id"] is not None and wanted(row)]
            keys = pa.array([key(row) for row in rows], pa.binary())
            names = ("type", "tuple", "ops", "index_base", *_PLACE)
            columns = [
                pa.array([row[name] for row in rows], batch.schema.field(name).type)
                for name in names
            ]
            yield pa.RecordBatch.from_arrays([keys, *columns], names=[_KEY, *names])

    return run


def _left(rows: DataFrame, table: Any, space: SpaceDef, integers: str) -> tuple[bool, DataFrame]:
    """Whether the space was emptied, and of each key what stands in the end."""
    from pyspark.sql import functions as sql

    emptied = rows.filter(f"{_KEY} IS NULL").agg(sql.max(sql.struct(*_PLACE))).collect()[0][0]
    rows = rows.filter(f"{_KEY} IS NOT NULL")
    if emptied is not None:
        kinds = ("string", "bigint", "int")
        parts = zip(_PLACE, kinds, emptied, strict=True)
        place = sql.struct(*(sql.lit(one).cast(kind).alias(name) for name, kind, one in parts))
        rows = rows.filter(sql.struct(*_PLACE) > place)
    elif files := table.file_uris():
        changed = rows.filter(rows["type"].isin(int(RowType.UPDATE), int(RowType.UPSERT)))
        keys = changed.select(_KEY).distinct()
        before = rows.sparkSession.read.parquet(*files).join(keys, _KEY, "left_semi")
        rows = rows.unionByName(
            before.select(
                _KEY,
                sql.lit(int(RowType.REPLACE)).cast("smallint").alias("type"),
                sql.col(_TUPLE).alias("tuple"),
                *(sql.lit(None).cast(kind).alias(name) for name, kind in _NOTHING),
                sql.lit("").alias("file"),  # in front of all that the batch has
                sql.lit(0).cast("bigint").alias("block_offset"),
                sql.lit(0).alias("row_in_block"),
            )
        )
    columns = _typed(space, integers)
    front = f"{_KEY} BINARY, {_TUPLE} BINARY, {_GONE} BOOLEAN"
    placed = rows.repartition(_PARTS, _KEY).sortWithinPartitions(_KEY, *_PLACE)
    return emptied is not None, placed.mapInArrow(
        carrying(_folded(space, columns)), _ddl(columns, front)
    )


_NOTHING: Final = (("ops", "binary"), ("index_base", "smallint"))


def _folded(
    space: SpaceDef, columns: TypedColumns
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Of each key, whose rows stand one behind the other in the order of the log, the tuple."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: bytes | None = None
        data: bytes | None = None
        for batch in batches:
            left: list[tuple[bytes, bytes | None]] = []
            for row in batch.to_pylist():
                if row[_KEY] != current:
                    if current is not None:
                        left.append((current, data))
                    current, data = row[_KEY], None
                data = _applied(space, row, data)
            yield shown(left)
        if current is not None:
            yield shown([(current, data)])

    def shown(left: list[tuple[bytes, bytes | None]]) -> pa.RecordBatch:
        tuples = pa.array([data for _, data in left], pa.binary())
        keys = pa.array([key for key, _ in left], pa.binary())
        return _with_names([keys, tuples, tuples.is_null(), *columns.of(tuples)], columns)

    return run


def _applied(space: SpaceDef, row: dict[str, Any], old: bytes | None) -> bytes | None:
    """A tuple after one more row of its key. Raises `CorruptBlock`."""
    primary = space.primary
    assert primary is not None
    kind, ops, base = row["type"], row["ops"] or b"\xc1", row["index_base"] or 0
    found: bytes | None = row["tuple"]
    if kind in _FULL:
        return found
    if kind == RowType.DELETE or (kind == RowType.UPDATE and old is None):
        return None
    try:
        if old is None:
            check_ops(ops, index_base=base, space=space)
            return found
        apply = apply_update if kind == RowType.UPDATE else apply_upsert
        new = apply(old, ops, index_base=base, space=space)
        return new if tuple_key(new, primary) == row[_KEY] else old
    except (RequestError, DecodeError) as error:
        raise CorruptBlock(
            f"row {row['row_in_block']} of the block, of space {space.name!r}, cannot be applied: "
            f"{error.message}.",
            path=row["file"],
            offset=row["block_offset"],
            hint=error.hint or "the space was defined otherwise: begin a new table",
        ) from error
