"""The state in LMDB as what lies under the layers of compiled statements, through py-lmdb."""

from __future__ import annotations

from collections.abc import Iterator

from logweir.store.layerkernel import Base
from logweir.store.state import Txn

__all__ = ["StateBase"]


class StateBase(Base):
    """Looks keys up in one transaction on the state, which must outlive it."""

    def __init__(self, txn: Txn) -> None:
        self._txn = txn

    def get(self, space_id: int, index_id: int, key: bytes) -> bytes | None:
        """The value under a key of an index, None where there is none."""
        tree = self._txn.tree(space_id, index_id)
        return None if tree is None else tree.get(key)

    def scan(
        self, space_id: int, index_id: int, start: bytes, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of an index, start ≤ key < stop (None: no end), in order or reversed."""
        tree = self._txn.tree(space_id, index_id)
        if tree is None:
            return
        for key, value in tree.descending(stop) if reverse else tree.ascending(start):
            if (reverse and key < start) or (not reverse and stop is not None and key >= stop):
                return
            yield key, value
