"""How long answers with bundles take to be sent, for the metric that a Tank broker has of it.

An answer is sent when the socket has taken the last byte of it, at once in most cases. What is left
in this process is looked at again when the next bound of the histogram has passed, so a count
stands where it belongs, and a time is at most one bound too long.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from logweir.replication.link import Link
from logweir.replication.metrics import LATENCY_BOUNDS_MS, Latencies


class Sending:
    """The answers of one connection that are on their way."""

    def __init__(self, link: Link, latencies: Latencies) -> None:
        self._link = link
        self._latencies = latencies
        self._left: deque[tuple[int, float, Sequence[str]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, topics: Sequence[str], began: float) -> None:
        """Send an answer with bundles of `topics`, which was asked for at `began`."""
        link = self._link
        link.flush()
        if self._left or link.unsent_bytes:
            self._left.append((link.sent_bytes, began, topics))
            if self._timer is None:
                self._look()
        else:
            self._latencies.took(topics, 1000 * (link.time() - began))

    def _look(self) -> None:
        """Count what was sent by now, and come back for the rest."""
        link, left, now = self._link, self._left, self._link.time()
        taken = link.sent_bytes - link.unsent_bytes
        while left and left[0][0] <= taken:
            _, began, topics = left.popleft()
            self._latencies.took(topics, 1000 * (now - began))
        self._timer = None
        if left:
            since_ms = 1000 * (now - left[0][1])
            index = bisect_right(LATENCY_BOUNDS_MS, since_ms)
            is_late = index == len(LATENCY_BOUNDS_MS)
            wait_ms = since_ms if is_late else LATENCY_BOUNDS_MS[index] - since_ms
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._look)

    def end(self) -> None:
        """The connection is gone; what was on its way was not sent."""
        self._left.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
