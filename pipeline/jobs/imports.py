"""`import`: rows of Parquet, CSV, JSON lines or any DataFrame into a space of a store.

Tasks read and convert: each batch becomes packed tuples by the format of the space (`typed`). A log
has one writer, so the driver appends them, in the order of the files, a transaction per batch, with
the checks that any insert gets. A new store is made in a folder beside its place and renamed when
all is in it. Into a store that is there rows are *replaced* batch by batch: an import that was
interrupted is run again and ends in the same state.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.jobs.commits import CSV, SPARKS_OWN, read_places
from logweir.pipeline.jobs.places import Place
from logweir.pipeline.jobs.stages import stage_name, sweep
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.jobs.work import Told, mapped, typed_errors, watched
from logweir.pipeline.options import STAGE, absolute, place_texts, scheme_of, target_folder
from logweir.store import Log
from logweir.store import open as open_log
from logweir.store.engine.request import Request
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.named import REST
from logweir.wal.filesystem import OS, explain, explaining
from logweir.wal.mp import packer, skip
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "csv", "json")
_PACKED_DDL: Final = "rows INT, tuples BINARY"
_CSV: Final = {**CSV, "multiLine": "true", "nullValue": "\0null\0"}
"""How CSV is read: values may have lines, and nothing is null, while "" is an empty text."""
_FIELD_TYPES: Final = {
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "integer",
    "decimal(20,0)": "integer",
    "float": "double",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "binary": "varbinary",
    "date": "string",
    "timestamp": "string",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """What was taken. `space`: its name; `created`: whether it was made for this."""

    directory: Path
    space: str
    rows: int
    created: bool


def import_rows(
    spark: SparkSession,
    sources: Sequence[str | Path] | str | Path,
    to: str | Path,
    space: str,
    *,
    format: str = "parquet",
    primary: Sequence[str] | str | None = None,
    types: Mapping[str, str] | None = None,
    told: Told | None = None,
) -> Imported:
    """Take files into a space of the store in `to`, which is made if need be.

    `sources`: files or folders, also in an object store (not of CSV), where a folder with a
    manifest has the files that it names (`commits`); `format`: parquet, csv (with header), json
    (lines); `primary`: fields of the primary key of a space that is made, else the first column;
    `types`: of its fields, by their names, those that their columns do not tell, as map and array.
    Column names are the names of fields; `_rest`, as `export` writes it, goes back to where it came
    from, and so does the base64 that stands for a varbinary field in CSV and JSON.
    Raises `ConfigError`, `DecodeError` for a value that a field cannot hold, `RequestError`,
    `WalError`.
    """
    if format not in FORMATS:
        raise ConfigError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    _check_fields(primary, types)
    texts = [absolute(path) for path in place_texts("source", sources)]
    with watched(spark, told), typed_errors("source", f"are these files of {format}?"):
        if any(scheme_of(text) not in ("", *SPARKS_OWN) for text in texts):
            frame = read_places(spark, [Place(text) for text in texts], format)
        elif format == "parquet":
            frame = spark.read.parquet(*texts)
        elif format == "csv":
            frame = spark.read.options(**_CSV).csv(texts)
        else:
            frame = spark.read.json(texts)
        if frame.columns == ["_corrupt_record"]:
            raise ConfigError("source", "has no line of JSON", hint="are these files of json?")
    is_base64 = format != "parquet"
    with watched(spark, told), typed_errors():
        return import_frame(frame, to, space, primary=primary, types=types, is_base64=is_base64)


def import_frame(
    frame: DataFrame,
    to: str | Path,
    space: str,
    *,
    primary: Sequence[str] | str | None = None,
    types: Mapping[str, str] | None = None,
    is_base64: bool = False,
) -> Imported:
    """Take a DataFrame. `is_base64`: what text for a varbinary field is, else its UTF-8 is taken.
    The other arguments, and errors, as `import_rows`."""
    target = target_folder("to", to)
    _check_fields(primary, types)
    with explaining(target):
        names = os.listdir(target) if target.exists() else []
    _check_frame(frame)
    if any(name.endswith((".snap", ".xlog")) for name in names):
        with open_log(target, create=False) as log:
            return _import(log, frame, space, primary, types or {}, is_base64)
    if names:
        raise ConfigError("to", f"{target} is neither a store nor empty.", hint="name a new folder")
    prefix = f"{STAGE}{target.name}-"
    stage = target.with_name(stage_name(prefix))
    try:
        with contextlib.suppress(OSError):  # a folder need not be listable to be written
            sweep(OS, target.parent, prefix)
        with open_log(stage, create=True) as log:
            done = _import(log, frame, space, primary, types or {}, is_base64)
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
        OS.rename(stage, target)
        OS.sync_directory(target.resolve().parent)
    except OSError as error:
        raise explain(error, str(target)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Imported(target, done.space, done.rows, done.created)


def _check_frame(frame: object) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        told = f"is {repr(frame)[:80]}, which is no DataFrame of Spark"
        raise ConfigError("frame", told, hint="read one with `spark.read`, or name files to import")


def _check_fields(primary: object, types: object) -> None:
    """Refuse what names no fields."""
    names = [] if primary is None else [primary] if isinstance(primary, str) else primary
    if not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        told = f"is {repr(primary)[:80]}, which names no columns"
        raise ConfigError("primary", told, hint="name a column, or several in a list")
    given = {} if types is None else types
    if not isinstance(given, Mapping) or not all(
        isinstance(one, str) for pair in given.items() for one in pair
    ):
        told = f"is {repr(types)[:80]}, which gives no types to columns"
        raise ConfigError("types", told, hint='give them by name: {"extra": "map"}')


def _import(
    log: Log,
    frame: DataFrame,
    space: str,
    primary: Sequence[str] | str | None,
    types: Mapping[str, str],
    is_base64: bool,
) -> Imported:
    known = log.schema.get(space)
    if known is None:
        _create(log, frame, space, primary, types)
    found = log.schema.space(space)
    _check_columns(frame, found)
    is_plain = known is None and len(found.indexes) == 1
    rows = 0

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from pack_batches(found, batches, is_base64)

    packed = mapped(frame, convert, _PACKED_DDL)
    for row in packed.toLocalIterator(prefetchPartitions=True):
        tuples = bytes(row[1])
        if is_plain:
            log.inner.append_packed(space, tuples)
        else:
            _replace(log, found, tuples)
        rows += row[0]
    return Imported(log.path, found.name, rows, known is None)


def _replace(log: Log, space: SpaceDef, packed: bytes) -> None:
    with log.transaction() as tx:
        at = 0
        while at < len(packed):
            end = skip(packed, at)
            tx.execute(Request(RowType.REPLACE, space.id, tuple=packed[at:end]))
            at = end


def _check_columns(frame: DataFrame, space: SpaceDef) -> None:
    """Refuse, before a task runs, a column that is no field."""
    columns = TypedColumns(space)
    empty = pa.RecordBatch.from_arrays(
        [pa.array([], pa.string()) for _ in frame.columns], names=list(frame.columns)
    )
    columns.from_columns(empty)


def _create(
    log: Log,
    frame: DataFrame,
    space: str,
    primary: Sequence[str] | str | None,
    types: Mapping[str, str],
) -> None:
    wanted = [(name, kind) for name, kind in frame.dtypes if name != REST]
    if not wanted:
        raise ConfigError("source", "has no columns")
    names = [name for name, _ in wanted]
    key = [primary] if isinstance(primary, str) else list(primary or names[:1])
    for told, given in (("primary", key), ("types", types)):
        for name in given:
            if name not in names:
                raise ConfigError(
                    told, f"{name!r} is no column", hint="columns are " + ", ".join(names)
                )
    fields: list[dict[str, Any]] = []
    for name, kind in wanted:
        field_type = _FIELD_TYPES.get(kind, "decimal" if kind.startswith("decimal") else "any")
        field_type = types.get(name, field_type)
        if field_type == "any" and name in key:
            raise ConfigError("primary", f"column {name!r} is {kind}, which cannot be in a key")
        fields.append({"name": name, "type": field_type, "is_nullable": name not in key})
    log.create_space(space, format=fields, primary=key)


def pack_batches(
    space: SpaceDef, batches: Iterable[pa.RecordBatch], is_base64: bool = False
) -> Iterator[pa.RecordBatch]:
    """Batches of columns as packed tuples: rows INT, tuples BINARY."""
    columns = TypedColumns(space)
    pack_one = packer()
    for batch in batches:
        if batch.num_rows:
            rows = columns.from_columns(batch, is_base64=is_base64)
            data = b"".join(pack_one(row) for row in rows)
            yield pa.RecordBatch.from_arrays(
                [pa.array([len(rows)], pa.int32()), pa.array([data], pa.binary())],
                names=["rows", "tuples"],
            )
