"""Files in a place that renames nothing: whole or not at all, by a manifest that is put last.

Tasks put their files under names that they keep (`places`). When all are there the driver removes
what a killed job or a repeated task left, looks whether each file has its size, and puts
`_SUCCESS`, a JSON object that names them. A store takes that whole or not at all, so who reads by
it sees nothing before, and all from then on. Programs that look at names only, as Spark and
pyarrow, see files as they come; they pass over `_SUCCESS`, and should wait for it.

A batch of a stream is such a place, `batch=NUMBER`. Its manifest has the stream's name, by which a
batch that is written again, as a driver was killed before Spark noted it, is known.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError, CorruptFile
from logweir.limits import READ_WINDOW_BYTES, TOPIC_TUPLE_BYTES
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.columns import quoted
from logweir.pipeline.jobs.places import PART, Place, Written, told_as
from logweir.pipeline.jobs.work import per_item
from logweir.wal.failpoint import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST: Final = "_SUCCESS"
"""The name of the file that names the others; Spark gives it to an empty one."""

SPARKS_OWN: Final = ("file", "hdfs", "s3a", "viewfs", "dbfs", "wasb", "wasbs")
"""Schemes of places that Spark reaches by itself, and reads and writes in its own way."""

CSV: Final = {
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""How CSV is written and read: quotes are doubled, and spaces belong to values."""

_LINE_BYTES: Final = 2 * TOPIC_TUPLE_BYTES
"""The longest line that is taken: of the largest tuple, in base64."""


def committed(place: Place) -> dict[str, Any] | None:
    """What the manifest says, None where there is none; `files`: sizes by name; `query`: of which
    stream. An empty one, of another program, says nothing. Raises `WalError`, `CorruptFile`."""
    filesystem, folder = place.arrow()
    with told_as(f"{place.name}/{MANIFEST}"):
        try:
            with filesystem.open_input_stream(f"{folder}/{MANIFEST}") as file:
                data = file.read()
        except FileNotFoundError:
            return None
    try:
        found = json.loads(data or b"{}")
        {**found.get("files", {})}
    except (ValueError, TypeError, AttributeError) as error:
        text = "is no manifest: " + type(error).__name__
        raise CorruptFile(text, path=f"{place.name}/{MANIFEST}") from error
    return dict(found)


def check_new(place: Place, query: str = "") -> bool:
    """Whether nothing is committed there. Raises `ConfigError` where something is that is not of
    the stream `query`, or where files are that no job of ours put; `WalError` where nobody can
    look."""
    found = committed(place)
    if found is not None and query and found.get("query") == query:
        return False
    others = sorted(name for name in place.names() if not PART.fullmatch(name))
    if found is not None or others:
        what = "is there already" if found is not None else f"has {others[0]} in it"
        raise ConfigError("to", f"{place.name} {what}.", hint="name a new place")
    return True


def commit(place: Place, files: list[Written], query: str = "") -> None:
    """Let these files be what the place has. Raises `WalError` where one is not there as its task
    left it."""
    filesystem, folder = place.arrow()
    named = {name: size for name, _, size in files}
    failpoint("place.before_sweep")
    with told_as(place.name):
        for name in place.files().keys() - named.keys():
            if PART.fullmatch(name):
                filesystem.delete_file(f"{folder}/{name}")
    there = place.files()
    for name, size in named.items():
        if there.get(name) != size:
            text = "is not there as its task left it; is another job writing to this place?"
            raise CorruptFile(text, path=f"{place.name}/{name}")
    told = {"rows": sum(rows for _, rows, _ in files), "files": named, "query": query}
    failpoint("place.before_manifest")
    with (
        told_as(place.name),
        filesystem.open_output_stream(f"{folder}/{MANIFEST}") as out,
    ):
        out.write(json.dumps(told).encode() + b"\n")
    failpoint("place.after_manifest")


