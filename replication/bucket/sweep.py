"""Removing what has expired in buckets without that anybody asks for it.

All buckets of the store are walked over, `limits.TAP_SWEEP_ITEMS` items at a time in a read view of
its own, so that nothing waits for it; what is found expired is removed by a change, which looks
again. Its removal is a row of the log like any other.

A walk begins when what expires next, of all that the last one has seen, does, but `_LEAST_SECONDS`
and `_IDLE_SHARE` times the length of the last one after its end, and `pause_seconds` after it at
the latest. So what expires is removed within `pause_seconds` and the time of a walk.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from logweir.errors import LogweirError
from logweir.limits import BACKFILL_CHUNK_BYTES, TAP_SWEEP_ITEMS, TAP_SWEEP_SECONDS
from logweir.replication.bucket import kernel
from logweir.replication.bucket.change import LOOK
from logweir.replication.bucket.item import Item, unpack_item
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems, ViewItems
from logweir.replication.logs import get_logger
from logweir.replication.service.shared import Shared
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job

_log = get_logger("logweir.replication.bucket")
_JOB_BYTES: Final = 512
_LEAST_SECONDS: Final = 1.0
_IDLE_SHARE: Final = 20
"""A pause is at least so many times as long as the walk before it."""


def removal(bucket: Bucket, keys: list[tuple[bytes, int]], clock: Callable[[], float]) -> Job:
    """The change that removes those of some items, named by key and vbucket, that are expired."""

    def apply(group: Group) -> None:
        items = GroupItems(bucket, group, clock())
        for key, vbucket in keys:
            items.change(LOOK, Item(key, vbucket))

    return Job(apply, _JOB_BYTES * len(keys))


def remove(shared: Shared, bucket: Bucket, keys: list[tuple[bytes, int]]) -> None:
    """Have the items removed that were found expired."""
    shared.submit(removal(bucket, keys, shared.options.clock), _report)


def _report(job: Job) -> None:
    if job.error is not None:
        _log.warning("bucket.removal_failed", error=str(job.error))


class Sweeper:
    """Walks until it is closed. `pause_seconds`: the longest pause, 0: never; `pause`: waits so
    many seconds."""

    def __init__(
        self,
        shared: Shared,
        buckets: Buckets,
        pause_seconds: float = TAP_SWEEP_SECONDS,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._shared = shared
        self._buckets = buckets
        self._pause_seconds = pause_seconds
        self._pause = pause
        self._next_expiry = math.inf
        self._task: asyncio.Task[None] | None = None
        if pause_seconds and not shared.options.read_only:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Stop walking."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        walked_seconds = 0.0
        while True:
            next_seconds = self._next_expiry - self._shared.options.clock()
            least_seconds = max(_LEAST_SECONDS, _IDLE_SHARE * walked_seconds)
            await self._pause(min(max(next_seconds, least_seconds), self._pause_seconds))
            began, self._next_expiry = loop.time(), math.inf
            for bucket in self._buckets.all():
                try:
                    await self.walk(bucket)
                except LogweirError as error:
                    _log.warning("bucket.sweep_failed", bucket=bucket.name, error=str(error))
            walked_seconds = loop.time() - began

    async def walk(self, bucket: Bucket) -> int:
        """Walk over one bucket once. Returns how many expired items were found."""
        after: bytes | None = None
        found = 0
        is_whole = False
        while not is_whole:
            expired, after, is_whole = self._look(bucket, after)
            if expired:
                found += len(expired)
                await self._shared.run(removal(bucket, expired, self._shared.options.clock))
            await asyncio.sleep(0)
        return found

    def _look(
        self, bucket: Bucket, after: bytes | None
    ) -> tuple[list[tuple[bytes, int]], bytes | None, bool]:
        """The expired ones among the next items, where to go on, and whether that was all."""
        now = self._shared.options.clock()
        with self._shared.log.read_view() as view:
            if view.engine.schema.get(bucket.space_id) is None:
                return [], None, True  # it was dropped
            items = ViewItems(bucket, view)
            tuples, is_whole = items.by_key(after, TAP_SWEEP_ITEMS, BACKFILL_CHUNK_BYTES)
        expired: list[tuple[bytes, int]] = []
        if tuples:
            after = unpack_item(tuples[-1]).key
        for item in map(unpack_item, kernel.dated(tuples)):
            if item.is_expired(now):
                expired.append((item.key, item.vbucket))
            elif item.expiry:
                self._next_expiry = min(self._next_expiry, item.expiry)
        return expired, after, is_whole
