"""One connection to a Tarantool master, as a stream of events to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from logweir.errors import (
    DecodeError,
    ErrorCode,
    LimitExceeded,
    LogweirError,
    RemoteProtocolError,
    SourceStopped,
    Unreachable,
)
from logweir.limits import TRANSACTION_BYTES, UPSTREAM_STEP_BYTES
from logweir.replication.dialer import Inbox, dial_with
from logweir.replication.iproto.client_session import (
    Authenticated,
    ClientSession,
    Event,
    Refused,
    Rows,
)
from logweir.replication.iproto.wire.codec import Ballot, Greeting
from logweir.replication.link import Link
from logweir.replication.session import InputBuffer
from logweir.replication.urls import STALL_SECONDS, Url, option_seconds
from logweir.wal.columns import RowColumns

EventT = TypeVar("EventT")

# Refusals that may go away by themselves: the master is starting, or somebody grants what is
# missing. Any other stops a follower. Source: `applier.cc` of 2.6.0, most observed.
_PASSING = frozenset(
    (
        ErrorCode.LOADING,
        ErrorCode.ACCESS_DENIED,
        ErrorCode.NO_SUCH_USER,
        ErrorCode.PASSWORD_MISMATCH,
        ErrorCode.CFG,
        ErrorCode.SYSTEM,
    )
)


class Upstream(Inbox[Event]):
    """The conversation of a follower."""

    peer = "master"

    def __init__(self, link: Link, url: Url, on_data: Callable[[], None]) -> None:
        super().__init__(
            link, url, lambda event: len(event.data) if isinstance(event, Rows) else 0, on_data
        )
        self._stall_seconds = option_seconds(url, "stall", STALL_SECONDS)
        self.session = ClientSession(link.time(), self._stall_seconds)
        # Rows of a transaction whose end has not come.
        self._begun = InputBuffer("TRANSACTION_BYTES", TRANSACTION_BYTES)

    def held(self, is_held: bool) -> None:
        """See `Inbox`: what is not read is no silence of the master."""
        self.session.reading(not is_held, self.link.time())
        self.link.flush()  # the deadline begins anew, whether or not a word comes

    async def whole(self, event: Rows) -> RowColumns | None:
        """The transactions whose ends have come, with `event` and what else waits already; None
        while there is none. Raises `RemoteProtocolError`."""
        parts, size = [event.data], len(event.data)
        while size < UPSTREAM_STEP_BYTES and self._waiting:
            if not isinstance(more := self._waiting[0], Rows):
                break
            await self.next()
            parts.append(more.data)
            size += len(more.data)
        data = b"".join(parts)
        try:
            columns = RowColumns.scan(data)
            count = _whole_rows(columns)
            end = columns.row_offset[count] if count < len(columns) else len(data)
            if count and (self._begun or end < len(data)):
                columns = RowColumns.scan(self._begun.take() + data[:end])
            if end < len(data):
                self._begun.add(data[end:])
            if not count:
                return None
            columns.transaction_ends()
        except (DecodeError, LimitExceeded) as error:
            raise RemoteProtocolError(
                f"{self.url} sent rows that cannot be read: {error}"
            ) from error
        return columns

    @asynccontextmanager
    async def asked_after(self, instance: uuid.UUID) -> AsyncIterator[None]:
        """While the master says nothing, ask it over another connection whether it lives. It may
        look through a long log for what undoes rows, before it sends them as the last ones of a
        join, and the protocol has no heartbeat there. `instance`: the master's; that another one
        answers at its address tells nothing of it."""
        asking = asyncio.ensure_future(self._ask_after(instance))
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.wait((asking,))

    async def _ask_after(self, instance: uuid.UUID) -> None:
        pause, link = self._stall_seconds / 3, self.link
        while True:
            await asyncio.sleep(pause)
            if link.time() >= link.last_received + pause:
                with contextlib.suppress(LogweirError, OSError):
                    async with connect(self.url) as (_, greeting, _):
                        if greeting.instance == instance:
                            self.session.lives(link.time())

    def check_whole(self) -> None:
        """Raise `RemoteProtocolError` if the end of a transaction has not come."""
        if self._begun:
            raise RemoteProtocolError(f"{self.url} sent a transaction without its end")

    async def expect(self, kind: type[EventT]) -> EventT:
        """The next event, which must be of that kind. A refusal raises: see `refusal`."""
        event = await self.next()
        if isinstance(event, Refused):
            raise self.refusal(event)
        if not isinstance(event, kind):
            raise RemoteProtocolError(
                f"{self.url}: {type(event).__name__} came, {kind.__name__} was due"
            )
        return event

    def refusal(self, event: Refused) -> SourceStopped | Unreachable:
        """A refusal as an error: one that may pass, or one that stops the source."""
        error = event.error
        text = f"the master refused {event.state}: {error.message} (error {int(error.code)})"
        if error.code in _PASSING:
            hint = "check user, grants and state there"
            if error.code == ErrorCode.ACCESS_DENIED:
                hint = "its user needs the role `replication` there (`logweir user grant`)"
            return Unreachable(str(self.url), text, hint=hint)
        return SourceStopped(f"{self.url}: {text}", hint="mend what it names, then start again")


@asynccontextmanager
async def connect(
    url: Url, *, on_data: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Upstream, Greeting, Ballot]]:
    """Connect, authenticate, vote. The connection is closed at the end of the context."""
    link, upstream = await dial_with(url, lambda link: Upstream(link, url, on_data))
    try:
        greeting = await upstream.expect(Greeting)
        if url.user:
            upstream.session.authenticate(url.user, url.secret())
            link.flush()
            await upstream.expect(Authenticated)
        upstream.session.vote()
        link.flush()
        event = await upstream.first()
        if isinstance(event, Refused) and event.error.code == ErrorCode.UNKNOWN_REQUEST_TYPE:
            await upstream.next()
            ballot = Ballot()
        else:
            ballot = await upstream.expect(Ballot)
        yield upstream, greeting, ballot
    finally:
        await link.shut("the follower is done")


def _whole_rows(columns: RowColumns) -> int:
    """How many rows belong to transactions whose end has come."""
    flags = columns.flags
    for row in range(len(columns) - 1, -1, -1):
        if flags[row] & 1:
            return row + 1
    return 0
