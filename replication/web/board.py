"""What a server's pages are told: a look each second, made once for all of them.

Each look is one event of a stream of server-sent events (the HTML standard, section 9.2). A page
that is slow skips events: it gets the newest one when it has taken what it was sent, and nothing is
kept for it. A look costs at most a twentieth of a processor's time: those of a large store are
farther apart.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from logweir.errors import LogweirError
from logweir.limits import RECENT_TEXT_CHARACTERS, WEB_ITEMS, WEB_SECONDS, WEB_SPACES_SECONDS
from logweir.replication.logs import get_logger
from logweir.replication.service.rates import rates_of
from logweir.replication.web.history import History, sample_of

_SHARE: Final = 20
_EXACT: Final = 2**53
"""Beyond it a browser's numbers are not whole."""

_log = get_logger("logweir.replication")


class Board:
    """See the module's text. `look`: the status of the server without its spaces; `count_spaces`:
    these. Both are called in a thread beside the loop."""

    def __init__(
        self, look: Callable[[], dict[str, Any]], count_spaces: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self._look = look
        self._count_spaces = count_spaces
        self._history = History()
        self._before: tuple[dict[str, Any], float] | None = None
        self._spaces: list[dict[str, Any]] = []
        self._number = 0
        self._event = b""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled."""
        await asyncio.gather(
            self._again_and_again(self._look, self._note, WEB_SECONDS),
            self._again_and_again(self._count_spaces, self._note_spaces, WEB_SPACES_SECONDS),
        )

    async def _again_and_again(
        self, work: Callable[[], Any], note: Callable[[Any], None], every_seconds: float
    ) -> None:
        while True:
            began = time.monotonic()
            try:
                note(await asyncio.to_thread(work))
            except Exception as error:  # the outermost place: the next look may be a good one
                if not isinstance(error, LogweirError | OSError):
                    _log.error("web.look_failed", exc_info=error)
                self._tell({"failed": str(error) or type(error).__name__})
            took = time.monotonic() - began
            await asyncio.sleep(max(every_seconds - took, _SHARE * took))

    def _note_spaces(self, spaces: list[dict[str, Any]]) -> None:
        self._spaces = spaces

    def _note(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        rates: Mapping[str, float] = {}
        if self._before is not None:
            before, at = self._before
            rates = rates_of(before, status, now - at)
        self._before = status, now
        moment = round(time.time(), 3)
        sample = sample_of(status, rates)
        self._history.add(moment, sample)
        self._tell({"time": moment, "status": {**status, "spaces": self._spaces}, "sample": sample})

    def _tell(self, told: Mapping[str, Any]) -> None:
        self._number += 1
        self._event = _event("look", bounded(told))
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """What one page is told from now on: first the numbers of the last looks, then the newest
        look each time."""
        yield b"retry: 1000\n" + _event("history", self._history.told()) + self._event
        seen = self._number
        while True:
            if self._number == seen:
                await self._changed.wait()
            seen = self._number
            yield self._event


def _event(name: str, told: Any) -> bytes:
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")


def bounded(value: Any, items: int = WEB_ITEMS) -> Any:
    """A plain value as a page may be told it: long texts are cut, of a list or map there are the
    first `items`, numbers that a browser does not have are text or None, keys are text."""
    if isinstance(value, str):
        most = RECENT_TEXT_CHARACTERS
        return value if len(value) <= most else value[:most] + "…"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:items]
        return {bounded(str(name)): bounded(one) for name, one in pairs}
    if isinstance(value, list | tuple):
        return [bounded(one) for one in value[:items]]
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
