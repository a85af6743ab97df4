"""`logweir.aio`: the embedded store for asyncio.

::

    async with logweir.aio.open("data") as log:
        await log.insert("orders", (1, "ten bolts"))
        async with log.transaction() as tx:
            await tx.replace("orders", (2, "nuts"))
        async for transaction in log.rows(follow=True):
            ...

The methods are those of `logweir.Log`, awaited. Changes of tasks that run side by side share one
sync; nothing blocks the event loop but reading single tuples and statements of a transaction, which
takes microseconds. `log.sync` is the `logweir.Log` underneath. `aio.follow` is `logweir.follow` for
asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from logweir import store
from logweir.store.choosing import Changes
from logweir.store.commit import append as appending
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.cursor import LogCursor
from logweir.store.engine.request import Request
from logweir.store.engine.statements import Row, answered, request_for
from logweir.store.inner import Inner
from logweir.store.log import Log
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.schema import Schema
from logweir.store.transaction import Transaction
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType
from logweir.wal.xrow import Transaction as LoggedTransaction

if TYPE_CHECKING:
    from logweir.replication.capture.following import follow_async as follow

__all__ = ["AsyncLog", "AsyncTransaction", "follow", "open"]

T = TypeVar("T")


def __getattr__(name: str) -> Any:
    """`follow`, for which the protocols are loaded: only who follows a server needs them."""
    if name != "follow":
        raise AttributeError(f"module 'logweir.aio' has no attribute {name!r}")
    return import_module("logweir.replication.capture.following").follow_async


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

    async def __aexit__(self, *_: object) -> None:
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

    async def _make(self, kind: RowType, space: int | str, first: Value, *rest: Any) -> Row | None:
        """See `Statements._make`."""
        request = request_for(kind, self.schema, space, first, *rest)
        return answered(await self.execute(request), request, first)

    async def insert(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """As `Log.insert`."""
        made = await self._make(RowType.INSERT, space, tuple)
        assert made is not None
        return made

    async def replace(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """As `Log.replace`."""
        made = await self._make(RowType.REPLACE, space, tuple)
        assert made is not None
        return made

    async def update(
        self,
        space: int | str,
        key: Value,
        ops: Iterable[Sequence[Value]],
        *,
        index: int | str = 0,
    ) -> Row | None:
        """As `Log.update`."""
        return await self._make(RowType.UPDATE, space, key, ops, index)

    async def delete(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Log.delete`."""
        return await self._make(RowType.DELETE, space, key, None, index)

    async def upsert(
        self, space: int | str, tuple: Sequence[Value], ops: Iterable[Sequence[Value]]
    ) -> None:
        """As `Log.upsert`."""
        await self._make(RowType.UPSERT, space, tuple, ops)


