# cython: annotation_typing=False
"""One group: the changes that share one layer, one write and one sync.

Statements go through the compiled executor (`statementkernel.pyx`), or, where that does not know
them, one by one through the reference engine; both change the group's own layer. What is to be
logged of them becomes rows (`store.commit.rows`); rows of temporary spaces are not logged. What
waits for another instance's CONFIRM (`store.engine.synchro`) is logged, and applied on trial only,
in a layer above; meanwhile nothing can be changed here. `group.pxd` has the types for Cython.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import NotImplementedType
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import SYNCHRO_QUEUE_BYTES, TRANSACTION_BYTES, VCLOCK_COMPONENTS
from logweir.store.commit import applying
from logweir.store.commit.applying import RefusedRow, anonymous, apply_row
from logweir.store.commit.marks import Large, Mark, Spoiled
from logweir.store.commit.rows import COMPILED, Rows
from logweir.store.engine import ddl, reads
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.computing import KEPT, MADE, Computer
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import COLUMNS, DONE, LAST, UNMET, Answer, Drafts, Executor
from logweir.store.engine.reference import COMPUTED, found_by, is_expected, request_of, selected
from logweir.store.engine.request import Request, encode_body, key_bytes
from logweir.store.engine.rules import check_late, check_row
from logweir.store.engine.sequence import fill_sequence
from logweir.store.engine.statements import Row, answered, request_for
from logweir.store.engine.synchro import DECISIONS, Decision, Entry, SynchroQueue
from logweir.store.schema.access import ADMIN, Access
from logweir.store.schema.definition import SYSTEM_ID_MAX, SpaceDef, SystemSpace
from logweir.store.schema.refused import refused
from logweir.store.schema.schema import Schema, check_cluster_row
from logweir.store.schema.values import LargeTuple
from logweir.store.state.references import values_of
from logweir.store.state.stackkernel import Layer, LayeredTxn
from logweir.wal.block import Pieces
from logweir.wal.columns import RowColumns
from logweir.wal.mp import Value, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

if TYPE_CHECKING or COMPILED:
    from logweir.store.schema.plankernel import Plan
    from logweir.store.state.layerkernel import Space

_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_NOTHING: Final = (0, 0, 0)
Changed = tuple[bytes | None, bytes | None]  # a tuple before and after
_NONE_WAITS: Final = SynchroQueue()  # of all groups in front of which none does


class Group:
    """Changes on their way. `replica_id`: ours; `now`: seconds since the epoch, of all its rows;
    `waiting`: the transactions that wait for their CONFIRM, in front of it; `executor`: one of the
    store, for who commits.

    What becomes of it: see `store.commit.ahead`. `below`: the newest one that it is made on and
    that was not durable; once it has ended `layer` and `made` are its changes and its blocks, of
    `made_bytes`. `done`: it is durable and published, or dropped because of `error`; `finished` is
    called then, in the thread that wrote it."""

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
        waiting: Sequence[Entry] = (),
    ) -> None:
        self.below: Group | None = None
        self.layer: Layer | None = None
        self.made: Sequence[bytes | bytearray | Pieces] = ()
        self.made_bytes = 0
        self.done = False
        self.error: BaseException | None = None
        self.finished: Callable[[Group], None] | None = None
        self.txn = txn
        self.undo = txn.undo
        self.engine = Engine(txn, schema, plans)
        self.waiting = SynchroQueue(waiting) if waiting else _NONE_WAITS
        self._trial: Engine | None = None
        self.replica_id = replica_id
        self.now = now
        self.changed_schema = False
        self._executor = executor
        self._rows = Rows(vclock, replica_id, now)
        self._drafts = Drafts(executor, TRANSACTION_BYTES)  # of the open transaction
        self._borders: list[int] = []  # in its rows: where transactions end
        self._places: dict[int | str, Space] = {}  # by names and ids of
        self._placed: Schema | None = None
        self._numbered = 0
        self._large: list[Large] = []

    def finish(self) -> None:
        """Tell who waits. Twice does no harm."""
        finished, self.finished = self.finished, None
        if finished is not None:
            finished(self)

    @property
    def touched(self) -> bool:
        """Whether anything changed, logged or not."""
        return self._drafts.touched

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
        return self._rows.lsns.get(self.replica_id, 0) + len(self._drafts.rows)

    # --- statements -------------------------------------------------------------------------------

    def make(
        self,
        kind: RowType,
        space: int | str,
        first: Value,
        ops: Iterable[Sequence[Value]] | None = None,
        index: int | str = 0,
    ) -> Row | None:
        """Make one statement in Python values as part of the open transaction, as `request_for`
        takes them, or SELECT the tuple with a full key. Returns the tuple as it is stored then, of
        a DELETE the old one; None if there is none, and for UPSERT.

        Raises `RequestError` with nothing done.
        """
        place = self._places.get(space) if self._placed is self.engine.schema else None
        if place is None:
            place = self._place(space)
        if not isinstance(index, int):
            index = self.schema.index(self.schema.space(space), index).id
        if place is not None:
            made = self._drafts.make(place, kind, first, ops, index)
            if not isinstance(made, NotImplementedType):
                return made
        if kind is RowType.SELECT:
            found = self.schema.space(space)
            data = reads.one(self.engine, found, self.schema.index(found, index), key_bytes(first))
            return None if data is None else tuple(unpack(data))
        request = request_for(kind, self.schema, space, first, ops, index)
        old, new = self._execute_referred(request)
        return answered(request.told(old, new), request, first)

    def _place(self, space: int | str) -> Space | None:
        """A space as the executor wants it, kept while the definitions stay; None if the
        reference engine has to look at each statement. Raises `RequestError`."""
        schema = self.engine.schema
        if self._placed is not schema:
            self._places, self._placed = {}, schema
        found = self._planned(self.engine.plans.asked(schema, space))
        if found is not None:
            self._places[space] = found
        return found

    def _planned(self, plan: Plan | None) -> Space | None:
        """A space as the executor wants it; None if the reference engine has to look at each
        statement."""
        if plan is None or not self.replica_id or self.waiting:
            return None
        self.txn.check_process()
        return self.txn.space(plan)

    def execute(self, request: Request, access: Access = ADMIN) -> Changed:
        """Apply one request as part of the open transaction. `access`: what who asks for it may do
        with definitions, users and grants. Returns the tuple before and after it. Raises
        `RequestError` with nothing of it done.
        """
        kind, space_id, other, first, ops, index_id, index_base = request
        if kind in _BY_KEY:
            first, other = other, first
        if first is not None and other is None:
            place = self._places.get(space_id) if self._placed is self.engine.schema else None
            place = place or self._place(space_id)
            if place is not None:
                made = self._drafts.execute(place, kind, first, ops, index_id, index_base)
                if not isinstance(made, NotImplementedType):
                    return made
        return self._execute_referred(request, access)

    def answer(self, request: Request) -> bytes | None:
        """`execute`. Returns the new tuple, of a DELETE the old one, of an UPSERT nothing."""
        return request.told(*self.execute(request))

    def _execute_referred(self, request: Request, access: Access = ADMIN) -> Changed:
        """`execute` by the reference engine alone."""
        mark = self.mark()
        try:
            old, new, body = self._refer(request)
            space = self.schema.space(request.space_id)
            if space.is_system:
                check_row(self.engine, access, space.id, old, new)
            if not space.is_temporary:
                self._drafts.add(int(request.type), body, space)
        except BaseException as error:
            self.rollback(mark)
            check_late(self.engine, request, access, error)
            raise
        self._drafts.touched = True
        return old, new

    def compute(
        self, space_id: int, given: bytes, computer: Computer, how: int, number: int
    ) -> Answer:
        """Apply a REPLACE whose tuple the computer makes (`store.engine.computing`) as part of the
        open transaction. `given`, `how`, `number`: what it is told. Returns what came of it; unless
        its status is `DONE` nothing is done. Raises `RequestError`, then also."""
        place = self._place(space_id)
        if place is not None:
            answer = self._drafts.compute(place, given, computer, how, number)
            if not isinstance(answer, NotImplementedType):
                return answer
        mark, definition = self.mark(), self.schema.space(space_id)
        try:
            request = Request(RowType.REPLACE, space_id, tuple=given)
            found = found_by(self.engine, definition, request)
            answer = self._computed(request, found, computer, how, number)
            if answer[3] is not None:
                if not definition.is_temporary:
                    self._drafts.add(request.type, answer[3], definition)
                self._drafts.touched = True
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
        spaces = [self.engine.schema.get(space_id) for space_id in ids]
        statements = self.engine.plans.statements
        places = [None if one is None else self._planned(statements(one)) for one in spaces]
        refer = partial(self._referred, Asked(data, columns, ids, limit_bytes, computer))
        given = data, columns, places, self.undo, refer, limit_bytes, computer
        answers = Answers(data, columns, *self._executor.execute(*given), spaces)
        if whole and answers.refused:
            raise answers.error(answers.cause)
        self._log_batch(answers, is_open=is_open, is_inside=is_inside)
        return answers

    def _referred(self, asked: Asked, number: int) -> Answer:
        """A statement of a batch by the reference engine."""
        if asked.columns[number * COLUMNS] == RowType.SELECT:
            return selected(self.engine, asked, number)
        request = request_of(asked, number)
        at = number * COLUMNS + LAST + 1
        expect, field, value, as_replace = list(asked.columns[at : at + 4])
        if expect:
            found = found_by(self.engine, self.schema.space(request.space_id), request)
            if expect == COMPUTED and asked.computer is not None:
                return self._computed(request, found, asked.computer, field, value)
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
            is_insert = request.type == RowType.INSERT
            ddl.apply(self.engine, space.id, old, new, is_insert=is_insert, trusted=False)
            self.changed_schema = True
        return old, new, encode_body(logged)

    def _log_batch(self, answers: Answers, *, is_open: bool, is_inside: bool) -> None:
        """Log what is done of a batch."""
        if not answers.changes:
            return
        self._drafts.touched = True
        if is_inside:
            for row in answers.logged():
                self._drafts.add(*row)
            return
        spaces = [space for space in answers.spaces if space is not None]
        is_local, are_alike = spaces[0].is_local, COMPILED
        for space in spaces:
            if space.is_temporary or space.is_sync or space.is_local != is_local:
                are_alike = False
        if are_alike:
            if self._drafts.rows:
                self.end_transaction()
            self._number(self._rows.add_statements(answers, is_local=is_local, is_open=is_open))
            return
        refused = set(answers.refused)
        for number in range(answers.count):
            space = answers.space(number)
            body = answers.body(number)
            if body and number not in refused and not space.is_temporary:
                self._drafts.add(answers.kind(number), body, space)
            if answers.columns[number * COLUMNS + LAST] and not (
                is_open and number == answers.count - 1
            ):
                self.end_transaction()

    def _check_change(self, space: SpaceDef) -> None:
        """Without a place in `_cluster` rows that others would see cannot be signed; and behind
        rows that wait a row of ours would have to wait for what another instance decides."""
        if self.waiting and not space.is_temporary:
            raise self._undecided()
        if not (self.replica_id or space.is_local or space.is_temporary):
            raise anonymous()

    def _number(self, count: int) -> None:
        """So many rows have got their lsns: what was done until now cannot be undone alone."""
        if count:
            self._numbered += count
            self.txn.forget()

    def log(self, kind: RowType, body: bytes, space: SpaceDef) -> None:
        """Log a row whose effect is applied by somebody else, as part of the open transaction."""
        self._check_change(space)
        self._drafts.touched = True
        self._drafts.add(int(kind), body, space)

    def mark(self) -> Mark:
        """A place in the open transaction to roll back to."""
        return Mark(
            self.txn.mark(),
            self._numbered,
            self.engine.schema,
            len(self._drafts.rows),
            self._drafts.size_bytes,
            len(self._borders),
            tuple(self.waiting) if self.waiting else (),
            tuple(self.waiting.undone),
        )

    def rollback(self, mark: Mark) -> None:
        """Undo the statements since `mark`. Raises `Spoiled` if only all can be undone."""
        if self._numbered != mark.numbered:
            raise Spoiled
        self._trial = None
        self.txn.rollback(mark.txn)
        self.waiting = SynchroQueue(mark.waiting, mark.undone)
        self.engine.schema, self._placed = mark.schema, None
        del self._drafts.rows[mark.rows :]
        del self._borders[mark.borders :]
        self._drafts.size_bytes = mark.bytes

    def add_replicated(self, columns: RowColumns, ends: Sequence[int]) -> int:
        """Apply transactions of other instances and log their rows as they are.

        `ends`: behind which row of `columns` each transaction ends, all of them; the rows have
        their own replica id, lsn and time. What is here already is passed over. Returns how many
        transactions that were, all but the first that cannot be applied and those behind it.
        Nothing of them can be rolled back later.
        """
        if not self.waiting and applying.is_plain(columns, ends[-1], self.schema, self.vclock):
            refused = self._apply_all(columns, 0, ends[-1])
            if refused is None:
                count, last = len(ends), ends[-1]
            else:
                self.undo.rollback(refused.mark)
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

    def add_transaction(self, columns: RowColumns, first: int, last: int) -> bool:
        """`add_replicated` of one transaction, rows first … last - 1. False, and nothing done,
        where its rows are here already. Raises `RequestError`; then the group is to be rolled back
        to a mark."""
        replica_id, lsn = columns.replica_id[last - 1], columns.lsn[last - 1]
        if not replica_id or max(columns.replica_id[first:last]) >= VCLOCK_COMPONENTS:
            text = f"a row of replica {replica_id} cannot come from another instance"
            raise RequestError(ErrorCode.INVALID_MSGPACK, text)
        if lsn <= self._rows.lsns.get(replica_id, 0):
            return False
        applying.check_new(columns, first, last, self._rows.lsns)
        if columns.type[last - 1] in DECISIONS:
            self._decide(Decision.of(columns, last - 1))
        elif self.waiting or any(map(self.schema.is_synchronous, columns.space_id[first:last])):
            self._hold(columns, first, last)
        elif (refused := self._apply_all(columns, first, last)) is not None:
            raise refused.error
        self._take_replicated(columns, first, last)
        return True

    def _take_replicated(self, columns: RowColumns, first: int, last: int) -> None:
        self._rows.add_columns(columns, first, last)
        self._number(last - first)
        self._drafts.touched = True

    def _apply_all(self, columns: RowColumns, first: int, last: int) -> RefusedRow | None:
        """Apply rows, up to one that is refused."""
        refer = partial(self._apply, columns)
        return applying.apply_rows(self._executor, self.engine, columns, first, last, refer=refer)

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
        self._placed = None  # nothing can be changed here until that is decided
        if self.waiting is _NONE_WAITS:
            self.waiting = SynchroQueue()
        self.waiting.hold(entry)

    def _try(self, trial: Engine, columns: RowColumns, first: int, last: int) -> None:
        """Apply rows on trial. Raises `RequestError` for one that is refused."""
        refer = partial(apply_row, trial, columns)
        refused = applying.apply_rows(self._executor, trial, columns, first, last, refer=refer)
        if refused is not None:
            self._trial = None
            raise refused.error

    def _check_owner(self, entry: Entry) -> None:
        if not self.waiting or entry.replica_id == self.waiting.owner:
            return
        schema = (self._trial or self.engine).schema
        if any(map(schema.is_synchronous, entry.spaces)):
            raise self._undecided()

    def _undecided(self) -> RequestError:
        return refused(
            ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS,
            "they wait for the CONFIRM or ROLLBACK of their master: follow it, or decide with "
            "`Log.end_waiting`",
            replica_id=self.waiting.owner,
            transactions=len(self.waiting),
        )

    def _decide(self, decision: Decision) -> None:
        """Apply what a CONFIRM or ROLLBACK lets go on."""
        self._trial = None
        for entry in self.waiting.decide(decision, lambda space: self.schema.is_synchronous(space)):
            columns = entry.columns()
            refused = self._apply_all(columns, 0, len(columns))
            if refused is not None:
                raise refused.error

    def end_waiting(self, kind: RowType) -> int:
        """Decide ourselves about all that waits, as part of no transaction; a row of ours says so.
        Returns how many transactions waited."""
        count = len(self.waiting)
        if count and not self.replica_id:
            raise anonymous()
        if count:
            owner = self.waiting.owner
            lsns = [entry.lsn for entry in self.waiting if entry.replica_id == owner]
            decision = Decision(kind, owner, lsns[-1] if kind == RowType.CONFIRM else lsns[0])
            self._decide(decision)
            self._rows.decide(kind, owner, decision.lsn)
            self._number(1)
            self._drafts.touched = True
        return count

    # --- transactions -----------------------------------------------------------------------------

    def divide(self) -> None:
        """What follows is another transaction. Both can still be rolled back together."""
        self._borders.append(len(self._drafts.rows))

    def end_transaction(self) -> None:
        """Give the rows since the last call their lsns; they can no longer be rolled back alone."""
        drafts, borders = self._drafts, self._borders
        if not drafts.rows:
            borders.clear()
            return
        rows, drafts.rows, drafts.size_bytes, self._borders = drafts.rows, [], 0, []
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
        self._drafts.touched = True

    def written(self) -> None:
        """The log has the blocks: to large tuples that it holds as they are the layer refers."""
        for large in self._large:
            values = values_of(large.tuples, large.blocks)
            self.txn.set_all(large.space_id, large.keys, values, over=large.places)

    def blocks(self) -> list[bytes | bytearray | Pieces]:
        """The row bytes of all transactions ended so far, a block each."""
        self._trial = None
        return self._rows.blocks()
