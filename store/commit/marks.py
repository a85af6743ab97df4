"""What a group keeps of itself: places to roll back to, and large tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logweir.store.engine.synchro import Entry
from logweir.store.schema.schema import Schema
from logweir.store.schema.values import LargeTuple
from logweir.store.state.stackkernel import Mark as TxnMark
from logweir.wal.block import Pieces
from logweir.wal.settled import Span


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