class AsyncLog(_AsyncStatements):
    """A `logweir.Log` whose methods are awaited. For one event loop."""

    def __init__(self, log: Log) -> None:
        self.sync = log
        self._inner = log.inner
        self._turns = _Turns()
        self._waiting: set[asyncio.Event] = set()  # of those that follow the log
        self._finished: deque[tuple[asyncio.Future[Any], BaseException | None, Any]] = deque()
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
        if self._inner.is_foreign:
            return  # no thread of it is here that could be awaited
        failure: Exception | None = None
        try:
            await asyncio.to_thread(self.sync.close)
        except Exception as error:  # it is closed all the same, for those that wait for more, too
            failure = error
        for grown in self._waiting:
            grown.set()
        self._thread.shutdown(wait=True)
        if failure is not None:
            raise failure

    async def execute(self, request: Request) -> bytes | None:
        """As `Log.execute`."""
        made: bytes | None = await self._run(
            lambda group: group.answer(request), request.size_bytes
        )
        return made

    async def _run(self, apply: Callable[[Group], Any], size: int) -> Any:
        made, told = self._awaited()
        self._inner.submit_jobs(
            [Job(apply, size, finished=lambda job: told(job.error, job.result))]
        )
        return await made

    def _awaited(self) -> tuple[asyncio.Future[Any], Callable[..., None]]:
        """A future of this loop, and what sets it from any thread: an error or None, a result."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()

        def told(error: BaseException | None, result: Any = None) -> None:
            self._finished.append((made, error, result))
            if not self._is_told:
                self._is_told = True
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    loop.call_soon_threadsafe(self._tell)

        return made, told

    def _tell(self) -> None:
        """Let all go on whose changes are made: those of a group come together."""
        self._is_told = False  # first: what comes behind it tells again
        while self._finished:
            made, error, result = self._finished.popleft()
            if made.cancelled():
                continue
            if error is not None:
                made.set_exception(error)
            else:
                made.set_result(result)

    async def append(
        self, space: int | str, tuples: Iterable[Sequence[Value]], *, one_transaction: bool = True
    ) -> int:
        """As `Log.append`."""
        self._inner.check_process()
        packed, bounds = appending.pack_run(tuples)
        apply = appending.append_job(space, packed, bounds, one_transaction=one_transaction)
        made: int = await self._run(apply, len(packed))
        return made

    def transaction(self) -> AsyncTransaction:
        """As `Log.transaction`: `async with log.transaction() as tx`."""
        self._inner.check_process()
        return AsyncTransaction(self._inner, self._turns, self._thread, self._awaited)

    async def get(
        self, space: int | str, key: Value, *, index: int | str = 0
    ) -> tuple[Value, ...] | None:
        """As `Log.get`."""
        return self.sync.get(space, key, index=index)

    async def select(self, space: int | str, key: Value = None, **options: Any) -> list[Row]:
        """As `Log.select`."""
        self._inner.check_process()
        return await asyncio.to_thread(self.sync.select, space, key, **options)

    async def count(self, space: int | str) -> int:
        """As `Log.count`."""
        self._inner.check_process()
        return await asyncio.to_thread(self.sync.count, space)

    def rows(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        settled: bool = False,
    ) -> AsyncIterator[LoggedTransaction]:
        """As `Log.rows`."""
        return self._read(after, LogCursor.ready, follow=follow, settled=settled)

    def listen(
        self,
        spaces: int | str | Sequence[int | str],
        *,
        key: Value = None,
        after: Mapping[int, int] | None = None,
    ) -> AsyncIterator[Changes]:
        """The transactions that `Log.listen` calls a function for, until the log is closed. Leave
        it by `contextlib.aclosing`, or by `break`."""
        chooser = self._inner.chooser(spaces, key)
        start = self.sync.applied if after is None else position_of(after)
        lsns = array("Q", start.lsns())

        def ready(cursor: LogCursor) -> Iterator[Changes]:
            for block in cursor.blocks():
                for changes in chooser.taken(block.columns, lsns):
                    if changes.changes:
                        yield changes

        return self._read(start, ready, follow=True, settled=True)

    async def _read(
        self,
        after: Mapping[int, int] | None,
        ready: Callable[[LogCursor], Iterator[T]],
        *,
        follow: bool,
        settled: bool,
    ) -> AsyncIterator[T]:
        """What `ready` makes of the log after a position."""
        self._inner.check_process()
        loop = asyncio.get_running_loop()
        grown = asyncio.Event()

        def wake(_: VClock) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(grown.set)

        forget = self.sync.on_commit(wake)
        self._waiting.add(grown)
        pieces = _Pieces(self._inner, after, settled, ready)
        try:
            while True:
                grown.clear()
                piece = await asyncio.to_thread(pieces.take)
                for one in piece:
                    yield one
                    self._inner.check_process()
                if not piece:
                    if not follow or self.sync.is_closed:
                        return
                    await grown.wait()
        finally:
            forget()
            self._waiting.discard(grown)
            if not self._inner.is_foreign:
                await asyncio.to_thread(pieces.close)

    async def run(self, call: Callable[[Log], Any]) -> Any:
        """Anything else of `logweir.Log`, in a thread: `await log.run(lambda log:
        log.snapshot())`."""
        self._inner.check_process()
        return await asyncio.to_thread(call, self.sync)


_PIECE = 1000


class _Pieces(Generic[T]):
    """A cursor read by threads, one piece at a time. Whoever was to get a piece may be gone when it
    is ready, so closing waits for the one that is being read."""

    def __init__(
        self,
        log: Inner,
        after: Mapping[int, int] | None,
        settled: bool,
        ready: Callable[[LogCursor], Iterator[T]],
    ) -> None:
        self._log = log
        self._make = ready
        self._after = after
        self._settled = settled
        self._cursor: LogCursor | None = None
        self._ready: Iterator[T] = iter(())
        self._lock = threading.Lock()

    def take(self) -> list[T]:
        """At most `_PIECE` transactions; none if there are no more yet."""
        with self._lock:
            if self._log.committer.is_closed:
                return []
            if self._cursor is None:
                self._cursor = self._log.cursor(self._after, settled=self._settled)
            piece = list(islice(self._ready, _PIECE))
            if not piece:
                self._ready = self._make(self._cursor)
                piece = list(islice(self._ready, _PIECE))
            return piece

    def close(self) -> None:
        """Close the file that is being read."""
        with self._lock:
            if self._cursor is not None:
                self._cursor.close()


class _Turns:
    """Whose turn it is among the tasks of a loop. A thread waits for the turn of the store; it is
    kept for those tasks that were waiting when it came, and then is over."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._kept: Generator[None, None, None] | None = None
        self._waiting = 0
        self._left = 0

    async def take(self) -> Generator[None, None, None] | None:
        """Wait for it. Returns the store's turn, if it is kept."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        except BaseException:
            if self._waiting == 1 and self._kept is not None and not self._lock.locked():
                self._kept.close()  # it was kept for this one
            raise
        finally:
            self._waiting -= 1
        kept, self._kept = self._kept, None
        return kept

    def begin(self) -> None:
        """The store's turn has come."""
        self._left = self._waiting

    @property
    def goes_on(self) -> bool:
        """Whether a task is there for which it is kept."""
        return self._left > 0 and self._waiting > 0

    def give(self, kept: Generator[None, None, None] | None = None) -> None:
        """Let the next task have it, and the store's turn, too."""
        self._left -= 1
        self._kept = kept
        self._lock.release()


