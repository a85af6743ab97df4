"""Ctrl-C and SIGTERM while Spark works."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["asked_to_stop", "spark_is_interrupted"]

_OF_PY4J: Final = "while sending command."


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
    logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith(_OF_PY4J)
