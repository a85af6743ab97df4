"""Log lines: a constant event name and fields, through Python's own `logging`.

`event='link.closed' peer='127.0.0.1:4711' reason='…'`. Who embeds logweir configures `logging` as
usual; loggers are below `logweir`, and their records have `event` and `fields`. The program
configures it with `start`: text, or JSON as `JsonLines` writes it, to stderr or into a file.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path


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
        shown = {"event": event, **fields}
        text = " ".join(f"{name}={value!r}" for name, value in shown.items())
        self._logger.log(level, "%s", text, stacklevel=3, extra={"event": event, "fields": fields})


def get_logger(name: str) -> EventLog:
    """The logger of that name: `.info("event", field=value)`, `.warning`, `.error`."""
    return EventLog(name)


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (RFC 3339, UTC), `level`, `logger`, `event`, and the event's
    fields, numbers and switches as such, everything else as text. A record that is no event of ours
    has its message as `event`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        fields: dict[str, object] = getattr(record, "fields", {})
        return json.dumps({**told, **fields, **told}, default=str)


class LogFile(logging.FileHandler):
    """Appends to a file. Raises `OSError` if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Go on in the file that has the name now. Raises `OSError`; then the old one is kept."""
        old = self.setStream(self._open())
        if old is not None:
            old.close()


def start(level: str, *, as_json: bool = False, path: Path | None = None) -> None:
    """Write lines of that level (`debug`, `info`, `warning`, `error`) and above: to stderr, or into
    the file `path`. What was set up before is taken down. Raises `OSError`."""
    handler = logging.StreamHandler(sys.stderr) if path is None else LogFile(path)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
