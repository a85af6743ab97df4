"""Accepting connections on several addresses, each with its own protocol.

A `Service` is what a protocol gives: for each accepted connection it begins a conversation. Limits:
`limits.CONNECTIONS` over all addresses of a listener; the one above is told why in the protocol's
own form (`Service.refusal`) and closed. Without a host an address means 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from logweir.errors import ConfigError
from logweir.limits import CONNECTIONS, LISTEN_BACKLOG, OUTPUT_STALL_SECONDS, TLS_HANDSHAKE_SECONDS
from logweir.replication.link import Conversation, Link
from logweir.replication.logs import get_logger
from logweir.replication.metrics import Metrics
from logweir.replication.urls import Url

__all__ = ["Listener", "Service", "bind_hint", "server_tls"]

_log = get_logger("logweir.replication")


class Service(Protocol):
    """One protocol, served."""

    def begin(self, link: Link) -> Conversation:
        """A new conversation on an accepted connection."""
        ...

    def refusal(self, reason: str) -> bytes:
        """What is sent to a connection that is not taken, before it is closed."""
        ...


def server_tls(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    """TLS settings of a listener. `certificate`, `key`: PEM files. Raises `ConfigError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls", f"{certificate} cannot be used: {error}", hint="give a PEM certificate and key"
        ) from error
    return context


def bind_hint(error: OSError) -> str:
    """What to do about an address that cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; choose a free port, or 0 for any"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 need rights that this process does not have; choose a higher one"
    return "give an address of this machine: 127.0.0.1, 0.0.0.0 for all, or a name that means one"


@dataclass(frozen=True, slots=True)
class _Bound:
    url: Url
    server: asyncio.Server


class Listener:
    """All addresses on which one process serves.

    `connections_limit`: connections open at a time; `stall_seconds`: as in `Link`.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        connections_limit: int = CONNECTIONS,
        stall_seconds: float = OUTPUT_STALL_SECONDS,
    ) -> None:
        self._metrics = metrics
        self._limit = connections_limit
        self._stall_seconds = stall_seconds
        self._bound: list[_Bound] = []
        self._links: set[Link] = set()

    @property
    def links(self) -> Sequence[Link]:
        """The connections that are open."""
        return tuple(self._links)

    @property
    def urls(self) -> Sequence[Url]:
        """The addresses on which it listens, with the ports that were really taken."""
        return tuple(bound.url for bound in self._bound)

    async def listen(self, url: Url, service: Service, *, tls: ssl.SSLContext | None = None) -> Url:
        """Serve one more address. Returns it with its real port. Raises `ConfigError`."""
        loop = asyncio.get_running_loop()

        def accept() -> Link:
            return Link(
                url.scheme,
                lambda link: self._begin(link, service),
                on_closed=self._forget,
                stall_seconds=self._stall_seconds,
            )

        try:
            server = await loop.create_server(
                accept,
                url.host,
                url.port,
                backlog=LISTEN_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if tls else None,
            )
        except OSError as error:
            raise ConfigError(
                "listen",
                f"{url} cannot be bound: {error.strerror or error}",
                hint=bind_hint(error),
            ) from error
        port: int = server.sockets[0].getsockname()[1]
        real = replace(url, port=port)
        self._bound.append(_Bound(real, server))
        _log.info("listener.ready", url=str(real), tls=tls is not None)
        return real

    async def close(self, reason: str = "the server stops") -> None:
        """Accept nothing more, close every connection, wait until all are gone."""
        for bound in self._bound:
            bound.server.close()
        links = tuple(self._links)
        for link in links:
            link.close(reason)
        if links:
            gone = [link.gone for link in links]
            _, late = await asyncio.wait(gone, timeout=1.0)
            for link in links:
                if link.gone in late:
                    link.abort(reason)
            await asyncio.gather(*gone)
        self._bound.clear()

    def _begin(self, link: Link, service: Service) -> Conversation:
        if len(self._links) >= self._limit:
            reason = f"too many connections: {self._limit} are open"
            self._metrics.refused(link.scheme)
            return _Refused(reason, service.refusal(reason))
        self._links.add(link)
        self._metrics.opened(link.scheme)
        return service.begin(link)

    def _forget(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)
            self._metrics.closed(link.scheme, link.received_bytes, link.sent_bytes)


class _Refused:
    """The conversation of a connection that is one too many: says why, and ends."""

    def __init__(self, reason: str, farewell: bytes) -> None:
        self.close_reason = reason
        self._farewell = farewell

    @property
    def session(self) -> _Refused:
        return self

    def handle(self, events: Sequence[None]) -> None:
        del events

    def closed(self, reason: str) -> None:
        del reason

    def receive_data(self, data: bytes, now: float) -> Sequence[None]:
        del data, now
        return ()

    def receive_eof(self, now: float) -> Sequence[None]:
        del now
        return ()

    def data_to_send(self) -> bytes:
        farewell, self._farewell = self._farewell, b""
        return farewell

    def next_deadline(self) -> float | None:
        return None

    def deadline_passed(self, now: float) -> Sequence[None]:
        del now
        return ()
