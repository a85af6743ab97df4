# cython: annotation_typing=False
"""The rows of a group: they get their lsns here, and become blocks.

Each transaction is closed as Tarantool does (`wal.xrow`): rows of local spaces count in component 0
of the vclock; a transaction whose last row is local gets a closing NOP, so that a follower, who
does not see the local row, sees its end. A transaction of ours that changes a synchronous space is
confirmed by a row behind it, in the same block: our quorum is this instance.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `rows.pxd`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import logweir.wal.kernel as kernel
from logweir.limits import BLOCK_LARGE_BYTES, BLOCK_TARGET_BYTES
from logweir.store.engine.batches import Answers
from logweir.store.engine.synchro import encode_decision
from logweir.store.schema import largekernel
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.values import LargeTuple
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns, encode_columns, encode_run
from logweir.wal.vclock import VClock, set_of_vclock, vclock_of_set
from logweir.wal.xrow import FLAG_COMMIT, GROUP_LOCAL, RowType

try:
    from logweir.store.commit.rowkernel import encode_rows, encode_transaction
except ImportError:
    COMPILED = False
else:
    COMPILED = True

_WIDER_FROM: Final = (1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 64)  # a MsgPack uint takes more bytes

Draft = tuple[int, bytes, SpaceDef | None]
"""A row without its lsn: type, body, space; None: of none."""


class Rows:
    """Rows on their way. `replica_id`: ours; `now`: seconds since the epoch, of all its rows."""

    def __init__(self, vclock: VClock, replica_id: int, now: float) -> None:
        self.replica_id = replica_id
        self.now = now
        self.lsns = set_of_vclock(vclock)
        """The last of each replica that has any."""
        self._known = len(vclock)  # of them stand in order
        self._now_bits = kernel.bits_of(now)  # type: ignore[attr-defined]
        self._open: list[bytes | bytearray] = []  # rows of the block that is filled
        self._open_bytes = 0
        self._tsn = 0  # of a transaction that goes on
        self._blocks: list[bytes | bytearray | Pieces] = []

    @property
    def vclock(self) -> VClock:
        """The state after all of them."""
        if len(self.lsns) > self._known:
            self.lsns = dict(sorted(self.lsns.items()))
            self._known = len(self.lsns)
        return vclock_of_set(self.lsns.copy())

    def end(self, rows: list[Draft]) -> None:
        """Take the rows of a transaction, at least one."""
        made, is_sync = encode_transaction(rows, self.lsns, self.replica_id, self._now_bits)
        self._open.append(made)
        self._open_bytes += len(made)
        if is_sync:
            self.decide(RowType.CONFIRM, self.replica_id, self.lsns[self.replica_id])
        if self._open_bytes >= BLOCK_TARGET_BYTES:
            self._seal()

    def decide(self, kind: RowType, owner: int, lsn: int) -> None:
        """A CONFIRM or ROLLBACK of ours, a transaction."""
        self.end([(kind, encode_decision(owner, lsn), None)])

    def add_statements(self, answers: Answers, *, is_local: bool, is_open: bool) -> int:
        """Take what is done of a batch; how many rows that are.

        `is_local`: all its spaces are; else none is, nor is one temporary or synchronous;
        `is_open`: the transaction of the last statement goes on in the next batch.
        """
        replica_id = 0 if is_local else self.replica_id
        first = self.lsns.get(replica_id, 0) + 1
        parts, count = encode_rows(
            answers.columns,
            answers.results,
            answers.out,
            replica_id,
            GROUP_LOCAL if is_local else 0,
            first,
            self._tsn or first,
            is_open,
            self._now_bits,
            BLOCK_TARGET_BYTES,
        )
        if count:
            self.lsns[replica_id] = first + count - 1
        self._tsn = (self._tsn or first) if is_open else 0
        for part in parts:
            self._open.append(part)
            self._open_bytes += len(part)
            if not is_open and self._open_bytes >= BLOCK_TARGET_BYTES:
                self._seal()
        return count

    def add_columns(self, columns: RowColumns, first: int, last: int) -> None:
        """Take rows that have their lsns, whole transactions of other instances."""
        start, flags = first, columns.flags
        while start < last:
            wanted = columns.row_offset[start] + BLOCK_TARGET_BYTES - self._open_bytes
            end = min(max(bisect_left(columns.end_offset, wanted) + 1, start + 1), last)
            while not flags[end - 1] & FLAG_COMMIT:
                end += 1
            part = slice(start, end)
            made = encode_columns(
                type=columns.type[part],
                replica_id=columns.replica_id[part],
                group_id=columns.group_id[part],
                lsn=columns.lsn[part],
                timestamp_bits=columns.timestamp_bits[part],
                tsn=columns.tsn[part],
                flags=columns.flags[part],
                source=columns.data,
                starts=columns.body_offset[part],
                stops=columns.end_offset[part],
            )
            self._open.append(made)
            self._open_bytes += len(made)
            if self._open_bytes >= BLOCK_TARGET_BYTES:
                self._seal()
            start = end
        ids, lsns = columns.replica_id[first:last], columns.lsn[first:last]
        for replica_id, lsn in zip(ids, lsns, strict=True):
            if replica_id and lsn > self.lsns.get(replica_id, 0):
                self.lsns[replica_id] = lsn

    def add_tuples(
        self, tuples: Sequence[LargeTuple], prefix: bytes, *, is_local: bool
    ) -> list[Pieces]:
        """Take INSERTs of large tuples, a transaction each, without joining them: see
        `Group.add_tuples`."""
        self._seal()
        replica_id = 0 if is_local else self.replica_id
        first = self.lsns.get(replica_id, 0) + 1
        made = _large_blocks(
            tuples,
            replica_id=replica_id,
            first_lsn=first,
            timestamp=self.now,
            prefix=prefix,
            is_local=is_local,
        )
        if tuples:
            self.lsns[replica_id] = first + len(tuples) - 1
        self._blocks += made
        return made

    def blocks(self) -> list[bytes | bytearray | Pieces]:
        """The row bytes of all of them, a block each."""
        self._seal()
        return self._blocks

    def _seal(self) -> None:
        """What comes next is in another block."""
        if self._open:
            whole = self._open[0] if len(self._open) == 1 else b"".join(self._open)
            self._blocks.append(whole)
            self._open, self._open_bytes = [], 0


def _encode_plain(
    drafts: list[Draft], lsns: dict[int, int], replica_id: int, timestamp_bits: int
) -> tuple[bytes | bytearray, bool]:
    """See `encode_transaction` in `rowkernel.pyx`."""
    local = [space is not None and space.is_local for _, _, space in drafts]
    is_sync = any([space is not None and space.is_sync for _, _, space in drafts])
    rows = [(kind, body) for kind, body, _ in drafts]
    if local[-1] and not all(local):
        rows.append((RowType.NOP, b""))
        local.append(False)
    replicas = [0 if is_local else replica_id for is_local in local]
    given = []
    for component in replicas:
        lsns[component] = lsns.get(component, 0) + 1
        given.append(lsns[component])
    ends = list(accumulate([len(body) for _, body in rows]))
    made = encode_columns(
        type=[kind for kind, _ in rows],
        replica_id=replicas,
        group_id=[GROUP_LOCAL if is_local else 0 for is_local in local],
        lsn=given,
        timestamp_bits=timestamp_bits,
        tsn=given[local.index(False) if False in local else 0],
        flags=[*[0] * (len(rows) - 1), FLAG_COMMIT],
        source=b"".join([body for _, body in rows]),
        starts=[0, *ends[:-1]],
        stops=ends,
    )
    return made, is_sync


def _large_blocks(
    tuples: Sequence[LargeTuple],
    *,
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    prefix: bytes,
    is_local: bool,
) -> list[Pieces]:
    """The rows of INSERTs of large tuples, a transaction each, as `largekernel.lay` puts them into
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
        at, size = largekernel.lay(heads, tuples, at, BLOCK_LARGE_BYTES, parts)
        blocks.append(Pieces(parts, size))
    return blocks


if not TYPE_CHECKING and not COMPILED:
    encode_transaction = _encode_plain
