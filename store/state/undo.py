"""What changes of memtables replaced, so that they can be taken back.

`layerkernel.pyx` has the one that is used; where it was not compiled `PlainUndo` stands in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logweir.store.state.memtable import Memtable

__all__ = ["COMPILED", "PlainUndo", "Undo"]

try:
    from logweir.store.state import layerkernel  # noqa: F401
except ImportError:
    COMPILED = False
else:
    COMPILED = True


class PlainUndo:
    """Of one transaction. `is_early`: whether something was seen that is not durable yet."""

    def __init__(self) -> None:
        self.is_early = False
        self._done: list[tuple[Memtable, bytes, bytes | None]] = []

    def set(self, table: Memtable, key: bytes, value: bytes) -> None:
        """Set a value; an empty one means that the key is gone."""
        self._done.append((table, key, table.put(key, value)))

    def mark(self) -> int:
        """A place to roll back to."""
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Take all changes since a mark back."""
        while len(self._done) > mark:
            table, key, before = self._done.pop()
            table.restore(key, before)

    def forget(self) -> None:
        """Nothing done until now will be taken back."""
        self._done.clear()


if TYPE_CHECKING or COMPILED:
    from logweir.store.state.layerkernel import Undo
else:
    Undo = PlainUndo