def put_frame(frame: DataFrame, place: Place, format: str, query: str = "") -> list[Written]:
    """Write a DataFrame as files of a format, parquet, json or csv, and commit them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = _lines(frame, format)
    files = place.write(rows, to_arrow_schema(rows.schema, timezone="UTC"), ending=format)
    commit(place, files, query)
    return files


def _lines(frame: DataFrame, format: str) -> DataFrame:
    """The lines that Spark would write, in one column; of CSV its name is the header."""
    from pyspark.sql import functions as sql

    if format == "parquet" or (format == "json" and frame.columns == ["value"]):
        return frame
    every = sql.struct(*(sql.col(quoted(name)) for name in frame.columns))
    if format == "json":
        return frame.select(sql.to_json(every, {"ignoreNullFields": "false"}).alias("value"))
    header = io.StringIO()
    csv.writer(header, lineterminator="").writerow(frame.columns)
    return frame.select(sql.to_csv(every, CSV).alias(header.getvalue()))


def named_files(place: Place) -> list[Place]:
    """The files to read: what a manifest names; else those whose names do not begin with `_` or
    `.`; or the place itself. Raises `ConfigError` for files of a job that is not over."""
    found = committed(place)
    names = found.get("files") if found else None
    if names is None:
        names = sorted(name for name in place.files() if name[0] not in "_.")
        if any(PART.fullmatch(name) for name in names):
            raise ConfigError(
                "source",
                f"{place.name} has no {MANIFEST}: what writes there is under way or was killed",
                hint="wait for it, or write it again",
            )
    batches = sorted(name for name in place.names() if re.fullmatch(r"batch=\d+", name))
    if found is None and not names and not batches:
        return [place]
    below = [one for name in batches for one in _batch(place.below(name))]
    return [place.below(name) for name in names] + below


def _batch(place: Place) -> list[Place]:
    """The files of a batch of a stream; none where it is under way."""
    return named_files(place) if committed(place) is not None else []


def read_places(spark: SparkSession, places: list[Place], format: str) -> DataFrame:
    """The rows of files of these places, by the tasks. Raises `ConfigError` for another format than
    parquet and json, and as `named_files`."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_schema

    if format not in ("parquet", "json"):
        raise ConfigError(
            "format", f"{format} is not read from an object store", hint="use parquet"
        )
    files = [one for place in places for one in named_files(place)]
    if not files:
        names = ", ".join(place.name for place in places)
        raise ConfigError(
            "source", f"{names} has no file with rows", hint="there is nothing to take"
        )

    def rows(place: Place) -> Iterator[pa.RecordBatch]:
        filesystem, path = place.arrow()
        with told_as(place.name), filesystem.open_input_file(path) as file:
            if format == "parquet":
                yield from pq.ParquetFile(file).iter_batches()
                return
            for lines in _read_lines(file, place.name):
                yield pa.RecordBatch.from_pydict({"value": lines})

    if format == "json":
        return spark.read.json(per_item(spark, files, rows, "value STRING"))
    with told_as(files[0].name):
        filesystem, path = files[0].arrow()
        with filesystem.open_input_file(path) as file:
            schema = from_arrow_schema(pq.read_schema(file))
    return per_item(spark, files, rows, schema)


def _read_lines(file: Any, name: str) -> Iterator[list[str]]:
    rest = b""
    while data := file.read(READ_WINDOW_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            text = f"a line is longer than {_LINE_BYTES} bytes; are these lines of JSON?"
            raise CorruptFile(text, path=name)
        yield [one.decode("utf-8", "replace") for one in lines]
    if rest:
        yield [rest.decode("utf-8", "replace")]


def batches_into(place: Place, checkpoint: str, format: str) -> Callable[[DataFrame, int], None]:
    """Writes each batch of a stream into a place below, unless it is there."""

    def write(batch: DataFrame, number: int) -> None:
        query, below = query_id(checkpoint), place.below(f"batch={number:012d}")
        if check_new(below, query):
            put_frame(batch, below, format, query)

    return write
