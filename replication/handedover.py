"""Sockets on which a service manager listens already, and hands over to the process that it starts.

The manager keeps them: clients that come while a server is started or restarted wait, ports below
1024 need no rights, and the file of a unix socket is the manager's. Which address a socket is for
is told by its own address. Source: sd_listen_fds(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.urls import Url

_FIRST: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def handed_over() -> list[socket.socket]:
    """What the manager hands over to this process, none if nothing. Asked once: the variables that
    tell go, so that no process that is started from here takes them for its own.

    Raises `ConfigError` for what is no socket that listens for streams.
    """
    told = [os.environ.pop(name, "") for name in _VARIABLES]
    if told[0] != str(os.getpid()) or not told[1].isdecimal():
        return []
    found = []
    for number in range(_FIRST, _FIRST + int(told[1])):
        try:
            one = socket.socket(fileno=number)
            is_listening = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise _wrong(f"file {number} is no socket ({error.strerror})") from error
        if one.type != socket.SOCK_STREAM or not is_listening:
            raise _wrong(f"{_told(one)} is no socket that listens for streams")
        one.setblocking(False)
        one.set_inheritable(False)
        found.append(one)
    return found


class HandedOver:
    """The sockets that no listener has taken yet."""

    def __init__(self, sockets: Sequence[socket.socket] = ()) -> None:
        self._sockets = list(sockets)

    async def take(self, url: Url) -> socket.socket | None:
        """The one that listens where `url` says, None where nobody does yet."""
        places: set[object] = {url.socket}
        if self._sockets and not url.socket:
            with contextlib.suppress(OSError):
                found = await asyncio.get_running_loop().getaddrinfo(
                    url.host, url.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                places = {address[:2] for *_, address in found}
        for one in self._sockets:
            if _place(one) in places:
                self._sockets.remove(one)
                return one
        return None

    def all_taken(self) -> None:
        """Raise `ConfigError` where clients would wait for ever."""
        if self._sockets:
            where = ", ".join(map(_told, self._sockets))
            raise _wrong(f"no address of this server is {where}")


def _place(one: socket.socket) -> object:
    name = one.getsockname()
    return name[:2] if isinstance(name, tuple) else name


def _told(one: socket.socket) -> str:
    place = _place(one)
    return ":".join(map(str, place)) if isinstance(place, tuple) else f"unix/:{place!s}"


def _wrong(reason: str) -> ConfigError:
    return ConfigError(
        "listen",
        reason,
        origin="LISTEN_FDS",
        hint="write ListenStream of the socket unit as the host and port, or the file, of one of "
        "--listen, --metrics and --web",
    )
