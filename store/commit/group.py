"""One group: the changes that share one layer, one write and one sync.

Statements go through the compiled executor (`statementkernel.pyx`), or, where that does not know
them, one by one through the reference engine; both change the group's own layer. What is to be
logged of them becomes rows (`store.commit.rows`); rows of temporary spaces are not logged. What
waits for another instance's CONFIRM (`store.engine.synchro`) is logged, and applied on trial only,
in a layer above; meanwhile nothing can be changed here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import SYNCHRO_QUEUE_BYTES, TRANSACTION_BYTES, VCLOCK_COMPONENTS
from logweir.store.commit.applying import RefusedRow, apply_row, apply_rows
from logweir.store.commit.marks import Large, Mark, Outcome, Spoiled
from logweir.store.commit.rows import COMPILED, Draft, Rows
from logweir.store.engine import ddl
from logweir.store.engine.batches import Answers
from logweir.store.engine.computing import KEPT, MADE, Computer
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import COLUMNS, DONE, LAST, RESULTS, UNMET, Answer, Executor
from logweir.store.engine.reads import compiled
from logweir.store.engine.reference import COMPUTED, found_by, is_expected, request_of, selected
from logweir.store.engine.refusal import refusal
from logweir.store.engine.request import Request, encode_body
from logweir.store.engine.sequence import fill_sequence
from logweir.store.engine.synchro import DECISIONS, Decision, Entry, SynchroQueue
from logweir.store.schema.definition import SYSTEM_ID_MAX, SpaceDef, SystemSpace
from logweir.store.schema.schema import Schema, check_cluster_row
from logweir.store.schema.values import LargeTuple
from logweir.store.state.layered import LayeredTxn
from logweir.store.state.references import values_of
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

if TYPE_CHECKING or COMPILED:
    from logweir.store.state.layerkernel import Space

__all__ = ["Group"]

_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_REFUSED: Final = 1
_REFERRED: Final = 2
_NOTHING: Final = (0, 0, 0)
_BODY_END: Final = 9


class Group(Outcome):
    """Changes on their way. `replica_id`: ours; `now`: seconds since the epoch, of all its rows;
    `waiting`: the transactions that wait for their CONFIRM, in front of it; `executor`: one of the
    store, for who commits."""

    def __init__(
        self,
        txn: LayeredTxn,
        schema: Schema,
        plans: Plans,
        executor: Executor,
        *,
        vclock: VClock,
        replica_id: int,
        now: float,
        waiting: Iterable[Entry] = (),
    ) -> None:
        super().__init__()
        self.txn = txn
        self.engine = Engine(txn, schema, plans)
        self.waiting = SynchroQueue(waiting)
        self._trial: Engine | None = None
        self.replica_id = replica_id
        self.now = now
        self.changed_schema = False
        self._executor = executor
        self._rows = Rows(vclock, replica_id, now)
        self._pending: list[Draft] = []
        self._pending_bytes = 0
        self._borders: list[int] = []  # in `_pending`: where transactions end
        self._numbered = 0
        self._large: list[Large] = []
        self.touched = False
        """Whether anything changed, logged or not."""

    @property
    def schema(self) -> Schema:
        """The definitions as this group has changed them so far."""
        return self.engine.schema

    @property
    def vclock(self) -> VClock:
        """The state after all transactions that were ended."""
        return self._rows.vclock

    @property
    def last_lsn(self) -> int:
        """Ours of the last row so far, where no row of the open transaction is local."""
        return self._rows.lsns[self.replica_id] + len(self._pending)

    # --- statements -------------------------------------------------------------------------------

    def execute(self, request: Request) -> tuple[bytes | None, bytes | None]:
        """Apply one request as part of the open transaction.

        Returns the tuple before and after it. Raises `RequestError` with nothing of it done.
        """
        kind, space_id, other, first, ops, index_id, index_base = request
        space = self._compiled(self.engine.schema.get(space_id))
        if kind in _BY_KEY:
            first, other = other, first
        if space is None or first is None or other is not None:
            return self._execute_referred(request)
        definition = space.plan.source
        mark, count, size = self.txn.mark(), len(self._pending), self._pending_bytes
        try:
            status, old, new, body, why = self._executor.one(
                kind, index_id, index_base, first, ops, space
            )
            if status == DONE:
                if body is not None and not definition.is_temporary:
                    self._draft(kind, body, definition)
                self.touched = True
                return old, new
        except BaseException:  # also an interrupt: what is logged is what was done
            self.txn.rollback(mark)
            del self._pending[count:]
            self._pending_bytes = size
            raise
        if status == _REFERRED:
            return self._execute_referred(request)
        raise refusal(definition, *why, ops or b"")

    def answer(self, request: Request) -> bytes | None:
        """`execute`. Returns the new tuple, of a DELETE the old one, of an UPSERT nothing."""
        old, new = self.execute(request)
        if request.type is RowType.UPSERT:
            return None
        return old if request.type is RowType.DELETE else new

    def _execute_referred(self, request: Request) -> tuple[bytes | None, bytes | None]:
        """`execute` by the reference engine alone."""
        mark = self.mark()
        try:
            old, new, body = self._refer(request)
            space = self.schema.space(request.space_id)
            if not space.is_temporary:
                self._draft(int(request.type), body, space)
        except BaseException:
            self.rollback(mark)
            raise
        self.touched = True
        return old, new

    def compute(
        self, space_id: int, given: bytes, computer: Computer, how: int, number: int
    ) -> Answer:
        """Apply a REPLACE whose tuple the computer makes (`store.engine.computing`) as part of the
        open transaction. `given`, `how`, `number`: what it is told. Returns what came of it; unless
        its status is `DONE` nothing is done. Raises `RequestError`, then also."""
        mark, space = self.mark(), self._compiled(self.engine.schema.get(space_id))
        request = Request(RowType.REPLACE, space_id, tuple=given)
        try:
            answer: Answer = _REFERRED, None, None, None, _NOTHING
            if space is not None:
                which = (request.type, 0, 0, given, None, space)
                answer = self._executor.one(*which, computer, how, number)
            definition = self.schema.space(space_id)
            if answer[0] == _REFUSED:
                raise refusal(definition, *answer[4], b"")
            if answer[0] == _REFERRED:
                found = found_by(self.engine, definition, request)
                answer = self._computed(request, found, computer, how, number)
            if answer[3] is not None:
                if not definition.is_temporary:
                    self._draft(request.type, answer[3], definition)
                self.touched = True
        except BaseException:  # also an interrupt: what is logged is what was done
            self.rollback(mark)
            raise
        return answer

    def execute_batch(
        self,
        data: bytes,
        columns: array[int],
        ids: Sequence[int],
        *,
        limit_bytes: int,
        whole: bool = False,
        is_open: bool = False,
        is_inside: bool = False,
        computer: Computer | None = None,
    ) -> Answers:
        """Apply many statements, behind the open transaction, which then is ended; or, if
        `is_inside`, as part of it.

        `columns`: as `statementkernel.pyx` tells, with spans in `data` and the places of spaces in
        `ids`, none of which is a system space. Those behind the transaction with which the answers
        have `limit_bytes` are left out. `whole`: raises the error of the first that is refused, and
        then the group is to be given up; else that stands in the answers, and no trace of it stays.
        `is_open`: the transaction of the last statement goes on in the next batch; `computer`: for
        those that want one (`store.engine.computing`). From what it halts on, or a SELECT that is
        long (`reference.selected`), they are left out.
        """
        schema = self.engine.schema
        spaces = [schema.get(space_id) for space_id in ids]
        answers = Answers(
            data,
            columns,
            *self._executor.execute(
                data,
                columns,
                [self._compiled(space) for space in spaces],
                self.txn.undo,
                lambda number: self._referred(data, columns, number, ids, computer),
                limit_bytes,
                computer,
            ),
            spaces,
        )
        if whole and answers.refused:
            raise answers.error(answers.cause)
        self._log_batch(answers, is_open=is_open, is_inside=is_inside)
        return answers

    def _compiled(self, space: SpaceDef | None) -> Space | None:
        """A space as the executor wants it; None where the reference engine has to look at each
        statement."""
        if space is None or not self.replica_id or self.waiting:
            return None
        return compiled(self.engine, space)

    def _referred(
        self,
        data: bytes,
        columns: array[int],
        number: int,
        ids: Sequence[int],
        computer: Computer | None,
    ) -> Answer:
        """A statement of a batch by the reference engine."""
        if columns[number * COLUMNS] == RowType.SELECT:
            return selected(self.engine, data, columns, number, ids)
        request = request_of(data, columns, number, ids)
        expect, field, value, as_replace = columns[number * COLUMNS + LAST + 1 :][:4]
        if expect:
            found = found_by(self.engine, self.schema.space(request.space_id), request)
            if expect == COMPUTED and computer is not None:
                return self._computed(request, found, computer, field, value)
            if not is_expected(found, expect, field, value):
                return UNMET, found, None, None, _NOTHING
        old, new, body = self._refer(request)
        if as_replace and request.ops is not None and new is not None:
            body = encode_body(Request(RowType.REPLACE, request.space_id, tuple=new))
        return DONE, old, new, body, _NOTHING

    def _computed(
        self, request: Request, found: bytes | None, computer: Computer, how: int, number: int
    ) -> Answer:
        """A REPLACE whose tuple the computer makes."""
        outcome, made, told = computer.refer(how, number, request.tuple or b"", found)
        if outcome == MADE:
            _, new, body = self._refer(request._replace(tuple=made))
            return DONE, None, new, body, told
        if outcome == KEPT:
            return DONE, found, None, None, told
        return outcome, None, None, None, told

    def _refer(self, request: Request) -> tuple[bytes | None, bytes | None, bytes]:
        """One request by the reference engine. What a refused one has done is to be rolled back."""
        space = self.schema.space(request.space_id)
        if space.is_view:
            raise RequestError(ErrorCode.VIEW_IS_RO, f"View '{space.name}' is read-only")
        self._check_change(space)
        if request.type in (RowType.INSERT, RowType.REPLACE) and space.sequence is not None:
            request = fill_sequence(self.engine, space, request)
        old, new, logged = self.engine.execute(space, request)
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
        return old, new, encode_body(logged)

    def _log_batch(self, answers: Answers, *, is_open: bool, is_inside: bool) -> None:
        """Log what is done of a batch."""
        if not any(answers.results[_BODY_END::RESULTS]):
            return
        self.touched = True
        if is_inside:
            rows = answers.logged()
            self._draft_bytes(sum([len(body) for _, body, _ in rows]))
            self._pending += rows
            return
        spaces = [space for space in answers.spaces if space is not None]
        is_local, are_alike = spaces[0].is_local, COMPILED
        for space in spaces:
            if space.is_temporary or space.is_sync or space.is_local != is_local:
                are_alike = False
        if are_alike:
            self.end_transaction()
            self._number(self._rows.add_statements(answers, is_local=is_local, is_open=is_open))
            return
        refused = set(answers.refused)
        for number in range(answers.count):
            space = answers.space(number)
            body = answers.body(number)
            if body and number not in refused and not space.is_temporary:
                self._draft(answers.kind(number), body, space)
            if answers.columns[number * COLUMNS + LAST] and not (
                is_open and number == answers.count - 1
            ):
                self.end_transaction()

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
        self._draft_bytes(len(body))
        self._pending.append((kind, body, space))

    def _draft_bytes(self, more: int) -> None:
        if (size := self._pending_bytes + more) > TRANSACTION_BYTES:
            hint = "divide it into several transactions"
            raise LimitExceeded("TRANSACTION_BYTES", TRANSACTION_BYTES, size, hint=hint)
        self._pending_bytes = size

    def _number(self, count: int) -> None:
        """So many rows have got their lsns: what was done until now cannot be undone alone."""
        if count:
            self._numbered += count
            self.txn.forget()

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
            tuple(self.waiting) if self.waiting else (),
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

    def add_replicated(self, columns: RowColumns, ends: Sequence[int]) -> int:
        """Apply transactions of other instances and log their rows as they are.

        `ends`: behind which row of `columns` each transaction ends, all of them; the rows have
        their own replica id, lsn and time. What is here already is passed over. Returns how many
        transactions that were, all but the first that cannot be applied and those behind it.
        Nothing of them can be rolled back later.
        """
        if self._is_plain(columns, ends[-1]):
            refused = self._apply_all(columns, 0, ends[-1])
            if refused is None:
                count, last = len(ends), ends[-1]
            else:
                self.txn.undo.rollback(refused.mark)
                count = bisect_right(ends, refused.row)
                last = ends[count - 1] if count else 0
            if last:
                self._take_replicated(columns, 0, last)
            return count
        first = 0
        for number, last in enumerate(ends):
            mark = self.mark()
            try:
                self.add_transaction(columns, first, last)
            except RequestError:
                self.rollback(mark)
                return number
            first = last
        return len(ends)

    def _is_plain(self, columns: RowColumns, last: int) -> bool:
        """Whether nothing has to be asked of each transaction up to a row: all are new here, none
        decides or waits, and definitions stay."""
        spaces = set(columns.space_id[:last])
        return not (
            self.waiting
            or last != len(columns)
            or min(spaces) <= SYSTEM_ID_MAX
            or any(map(self.schema.is_synchronous, spaces))
            or not DECISIONS.isdisjoint(columns.type)
            or 0 in columns.replica_id
            or max(columns.replica_id) >= VCLOCK_COMPONENTS
            or columns.raise_lsns(array("Q", self._rows.lsns)) is not None
        )

    def add_transaction(self, columns: RowColumns, first: int, last: int) -> bool:
        """`add_replicated` of one transaction, rows first … last - 1. False, and nothing done,
        where its rows are here already. Raises `RequestError`; then the group is to be rolled back
        to a mark."""
        replica_id, lsn = columns.replica_id[last - 1], columns.lsn[last - 1]
        if not replica_id or max(columns.replica_id[first:last]) >= VCLOCK_COMPONENTS:
            text = f"a row of replica {replica_id} cannot come from another instance"
            raise RequestError(ErrorCode.INVALID_MSGPACK, text)
        if lsn <= self._rows.lsns[replica_id]:
            return False
        self._check_new(columns, first, last)
        if columns.type[last - 1] in DECISIONS:
            self._decide(Decision.of(columns, last - 1))
        elif self.waiting or any(map(self.schema.is_synchronous, columns.space_id[first:last])):
            self._hold(columns, first, last)
        elif (refused := self._apply_all(columns, first, last)) is not None:
            raise refused.error
        self._take_replicated(columns, first, last)
        return True

    def _check_new(self, columns: RowColumns, first: int, last: int) -> None:
        """Raise `RequestError` where a row of a transaction whose end is new is here already, or
        comes out of order: taken again its lsn would stand in the log twice."""
        lsns = list(self._rows.lsns)
        rows = slice(first, last)
        for replica_id, lsn in zip(columns.replica_id[rows], columns.lsn[rows], strict=True):
            if lsn <= lsns[replica_id]:
                raise RequestError(
                    ErrorCode.INVALID_MSGPACK,
                    f"a transaction has lsn {lsn} of replica {replica_id}, which is here already, "
                    "and goes on with rows that are not",
                )
            lsns[replica_id] = lsn

    def _take_replicated(self, columns: RowColumns, first: int, last: int) -> None:
        self._rows.add_columns(columns, first, last)
        self._number(last - first)
        self.touched = True

    def _apply_all(self, columns: RowColumns, first: int, last: int) -> RefusedRow | None:
        """Apply rows, up to one that is refused."""
        refer = partial(self._apply, columns)
        return apply_rows(self._executor, self.engine, columns, first, last, refer=refer)

    def _apply(self, columns: RowColumns, row: int) -> None:
        space_id = columns.space_id[row]
        if space_id <= SYSTEM_ID_MAX:
            self.changed_schema = self.changed_schema or ddl.defines(space_id)
        apply_row(self.engine, columns, row)

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
                self._try(trial, rows, 0, len(rows))
        self._try(trial, columns, first, last)
        self.waiting.hold(entry)

    def _try(self, trial: Engine, columns: RowColumns, first: int, last: int) -> None:
        """Apply rows on trial. Raises `RequestError` for one that is refused."""
        refer = partial(apply_row, trial, columns)
        refused = apply_rows(self._executor, trial, columns, first, last, refer=refer)
        if refused is not None:
            self._end_trial()
            raise refused.error

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
            refused = self._apply_all(columns, 0, len(columns))
            if refused is not None:
                raise refused.error

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
            self._rows.decide(kind, owner, decision.lsn)
            self._number(1)
            self.touched = True
        return count

    # --- transactions -----------------------------------------------------------------------------

    def divide(self) -> None:
        """What follows is another transaction. Both can still be rolled back together."""
        self._borders.append(len(self._pending))

    def end_transaction(self) -> None:
        """Give the rows since the last call their lsns; they can no longer be rolled back alone."""
        rows, borders = self._pending, self._borders
        if not rows:
            borders.clear()
            return
        self._pending, self._pending_bytes, self._borders = [], 0, []
        start = 0
        for border in (*borders, len(rows)):
            if border > start:
                self._rows.end(rows[start:border])
            start = border
        self._number(len(rows))

    def add_tuples(self, space: SpaceDef, keys: Sequence[bytes], tuples: list[LargeTuple]) -> None:
        """INSERT large tuples that nothing refuses into a space without other indexes, each a
        transaction, without joining them: their bytes are written from where they are. `keys`:
        theirs in the primary index."""
        self._check_change(space)
        blocks = self._rows.add_tuples(tuples, space.put_prefix, is_local=space.is_local)
        places = self.txn.hold(tuples)
        self.txn.set_all(space.id, keys, places)
        self._large.append(Large(space.id, keys, places, tuples, blocks))
        self._number(len(tuples))
        self.touched = True

    def written(self) -> None:
        """The log has the blocks: to large tuples that it holds as they are the layer refers."""
        for large in self._large:
            values = values_of(large.tuples, large.blocks)
            self.txn.set_all(large.space_id, large.keys, values, over=large.places)

    def blocks(self) -> list[bytes | bytearray | Pieces]:
        """The row bytes of all transactions ended so far, a block each."""
        self._end_trial()
        return self._rows.blocks()


def _anonymous() -> RequestError:
    return RequestError(
        ErrorCode.READONLY,
        "Can't modify data because this instance is in read-only mode.",
        hint="it is an anonymous replica: only local and temporary spaces can be changed",
    )
