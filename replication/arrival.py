"""Accepting connections that have to agree on TLS: each one's address is looked at first.

Who may not come in is closed before a byte of TLS, which would cost more than it is worth.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.limits import LISTEN_BACKLOG, TLS_HANDSHAKE_SECONDS
from logweir.replication.link import Link, peer_text

_PAUSE_SECONDS: Final = 0.1  # if nothing can be accepted: no more files may be open, say


@dataclass(frozen=True, slots=True)
class Reception:
    """What is asked of the owner for each connection. `admits`: whether it may come in, by its
    address and its text for the log; `fails`: TLS was not agreed on, with the text and the reason;
    `link`: makes its link."""

    admits: Callable[[str, str], bool]
    fails: Callable[[str, str], None]
    link: Callable[[], Link]


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket bound on every address that `host` means; none listens yet. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = stack.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix" and sys.platform != "cygwin":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.setblocking(False)
            sockets.append(one)
        stack.pop_all()
    return sockets


class SecureServer:
    """As far as it is used here an `asyncio.Server`; made by `listen`."""

    def __init__(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext, reception: Reception
    ) -> None:
        self.sockets = tuple(sockets)
        self._tls = tls
        self._reception = reception
        self._arriving: set[asyncio.Task[None]] = set()
        self._accepting = [asyncio.create_task(self._accept(one)) for one in self.sockets]

    @classmethod
    async def listen(
        cls, host: str, port: int, tls: ssl.SSLContext, reception: Reception
    ) -> SecureServer:
        """Bind every address that `host` means. Raises `OSError`."""
        sockets = await bound_sockets(host, port)
        for one in sockets:
            one.listen(LISTEN_BACKLOG)
        return cls(sockets, tls, reception)

    @property
    def arriving(self) -> int:
        """Connections that have not agreed on TLS yet."""
        return len(self._arriving)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Agree with those that come from now on by other settings."""
        self._tls = tls

    def close(self) -> None:
        """Accept nothing more, and cut off those that have not agreed on TLS yet."""
        for task in (*self._accepting, *self._arriving):
            task.cancel()
        for one in self.sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, where = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            peer = peer_text(where)
            if self._reception.admits(where[0], peer):
                task = asyncio.create_task(self._agree(accepted, peer))
                self._arriving.add(task)
                task.add_done_callback(self._arriving.discard)
            else:
                accepted.close()

    async def _agree(self, accepted: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._reception.link,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
            )
        except OSError as error:  # among them those of TLS, and of one that says nothing
            self._reception.fails(peer, str(error) or type(error).__name__)
