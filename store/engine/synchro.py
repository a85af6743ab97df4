"""Rows that wait for the decision of a synchronous replication: CONFIRM or ROLLBACK.

A transaction with a row of a space that has `is_sync` is logged first and decided later: its
instance logs CONFIRM once a quorum has it, or ROLLBACK once its timeout has passed. Until then it
waits, and with it everything that comes after it in the log, of whatever space: that would have to
be undone with it. So what waits is the end of the log, in its order, and the state is that of the
position before the first transaction that waits (`applied`). Whoever reads the log from there on
finds the same queue again, which is why none of it is kept anywhere else: a state never holds a row
that could still be undone, whenever the process dies.

========  ==========================================================================================
row       effect; its body names the instance whose rows are meant, the queue's owner, and a lsn
========  ==========================================================================================
CONFIRM   synchronous transactions up to that lsn are applied, in order, and what waits between and
          behind them up to the next synchronous one
ROLLBACK  transactions of the owner from that lsn on, and local ones behind them, are dropped
========  ==========================================================================================

A decision about another instance than the queue's owner, or about rows that do not wait, changes
nothing. Transactions of further instances that wait behind those of the owner are never dropped.
Source: Tarantool 2.6.0, `txn_limbo.c`, observed: the lsn of a transaction is that of its last row
that is not local; local transactions wait too, and are rolled back with those before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from logweir.errors import DecodeError, ErrorCode, RequestError
from logweir.wal.columns import RowColumns
from logweir.wal.mp import encode_uint, unpack
from logweir.wal.settled import Span
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Key, RowType

DECISIONS: Final = frozenset((RowType.CONFIRM, RowType.ROLLBACK))
"""Types of rows that decide about those that wait."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction that waits. `replica_id`, `lsn`: of its last row that is not local, 0 if
    all are; `before`: the position in front of it; `rows`: their bytes; `spaces`: ids of the spaces
    that they change; `spans`: their lsns."""

    replica_id: int
    lsn: int
    before: VClock
    rows: bytes
    spaces: frozenset[int]
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, columns: RowColumns, first: int, last: int, before: VClock) -> Entry:
        """The transaction of rows first … last - 1."""
        replica_id = lsn = 0
        spans: dict[int, Span] = {}
        for row in range(first, last):
            origin, number = columns.replica_id[row], columns.lsn[row]
            spans[origin] = (origin, spans.get(origin, (origin, number))[1], number)
            if origin:
                replica_id, lsn = origin, number
        data = columns.data[columns.row_offset[first] : columns.end_offset[last - 1]]
        spaces = frozenset(columns.space_id[first:last])
        return cls(replica_id, lsn, before, data, spaces, tuple(spans.values()))

    def without_rows(self) -> Entry:
        """The same, but what they are; `columns` gives none."""
        return replace(self, rows=b"")

    def columns(self) -> RowColumns:
        """Its rows."""
        return RowColumns.scan(self.rows)


@dataclass(frozen=True, slots=True)
class Decision:
    """A row of type CONFIRM or ROLLBACK. `owner`: whose rows are meant; `lsn`: below 0 for a
    ROLLBACK of all that waits, which 2.6.0 logs if its timeout passes before the row has its lsn
    (observed: 2^64-1)."""

    type: RowType
    owner: int
    lsn: int

    @classmethod
    def of(cls, columns: RowColumns, row: int) -> Decision:
        """What a row says. Raises `RequestError` if it says nothing."""
        try:
            body = unpack(columns.body_bytes(row))
            lsn = body[Key.LSN]
            signed = lsn - 2**64 if lsn >= 2**63 else lsn
            return cls(RowType(columns.type[row]), body[Key.REPLICA_ID], signed)
        except (DecodeError, KeyError, TypeError) as error:
            kind = RowType(columns.type[row]).name
            text = f"a {kind} does not say whose rows it is about, and up to which"
            raise RequestError(ErrorCode.INVALID_MSGPACK, text) from error


def encode_decision(owner: int, lsn: int) -> bytes:
    """The body of a CONFIRM or ROLLBACK."""
    return b"\x82\x02" + encode_uint(owner) + b"\x03" + encode_uint(lsn)


class SynchroQueue(deque[Entry]):
    """The transactions that wait, in the order of the log. The first one is synchronous."""

    __slots__ = ("size_bytes", "undone")

    def __init__(self, entries: Iterable[Entry] = (), undone: Iterable[Span] = ()) -> None:
        super().__init__(entries)
        self.undone = list(undone)
        """The rows that were rolled back."""
        self.size_bytes = sum([len(entry.rows) for entry in self]) if self else 0
        """Bytes of all their rows."""

    @property
    def owner(self) -> int:
        """The instance that decides; there is one where something waits."""
        return self[0].replica_id

    @property
    def applied(self) -> VClock:
        """The position in front of all that waits, where something does."""
        return self[0].before

    @property
    def limit(self) -> VClock | None:
        """As `applied`, None if nothing waits."""
        return self.applied if self else None

    def hold(self, entry: Entry) -> None:
        """Let a transaction wait."""
        self.append(entry)
        self.size_bytes += len(entry.rows)

    def decide(self, decision: Decision, is_sync: Callable[[int], bool]) -> Iterator[Entry]:
        """Drop what a decision rolls back; give, in order, what is to be applied and waits no
        longer. `is_sync`: whether a space is synchronous, asked when all before was applied."""
        if not self or decision.owner != self.owner:
            return
        confirmed = decision.lsn
        if decision.type == RowType.ROLLBACK:
            confirmed = -1
            self._drop(decision.lsn)
        while self:
            entry = self[0]
            if entry.lsn > confirmed and any(map(is_sync, entry.spaces)):
                return
            yield entry
            self.popleft()
            self.size_bytes -= len(entry.rows)

    def _drop(self, lsn: int) -> None:
        owner, kept = self.owner, list[Entry]()
        is_undone = False
        for entry in self:
            is_undone = is_undone or (entry.replica_id == owner and entry.lsn >= lsn)
            if is_undone and entry.replica_id in (0, owner):
                self.undone += entry.spans
            else:
                kept.append(entry)
        self.clear()
        self.extend(kept)
        self.size_bytes = sum(len(entry.rows) for entry in kept)
