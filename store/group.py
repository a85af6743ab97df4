"""One group: the changes that share one layer, one write and one sync.

A group turns requests into rows: it applies them through the engine, gives each row its lsn, and
closes each transaction as Tarantool does (`wal.xrow`): rows of local spaces count in component 0
of the vclock; rows of temporary spaces are not logged; a transaction whose last row is local gets
a closing NOP, so that a follower, who does not see the local row, sees its end. A transaction of
ours that changes a synchronous space is confirmed by a row behind it, in the same block: our quorum
is this instance. What waits for another instance's CONFIRM (`store.synchro`) is logged, and applied
on trial only, in a layer above; meanwhile nothing can be changed here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Final

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import (
    BLOCK_LARGE_BYTES,
    BLOCK_TARGET_BYTES,
    SYNCHRO_QUEUE_BYTES,
    TRANSACTION_BYTES,
    VCLOCK_COMPONENTS,
)
from logweir.store import ddl, kernel
from logweir.store.definition import SpaceDef, SystemSpace
from logweir.store.engine import Engine, Plans
from logweir.store.layers import LayeredTxn
from logweir.store.references import LargeTuple
from logweir.store.request import Request, encode_body
from logweir.store.schema import Schema, check_cluster_row
from logweir.store.sequence import fill_sequence
from logweir.store.synchro import (
    DECISIONS,
    Decision,
    Entry,
    SynchroQueue,
    apply_row,
    encode_decision,
)
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns, encode_columns, encode_run
from logweir.wal.settled import Span
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, GROUP_LOCAL, RowType

__all__ = ["Group", "Mark", "Spoiled"]

_COLUMNS: Final = 7
_WIDER_FROM: Final = (1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 64)  # a MsgPack uint takes more bytes


class Spoiled(Exception):
    """A rollback would have to take rows back that have their lsns: the whole group must go."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a group to roll back to. `numbered`: how many rows had their lsns."""

    txn: int
    numbered: int
    schema: Schema
    rows: int
    bytes: int
    borders: int
    waiting: tuple[Entry, ...]
    undone: tuple[Span, ...]


