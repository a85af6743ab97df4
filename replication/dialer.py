"""Connecting to a peer: `dial`, a connection whose requests are answered by their numbers, one that
is sent a stream, and a client that connects when it is first needed, and again when its connection
was lost."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from logweir.errors import ConfigError, LogweirError, RemoteProtocolError, Unreachable
from logweir.limits import CONNECT_SECONDS, TLS_HANDSHAKE_SECONDS, UPSTREAM_WAITING_BYTES
from logweir.replication.budget import Unanswered
from logweir.replication.link import Conversation, Link
from logweir.replication.session import Session
from logweir.replication.urls import Schemes, Url, read_url

_NUMBERS: Final = re.compile(r"\[Errno (\d+)\]")


class Closing(ABC):
    """What is closed at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """End it. Twice: nothing."""


A = TypeVar("A")
Spoken = TypeVar("Spoken", bound=Conversation)
S = TypeVar("S", bound=Session[Any])


class Asking(ABC, Generic[S, A]):
    """One connection to a server, whose session is `session`: requests out, each under a number,
    answers awaited. Requests are pipelined; any number of callers may wait at a time.

    `server`: what should be there; `lost_hint`: for who waits when the connection breaks.
    """

    server: ClassVar[str]
    lost_hint: ClassVar[str] = "whether it was done is not known"

    def __init__(self, url: Url, session: S) -> None:
        self.url = url
        self.session = session
        self._link: Link | None = None
        self._waiting: dict[int, asyncio.Future[A]] = {}

    async def _dial(self, timeout_seconds: float) -> None:
        self._link = await dial(self.url, lambda link: self, timeout_seconds=timeout_seconds)

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._link is not None and self._link.is_open

    @abstractmethod
    def handle(self, events: Sequence[Any]) -> None:
        """See `Conversation`."""

    def closed(self, reason: str) -> None:
        """See `Conversation`: all that wait are told."""
        for waiting in self._waiting.values():
            self._fail(waiting, self._loss(reason, self.lost_hint))
        self._waiting.clear()

    def _loss(self, reason: str, hint: str = "") -> LogweirError:
        """Why nothing more is answered."""
        if self.session.close_reason.startswith("malformed"):
            return RemoteProtocolError(f"{self.url}: {reason}", hint=f"is this a {self.server}?")
        return Unreachable(str(self.url), reason, hint=hint)

    @staticmethod
    def _fail(waiting: asyncio.Future[Any], error: LogweirError) -> None:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # who waits is told; who does not has chosen not to

    async def _ready_link(self) -> Link:
        """The link, once it takes more. Raises `Unreachable` if it is closed."""
        link = self._link
        if link is None or not link.is_open:
            raise Unreachable(str(self.url), "the connection is closed")
        await link.drained()
        return link

    def _awaited(self, number: int) -> asyncio.Future[A]:
        """What the request of that number will be answered."""
        waiting: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        return waiting

    def _answered(self, number: int, answer: A) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _in_time(self, waiting: asyncio.Future[A], timeout_seconds: float) -> A:
        """An answer. Raises `Unreachable`, and closes the connection, if none comes in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await waiting
        except TimeoutError as error:
            self.close("no answer in time")
            raise Unreachable(str(self.url), f"no answer after {timeout_seconds:g} s") from error

    def close(self, reason: str = "closed by us") -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close(reason)

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        if self._link is not None:
            await asyncio.shield(self._link.gone)


E = TypeVar("E")


class Inbox(Generic[E]):
    """The conversation of who is sent a stream: events wait until they are asked for; above
    `limits.UPSTREAM_WAITING_BYTES` of them the peer is not read, so that a slow store slows it
    down. `size`: bytes of an event; `on_data`: called whenever something came; `peer`: its name."""

    peer: ClassVar[str] = "server"

    def __init__(
        self, link: Link, url: Url, size: Callable[[E], int], on_data: Callable[[], None]
    ) -> None:
        self.link = link
        self.url = url
        self._size = size
        self._on_data = on_data
        self._waiting: deque[E] = deque()
        self._unanswered = Unanswered(link, UPSTREAM_WAITING_BYTES, self.held)
        self._news = asyncio.Event()
        self._end = ""

    def handle(self, events: Sequence[E]) -> None:
        """See `Conversation`."""
        self._waiting.extend(events)
        self._unanswered.add(sum(map(self._size, events)))
        self._on_data()
        self._news.set()

    def closed(self, reason: str) -> None:
        """See `Conversation`."""
        self._end = reason
        self._news.set()

    def held(self, is_held: bool) -> None:
        """The peer is not read because so much waits; or is read again, if not `is_held`."""

    async def first(self) -> E:
        """The next event, which stays. Raises `Unreachable` once the connection is gone and
        nothing is left."""
        while not self._waiting:
            if self._end:
                raise Unreachable(str(self.url), self._end, hint=f"see the {self.peer}'s log")
            self._news.clear()
            await self._news.wait()
        return self._waiting[0]

    async def next(self) -> E:
        """The next event. Raises as `first`."""
        event = await self.first()
        self._waiting.popleft()
        self._unanswered.add(-self._size(event))
        return event


C = TypeVar("C", bound=Asking[Any, Any])


class Reconnecting(Closing, Generic[C]):
    """`url`: of the server."""

    schemes: ClassVar[Schemes]

    def __init__(self, url: str | Url) -> None:
        self.url = read_url(url, self.schemes) if isinstance(url, str) else url
        self._connection: C | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.connection()
        return self

    @abstractmethod
    async def _connect(self) -> C:
        """Make a connection. Raises `Unreachable`, and `PeerRefused` if the server may refuse
        us."""

    async def connection(self) -> C:
        """The connection, made if need be. Raises what making it raises."""
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            return self._connection

    async def close(self) -> None:
        """Close the connection; requests that wait fail with `Unreachable`."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None


