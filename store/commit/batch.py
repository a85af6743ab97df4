"""Changes to one space that their maker has worked out, applied to its indexes all at once.

Who knows the entries of a space's two indexes and that nothing can refuse a change (both unique,
no sequence, nothing else to be kept) writes them here: the rows go into the group's log, the tuples
into `latest`, and the group's layer takes them when the log is written. The next job of the group
that `sees_batch` goes on with the same batch; before any other the batch is applied.

`latest`: the tuple by its entry in the first index, None: removed; who reads the space inside the
group looks here first. `born`, `gone`: by the same entry the one in the second index that a tuple
has got, or had before the batch. A tuple that was there and is put again with the same entry in the
second index stands in neither.
"""

from __future__ import annotations

from array import array
from typing import Final

from logweir.store.commit.group import Group
from logweir.store.schema.definition import SpaceDef
from logweir.wal.mp import encode_uint
from logweir.wal.xrow import RowType

__all__ = ["Batch"]

_RUN_MIN: Final = 64
"""So many rows are worth a block of their own."""


class Batch:
    """One batch; use `of`."""

    __slots__ = ("_group", "_removes", "_space", "born", "gone", "latest")

    def __init__(self, group: Group, space: SpaceDef) -> None:
        self._group = group
        self._space = space
        self._removes = False
        self.latest: dict[bytes, bytes | None] = {}
        self.born: dict[bytes, bytes] = {}
        self.gone: dict[bytes, bytes] = {}

    @classmethod
    def of(cls, group: Group, space: SpaceDef) -> Batch:
        """The group's batch of that space, begun where there is none; what else was deferred is
        applied first. Nothing of it can be rolled back but the whole group."""
        found = group.batch
        if isinstance(found, Batch) and found._space is space:
            return found
        group.run_deferred()
        made = cls(group, space)
        group.defer(made._apply)
        group.batch = made
        return made

    def put(self, packed: bytes, bounds: array[int]) -> None:
        """Log puts, each a transaction: tuple i is packed[bounds[i]:bounds[i + 1]]."""
        prefix = self._space.put_prefix
        group = self._group
        count = len(bounds) - 1
        if count >= _RUN_MIN:
            group.add_run(self._space, RowType.REPLACE, packed, bounds, prefix)
            return
        for number in range(count):
            body = prefix + packed[bounds[number] : bounds[number + 1]]
            group.log(RowType.REPLACE, body, self._space)
            group.end_transaction()

    def remove(self, tombstone: bytes, key: bytes) -> None:
        """Log a removal: one transaction of two rows."""
        number = encode_uint(self._space.id)
        group = self._group
        self._removes = True
        group.log(RowType.REPLACE, b"\x82\x10" + number + b"\x21" + tombstone, self._space)
        group.log(RowType.DELETE, b"\x82\x10" + number + b"\x20" + key, self._space)
        group.end_transaction()

    def _apply(self) -> None:
        latest, born, gone = self.latest, self.born, self.gone
        first, second = (self._group.txn.tree(self._space.id, i) for i in (0, 1))
        assert first is not None
        assert second is not None
        for entry, other in gone.items():
            if latest[entry] is None:
                first.delete(entry)
            if born.get(entry) != other:
                second.delete(other)
        first.load(sorted((entry, data) for entry, data in latest.items() if data is not None))
        second.load(
            sorted((other, entry) for entry, other in born.items() if gone.get(entry) != other)
        )
