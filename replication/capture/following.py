"""Following changes from a second process: `logweir.follow` and `logweir.aio.follow`.

::

    for transaction in logweir.follow("data"):             # a folder that another process writes
        for row in transaction.rows:
            print(row.type_name, row.lsn, row.decoded())

    for transaction in logweir.follow("tarantool://reader:secret@host:3301", after=position):
        ...                                                # a server: logweir, or a Tarantool

Nothing is locked or copied. A program that keeps, with what it has done, the position after it
(`position.with_lsn(row.replica_id, row.lsn)` of each row) goes on there, each change exactly once.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, WalError
from logweir.replication.iproto.client.changes import Begun, server_changes
from logweir.replication.protocols import parse_url
from logweir.replication.urls import Url
from logweir.store.engine.settling import judged, may_wait
from logweir.store.recover.defined import folder_definitions
from logweir.store.recover.upkeep import position_of
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS
from logweir.wal.follow import Follower
from logweir.wal.lease import Lease
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction

_POLL_SECONDS: Final = 0.05
_PIECE: Final = 256  # transactions of a folder that a thread reads at a time
_PIECES: Final = 4  # of a server that wait for the program

Where = str | os.PathLike[str] | Url
"""A folder, or the address of a server."""


def follow(
    where: str | os.PathLike[str],
    after: Mapping[int, int] | None = None,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
) -> Generator[Transaction, None, None]:
    """The transactions of a log after a position, oldest first, and more as they come.

    `where`: a folder, ours or a Tarantool's, in use or not, or `tarantool://…` of a server (the
    user needs the right to replicate); `after`: a vclock, None for the oldest row still there;
    `once`: end where the log ended when it was asked; `stop`: ends it when set.

    A folder is looked at 20 times a second. What its writer has not synced yet is given, too, so a
    power cut may take it back; a server gives what it gives its replicas. Close the iterator
    (`.close()`) to let the log's files go. Raises `ConfigError`, `WalError`, `CorruptBlock`,
    `ChainGap`, `PositionUnavailable` if the log after `after` is gone, and of a server
    `Unreachable` and `SourceStopped`: to go on, ask again after the last row that was given.
    """
    for columns in following(where, after, once=once, stop=stop):
        for transaction in _transactions(columns):
            yield transaction
            if stop is not None and stop.is_set():
                return


def following(
    where: Where,
    after: Mapping[int, int] | None = None,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    begun: Begun | None = None,
) -> Generator[RowColumns, None, None]:
    """As `follow`, as columns of whole transactions. `begun`: called once, before the first; what
    it raises is raised here, and what a folder gives is settled (see `logweir.wal.settled`)."""
    source, start = asked(where, after)
    if isinstance(source, Url):
        return _of_server(source, start, once, stop, begun)
    return _of_folder(source, start, once, stop, begun)


async def follow_async(
    where: str | os.PathLike[str],
    after: Mapping[int, int] | None = None,
    *,
    once: bool = False,
) -> AsyncGenerator[Transaction, None]:
    """As `logweir.follow`, for asyncio; leave it by `contextlib.aclosing`, or by `break`."""
    source, start = asked(where, after)
    if isinstance(source, Url):
        async with aclosing(server_changes(source, start, once=once)) as pieces:
            async for columns in pieces:
                for transaction in _transactions(columns):
                    yield transaction
        return
    follower = await asyncio.to_thread(_follower, source, start)
    try:
        while True:
            ready = (one for block in follower.poll() for one in block.transactions())
            while piece := await asyncio.to_thread(list, islice(ready, _PIECE)):
                for transaction in piece:
                    yield transaction
            if once:
                return
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        follower.close()


def asked(where: Where, after: Mapping[int, int] | None) -> tuple[Url | Path, VClock | None]:
    """The server or the folder, and the position. Raises `ConfigError`, and `RequestError` for what
    is no position."""
    start = None if after is None else position_of(after)
    if isinstance(where, Url):
        url = where
    elif isinstance(where, str) and "://" in where:
        url = parse_url(where, origin="where")
    else:
        return Path(where), start
    if url.scheme != "tarantool":
        raise ConfigError(
            "where",
            f"changes of {url.scheme} cannot be read without a store",
            hint="`logweir follow URL DIR` keeps a copy of it; follow that folder",
        )
    return url, start


def _transactions(columns: RowColumns) -> Iterator[Transaction]:
    for first, last in columns.transactions():
        yield Transaction(tuple(columns.row(number) for number in range(first, last)))


def _follower(folder: Path, after: VClock | None, *, settles: bool = False) -> Follower:
    """From there, or from the oldest log. `settles`: only what is settled is given. Raises
    `WalError` if there is no folder."""
    if not folder.is_dir():
        raise WalError("no such folder.", path=str(folder), hint="give the folder of a store")
    if after is None:
        logs = scan_directory(folder).xlogs
        after = logs[0].vclock if logs else VClock()

    def judge(position: VClock) -> Settled:
        return judged(folder, position, OS)

    settled = judge if settles and may_wait(folder, OS) else None
    return Follower(folder, after, settled=settled, lease=Lease(folder))


def _of_folder(
    folder: Path,
    after: VClock | None,
    once: bool,
    stop: threading.Event | None,
    begun: Begun | None = None,
) -> Generator[RowColumns, None, None]:
    with _follower(folder, after, settles=begun is not None) as follower:
        if begun is not None:
            defined = folder_definitions(folder)
            begun(defined.replicaset, follower.vclock, defined.vclock)
        while stop is None or not stop.is_set():
            for block in follower.poll():
                yield block.columns
                if stop is not None and stop.is_set():
                    return
            if once:
                return
            if stop is None:
                time.sleep(_POLL_SECONDS)
            else:
                stop.wait(_POLL_SECONDS)


def _of_server(
    url: Url,
    after: VClock | None,
    once: bool,
    stop: threading.Event | None,
    begun: Begun | None = None,
) -> Generator[RowColumns, None, None]:
    """A thread speaks with the server, so that it is answered however long the program takes."""
    came: queue.SimpleQueue[RowColumns | BaseException | None] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    room = asyncio.Semaphore(_PIECES)

    async def receive() -> None:
        try:
            async with aclosing(server_changes(url, after, once=once, begun=begun)) as pieces:
                async for columns in pieces:
                    await room.acquire()
                    came.put(columns)
        except BaseException as error:
            came.put(error)
        else:
            came.put(None)

    task = loop.create_task(receive())
    thread = threading.Thread(target=loop.run_until_complete, args=(task,), daemon=True)
    thread.start()
    try:
        while stop is None or not stop.is_set():
            try:
                found = came.get(timeout=None if stop is None else _POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            if found is None:
                return
            yield found
            loop.call_soon_threadsafe(room.release)
    finally:
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
