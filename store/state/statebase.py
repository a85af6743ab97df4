"""One index of the state in LMDB as what lies under the layers of compiled statements.

Where LMDB is called from C, and nothing would load a second one, that is `basekernel.pyx`; else
`PlainBase`, which makes an object for each lookup.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from logweir.store.state import base
from logweir.store.state.layerkernel import Base
from logweir.store.state.longkeys import PIECE_BYTES
from logweir.store.state.tree import Tree


class PlainBase(Base):
    """Looks keys up in a tree, whose transaction must outlive it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, None if there is none."""
        return self._tree.get(key)

    def count(self) -> int:
        """How many keys there are."""
        return self._tree.count()

    def last_key(self) -> bytes | None:
        """The greatest key, None if there is none."""
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


def _maker() -> Callable[[Tree], Base]:
    if base.BINDING == "compiled":
        with contextlib.suppress(ImportError):
            from logweir.store.state.basekernel import StateBase

            return lambda tree: StateBase(tree, PIECE_BYTES)
    return PlainBase


state_base: Final = _maker()
"""What is to lie below the layers of a tree, whose transaction must outlive it."""
