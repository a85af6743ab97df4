"""Values that are kept in memory for a while, of all databases of one listener together.

What does not fit any more makes way in the order of its last use. Nothing of it is in the store: a
restart forgets it, as a Redis without files does.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from logweir.limits import REDIS_CACHE_BYTES

_ENTRY_BYTES: Final = 200  # what one costs beside its bytes, about

Key = tuple[int, bytes]
"""Of a database."""


class Cache:
    """See the module's text. Times are seconds of the caller's clock."""

    def __init__(self, limit_bytes: int = REDIS_CACHE_BYTES) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[Key, tuple[bytes, float]] = OrderedDict()

    def get(self, key: Key, now: float) -> bytes | None:
        """A value; None if there is none any more."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= now:
            self.remove(key)
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: bytes, ends_at: float) -> None:
        """Keep a value until then."""
        self.remove(key)
        self._entries[key] = (value, ends_at)
        self.size_bytes += _size(key, value)
        while self.size_bytes > self._limit_bytes:
            self.remove(next(iter(self._entries)))

    def remove(self, key: Key) -> None:
        """Forget a value, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= _size(key, entry[0])


def _size(key: Key, value: bytes) -> int:
    return len(key[1]) + len(value) + _ENTRY_BYTES
