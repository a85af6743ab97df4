"""Scans as one call: a DataFrame in Spark, or Arrow batches without it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from logweir.errors import ConfigError
from logweir.pipeline.options import ORIGIN, ScanOptions, option_text, place_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str]


def scan(spark: SparkSession, *paths: Path, **options: object) -> DataFrame:
    """A DataFrame of the rows in folders or files of logs and snapshots.

    `paths`: local, or URLs; `options`: those of the format, as values or text:
    `columns=["lsn", "tuple"]`, `spaces="orders"`, `vclock_from={1: 5}`; with `space="orders"` the
    rows of that space with its fields as columns (`typedrows`).
    Raises `ConfigError` for an option that is not known or does not fit, `RequestError` 36 where
    there is no such space; damage is raised by the first action, as Spark wraps it.
    """
    from logweir.pipeline.jobs.spaces import resolved
    from logweir.pipeline.sessions import register

    parsed = resolved(scan_options(*paths, **options), spark)
    register(spark)
    return spark.read.format("logweir").options(**parsed.to_text()).load()


def batches(*paths: Path, **options: object) -> pa.RecordBatchReader:
    """The Arrow batches of a scan in the order of the log, read here, without Spark.

    `paths`, `options`: as `scan`, but `url`. What comes back is an iterator of `RecordBatch` that
    has a `schema`, and `read_all()` for one table. Raises `ConfigError`, `RequestError` 36; and
    where batches are read, `WalError`.
    """
    try:
        import pyarrow as pa

        from logweir.pipeline.columns import arrow_schema
        from logweir.pipeline.jobs.spaces import columns_of, resolved
        from logweir.pipeline.reading import batches as read
    except ImportError as error:  # NumPy, too
        text, hint = f"cannot be imported: {error}.", "pip install 'logweir[arrow]'"
        raise ConfigError("pyarrow", text, hint=hint) from error

    parsed = scan_options(*paths, **options)
    if parsed.url:
        raise ConfigError(
            "url",
            "is read in Spark only.",
            origin=ORIGIN,
            hint="let `logweir follow` take it into a folder, and give that as the path",
        )
    found = resolved(parsed)
    return pa.RecordBatchReader.from_batches(arrow_schema(*columns_of(found)), read(found))


def scan_options(*paths: Path, **options: object) -> ScanOptions:
    """Options given as Python values. Raises `ConfigError`."""
    given = {key: option_text(value) for key, value in options.items() if value is not None}
    if paths:
        given["paths"] = json.dumps(place_texts("path", paths))
    return ScanOptions.parse(given)
