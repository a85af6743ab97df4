"""`logweir.aio`: the embedded store for asyncio.

::

    async with logweir.aio.open("data") as log:
        await log.insert("orders", (1, "ten bolts"))
        async with log.transaction() as tx:
            await tx.replace("orders", (2, "nuts"))
        async for transaction in log.rows(follow=True):
            ...

The methods are those of `logweir.Log`, awaited. Changes of tasks that run side by side share one
sync; nothing blocks the event loop but reading single tuples, which takes microseconds. `log.sync`
is the `logweir.Log` underneath. `aio.follow` is `logweir.follow` for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from logweir import store
from logweir.store.commit import append as appending
from logweir.store.commit.group import Group
from logweir.store.commit.queue import Job
from logweir.store.cursor import LogCursor
from logweir.store.engine.request import Request
from logweir.store.engine.statements import (
    Row,
    as_row,
    delete_request,
    put_request,
    stored,
    update_request,
    upsert_request,
)
from logweir.store.log import Log
from logweir.store.schema.schema import Schema
from logweir.store.transaction import Transaction
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType
from logweir.wal.xrow import Transaction as LoggedTransaction

if TYPE_CHECKING:
    from logweir.changes import follow_async as follow

__all__ = ["AsyncLog", "AsyncTransaction", "follow", "open"]


def __getattr__(name: str) -> Any:
    """`follow`, for which the protocols are loaded: only who follows a server needs them."""
    if name != "follow":
        raise AttributeError(f"module 'logweir.aio' has no attribute {name!r}")
    return import_module("logweir.changes").follow_async


def open(path: str | os.PathLike[str], **options: Any) -> _Opening:
    """Open the store in a folder: `async with aio.open(path) as log`, or `log = await …`.

    Options and errors are those of `logweir.open`.
    """
    return _Opening(path, options)


class _Opening:
    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._log: AsyncLog | None = None

    def __await__(self) -> Any:
        return self._open().__await__()

    async def _open(self) -> AsyncLog:
        log = await asyncio.to_thread(store.open, self._path, **self._options)
        return AsyncLog(log)

    async def __aenter__(self) -> AsyncLog:
        self._log = await self._open()
        return self._log

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._log is not None
        await self._log.close()


class _AsyncStatements(ABC):
    """The statements, awaited: see `logweir.store.engine.statements.Statements`."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The definitions that the statements see."""

    @abstractmethod
    async def execute(self, request: Request) -> bytes | None:
        """Make one change given in MsgPack bytes."""

    async def insert(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """As `Log.insert`."""
        request = put_request(RowType.INSERT, self.schema, space, tuple)
        return stored(await self.execute(request), request, tuple)

    async def replace(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """As `Log.replace`."""
        request = put_request(RowType.REPLACE, self.schema, space, tuple)
        return stored(await self.execute(request), request, tuple)

    async def update(
        self,
        space: int | str,
        key: Value,
        ops: Iterable[Sequence[Value]],
        *,
        index: int | str = 0,
    ) -> Row | None:
        """As `Log.update`."""
        return as_row(await self.execute(update_request(self.schema, space, key, ops, index)))

    async def delete(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Log.delete`."""
        return as_row(await self.execute(delete_request(self.schema, space, key, index)))

    async def upsert(
        self, space: int | str, tuple: Sequence[Value], ops: Iterable[Sequence[Value]]
    ) -> None:
        """As `Log.upsert`."""
        await self.execute(upsert_request(self.schema, space, tuple, ops))


class AsyncLog(_AsyncStatements):
    """A `logweir.Log` whose methods are awaited. For one event loop."""

    def __init__(self, log: Log) -> None:
        self.sync = log
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Event] = set()  # of those that follow the log
        self._finished: deque[tuple[asyncio.Future[Any], Job]] = deque()
        self._is_told = False  # whether the loop knows that there are some
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logweir-transaction")

    @property
    def schema(self) -> Schema:
        """The definitions of spaces and indexes now."""
        return self.sync.schema

    @property
    def vclock(self) -> VClock:
        """As `Log.vclock`."""
        return self.sync.vclock

    async def close(self) -> None:
        """As `Log.close`."""
        if self.sync.is_foreign:
            return  # no thread of it is here that could be awaited
        await asyncio.to_thread(self.sync.close)
        for grown in self._waiting:
            grown.set()
        self._thread.shutdown(wait=True)

    async def execute(self, request: Request) -> bytes | None:
        """As `Log.execute`."""
        made: bytes | None = await self._run(
            lambda group: group.answer(request), request.size_bytes
        )
        return made

    async def _run(self, apply: Callable[[Group], Any], size: int) -> Any:
        loop = asyncio.get_running_loop()
        made = loop.create_future()

        def finished(job: Job) -> None:
            self._finished.append((made, job))
            if not self._is_told:
                self._is_told = True
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    loop.call_soon_threadsafe(self._tell)

        self.sync.submit_jobs([Job(apply, size, finished=finished)])
        return await made

    def _tell(self) -> None:
        """Let all go on whose changes are made: those of a group come together."""
        self._is_told = False  # first: what comes behind it tells again
        while self._finished:
            made, job = self._finished.popleft()
            if made.cancelled():
                continue
            if job.error is not None:
                made.set_exception(job.error)
            else:
                made.set_result(job.result)

    async def append(
        self, space: int | str, tuples: Iterable[Sequence[Value]], *, one_transaction: bool = True
    ) -> int:
        """As `Log.append`."""
        self.sync.check_process()
        packed, bounds = appending.pack_run(tuples)
        apply = appending.append_job(space, packed, bounds, one_transaction=one_transaction)
        made: int = await self._run(apply, len(packed))
        return made

    def transaction(self) -> AsyncTransaction:
        """As `Log.transaction`: `async with log.transaction() as tx`."""
        self.sync.check_process()
        return AsyncTransaction(self.sync, self._turn, self._thread)

    async def get(
        self, space: int | str, key: Value, *, index: int | str = 0
    ) -> tuple[Value, ...] | None:
        """As `Log.get`."""
        return self.sync.get(space, key, index=index)

    async def select(self, space: int | str, key: Value = None, **options: Any) -> list[Row]:
        """As `Log.select`."""
        self.sync.check_process()
        return await asyncio.to_thread(self.sync.select, space, key, **options)

    async def rows(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        settled: bool = False,
    ) -> AsyncIterator[LoggedTransaction]:
        """As `Log.rows`."""
        self.sync.check_process()
        loop = asyncio.get_running_loop()
        grown = asyncio.Event()

        def wake(_: VClock) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(grown.set)

        forget = self.sync.on_commit(wake)
        self._waiting.add(grown)
        pieces = _Pieces(self.sync, after, settled)
        try:
            while True:
                grown.clear()
                piece = await asyncio.to_thread(pieces.take)
                for transaction in piece:
                    yield transaction
                    self.sync.check_process()
                if not piece:
                    if not follow or self.sync.is_closed:
                        return
                    await grown.wait()
        finally:
            forget()
            self._waiting.discard(grown)
            if not self.sync.is_foreign:
                await asyncio.to_thread(pieces.close)

    async def run(self, call: Callable[[Log], Any]) -> Any:
        """Anything else of `logweir.Log`, in a thread: `await log.run(lambda log:
        log.snapshot())`."""
        self.sync.check_process()
        return await asyncio.to_thread(call, self.sync)


_PIECE = 1000


class _Pieces:
    """A cursor read by threads, one piece at a time. Whoever was to get a piece may be gone when it
    is ready, so closing waits for the one that is being read."""

    def __init__(self, log: Log, after: Mapping[int, int] | None, settled: bool) -> None:
        self._log = log
        self._after = after
        self._settled = settled
        self._cursor: LogCursor | None = None
        self._ready: Iterator[LoggedTransaction] = iter(())
        self._lock = threading.Lock()

    def take(self) -> list[LoggedTransaction]:
        """At most `_PIECE` transactions; none where there are no more yet."""
        with self._lock:
            if self._log.is_closed:
                return []
            if self._cursor is None:
                self._cursor = self._log.cursor(self._after, settled=self._settled)
            piece = list(islice(self._ready, _PIECE))
            if not piece:
                self._ready = self._cursor.ready()
                piece = list(islice(self._ready, _PIECE))
            return piece

    def close(self) -> None:
        """Close the file that is being read."""
        with self._lock:
            if self._cursor is not None:
                self._cursor.close()


class AsyncTransaction(_AsyncStatements):
    """As `logweir.Transaction`, awaited. Tasks take turns; the statements run in one thread."""

    def __init__(self, log: Log, turn: asyncio.Lock, thread: ThreadPoolExecutor) -> None:
        self._log = log
        self._transaction: Transaction = log.transaction()
        self._turn = turn
        self._thread = thread

    async def __aenter__(self) -> Self:
        await self._turn.acquire()
        entering = asyncio.ensure_future(self._run(self._transaction.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:  # the thread still waits for its turn, or has it
            entering.add_done_callback(self._undo_entering)
            raise
        except BaseException:
            self._turn.release()
            raise
        return self

    def _undo_entering(self, entering: asyncio.Future[Any]) -> None:
        """Leave the transaction that nobody waits for any more, then give up the turn."""
        if entering.cancelled() or entering.exception() is not None:
            self._turn.release()
            return
        leaving = self._thread.submit(self._transaction.__exit__, GeneratorExit, None, None)
        loop = entering.get_loop()
        asyncio.wrap_future(leaving, loop=loop).add_done_callback(lambda _: self._turn.release())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._log.is_foreign:
                await asyncio.shield(self._run(self._transaction.__exit__, kind, error, trace))
        finally:
            self._turn.release()

    @property
    def schema(self) -> Schema:
        """The definitions when the transaction began or a statement of it changed them."""
        return self._transaction.known_schema

    async def execute(self, request: Request) -> bytes | None:
        """As `Transaction.execute`."""
        found: bytes | None = await self._run(self._transaction.execute, request)
        return found

    async def get(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Transaction.get`."""
        found: Row | None = await self._run(lambda: self._transaction.get(space, key, index=index))
        return found

    async def select(self, space: int | str, key: Value = None, **options: Any) -> list[Row]:
        """As `Transaction.select`."""
        found: list[Row] = await self._run(lambda: self._transaction.select(space, key, **options))
        return found

    async def rollback(self) -> None:
        """As `Transaction.rollback`."""
        await self._run(self._transaction.rollback)

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        self._log.check_process()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *args)
