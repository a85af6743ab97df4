"""Places in a group to roll back to."""

from __future__ import annotations

from dataclasses import dataclass

from logweir.store.engine.synchro import Entry
from logweir.store.schema.schema import Schema
from logweir.store.state.layered import Mark as TxnMark
from logweir.wal.settled import Span

__all__ = ["Mark", "Spoiled"]


class Spoiled(Exception):
    """A rollback would have to take rows back that have their lsns: the whole group must go."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a group to roll back to. `numbered`: how many rows had their lsns."""

    txn: TxnMark
    numbered: int
    schema: Schema
    rows: int
    bytes: int
    borders: int
    waiting: tuple[Entry, ...]
    undone: tuple[Span, ...]
