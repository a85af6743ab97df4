"""What a Synapse homeserver, or a server like it, says of itself: its name, and where its streams
stand.

REPLICATE is answered with a POSITION of every stream, and no line says which is the last. So it is
sent again when the first one has come: all have come when one comes a second time. A server that
has none says nothing until its PING.

Source: Synapse 1.12.4, 1.21.2 and 1.66.0, observed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from logweir.errors import ConfigError, RemoteProtocolError, Unreachable
from logweir.limits import SYNAPSE_PING_SECONDS, SYNAPSE_TIMEOUT_SECONDS
from logweir.replication.dialer import dial_with
from logweir.replication.link import Link
from logweir.replication.synapse.client_session import (
    ClientSession,
    Event,
    Greeted,
    dialect_of,
)
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.urls import Url


async def fetch_status(url: Url) -> dict[str, Any]:
    """The status of the server at `url`, in plain values.

    Raises `Unreachable`; `RemoteProtocolError` if it does not say its name as Synapse does;
    `ConfigError` for a scheme other than synapse.
    """
    if url.scheme != "synapse":
        raise ConfigError(
            "WHERE",
            f"{url.scheme} does not tell its status",
            hint="ask a server that listens: synapse://HOST:PORT",
        )
    link, asking = await dial_with(url, lambda link: _Asking(url, link))
    try:
        await asking.wait()
    finally:
        link.close("all is told")
        await link.gone
    return {
        "url": str(url),
        "server": asking.session.server,
        "dialect": str(asking.session.dialect or ""),
        "positions": [
            {"stream": stream, "instance": instance, "token": cursor.last}
            for (stream, instance), cursor in asking.survey.cursors.items()
        ],
    }


class _Survey(Tracker):
    """Where streams stand. `is_whole`: a POSITION came a second time."""

    def __init__(self) -> None:
        super().__init__({})
        self.is_whole = asyncio.Event()

    def position(self, stream: str, instance: str, previous: int, token: int) -> None:
        """See `Tracker`."""
        if (stream, instance) in self.cursors:
            self.is_whole.set()
        else:
            super().position(stream, instance, previous, token)


class _Asking:
    """One connection."""

    def __init__(self, url: Url, link: Link) -> None:
        self.survey = _Survey()
        self.session = ClientSession(
            link.time(),
            dialect=dialect_of(url),
            server_name=url.option("server_name"),
            name="logweir-status",
            milliseconds=lambda: time.time_ns() // 1_000_000,
        )
        self._url = url
        self._link = link
        self._greeted = asyncio.Event()
        self._told = asyncio.Event()

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        for event in events:
            if isinstance(event, Greeted):
                self._greeted.set()
                self.session.begin(self.survey, self._link.time())
        if self.survey.cursors and not self._told.is_set():
            self._told.set()
            self.session.begin(self.survey, self._link.time())

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""

    async def wait(self) -> None:
        """Until all is told. Raises as `fetch_status`."""
        if not await self._within(self._greeted, SYNAPSE_TIMEOUT_SECONDS):
            raise self._stranger("no SERVER line came")
        if await self._within(self._told, SYNAPSE_PING_SECONDS) and not await self._within(
            self.survey.is_whole, SYNAPSE_TIMEOUT_SECONDS
        ):
            raise Unreachable(str(self._url), "it does not tell all of its positions")

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Whether it comes about in that time. Raises if the connection ends meanwhile."""
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.wait(
            (waiting, self._link.gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if event.is_set():
            return True
        if self._link.gone.done():
            reason = self._link.gone.result()
            if self.session.server:
                raise Unreachable(str(self._url), reason, hint="see the server's log")
            raise self._stranger(reason)
        return False

    def _stranger(self, reason: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._url}: {reason}", hint="is this a Synapse homeserver?")
