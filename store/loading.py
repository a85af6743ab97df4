"""Bringing the state to the end of the log: a snapshot in bulk, then the rows behind it.

Rows of a snapshot go into the primary indexes as they come, in order; the other indexes are built
when all are there. Rows of the log are applied in large LMDB transactions, each with its position,
so a process that is stopped in the middle goes on from there. Runs of INSERT and REPLACE into a
space with no other index are sorted, only the last of each key kept, and written in bulk.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from logweir.errors import CorruptBlock, RequestError
from logweir.recovery import Batch
from logweir.store import ddl, kernel
from logweir.store.definition import SpaceDef
from logweir.store.engine import Engine, Plans
from logweir.store.request import Request
from logweir.store.schema import Schema
from logweir.store.sequence import learn_sequence
from logweir.store.state import MapFull, Position, State, Txn
from logweir.wal.columns import RowColumns
from logweir.wal.failpoint import failpoint
from logweir.wal.place import Place
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["Loader", "Source", "load", "schema_of"]

_ROWS_PER_COMMIT: Final = 50_000
_BYTES_PER_COMMIT: Final = 16 * 1024 * 1024
_RUN_ROWS: Final = 64
_APPLIED: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)
_BY_KEY: Final = frozenset((RowType.UPDATE, RowType.DELETE))
_STORED: Final = frozenset((RowType.INSERT, RowType.REPLACE))


def schema_of(txn: Txn) -> Schema:
    """The definitions that a state holds."""
    schema = Schema()
    for space_id in ddl.DEFINING:
        for _, data in txn.items(space_id, 0):
            schema.apply(space_id, None, data, is_insert=True, trusted=True)
    return schema


@dataclass(frozen=True, slots=True)
class Source:
    """What fills a state. `blocks`: those of the snapshot, from its first; `start`: its vclock;
    `batches`: the rows of the log behind a vclock; `end`: the vclock after the last of them;
    `instance`: whose they are."""

    blocks: Callable[[], Iterable[Block]]
    start: VClock
    batches: Callable[[VClock], Iterable[Batch]]
    end: VClock
    instance: uuid.UUID | None = None


def load(state: State, plans: Plans, source: Source, position: Position | None) -> Schema:
    """Bring a state to the end of a source. Returns the definitions that then hold.

    `position`: what the state, which is open, has applied already; None for an empty one that is
    not open. Where the map becomes full it is doubled, and what was not committed is done again.
    Raises `CorruptBlock`.
    """
    while True:
        loader = None
        try:
            if position is None:
                state.open()
                loader = Loader(state, plans)
                for block in source.blocks():
                    loader.load_snapshot(block)
                loader.finish_snapshot(source)
                after = source.start
            else:
                with state.read() as txn:
                    schema = schema_of(txn)
                loader = Loader(state, plans, schema)
                after = position.vclock
            for batch in source.batches(after):
                loader.apply(batch)
            loader.finish(source.end)
            return loader.schema
        except MapFull:
            if loader is not None:
                loader.abort()
            position = _grown(state)


def _grown(state: State) -> Position | None:
    """Double the map. What is applied; None, and the state emptied, if that is no position."""
    state.grow()
    with state.read() as txn:
        position = txn.position()
    if position is None:
        state.close(clean=False)
        state.discard()
    return position


class Loader:
    """Fills one state. `schema`: what it holds already; without one it is empty."""

    def __init__(self, state: State, plans: Plans, schema: Schema | None = None) -> None:
        self._state = state
        self._plans = plans
        self.schema = Schema() if schema is None else schema
        self._engine: Engine | None = None
        self._rows = 0
        self._bytes = 0
        self._last: Batch | None = None
        self._last_block: Block | None = None  # of the snapshot

    # --- a snapshot -------------------------------------------------------------------------------

    def load_snapshot(self, block: Block) -> None:
        """Add the rows of one block of a snapshot. Raises `CorruptBlock` for what cannot be."""
        self._last_block = block
        columns = block.columns
        spaces = columns.space_id.tolist()
        start = 0
        while start < len(spaces):
            end = start
            space_id = spaces[start]
            while end < len(spaces) and spaces[end] == space_id:
                end += 1
            try:
                self._load_run(space_id, columns, start, end)
            except RequestError as error:
                raise _cannot_apply(block, columns, start, error) from error
            start = end
        self._commit_if_large(None)

    def _load_run(self, space_id: int, columns: RowColumns, start: int, end: int) -> None:
        tuples = [columns.tuple_bytes(row) or b"" for row in range(start, end)]
        if ddl.defines(space_id):
            for data in tuples:
                self.schema.apply(space_id, None, data, is_insert=True, trusted=True)
        space = self.schema.space(space_id)
        primary = self.schema.index(space, 0)
        packed = b"".join(tuples)
        bounds = array("Q", (0,))
        for data in tuples:
            bounds.append(bounds[-1] + len(data))
        keys = self._plans.get(space, primary, check=False).keys(packed, bounds)
        pairs = zip(kernel.parts(keys.data, keys.bounds), tuples, strict=True)
        self._open().txn.load(space_id, 0, list(pairs))
        self._rows += len(tuples)
        self._bytes += len(packed)

    def finish_snapshot(self, source: Source) -> None:
        """Build the other indexes and note the position: from now on the state is one."""
        for space in self.schema:
            for index in space.indexes[1:]:
                self._commit_if_large(None)
                ddl.build_index(self._open(), space, index)
                tree = self._open().txn.tree(space.id, index.id)
                self._rows += tree.count() if tree is not None else 0
        engine = self._open()
        last = self._last_block
        place = None if last is None else Place.read(last, last.end)
        engine.txn.set_instance(source.instance)
        engine.txn.set_position(Position(source.start, place))
        self._commit()

    # --- the log ----------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """Apply rows of the log. Raises `CorruptBlock` where one cannot be applied."""
        columns = batch.block.columns
        kinds, spaces = columns.type.tolist(), columns.space_id.tolist()
        row = batch.first
        while row < batch.last:
            end = row
            while end < batch.last and kinds[end] in _STORED and spaces[end] == spaces[row]:
                end += 1
            if end - row >= _RUN_ROWS and self._store_run(spaces[row], columns, row, end):
                row = end
                continue
            end = max(end, row + 1)
            for at in range(row, end):
                if kinds[at] in _APPLIED:
                    self._apply_row(batch, at, kinds[at], spaces[at])
            row = end
        self._rows += batch.last - batch.first
        if batch.last > batch.first:
            self._bytes += len(batch.data)
        self._last = batch
        self._commit_if_large(batch)

    def _store_run(self, space_id: int, columns: RowColumns, start: int, end: int) -> bool:
        """Write INSERT and REPLACE rows of one space in bulk; False where that cannot be."""
        space = self.schema.get(space_id)
        if space is None or space.is_system or len(space.indexes) != 1 or space.sequence:
            return False
        tuples = [columns.tuple_bytes(row) or b"" for row in range(start, end)]
        bounds = array("Q", (0,))
        for data in tuples:
            bounds.append(bounds[-1] + len(data))
        plan = self._plans.get(space, space.indexes[0], check=False)
        packed = b"".join(tuples)
        keys = plan.keys(packed, bounds)
        latest = dict(zip(kernel.parts(keys.data, keys.bounds), tuples, strict=True))
        self._open().txn.load(space_id, 0, sorted(latest.items()))
        return True

    def _apply_row(self, batch: Batch, row: int, kind: int, space_id: int) -> None:
        columns = batch.block.columns
        space = self.schema.get(space_id)
        if space is not None and space.engine != "memtx":
            return  # data of other engines is not in these files
        if kind in _BY_KEY and columns.index_id(row):
            return  # it found nothing
        request = Request(
            RowType(kind),
            space_id,
            key=columns.key_bytes(row),
            tuple=columns.tuple_bytes(row),
            ops=columns.ops_bytes(row),
            index_base=columns.index_base[row],
        )
        try:
            self._execute(self._open(), self.schema.space(space_id), request)
        except RequestError as error:
            raise _cannot_apply(batch.block, columns, row, error) from error

    def _execute(self, engine: Engine, space: SpaceDef, request: Request) -> None:
        engine.schema = self.schema
        if space.sequence is not None and request.type in _STORED:
            learn_sequence(engine, space, request)
        old, new, _ = engine.execute(space, request)
        if space.is_system and ddl.defines(space.id):
            ddl.apply(
                engine,
                space.id,
                old,
                new,
                is_insert=request.type == RowType.INSERT,
                trusted=True,
            )
            self.schema = engine.schema

    def abort(self) -> None:
        """Forget what is not committed."""
        if self._engine is not None:
            self._engine.txn.abort()
            self._engine = None

    def finish(self, vclock: VClock) -> None:
        """Commit what is left, with `vclock` as the position."""
        if self._engine is None and self._last is None:
            return
        self._commit_position(self._last, vclock)

    # --- LMDB transactions ------------------------------------------------------------------------

    def _open(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._state.begin(), self.schema, self._plans, lenient=True)
        return self._engine

    def _commit_if_large(self, batch: Batch | None) -> None:
        if self._rows < _ROWS_PER_COMMIT and self._bytes < _BYTES_PER_COMMIT:
            return
        if batch is None:
            self._commit()
        else:
            self._commit_position(batch, batch.vclock)

    def _commit_position(self, batch: Batch | None, vclock: VClock) -> None:
        engine = self._open()
        if batch is None:
            before = engine.txn.position()
            place = before.place if before else None
        else:
            place = Place.read(batch.block, batch.position.offset)
        engine.txn.set_position(Position(vclock, place))
        self._commit()

    def _commit(self) -> None:
        if self._engine is not None:
            self._engine.txn.commit()
            self._engine = None
            failpoint("loading.after_state_commit")
        self._rows = self._bytes = 0


def _cannot_apply(block: Block, columns: RowColumns, row: int, error: RequestError) -> CorruptBlock:
    lsn, replica_id = columns.lsn[row], columns.replica_id[row]
    return CorruptBlock(
        f"row with lsn {lsn} of replica {replica_id} cannot be applied: {error.message}.",
        path=block.path,
        offset=block.offset,
        hint=error.hint
        or "the log and the state before it do not belong together; `logweir verify` tells more",
    )
