"""A TAP stream for programs: blocking, one socket, no thread.

::

    wanted = Connect(b"index", Option.SUPPORT_ACK)
    with TapStream("tap://127.0.0.1:11210/sessions", wanted) as stream:
        for message in stream:
            …

A message that wants an acknowledgement gets it when the next one is asked for: whoever has done
with a message before that loses none, whenever it is cut off. Works with every TAP server; logins
and buckets as in `logweir.replication.memcached.client_session`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Self

from logweir.errors import SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS
from logweir.replication.dialer import client_tls
from logweir.replication.memcached.client_session import ClientSession, Refused, StreamEvent
from logweir.replication.memcached.wire.address import SCHEMES
from logweir.replication.memcached.wire.messages import Connect, TapMessage
from logweir.replication.unixsocket import connect_file
from logweir.replication.urls import Url, read_url

__all__ = ["TapStream"]

_READ_BYTES = 256 * 1024


class TapStream:
    """One stream of one server: an iterator of its messages, until the server ends it.

    `url`: as for `logweir follow`; `connect`: what is asked for; `idle_seconds`: how long the
    server may say nothing, not even that it lives, None: for ever. Raises `ConfigError`,
    `Unreachable`; iterating also `SourceStopped` where the server refuses. A dump that is whole has
    CLOSE_BACKFILL of each vbucket.
    """

    def __init__(
        self, url: Url | str, connect: Connect, *, idle_seconds: float | None = None
    ) -> None:
        self.url = read_url(url, SCHEMES) if isinstance(url, str) else url
        self._session = ClientSession(
            connect,
            user=self.url.user,
            password=self.url.secret(),
            bucket=self.url.path[0] if self.url.path else "",
        )
        self._events: deque[StreamEvent] = deque()
        self._owes = False
        self._is_over = False
        context = client_tls(self.url)
        try:
            if self.url.socket:
                plain = connect_file(self.url.socket, CONNECT_SECONDS)
            else:
                plain = socket.create_connection((self.url.host, self.url.port), CONNECT_SECONDS)
            self._socket = (
                context.wrap_socket(plain, server_hostname=self.url.host) if context else plain
            )
        except OSError as error:
            raise Unreachable(
                str(self.url), str(error), hint="check that it runs and listens there"
            ) from error
        self._socket.settimeout(idle_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection. What was not acknowledged comes again to a stream of that name."""
        self._socket.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TapMessage:
        if self._owes:
            self._owes = False
            self._session.acknowledge(1)
        while True:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, Refused):
                    raise SourceStopped(
                        f"{self.url}: {event.what} was refused with status {event.status:#06x} "
                        f"{event.text}",
                        hint="check address, user and password",
                    )
                if isinstance(event, TapMessage):
                    self._owes = event.wants_ack
                    return event
            if self._is_over:
                raise StopIteration
            if self._session.close_reason:
                raise Unreachable(
                    str(self.url), self._session.close_reason, hint="see the server's log"
                )
            self._exchange()

    def _exchange(self) -> None:
        """Send what is to be sent, and wait for something."""
        try:
            if data := self._session.data_to_send():  # at a unix socket even none would fail
                self._socket.sendall(data)
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise Unreachable(
                str(self.url), str(error) or "it says nothing", hint="see the server's log"
            ) from error
        now = time.monotonic()
        if data:
            self._events += self._session.receive_data(data, now)
        else:
            self._is_over = True
