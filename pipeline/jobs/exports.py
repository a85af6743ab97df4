"""`export` and `cdc`: rows or states out into Parquet, JSON lines, CSV and Delta tables.

Two things can be exported: the *changes* (rows of the log as they stand) or the *state* (the tuples
that are left). With a space's name the columns are typed from its format (`typed`); without one,
JSON lines are those of `logweir cat`, and the other formats have the columns of the scan with
values as JSON.

An export appears under its name when all of it is there: Spark writes into a folder beside it,
which is then renamed. A `cdc` goes on where its checkpoint says, each row once: by the file sink's
own log of batches, or, in a Delta table, by a transaction identifier (checkpoint, batch) that is
committed with the rows.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.cells import json_texts, placed
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.columns import quoted
from logweir.pipeline.frames import scan, scan_options
from logweir.pipeline.jobs.commits import CSV, SPARKS_OWN, batches_into, check_new, put_frame
from logweir.pipeline.jobs.delta import DeltaPlace, appending, delta
from logweir.pipeline.jobs.folding import looking, prepare
from logweir.pipeline.jobs.mirror import MIRROR_COLUMNS, MIRROR_ROWS, begin_mirror, merging
from logweir.pipeline.jobs.places import Place
from logweir.pipeline.jobs.stages import stage_name, sweep
from logweir.pipeline.jobs.states import Paths, prepared_state, state, table
from logweir.pipeline.jobs.survey import Until
from logweir.pipeline.jobs.typed import json_line
from logweir.pipeline.jobs.work import Told, carrying, typed_errors, watched
from logweir.pipeline.options import (
    STAGE,
    absolute,
    is_url,
    place_text,
    place_texts,
    scheme_of,
    target_folder,
)
from logweir.pipeline.typedrows import definition_text
from logweir.store.schema.definition import SpaceDef, SystemSpace
from logweir.wal.filesystem import OS, explain, explaining
from logweir.wal.lease import leased

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS: Final = ("parquet", "json", "csv", "delta")

_MOST_SECONDS: Final = 10**9
_CHANGE_COLUMNS: Final = (
    *("type_name", "replica_id", "lsn", "tsn", "time", "space_id"),
    *("key_json", "tuple_json", "ops_json"),
)
_LINE_COLUMNS: Final = (
    *("file", "block_offset", "row_in_block", "type_name", "replica_id", "lsn", "ts", "tsn"),
    *("flags", "group_id", "space_id", "index_base", "key_json", "tuple_json", "ops_json", "body"),
)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `sizes`: bytes of each data file, by its name."""

    path: str
    format: str
    sizes: Mapping[str, int]

    @property
    def files(self) -> int:
        """How many data files."""
        return len(self.sizes)

    @property
    def size(self) -> int:
        """Bytes in them."""
        return sum(self.sizes.values())


# --- what is exported -----------------------------------------------------------------------------


def changes(spark: SparkSession, *paths: str | Path, **options: Any) -> DataFrame:
    """Rows of a log, values as JSON: type_name, replica_id, lsn, tsn, time, space_id, key_json,
    tuple_json, ops_json. `options`: of the scan."""
    return scan(spark, *paths, **{"kinds": "xlog", **_of_rows(options, _CHANGE_COLUMNS)})


