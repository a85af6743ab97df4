"""Log lines: a constant event name and fields, through Python's own `logging`.

`event='link.closed' peer='127.0.0.1:4711' reason='…'`. Who embeds logweir configures `logging` as
usual; loggers are below `logweir`.
"""

from __future__ import annotations

import logging
import traceback

__all__ = ["EventLog", "get_logger"]


class EventLog:
    """The logger of a name. A field `exc_info`, an exception, is told as `exception`, with its
    traceback."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """What is of use to who looks for a fault."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What goes as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What somebody should look at."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """What went wrong."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        error = fields.pop("exc_info", None)
        if isinstance(error, BaseException):
            fields["exception"] = "".join(traceback.format_exception(error))
        shown = {"event": event, **fields}.items()
        text = " ".join(f"{name}={value!r}" for name, value in shown)
        self._logger.log(level, "%s", text, stacklevel=3)


def get_logger(name: str) -> EventLog:
    """The logger of that name: `.info("event", field=value)`, `.warning`, `.error`."""
    return EventLog(name)
