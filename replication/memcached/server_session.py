"""A server's side of one connection: memcached's commands, then perhaps a TAP stream.

A client whose first byte is a letter, or any below 80, speaks the text protocol: its lines come
here as binary requests, and the answers to those leave as lines (`memcached.wire.text`).

Keeps the contract of `logweir.replication.session`. Requests are answered in the order in which
they came. What needs no bucket (SASL, VERSION before a login) is answered here; commands that
follow one another in one read are one `Commands` event, which the owner answers with `answer`.
`Connect` is answered with `stream`, which turns the connection into a stream, or `refuse_connect`.

=============  =====================================================================================
state          takes
=============  =====================================================================================
unknown user   VERSION, SASL, wrong passwords included; anything else, NOOP too: status 20, and the
               connection ends (only if SASL is required)
commands       everything
connecting     as streaming, from TAP_CONNECT on until its answer; responses are passed over
streaming      responses, NOOP; other requests: status 83
=============  =====================================================================================

The stream begins after everything that was asked before it is answered (`is_first`).

Ends without an answer: bytes that are no packet, a response where none is due, TAP_CONNECT without
the date that it announces. Ends after its answer: malformed requests (04), refused TAP_CONNECT,
packets of a stream that are larger than we take (03), QUIT. Source: memcached 1.6.18 and 1.8.1,
ep-engine 1.8.1, observed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from logweir.errors import LogweirError, RemoteProtocolError
from logweir.limits import FRAME_SECONDS, LOGIN_TRIES
from logweir.replication.memcached.push.stream import Producer, StreamOptions
from logweir.replication.memcached.serve.commands import is_malformed, simple_answer
from logweir.replication.memcached.serve.runs import Commands, RequestRun, packets_of, take_run
from logweir.replication.memcached.wire.codec import (
    REQUEST,
    TAP_OPCODES,
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_answer,
)
from logweir.replication.memcached.wire.messages import Connect, decode_connect
from logweir.replication.memcached.wire.text import TextCodec
from logweir.replication.service.sasl import (
    Authenticated,
    Authentication,
    Credentials,
    LoginFailed,
)
from logweir.replication.session import BaseSession, Parting

_LOCAL: Final = frozenset(
    (
        Opcode.VERSION,
        Opcode.SASL_LIST_MECHS,
        Opcode.SASL_AUTH,
        Opcode.SASL_STEP,
        Opcode.QUIT,
        Opcode.QUITQ,
        Opcode.TAP_CONNECT,
        Opcode.DEREGISTER_TAP_CLIENT,
        Opcode.CHANGE_VB_FILTER,
        Opcode.SELECT_BUCKET,
    )
)
_BEFORE_LOGIN: Final = frozenset(
    (Opcode.VERSION, Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP)
)


@dataclass(frozen=True, slots=True)
class Connected:
    """A consumer asks for a stream."""

    slot: int
    connect: Connect


@dataclass(frozen=True, slots=True)
class Named:
    """A request about what its key names: a stream that is to be forgotten, or to be about other
    vbuckets, or a bucket that the client wants."""

    slot: int
    request: Packet


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The consumer of a stream answered, or its time has come: there may be room now."""


Event: TypeAlias = Commands | Connected | Named | Authenticated | LoginFailed | Acknowledged


@dataclass(frozen=True, slots=True)
class Settings:
    """`credentials`: None: SASL is not known; `random`: see `Authentication`; `clock`: Unix
    seconds, for what is told of expiry."""

    random: Callable[[int], bytes]
    credentials: Credentials | None = None
    clock: Callable[[], float] = time.time