def client_tls(url: Url) -> ssl.SSLContext | None:
    """The TLS settings that an upstream's address asks for; None for plain TCP. `ca` may be a
    folder of certificates. Raises `OSError` for files that cannot be used."""
    if not url.flag("tls"):
        return None
    ca = url.option("ca") or None
    is_folder = ca is not None and Path(ca).is_dir()
    context = ssl.create_default_context(
        cafile=None if is_folder else ca, capath=ca if is_folder else None
    )
    if certificate := url.option("certificate"):
        context.load_cert_chain(certificate, url.option("key") or None)
    return context


def check_tls(url: Url) -> None:
    """Read the files that an upstream's address names for TLS. Raises `ConfigError`."""
    try:
        client_tls(url)
    except OSError as error:
        raise ConfigError(
            f"address {url}",
            f"its files of TLS cannot be used: {error.strerror or error}",
            hint="give PEM files that are there as ca, certificate and key",
        ) from error


async def dial(
    url: Url,
    begin: Callable[[Link], Conversation],
    *,
    timeout_seconds: float = CONNECT_SECONDS,
) -> Link:
    """Connect to an upstream. Returns the link; raises `Unreachable`."""
    loop = asyncio.get_running_loop()

    def make() -> Link:
        return Link(url.scheme, begin)

    try:
        context = client_tls(url)
        async with asyncio.timeout(timeout_seconds):
            if url.socket:
                _, link = await loop.create_unix_connection(make, url.socket)
                return link
            _, link = await loop.create_connection(
                make,
                url.host,
                url.port,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if context else None,
            )
    except TimeoutError as error:
        raise Unreachable(
            str(url), f"no connection after {timeout_seconds:g} s", hint="check host and firewall"
        ) from error
    except OSError as error:
        raise Unreachable(
            str(url), _reason(error), hint="check that it runs and listens there"
        ) from error
    return link


def _reason(error: OSError) -> str:
    """What the system says, which asyncio has words of its own for, with addresses, of each one
    that was tried."""
    numbers = [error.errno] if isinstance(error, ConnectionError) else []
    numbers += map(int, _NUMBERS.findall(str(error))) if error.errno is None else []
    told = dict.fromkeys(os.strerror(one) for one in numbers if one)
    return ", ".join(told) or error.strerror or str(error)


async def dial_with(url: Url, make: Callable[[Link], Spoken]) -> tuple[Link, Spoken]:
    """`dial`, with the conversation that `make` made."""
    made: list[Spoken] = []

    def begin(link: Link) -> Spoken:
        made.append(make(link))
        return made[0]

    return await dial(url, begin), made[0]
