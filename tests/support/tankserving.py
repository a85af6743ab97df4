"""Topics on a port, and sources that follow them, for tests of Tank."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.loops import until

import logweir
from interop.tankmodel import DATA
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Runner, Timing
from logweir.replication.service.names import Names
from logweir.replication.tank.follow.source import TankSource
from logweir.replication.tank.serve.endpoint import TankService, TopicStore
from logweir.replication.topic.bundle import Message, decode_bundle, encode_bundle, split_chunk
from logweir.replication.topic.groups import Leases
from logweir.replication.topic.spaces import topics_of
from logweir.replication.topic.store import StoredTopics
from logweir.replication.urls import Url


def ordinary(*contents: bytes) -> bytes:
    """An ordinary bundle."""
    return encode_bundle([Message(0, 5, None, each) for each in contents])


def other(number: int, content: bytes = b"y") -> tuple[int, int, int, int, bytes]:
    """A bundle of one message in partition 0 as another client writes it."""
    return 0, number, number, 0, ordinary(content)


FOLDER = DATA / "data"

SERVICES: dict[Url, TankService] = {}


async def somebody_waits(url: Url) -> None:
    """Until a fetch waits at that server."""
    await until(lambda: len(SERVICES[url].waiters))


@asynccontextmanager
async def listening(topics: TopicStore) -> AsyncIterator[Url]:
    """Any topics on a free port."""
    metrics = Metrics()
    listener = Listener(metrics=metrics)
    service = TankService(topics, metrics=metrics)
    url = await listener.listen(parse_listen_url("tank://127.0.0.1:0"), service)
    SERVICES[url] = service
    try:
        yield url
    finally:
        del SERVICES[url]
        await listener.close()


@asynccontextmanager
async def following(
    log: logweir.Log, url: str, names: Names | None = None
) -> AsyncIterator[Runner]:
    """A source that runs; its state is in the runner."""
    timing = Timing(first_seconds=0.02, max_seconds=0.05)
    runner = Runner(
        TankSource(parse_url(url), log, names=names, fetch_bytes=200, wait_ms=500),
        metrics=Metrics(),
        timing=timing,
    )
    task = asyncio.ensure_future(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def contents(log: logweir.Log, topic: str, partition: int = 0) -> list[int]:
    """First numbers of the bundles that are here."""
    if topic not in topics_of(log):
        return []
    return [int(str(row[1])) for row in log.select(topic, [partition])]


@asynccontextmanager
async def opened(log: logweir.Log, **options: Any) -> AsyncIterator[StoredTopics]:
    """A store's topics. `options`: see `StoredTopics`."""
    topics = StoredTopics(log, **options)
    try:
        yield topics
    finally:
        await topics.close()


@asynccontextmanager
async def served(
    log: logweir.Log,
    *,
    read_only: bool = False,
    upkeep_seconds: float = 1.0,
    leases: Leases | None = None,
) -> AsyncIterator[Url]:
    """A store's topics on a free port."""
    options = {"read_only": read_only, "upkeep_seconds": upkeep_seconds, "leases": leases}
    async with opened(log, **options) as topics, listening(topics) as url:
        yield url


def decode_chunk(chunk: bytes, base: int) -> list[Message]:
    """All messages of the whole bundles of a chunk whose first one, if ordinary, begins at `base`.

    Numbers run on from bundle to bundle; a sparse one sets them anew.
    """
    out: list[Message] = []
    for bundle in split_chunk(chunk)[0]:
        messages = decode_bundle(bundle, base)
        base = messages[-1].number + 1
        out += messages
    return out
