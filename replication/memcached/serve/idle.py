"""Clients that ask for nothing: their connections are closed, if the listener's address says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Set

from logweir.replication.link import Link


class IdleClients:
    """`seconds`: how long a client may say nothing, 0: as long as it likes; `links`: the clients;
    `served`: those for whom something goes on all the same."""

    def __init__(
        self, seconds: float, links: Collection[Link], served: Callable[[], Set[Link]]
    ) -> None:
        self._seconds = seconds
        self._links = links
        self._served = served
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """A client has come."""
        if self._seconds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        loop, served = asyncio.get_running_loop(), self._served()
        now = soonest = loop.time()
        for link in tuple(self._links):
            left = link.last_received + self._seconds - now
            if left <= 0 and link not in served and not link.unsent_bytes:
                link.close(f"the client asked for nothing for {self._seconds:g} seconds")
            elif left > 0:
                soonest = now + left if soonest == now else min(soonest, now + left)
        if self._links:
            self._timer = loop.call_at(max(soonest, now + self._seconds / 8), self._look)
