"""What a memcached or TAP server says of itself: STAT."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from logweir.replication.memcached.client import TapClient
from logweir.replication.urls import Url

_GROUPS: Final = ("", "settings", "items", "vbucket", "tap")
"""What is asked for, the first one unnamed. A group that a server has not is left out: Debian's
memcached, observed, has neither of the last two."""


async def fetch_status(url: Url) -> dict[str, Any]:
    """The status of the server at `url`, in the bucket that it names, in plain values.

    Raises `Unreachable`, `RemoteProtocolError`; `SourceStopped` if the server refuses.
    """
    return await asyncio.to_thread(_ask, url)


def _ask(url: Url) -> dict[str, Any]:
    with TapClient(url) as client:
        told = {group: client.statistics(group) for group in _GROUPS}
    return {
        "url": str(url),
        "version": told[""].get("version", ""),
        "statistics": [
            {"group": group, "name": name, "value": value}
            for group, statistics in told.items()
            for name, value in statistics.items()
        ],
    }
