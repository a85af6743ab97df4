"""Who waits for which partition. No I/O, no clock.

A publish looks up those that wait for its partition; nobody polls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from logweir.limits import TANK_AWAITED_PARTITIONS

Waiter = TypeVar("Waiter")
PartitionKey = tuple[str, int]


class WaitIndex(Generic[Waiter]):
    """(topic, partition) → those that wait for it, in the order in which they came."""

    def __init__(self, limit: int = TANK_AWAITED_PARTITIONS) -> None:
        self._limit = limit
        self._size = 0
        self._waiters: dict[PartitionKey, dict[Waiter, None]] = {}

    def __len__(self) -> int:
        return self._size

    def add(self, keys: Iterable[PartitionKey], waiter: Waiter) -> bool:
        """Let `waiter` wait for all of `keys`; False, and nothing done, if it is too many."""
        wanted = set(keys)
        if self._size + len(wanted) > self._limit:
            return False
        for key in wanted:
            self._waiters.setdefault(key, {})[waiter] = None
        self._size += len(wanted)
        return True

    def discard(self, keys: Iterable[PartitionKey], waiter: Waiter) -> None:
        """End a wait that was added with the same keys."""
        for key in set(keys):
            waiters = self._waiters.get(key)
            if waiters is None or waiter not in waiters:
                continue
            del waiters[waiter]
            self._size -= 1
            if not waiters:
                del self._waiters[key]

    def waiters(self, key: PartitionKey) -> tuple[Waiter, ...]:
        """Who waits for one partition."""
        return tuple(self._waiters.get(key, ()))

    def topics(self) -> set[str]:
        """The topics that somebody waits for."""
        return {topic for topic, _ in self._waiters}