def _of_rows(options: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Options of a scan, with the columns that rows of no one space have here."""
    if "columns" in options:
        hint = "name a space, of whose fields it chooses, or use scan"
        raise ConfigError("columns", "is not for rows of all spaces", hint=hint)
    return {**options, "columns": list(columns)}


def lines(spark: SparkSession, *paths: str | Path, **options: Any) -> DataFrame:
    """Rows as lines of `logweir cat`, in one column; names of spaces are left out."""
    rows = scan(spark, *paths, **_of_rows(options, _LINE_COLUMNS))

    def show(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shown = [json_line(row, {}) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(shown, pa.string())], names=["value"])

    return rows.mapInArrow(carrying(show), "value STRING")


def space_of(spark: SparkSession, paths: Paths, space: str | int) -> SpaceDef:
    """The definition of a space at the end of an archive. Raises `RequestError` 36."""
    return prepare(looking(spark), place_texts("paths", paths)).history.schema.space(space)


# --- export ---------------------------------------------------------------------------------------


def export(
    spark: SparkSession,
    paths: Paths,
    to: str | Path,
    *,
    format: str = "parquet",
    what: str = "changes",
    space: str | int | None = None,
    until: Until = None,
    integers: str = "decimal",
    decimals: str | int = "string",
    told: Told | None = None,
    **options: Any,
) -> Exported:
    """Write the changes or the state of an archive into the new folder `to`, or into an object
    store (`s3://…`), where a table appears with its first transaction (`delta`), and files count
    from their manifest on (`commits`).

    `format`: parquet, json (lines), csv (with header), delta; `what`: changes or state; `space`:
    one space only, as typed columns; `until`: a vclock or time, for a state; `integers`: decimal or
    long, `decimals`: string or the scale of a DECIMAL (see `typed`); `options`: of the scan, for
    changes. Raises `ConfigError`, and what reading the archive raises; then nothing is left under
    `to`.
    """
    if format not in FORMATS:
        raise ConfigError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    if what not in ("changes", "state"):
        raise ConfigError("what", f"{what!r} is not changes or state")
    if what == "state" and options:
        raise ConfigError(min(options), "is for an export of changes, not of the state")
    numbers = {"integers": integers, "decimals": str(decimals)}
    write = _writer(to, format)
    paths = place_texts("paths", paths)
    with leased(*paths), watched(spark, told), typed_errors():
        if what == "state":
            frame = _state_frame(spark, paths, space, until, numbers)
        else:
            frame = _changes_frame(spark, paths, space, until, numbers, format, options)
        return write(frame)


def _writer(to: str | Path, format: str) -> Callable[[DataFrame], Exported]:
    """What writes to that place, where nothing may be."""
    if format == "delta" and (place := DeltaPlace.of("to", to)).is_store:
        place.check_new()
        return lambda frame: _put(frame, place)
    if format != "delta" and scheme_of(place_text("to", to)) not in ("", "file"):
        store = Place(str(to))
        check_new(store)
        return lambda frame: _stored(frame, store, format)
    target = target_folder("to", to)
    if target.exists():
        raise ConfigError("to", f"{target} is there already.", hint="name a new folder")
    return lambda frame: _written(frame, target, format)


def _put(frame: DataFrame, place: DeltaPlace) -> Exported:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    files = place.write(frame, schema)
    place.create(schema, files)
    return Exported(place.name, "delta", {name: size for name, _, size in files})


def _stored(frame: DataFrame, place: Place, format: str) -> Exported:
    files = put_frame(_csv(frame) if format == "csv" else frame, place, format)
    return Exported(place.name, format, {name: size for name, _, size in files})


def _state_frame(
    spark: SparkSession,
    paths: Paths,
    space: str | int | None,
    until: Until,
    numbers: dict[str, str],
) -> DataFrame:
    if space is not None:
        return table(spark, paths, space, until=until, **numbers)
    rows = state(spark, paths, prepared=prepared_state(spark, paths, until))

    def show(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shown = json_texts(*placed(batch.column("tuple")))
            columns = [batch.column("space_id"), batch.column("space"), shown]
            yield pa.RecordBatch.from_arrays(columns, names=["space_id", "space", "tuple_json"])

    return rows.mapInArrow(carrying(show), "space_id INT, space STRING, tuple_json STRING")


def _changes_frame(
    spark: SparkSession,
    paths: Sequence[str],
    space: str | int | None,
    until: Until,
    numbers: dict[str, str],
    format: str,
    options: dict[str, Any],
) -> DataFrame:
    if until is not None:
        raise ConfigError("until", "is for states", hint="changes take vclock_to and time_to")
    if space is not None:
        found = space_of(spark, paths, space)
        return scan(spark, *paths, **options, space=definition_text(found), **numbers)
    if format == "json":
        return lines(spark, *paths, **{"kinds": "xlog", **options})
    return changes(spark, *paths, **options)


def _written(frame: DataFrame, target: Path, format: str) -> Exported:
    prefix = f"{STAGE}{target.name}-"
    stage = target.with_name(stage_name(prefix))
    try:
        with contextlib.suppress(OSError):  # a folder need not be listable to be written
            sweep(OS, target.parent, prefix)
        with typed_errors(where=str(target)):
            _write(frame, str(stage), format)
        for left in stage.glob(".*.crc"):
            left.unlink()
        names = [path for path in stage.rglob("*") if path.is_file() and "part-" in path.name]
        sizes = {str(path.relative_to(stage)): path.stat().st_size for path in names}
        OS.rename(stage, target)
        OS.sync_directory(target.resolve().parent)
    except OSError as error:
        raise explain(error, str(target)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Exported(str(target), format, sizes)


def _write(frame: DataFrame, to: str, format: str) -> None:
    if format == "csv":
        _csv(frame).write.options(**CSV).csv(to)
    elif format == "json" and frame.columns == ["value"]:
        frame.write.text(to)
    elif format == "json":
        frame.write.json(to, ignoreNullFields=False)
    else:
        frame.write.parquet(to)
        if format == "delta":
            delta().convert_to_deltalake(to)


def _csv(frame: DataFrame) -> DataFrame:
    """CSV has no binary: base64."""
    from pyspark.sql import functions as sql

    binary = [name for name, kind in frame.dtypes if kind == "binary"]
    return frame.withColumns({name: sql.base64(sql.col(quoted(name))) for name in binary})


# --- continuous -----------------------------------------------------------------------------------


def cdc(
    spark: SparkSession,
    path: str | Path,
    to: str | Path,
    checkpoint: str | Path,
    *,
    format: str = "parquet",
    space: str | int | None = None,
    integers: str = "decimal",
    decimals: str | int = "string",
    mirror: bool = False,
    every_seconds: float | None = None,
    **options: Any,
) -> StreamingQuery:
    """Export changes as they come, each once, going on where `checkpoint` says.

    `path`: the folder of a live or closed log; `to`: a folder, table or object store that grows
    (what Spark alone reaches, as `hdfs://`, by its own sink); `format`, `space`, `integers`,
    `decimals`: as `export`; `mirror`: a Delta table of the tuples of `space` instead of its changes
    (see `mirror`); `every_seconds`: go on until stopped, a batch so often, else take what is there
    and end; `options`: of the stream (`max_rows_per_batch` …). Returns the running query. The
    space's definition is that of the start: stop and start after changing it. Rows that the
    checkpoint still needs and that were collected: the query fails with `PositionUnavailable`,
    naming both positions.
    """
    if format not in FORMATS:
        raise ConfigError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    path, checkpoint = place_text("path", path), absolute(place_text("checkpoint", checkpoint))
    numbers = {"integers": integers, "decimals": str(decimals)}
    write = None
    if mirror:
        write, options = _mirrored(spark, path, to, checkpoint, format, space, numbers, options)
    found = None if space is None or mirror else space_of(spark, path, space)
    if mirror:
        given = options
    elif found is None:
        given = _of_rows(options, _CHANGE_COLUMNS)
    else:
        given = {**options, "space": definition_text(found), **numbers}
    texts = scan_options(path, **given).to_text()
    texts.pop("paths", None)
    frame = spark.readStream.format("logweir").options(**texts).load(absolute(path))
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    if every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        if not 0 <= _seconds(every_seconds) < _MOST_SECONDS:
            text = f"is {every_seconds!r}, and no number of seconds"
            raise ConfigError("every_seconds", text, hint="give 0 or more")
        writer = writer.trigger(processingTime=f"{every_seconds} seconds")
    if write is not None:
        return _started(writer.foreachBatch(write))
    if format == "delta":
        return _started(writer.foreachBatch(appending(DeltaPlace.of("to", to), checkpoint)))
    to = absolute(place_text("to", to))
    binary = [name for name, kind in frame.dtypes if kind == "binary"]
    if format == "csv" and binary:
        raise ConfigError("format", f"csv cannot hold {', '.join(binary)}", hint="use json")
    if is_url(to) and scheme_of(to) not in SPARKS_OWN:
        return _started(writer.foreachBatch(batches_into(Place(to), checkpoint, format)))
    _check_owner(to, checkpoint)
    if format == "csv":
        writer = writer.options(**CSV)
    query = _started(writer.format(format), to)
    try:
        _note_owner(to, str(query.id))
    except BaseException:
        query.stop()
        raise
    return query


def _seconds(given: object) -> float:
    """How many those are, which may be of any type that is shown as a number; NaN: it is not."""
    try:
        return float(str(given))
    except ValueError:
        return math.nan


def _started(writer: DataStreamWriter, to: str | None = None) -> StreamingQuery:
    """The query, under way."""
    hint = "checkpoint and, of files, to are folders, or what Spark itself reaches"
    with typed_errors("checkpoint" if to is None else "to, or checkpoint", hint):
        return writer.start(to)


def _mirrored(
    spark: SparkSession,
    path: str,
    to: str | Path,
    checkpoint: str,
    format: str,
    space: str | int | None,
    numbers: dict[str, str],
    options: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """What keeps a mirror, and the options of its stream."""
    if format != "delta" or space is None:
        raise ConfigError("mirror", "is a Delta table of one space", hint="format delta, and space")
    if refused := options.keys() & {"from", "columns", "spaces", "types", "kinds"}:
        raise ConfigError(min(refused), "is not for a mirror, which has all that a space has")
    place = DeltaPlace.of("to", to)
    with leased(path), typed_errors():
        prepared = prepared_state(spark, path, spaces=[space])
        found = prepared.history.schema.space(space)
        start = begin_mirror(spark, prepared, found, place, checkpoint, numbers)
    given = {"max_rows_per_batch": MIRROR_ROWS, **options, "columns": list(MIRROR_COLUMNS)}
    spaces = [found.id, int(SystemSpace.TRUNCATE)]
    write = merging(found, place, checkpoint, numbers)
    return write, {**given, "from": str(start), "spaces": spaces}


_OWNER: Final = "_logweir_query"


def _check_owner(to: str, checkpoint: str) -> None:
    """Refuse a folder that another query has written: Spark passes over batches whose numbers its
    `_spark_metadata` has, whichever query they were of. Source: Spark 4.3.0, observed."""
    if is_url(to):
        return  # Spark reaches it, we do not
    folder = Path(to)
    if not (folder / "_spark_metadata").is_dir():
        return
    known = query_id(checkpoint)
    try:
        owner = (folder / _OWNER).read_text().strip()
    except OSError:
        owner = ""
    owner = owner or known  # of an earlier version, which kept no note, or left an empty one
    if not known or known != owner:
        raise ConfigError(
            "checkpoint",
            f"{to} was written by a query with another checkpoint than {checkpoint}: batches of "
            "this one would be passed over",
            hint="give a new checkpoint a new folder, or the folder its own checkpoint",
        )


def _note_owner(to: str, query: str) -> None:
    """Whole or not at all: a full disk must not leave a folder that is nobody's."""
    if is_url(to):
        return
    note = Path(to, _OWNER)
    new = note.with_name(f".{_OWNER}.new")
    with explaining(note):
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.write_text(query + "\n")
            new.replace(note)
        finally:
            new.unlink(missing_ok=True)
