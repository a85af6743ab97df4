"""A consumer's side of one TAP connection: log in, ask for a stream, take it, acknowledge it.

Keeps the contract of `logweir.replication.session`. With a user, SASL comes first, by the strongest
mechanism that the server offers, and the rest when it has succeeded. Events: each `TapMessage` as
it comes; `Refused` before the end. What carries the ACK flag waits until the owner says, with
`acknowledge`, that all before is durable; since an acknowledgement covers everything before it, a
producer that sees none sends nothing that would be lost. `refuse` answers one message with a status
instead.

With a bucket, SELECT_BUCKET goes out before TAP_CONNECT, in one piece with it. A server that does
not know it, or does not let us, gives the bucket that it has for us; one that says that there is no
such bucket (01, or 24: no access) has refused, and so has one that then says nothing more.

Without a connect nothing is asked for: what the owner says with `say` goes out after the login and
the choice of the bucket, and whatever is answered comes as `Answer`. Then a server that does not
let us choose the bucket has refused, too: what is said is about that bucket.

With `asks_start` the server's STAT is asked for before TAP_CONNECT: event `Started` says when it
was started, by its own clock: `time` less `uptime`.

NOOP is answered with nothing, as real consumers do. Ends: bytes that are no packet, a response to
nothing, TTL 0 only counts (`dropped`). A frame that does not go on ends after
`limits.FRAME_SECONDS`. Source: ep-engine 1.8.1, gomemcached, spymemcached 2.12.3, observed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from logweir.errors import RemoteProtocolError
from logweir.limits import FRAME_SECONDS, TAP_BODY_BYTES
from logweir.replication.memcached.wire.codec import (
    TAP_OPCODES,
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_ack,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    TapMessage,
    decode_tap,
    encode_connect,
)
from logweir.replication.service.sasl import Login
from logweir.replication.session import BaseSession

_LOGIN = frozenset((Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP))

_NO_BUCKET = frozenset((Status.NOT_FOUND, 0x24))
_DIGITS = 10  # of a number of seconds, Unix seconds too, in STAT


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will not send a stream, or we do not take what it sends (`TOO_BIG`). `what`: the
    step; `status`, `text`: its answer."""

    what: str
    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The server has nothing to say, and says so."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The server does not refuse the bucket."""


