"""Bundles of partitions as sessions ask for them: read from a view, and kept for a while, since
many consumers read the same."""

from __future__ import annotations

from dataclasses import dataclass

from logweir.errors import LogweirError
from logweir.limits import TANK_READ_AHEAD_BYTES
from logweir.replication.logs import SparingLog, get_logger
from logweir.replication.topic import kernel
from logweir.replication.topic.partition import Chunk
from logweir.replication.topic.spaces import TopicDef, tuples_from
from logweir.store import Log

ReadKey = tuple[str, int, int, int]
"""Topic, partition, the number to begin at, and the most bytes."""


@dataclass(frozen=True, slots=True)
class ReadBundles:
    """Bundles that were read. `next`: first number of the bundle after them that did not fit, 0
    if there was none; `last`: last number of the partition then."""

    chunk: Chunk
    next: int
    last: int

    @property
    def is_full(self) -> bool:
        """Whether later bundles would not change it."""
        return self.next > 0

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, about."""
        return self.chunk.size_bytes + 1024

    @property
    def next_is_wanted(self) -> bool:
        """Whether what is after it may be read before somebody asks for it."""
        return self.is_full and self.chunk.size_bytes <= TANK_READ_AHEAD_BYTES // 2


class ReadAhead:
    """What was read of topics of one store, `limits.TANK_READ_AHEAD_BYTES` in all, about. Tuples
    that others have written into a topic's space and no consumer could read are passed over, and
    told in the log sparingly."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ahead: dict[ReadKey, ReadBundles] = {}  # the oldest first
        self._ahead_bytes = 0
        self._sparing = SparingLog(get_logger("logweir.replication.tank"))

    def __contains__(self, key: ReadKey) -> bool:
        return key in self._ahead

    def take(
        self, topic: TopicDef, partition: int, start: int, limit_bytes: int, last: int
    ) -> ReadBundles:
        """What was read before, if it still is all there is, or `read`. `last`: the partition's
        last number now. Raises `LogweirError` if the first bundle cannot be read."""
        key = (topic.name, partition, start, limit_bytes)
        found = self._ahead.pop(key, None)
        if found is not None:
            self._ahead_bytes -= found.kept_bytes
        if found is None or not (found.is_full or found.last == last):
            return self.read(topic, partition, start, limit_bytes, last)
        self._keep(key, found)
        return found

    def read(
        self, topic: TopicDef, partition: int, start: int, limit_bytes: int, last: int
    ) -> ReadBundles:
        """Read, and keep what was read; see `take`."""
        found = self._read(topic, partition, start, limit_bytes, last)
        self._keep((topic.name, partition, start, limit_bytes), found)
        return found

    def forget(self) -> None:
        """Topics have changed: keep nothing of what was read."""
        self._ahead.clear()
        self._ahead_bytes = 0

    def _keep(self, key: ReadKey, found: ReadBundles) -> None:
        """Keep what was read, and of what was read before only so much as the limit allows."""
        self._ahead[key] = found
        self._ahead_bytes += found.kept_bytes
        while self._ahead_bytes > TANK_READ_AHEAD_BYTES:
            self._ahead_bytes -= self._ahead.pop(next(iter(self._ahead))).kept_bytes

    def _read(
        self, topic: TopicDef, partition: int, start: int, limit_bytes: int, last: int
    ) -> ReadBundles:
        out: list[bytes | memoryview] = []
        base = size = following = unreadable = 0
        is_sparse = is_over = False
        with self._log.read_view() as view:
            found = tuples_from(view.engine, topic.space_id, partition, start)
            while not is_over:
                try:
                    count, data = next(found)
                except StopIteration:
                    break
                except LogweirError:
                    if size:
                        break  # who asks for what is after is told
                    raise
                size, following, is_over, left_out, first, sparse = kernel.chunk(
                    data, count, partition, last, size, limit_bytes, out
                )
                if first and not base:
                    base, is_sparse = first, sparse
                unreadable += left_out
        if unreadable:
            self._sparing.warning(
                "topic.malformed", topic=topic.name, partition=partition, tuples=unreadable
            )
        return ReadBundles(Chunk(base, is_sparse, out, size), following, last)
