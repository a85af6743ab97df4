"""Consistent views of the whole store as of one position, and what is in them as one number per
space, so that two stores can be compared by content.

Equal positions do not make two stores equal; equal checksums of every space, at the same position,
do (but for one chance in 2**32 each).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Unpack, cast

from logweir.store.engine import reads
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import COLUMNS, Answer, Executor
from logweir.store.engine.reference import kept, selected
from logweir.store.engine.request import key_bytes
from logweir.store.engine.select import Options
from logweir.store.engine.statements import Row
from logweir.store.expiry import Expiry, due, expiry_of, unexpired
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.wal.crc32c import checksum
from logweir.wal.mp import Value, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_TUPLES = 1000  # that are joined for one call of the checksum


def get(engine: Engine, space: int | str, key: Value, *, index: int | str = 0) -> bytes | None:
    """The tuple, as MsgPack, with that full key of a unique index."""
    found = engine.schema.space(space)
    return reads.one(engine, found, engine.schema.index(found, index), key_bytes(key))


@dataclass(frozen=True, slots=True)
class View:
    """The whole store at one position: what `Log.read_view` and `Log.as_of` give. `vclock`: that
    position; `now`: seconds since 1970, what has expired by then is left out, None for all. For one
    thread at a time."""

    engine: Engine
    vclock: VClock
    now: float | None = None

    def get(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Log.get`."""
        found = get(self.engine, space, key, index=index)
        row = None if found is None else tuple(unpack(found))
        expiry = None if row is None else self._expiry(space)
        return None if expiry is not None and expiry[0].is_over(row or (), expiry[1]) else row

    def _expiry(self, space: int | str) -> tuple[Expiry, float] | None:
        """When tuples of a space expire, and what time it is; None: never."""
        if self.now is None:
            return None
        found = expiry_of(self.engine, self.schema.space(space))
        return None if found is None else (found, self.now)

    def select(self, space: int | str, key: Value = None, **options: Unpack[Options]) -> list[Row]:
        """As `Log.select`."""
        return unexpired(self.engine, space, key, self.now, **options)

    def count(self, space: int | str) -> int:
        """As `Log.count`."""
        found = self.schema.space(space)
        count, expiry = reads.count(self.engine, found), self._expiry(space)
        return count if expiry is None else count - sum(1 for _ in due(self.engine, found, *expiry))

    @property
    def schema(self) -> Schema:
        """The definitions of spaces and indexes at the position."""
        return self.engine.schema


@dataclass(frozen=True, slots=True)
class ReadView(View):
    """One of now. `instance`: the store's UUID."""

    instance: uuid.UUID = field(kw_only=True)

    def used_bytes(self, space_id: int, index_id: int) -> int:
        """Bytes that an index takes in the state, without what waits in memory for it."""
        txn = self.engine.txn
        state = txn.base if isinstance(txn, LayeredTxn) else txn
        tree = state.tree(space_id, index_id)
        return 0 if tree is None else tree.used_bytes()

    def tuples(self, space: SpaceDef) -> Iterator[bytes]:
        """All tuples of a space, as MsgPack, in the order of its primary key."""
        if space.primary is None:
            return
        txn = cast("LayeredTxn", self.engine.txn)
        state = txn.base.state  # raises where the view has ended
        for piece in reads.pieces(self.engine, space, space.primary, b"", None, reverse=False):
            for data in piece.tuples():
                yield data
                if state.is_foreign:
                    txn.check_process()

    def snapshot_spaces(self) -> list[SpaceDef]:
        """The spaces of a snapshot in its order: system spaces by id, then the others by id.

        Without temporary spaces, views, spaces without primary index and of other engines.
        """
        spaces = [
            space
            for space in self.engine.schema
            if space.engine == "memtx"
            and not space.is_temporary
            and not space.is_view
            and space.primary is not None
        ]
        return sorted(spaces, key=lambda space: (not space.is_system, space.id))

    def select_batch(self, executor: Executor, asked: Asked) -> tuple[Answers, Schema]:
        """Many statements that change nothing, up to a SELECT that is long: see
        `reads.select_batch`."""
        engine = self.engine

        def refer(number: int) -> Answer:
            if asked.columns[number * COLUMNS] != RowType.SELECT:
                return kept(engine, asked, number)
            return selected(engine, asked, number)

        return reads.select_batch(engine, reads.placed(engine, asked.ids), executor, asked, refer)


@dataclass(frozen=True, slots=True)
class SpaceChecksum:
    """The content of one space. `tuples`: how many; `crc32c`: of their MsgPack, one after the other
    in the order of the primary key."""

    space_id: int
    space: str
    tuples: int
    crc32c: int


def space_checksums(view: ReadView) -> Iterator[SpaceChecksum]:
    """The content of every space that a snapshot would hold, in its order. Reads every tuple."""
    return (_space(view, space) for space in view.snapshot_spaces())


def _space(view: ReadView, space: SpaceDef) -> SpaceChecksum:
    tuples, count, crc = view.tuples(space), 0, 0
    while part := list(islice(tuples, _TUPLES)):
        crc = checksum(b"".join(part), crc)
        count += len(part)
    return SpaceChecksum(space.id, space.name, count, crc)