@dataclass(frozen=True, slots=True)
class Started:
    """When the server was started, in Unix seconds; None: it does not say."""

    at: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered to something that the owner said."""

    packet: Packet


StreamEvent = TapMessage | Refused | Alive | Selected | Started | Answer


class ClientSession(BaseSession[StreamEvent]):
    """One stream. `connect`: what is asked for, None: see `say`; `user`, `password`: for SASL, ""
    for none; `bucket`: "" for the one that the server gives.

    `asks_start`: see `Started`; `big_endian_producer`: see `decode_tap`; `random`: see `Login`.
    `ended_whole`: the server closed the connection after a whole packet.
    """

    peer = "the server"
    unit = "packet"

    def __init__(
        self,
        connect: Connect | None,
        *,
        user: str = "",
        password: str = "",
        bucket: str = "",
        asks_start: bool = False,
        big_endian_producer: bool = False,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__()
        self.ended_whole = False
        self.dropped = 0
        self._connect = connect
        self.bucket = bucket
        self._doubt: Packet | None = None  # the answer to SELECT_BUCKET, if it was a refusal
        self._big_endian_producer = big_endian_producer
        self._packets = PacketBuffer()
        self._due: deque[tuple[int, int]] = deque()
        self._awaits_bucket = False
        self._asks_start = asks_start
        self._statistics: dict[bytes, int] | None = None  # while they are asked for
        self._is_ready = False
        self._said: list[bytes] = []  # before it was ready
        self._login = Login(user, password, random) if user else None
        if user:
            self._out.put(encode_request(Packet(Opcode.SASL_LIST_MECHS)))
        else:
            self._ask()

    # --- the contract of sessions -----------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[StreamEvent]:
        if self.close_reason:
            return ()
        packets, problem = self._packets.feed(data)
        self._unit_deadline = now + FRAME_SECONDS if len(self._packets) else None
        return self._take_each(packets, problem, self._take)

    def receive_eof(self, now: float) -> Sequence[StreamEvent]:
        del now
        events: list[StreamEvent] = []
        if self._doubt is not None:
            self._refused(f"bucket {self.bucket!r}", self._doubt, events)
        self.ended_whole = not self.close_reason and not len(self._packets)
        self.end("the server closed the connection")
        return events

    # --- what the owner does ----------------------------------------------------------------------

    @property
    def unacknowledged(self) -> int:
        """Packets that wait for an acknowledgement of ours."""
        return len(self._due)

    def acknowledge(self, count: int | None = None) -> None:
        """Everything up to now, or the oldest `count` of what waits, is durable: say so."""
        for _ in range(len(self._due) if count is None else count):
            self._out.put(encode_ack(*self._due.popleft()))

    def say(self, data: bytes) -> None:
        """Send whole packets once the bucket is chosen. Only without a connect."""
        if self._is_ready:
            self._out.put(data)
        else:
            self._said.append(data)

    def refuse(self, message: TapMessage, status: Status) -> None:
        """Answer one message with a status; those before it must have been acknowledged."""
        if self._due and self._due[0] == (message.opcode, message.opaque):
            self._due.popleft()
        self._out.put(encode_ack(message.opcode, message.opaque, status))

    # --- inside -----------------------------------------------------------------------------------

    def _take(self, packet: Packet, events: list[StreamEvent]) -> None:
        if packet.is_response:
            self._take_response(packet, events)
        elif packet.too_big:
            what = f"a packet of opcode {packet.opcode:#04x}"
            text = f"it is larger than {TAP_BODY_BYTES} bytes"
            events.append(Refused(what, Status.TOO_BIG, text))
            self.end(text)
        elif packet.opcode == Opcode.NOOP:
            events.append(Alive())
        elif packet.opcode in TAP_OPCODES:
            self._doubt = None
            message = decode_tap(packet, big_endian_producer=self._big_endian_producer)
            if message.wants_ack:
                self._due.append((message.opcode, message.opaque))
            if message.ttl:
                events.append(message)
            else:
                self.dropped += 1
                if message.wants_ack:
                    self._due.pop()
                    self._out.put(encode_ack(message.opcode, message.opaque, Status.INVALID))
        else:
            self._out.put(encode_ack(packet.opcode, packet.opaque, Status.UNKNOWN_COMMAND))

    def _take_response(self, packet: Packet, events: list[StreamEvent]) -> None:
        opcode = packet.opcode
        if opcode == Opcode.NOOP:
            events.append(Alive())
        elif self._login is not None and opcode in _LOGIN:
            self._take_login(self._login, packet, events)
        elif opcode == Opcode.SELECT_BUCKET and self._awaits_bucket:
            self._awaits_bucket = False
            if packet.status in _NO_BUCKET or (self._connect is None and self._is_doubtful(packet)):
                self._refused(f"bucket {self.bucket!r}", packet, events)
            elif self._is_doubtful(packet):
                self._doubt = packet
            else:
                events.append(Selected())
        elif opcode == Opcode.STAT and self._statistics is not None:
            self._take_statistic(self._statistics, packet, events)
        elif opcode == Opcode.TAP_CONNECT:
            self._refused("the stream", packet, events)
        elif self._connect is None:
            events.append(Answer(packet))
        else:
            self.end(f"a response of opcode {opcode:#04x} to nothing")

    def _ask(self) -> None:
        if self.bucket:
            self._awaits_bucket = True
            self._out.put(encode_request(Packet(Opcode.SELECT_BUCKET, self.bucket.encode())))
        if self._asks_start:
            self._statistics = {}
            self._out.put(encode_request(Packet(Opcode.STAT)))
        else:
            self._begin()

    def _begin(self) -> None:
        """Ask for the stream, or send what the owner said."""
        self._is_ready = True
        said, self._said = self._said, []
        for data in said if self._connect is None else (encode_connect(self._connect),):
            self._out.put(data)

    @staticmethod
    def _is_doubtful(packet: Packet) -> bool:
        """Whether a server that knows SELECT_BUCKET did not do it."""
        return packet.status not in (Status.SUCCESS, Status.UNKNOWN_COMMAND)

    def _take_statistic(
        self, known: dict[bytes, int], packet: Packet, events: list[StreamEvent]
    ) -> None:
        if packet.key and not packet.status:
            is_number = packet.value.isdigit() and len(packet.value) <= _DIGITS
            if is_number and packet.key in (b"time", b"uptime"):
                known[packet.key] = int(packet.value)
            return
        self._statistics = None
        started = known.get(b"time", 0) - known.get(b"uptime", 1 << 62)
        events.append(Started(started if started > 0 else None))
        self._begin()

    def _take_login(self, login: Login, packet: Packet, events: list[StreamEvent]) -> None:
        opcode, status = packet.opcode, packet.status
        is_list = opcode == Opcode.SASL_LIST_MECHS
        if status not in (Status.SUCCESS, Status.AUTH_CONTINUE) or is_list == bool(login.mechanism):
            self._refused("the login", packet, events)
            return
        try:
            if is_list:
                word = login.begin(packet.value.decode("ascii", "replace").split())
                name = login.mechanism.encode()
                self._out.put(encode_request(Packet(Opcode.SASL_AUTH, name, word)))
            elif status == Status.AUTH_CONTINUE:
                word = login.step(packet.value)
                name = login.mechanism.encode()
                self._out.put(encode_request(Packet(Opcode.SASL_STEP, name, word)))
            else:
                login.finish(packet.value)
                self._login = None
                self._ask()
        except RemoteProtocolError as error:
            events.append(Refused("the login", status, error.message))
            self.end(f"the login failed: {error}")

    def _refused(self, what: str, packet: Packet, events: list[StreamEvent]) -> None:
        text = packet.value.decode("ascii", "replace")
        events.append(Refused(what, packet.status, text))
        self.end(f"the server refused {what} with status {packet.status:#06x} {text}")
