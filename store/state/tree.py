"""One index of the base in one transaction: ordered bytes → bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from logweir.store.state import base
from logweir.store.state.longkeys import PIECE_BYTES, LongKeys
from logweir.store.state.memtable import Memtable
from logweir.store.state.references import REFERENCE

if TYPE_CHECKING:
    from logweir.store.state.statetxn import Txn

_LONG_NAME: Final = b"/long"
_STEP_VALUES: Final = 256

_PART_ROWS: Final = 4096

SortedPart: TypeAlias = tuple[list[bytes], list[bytes]]
"""Some keys, ascending, and the value of each."""


def _compiled() -> Callable[..., tuple[list[tuple[bytes, bytes]], ...]] | None:
    """What puts memtables into LMDB, where it is there and would not load a second LMDB."""
    if base.BINDING == "compiled":
        with contextlib.suppress(ImportError):
            from logweir.store.state.applykernel import apply

            return apply
    return None


_apply: Final = _compiled()


class Tree:
    """The entries of one index in one transaction: ordered bytes → bytes."""

    __slots__ = ("_name", "_txn", "handle", "raw")

    def __init__(self, txn: Txn, name: bytes, handle: Any) -> None:
        self._txn = txn
        self._name = name
        self.raw = txn.raw
        self.handle = handle

    @property
    def has_long(self) -> bool:
        """Whether it may have keys that are kept in pieces."""
        return self._txn.has_long(self._name)

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        if len(key) < PIECE_BYTES:
            value: bytes | None = self.raw.get(key, db=self.handle)
            if value and value[0] == REFERENCE:
                return self._txn.resolve(value)
            return value
        return self._long().get(key) if self.has_long else None

    def has(self, key: bytes) -> bool:
        """Whether there is something under `key`."""
        if len(key) < PIECE_BYTES:
            return self.raw.get(key, db=self.handle) is not None
        return self.get(key) is not None

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`."""
        if len(key) < PIECE_BYTES:
            self.raw.put(key, value, db=self.handle)
        else:
            self._txn.note_long(self._name)
            self._long().put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`, which is there."""
        if len(key) < PIECE_BYTES:
            self.raw.delete(key, db=self.handle)
        else:
            self._long().delete(key)

    def clear(self) -> None:
        """Remove all entries."""
        self.raw.drop(self.handle, delete=False)
        if self.has_long:
            self._long().clear()

    def _long(self) -> LongKeys:
        """The keys in pieces; a reader asks only where there are some."""
        below = self._txn.database(self._name + _LONG_NAME)
        return LongKeys(self.raw, self.handle, below)

    def load(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set many entries, fastest in ascending order of keys."""
        keys = [key for key, _ in pairs]
        if all(map(lt, keys, keys[1:])):
            self.load_sorted([(keys, [value for _, value in pairs])], _longest(keys))
            return
        if not takes_length(_longest(keys)):
            for key, value in pairs:
                self.put(key, value)
            return
        with self.raw.cursor(self.handle) as cursor:
            cursor.putmulti(pairs)

    def discard(self, key: bytes) -> None:
        """Remove `key`, if it is there."""
        if len(key) < PIECE_BYTES or self.get(key) is not None:
            self.delete(key)

    def load_sorted(self, parts: Iterable[SortedPart], longest: int) -> None:
        """`load` of keys that are ascending, none of them twice.

        `parts`: keys, some at least, and the value of each; `longest`: no key has more bytes.
        """
        if not takes_length(longest):
            for keys, values in parts:
                for key, value in zip(keys, values, strict=True):
                    self.put(key, value)
            return
        last = self.last_key()
        with self.raw.cursor(self.handle) as cursor:
            for keys, values in parts:
                pairs = zip(keys, values, strict=True)
                cursor.putmulti(pairs, append=last is None or keys[0] > last)

    def take(self, table: Memtable) -> list[tuple[bytes, bytes]]:
        """Make the changes that a memtable holds, which nobody changes meanwhile. Returns those of
        its entries whose values are references. Compiled, it needs no object for an entry and lets
        other threads run."""
        if _apply is None:
            return self._taken_by_parts(table)
        long, references = _apply(self.raw, self.handle, table, PIECE_BYTES, REFERENCE)
        for key, value in long:
            if value:
                self.put(key, value)
            else:
                self.discard(key)
        return references

    def _taken_by_parts(self, table: Memtable) -> list[tuple[bytes, bytes]]:
        references: list[tuple[bytes, bytes]] = []
        for key in table.gone():
            self.discard(key)
        for keys, values in table.parts(_PART_ROWS):
            self.load_sorted([(keys, values)], _longest(keys))
            pairs = zip(keys, values, strict=True)
            references += [pair for pair in pairs if pair[1][0] == REFERENCE]
        return references

    def last_key(self) -> bytes | None:
        """The greatest key as stored; None in an empty tree."""
        with self.raw.cursor(self.handle) as cursor:
            return bytes(cursor.key()) if cursor.last() else None

    def count(self) -> int:
        """How many entries there are."""
        count: int = self.raw.stat(self.handle)["entries"]
        if self.has_long:
            count += self._long().surplus()
        return count

    def used_bytes(self) -> int:
        """Bytes of the pages that its entries take, without the ends of long keys."""
        found = self.raw.stat(self.handle)
        pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return int(pages * found["psize"])

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from `start` on, in order of keys."""
        with self.raw.cursor(self.handle) as cursor:
            if not (cursor.set_range(start[:PIECE_BYTES]) if start else cursor.first()):
                return
            resolve, state = self._resolver(), self._txn.state
            for stored, value in cursor.iternext():
                if len(stored) < PIECE_BYTES:
                    yield stored, value if resolve is None else resolve(value)
                else:
                    yield from self._long().ascending(stored, value, start)
                if state.is_foreign:
                    state.check_process()

    def values(self, start: bytes, limit_items: int, limit_bytes: int) -> tuple[list[bytes], bool]:
        """Values of entries from `start` on, in order of keys, and whether these were the last.

        It stops at `limit_items`, or soon after `limit_bytes`.
        """
        found: list[bytes] = []
        size = 0
        if self.has_long or self._txn.is_referring(self._name):
            for _, value in self.ascending(start):
                found.append(value)
                size += len(value)
                if len(found) >= limit_items or size >= limit_bytes:
                    return found, False
            return found, True
        with self.raw.cursor(self.handle) as cursor:
            if not (cursor.set_range(start) if start else cursor.first()):
                return found, True
            ahead = cursor.iternext(keys=False)
            wanted = 1
            while len(found) < limit_items and size < limit_bytes:
                step = list(islice(ahead, wanted))
                found += step
                size += sum(map(len, step))
                if len(step) < wanted:
                    return found, True
                fitting = (limit_bytes - size) * len(found) // (size + 1)  # if they are as these
                wanted = max(min(fitting, 2 * wanted, _STEP_VALUES), 1)
        return found, False

    def descending(
        self, stop: bytes | None, *, whole: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries below `stop` (None: from the greatest), in reverse order of keys. `whole`: with
        tuples in the place of references to them."""
        with self.raw.cursor(self.handle) as cursor:
            if stop is None:
                found = cursor.last()
            else:
                bound = stop[:PIECE_BYTES]
                found = cursor.set_range(bound)
                if not found:
                    found = cursor.last()
                elif bytes(cursor.key()) != bound or len(stop) < PIECE_BYTES:
                    found = cursor.prev()
            if not found:
                return
            resolve, state = self._resolver() if whole else None, self._txn.state
            for stored, value in cursor.iterprev():
                if len(stored) < PIECE_BYTES:
                    yield stored, value if resolve is None else resolve(value)
                else:
                    yield from self._long().descending(stored, value, stop)
                if state.is_foreign:
                    state.check_process()

    def _resolver(self) -> Callable[[bytes], bytes] | None:
        """What makes tuples of values, where they may be references."""
        return self._txn.resolve if self._txn.is_referring(self._name) else None


def takes_length(key_bytes: int) -> bool:
    """Whether LMDB takes keys of that length, which is not negative, as they are."""
    return 0 <= key_bytes < PIECE_BYTES


def _longest(keys: list[bytes]) -> int:
    return max(map(len, keys), default=0)
