"""Rows of a running server and messages of a Tank broker, for tasks that are not asynchronous.

A server (logweir or Tarantool) is followed as an anonymous replica: nothing is registered there,
and nothing waits for us. A task asks for the rows after one vclock and stops at another; while it
is slow, a thread goes on acknowledging, since a master gives up a replica that says nothing
(Tarantool 2.6.0, observed: four times `replication_timeout`). The thread reads ahead by
`limits.UPSTREAM_WAITING_BYTES` at most.

The replica set's UUID, which SUBSCRIBE must name, is read from `_schema`; where the user may not
read that, it is in the refusal that a wrong one gets. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeVar

from logweir.errors import (
    ErrorCode,
    PositionUnavailable,
    RemoteProtocolError,
    RequestError,
    SourceStopped,
    Unreachable,
)
from logweir.replication.iproto.client import open_client
from logweir.replication.iproto.client_session import Heartbeat, Refused, Rows, Subscribed
from logweir.replication.iproto.follow.upstream import Upstream, connect
from logweir.replication.iproto.wire.codec import Ballot, IprotoKey, RequestType
from logweir.replication.tank.client import Client, Record
from logweir.replication.urls import Url
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock

_ACKNOWLEDGE_SECONDS: Final = 0.5
_SILENCE_SECONDS: Final = 30.0
_AHEAD: Final = 16
_SCHEMA_SPACE: Final = 272
_ITERATOR: Final = 0x14
_LIMIT: Final = 0x12
_OFFSET: Final = 0x13
_STEP_MESSAGES: Final = 8192

T = TypeVar("T")


def _in_thread(make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """The items of an asynchronous iterator that runs in a thread of its own."""
    items: queue.Queue[Any] = queue.Queue(_AHEAD)
    stopped = threading.Event()
    end = object()

    def put(item: object) -> None:
        while not stopped.is_set():
            try:
                items.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async for item in make():
            await loop.run_in_executor(None, put, item)
            if stopped.is_set():
                return

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # handed on to the reader's thread
            put(error)
            if not isinstance(error, Exception):
                raise
        else:
            put(end)

    thread = threading.Thread(target=work, name="logweir-peer", daemon=True)
    thread.start()
    try:
        while (item := items.get()) is not end:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


# --- servers ----------------------------------------------------------------------------------


def positions(url: Url) -> tuple[VClock, VClock]:
    """The vclock of the oldest row that a server holds, and of its newest.

    Raises `Unreachable`, `SourceStopped`.
    """

    async def ask() -> Ballot:
        async with connect(url) as (_, _, ballot):
            return ballot

    ballot = asyncio.run(ask())
    return ballot.gc_vclock.without_local(), ballot.vclock.without_local()


def replicaset(url: Url) -> uuid.UUID:
    """The replica set that a server is of. Raises `Unreachable`, `SourceStopped`."""
    return asyncio.run(_replicaset(url))


def rows(url: Url, start: VClock, end: VClock, of: uuid.UUID | None) -> Iterator[RowColumns]:
    """The rows after `start`, as far as they come until all up to `end` are there, in pieces.

    `of`: the replica set that has these positions; None: the server's. A piece may hold rows
    outside of the two. Raises `PositionUnavailable` if the server has removed some,
    `Unreachable`, `SourceStopped`.
    """
    return _in_thread(lambda: _rows(url, start.without_local(), end.without_local(), of))


async def _rows(
    url: Url, start: VClock, end: VClock, of: uuid.UUID | None
) -> AsyncIterator[RowColumns]:
    of = of or await _replicaset(url)
    async with connect(url) as (upstream, _, ballot):
        if not start.covers(ballot.gc_vclock.without_local()):
            raise _gone(url, start, ballot)
        upstream.session.subscribe(uuid.uuid4(), of, start, anonymous=True)
        upstream.link.flush()
        subscribed = await upstream.expect(Subscribed)
        if subscribed.replicaset not in (None, of):
            raise SourceStopped(
                f"{url} belongs to replica set {subscribed.replicaset}, the positions to {of}",
                hint="bring the server of then back, or begin with a new checkpoint",
            )
        reached = start
        acknowledging = asyncio.create_task(_acknowledge(upstream, lambda: reached))
        try:
            while not reached.covers(end):
                event = await asyncio.wait_for(upstream.next(), _SILENCE_SECONDS)
                if isinstance(event, Rows):
                    columns = RowColumns.scan(event.data)
                    reached = reached.merge(columns.last_lsns())
                    yield columns
                elif isinstance(event, Refused):
                    if "Missing .xlog" in event.error.message:
                        raise _gone(url, start, ballot)
                    raise upstream.refusal(event)
                elif not isinstance(event, Heartbeat):
                    raise RemoteProtocolError(f"{url}: {type(event).__name__} came among rows")
        except TimeoutError:
            raise Unreachable(str(url), f"nothing came for {_SILENCE_SECONDS:.0f} s") from None
        finally:
            acknowledging.cancel()


async def _acknowledge(upstream: Upstream, reached: Callable[[], VClock]) -> None:
    while True:
        await asyncio.sleep(_ACKNOWLEDGE_SECONDS)
        upstream.session.acknowledge(reached())
        upstream.link.flush()


def _gone(url: Url, start: VClock, ballot: Ballot) -> PositionUnavailable:
    return PositionUnavailable(
        start,
        ballot.gc_vclock,
        ballot.vclock,
        hint=f"{url} has removed the logs that hold it: keep them longer there, or begin with a "
        "new checkpoint",
    )


async def _replicaset(url: Url) -> uuid.UUID:
    """The UUID of the server's replica set."""
    body = {
        int(IprotoKey.SPACE_ID): _SCHEMA_SPACE,
        int(IprotoKey.INDEX_ID): 0,
        _LIMIT: 1,
        _OFFSET: 0,
        _ITERATOR: 0,
        int(IprotoKey.KEY): ["cluster"],
    }
    try:
        async with open_client(url) as client:
            answer = await client.call(RequestType.SELECT, body)
        return uuid.UUID(answer.body[IprotoKey.DATA][0][1])
    except RequestError as error:
        if error.code != ErrorCode.ACCESS_DENIED:
            raise
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise SourceStopped(f"{url} does not say its replica set") from error
    async with connect(url) as (upstream, _, ballot):
        upstream.session.subscribe(uuid.uuid4(), uuid.uuid4(), ballot.vclock, anonymous=True)
        upstream.link.flush()
        event = await upstream.next()
        if isinstance(event, Refused):
            named = re.search(r"expected ([0-9a-f-]{36})", event.error.message)
            if event.error.code == ErrorCode.REPLICASET_UUID_MISMATCH and named is not None:
                return uuid.UUID(named[1])
            raise upstream.refusal(event)
    raise SourceStopped(f"{url} does not say its replica set")


