"""The changes of a running Tarantool, or logweir, for a program: a replica without a store.

Nothing is copied: what is asked for is the log after a position, which the server must still have.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Final

from logweir.errors import ErrorCode, PositionUnavailable, RemoteProtocolError
from logweir.replication.iproto.client_session import Heartbeat, Refused, Rows, Subscribed
from logweir.replication.iproto.follow.upstream import connect
from logweir.replication.urls import Url
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock

Begun = Callable[[uuid.UUID | None, VClock, VClock], None]
"""Called with the UUID of a log's replica set, the place after which rows are given, and the end
of the log, before its rows."""

_ACK_SECONDS: Final = 0.5  # a master cuts off who says nothing for a few seconds


async def server_changes(
    url: Url, after: VClock | None, *, once: bool = False, begun: Begun | None = None
) -> AsyncGenerator[RowColumns, None]:
    """Whole transactions after `after`, as they come; None: from the oldest that the server has
    on; `once`: up to where it was when it was asked; `begun`: what it raises ends it.

    The server keeps its log for who is connected, and forgets who is not. Raises `Unreachable`,
    `SourceStopped`, `RemoteProtocolError`, and `PositionUnavailable` if what comes after
    `after` is gone there.
    """
    async with connect(url) as (upstream, _, ballot):
        oldest = ballot.gc_vclock.without_local()
        place = (oldest if after is None else after).without_local()
        if not place.covers(oldest):
            raise _gone(place, oldest, ballot.vclock)

        async def acknowledge() -> None:
            """Say how far the program is, what it was given before it asked for more: so the server
            neither cuts us off nor forgets too much."""
            while True:
                upstream.session.acknowledge(place)
                upstream.link.flush()
                await asyncio.sleep(_ACK_SECONDS)

        upstream.session.subscribe(uuid.uuid4(), uuid.uuid4(), place, anonymous=True)
        upstream.link.flush()
        subscribed = await upstream.expect(Subscribed)
        target = subscribed.vclock
        if begun is not None:
            begun(subscribed.replicaset, place, target)
        alive = asyncio.create_task(acknowledge())
        try:
            while not (once and place.covers(target)):
                event = await upstream.next()
                if isinstance(event, Refused):
                    if event.error.code == ErrorCode.PROC_LUA:  # "Missing .xlog file between …"
                        raise _gone(place, oldest, target) from event.error
                    raise upstream.refusal(event)
                if isinstance(event, Rows):
                    columns = await upstream.whole(event)
                    if columns is not None:
                        yield columns
                        place = place.merge(columns.last_lsns())
                elif not isinstance(event, Heartbeat):
                    raise RemoteProtocolError(f"{url}: {type(event).__name__} came among rows")
        finally:
            alive.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await alive


def _gone(wanted: VClock, oldest: VClock, newest: VClock) -> PositionUnavailable:
    return PositionUnavailable(
        wanted, oldest, newest, hint="the server has removed it: read its tuples anew, then go on"
    )
