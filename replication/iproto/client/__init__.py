"""A client of any Tarantool: pipelined requests, answers by sync.

`CommandSession` is the state machine without I/O; `Client` puts it on a link, for commands that
talk to a server (`logweir play`, `logweir status`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from logweir.errors import RemoteProtocolError, Unreachable
from logweir.limits import CONNECT_SECONDS, IPROTO_FRAME_BYTES
from logweir.replication.dialer import Asking, dial_with
from logweir.replication.iproto.wire.auth import scramble
from logweir.replication.iproto.wire.codec import (
    GREETING_BYTES,
    Answer,
    BrokenStream,
    Greeting,
    IprotoKey,
    RequestType,
    Splitter,
    decode_answer,
    decode_greeting,
    frame,
)
from logweir.replication.link import Link
from logweir.replication.session import BaseSession, InputBuffer
from logweir.replication.urls import Url
from logweir.store.schema.definition import LOGIN_METHOD
from logweir.wal.mp import Value, encode_uint, pack

__all__ = ["Client", "CommandSession", "open_client"]


class CommandSession(BaseSession[Greeting | Answer]):
    """One connection of a client. Events: the `Greeting`, then `Answer`s."""

    peer = "the server"

    def __init__(self, now: float) -> None:
        super().__init__()
        self._input = InputBuffer("IPROTO_FRAME_BYTES", IPROTO_FRAME_BYTES + 9)
        self._splitter = Splitter()
        self._greeted = False
        self._began = now
        self._sync = 0

    def receive_data(self, data: bytes, now: float) -> Sequence[Greeting | Answer]:
        """See `Session`."""
        del now
        whole = b"" if self.close_reason else self._input.join(data)
        if not whole:
            return ()
        events: list[Greeting | Answer] = []
        try:
            if not self._greeted:
                if len(whole) < GREETING_BYTES:
                    self._input.keep(whole, GREETING_BYTES)
                    return ()
                events.append(decode_greeting(whole[:GREETING_BYTES]))
                self._greeted = True
                whole = whole[GREETING_BYTES:]
            spans, rest_at, needed = self._splitter.split(whole)
            events += [decode_answer(whole, *span) for span in spans]
            self._input.keep(whole[rest_at:], needed)
        except BrokenStream as error:
            self.close_reason = f"malformed answer: {error.cause.message}"
        except RemoteProtocolError as error:
            self.close_reason = str(error)
        return events

    def next_deadline(self) -> float | None:
        """See `Session`: the greeting must come in time."""
        return None if self._greeted else self._began + CONNECT_SECONDS

    def deadline_passed(self, now: float) -> Sequence[Answer]:
        """See `Session`."""
        if not self._greeted and now >= self._began + CONNECT_SECONDS:
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
