"""Connecting to a peer: `dial`, and a client that connects when it is first needed, and again when
its connection was lost."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from logweir.errors import Unreachable
from logweir.limits import CONNECT_SECONDS, OUTPUT_STALL_SECONDS, TLS_HANDSHAKE_SECONDS
from logweir.replication.link import Conversation, Link
from logweir.replication.urls import Schemes, Url, read_url

__all__ = ["Closing", "Reconnecting", "client_tls", "dial"]


class Closing(ABC):
    """What is closed at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """End it. Twice: nothing."""


class _Connected(Protocol):
    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


C = TypeVar("C", bound=_Connected)


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
        """Make a connection. Raises `Unreachable`, and `PeerRefused` where the server may refuse
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
    """The TLS settings that an upstream's address asks for; None for plain TCP. Raises `OSError`
    for files that cannot be used."""
    if not url.flag("tls"):
        return None
    context = ssl.create_default_context(cafile=url.option("ca") or None)
    if certificate := url.option("certificate"):
        context.load_cert_chain(certificate, url.option("key") or None)
    return context


async def dial(
    url: Url,
    begin: Callable[[Link], Conversation],
    *,
    timeout_seconds: float = CONNECT_SECONDS,
    stall_seconds: float = OUTPUT_STALL_SECONDS,
) -> Link:
    """Connect to an upstream. Returns the link; raises `Unreachable`."""
    loop = asyncio.get_running_loop()

    def make() -> Link:
        return Link(url.scheme, begin, stall_seconds=stall_seconds)

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
            str(url), error.strerror or str(error), hint="check that it runs and listens there"
        ) from error
    return link
