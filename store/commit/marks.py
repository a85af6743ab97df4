"""What a group keeps of itself: what becomes of it, places to roll back to, and large tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logweir.store.engine.synchro import Entry
from logweir.store.schema.schema import Schema
from logweir.store.schema.values import LargeTuple
from logweir.store.state.stackkernel import Layer
from logweir.store.state.stackkernel import Mark as TxnMark
from logweir.wal.block import Pieces
from logweir.wal.settled import Span

__all__ = ["Large", "Mark", "Outcome", "Spoiled"]


class Outcome:
    """What becomes of a group: see `store.commit.ahead`. `below`: the newest one that it is made on
    and that was not durable; once it has ended `layer` and `made` are its changes and its blocks,
    of `made_bytes`. `done`: it is durable and published, or dropped because of `error`; `finished`
    is called then, in the thread that wrote it."""

    below: Outcome | None = None
    layer: Layer | None = None
    made: Sequence[bytes | bytearray | Pieces] = ()
    made_bytes = 0
    done = False
    error: BaseException | None = None
    finished: Callable[[Outcome], None] | None = None

    def finish(self) -> None:
        """Tell who waits. Twice does no harm."""
        finished, self.finished = self.finished, None
        if finished is not None:
            finished(self)


class Spoiled(Exception):
    """A rollback would have to take rows back that have their lsns: the whole group must go."""


class Mark(NamedTuple):
    """A place in a group to roll back to. `numbered`: how many rows had their lsns."""

    txn: TxnMark
    numbered: int
    schema: Schema
    rows: int
    bytes: int
    borders: int
    waiting: tuple[Entry, ...]
    undone: tuple[Span, ...]


class Large(NamedTuple):
    """Large tuples of one space, what stands for them until they are written, and their blocks."""

    space_id: int
    keys: Sequence[bytes]
    places: list[bytes]
    tuples: list[LargeTuple]
    blocks: list[Pieces]
