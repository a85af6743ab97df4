"""One layer: changes of some transactions, a sorted map for each index that they touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from logweir.store.state.memtable import Memtable

__all__ = ["Layer", "Name", "Stack", "joined"]

Name: TypeAlias = tuple[int, int]
"""An index: the id of its space and its own."""

Stack: TypeAlias = "tuple[Layer, ...]"
"""Layers, the newest first."""


class Layer:
    """Changes of some transactions. `tables`: of each index that they touch; `cleared`: the indexes
    of which nothing counts any more that stands below this layer; since it is sealed, `size_bytes`:
    memory that it holds, and `rank`: how large it is, roughly: one more is four times as many
    entries."""

    __slots__ = ("cleared", "rank", "since", "size_bytes", "tables")

    def __init__(self) -> None:
        self.tables: dict[Name, Memtable] = {}
        self.cleared: set[Name] = set()
        self.since = 0.0
        self.size_bytes = self.rank = 0

    def seal(self) -> None:
        """It is not changed any more."""
        tables = self.tables.values()
        self.size_bytes = sum([table.size_bytes for table in tables])
        self.rank = sum(map(len, tables)).bit_length() // 2

    @property
    def spaces(self) -> set[int]:
        """The ids of the spaces that it says something of."""
        found = {name[0] for name in self.tables}
        return found.union([name[0] for name in self.cleared]) if self.cleared else found

    @classmethod
    def joined(cls, stack: Sequence[Layer]) -> Layer:
        """One layer that says what these do, the newest first, sealed: a single one itself; of
        others the entries are not changed."""
        if len(stack) == 1:
            stack[0].seal()
            return stack[0]
        made = cls()
        made.since = min([layer.since for layer in stack], default=0.0)
        for name in {name for layer in stack for name in layer.tables}:
            tables: list[Memtable] = []
            for layer in stack:
                if name in layer.tables:
                    tables.append(layer.tables[name])
                if name in layer.cleared:
                    made.cleared.add(name)
                    break
            made.tables[name] = tables[0] if len(tables) == 1 else joined(tables)
        made.seal()
        return made


def joined(tables: Sequence[Memtable]) -> Memtable:
    """One map that says what these do, the newest first."""
    made = Memtable()
    for table in reversed(tables):
        made.merge(table)
    return made
