"""A Delta table that has what a space has: one row per key, kept fresh by a stream.

It begins with the state at a position of the log (`states`), in one transaction that also notes
that position. Then each batch of the stream becomes one MERGE: the tasks leave of each key what the
batch's last row makes of it, with the tuples of the table below updates and upserts, and the merge
writes it with the batch's number in the same transaction. A truncation removes what stood before.

Columns are those of `typed`, in front of them `_key` (the primary key as the store sorts it, by
which rows are merged) and `_tuple` (the tuple as it is stored: an operation may count fields from
its end, which no columns tell).

The driver's process streams what a batch leaves from files into the merge, which keeps those rows
in memory: at most `max_rows_per_batch`. Tables stand where `delta` puts them, in a folder or an
object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError, CorruptBlock, DecodeError, RequestError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.columns import quoted
from logweir.pipeline.jobs.delta import DeltaPlace, delta, noting
from logweir.pipeline.jobs.folding import Prepared
from logweir.pipeline.jobs.places import told_as
from logweir.pipeline.jobs.states import state
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.jobs.work import carrying, per_item
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.definition import SpaceDef, SystemSpace
from logweir.store.schema.keys import exact_key, tuple_key
from logweir.wal.failpoint import failpoint
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
_FRONT: Final = (pa.field(_KEY, pa.binary()), pa.field(_TUPLE, pa.binary()))
_STAGE: Final = "_logweir-stage"
"""Where in a table the files stand that are to be merged into it."""

_PARTS: Final = 8
_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_FULL: Final = (RowType.INSERT, RowType.REPLACE)


def _typed(space: SpaceDef, numbers: dict[str, str]) -> TypedColumns:
    return TypedColumns(space, **numbers, reserved=(_KEY, _TUPLE, _GONE))


def _schema(columns: TypedColumns, *front: pa.Field) -> pa.Schema:
    return pa.schema([*front, *columns.schema])


# --- the beginning --------------------------------------------------------------------------------


def begin_mirror(
    spark: SparkSession,
    prepared: Prepared,
    space: SpaceDef,
    place: DeltaPlace,
    checkpoint: str,
    numbers: dict[str, str],
) -> VClock:
    """Make the table, unless it is there, and return the vclock that it began with.

    `prepared`: the state to begin with; `numbers`: `integers` and `decimals` of `typed`. Raises
    `ConfigError` for a space without a key, and a table that another query, or another definition
    of the space, has written.
    """
    if space.primary is None:
        raise ConfigError("space", f"{space.name!r} has no primary key to tell rows apart")
    columns = _typed(space, numbers)
    if (table := place.table()) is None:
        place.check_free()
        _begin(spark, prepared, space, columns, place)
        failpoint("mirror.after_table")
        table = place.table()
    _check(table, columns, place, checkpoint)
    place.below(_STAGE).remove()  # a killed driver left it
    names = ((number, f"{_POSITION}{number}") for number in range(VCLOCK_COMPONENTS))
    found = {number: table.transaction_version(name) for number, name in names}
    return VClock({number: lsn for number, lsn in found.items() if lsn is not None})


def _begin(
    spark: SparkSession,
    prepared: Prepared,
    space: SpaceDef,
    columns: TypedColumns,
    place: DeltaPlace,
) -> None:
    def show(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tuples = batch.column("tuple")
            yield _with_names([batch.column("key"), tuples, *columns.of(tuples)], columns)

    rows = state(spark, prepared.options.paths, prepared=prepared).filter(f"space_id = {space.id}")
    schema = _schema(columns, *_FRONT)
    files = place.write(rows.coalesce(_PARTS), schema, show)
    failpoint("mirror.before_table")
    notes = {f"{_POSITION}{number}": lsn for number, lsn in prepared.vclock.items()}
    place.create(schema, files, notes)


def _with_names(arrays: list[pa.Array], columns: TypedColumns) -> pa.RecordBatch:
    front = (_KEY, _TUPLE, _GONE)[: len(arrays) - len(columns.types)]
    return pa.RecordBatch.from_arrays(arrays, names=[*front, *columns.types])


def _check(table: Any, columns: TypedColumns, place: DeltaPlace, checkpoint: str) -> None:
    """Refuse a table that is not this query's: its rows are ahead of a checkpoint that begins."""
    query = query_id(checkpoint)
    if table.version() and not (query and table.transaction_version(query) is not None):
        raise ConfigError(
            "checkpoint",
            f"{place.name} is kept by a query with another checkpoint than {checkpoint}.",
            hint="give its own checkpoint, or both a new table and a new checkpoint",
        )
    there = [one.name for one in table.schema().fields]
    if there != [_KEY, _TUPLE, *columns.types]:
        raise ConfigError(
            "to",
            f"{place.name} has other columns than the space has now.",
            hint="its definition was changed: begin a new table with a new checkpoint",
        )


