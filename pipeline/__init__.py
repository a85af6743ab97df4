"""Logs and snapshots as Spark DataFrames, at the size of a cluster. `docs/pipeline.md` tells how.

::

    from logweir import pipeline

    spark = pipeline.session()                              # finds Java, registers the format
    rows = pipeline.scan(spark, "data", spaces="orders")    # a DataFrame
    for batch in pipeline.batches("data"): ...              # Arrow batches without Spark

Nothing of Spark or Arrow is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from logweir.pipeline.frames import batches, scan
    from logweir.pipeline.sessions import find_java, register, session

__all__ = ["batches", "find_java", "register", "scan", "session"]

_HOMES: Final = {
    "batches": "logweir.pipeline.frames",
    "find_java": "logweir.pipeline.sessions",
    "register": "logweir.pipeline.sessions",
    "scan": "logweir.pipeline.frames",
    "session": "logweir.pipeline.sessions",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__` that is not loaded yet."""
    if name not in _HOMES:
        raise AttributeError(f"module 'logweir.pipeline' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