# --- topics -----------------------------------------------------------------------------------


def numbers(url: Url) -> dict[int, tuple[int, int]]:
    """The first number and the one that comes next, per partition of the topic that `url` names.

    Raises `PeerRefused` for an unknown topic, `Unreachable`.
    """
    topic, chosen = _topic(url)

    async def ask() -> dict[int, tuple[int, int]]:
        async with Client(url) as client:
            states = await client.partitions(topic)
            return {
                partition: (max(state.first, 1), state.last + 1)
                for partition, state in enumerate(states)
                if chosen is None or partition == chosen
            }

    return asyncio.run(ask())


def messages(url: Url, partition: int, start: int, end: int) -> Iterator[list[Record]]:
    """The messages from number `start` up to `end` - 1 of one partition, in pieces.

    Raises `PositionUnavailable` if the broker has removed some, `Unreachable`.
    """
    return _in_thread(lambda: _messages(url, partition, start, end))


async def _messages(url: Url, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
    topic, _ = _topic(url)
    async with Client(url) as client:
        consumer = client.consumer(topic, [partition], start=start, wait_ms=1000)
        async with consumer:
            while consumer.position(partition) < end:
                found = await consumer.get_many(_STEP_MESSAGES)
                wanted = [one for one in found if one.number < end]
                if wanted:
                    yield wanted


def _topic(url: Url) -> tuple[str, int | None]:
    return url.path[0], int(url.path[1]) if len(url.path) > 1 else None
