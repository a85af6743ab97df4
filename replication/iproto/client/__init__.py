"""A client of any Tarantool: pipelined requests, answers by sync.

`CommandSession` is the state machine without I/O; `Client` puts it on a link, for commands that
talk to a server (`logweir play`, `logweir status`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from logweir.errors import Unreachable
from logweir.limits import CONNECT_SECONDS
from logweir.replication.dialer import Asking, dial_with
from logweir.replication.iproto.client_session import FromServer
from logweir.replication.iproto.wire.auth import scramble
from logweir.replication.iproto.wire.codec import (
    Answer,
    Greeting,
    IprotoKey,
    RequestType,
    decode_answer,
    frame,
)
from logweir.replication.link import Link
from logweir.replication.urls import Url
from logweir.store.schema.definition import LOGIN_METHOD
from logweir.wal.mp import Value, encode_uint, pack

__all__ = ["Client", "CommandSession", "open_client"]


class CommandSession(FromServer[Answer]):
    """One connection of a client. Events: the `Greeting`, then `Answer`s."""

    unit = "answer"

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self._unit_deadline = now + CONNECT_SECONDS  # of the greeting
        self._sync = 0

    def _take_greeting(self, data: bytes, events: list[Greeting | Answer]) -> bytes:
        rest = super()._take_greeting(data, events)
        if events:
            self._unit_deadline = None
        return rest

    def _take_frames(
        self, data: bytes, spans: Sequence[tuple[int, int]], events: list[Greeting | Answer]
    ) -> None:
        events += [decode_answer(data, *span) for span in spans]

    def deadline_passed(self, now: float) -> Sequence[Answer]:
        if self._unit_deadline is not None and now >= self._unit_deadline:
            self.close_reason = "no greeting came"
        return ()

    def request(self, kind: int, body: bytes = b"") -> int:
        """Send a request with a body that is encoded already. Returns its sync."""
        self._sync += 1
        header = b"\x82\x00" + encode_uint(kind) + b"\x01" + encode_uint(self._sync)
        self._out.put(frame(header + body))
        return self._sync


class Client(Asking[CommandSession, Answer]):
    """A connected client. Made by `open_client`."""

    lost_hint = "see its log"

    def __init__(self, url: Url, link: Link) -> None:
        super().__init__(url, CommandSession(link.time()))
        self.link = self._link = link
        self.greeting: asyncio.Future[Greeting] = asyncio.get_running_loop().create_future()

    def handle(self, events: Sequence[Greeting | Answer]) -> None:
        """See `Conversation`."""
        for event in events:
            if isinstance(event, Greeting):
                if not self.greeting.done():  # else who waited for it was stopped
                    self.greeting.set_result(event)
            else:
                self._answered(event.header.sync, event)

    def closed(self, reason: str) -> None:
        """See `Conversation`."""
        self._fail(self.greeting, self._loss(reason, self.lost_hint))
        super().closed(reason)

    def _loss(self, reason: str, hint: str = "") -> Unreachable:
        return Unreachable(str(self.url), reason, hint=hint)

    def send(self, kind: int, body: bytes = b"") -> asyncio.Future[Answer]:
        """Send a request; `flush` makes it go. The future gives the answer, also a refusal."""
        return self._awaited(self.session.request(kind, body))

    def flush(self) -> None:
        """Let everything go that was sent."""
        self.link.flush()

    async def call(self, kind: int, body: Mapping[int, Value] | None = None) -> Answer:
        """One request and its answer. Raises `RequestError` if it is refused."""
        waiting = self.send(kind, pack(dict(body)) if body is not None else b"")
        self.flush()
        answer = await waiting
        if answer.is_error:
            raise answer.error()
        return answer


@asynccontextmanager
async def open_client(url: Url) -> AsyncIterator[Client]:
    """Connect and authenticate. Raises `Unreachable`, `RequestError`, `RemoteProtocolError`."""
    link, client = await dial_with(url, lambda link: Client(url, link))
    try:
        greeting = await client.greeting
        if url.user:
            proof = scramble(url.secret(), greeting.salt).decode("utf-8", "surrogateescape")
            body = {int(IprotoKey.USER_NAME): url.user, int(IprotoKey.TUPLE): [LOGIN_METHOD, proof]}
            await client.call(RequestType.AUTH, body)
        yield client
    finally:
        await link.shut("the client is done")
