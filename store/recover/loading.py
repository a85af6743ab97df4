"""Bringing the state to the end of the log: a snapshot in bulk, then the rows behind it.

Rows are applied in large LMDB transactions: they change a layer over it, as all statements do
(`store.commit.applying`), which the transaction takes at its end, or before definitions change.
Those of the log have their position, so a process that is stopped in the middle goes on from there.
Of a snapshot, where definitions are taken as they stand, tuples of spaces that the compiled
statements do not know go into the primary index in bulk, and the other indexes are built when all
are there. Rows that wait for their CONFIRM at the end of the log are not applied:
`store.engine.synchro`.
"""

from __future__ import annotations

import contextlib
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from logweir.errors import CorruptBlock, RequestError
from logweir.limits import TOPIC_TUPLE_BYTES
from logweir.recovery import Batch, RecoveryPlan, replay, snapshot_blocks
from logweir.store.commit.applying import apply_row, apply_rows, compiled_space
from logweir.store.commit.rows import COMPILED
from logweir.store.engine import ddl
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import Executor
from logweir.store.engine.synchro import DECISIONS, Decision, Entry, SynchroQueue
from logweir.store.schema import kernel
from logweir.store.schema.definition import SYSTEM_ID_MAX, SystemSpace
from logweir.store.schema.refused import unsupported
from logweir.store.schema.schema import Schema
from logweir.store.state.layers import put_into
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import MapFull, State, StateError
from logweir.store.state.statetxn import Position, Txn
from logweir.wal.columns import RowColumns
from logweir.wal.failpoint import failpoint
from logweir.wal.place import Place
from logweir.wal.reader import Block
from logweir.wal.settled import Span
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, PROMOTIONS, RAFT, RowType, type_name

if TYPE_CHECKING:
    from logweir.store.state.layerkernel import Space

_ROWS_PER_COMMIT: Final = 50_000
_BYTES_PER_COMMIT: Final = 16 * 1024 * 1024
_DEFINING: Final = frozenset(ddl.DEFINING)
_PASSED: Final = PROMOTIONS | {RAFT}


def schema_of(txn: Txn) -> Schema:
    """The definitions that a state holds."""
    schema = Schema(TOPIC_TUPLE_BYTES)
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

    @classmethod
    def of(
        cls,
        decided: RecoveryPlan,
        end: VClock,
        *,
        until: VClock | float | None = None,
        told: Callable[[int], object] = lambda count: None,
        took: Callable[[Batch], object] = lambda batch: None,
    ) -> Source:
        """What a plan says. `until`: see `recovery.replay`; `told`: called with the bytes of each
        piece that was taken, `took` with each batch."""

        def batches(after: VClock) -> Iterator[Batch]:
            for batch in replay(decided, after=after, until=until):
                yield batch
                told(len(batch.data))
                took(batch)

        def blocks() -> Iterator[Block]:
            return counted(snapshot_blocks(decided), told)

        return cls(blocks, decided.start, batches, end, decided.report.instance)


def counted(blocks: Iterable[Block], told: Callable[[int], object]) -> Iterator[Block]:
    """Blocks; `told` is called with the bytes of each that was taken."""
    for block in blocks:
        yield block
        told(block.header.stored_bytes)


