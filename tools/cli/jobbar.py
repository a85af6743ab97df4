"""How far a job on Spark is, as a bar."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from logweir.tools.cli.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["job_bar", "share_done"]


@contextlib.contextmanager
def job_bar(
    out: Output, label: str, spark: SparkSession | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A bar over the tasks of the stages under way, which have about as many bytes each; a stage's
    share is a hundredth part. `spark`: rows are counted, too."""
    from logweir.pipeline.jobs.work import rows_under_way

    with out.progress(label, 100) as advance:
        yield lambda done, total: advance(
            done * 100 // max(total, 1), rows_under_way(spark) if spark else 0
        )


def share_done(first: Any, last: Any) -> int:
    """How many hundredths of the way from the beginning of the batch `first` to the end of the log
    lie behind the batch `last`, by lsns. Both: a stream's progress as Spark tells it."""
    from logweir.pipeline.streams import from_offset

    def at(text: str | None) -> int:  # Spark tells what it does not know as null, or as its text
        offset = json.loads(text) if text else None
        return from_offset(offset).signature if offset else 0

    (begun, *_), (source, *_) = first.sources, last.sources
    begin, here, end = (
        at(text) for text in (begun.startOffset, source.endOffset, source.latestOffset)
    )
    return 100 * max(here - begin, 0) // max(end - begin, here - begin, 1)
