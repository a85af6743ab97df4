"""Interactive transactions: statements one after the other, then all at once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Unpack

from logweir.errors import ErrorCode, RequestError
from logweir.store.commit.append import append_job, pack_run
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request
from logweir.store.engine.select import Options
from logweir.store.engine.statements import Row, Statements
from logweir.store.expiry import EXPIRY_SPACE, expiry_of, unexpired
from logweir.store.schema.schema import Schema
from logweir.store.state.state import StateError, explained
from logweir.wal.mp import Value
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.store.inner import Inner


class Transaction(Statements):
    """Changes that become visible and durable together when the `with` block ends.

    Made by `Log.transaction`; for the thread that entered it. Reads inside see its own changes.
    A statement that fails raises and leaves the transaction as it was before it. Leaving the
    block with an exception, or `rollback`, undoes everything. Raises ACTIVE_TRANSACTION when
    nested, NO_TRANSACTION when used outside of its block.

    While it is synced the next one goes on over its changes; what is not durable yet no statement
    tells, though: one that finds such a row waits for it.
    """

    def __init__(self, log: Inner, loop: int | None = None) -> None:
        """`loop`: the thread of the tasks that use it (`logweir.aio`), one at a time, also with the
        help of others; they ask for `wait` themselves."""
        self._log = log
        self._loop = loop
        self._group: Group | None = None
        self._turn: Generator[None, None, None] | None = None
        self._thread = 0  # that entered it

    def __enter__(self) -> Transaction:
        turn = self._log.turn(self._loop, alone=False)
        self._enter(turn)
        return self

    def _enter(self, turn: Generator[None, None, None], *, is_kept: bool = False) -> None:
        """Enter the block in a turn of its own, or in one that another transaction of the same loop
        has kept. Whatever is raised, the turn is over then."""
        try:
            if not is_kept:
                next(turn)
            self._turn = turn
            self._thread = self._loop or get_ident()
            self._group = self._log.begin_group()
        except BaseException:
            if self._turn is turn:
                self._end()
            turn.close()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        group = self._group
        if group is None or self._log.is_foreign:
            self._leave(error)
        else:
            self._log.commit_group(group, partial(self._leave, error))

    def _leave(
        self,
        error: BaseException | None,
        finished: Callable[[Group], None] | None = None,
        *,
        keeps_turn: bool = False,
    ) -> bool:
        """Leave the block, with its changes undone if there is an error; whether there are any to
        wait for. `finished`: see `Inner.end_group`; `keeps_turn`: `turn` is for the next one."""
        is_made = False
        try:
            if error is None and self._group is not None and not self._log.is_foreign:
                group = self._open()
                group.end_transaction()
                is_made = self._log.end_group(group, finished)
        finally:
            try:
                self._end(keeps_turn)
            finally:
                self._end(keeps_turn)  # an interrupt may have stopped the first
        if isinstance(error, StateError):
            raise explained(error, self._log.path / "state") from error
        return is_made

    def _end(self, keeps_turn: bool = False) -> None:
        """Undo what is not committed, and let others have their turn. Twice does no harm."""
        try:
            self._undo()
        finally:
            if self._turn is not None and not keeps_turn:
                self._turn.close()

    def _undo(self) -> None:
        if self._group is not None:
            self._group.txn.abort()
        self._group = None

    @property
    def schema(self) -> Schema:
        """The definitions, this transaction's changes included."""
        return self._open().engine.schema

    @property
    def _known_schema(self) -> Schema:
        """The same for another thread, which may only look."""
        self._log.check_process()
        return self._log.committer.schema if self._group is None else self._group.schema

    def rollback(self) -> None:
        """Undo everything. Further statements raise NO_TRANSACTION."""
        self._log.check_process()
        self._undo()

    def execute(self, request: Request) -> bytes | None:
        """One change given in MsgPack bytes, seen by the following statements. See
        `Log.execute`."""
        group = self._open()
        try:
            return group.answer(request)
        finally:
            if group.undo.is_early:
                self._hold()

    def _make(
        self,
        kind: RowType,
        space: int | str,
        first: Value,
        ops: Iterable[Sequence[Value]] | None = None,
        index: int | str = 0,
    ) -> Row | None:
        group = self._open()
        try:
            return group.make(kind, space, first, ops, index)
        finally:
            if group.undo.is_early:
                self._hold()

    def _define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        requests, result = plan(self._open().engine)
        for request in requests:
            self.execute(request)
        return result

    def append(self, space: int | str, tuples: Iterable[Sequence[Value]]) -> int:
        """Insert many tuples, all or none of them; the fastest way to do so. Returns how many."""
        packed, bounds = pack_run(tuples)
        group = self._open()
        mark = group.mark()
        try:
            return append_job(space, packed, bounds, one_transaction=True, is_inside=True)(group)
        except BaseException:
            group.rollback(mark)
            raise
        finally:
            self._hold()

    def get(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Log.get`, this transaction's changes included."""
        row = self._make(RowType.SELECT, space, key, None, index)
        schema = self._open().schema
        if row is None or schema.get(EXPIRY_SPACE) is None:
            return row
        expiry = expiry_of(self._open().engine, schema.space(space))
        return None if expiry is not None and expiry.is_over(row, self._log.now()) else row

    def select(self, space: int | str, key: Value = None, **options: Unpack[Options]) -> list[Row]:
        """As `Log.select`, this transaction's changes included."""
        engine = self._open().engine
        try:
            return unexpired(engine, space, key, self._log.now(), **options)
        finally:
            self._hold()

    @property
    def _has_to_wait(self) -> bool:
        """Whether the last statements have seen what is not durable yet."""
        return self._group is not None and self._group.undo.is_early

    def _wait(self) -> None:
        """Wait until what the last statements have seen is durable. Raises why it was dropped."""
        if self._group is not None:
            self._log.hold_group(self._group)

    def _hold(self) -> None:
        """Let nothing be told of what is not durable yet."""
        if self._loop is None and self._has_to_wait:
            self._wait()

    def _open(self) -> Group:
        group = self._group
        if (
            group is None
            or (self._thread != get_ident() and self._loop is None)
            or self._log.is_foreign
        ):
            self._log.check_process()
            raise RequestError(
                ErrorCode.NO_TRANSACTION,
                "No active transaction",
                hint="use it inside its `with` block, in the thread that entered it",
            )
        return group