class Group:
    """Changes on their way. `replica_id`: ours; `now`: seconds since the epoch, of all its rows;
    `waiting`: the transactions that wait for their CONFIRM, in front of it."""

    def __init__(
        self,
        txn: LayeredTxn,
        schema: Schema,
        plans: Plans,
        *,
        vclock: VClock,
        replica_id: int,
        now: float,
        waiting: Iterable[Entry] = (),
    ) -> None:
        self.txn = txn
        self.engine = Engine(txn, schema, plans)
        self.waiting = SynchroQueue(waiting)
        self._trial: Engine | None = None
        self.replica_id = replica_id
        self.now = now
        (self._now_bits,) = struct.unpack("Q", struct.pack("d", now))
        self.changed_schema = False
        self._lsns = vclock.lsns()
        self._pending: list[tuple[int, bytes, SpaceDef]] = []  # type, body, space
        self._pending_bytes = 0
        self._borders: list[int] = []  # in `_pending`: where transactions end
        self._columns = [array("Q") for _ in range(_COLUMNS)]
        self._bodies: list[bytes] = []
        self._bodies_bytes = 0
        self._blocks: list[bytes | bytearray | Pieces] = []
        self._numbered = 0
        self._deferred: list[Callable[[], None]] = []
        self.batch: object | None = None
        """What `store.batch` has gathered and deferred, where that is all that is deferred."""
        self.touched = False
        """Whether anything changed, logged or not."""
        self.changed_system: set[int] = set()
        """Ids of the system spaces that have changed, or nearly did."""

    @property
    def schema(self) -> Schema:
        """The definitions as this group has changed them so far."""
        return self.engine.schema

    @property
    def vclock(self) -> VClock:
        """The state after all transactions that were ended."""
        return VClock(dict(filter(itemgetter(1), enumerate(self._lsns))))

    @property
    def last_lsn(self) -> int:
        """Ours of the last row so far, where no row of the open transaction is local."""
        return self._lsns[self.replica_id] + len(self._pending)

    # --- statements -------------------------------------------------------------------------------

    def execute(self, request: Request) -> tuple[bytes | None, bytes | None]:
        """Apply one request as part of the open transaction.

        Returns the tuple before and after it. Raises `RequestError`; then the transaction is to be
        rolled back to a mark, or given up.
        """
        space = self.schema.space(request.space_id)
        if space.is_view:
            raise RequestError(ErrorCode.VIEW_IS_RO, f"View '{space.name}' is read-only")
        self._check_change(space)
        if request.type in (RowType.INSERT, RowType.REPLACE) and space.sequence is not None:
            request = fill_sequence(self.engine, space, request)
        old, new, logged = self.engine.execute(space, request)
        self.touched = True
        if space.is_system:
            self.changed_system.add(space.id)
        if space.id == SystemSpace.CLUSTER and (old is not None or new is not None):
            check_cluster_row(old, new, self.replica_id)
        if space.is_system and ddl.defines(space.id):
            ddl.apply(
                self.engine,
                space.id,
                old,
                new,
                is_insert=request.type == RowType.INSERT,
                trusted=False,
            )
            self.changed_schema = True
        if not space.is_temporary:
            self._draft(int(logged.type), encode_body(logged), space)
        return old, new

    def _check_change(self, space: SpaceDef) -> None:
        """Without a place in `_cluster` rows that others would see cannot be signed; and behind
        rows that wait a row of ours would have to wait for what another instance decides."""
        if self.waiting and not space.is_temporary:
            raise RequestError(
                ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS,
                f"Found uncommitted sync transactions from other instance with id "
                f"{self.waiting.owner}",
                hint="they wait for the CONFIRM or ROLLBACK of their master: follow it, or decide "
                "with `Log.end_waiting`",
                details={"replica_id": self.waiting.owner, "transactions": len(self.waiting)},
            )
        if not (self.replica_id or space.is_local or space.is_temporary):
            raise _anonymous()

    def _draft(self, kind: int, body: bytes, space: SpaceDef) -> None:
        self._pending.append((kind, body, space))
        self._pending_bytes += len(body)
        if self._pending_bytes > TRANSACTION_BYTES:
            raise LimitExceeded(
                "TRANSACTION_BYTES",
                TRANSACTION_BYTES,
                self._pending_bytes,
                hint="divide it into several transactions",
            )

    def log(self, kind: RowType, body: bytes, space: SpaceDef) -> None:
        """Log a row whose effect is applied by somebody else, as part of the open transaction."""
        self._check_change(space)
        self.touched = True
        self._draft(int(kind), body, space)

    def mark(self) -> Mark:
        """A place in the open transaction to roll back to."""
        return Mark(
            self.txn.mark(),
            self._numbered,
            self.schema,
            len(self._pending),
            self._pending_bytes,
            len(self._borders),
            tuple(self.waiting),
            tuple(self.waiting.undone),
        )

    def rollback(self, mark: Mark) -> None:
        """Undo the statements since `mark`. Raises `Spoiled` where only all can be undone."""
        if self._numbered != mark.numbered:
            raise Spoiled
        self._end_trial()
        self.txn.rollback(mark.txn)
        self.waiting = SynchroQueue(mark.waiting, mark.undone)
        self.engine.schema = mark.schema
        del self._pending[mark.rows :]
        del self._borders[mark.borders :]
        self._pending_bytes = mark.bytes

    def add_replicated(self, columns: RowColumns, first: int, last: int) -> bool:
        """Apply one transaction of another instance and log its rows as they are.

        Rows first … last - 1 of `columns`, with their own replica id, lsn and time. False, and
        nothing done, where its rows are here already. Raises `RequestError`; then the group is to
        be rolled back to a mark. Nothing of it can be rolled back later.
        """
        replica_id, lsn = columns.replica_id[last - 1], columns.lsn[last - 1]
        if not 0 < replica_id < VCLOCK_COMPONENTS:
            text = f"a row of replica {replica_id} cannot come from another instance"
            raise RequestError(ErrorCode.INVALID_MSGPACK, text)
        if lsn <= self._lsns[replica_id]:
            return False
        if columns.type[last - 1] in DECISIONS:
            self._decide(Decision.of(columns, last - 1))
        elif self.waiting or any(map(self.schema.is_synchronous, columns.space_id[first:last])):
            self._hold(columns, first, last)
        else:
            for row in range(first, last):
                self._apply(columns, row)
        names = ("type", "replica_id", "group_id", "lsn", "timestamp", "tsn", "flags")
        for column, name in zip(self._columns, names, strict=True):
            column.extend(columns.column(name)[first:last])
        bodies = [columns.body_bytes(row) for row in range(first, last)]
        self._bodies += bodies
        self._numbered += len(bodies)
        self._bodies_bytes += sum(map(len, bodies))
        self._lsns[replica_id] = lsn
        self.touched = True
        if self._bodies_bytes >= BLOCK_TARGET_BYTES:
            self._flush()
        return True

    def _apply(self, columns: RowColumns, row: int) -> None:
        space = apply_row(self.engine, columns, row)
        if space is not None and space.is_system:
            self.changed_system.add(space.id)
            self.changed_schema = self.changed_schema or ddl.defines(space.id)

    def _hold(self, columns: RowColumns, first: int, last: int) -> None:
        """Let a transaction wait, if it could be applied behind what waits already."""
        size = self.waiting.size_bytes + columns.end_offset[last - 1] - columns.row_offset[first]
        if size > SYNCHRO_QUEUE_BYTES:
            raise LimitExceeded("SYNCHRO_QUEUE_BYTES", SYNCHRO_QUEUE_BYTES, size)
        entry = Entry.of(columns, first, last, self.vclock)
        self._check_owner(entry)
        trial = self._trial
        if trial is None:
            trial = Engine(self.txn.child(), self.schema, self.engine.plans)
            self._trial = trial
            for other in self.waiting:
                rows = other.columns()
                for row in range(len(rows)):
                    apply_row(trial, rows, row)
        try:
            for row in range(first, last):
                apply_row(trial, columns, row)
        except RequestError:
            self._end_trial()
            raise
        self.waiting.hold(entry)

    def _check_owner(self, entry: Entry) -> None:
        if not self.waiting or entry.replica_id == self.waiting.owner:
            return
        schema = (self._trial or self.engine).schema
        if any(map(schema.is_synchronous, entry.spaces)):
            raise RequestError(
                ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS,
                f"Found uncommitted sync transactions from other instance with id "
                f"{self.waiting.owner}",
            )

    def _decide(self, decision: Decision) -> None:
        """Apply what a CONFIRM or ROLLBACK lets go on."""
        self._end_trial()
        for entry in self.waiting.decide(decision, lambda space: self.schema.is_synchronous(space)):
            columns = entry.columns()
            for row in range(len(columns)):
                self._apply(columns, row)

    def _end_trial(self) -> None:
        """What was applied on trial is forgotten."""
        self._trial = None

    def end_waiting(self, kind: RowType) -> int:
        """Decide ourselves about all that waits, as part of no transaction; a row of ours says so.
        Returns how many transactions waited."""
        count = len(self.waiting)
        if count and not self.replica_id:
            raise _anonymous()
        if count:
            owner = self.waiting.owner
            lsns = [entry.lsn for entry in self.waiting if entry.replica_id == owner]
            decision = Decision(kind, owner, lsns[-1] if kind == RowType.CONFIRM else lsns[0])
            self._decide(decision)
            self._lsns[self.replica_id] += 1
            lsn = self._lsns[self.replica_id]
            body = encode_decision(owner, decision.lsn)
            self._row(int(kind), self.replica_id, 0, lsn, lsn, FLAG_COMMIT, body)
            self.touched = True
        return count

    # --- transactions -----------------------------------------------------------------------------

    def divide(self) -> None:
        """What follows is another transaction. Both can still be rolled back together."""
        self._borders.append(len(self._pending))

    def end_transaction(self) -> None:
        """Give the rows since the last call their lsns; they can no longer be rolled back alone."""
        rows, borders = self._pending, self._borders
        self._pending, self._pending_bytes, self._borders = [], 0, []
        start = 0
        for border in (*borders, len(rows)):
            if border > start:
                self._end(rows[start:border])
            start = border

    def _end(self, rows: list[tuple[int, bytes, SpaceDef]]) -> None:
        drafts = [(kind, body, space.is_local) for kind, body, space in rows]
        if drafts[-1][2] and not all(local for _, _, local in drafts):
            drafts.append((RowType.NOP, b"", False))
        numbers = []
        for _, _, local in drafts:
            replica_id = 0 if local else self.replica_id
            self._lsns[replica_id] += 1
            numbers.append((replica_id, self._lsns[replica_id]))
        tsn = next((lsn for replica_id, lsn in numbers if replica_id), numbers[0][1])
        last = len(drafts) - 1
        for i, ((kind, body, local), (replica_id, lsn)) in enumerate(
            zip(drafts, numbers, strict=True)
        ):
            flags = FLAG_COMMIT if i == last else 0
            self._row(kind, replica_id, GROUP_LOCAL if local else 0, lsn, tsn, flags, body)
        if any(space.is_sync for _, _, space in rows):
            ours = self.replica_id
            body = encode_decision(ours, self._lsns[ours])
            self._lsns[ours] += 1
            lsn = self._lsns[ours]
            self._row(RowType.CONFIRM, ours, 0, lsn, lsn, FLAG_COMMIT, body)
        if self._bodies_bytes >= BLOCK_TARGET_BYTES:
            self._flush()

    def _row(
        self, kind: int, replica_id: int, group_id: int, lsn: int, tsn: int, flags: int, body: bytes
    ) -> None:
        row = (kind, replica_id, group_id, lsn, self._now_bits, tsn, flags)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._bodies.append(body)
        self._bodies_bytes += len(body)
        self._numbered += 1

    def add_run(
        self,
        space: SpaceDef,
        source: bytes,
        bounds: array[int],
        prefix: bytes,
        *,
        kind: RowType = RowType.INSERT,
        one_transaction: bool,
        ends: array[int] | None = None,
    ) -> None:
        """Log many rows whose effect is already applied: prefix + slices of `source`.

        `kind`: INSERT or REPLACE; `ends`: before which row each transaction ends, the last before
        the end of all; without it each row is a transaction, or all are one.
        """
        self._check_change(space)
        self._flush()
        count = len(bounds) - 1
        replica_id = 0 if space.is_local else self.replica_id
        first = self._lsns[replica_id] + 1
        if ends is not None and len(ends) < count:
            self._add_divided(space, kind, source, bounds, prefix, ends)
            return
        self._blocks += _run_blocks(
            kind,
            replica_id=replica_id,
            first_lsn=first,
            timestamp=self.now,
            source=source,
            bounds=bounds,
            prefix=prefix,
            is_local=space.is_local,
            one_transaction=one_transaction,
        )
        self._lsns[replica_id] += count
        self._numbered += count
        self.touched = True

    def _add_divided(
        self,
        space: SpaceDef,
        kind: RowType,
        source: bytes,
        bounds: array[int],
        prefix: bytes,
        ends: array[int],
    ) -> None:
        """`add_run` of transactions of several rows: blocks that hold whole ones."""
        replica_id = 0 if space.is_local else self.replica_id
        lsn = self._lsns[replica_id] + 1
        bits = self._now_bits
        first = start = 0
        tsns, flags = array("Q"), array("Q")
        for end in ends:
            count = end - start
            tsns.extend(repeat(lsn + start, count))
            flags.extend(repeat(0, count - 1))
            flags.append(FLAG_COMMIT)
            start = end
            size = bounds[end] - bounds[first] + (end - first) * len(prefix)
            if size < BLOCK_TARGET_BYTES and end < len(bounds) - 1:
                continue
            self._blocks.append(
                encode_columns(
                    type=kind,
                    replica_id=replica_id,
                    group_id=GROUP_LOCAL if space.is_local else 0,
                    lsn=array("Q", range(lsn + first, lsn + end)),
                    timestamp_bits=bits,
                    tsn=tsns,
                    flags=flags,
                    source=source,
                    starts=bounds[first:end],
                    stops=bounds[first + 1 : end + 1],
                    prefix=prefix,
                )
            )
            first = end
            tsns, flags = array("Q"), array("Q")
        self._lsns[replica_id] += len(bounds) - 1
        self._numbered += len(bounds) - 1
        self.touched = True

    def add_tuples(
        self, space: SpaceDef, tuples: Sequence[LargeTuple], prefix: bytes
    ) -> list[Pieces]:
        """Log large INSERTs whose effect is already applied, a transaction each, without joining
        them: their bytes are written from where they are. Returns the blocks that they are in,
        each as `kernel.lay` puts them."""
        self._check_change(space)
        self._flush()
        replica_id = 0 if space.is_local else self.replica_id
        made = _large_blocks(
            tuples,
            replica_id=replica_id,
            first_lsn=self._lsns[replica_id] + 1,
            timestamp=self.now,
            prefix=prefix,
            is_local=space.is_local,
        )
        self._lsns[replica_id] += len(tuples)
        self._numbered += len(tuples)
        self._blocks += made
        self.touched = True
        return made

    def defer(self, work: Callable[[], None]) -> None:
        """Have `work` on the state done when the log was written: nothing may refuse it."""
        self._deferred.append(work)

    def run_deferred(self) -> None:
        """Do what was deferred."""
        work, self._deferred, self.batch = self._deferred, [], None
        for each in work:
            each()

    def blocks(self) -> list[bytes | bytearray | Pieces]:
        """The row bytes of all transactions ended so far, a block each."""
        self._end_trial()
        self._flush()
        return self._blocks

    def _flush(self) -> None:
        if not self._bodies:
            return
        kind, replica_id, group_id, lsn, bits, tsn, flags = self._columns
        ends = array("Q", accumulate(map(len, self._bodies)))
        starts = array("Q", (0, *ends[:-1]))
        self._blocks.append(
            encode_columns(
                type=kind,
                replica_id=replica_id,
                group_id=group_id,
                lsn=lsn,
                timestamp_bits=bits,
                tsn=tsn,
                flags=flags,
                source=b"".join(self._bodies),
                starts=starts,
                stops=ends,
            )
        )
        self._columns = [array("Q") for _ in range(_COLUMNS)]
        self._bodies, self._bodies_bytes = [], 0