# --- batches --------------------------------------------------------------------------------------


def merging(
    space: SpaceDef, place: DeltaPlace, checkpoint: str, numbers: dict[str, str]
) -> Callable[[DataFrame, int], None]:
    """Merges a batch of `MIRROR_COLUMNS` into the table, unless it is in it already."""
    stage = place.below(_STAGE)
    columns = _typed(space, numbers)
    schema = _schema(columns, *_FRONT, pa.field(_GONE, pa.bool_()))

    def write(batch: DataFrame, number: int) -> None:
        name, table = query_id(checkpoint), place.table()
        done = table.transaction_version(name)
        if done is not None and done >= number:
            return  # merged, and killed before Spark noted it
        rows = batch.mapInArrow(carrying(_keyed(space)), _ROW_DDL).persist()
        try:
            is_emptied, kept = _kept(rows, table, place)
            files = stage.write(kept, schema, _folded(space, columns))
        finally:
            rows.unpersist()
        failpoint("mirror.before_merge")
        with told_as(place.name, delta().exceptions.DeltaError):
            _merge(
                table,
                stage.reading([file for file, _, _ in files], schema),
                is_emptied,
                noting({name: number}),
            )
        failpoint("mirror.after_merge")
        stage.remove()

    return write


def _merge(table: Any, rows: pa.RecordBatchReader, is_emptied: bool, marked: Any) -> None:
    merge = table.merge(
        rows,
        f"t.{_KEY} = s.{_KEY}",
        source_alias="s",
        target_alias="t",
        commit_properties=marked,
    )
    # What deltalake 1.6 makes of all columns fails where a name has a backtick.
    columns = {quoted(name): f"s.{quoted(name)}" for name in rows.schema.names if name != _GONE}
    merge.when_matched_delete(f"s.{_GONE}")
    merge.when_matched_update(columns, f"NOT s.{_GONE}")
    merge.when_not_matched_insert(columns, f"NOT s.{_GONE}")
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


def _kept(rows: DataFrame, table: Any, place: DeltaPlace) -> tuple[bool, DataFrame]:
    """Whether the space was emptied, and the rows that count then, those of a key in order, behind
    the tuple that the table has below an update or upsert of it."""
    from pyspark.sql import functions as sql

    emptied = rows.filter(f"{_KEY} IS NULL").agg(sql.max(sql.struct(*_PLACE))).collect()[0][0]
    rows = rows.filter(f"{_KEY} IS NOT NULL")
    if emptied is not None:
        kinds = ("string", "bigint", "int")
        parts = zip(_PLACE, kinds, emptied, strict=True)
        here = sql.struct(*(sql.lit(one).cast(kind).alias(name) for name, kind, one in parts))
        rows = rows.filter(sql.struct(*_PLACE) > here)
    elif files := table.file_uris():
        changed = rows.filter(rows["type"].isin(int(RowType.UPDATE), int(RowType.UPSERT)))
        keys = changed.select(_KEY).distinct()
        before = _tuples(rows.sparkSession, place, files).join(keys, _KEY, "left_semi")
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
    placed = rows.repartition(_PARTS, _KEY).sortWithinPartitions(_KEY, *_PLACE)
    return emptied is not None, placed


def _tuples(spark: SparkSession, place: DeltaPlace, files: list[str]) -> DataFrame:
    """Keys and tuples of a table. Spark reaches folders by itself, stores only with jars."""
    if not place.is_store:
        return spark.read.parquet(*files)
    names = [uri.removeprefix(f"{place.name.rstrip('/')}/") for uri in files]

    def read(name: str) -> Iterator[pa.RecordBatch]:
        yield from place.reading([name], pa.schema(_FRONT))

    return per_item(spark, names, read, f"{_KEY} BINARY, {_TUPLE} BINARY")


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
