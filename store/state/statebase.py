"""One index of the state in LMDB as what lies under the layers of compiled statements."""

from __future__ import annotations

from collections.abc import Iterator

from logweir.store.state.layerkernel import Base
from logweir.store.state.tree import Tree

__all__ = ["StateBase"]


class StateBase(Base):
    """Looks keys up in a tree, whose transaction must outlive it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, None where there is none."""
        return self._tree.get(key)

    def last_key(self) -> bytes | None:
        """The greatest key, None where there is none."""
        found = next(self._tree.descending(None, whole=False), None)
        return None if found is None else found[0]

    def scan(
        self, start: bytes, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, start ≤ key < stop (None: no end), in order or reversed."""
        for key, value in self._tree.descending(stop) if reverse else self._tree.ascending(start):
            if (reverse and key < start) or (not reverse and stop is not None and key >= stop):
                return
            yield key, value
