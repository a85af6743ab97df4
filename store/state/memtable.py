"""Memtables: the sorted map of one index of one layer, over which older layers and LMDB lie.

A memtable maps keys to values, both bytes, in the order of the keys as bytes. A value is never
empty: `b""` stands for *gone*, that is, a key which older layers may have and this one takes away.
Of a key that was never put a memtable says nothing (`None`). Its length counts what is gone too.

There are two of them that do the same. That of `memtablekernel.pyx` is compiled: a B+tree in an
arena, which needs no Python object for an entry and which other kernels use without the
interpreter's lock; `mergekernel.pyx` shows several as one.
`PlainMemtable` is the one to compare it with, and stands in where nothing was compiled; `COMPILED`
says which is which, and so does `logweir info`. `Memtable` is the better one that is there.

One thread changes a memtable while no other uses it; one that nobody changes may be read by many.
An iterator whose memtable has changed raises RuntimeError at its next step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

__all__ = [
    "COMPILED",
    "Memtable",
    "PlainMemtable",
    "merged_ascending",
    "merged_descending",
    "plain_merged_ascending",
    "plain_merged_descending",
]

try:
    from logweir.store.state import memtablekernel, mergekernel  # noqa: F401
except ImportError:
    COMPILED = False
else:
    COMPILED = True

Buffer = bytes | bytearray | memoryview
Item = tuple[bytes, bytes]
"""A key and its value."""

_ENTRY_BYTES = 160  # two objects and their places in a dict and a list, about


class PlainMemtable:
    """A memtable of a dict, and a list of its keys that is sorted when order is asked for."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._is_sorted = True
        self._changes = 0
        self.size_bytes = 0
        """Memory held, in bytes; here estimated."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; `b""` if it is gone, None if this memtable says nothing of it."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> bytes | None:
        """Set a value, or with `b""` that the key is gone. Returns what `get` said before."""
        before = self._values.get(key)
        if before is None:
            self._add(key, value)
        else:
            self._values[key] = value
        self._changes += 1
        self.size_bytes += len(value) - len(before or b"")
        return before

    def _add(self, key: bytes, value: bytes) -> None:
        # An interrupt, or no memory, leaves what a reader can walk through: this map may be seen.
        self._is_sorted = self._is_sorted and (not self._keys or self._keys[-1] < key)
        try:
            self._keys.append(key)
            self._values[key] = value
        except BaseException:
            if len(self._keys) > len(self._values):
                self._keys.pop()
            raise
        self.size_bytes += _ENTRY_BYTES + len(key)

    def restore(self, key: bytes, before: bytes | None) -> None:
        """Take a `put` back: `before` is what it returned, None to say nothing of the key."""
        if before is not None:
            self.put(key, before)
        elif key in self._values:
            ordered = self._ordered()
            del ordered[bisect_left(ordered, key)]
            self.size_bytes -= _ENTRY_BYTES + len(key) + len(self._values.pop(key))
            self._changes += 1

    def merge(self, newer: PlainMemtable) -> None:
        """Take over all entries of a newer memtable, which stays as it is."""
        for key, value in list(newer._values.items()):
            self.put(key, value)

    def ascending(self, start: bytes = b"") -> Iterator[Item]:
        """Keys from `start` on, it included, with their values; gone ones have `b""`."""
        keys = self._ordered()
        yield from self._walk(range(bisect_left(keys, start), len(keys)))

    def descending(self, stop: bytes | None = None) -> Iterator[Item]:
        """Keys below `stop`, None: all, from the greatest down; gone ones have `b""`."""
        keys = self._ordered()
        end = len(keys) if stop is None else bisect_left(keys, stop)
        yield from self._walk(range(end - 1, -1, -1))

    def _walk(self, places: range) -> Iterator[Item]:
        changes = self._changes
        for place in places:
            key = self._keys[place]
            yield key, self._values[key]
            if self._changes != changes:
                raise RuntimeError("the memtable was changed while it was read")

    def _ordered(self) -> list[bytes]:
        if not self._is_sorted:
            self._keys.sort()
            self._is_sorted = True
        return self._keys

    def parts(self, rows: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """What is not gone, as lists of up to `rows` ascending keys and of their values."""
        items = (item for item in self.ascending() if item[1])
        while some := list(islice(items, max(rows, 1))):
            yield [key for key, _ in some], [value for _, value in some]

    def gone(self) -> list[bytes]:
        """The keys that are gone, ascending."""
        return [key for key, value in self.ascending() if not value]


def plain_merged_ascending(
    tables: Sequence[PlainMemtable], start: bytes, base: Iterable[Item]
) -> Iterator[Item]:
    """What is seen through `tables`, newest first, over `base`, from `start` on.

    The newest that says anything of a key counts; what is gone is left out. `base`: ascending
    keys, none below `start`, and values.
    """
    layers = [*(table.ascending(start) for table in tables), base]
    return _seen(merge(*layers, key=itemgetter(0)))


def plain_merged_descending(
    tables: Sequence[PlainMemtable], stop: bytes | None, base: Iterable[Item]
) -> Iterator[Item]:
    """The same from the greatest key below `stop` down. `base`: descending keys below `stop`."""
    layers = [*(table.descending(stop) for table in tables), base]
    return _seen(merge(*layers, key=itemgetter(0), reverse=True))


def _seen(items: Iterable[Item]) -> Iterator[Item]:
    """Of items in order, those of one key newest first (`merge` keeps the order of equal ones)."""
    last = None
    for key, value in items:
        if key != last:
            last = key
            if value:
                yield key, value


if TYPE_CHECKING or COMPILED:
    from logweir.store.state.memtablekernel import Memtable
    from logweir.store.state.mergekernel import merged_ascending, merged_descending
else:
    Memtable = PlainMemtable
    merged_ascending = plain_merged_ascending
    merged_descending = plain_merged_descending
