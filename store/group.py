"""One group: the changes that share one LMDB transaction, one write and one sync.

A group turns requests into rows: it applies them through the engine, gives each row its lsn, and
closes each transaction as Tarantool does (`wal.xrow`): rows of local spaces count in component 0
of the vclock; rows of temporary spaces are not logged; a transaction whose last row is local gets
a closing NOP, so that a follower, who does not see the local row, sees its end.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Final

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import (
    BLOCK_LARGE_BYTES,
    BLOCK_TARGET_BYTES,
    TRANSACTION_BYTES,
    VCLOCK_COMPONENTS,
)
from logweir.store import ddl, kernel
from logweir.store.definition import SpaceDef, SystemSpace
from logweir.store.engine import Engine, Plans
from logweir.store.references import LargeTuple
from logweir.store.request import Request, encode_body
from logweir.store.schema import Schema, check_cluster_row
from logweir.store.sequence import fill_sequence, learn_sequence
from logweir.store.state import Txn
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns, encode_columns, encode_run
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, GROUP_LOCAL, RowType

__all__ = ["Group", "Mark", "large_blocks", "run_blocks"]

_COLUMNS: Final = 7
_WIDER_FROM: Final = (1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 64)  # a MsgPack uint takes more bytes
_APPLIED: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a group to roll back to."""

    txn: tuple[int, int]
    schema: Schema
    rows: int
    bytes: int
    borders: int