def load(
    state: State, plans: Plans, source: Source, position: Position | None
) -> tuple[Schema, SynchroQueue]:
    """Bring a state to the end of a source. Returns the definitions that then hold, and what waits
    there for its CONFIRM.

    `position`: what the state, which is open, has applied already; None for an empty one that is
    not open. Where the map becomes full it is doubled, and what was not committed is done again.
    Raises `CorruptBlock`, `WriteFailed` where the disk is full.
    """
    undone: list[Span] = []
    unlogged: set[int] = set()
    while True:
        loader = None
        try:
            if position is None:
                state.open()
                loader = Loader(state, plans, source.start)
                for block in source.blocks():
                    loader.load_snapshot(block)
                loader.finish_snapshot(source)
                after = source.start
            else:
                with state.read() as txn:
                    schema = schema_of(txn)
                loader = Loader(state, plans, position.vclock, schema)
                after = position.vclock
            for batch in source.batches(after):
                loader.apply(batch)
            loader.finish(source.end)
            loader.waiting.undone += undone
            loader.schema.unlogged |= unlogged
            return loader.schema, loader.waiting
        except MapFull:
            if loader is not None:
                undone += loader.waiting.undone
                unlogged |= loader.schema.unlogged
                loader.abort()
            position = _grown(state)
        except StateError:
            state.check_disk(2 * _BYTES_PER_COMMIT)  # a disk that is full is a broken one to LMDB
            raise


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
    """Fills one state. `start`: the position from which rows of the log come; `schema`: what it
    holds already; without one it is empty."""

    def __init__(
        self, state: State, plans: Plans, start: VClock, schema: Schema | None = None
    ) -> None:
        self._state = state
        self._plans = plans
        self._start = start
        self.schema = Schema(TOPIC_TUPLE_BYTES) if schema is None else schema
        self.waiting = SynchroQueue()
        self._asked: Schema | None = None
        self._has_synchronous = False
        self._executor = Executor()
        self._in_bulk: set[int] = set()  # spaces of which only the primary index is filled
        self._txn: Txn | None = None
        self._above: LayeredTxn | None = None  # what was changed and `_txn` has not
        self._rows = 0
        self._bytes = 0
        self._last: Batch | None = None
        self._last_block: Block | None = None  # of the snapshot

    # --- a snapshot -------------------------------------------------------------------------------

    def load_snapshot(self, block: Block) -> None:
        """Add the rows of one block of a snapshot. Raises `CorruptBlock` for what cannot be."""
        self._last_block = block
        columns = block.columns
        start = 0
        for space_id, run in groupby(columns.space_id.tolist()):
            end = start + len(list(run))
            if COMPILED and compiled_space(self._engine(), space_id) is not None:
                self._apply_some(block, columns, start, end)
                self._rows += end - start
            else:
                self._load_in_bulk(block, start, end)
            start = end
        self._bytes += len(block.data)
        self._commit_if_large(None)

    def _load_in_bulk(self, block: Block, start: int, end: int) -> None:
        """Rows of one space, below the layer."""
        self._settle()
        columns = block.columns
        space_id = columns.space_id[start]
        with applying(block, columns, start):
            self._load_run(space_id, columns, start, end)
        self._in_bulk.add(space_id)

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
        self._begun().load(space_id, 0, list(pairs))
        self._rows += len(tuples)

    def finish_snapshot(self, source: Source) -> None:
        """Build what indexes are missing, note the position: from now on the state is one."""
        self._settle()
        for space in filter(lambda one: one.id in self._in_bulk, self.schema):
            for index in space.indexes[1:]:
                self._commit_if_large(None)
                txn = self._begun()
                ddl.build_index(Engine(txn, self.schema, self._plans), space, index)
                tree = txn.tree(space.id, index.id)
                self._rows += tree.count() if tree is not None else 0
        last = self._last_block
        place = None if last is None else Place.read(last, last.end)
        txn = self._begun()
        txn.set_instance(source.instance)
        txn.set_position(Position(source.start, place))
        self._commit()

    # --- the log ----------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """Apply rows of the log. Raises `CorruptBlock` if one cannot be applied."""
        columns = batch.block.columns
        kinds, spaces = columns.type.tolist(), columns.space_id.tolist()
        if self._may_wait(batch, kinds, spaces):
            self._apply_in_turn(batch, kinds, spaces)
        else:
            self._apply_rows(batch, columns, batch.first, batch.last, spaces)
        self._rows += batch.last - batch.first
        if batch.last > batch.first:
            self._bytes += len(batch.data)
        self._last = batch
        self._commit_if_large(batch)

    def _apply_rows(
        self, batch: Batch, columns: RowColumns, first: int, last: int, spaces: Sequence[int]
    ) -> None:
        """Apply rows first … last - 1 of `columns`; `batch`: where they stand, or are decided
        about; `spaces`: of all its rows."""
        row = first
        if not _DEFINING.isdisjoint(spaces[first:last]):
            for at in range(first, last):
                if spaces[at] in _DEFINING:
                    self._apply_some(batch.block, columns, row, at)
                    self._define(batch, columns, at)
                    row = at + 1
        self._apply_some(batch.block, columns, row, last)

    def _engine(self) -> Engine:
        """What changes the layer over the transaction."""
        if self._above is None:
            self._above = LayeredTxn((), self._begun(), write=True)
        return Engine(self._above, self.schema, self._plans)

    def _apply_some(self, block: Block, columns: RowColumns, first: int, last: int) -> None:
        """Rows that leave definitions as they are. `block`: where they stand."""
        if first == last:
            return
        engine = self._engine()

        def find(space_id: int) -> Space | None:
            return None if self._is_elsewhere(space_id) else compiled_space(engine, space_id)

        def refer(row: int) -> None:
            kind, space_id = columns.type[row], columns.space_id[row]
            if kind not in _PASSED and not self._is_elsewhere(space_id):
                apply_row(engine, columns, row)

        refused = apply_rows(self._executor, engine, columns, first, last, refer=refer, find=find)
        if refused is not None:
            error = refused.error
            raise cannot_apply(block, columns, refused.row, error) from error
        assert self._above is not None
        self._above.forget()

    def _is_elsewhere(self, space_id: int) -> bool:
        """Whether the data of a space is of another engine, and so not in these files."""
        space = self.schema.get(space_id)
        return space is not None and space.engine != "memtx"

    def _define(self, batch: Batch, columns: RowColumns, row: int) -> None:
        """A row that may change definitions: on the state itself."""
        self._settle()
        engine = Engine(self._begun(), self.schema, self._plans)
        with applying(batch.block, columns, row):
            if columns.type[row] != RowType.NOP:
                apply_row(engine, columns, row)
        self.schema = engine.schema

    def _settle(self) -> None:
        """Let the transaction take the layer above it."""
        above, self._above = self._above, None
        if above is not None:
            put_into(self._begun(), above.taken(), None)

    def _may_wait(self, batch: Batch, kinds: list[int], spaces: list[int]) -> bool:
        """Whether rows of a batch may have to wait for others."""
        if self._asked is not self.schema:
            self._asked, self._has_synchronous = self.schema, self.schema.has_synchronous
        return (
            self._has_synchronous
            or bool(self.waiting)
            or SystemSpace.SPACE in spaces
            or not DECISIONS.isdisjoint(kinds)
        )

    def _apply_in_turn(self, batch: Batch, kinds: list[int], spaces: list[int]) -> None:
        """Apply a batch by transactions: each decides whether those behind it wait."""
        columns = batch.block.columns
        lsns = (self._last.vclock if self._last else self._start).lsns()
        flags = columns.flags
        first = ready = batch.first  # from `ready` on nothing was applied
        for row in range(batch.first, batch.last):
            if not flags[row] & FLAG_COMMIT:
                continue
            last = row + 1
            if kinds[row] in DECISIONS:
                self._apply_rows(batch, columns, ready, first, spaces)
                self._decide(batch, row)
                ready = last
            elif self.waiting and kinds[row] in PROMOTIONS:
                raise cannot_apply(batch.block, columns, row, _undecided(kinds[row]))
            elif self.waiting or any(map(self.schema.is_synchronous, spaces[first:last])):
                self._apply_rows(batch, columns, ready, first, spaces)
                before = VClock(dict(enumerate(lsns)))
                self.waiting.hold(Entry.of(columns, first, last, before))
                ready = last
            elif any(space_id <= SYSTEM_ID_MAX for space_id in spaces[first:last]):
                self._apply_rows(batch, columns, ready, last, spaces)
                ready = last
            for each in range(first, last):
                lsns[columns.replica_id[each]] = columns.lsn[each]
            first = last
        self._apply_rows(batch, columns, ready, batch.last, spaces)

    def _decide(self, batch: Batch, row: int) -> None:
        columns = batch.block.columns
        with applying(batch.block, columns, row):
            decision = Decision.of(columns, row)
        for entry in self.waiting.decide(decision, lambda space: self.schema.is_synchronous(space)):
            rows = entry.columns()
            self._apply_rows(batch, rows, 0, len(rows), rows.space_id.tolist())

    def abort(self) -> None:
        """Forget what is not committed."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = self._above = None

    def finish(self, vclock: VClock) -> None:
        """Commit what is left, with `vclock` as the position."""
        if self._txn is None and self._last is None:
            return
        self._commit_position(self._last, vclock)

    # --- LMDB transactions ------------------------------------------------------------------------

    def _begun(self) -> Txn:
        if self._txn is None:
            self._txn = self._state.begin()
        return self._txn

    def _commit_if_large(self, batch: Batch | None) -> None:
        if self._rows < _ROWS_PER_COMMIT and self._bytes < _BYTES_PER_COMMIT:
            return
        if batch is None:
            self._commit()
        else:
            self._commit_position(batch, batch.vclock)

    def _commit_position(self, batch: Batch | None, vclock: VClock) -> None:
        txn = self._begun()
        if batch is None:
            before = txn.position()
            place = before.place if before else None
        else:
            place = Place.read(batch.block, batch.position.offset)
        if self.waiting:  # the state stands before them: what follows is looked at again
            vclock, place = self.waiting.applied, None if place is None else place.nowhere
        txn.set_position(Position(vclock, place))
        self._commit()

    def _commit(self) -> None:
        if self._txn is not None:
            self._settle()
            self._txn.commit()
            self._txn = None
            failpoint("loading.after_state_commit")
        self._rows = self._bytes = 0


def _undecided(kind: int) -> RequestError:
    """For a row about an election, behind rows that it may confirm or roll back."""
    return unsupported(
        f"{type_name(kind)} may decide about rows that wait for their CONFIRM, which is not known "
        "here",
        hint="let the Tarantool that wrote the folder take a snapshot behind it, then open that",
    )


@contextlib.contextmanager
def applying(block: Block, columns: RowColumns, row: int) -> Iterator[None]:
    """Around what applies a row of a log or snapshot: `CorruptBlock` where that is refused."""
    try:
        yield
    except RequestError as error:
        raise cannot_apply(block, columns, row, error) from error


def cannot_apply(block: Block, columns: RowColumns, row: int, error: RequestError) -> CorruptBlock:
    """The error for a row of a log or snapshot that what is before it refuses."""
    lsn, replica_id = columns.lsn[row], columns.replica_id[row]
    return CorruptBlock(
        f"row with lsn {lsn} of replica {replica_id} cannot be applied: {error.message}.",
        path=block.path,
        offset=block.offset,
        hint=error.hint
        or "the log and the state before it do not belong together; `logweir verify` tells more",
    )
