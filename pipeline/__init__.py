"""Logs and snapshots as Spark DataFrames, at the size of a cluster. `docs/pipeline.md` tells how.

::

    from logweir import pipeline

    spark = pipeline.session()                              # finds Java, registers the format
    rows = pipeline.scan(spark, "data", spaces="orders")    # a DataFrame
    for batch in pipeline.batches("data"): ...              # Arrow batches without Spark

Nothing of Spark or Arrow is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logweir.lazy import lazily

if TYPE_CHECKING:
    from logweir.pipeline.frames import batches, scan
    from logweir.pipeline.jobs.checks import verify
    from logweir.pipeline.jobs.compact import compact
    from logweir.pipeline.jobs.exports import cdc, changes, export
    from logweir.pipeline.jobs.imports import import_frame, import_rows
    from logweir.pipeline.jobs.states import diff, state, stats, table
    from logweir.pipeline.pyfiles import py_files
    from logweir.pipeline.sessions import find_java, register, session
    from logweir.pipeline.sparkjar import spark_jar
    from logweir.wal.lease import leased

__all__ = [
    "batches",
    "cdc",
    "changes",
    "compact",
    "diff",
    "export",
    "find_java",
    "import_frame",
    "import_rows",
    "leased",
    "py_files",
    "register",
    "scan",
    "session",
    "spark_jar",
    "state",
    "stats",
    "table",
    "verify",
]

_HOMES: Final = {
    "batches": "logweir.pipeline.frames",
    "cdc": "logweir.pipeline.jobs.exports",
    "changes": "logweir.pipeline.jobs.exports",
    "compact": "logweir.pipeline.jobs.compact",
    "diff": "logweir.pipeline.jobs.states",
    "export": "logweir.pipeline.jobs.exports",
    "find_java": "logweir.pipeline.sessions",
    "import_frame": "logweir.pipeline.jobs.imports",
    "import_rows": "logweir.pipeline.jobs.imports",
    "leased": "logweir.wal.lease",
    "py_files": "logweir.pipeline.pyfiles",
    "register": "logweir.pipeline.sessions",
    "scan": "logweir.pipeline.frames",
    "session": "logweir.pipeline.sessions",
    "spark_jar": "logweir.pipeline.sparkjar",
    "state": "logweir.pipeline.jobs.states",
    "stats": "logweir.pipeline.jobs.states",
    "table": "logweir.pipeline.jobs.states",
    "verify": "logweir.pipeline.jobs.checks",
}

__getattr__ = lazily(__name__, _HOMES)