class ServerSession(BaseSession[Event]):
    """One client. `settings`: see `Settings`; `now`: seconds; `must_login`: SASL is required."""

    unit = "packet"

    def __init__(self, settings: Settings, now: float, *, must_login: bool = False) -> None:
        super().__init__()
        self.user: str | None = None
        self.producer: Producer[object] | None = None
        self.read: Callable[[bytes], int] = lambda data: 0
        """Answers requests with which what came begins, if any; returns where others begin."""
        self._settings = settings
        self._must_login = must_login
        self._packets = PacketBuffer()
        self._text: TextCodec | None = None
        self._has_begun = False
        self._is_whole = True  # nothing of a packet has come whose rest has not
        self._slots: deque[bytes | None] = deque()
        self._first_slot = 0
        self._connecting: int | None = None  # the slot of a TAP_CONNECT that has no answer yet
        self._closing = ""
        self._attempt: Authentication | None = None
        self._failures = 0
        self._now = now
        self.kept_bytes = 0
        """See `Keeps` of `logweir.replication.link`."""

    # --- the contract of sessions -----------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self.close_reason or self._closing:
            return ()
        if not self._has_begun and data:
            self._has_begun = True
            self._text = TextCodec() if data[0] < REQUEST else None
        text, text_problem = self._text, None
        if text is not None:
            data, text_problem = text.feed(data)
        run: list[Packet | RequestRun] = []
        at = 0
        if self._is_whole and self._takes_runs():
            if not self._slots:
                at = self.read(data)
            first = take_run(data, at) if at < len(data) else None
            if first is not None:
                run.append(first)
                at = first.stop
            is_whole = text is None or not (text or text_problem or self._unit_deadline)
            if is_whole and at == len(data):  # as mostly: there is nothing else
                return (self._commands(run),) if run else ()
        return self._take_rest(data[at:], run, text_problem, now)

    def _take_rest(
        self,
        data: bytes,
        run: list[Packet | RequestRun],
        text_problem: LogweirError | None,
        now: float,
    ) -> Sequence[Event]:
        """Take what is not the run that came first, and what comes after it."""
        packets, text = self._packets, self._text
        events: list[Event] = []
        problem = text_problem
        if data:
            pieces, found = packets.feed(data, take_run)
            problem = found or problem
            self._take_pieces(pieces, run, events, now)
        self._end_run(run, events)
        self.kept_bytes = packets.kept.size_bytes
        self._is_whole = is_whole = not len(packets)
        if text is not None:
            self.kept_bytes += text.kept_bytes
            is_whole = is_whole and not text
        self._unit_deadline = None if is_whole else now + FRAME_SECONDS
        if problem is not None:
            self._close(str(problem))
        return events

    def _take_pieces(
        self,
        pieces: Sequence[Packet | RequestRun],
        run: list[Packet | RequestRun],
        events: list[Event],
        now: float,
    ) -> None:
        takes_runs = self._takes_runs()
        for piece in pieces:
            if takes_runs and isinstance(piece, RequestRun):
                run.append(piece)
                continue
            for packet in packets_of((piece,)):
                if self._is_over():
                    return
                self._take(packet, run, events, now)
            takes_runs = self._takes_runs()

    def next_deadline(self) -> float | None:
        if self.producer is None:
            return self._unit_deadline
        deadline = self.producer.next_deadline()
        return deadline if self._unit_deadline is None else min(self._unit_deadline, deadline)

    def deadline_passed(self, now: float) -> Sequence[Event]:
        super().deadline_passed(now)
        if self.producer is None:
            return ()
        self.producer.deadline_passed(now)
        self.settle()
        return (Acknowledged(),)

    # --- what the owner does ----------------------------------------------------------------------

    def answer(self, slot: int, data: bytes) -> None:
        """The answers to `Commands` or another event of that slot; they go out in their turn."""
        place = slot - self._first_slot
        assert self._slots[place] is None
        self._slots[place] = data
        self._flush()

    def say(self, answers: bytes) -> None:
        """Answers whose turn has come, among them those to what `read` was given."""
        self._out.put(
            answers if self._text is None else self._text.tell(answers, self._settings.clock())
        )

    def answer_part(self, slot: int, data: bytes) -> None:
        """The first answers to `Commands` whose turn has come; `answer` returns the last."""
        assert slot == self._first_slot
        self.say(data)

    def is_first(self, slot: int) -> bool:
        """Whether everything before that slot is answered."""
        return slot == self._first_slot

    def refuse_connect(self, slot: int, connect: Connect, status: Status) -> None:
        """There will be no stream: say so and close. What was answered after it is not sent."""
        request = Packet(Opcode.TAP_CONNECT, opaque=connect.opaque)
        while self._first_slot + len(self._slots) - 1 > slot:
            self._slots.pop()
        self._close(f"TAP_CONNECT was refused with status {status:#06x}")
        self.answer(slot, encode_answer(request, status))

    def stream(
        self,
        slot: int,
        connect: Connect,
        now: float,
        *,
        options: StreamOptions,
        opaque: int = 0,
        acknowledged: object = None,
    ) -> Producer[object]:
        """Turn the connection into a stream, once `slot` is the first. `opaque`, `acknowledged`:
        where the name stands."""
        self.answer(slot, b"")
        self._connecting = None
        self.producer = Producer(
            connect, self._out, now, options=options, opaque=opaque, acknowledged=acknowledged
        )
        return self.producer

    def settle(self) -> None:
        """Take over that the stream has ended."""
        if self.producer is not None and self.producer.close_reason:
            self.end(self.producer.close_reason)

    # --- inside -----------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return bool(self._closing or self.close_reason)

    def _takes_runs(self) -> bool:
        """Whether commands are simply run."""
        if self.producer is not None or self._connecting is not None:
            return False
        is_stranger = self._must_login and self.user is None
        return not (is_stranger or self._closing or self.close_reason)

    def _take(
        self, packet: Packet, run: list[Packet | RequestRun], events: list[Event], now: float
    ) -> None:
        if self.producer is not None or self._connecting is not None:
            self._take_streaming(packet, events, now)
            return
        if packet.is_response:
            self._end_run(run, events)  # what stands before it is answered
            self._close("a response where none is due")
            return
        opcode = packet.opcode
        is_stranger = self._must_login and self.user is None
        if is_stranger and opcode not in _BEFORE_LOGIN:
            self._refuse(packet, Status.AUTH_ERROR, run, events)
        elif is_malformed(packet):
            self._refuse(packet, Status.INVALID, run, events)
        elif packet.too_big and opcode in TAP_OPCODES:  # its producer may wait for no answer
            self._refuse(packet, Status.TOO_BIG, run, events)
        elif opcode in _LOCAL:
            self._end_run(run, events)
            self._answer_local(packet, events)
        else:
            run.append(packet)

    def _take_streaming(self, packet: Packet, events: list[Event], now: float) -> None:
        if not packet.is_response:
            is_noop = packet.opcode == Opcode.NOOP
            self._put(encode_answer(packet, Status.SUCCESS if is_noop else Status.NOT_SUPPORTED))
        elif self.producer is not None:
            self.producer.take_answer(packet, now)
            self.settle()
            events.append(Acknowledged())

    def _answer_local(self, packet: Packet, events: list[Event]) -> None:
        match packet.opcode:
            case Opcode.VERSION:
                self._put(simple_answer(packet))
            case Opcode.QUIT:
                self._put(encode_answer(packet))
                self._close(Parting("the client said QUIT"))
            case Opcode.QUITQ:
                self._close(Parting("the client said QUIT"))
            case Opcode.TAP_CONNECT:
                self._connect(packet, events)
            case Opcode.DEREGISTER_TAP_CLIENT | Opcode.CHANGE_VB_FILTER | Opcode.SELECT_BUCKET:
                events.append(Named(self._slot(), packet))
            case _:
                self._authenticate(packet, events)

    def _connect(self, packet: Packet, events: list[Event]) -> None:
        try:
            connect = decode_connect(packet)
        except RemoteProtocolError as error:
            status = error.reply_hint
            self._put(encode_answer(packet, status) if isinstance(status, Status) else b"")
            self._close(error.message)
            return
        self._connecting = self._slot()
        events.append(Connected(self._connecting, connect))

    def _authenticate(self, packet: Packet, events: list[Event]) -> None:
        credentials = self._settings.credentials
        if credentials is None:
            self._put(encode_answer(packet, Status.UNKNOWN_COMMAND))
            return
        if packet.opcode == Opcode.SASL_LIST_MECHS:
            names = " ".join(credentials.mechanisms()).encode()
            self._put(encode_answer(packet, value=names))
            return
        mechanism = packet.key.decode("ascii", "replace")
        if packet.opcode == Opcode.SASL_AUTH:
            self._attempt = Authentication(credentials, mechanism, self._settings.random)
        attempt = self._attempt
        if attempt is None or attempt.mechanism != mechanism:
            self._put(encode_answer(packet, Status.AUTH_ERROR))
            return
        outcome = attempt.step(packet.value)
        status, text = Status.AUTH_CONTINUE, outcome.challenge
        if outcome.user is not None:
            status, text = Status.SUCCESS, b"Authenticated" if text is None else text
            self.user = outcome.user
            events.append(Authenticated(outcome.user))
        elif text is None:
            status = Status.AUTH_ERROR
            self._failures += 1
            events.append(LoginFailed(attempt.claimed))
        if status != Status.AUTH_CONTINUE:
            self._attempt = None
        self._put(encode_answer(packet, status, value=text))
        if self._failures >= LOGIN_TRIES:
            self._close("too many failed logins")

    def _refuse(
        self, packet: Packet, status: Status, run: list[Packet | RequestRun], events: list[Event]
    ) -> None:
        self._end_run(run, events)
        self._put(encode_answer(packet, status))
        self._close(f"request {packet.opcode:#04x} got status {status:#06x}")

    def _end_run(self, run: list[Packet | RequestRun], events: list[Event]) -> None:
        """What was collected is one event."""
        if run:
            events.append(self._commands(tuple(run)))
            run.clear()

    def _commands(self, run: Sequence[Packet | RequestRun]) -> Commands:
        """The requests that were collected as an event, which nobody changes any more."""
        slots = self._slots
        slots.append(None)
        return Commands(self._first_slot + len(slots) - 1, run)

    def _slot(self) -> int:
        self._slots.append(None)
        return self._first_slot + len(self._slots) - 1

    def _put(self, data: bytes) -> None:
        self._slots.append(data)
        self._flush()

    def _close(self, reason: str) -> None:
        """Take nothing more, and end the connection once all before is answered."""
        self._closing = self._closing or reason
        self._flush()

    def _flush(self) -> None:
        slots = self._slots
        while slots and (data := slots[0]) is not None:
            if data:
                self.say(data)
            slots.popleft()
            self._first_slot += 1
        if self._closing and not slots:
            if self._text is not None:
                self._out.put(self._text.finish(self._settings.clock()))
            self.end(self._closing)
