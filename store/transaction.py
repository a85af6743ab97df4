"""Interactive transactions: statements one after the other, then all at once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from logweir.errors import ErrorCode, RequestError
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request
from logweir.store.engine.select import rows
from logweir.store.engine.statements import Statements
from logweir.store.schema.schema import Schema
from logweir.store.state.state import StateError, explained
from logweir.store.view import get
from logweir.wal.mp import Value, unpack

if TYPE_CHECKING:
    from logweir.store.log import Log

__all__ = ["Transaction"]


class Transaction(Statements):
    """Changes that become visible and durable together when the `with` block ends.

    Made by `Log.transaction`; for the thread that entered it. Reads inside see its own changes.
    A statement that fails raises and leaves the transaction as it was before it. Leaving the
    block with an exception, or `rollback`, undoes everything. Raises ACTIVE_TRANSACTION when
    nested, NO_TRANSACTION when used outside of its block.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._group: Group | None = None
        self._turn: Generator[None, None, None] | None = None
        self._thread = 0  # that entered it

    def __enter__(self) -> Transaction:
        turn = self._log.turn()
        try:
            next(turn)
            self._turn = turn
            self._thread = get_ident()
            self._group = self._log.begin_group()
            return self
        except BaseException:
            if self._turn is turn:
                self._end()
            turn.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._group is not None and not self._log.is_foreign:
                self._commit()
        finally:
            try:
                self._end()
            finally:
                self._end()  # an interrupt may have stopped the first
        if isinstance(error, StateError):
            raise explained(error, self._log.path / "state") from error

    def _end(self) -> None:
        """Undo what is not committed, and let others have their turn. Twice does no harm."""
        try:
            self._undo()
        finally:
            if self._turn is not None:
                self._turn.close()

    def _undo(self) -> None:
        if self._group is not None:
            self._group.txn.abort()
        self._group = None

    @property
    def schema(self) -> Schema:
        """The definitions, this transaction's changes included."""
        return self._open().schema

    @property
    def known_schema(self) -> Schema:
        """The same for another thread, which may only look."""
        self._log.check_process()
        return self._log.schema if self._group is None else self._group.schema

    def rollback(self) -> None:
        """Undo everything. Further statements raise NO_TRANSACTION."""
        self._log.check_process()
        self._undo()

    def execute(self, request: Request) -> bytes | None:
        """One change given in MsgPack bytes, seen by the following statements. See
        `Log.execute`."""
        return self._open().answer(request)

    def define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        """Changes of definitions as part of this transaction."""
        requests, result = plan(self._open().engine)
        for request in requests:
            self.execute(request)
        return result

    def get(
        self, space: int | str, key: Value, *, index: int | str = 0
    ) -> tuple[Value, ...] | None:
        """As `Log.get`, this transaction's changes included."""
        found = get(self._open().engine, space, key, index=index)
        return None if found is None else tuple(unpack(found))

    def select(
        self, space: int | str, key: Value = None, **options: Any
    ) -> list[tuple[Value, ...]]:
        """As `Log.select`, this transaction's changes included."""
        return rows(self._open().engine, space, key, **options)

    def _open(self) -> Group:
        group = self._group
        if group is None or self._thread != get_ident() or self._log.is_foreign:
            self._log.check_process()
            raise RequestError(
                ErrorCode.NO_TRANSACTION,
                "No active transaction",
                hint="use it inside its `with` block, in the thread that entered it",
            )
        return group

    def _commit(self) -> None:
        group = self._open()
        group.end_transaction()
        self._log.finish_group(group)
