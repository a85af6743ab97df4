"""A TAP stream for programs, and requests of any other kind: blocking, one socket, no thread.

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

import contextlib
import socket
import time
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Self

from logweir.errors import LogweirError, RemoteProtocolError, SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS
from logweir.replication.bucket.item import VbucketState
from logweir.replication.dialer import client_tls
from logweir.replication.memcached.client_session import (
    Alive,
    Answer,
    ClientSession,
    Refused,
    StreamEvent,
)
from logweir.replication.memcached.wire.address import SCHEMES, is_big_endian
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.memcached.wire.messages import Connect, Option, TapMessage, encode_tap
from logweir.replication.unixsocket import connect_file
from logweir.replication.urls import Url, read_url
from logweir.wal.closing import Closable

__all__ = ["TapClient", "TapStream", "migrate"]

_READ_BYTES = 256 * 1024
_TAKEOVER = Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS | Option.SUPPORT_ACK


class _Wire(Closable):
    """One connection: what a session says goes out, and its events come one by one."""

    def __init__(
        self, url: Url | str, connect: Connect | None, *, idle_seconds: float | None = None
    ) -> None:
        self.url = read_url(url, SCHEMES) if isinstance(url, str) else url
        self._session = ClientSession(
            connect,
            user=self.url.user,
            password=self.url.secret(),
            bucket=self.url.path[0] if self.url.path else "",
            big_endian_producer=is_big_endian(self.url),
        )
        self._events: deque[StreamEvent] = deque()
        self._is_over = False
        self._is_stopped = False
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

    def close(self) -> None:
        """Cut the connection. What was not acknowledged comes again to a stream of that name."""
        self._socket.close()

    def _event(self) -> StreamEvent | None:
        """The next one; None at the connection's end. Raises `SourceStopped`, `Unreachable`,
        `RemoteProtocolError`."""
        while True:
            if self._is_stopped:
                return None
            if self._events:
                event = self._events.popleft()
                if isinstance(event, Refused):
                    raise SourceStopped(
                        f"{self.url}: {event.what} was refused with status {event.status:#06x} "
                        f"{event.text}",
                        hint="check address, user and password",
                    )
                return event
            if self._is_over:
                return None
            if reason := self._session.close_reason:
                if reason.startswith("malformed"):
                    raise RemoteProtocolError(
                        f"{self.url}: {reason}", hint="is this a memcached or TAP server?"
                    )
                raise self._lost(reason)
            self._exchange()

    def _exchange(self) -> None:
        """Send what is to be sent, and wait for something."""
        try:
            self._send()
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            if self._is_stopped:
                return
            raise self._lost(str(error) or "it says nothing") from error
        now = time.monotonic()
        if data:
            self._events += self._session.receive_data(data, now)
        else:
            self._events += self._session.receive_eof(now)
            self._is_over = True

    def _lost(self, reason: str) -> Unreachable:
        return Unreachable(str(self.url), reason, hint="see the server's log")

    def _send(self) -> None:
        if data := self._session.data_to_send():  # at a unix socket even none would fail
            self._socket.sendall(data)


class TapStream(_Wire):
    """One stream of one server: an iterator of its messages, until the server ends it.

    `url`: as for `logweir follow`; `connect`: what is asked for; `idle_seconds`: how long the
    server may say nothing, not even that it lives, None: for ever. Raises `ConfigError`,
    `Unreachable`; iterating also `SourceStopped` if the server refuses, `RemoteProtocolError` if it
    is none. A dump that is whole has CLOSE_BACKFILL of each vbucket.
    """

    def __init__(
        self, url: Url | str, connect: Connect, *, idle_seconds: float | None = None
    ) -> None:
        self._owes = False
        super().__init__(url, connect, idle_seconds=idle_seconds)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TapMessage:
        if self._owes:
            self._owes = False
            self._session.acknowledge(1)
        while (event := self._event()) is not None:
            if isinstance(event, TapMessage):
                self._owes = event.wants_ack
                return event
        raise StopIteration

    def stop(self) -> None:
        """End the iteration before its next message: from a signal handler or another thread."""
        self._is_stopped = True
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def ended_whole(self) -> bool:
        """Whether the server closed the connection, and not in the middle of a packet."""
        return self._session.ended_whole


class TapClient(_Wire):
    """One connection for requests that are no stream. `url`, `idle_seconds`: as of `TapStream`.

    All calls raise `Unreachable`, `SourceStopped` if the server refuses, the login and the bucket
    when it is made, and `RemoteProtocolError` if it is none.
    """

    def __init__(self, url: Url | str, *, idle_seconds: float | None = CONNECT_SECONDS) -> None:
        super().__init__(url, None, idle_seconds=idle_seconds)
        self._session.say(encode_request(Packet(Opcode.NOOP)))
        try:
            while not isinstance(self._event_or_raise(), Alive):
                pass
        except LogweirError:
            self.close()
            raise

    def statistics(self, group: str) -> dict[str, str]:
        """What STAT tells of a group, "" for what it tells without one; nothing of one that the
        server does not know."""
        self._session.say(encode_request(Packet(Opcode.STAT, group.encode())))
        found: dict[str, str] = {}
        while (answer := self._answer(Status.NOT_FOUND)).key:
            found[answer.key.decode("utf-8", "replace")] = answer.value.decode("utf-8", "replace")
        return found

    def deregister(self, name: bytes) -> None:
        """Make the server forget a named stream."""
        self._session.say(encode_request(Packet(Opcode.DEREGISTER_TAP_CLIENT, name)))
        self._answer()

    def hand_on(self, message: TapMessage) -> None:
        """Send one message of a stream; if it wants an acknowledgement, wait for that."""
        self._session.say(encode_tap(message))
        try:
            self._send()
        except OSError as error:
            raise self._lost(str(error) or "it says nothing") from error
        while message.wants_ack:
            answer = self._answer()
            if (answer.opcode, answer.opaque) == (message.opcode, message.opaque):
                return

    def _answer(self, *others: Status) -> Packet:
        """The next answer, which is of success, or has one of `others`."""
        while not isinstance(event := self._event_or_raise(), Answer):
            pass
        packet = event.packet
        if packet.status not in (Status.SUCCESS, *others):
            text = packet.value.decode("utf-8", "replace")
            raise SourceStopped(
                f"{self.url}: opcode {packet.opcode:#04x} was refused with status "
                f"{packet.status:#06x} {text}",
                hint="check the bucket and the user's rights",
            )
        return packet

    def _event_or_raise(self) -> StreamEvent:
        event = self._event()
        if event is None:
            raise self._lost("the server closed the connection")
        return event


def migrate(
    giver: Url, taker: Url, vbuckets: Collection[int], *, idle_seconds: float | None = None
) -> int:
    """Move vbuckets from one server to another, as a migrator between them does. Returns how many
    messages were handed on.

    Each packet goes to the taker as it came, and the taker's acknowledgement back before the next
    packet is taken: the giver makes a vbucket dead only after what the taker has, and VBUCKET_SET
    active, the last of a vbucket, is acknowledged only when the taker has done it.

    `idle_seconds`: how long each server may say nothing. Raises `Unreachable` if a connection
    ends; `SourceStopped` if a server refuses something, or the giver ends without having given
    all of them. Then each vbucket that is not active at the taker can be moved again.
    """
    wanted = Connect(b"", _TAKEOVER, vbuckets=tuple(sorted(vbuckets)))
    missing = set(vbuckets)
    count = 0
    with (
        TapClient(taker, idle_seconds=idle_seconds) as client,
        TapStream(giver, wanted, idle_seconds=idle_seconds) as stream,
    ):
        for message in stream:
            is_state = message.opcode == Opcode.TAP_VBUCKET_SET
            client.hand_on(replace(message, wants_ack=True) if is_state else message)
            count += 1
            if is_state and message.number == VbucketState.ACTIVE:
                missing.discard(message.vbucket)
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise SourceStopped(
            f"{giver}: it ended without having given vbucket {names}",
            hint="check that it has them, and that the user has the right `takeover` there",
        )
    return count
