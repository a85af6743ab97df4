"""Rows of the log, and tuples of a bucket, as the frames of a change stream, many at a time.

The bytes are those that `stream.Outgoing.row` makes of the same changes one by one. What is odd
(`pushkernel`) is left to that. `Names` says of which buckets a stream is, `Choice` what of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.limits import VCLOCK_COMPONENTS
from logweir.replication.bucket.feed import vbucket_table
from logweir.replication.bucket.item import VBUCKETS, Item
from logweir.replication.greenstack.wire import pushkernel as kernel
from logweir.replication.greenstack.wire.codec import FlexKey
from logweir.store.schema.bulk import interpret_calls

interpret_calls(kernel)

_ROOM_BYTES: Final = 2 * 1024 * 1024
_EVERY: Final = vbucket_table(None)
_rooms: Final[list[bytearray]] = []
"""Buffers to be used again: memory that is new costs more than what is done in it."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Frames. `at`: the byte of the block, or the number of the tuple, that is next; `count`: how
    many frames; `how`: why no more was written, see `pushkernel`: all is done, there was no room or
    credit, or what is next is odd."""

    data: bytes
    at: int
    count: int
    how: int


class Choice:
    """What of its buckets a stream is given: items whose keys begin with `prefix`, of `vbuckets`,
    () for all. `keys_only`: without their values; `wanted`: one byte for each vbucket."""

    __slots__ = ("keys_only", "prefix", "wanted")

    def __init__(
        self, prefix: bytes = b"", vbuckets: Sequence[int] = (), *, keys_only: bool = False
    ) -> None:
        self.prefix = prefix
        self.keys_only = keys_only
        self.wanted = vbucket_table(vbuckets) if vbuckets else _EVERY

    @property
    def is_all(self) -> bool:
        """Whether no item is left out."""
        return not self.prefix and self.wanted is _EVERY

    def has(self, item: Item, *, is_placed: bool = True) -> bool:
        """Whether an item is given. `is_placed`: its vbucket is known; else it may be any."""
        is_in = not is_placed or item.vbucket >= VBUCKETS or self.wanted[item.vbucket]
        return bool(is_in) and item.key.startswith(self.prefix)

    def vbuckets(self, known: Iterable[int]) -> Sequence[int]:
        """Those of the known ones that are wanted."""
        return [number for number in known if number >= VBUCKETS or self.wanted[number]]


class Names:
    """The buckets of a stream. `buckets`: name by the id of its space."""

    __slots__ = ("bounds", "entries", "spaces")

    def __init__(self, buckets: Mapping[int, str]) -> None:
        self.spaces = array("Q", sorted(buckets))
        self.bounds = array("Q", (0,))
        entries = bytearray()
        for space_id in self.spaces:
            entries += entry(FlexKey.BUCKET, buckets[space_id].encode())
            self.bounds.append(len(entries))
        self.entries = bytes(entries)


def entry(key: FlexKey, value: bytes) -> bytes:
    """One flex entry."""
    return key.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value


def lsns_of(reached: Iterable[tuple[int, int]]) -> array[int]:
    """The lsns of a vclock's items by replica id."""
    lsns = array("Q", bytes(8 * VCLOCK_COMPONENTS))
    for replica_id, lsn in reached:
        lsns[replica_id] = lsn
    return lsns


class Pushes:
    """The rows of several blocks, or the tuples of one bucket, as frames, one after the other.

    `lsns`: what was had already, by replica id, raised by what is taken, for `take_from`; `choice`:
    of what is in them; `front`: the flex entries before that of the vbucket; `opaque`: of the first
    frame. No transaction is begun once `limit_bytes` are written. A `wal.reader.Taker`.
    """

    counts_all: Final = False

    def __init__(
        self,
        lsns: array[int],
        names: Names,
        choice: Choice,
        front: bytes,
        opaque: int,
        limit_bytes: int,
    ) -> None:
        self.lsns = lsns
        self._begun = lsns[:]
        self._names = names
        self._choice = choice
        self._front = front
        self._limit_bytes = limit_bytes
        self._numbers = array("Q", (0, 0, opaque, 0))
        self._out = _rooms.pop() if _rooms else bytearray(_ROOM_BYTES)
        self.written_bytes = 0
        """How many bytes of frames there are."""

    def begin(self, lsns: array[int]) -> None:
        self.lsns[:] = lsns
        self._begun = lsns[:]

    def last_lsns(self) -> dict[int, int]:
        """The highest lsn of each replica id in what was taken, of rows that were not had."""
        both = enumerate(zip(self.lsns, self._begun, strict=True))
        return {replica_id: lsn for replica_id, (lsn, had) in both if lsn > had}

    def add(self, data: bytes) -> bool:
        """Take the rows of a block, all or, if it cannot, none: see `wal.reader.Taker`."""
        lsns, numbers = self.lsns[:], self._numbers[:]
        numbers[kernel.AT] = 0
        if not data or self._run(data, lsns, numbers) != kernel.DONE:
            return False
        self.lsns[:], self._numbers = lsns, numbers
        self.written_bytes = numbers[kernel.BYTES]
        return True

    def take_from(self, data: bytes, at: int) -> Pushed:
        """Take the rows of a block from byte `at` on, which begins a transaction, as long as there
        is room. Returns all that was taken; nothing can be added any more."""
        self._numbers[kernel.AT] = at
        return self.take(self._run(data, self.lsns, self._numbers))

    def take_documents(self, tuples: list[bytes], first: int, wanted: bytes, now: float) -> Pushed:
        """Take the tuples of a bucket from number `first` on, as documents of a snapshot, as long
        as there is room. `wanted`: one byte for each vbucket, 0 if its items are left out, as those
        are that are expired at `now`, in Unix seconds. Returns as `take_from`."""
        self._numbers[kernel.AT] = first
        numbers, out, limit = self._numbers, self._out, self._limit_bytes
        chosen = wanted, self._choice.prefix, self._choice.keys_only, int(now), self._names.entries
        return self.take(kernel.documents(tuples, *chosen, self._front, limit, numbers, out))

    def take(self, how: int = kernel.DONE) -> Pushed:
        """All that was taken. Nothing can be added any more."""
        numbers = self._numbers
        data = bytes(memoryview(self._out)[: numbers[kernel.BYTES]])
        _rooms.append(self._out)
        return Pushed(data, numbers[kernel.AT], numbers[kernel.FRAMES], how)

    def _run(self, data: bytes, lsns: array[int], numbers: array[int]) -> int:
        names, choice = self._names, self._choice
        how: int = kernel.pushes(
            data,
            lsns,
            names.spaces,
            names.bounds,
            names.entries,
            choice.wanted,
            choice.prefix,
            choice.keys_only,
            self._front,
            self._limit_bytes,
            numbers,
            self._out,
        )
        return how
