"""Accepting connections on several addresses, each with its own protocol.

A `Service` is what a protocol gives: for each accepted connection it begins a conversation. Who
comes in is decided here, for all protocols alike; each refusal is counted by its reason, and told
in the log sparingly:

=========  =========================================================================================
reason     what is refused, and how
=========  =========================================================================================
`address`  who is in none of the networks of the address's `from`: cut off at once, before TLS
`tls`      who does not agree on TLS; with an authority for clients also who has no certificate
`limit`    one more than `limits.CONNECTIONS` over all addresses, and than the address has of its
           own: told in the protocol's own form (`Service.refusal`), closed
`user`     whom the certificate, or `from`, names as a user that the store does not have, or whose
           certificate has no common name or several: told and closed in the same way
`logins`   one more of an address that is not heard for failed logins (`replication.logins`), but
           where nobody can log in, which tells them nothing
`memory`   who holds most when memory is short (`replication.budget`): cut off
=========  =========================================================================================

With an authority for clients the common name of the certificate's subject is the user that the
connection begins as (`Link.user`); else it is the one that `from` names for the address, if any. An
address on which others than this machine can connect, from anywhere, and do something without a
login or read along, is told in a warning when it is listened on. Without a host an address means
127.0.0.1. At a unix socket the rights of its file say who may connect, and no TLS is spoken. Where
a service manager listens already its socket is taken, and its file left (`replication.handedover`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from logweir.errors import ConfigError
from logweir.limits import CONNECTIONS, LISTEN_BACKLOG, MEMORY_BYTES, OUTPUT_STALL_SECONDS
from logweir.replication.addresses import AddressList, is_loopback
from logweir.replication.arrival import Reception, SecureServer
from logweir.replication.budget import Budget, Holder
from logweir.replication.handedover import HandedOver
from logweir.replication.httpconversation import PAGES
from logweir.replication.link import Conversation, Link
from logweir.replication.logins import Logins
from logweir.replication.logs import SparingLog, get_logger
from logweir.replication.loop import BUSY_POLL_SECONDS, busy_poll
from logweir.replication.portkernel import BusyPoll
from logweir.replication.session import BaseSession, Parting
from logweir.replication.unixsocket import SocketFile, mode_of, socket_hint
from logweir.replication.urls import Url
from logweir.store.state import heap

if TYPE_CHECKING:
    from logweir.replication.metrics import Metrics

_log = get_logger("logweir.replication")
_STOPPED: Final = Parting("the server stops")
_FREE_SECONDS: Final = 0.5

EXPOSURE_HINT: Final = (
    "listen on 127.0.0.1, allow guests nothing, write ?from=NETWORKS after the address, or give "
    "--tls-certificate and --tls-client-ca"
)


class Service(Protocol):
    """One protocol, served."""

    def begin(self, link: Link) -> Conversation:
        """A new conversation on an accepted connection."""

    def refusal(self, reason: str) -> bytes:
        """What is sent to a connection that is not taken, before it is closed: nothing, unless the
        protocol has a word for it."""
        del reason
        return b""


def server_tls(
    certificate: Path, key: Path | None = None, client_ca: Path | None = None
) -> ssl.SSLContext:
    """TLS settings of a listener. `certificate`, `key`: PEM files; `client_ca`: of authorities, of
    one of which a client has to have a certificate. Raises `ConfigError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls-certificate",
            f"{certificate} cannot be used: {error}",
            hint="give a PEM certificate and key",
        ) from error
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                "tls-client-ca",
                f"{client_ca} cannot be used: {error}",
                origin="--tls-client-ca",
                hint="give a PEM file with the certificates of the authorities of your clients",
            ) from error
    return context


def bind_hint(error: OSError) -> str:
    """What to do about an address that cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; choose a free port, or 0 for any"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 need rights that this process does not have; choose a higher one"
    return "give an address of this machine: 127.0.0.1, 0.0.0.0 for all, or a name that means one"


async def _made_file(url: Url) -> SocketFile:
    """The file of an address, made in a thread: one that nobody wants any more goes again."""
    loop = asyncio.get_running_loop()
    making = loop.run_in_executor(None, SocketFile, url.socket, mode_of(url))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait((making,))
        if making.exception() is None:
            making.result().remove()
            making.result().socket.close()
        raise


class Users(Protocol):
    """What a listener asks of the users of a store."""

    def knows(self, name: str) -> bool:
        """Whether there is a user of that name."""


class _Nobody:
    """No users at all."""

    def knows(self, name: str) -> bool:
        del name
        return False


@dataclass(frozen=True, slots=True)
class _Door:
    """One address that is listened on, with what is asked of who comes in."""

    url: Url
    service: Service
    addresses: AddressList | None
    tls: ssl.SSLContext | None
    reserve: int
    logins: Logins | None

    @property
    def asks_certificates(self) -> bool:
        """Whether clients need a certificate."""
        return self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED

    def user_from(self, address: str) -> str | None:
        """See `AddressList.find`."""
        return "" if self.addresses is None else self.addresses.find(address)


@dataclass(frozen=True, slots=True)
class _Bound:
    url: Url
    door: _Door
    server: asyncio.Server | SecureServer
    file: SocketFile | None

    @property
    def hosts(self) -> list[str]:
        """The addresses on which it is bound, none for a unix socket."""
        return [] if self.url.socket else [one.getsockname()[0] for one in self.server.sockets]


class Listener:
    """All addresses on which one process serves.

    `users`: those that connections can begin as; `logins`: those that failed; `connections_limit`:
    connections open at a time; `stall_seconds`: as in `Link`; `memory_bytes`: of `budget`;
    `sockets`: those that somebody listens on for it; `busy_poll_seconds`: how long it looks for
    more, when it has answered, before it sleeps (`portkernel.BusyPoll`).
    `refusals`: how many were refused for each reason. Raises `ConfigError`.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        users: Users | None = None,
        logins: Logins | None = None,
        connections_limit: int = CONNECTIONS,
        stall_seconds: float = OUTPUT_STALL_SECONDS,
        memory_bytes: int = MEMORY_BYTES,
        sockets: Sequence[socket.socket] = (),
        busy_poll_seconds: float = BUSY_POLL_SECONDS,
    ) -> None:
        self._busy_poll_seconds = busy_poll_seconds
        self._polling: BusyPoll | None = None
        self._metrics = metrics
        self.handed = HandedOver(sockets)
        self.budget = Budget(memory_bytes, on_closed=self._lack_memory, on_freed=_free_later)
        self._users: Users = users or _Nobody()
        self._logins = logins
        self._limit = connections_limit
        self._stall_seconds = stall_seconds
        self._bound: list[_Bound] = []
        self._links: dict[Link, None] = {}  # in their order
        self._sparing = SparingLog(_log)
        self._ended: dict[str, tuple[int, int]] = {}  # bytes received and sent, by scheme
        self.refusals: Counter[str] = Counter()

    @property
    def links(self) -> Sequence[Link]:
        """The connections that are open."""
        return tuple(self._links)

    @property
    def urls(self) -> Sequence[Url]:
        """The addresses on which it listens, with the ports that were really taken."""
        return tuple(bound.url for bound in self._bound)

    def status(self) -> list[dict[str, object]]:
        """Each address with what is asked of who comes in."""
        return [
            {
                "url": str(bound.url),
                "tls": bound.door.tls is not None,
                "client_certificates": bound.door.asks_certificates,
                "public": _is_public(bound.hosts, bound.door.addresses),
            }
            for bound in self._bound
        ]

    def traffic(self) -> dict[str, dict[str, int]]:
        """Of each scheme: `connections` that are open, `received_bytes` and `sent_bytes` of these
        and of all that have ended."""
        found = {
            scheme: {"connections": 0, "received_bytes": received, "sent_bytes": sent}
            for scheme, (received, sent) in tuple(self._ended.items())
        }
        for bound in self._bound:
            empty = {"connections": 0, "received_bytes": 0, "sent_bytes": 0}
            found.setdefault(bound.url.scheme, empty)
        for link in self.links:
            one = found[link.scheme]
            one["connections"] += 1
            one["received_bytes"] += link.received_bytes
            one["sent_bytes"] += link.sent_bytes
        return found

    async def listen(
        self,
        url: Url,
        service: Service,
        *,
        tls: ssl.SSLContext | None = None,
        open_to: str = "",
        reserve: int = 0,
        takes_logins: bool = True,
    ) -> Url:
        """Serve one more address. `open_to`: what anybody may do there without a login, "" for
        nothing; `reserve`: so many connections it takes however many the others have;
        `takes_logins`: whether one can log in there. Returns it with its real port. Raises
        `ConfigError`."""
        logins = self._logins if takes_logins else None
        tls = None if url.socket else tls
        door = _Door(url, service, AddressList.of(url), tls, reserve, logins)
        file, server = None, None
        handed = await self.handed.take(url)
        try:
            if url.socket and handed is None:
                file = await _made_file(url)
            server = await self._serve(door, file.socket if file else handed)
            if not isinstance(server, SecureServer):
                await server.start_serving()
        except BaseException as error:  # among them that it is cancelled
            if server is not None:
                server.close()
            if file is not None:
                file.remove()
                file.socket.close()
            if not isinstance(error, OSError):
                raise
            raise ConfigError(
                url.scheme if url.scheme in PAGES else "listen",
                f"{url} cannot be bound: {error.strerror or error}",
                hint=socket_hint(error) if url.socket else bind_hint(error),
            ) from error
        real = url if url.socket else replace(url, port=server.sockets[0].getsockname()[1])
        bound = _Bound(real, door, server, file)
        self._bound.append(bound)
        _log.info("listener.ready", url=str(real), tls=door.tls is not None)
        reason = exposure(
            bound.hosts,
            door.addresses,
            open_to,
            is_encrypted=door.tls is not None,
            asks_certificates=door.asks_certificates,
        )
        if reason:
            _log.warning("listener.exposed", url=str(real), reason=reason, hint=EXPOSURE_HINT)
        return real

    async def _serve(
        self, door: _Door, bound: socket.socket | None
    ) -> asyncio.Server | SecureServer:
        """Accept at a socket that is bound, or bind the address first; a server of the loop's is
        not started. Raises `OSError`."""
        url = door.url
        if self._polling is None:
            self._polling = busy_poll(self._busy_poll_seconds)

        def link() -> Link:
            return Link(
                url.scheme,
                lambda link: self._begin(link, door),
                on_closed=self._forget,
                stall_seconds=self._stall_seconds,
                budget=self.budget,
                polling=self._polling,
            )

        loop = asyncio.get_running_loop()
        kept: dict[str, Any] = {"backlog": LISTEN_BACKLOG, "start_serving": False}
        if url.socket:
            if sys.version_info >= (3, 13) and isinstance(loop, asyncio.SelectorEventLoop):
                kept["cleanup_socket"] = False  # it is removed by who made it, not by the loop
            return await loop.create_unix_server(link, sock=bound, **kept)
        if door.tls is None and bound is not None:
            return await loop.create_server(link, sock=bound, **kept)
        if door.tls is None:
            return await loop.create_server(link, url.host, url.port, **kept)
        reception = Reception(
            admits=lambda address, peer: self._admits(door, address, peer),
            fails=lambda peer, reason: self._refuse(url.scheme, "tls", peer, error=reason),
            link=link,
        )
        if bound is not None:
            return SecureServer([bound], door.tls, reception)
        return await SecureServer.listen(url.host, url.port, door.tls, reception)

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Show and ask for other certificates from now on, wherever TLS is spoken. `tls`: made as
        the settings before were, of the same files; connections that are open stay."""
        for bound in self._bound:
            if isinstance(bound.server, SecureServer):
                bound.server.renew(tls)

    async def close(self, reason: str = _STOPPED) -> None:
        """Accept nothing more, close every connection, wait until all are gone."""
        for bound in self._bound:
            if bound.file is not None:
                bound.file.remove()  # first: behind it another one may listen at once
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

    def _refuse(self, scheme: str, reason: str, peer: str, **more: str) -> None:
        """Count a refusal, and tell it."""
        self.refusals[reason] += 1
        self._metrics.refused(scheme, reason)
        self._sparing.warning("listener.refused", reason=reason, scheme=scheme, peer=peer, **more)

    def _admits(self, door: _Door, address: str, peer: str) -> bool:
        """Whether one who comes from that address may go on."""
        if door.user_from(address) is None:
            self._refuse(door.url.scheme, "address", peer)
            return False
        if self._is_full(door, arriving=True):
            self._refuse(door.url.scheme, "limit", peer)
            return False
        return True

    def _is_full(self, door: _Door, *, arriving: bool = False) -> bool:
        """Whether an address takes no more connections. `arriving`: those that are still being
        secured count, too."""
        secured = {
            id(one.door): one.server.arriving
            for one in self._bound
            if arriving and isinstance(one.server, SecureServer)
        }
        if len(self._links) + sum(secured.values()) < self._limit:
            return False
        own = sum(one.scheme == door.url.scheme for one in self._links)
        return own + secured.get(id(door), 0) >= door.reserve

    def _turn_away(self, link: Link, reason: str, text: str, farewell: bytes) -> _Refused:
        self._refuse(link.scheme, reason, link.peer, error=text)
        link.is_quiet = True
        return _Refused(text, farewell)

    def _begin(self, link: Link, door: _Door) -> Conversation:
        user = door.user_from(link.address)
        if user is None:
            return self._turn_away(link, "address", "its address is not taken", b"")
        if self._is_full(door):
            text = f"too many connections: {self._limit} are open"
            return self._turn_away(link, "limit", text, door.service.refusal(text))
        named = link.certificate_names() if door.asks_certificates else [user]
        if len(named) != 1 or (named[0] and not self._users.knows(named[0])):
            text = f"there is no user {named[0]!r}" if len(named) == 1 else "it names no user"
            return self._turn_away(link, "user", text, door.service.refusal(text))
        link.user = named[0]
        if door.logins is not None and not door.logins.slow(link):
            return self._turn_away(link, "logins", "too many failed logins from there", b"")
        self._links[link] = None
        self._metrics.opened(link.scheme)
        return door.service.begin(link)

    def _lack_memory(self, link: Holder) -> None:
        if isinstance(link, Link):
            self._refuse(link.scheme, "memory", link.peer)

    def _forget(self, link: Link) -> None:
        if link in self._links:
            del self._links[link]
            received, sent = self._ended.get(link.scheme, (0, 0))
            self._ended[link.scheme] = (received + link.received_bytes, sent + link.sent_bytes)
            self._metrics.closed(link.scheme, link.received_bytes, link.sent_bytes)


def _free_later() -> None:
    """Let the system have what connections held that have ended, once they have let go of it: what
    they were made of does not refer to itself, so that it need not be looked for, in which nobody
    would be answered. It takes a while, in which the loop goes on until it needs memory of the heap
    that is looked at."""
    worker = threading.Thread(target=heap.give_back, name="logweir-free", daemon=True)
    asyncio.get_running_loop().call_later(_FREE_SECONDS, worker.start)


def exposure(
    hosts: Sequence[str],
    addresses: AddressList | None,
    open_to: str,
    *,
    is_encrypted: bool,
    asks_certificates: bool,
) -> str:
    """What others than this machine can do without a login, or read along, at an address that is
    bound on `hosts`; "" for nothing. `open_to`: what anybody may do there without a login."""
    if not _is_public(hosts, addresses):
        return ""
    found = []
    if open_to and not asks_certificates:
        found.append(f"anybody may {open_to} without a login")
    if not is_encrypted:
        found.append("what is said goes unencrypted")
    return ", and ".join(found)


def _is_public(hosts: Sequence[str], addresses: AddressList | None) -> bool:
    return not all(map(is_loopback, hosts)) and (addresses is None or addresses.is_open)


class _Refused(BaseSession[None]):
    """The conversation and the session of a connection that is not taken: says why, and ends."""

    def __init__(self, reason: str, farewell: bytes) -> None:
        super().__init__()
        self._out.put(farewell)
        self.end(reason)

    @property
    def session(self) -> _Refused:
        return self

    def handle(self, events: Sequence[None]) -> None:
        """There are none."""

    def closed(self, reason: str) -> None:
        """As it was to be."""

    def receive_data(self, data: bytes, now: float) -> Sequence[None]:
        del data, now
        return ()
