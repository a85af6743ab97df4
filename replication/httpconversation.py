"""One connection of a client that asks over HTTP: its requests answered one by one, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from logweir.replication.httpsession import JSON, HttpSession, Request
from logweir.replication.link import Link

PAGES: Final = frozenset(("metrics", "web"))
"""Schemes of the addresses that are no protocol's: for the log and the status only."""


class Answer(NamedTuple):
    """What is answered: a status, and a body of some type."""

    status: int
    body: bytes
    content_type: str = JSON


class HttpConversation:
    """See the module's text. `respond`: the answer to a request, None if it has been given to
    the session itself."""

    def __init__(self, link: Link, respond: Callable[[Request], Awaitable[Answer | None]]) -> None:
        self.session = HttpSession(link.time())
        self._link = link
        self._respond = respond
        self._waiting: deque[Request] = deque()
        self._is_answering = False

    def handle(self, events: Sequence[Request]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self._waiting.extend(events)
        if not self._is_answering:
            self._is_answering = True
            self._link.hold_reading()
            self._link.spawn(self._answer())

    async def _answer(self) -> None:
        """Answer what waits, and what came behind it; after each the others have their turn.
        Nothing is read meanwhile."""
        try:
            while self._waiting and self._link.is_open:
                found = await self._respond(self._waiting.popleft())
                if found is not None:
                    self.session.answer(*found)
                self._link.flush()
                await self._link.drained()
                if not self._waiting:
                    self._link.take(0, b"")
        finally:
            self._is_answering = False
            self._link.resume_reading()

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
