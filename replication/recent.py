"""The last warnings and errors of the log, for `Server.status`: what, where, when, why, what to do.

They are taken from Python's `logging` as the log itself is, so a level above `warning` leaves out
here what it leaves out there. At most `limits.RECENT_ERRORS` are kept, each text cut at
`limits.RECENT_TEXT_CHARACTERS`; what was told repeatedly in the same words is one, with its number.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

from logweir.limits import RECENT_ERRORS, RECENT_TEXT_CHARACTERS

_WHERE: Final = ("url", "source", "follower", "peer", "bucket", "topic", "stream", "name", "user")
_WHY: Final = ("reason", "error", "exception")
_HINTS: Final = {
    "commit.failed": "look at the disk of the store's folder, and how full it is",
    "config.refused": "mend the file that is named, then send SIGHUP again",
    "link.failed": "a fault of logweir's: report it with the log's lines around it",
    "listener.refused": "nothing, if the client is a stranger; its reason names what to change",
    "login.failed": "give the client the user's password; `logweir user` changes it",
    "publish.refused": "look at the topic's settings with `logweir topic`",
    "retention.behind": "mend the follower before its logs are given up",
    "retention.evicted": "the follower copies everything anew; raise --retain-max-bytes for others",
    "retention.failed": "look at the disk of the store's folder",
    "source.part_stopped": "mend what is named, then restart: the other parts are followed",
    "source.stopped": "mend what is named, then restart the server",
    "source.waiting": "nothing, if the upstream comes back; else look at its address and network",
    "stream.gap": "`logweir verify` of this server; the follower connects again by itself",
    "topic.malformed": "delete what is no bundle from the space of the topic",
    "synapse.gap": "`logweir gaps` lists what is lost",
    "web.look_failed": "a fault of logweir's: report it with the log's lines around it",
    "synapse.waits": "start the homeserver's HTTP replication listener, or mend its address",
}
_OTHERS: Final = "look at the lines of the log around it"


class RecentErrors(logging.Handler):
    """See the module's text. `begin` and `end` say from when until when it listens."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: dict[tuple[str, str, str], dict[str, Any]] = {}

    def begin(self) -> None:
        """Take what is logged from now on."""
        logging.getLogger("logweir").addHandler(self)

    def end(self) -> None:
        """Take nothing more."""
        logging.getLogger("logweir").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`, which holds the lock meanwhile."""
        fields: dict[str, object] = getattr(record, "fields", {})
        event = str(getattr(record, "event", None) or record.getMessage())
        where, why = (_first(fields, names) for names in (_WHERE, _WHY))
        key = event[:RECENT_TEXT_CHARACTERS], where, why
        before = self._found.pop(key, None)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        self._found[key] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": key[0],
            "where": where,
            "why": why,
            "hint": _first(fields, ("hint",)) or _HINTS.get(event, _OTHERS),
            "times": 1 + (before["times"] if before else 0),
        }
        if len(self._found) > RECENT_ERRORS:
            del self._found[next(iter(self._found))]

    def status(self) -> list[dict[str, Any]]:
        """What is kept, the newest first."""
        self.acquire()
        try:
            return [dict(one) for one in reversed(self._found.values())]
        finally:
            self.release()


def _first(fields: dict[str, object], names: tuple[str, ...]) -> str:
    """The first of these fields that says something; of a traceback its last line."""
    for name in names:
        if text := str(fields.get(name, "")).strip():
            shown = text.splitlines()[-1] if name == "exception" else text
            return shown[:RECENT_TEXT_CHARACTERS]
    return ""
