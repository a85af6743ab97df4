"""Log lines of the server: see `wal.logs`."""

from __future__ import annotations

import time
from collections.abc import Callable

from logweir.limits import LOG_BURST_LINES, LOG_LINE_SECONDS
from logweir.wal.logs import EventLog, get_logger

__all__ = ["SparingLog", "get_logger"]


class SparingLog:
    """Warnings that strangers can cause as often as they like. Of each event so many lines as
    `limits.LOG_BURST_LINES` come at once, then one each `limits.LOG_LINE_SECONDS`; the next line
    says as `left_out` how many did not. `clock`: seconds."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._events: dict[
            str, tuple[float, float, int]
        ] = {}  # lines that may come, when, left out

    def warning(self, event: str, **fields: object) -> None:
        """One more line, or one more that is left out."""
        now = self._clock()
        may, before, left_out = self._events.get(event, (float(LOG_BURST_LINES), now, 0))
        may = min(may + (now - before) / LOG_LINE_SECONDS, float(LOG_BURST_LINES))
        if may < 1.0:
            self._events[event] = (may, now, left_out + 1)
            return
        self._events[event] = (may - 1.0, now, 0)
        if left_out:
            fields["left_out"] = left_out
        self._log.warning(event, **fields)
