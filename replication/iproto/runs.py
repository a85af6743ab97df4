"""Runs of pipelined INSERT or REPLACE requests, handled as columns instead of objects.

`take_run` finds the run that comes first (its form is in `kernel`); its tuples stand
one behind the other in `packed`, tuple i from bounds[i] to bounds[i + 1]. `answers` makes the bytes
of all answers, which hold the tuples again. A short run between other requests is not worth it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from logweir.replication.iproto import kernel

__all__ = ["StoreRun", "take_run"]

RUN_MIN: Final = 4
"""Shorter runs are left to the ordinary way."""

_SMALLEST_BYTES: Final = 13  # of a request of a run: 1 length, 5 header, 5 body, 2 tuple
_CAPACITY_MAX: Final = 65_536
_ZERO: Final = array("Q", (0,))


@dataclass(slots=True)
class StoreRun:
    """One run. `type`: 2 INSERT or 3 REPLACE; `schema_version`: 0 is any; `stop`: where it ends."""

    type: int
    space_id: int
    schema_version: int
    count: int
    stop: int
    packed: bytes
    _table: array[int]
    _capacity: int

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return len(self.packed) + 16 * self.count

    @property
    def bounds(self) -> array[int]:
        """Boundaries of the tuples in `packed`: one more than there are requests."""
        first = kernel.RUN_HEAD + self._capacity
        return self._table[first : first + self.count + 1]

    def sync(self, number: int) -> int:
        """The sync of one request."""
        return self._table[kernel.RUN_HEAD + number]

    def tuple_bytes(self, number: int) -> bytes:
        """The tuple of one request."""
        first = kernel.RUN_HEAD + self._capacity + number
        return self.packed[self._table[first] : self._table[first + 1]]

    def answers(self, schema_version: int) -> bytes:
        """The answers to all requests, as `codec.encode_answer` makes them."""
        out = bytearray(len(self.packed) + kernel.ANSWER_BYTES * self.count)
        size = kernel.answers(
            self._table, self._capacity, self.count, self.packed, schema_version & 0xFFFFFFFF, out
        )
        assert size == len(out)
        return bytes(out)


def take_run(data: bytes, at: int = 0) -> StoreRun | None:
    """The run that begins at `at`, None where there is none of at least `RUN_MIN` requests."""
    capacity = min((len(data) - at) // _SMALLEST_BYTES + 1, _CAPACITY_MAX)
    if capacity == 1:
        return None
    table = _ZERO * (kernel.RUN_HEAD + 2 * capacity + 1)
    out = bytearray(len(data) - at)
    count = kernel.take_run(data, at, table, capacity, out)
    kind, space_id, version, stop, size = table[: kernel.RUN_HEAD]
    if count < RUN_MIN:
        return None
    packed = bytes(memoryview(out)[:size])
    return StoreRun(kind, space_id, version, count, stop, packed, table, capacity)