def _anonymous() -> RequestError:
    return RequestError(
        ErrorCode.READONLY,
        "Can't modify data because this instance is in read-only mode.",
        hint="it is an anonymous replica: only local and temporary spaces can be changed",
    )


def _run_blocks(
    kind: RowType,
    *,
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    source: bytes,
    bounds: array[int],
    prefix: bytes,
    is_local: bool,
    one_transaction: bool = False,
) -> list[bytearray]:
    """The row bytes of many alike rows, a block each: see `encode_run`."""
    per_block = count = len(bounds) - 1
    if not one_transaction and count > 1:
        each = max((bounds[-1] - bounds[0]) // count, 1) + len(prefix)
        per_block = max(BLOCK_TARGET_BYTES // each, 1)
    return [
        encode_run(
            type=kind,
            replica_id=replica_id,
            first_lsn=first_lsn + at,
            timestamp=timestamp,
            source=source,
            bounds=bounds if per_block >= count else bounds[at : at + per_block + 1],
            prefix=prefix,
            group_id=GROUP_LOCAL if is_local else 0,
            one_transaction=one_transaction,
        )
        for at in range(0, count, per_block)
    ]


def _large_blocks(
    tuples: Sequence[LargeTuple],
    *,
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    prefix: bytes,
    is_local: bool,
) -> list[Pieces]:
    """The rows of INSERTs of large tuples, a transaction each, as `kernel.lay` puts them into
    blocks."""
    heads: list[bytearray] = []
    left = len(tuples)
    while left:
        # As many as have lsns of one length, made at once: then each is as long as the others.
        alike = min(left, next(end for end in _WIDER_FROM if end > first_lsn) - first_lsn)
        made = encode_run(
            type=RowType.INSERT,
            replica_id=replica_id,
            first_lsn=first_lsn,
            timestamp=timestamp,
            source=b"",
            bounds=array("Q", bytes(8 * (alike + 1))),
            prefix=prefix,
            group_id=GROUP_LOCAL if is_local else 0,
        )
        size = len(made) // alike
        heads += [made[at : at + size] for at in range(0, len(made), size)]
        first_lsn += alike
        left -= alike
    blocks: list[Pieces] = []
    at = 0
    while at < len(tuples):
        parts: list[bytes | bytearray | memoryview] = []
        at, size = kernel.lay(heads, tuples, at, BLOCK_LARGE_BYTES, parts)
        blocks.append(Pieces(parts, size))
    return blocks
