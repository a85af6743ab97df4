"""One connection to a Greenstack server: requests out, answers awaited, streams taken in."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from logweir.errors import LogweirError, PeerRefused, Unreachable
from logweir.limits import CONNECT_SECONDS
from logweir.replication.dialer import Asking
from logweir.replication.greenstack.client_session import (
    Answered,
    ClientEvent,
    ClientSession,
    Pushed,
    Ready,
    Refused,
)
from logweir.replication.greenstack.follow.incoming import Ended, Incoming, Rows, Step
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import (
    Feature,
    NoticeCode,
    StreamOpen,
    decode_notice,
    decode_opened,
    encode_ack,
    encode_close,
)
from logweir.replication.urls import Url
from logweir.wal.vclock import VClock

ANSWER_SECONDS: Final = 60.0
"""How long an answer may take."""

_NO_STREAMS: Final = "Greenstack itself has none; follow that server by TAP or DCP tools"
"""What to do if a server has no change streams."""

_TOO_OLD: Final = "the server needs a newer logweir, and the client to ask for that feature"

Notice = Callable[[NoticeCode | int, str], None]


def status_of(number: int | None) -> Status:
    """A status as a name; one that is not known as InternalError."""
    try:
        return Status(number or 0)
    except ValueError:
        return Status.INTERNAL_ERROR


class Stream:
    """One change stream. Made by `Connection.stream`; `instance`: UUID of the server's store;
    `opened_at`: where that one stood when it was asked."""

    def __init__(self, connection: Connection, name: bytes, asked: StreamOpen) -> None:
        self.instance = ""
        self.opened_at = VClock()
        self.asked = asked
        self._connection = connection
        self._name = name
        self._incoming = Incoming(asked.start)
        self._steps: deque[Step] = deque()
        self._news = asyncio.Event()
        self._failure: LogweirError | None = None

    def take(self, frame: Frame) -> None:
        """A frame of this stream has come. Raises `DecodeError`."""
        step = self._incoming.take(frame)
        if step is not None:
            self._steps.append(step)
            self._news.set()

    def fail(self, error: LogweirError) -> None:
        """Nothing more will come."""
        self._failure = self._failure or error
        self._news.set()

    @property
    def waiting(self) -> int:
        """Steps that have come and were not taken."""
        return len(self._steps)

    def peek(self) -> Step:
        """The next one, which has come and stays."""
        return self._steps[0]

    async def step(self) -> Step:
        """The next one. Raises `Unreachable` once the connection is gone, or silent for three
        heartbeat times."""
        seconds = 3.0 * self.asked.heartbeat_seconds or None
        while not self._steps:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError as error:
                text = f"stream {self._name!r} is silent for {seconds:g} s"
                raise Unreachable(str(self._connection.url), text) from error
        step = self._steps.popleft()
        if isinstance(step, Ended):
            self._connection.forget(self._name)
        return step

    def acknowledge(self, *steps: Step) -> None:
        """These were worked on: the server may send as much again."""
        credit = sum(step.size_bytes for step in steps if isinstance(step, Rows))
        if not credit:
            return
        payload = encode_ack(self._incoming.position, credit)
        flex = {FlexKey.DCP_ID.value: self._name}
        self._connection.tell(Frame(Opcode.STREAM_ACK, payload=payload, flex=flex))

    def close(self) -> None:
        """Tell the server that nothing more is wanted."""
        flex = {FlexKey.DCP_ID.value: self._name}
        self._connection.tell(Frame(Opcode.STREAM_CLOSE, payload=encode_close(0, ""), flex=flex))
        self._connection.forget(self._name)


class Connection(Asking[ClientSession, Frame | None]):
    """See the module's text. Made by `Connection.open`."""

    server = "Greenstack server"

    def __init__(self, url: Url, session: ClientSession, on_notice: Notice | None) -> None:
        super().__init__(url, session)
        self.features: frozenset[int] = frozenset()
        self.agent = ""
        self._on_notice = on_notice
        self._streams: dict[bytes, Stream] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        url: Url,
        *,
        features: tuple[int, ...] = tuple(Feature),
        on_notice: Notice | None = None,
        timeout_seconds: float = CONNECT_SECONDS,
    ) -> Connection:
        """Connect, log in and select the bucket of the address.

        Raises `Unreachable`, `PeerRefused`, `RemoteProtocolError`.
        """
        session = ClientSession(
            os.urandom,
            user=url.user,
            password=url.secret(),
            bucket=url.path[0] if url.path else "",
            features=features,
        )
        connection = cls(url, session, on_notice)
        await connection._dial(timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                await connection._ready
        except TimeoutError as error:
            connection.close("the server does not answer HELLO")
            text = f"no answer to HELLO after {timeout_seconds:g} s"
            hint = "is it a Greenstack server?"
            raise Unreachable(str(url), text, hint=hint) from error
        return connection

    # --- what the link tells ----------------------------------------------------------------------

    def handle(self, events: Sequence[ClientEvent]) -> None:
        """Give each answer to who waits for it."""
        for event in events:
            match event:
                case Ready():
                    self.features, self.agent = event.features, event.agent
                    if not self._ready.done():
                        self._ready.set_result(None)
                case Refused(what, number) if not self._ready.done():
                    status = status_of(number)
                    name = status.name.lower().replace("_", " ")
                    text = f"{self.url}: the server refuses {what}: {name}"
                    self._ready.set_exception(PeerRefused(text, result=status))
                case Answered():
                    self._answered(event.request.opaque, event.answer)
                case Pushed():
                    self._take_push(event.frame)

    def closed(self, reason: str) -> None:
        """See `Conversation`: all that wait are told, and who follows a stream."""
        error = self._loss(reason)
        self._fail(self._ready, error)
        super().closed(reason)
        for stream in self._streams.values():
            stream.fail(error)

    def _take_push(self, frame: Frame) -> None:
        if frame.opcode == Opcode.NOTICE:
            code, text, _ = decode_notice(frame.payload)
            if self._on_notice is not None:
                known = code in NoticeCode.__members__.values()
                self._on_notice(NoticeCode(code) if known else code, text)
            return
        stream = self._streams.get(frame.flex.get(FlexKey.DCP_ID, b""))
        if stream is not None:
            stream.take(frame)

    # --- requests ---------------------------------------------------------------------------------

    async def send(self, *requests: Frame) -> Sequence[asyncio.Future[Frame | None]]:
        """Send requests in one piece. The futures give their answers, None for a quiet request
        that is known to have succeeded, or fail with `Unreachable`, `RemoteProtocolError`.

        Raises `Unreachable` if the connection is closed.
        """
        link = await self._ready_link()
        futures = [self._awaited(self.session.send(request).opaque) for request in requests]
        link.flush()
        return futures

    async def ask(self, request: Frame, *, timeout_seconds: float = ANSWER_SECONDS) -> Frame:
        """Send one request and wait for its answer, whatever its status.

        Raises as `send` and its futures do, and `Unreachable` if no answer comes in time.
        """
        (future,) = await self.send(request)
        answer = await self._in_time(future, timeout_seconds)
        assert answer is not None
        return answer

    def tell(self, frame: Frame) -> None:
        """Send something quiet."""
        if self._link is not None:
            self.session.tell(frame)
            self._link.flush()

    # --- streams ----------------------------------------------------------------------------------

    async def stream(self, name: bytes, asked: StreamOpen) -> Stream:
        """Open a change stream. Raises `PeerRefused`, and as `ask`."""
        self.need(Feature.CHANGE_STREAM, "change streams", _NO_STREAMS)
        if asked.is_filtered:
            self.need(Feature.FILTERS, "filters of change streams")
        stream = self._streams[name] = Stream(self, name, asked)
        flex = {FlexKey.DCP_ID.value: name}
        answer = await self.ask(Frame(Opcode.STREAM_OPEN, payload=asked.encode(), flex=flex))
        if answer.status != Status.SUCCESS:
            self.forget(name)
            status = status_of(answer.status)
            text = f"{self.url}: stream {name!r} is refused: {status.name.lower()}"
            raise PeerRefused(text, result=status)
        stream.opened_at, stream.instance = decode_opened(answer.payload)
        return stream

    def need(self, feature: Feature, what: str, hint: str = _TOO_OLD) -> None:
        """Raises `PeerRefused` unless that feature is in force."""
        if feature not in self.features:
            raise PeerRefused(
                f"{self.url}: {self.agent or 'the server'} does not offer {what}, logweir's "
                "extension of Greenstack",
                result=Status.NOT_IMPLEMENTED,
                hint=hint,
            )

    def forget(self, name: bytes) -> None:
        """A stream is over."""
        self._streams.pop(name, None)