class AsyncTransaction(_AsyncStatements):
    """As `logweir.Transaction`, awaited. Tasks take turns; a thread waits for what others do, and
    makes what may take long, a `select`, while which other statements wait for it."""

    def __init__(
        self,
        log: Inner,
        turns: _Turns,
        thread: ThreadPoolExecutor,
        awaited: Callable[[], tuple[asyncio.Future[Any], Callable[..., None]]],
    ) -> None:
        self._log = log
        self._transaction = Transaction(log, threading.get_ident())
        self._turns = turns
        self._thread = thread
        self._awaited = awaited
        self._lined = 0  # what the thread has to do for it

    async def __aenter__(self) -> Self:
        kept = await self._turns.take()
        if kept is not None:
            try:
                self._transaction._enter(kept, is_kept=True)
            except BaseException:
                self._turns.give()
                raise
            return self
        entering = asyncio.ensure_future(self._aside(self._transaction.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:  # the thread still waits for its turn, or has it
            entering.add_done_callback(self._undo_entering)
            raise
        except BaseException:
            self._turns.give()
            raise
        self._turns.begin()
        return self

    def _undo_entering(self, entering: asyncio.Future[Any]) -> None:
        """Leave the transaction that nobody waits for any more, then give up the turn."""
        if not (entering.cancelled() or entering.exception() is not None):
            self._transaction._leave(asyncio.CancelledError())
        self._turns.give()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        made, told = self._awaited()
        is_made = goes_on = False
        try:
            if not self._log.is_foreign:
                goes_on = not self._lined and self._turns.goes_on and not self._log.has_to_wait
                leave = partial(self._transaction._leave, keeps_turn=goes_on)
                is_made = await self._run(leave, error, lambda group: told(group.error))
        finally:
            self._turns.give(self._transaction._turn if goes_on else None)
        if is_made:
            await made

    @property
    def schema(self) -> Schema:
        """The definitions when the transaction began or a statement of it changed them."""
        return self._transaction._known_schema

    async def execute(self, request: Request) -> bytes | None:
        """As `Transaction.execute`."""
        found: bytes | None = await self._run(self._transaction.execute, request)
        return found

    async def _make(self, kind: RowType, space: int | str, first: Value, *rest: Any) -> Row | None:
        """As `Transaction._make`."""
        made: Row | None = await self._run(self._transaction._make, kind, space, first, *rest)
        return made

    async def get(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """As `Transaction.get`."""
        found: Row | None = await self._run(partial(self._transaction.get, space, key, index=index))
        return found

    async def select(self, space: int | str, key: Value = None, **options: Any) -> list[Row]:
        """As `Transaction.select`."""
        found: list[Row] = await self._aside(
            partial(self._transaction.select, space, key, **options)
        )
        return found

    async def append(self, space: int | str, tuples: Iterable[Sequence[Value]]) -> int:
        """As `Transaction.append`."""
        count: int = await self._aside(self._transaction.append, space, tuples)
        return count

    async def rollback(self) -> None:
        """As `Transaction.rollback`."""
        await self._run(self._transaction.rollback)

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Here, for it takes microseconds; in the thread where that still does something for this
        transaction, and for what has to wait."""
        self._log.check_process()
        if self._lined:
            return await self._aside(call, *args)
        try:
            return call(*args)
        finally:
            if self._transaction._has_to_wait:
                await self._aside(self._transaction._wait)

    async def _aside(self, call: Callable[..., Any], *args: Any) -> Any:
        """In the thread; nothing stops it there."""
        self._log.check_process()
        self._lined += 1
        doing = asyncio.get_running_loop().run_in_executor(self._thread, self._there, call, args)
        doing.add_done_callback(self._leave_line)
        return await asyncio.shield(doing)

    def _there(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return call(*args)
        finally:
            self._transaction._wait()

    def _leave_line(self, _: object) -> None:
        self._lined -= 1
