"""Keeping topics within their limits while they are served: retention and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from logweir.errors import LogweirError
from logweir.replication.logs import get_logger
from logweir.replication.topic.config import TopicConfig
from logweir.replication.topic.partition import Extent
from logweir.replication.topic.spaces import TopicDef
from logweir.replication.topic.trimming import Held, compact, partition_bytes, retain
from logweir.store import Log

_log = get_logger("logweir.replication.tank")


ANEW_SECONDS: Final = 600.0
"""How often what a topic holds is read anew, in case that others have changed bundles of it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """How a partition was when it was compacted last."""

    config: TopicConfig
    written_bytes: int
    size_bytes: int


@dataclass(slots=True)
class _Retained:
    """How a topic was when its limits were applied last. `changes`: of its space, before that;
    `until`: when `held` is made anew, by the loop's clock."""

    topic: TopicDef
    until: float
    changes: int = -1
    held: Held = field(default_factory=Held)


class Upkeep:
    """Looks at every topic that has limits each `seconds`, until it is closed.

    `topics`: those that there are; `extent`: see `TopicReader`; `shortened`: told when bundles were
    removed. To be made inside of a running event loop.
    """

    def __init__(
        self,
        log: Log,
        seconds: float,
        topics: Callable[[], Iterable[TopicDef]],
        extent: Callable[[str, int], Extent | None],
        shortened: Callable[[], None],
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._topics = topics
        self._extent = extent
        self._shortened = shortened
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._retained: dict[str, _Retained] = {}
        self._task = asyncio.get_running_loop().create_task(self._keep_up())

    def close(self) -> asyncio.Task[None]:
        """End it. What is under way in a thread is to be awaited."""
        self._task.cancel()
        return self._task

    async def _keep_up(self) -> None:
        """Keep every topic within its limits, as long as the topics are open."""
        while True:
            await asyncio.sleep(self._seconds)
            for topic in self._topics():
                if topic.config.keeps_everything:
                    continue
                try:
                    if topic.config.compact:
                        for partition in range(topic.partitions):
                            await self._compact(topic, partition)
                    else:
                        await self._retain(topic)
                except LogweirError as error:
                    _log.error("topic.upkeep_failed", topic=topic.name, error=str(error))

    async def _retain(self, topic: TopicDef) -> None:
        """Apply the limits to a topic that was changed, or may have aged."""
        now = asyncio.get_running_loop().time()
        before = self._retained.get(topic.name)
        if before is None or before.topic != topic or now >= before.until:
            before = self._retained[topic.name] = _Retained(topic, now + ANEW_SECONDS)
        changes = self._log.inner.changes_of(topic.space_id)
        if changes == before.changes and not topic.config.retention_seconds:
            return
        now_ms = int(self._log.inner.now() * 1000)
        gone = await asyncio.to_thread(retain, self._log, topic, now_ms, before.held)
        before.changes = changes  # what came meanwhile is seen the next time
        self._tell(topic, gone)

    async def _compact(self, topic: TopicDef, partition: int) -> None:
        """Compact a partition of which enough is new."""
        extent = self._extent(topic.name, partition)
        if extent is None or not extent.last:
            return
        key = (topic.name, partition)
        before = self._kept.get(key)
        if before is not None and before.config == topic.config:
            new_bytes = extent.written_bytes - before.written_bytes
            share = topic.config.cleanable_ratio
            if new_bytes <= 0 or new_bytes < share * (before.size_bytes + new_bytes):
                return
        gone = await asyncio.to_thread(compact, self._log, topic, partition)
        size = await asyncio.to_thread(partition_bytes, self._log, topic, partition)
        self._kept[key] = _Kept(topic.config, extent.written_bytes, size)
        self._tell(topic, gone)

    def _tell(self, topic: TopicDef, gone: int) -> None:
        if gone:
            self._shortened()
            _log.info("topic.kept_up", topic=topic.name, gone=gone)
