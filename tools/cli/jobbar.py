"""A job on Spark while it works: how far it is, as a bar; Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logweir.tools.cli.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_BATCHES: Final = 1000
_LATEST_BATCHES: Final = 200


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


class Batch(NamedTuple):
    """Of a stream: when it began, and what it and those that `thin` put to it took."""

    time: str
    rows: int
    batches: int = 1


def thin(seen: dict[int, Batch]) -> None:
    """Tell a stream's batches, by their numbers and in that order, in few entries however long it
    goes on: of too many, two neighbours that are not among the latest become one."""
    if len(seen) <= _MOST_BATCHES:
        return
    old = [*seen][:-_LATEST_BATCHES]
    for first, second in zip(old[::2], old[1::2], strict=False):
        one, other = seen[first], seen.pop(second)
        seen[first] = Batch(one.time, one.rows + other.rows, one.batches + other.batches)


@contextlib.contextmanager
def asked_to_stop(*, is_caught: bool) -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM, if they are caught; the next one stops what goes on
    wherever it is."""
    asked = threading.Event()
    before: dict[int, Any] = {}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        asked.set()
        give_back()

    if is_caught:
        before |= {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        give_back()


def spark_is_interrupted() -> None:
    """Let an interrupt be one: Spark's own handler asks the JVM in the middle of what it is asked
    already, and py4j shows the traceback of each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("while sending command.")