class Group:
    """Changes on their way. `replica_id`: ours; `now`: seconds since the epoch, of all its rows."""

    def __init__(
        self,
        txn: Txn,
        schema: Schema,
        plans: Plans,
        *,
        vclock: VClock,
        replica_id: int,
        now: float,
    ) -> None:
        self.engine = Engine(txn, schema, plans)
        self.replica_id = replica_id
        self.now = now
        self.changed_schema = False
        self._lsns = vclock.lsns()
        self._pending: list[tuple[int, bytes, bool]] = []  # type, body, local
        self._pending_bytes = 0
        self._borders: list[int] = []  # in `_pending`: where transactions end
        self._columns = [array("Q") for _ in range(_COLUMNS)]
        self._bodies: list[bytes] = []
        self._bodies_bytes = 0
        self._blocks: list[bytes | bytearray | Pieces] = []
        self._deferred: list[Callable[[], None]] = []
        self.deferred_bytes = 0
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
        if not self.replica_id:
            self._check_private(space)
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
            self._draft(int(logged.type), encode_body(logged), space.is_local)
        return old, new

    def _check_private(self, space: SpaceDef) -> None:
        """Without a place in `_cluster` rows that others would see cannot be signed."""
        if not (space.is_local or space.is_temporary):
            raise RequestError(
                ErrorCode.READONLY,
                "Can't modify data because this instance is in read-only mode.",
                hint="it is an anonymous replica: only local and temporary spaces can be changed",
            )

    def _draft(self, kind: int, body: bytes, local: bool) -> None:
        self._pending.append((kind, body, local))
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
        self.touched = True
        self._draft(int(kind), body, space.is_local)

    def mark(self) -> Mark:
        """A place in the open transaction to roll back to."""
        return Mark(
            self.engine.txn.mark(),
            self.schema,
            len(self._pending),
            self._pending_bytes,
            len(self._borders),
        )

    def rollback(self, mark: Mark) -> None:
        """Undo the statements since `mark`. Raises `state.Spoiled` where only all can be undone."""
        self.engine.txn.rollback(mark.txn)
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
        for row in range(first, last):
            if columns.type[row] != RowType.NOP:
                self._apply_replicated(columns, row)
        names = ("type", "replica_id", "group_id", "lsn", "timestamp", "tsn", "flags")
        for column, name in zip(self._columns, names, strict=True):
            column.extend(columns.column(name)[first:last])
        bodies = [columns.body_bytes(row) for row in range(first, last)]
        self._bodies += bodies
        self._bodies_bytes += sum(map(len, bodies))
        self._lsns[replica_id] = lsn
        self.touched = True
        if self._bodies_bytes >= BLOCK_TARGET_BYTES:
            self._flush()
        return True

    def _apply_replicated(self, columns: RowColumns, row: int) -> None:
        kind = columns.type[row]
        if kind not in _APPLIED:
            raise RequestError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {kind}")
        space = self.schema.space(columns.space_id[row])
        if kind in (RowType.UPDATE, RowType.DELETE) and columns.index_id(row):
            return  # it found nothing
        request = Request(
            RowType(kind),
            space.id,
            key=columns.key_bytes(row),
            tuple=columns.tuple_bytes(row),
            ops=columns.ops_bytes(row),
            index_base=columns.index_base[row],
        )
        if space.sequence is not None and request.type in (RowType.INSERT, RowType.REPLACE):
            learn_sequence(self.engine, space, request)
        old, new, _ = self.engine.execute(space, request)
        if space.is_system:
            self.changed_system.add(space.id)
        if space.is_system and ddl.defines(space.id):
            is_insert = request.type == RowType.INSERT
            ddl.apply(self.engine, space.id, old, new, is_insert=is_insert, trusted=True)
            self.changed_schema = True

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

    def _end(self, rows: list[tuple[int, bytes, bool]]) -> None:
        if rows[-1][2] and not all(local for _, _, local in rows):
            rows.append((RowType.NOP, b"", False))
        numbers = []
        for _, _, local in rows:
            replica_id = 0 if local else self.replica_id
            self._lsns[replica_id] += 1
            numbers.append((replica_id, self._lsns[replica_id]))
        tsn = next((lsn for replica_id, lsn in numbers if replica_id), numbers[0][1])
        (bits,) = struct.unpack("Q", struct.pack("d", self.now))
        last = len(rows) - 1
        for i, ((kind, body, local), (replica_id, lsn)) in enumerate(
            zip(rows, numbers, strict=True)
        ):
            flags = FLAG_COMMIT if i == last else 0
            row = (kind, replica_id, GROUP_LOCAL if local else 0, lsn, bits, tsn, flags)
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            self._bodies.append(body)
            self._bodies_bytes += len(body)
        if self._bodies_bytes >= BLOCK_TARGET_BYTES:
            self._flush()

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
        if not self.replica_id:
            self._check_private(space)
        self._flush()
        count = len(bounds) - 1
        replica_id = 0 if space.is_local else self.replica_id
        first = self._lsns[replica_id] + 1
        if ends is not None and len(ends) < count:
            self._add_divided(space, kind, source, bounds, prefix, ends)
            return
        self._blocks += run_blocks(
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
        (bits,) = struct.unpack("Q", struct.pack("d", self.now))
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
        self.touched = True

    def add_tuples(
        self, space: SpaceDef, tuples: Sequence[LargeTuple], prefix: bytes
    ) -> list[Pieces]:
        """Log large INSERTs whose effect is already applied, a transaction each, without joining
        them: their bytes are written from where they are. Returns the blocks that they are in,
        each as `kernel.lay` puts them."""
        self._flush()
        replica_id = 0 if space.is_local else self.replica_id
        made = large_blocks(
            tuples,
            replica_id=replica_id,
            first_lsn=self._lsns[replica_id] + 1,
            timestamp=self.now,
            prefix=prefix,
            is_local=space.is_local,
        )
        self._lsns[replica_id] += len(tuples)
        self._blocks += made
        self.touched = True
        return made

    def defer(self, work: Callable[[], None], size: int) -> None:
        """Have `work` on the state done while the log is being synced: nothing may refuse it.

        `size`: about how many bytes it stores.
        """
        self._deferred.append(work)
        self.deferred_bytes += size

    def run_deferred(self) -> None:
        """Do what was deferred."""
        work, self._deferred, self.batch = self._deferred, [], None
        for each in work:
            each()

    @property
    def has_deferred(self) -> bool:
        """Whether anything was deferred and not yet done."""
        return bool(self._deferred)

    def blocks(self) -> list[bytes | bytearray | Pieces]:
        """The row bytes of all transactions ended so far, a block each."""
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


def run_blocks(
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


def large_blocks(
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
