"""What a Tank broker says of itself: how it is, and what each partition holds."""

from __future__ import annotations

import asyncio
from typing import Any

from logweir.replication.tank.client import Client
from logweir.replication.tank.client.connection import refused
from logweir.replication.tank.wire.address import part_of
from logweir.replication.tank.wire.messages import PartitionState, PublishResult
from logweir.replication.urls import Url


async def fetch_status(url: Url) -> dict[str, Any]:
    """The status of the broker at `url`, in plain values; of the topic and the partition that the
    address names only. Raises `Unreachable`, `RemoteProtocolError`; `PeerRefused` if there is no
    such topic or partition, `ConfigError` if what is named is none."""
    named, partition = part_of(url)
    async with Client(url) as client:
        told = await client.status()
        known = await client.topics()
        if named:
            states = await client.partitions(named)  # raises if there is no such topic
            if partition is not None and partition >= len(states):
                what = f"partition {named}/{partition}"
                raise refused(what, PublishResult.UNKNOWN_PARTITION)
        topics = [one for one in known if named in ("", one[0])]
        connection = await client.connection()
        answers = await asyncio.gather(*(connection.partitions(name) for name, _, _ in topics))
    return {
        "url": str(url),
        "version": f"{told.version // 100}.{told.version % 100}",
        "start_time": told.start_time,
        "opening_ms": told.opening_ms,
        "partitions": told.partitions,
        "open_partitions": told.open_partitions,
        "topics": [
            _row(name, number, state, is_enabled=is_enabled)
            for (name, is_enabled, _), answer in zip(topics, answers, strict=True)
            for number, state in enumerate(answer.partitions)
            if partition in (None, number)
        ],
    }


def _row(topic: str, partition: int, state: PartitionState, *, is_enabled: bool) -> dict[str, Any]:
    problem = "" if state.reason is None else state.reason.name.lower().replace("_", " ")
    return {
        "topic": topic,
        "partition": partition,
        "first": state.first,
        "last": state.last,
        "enabled": is_enabled,
        "problem": problem,
    }
