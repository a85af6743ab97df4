"""Keeping topics within their limits while they are served: retention and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from logweir.errors import LogweirError
from logweir.replication.logs import get_logger
from logweir.replication.topic.config import TopicConfig
from logweir.replication.topic.partition import Extent
from logweir.replication.topic.spaces import TopicDef
from logweir.replication.topic.trimming import compact, partition_bytes, retain
from logweir.store import Log

_log = get_logger("logweir.replication.tank")


@dataclass(frozen=True, slots=True)
class _Kept:
    """How a partition was when its limits were applied last."""

    config: TopicConfig
    last: int
    written_bytes: int
    size_bytes: int


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
                for partition in range(topic.partitions):
                    try:
                        await self._keep_up_one(topic, partition)
                    except LogweirError as error:
                        _log.error("topic.upkeep_failed", topic=topic.name, error=str(error))

    async def _keep_up_one(self, topic: TopicDef, partition: int) -> None:
        """Apply the limits to a partition that has grown, or may have aged."""
        extent = self._extent(topic.name, partition)
        if extent is None or not extent.last:
            return
        key = (topic.name, partition)
        before = self._kept.get(key)
        grown = before is None or before.config != topic.config or before.last != extent.last
        if topic.config.compact:
            if before is not None and before.config == topic.config:
                new_bytes = extent.written_bytes - before.written_bytes
                share = topic.config.cleanable_ratio
                grown = new_bytes > 0 and new_bytes >= share * (before.size_bytes + new_bytes)
            if not grown:
                return
            gone = await asyncio.to_thread(compact, self._log, topic, partition)
        elif grown or topic.config.retention_seconds:
            now_ms = int(self._log.inner.now() * 1000)
            gone = await asyncio.to_thread(retain, self._log, topic, partition, now_ms)
        else:
            return
        size = 0
        if topic.config.compact:
            size = await asyncio.to_thread(partition_bytes, self._log, topic, partition)
        self._kept[key] = _Kept(topic.config, extent.last, extent.written_bytes, size)
        if gone:
            self._shortened()
            _log.info("topic.kept_up", topic=topic.name, partition=partition, gone=gone)
