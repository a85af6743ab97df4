"""What a Greenstack server says of itself: its name, what it can do, and its buckets."""

from __future__ import annotations

from typing import Any

from logweir.replication.greenstack.client import Client
from logweir.replication.greenstack.wire.messages import Feature
from logweir.replication.urls import Url


async def fetch_status(url: Url) -> dict[str, Any]:
    """The status of the server at `url`, in plain values. Raises `Unreachable`, `PeerRefused`,
    `RemoteProtocolError`."""
    async with Client(url) as client:
        connection = await client.connection()
        names = {feature.value: feature.name.lower() for feature in Feature}
        return {
            "url": str(url),
            "server": connection.agent,
            "features": [names[number] for number in sorted(connection.features)],
            "buckets": [{"bucket": name} for name in await client.buckets()],
        }
