"""A server's side of one Greenstack connection, by the contract of `replication.session`.

Every request becomes a `Pending`, which the owner runs when its lane says so (`lanes`) and answers
with `answer`; of what needs no store (HELLO, SASL_AUTH, NOOP, KEEPALIVE, what is not known) the
answer is in it already. Success of a quiet request is not answered, but for HELLO, SASL_AUTH and
LIST_BUCKETS. Before HELLO everything else gets InvalidState.

=============  =====================================================================================
event          when
=============  =====================================================================================
Pending        a request is to be run and answered, or only answered, in its turn; or a run of
               GETs or MUTATIONs is (`runs`), of which each is quiet or not
Greeted        a HELLO was taken; its features are in force
Authenticated  what comes after it is asked by that user
LoginFailed    it is not that user
Acknowledged   a stream's client has taken so many bytes
StreamOver     a client wants no more of a stream, and the `Pending` for its answer follows; it
               refused a row; or it gives no credit for too long
=============  =====================================================================================

SASL: a request with a mechanism begins, one without goes on. A challenge of the server has status
Success, as the reference has it, and SCRAM's last word of the server is one, which the client
answers with nothing. SCRAM is offered, and taken, under the names of the 2017 code too, which
have no last hyphen. A failed HELLO or SASL_AUTH is answered with a table nevertheless: the
libraries insist.

KEEPALIVE: Success, then a quiet NOOP of ours so often; 0 minutes end that. A response to nothing is
passed over and counted. Ends: what breaks `codec`, after a NOTICE if those were asked for; a
frame that does not go on for `limits.FRAME_SECONDS`. Source: the reference libraries and daemon;
what they left open is logweir's choice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from logweir.errors import DecodeError
from logweir.limits import (
    FRAME_SECONDS,
    GREENSTACK_CREDIT_SECONDS,
    GREENSTACK_LANE_BYTES,
    GREENSTACK_STREAM_NAME_BYTES,
    LOGIN_TRIES,
)
from logweir.replication.greenstack.push.stream import Outgoing
from logweir.replication.greenstack.serve.commands import Failed
from logweir.replication.greenstack.serve.lanes import Pending
from logweir.replication.greenstack.serve.runs import RequestRun, take_run
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    Status,
    encode_answer,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Feature,
    Hello,
    HelloAnswer,
    NoticeCode,
    StreamOpen,
    decode_ack,
    decode_keepalive,
    decode_sasl,
    encode_notice,
    encode_sasl_answer,
)
from logweir.replication.service.sasl import (
    Authenticated,
    Authentication,
    Credentials,
    LoginFailed,
)
from logweir.replication.service.verifiers import CRAM
from logweir.replication.session import BaseSession
from logweir.wal.vclock import VClock

_ALWAYS: Final = frozenset((Opcode.HELLO, Opcode.SASL_AUTH, Opcode.LIST_BUCKETS))
_OF_FEATURE: Final = {
    Opcode.STREAM_OPEN: Feature.CHANGE_STREAM,
    Opcode.STREAM_CLOSE: Feature.CHANGE_STREAM,
    Opcode.STREAM_ACK: Feature.CHANGE_STREAM,
    Opcode.REMOVE: Feature.REMOVE,
    Opcode.GET_MANY: Feature.GET_MANY,
}
_KNOWN: Final = frozenset(Opcode) - {Opcode.STREAM_MARK, Opcode.NOTICE, Opcode.TRUNCATE}
_PUSH_MIN: Final = 0x80000001
_OPAQUE_MAX: Final = 0xFFFFFFFF
_RANGES_MAX: Final = 4096
_ROWS_MAX: Final = 1 << 20  # what is pushed at a time has fewer frames
_NAMES_OF_2017: Final = {
    "SCRAM-SHA512": "SCRAM-SHA-512",
    "SCRAM-SHA256": "SCRAM-SHA-256",
    "SCRAM-SHA1": "SCRAM-SHA-1",
}


@dataclass(frozen=True, slots=True)
class Greeted:
    """`agent`: who says so."""

    agent: str
    version: str


@dataclass(frozen=True, slots=True)
class StreamOver:
    """A stream is over. `status`, `reason`: what its client is told; None: it ended it itself."""

    stream: bytes
    status: Status | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """`credit_bytes`: of the frames of that stream that were taken."""

    stream: bytes
    position: VClock
    credit_bytes: int


Event: TypeAlias = Pending | Greeted | Authenticated | LoginFailed | Acknowledged | StreamOver


@dataclass(frozen=True, slots=True)
class Settings:
    """`credentials`: who may come in; `plain`: whether SASL PLAIN is offered; `random`: returns
    that many random bytes; `clock`: Unix seconds; `agent`, `version`: what HELLO is answered;
    `features`: those that there are; `credit_seconds`: see `stream`."""

    credentials: Credentials
    random: Callable[[int], bytes]
    clock: Callable[[], float]
    version: str
    agent: str = "logweir"
    plain: bool = True
    features: tuple[int, ...] = tuple(Feature)
    credit_seconds: float = GREENSTACK_CREDIT_SECONDS

    @property
    def mechanisms(self) -> Sequence[str]:
        """What is offered."""
        offered = self.credentials.mechanisms()
        return [name for name in offered if name != "PLAIN" or self.plain]


class ServerSession(BaseSession[Event]):
    """One client. `now`: seconds."""

    def __init__(self, settings: Settings, now: float) -> None:
        super().__init__()
        self.features: frozenset[int] = frozenset()
        self.has_many = False  # of these GET_MANY
        self.is_open = False
        self.unawaited = 0
        self.streams: dict[bytes, Outgoing] = {}
        self._settings = settings
        self.read: Callable[[bytes], int] = lambda data: 0
        """Answers requests with which what came begins, if any; returns where others begin."""
        self.frames = FrameBuffer()
        """Finds the frames in what the client sends."""
        self._attempt: Authentication | None = None
        self._failures = 0
        self._proven: str | None = None
        self._keepalive_seconds = 0.0
        self._keepalive_at: float | None = None
        self._last_push = _PUSH_MIN - 1
        self._ranges: OrderedDict[int, bytes] = OrderedDict()
        self._pushing: bytes | None = None
        self._now = now

    # --- the contract of sessions -----------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self.close_reason:
            return ()
        self._now = now
        events: list[Event] = []
        frames = self.frames
        if self.is_open and (data := frames.join(data)):
            data = data[self.read(data) :]
        found, problem = frames.feed(data, take_run if self.is_open else None)
        self._unit_deadline = now + FRAME_SECONDS if frames.rest.size_bytes else None
        for frame in found:
            if isinstance(frame, RequestRun):
                events.append(Pending(frame))
            elif frame.status is None:
                try:
                    self._take_request(frame, events)
                except Failed as failed:
                    self._answered(frame, events, failed.status)
                except DecodeError:
                    self._answered(frame, events, Status.INVALID_ARGUMENTS)
            else:
                self._take_response(frame, events)
            if self._failures >= LOGIN_TRIES:
                return events
        if problem is not None:
            self._break(str(problem))
        return events

    def next_deadline(self) -> float | None:
        first = self._unit_deadline
        if self._keepalive_at is None and not self.streams:
            return first
        for at in (self._keepalive_at, *[one.next_deadline() for one in self.streams.values()]):
            if first is None or (at is not None and at < first):
                first = at
        return first

    def deadline_passed(self, now: float) -> Sequence[Event]:
        if self._unit_deadline is not None and now >= self._unit_deadline:
            self._break("the client's frame does not go on")
        if self._keepalive_at is not None and now >= self._keepalive_at:
            self._keepalive_at = now + self._keepalive_seconds
            self.push(Frame(Opcode.NOOP, flags=Flag.QUIET))
        starved: list[Event] = []
        for name, stream in self.streams.items():
            if stream.is_starved(now):
                starved.append(StreamOver(name, Status.TOO_BUSY, "no credit came for too long"))
            else:
                stream.heartbeat(now, self.time_us())
        return starved

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that `data_to_send` would give."""
        return self._out.size_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of a frame whose rest has not come."""
        return self.frames.rest.size_bytes

    # --- what the owner does ----------------------------------------------------------------------

    def has(self, feature: Feature) -> bool:
        """Whether the client asked for that."""
        return feature in self.features

    def answer(self, request: Frame, status: int = Status.SUCCESS, payload: bytes = b"") -> None:
        """Answer a request, unless it is quiet and went well."""
        if status == Status.SUCCESS and request.is_quiet and request.opcode not in _ALWAYS:
            return
        self._out.put(self.encode(request, status, payload))

    def encode(self, request: Frame, status: int = Status.SUCCESS, payload: bytes = b"") -> bytes:
        """The bytes of an answer, those of a failure in the form that the libraries want."""
        if status != Status.SUCCESS and not payload:
            if request.opcode == Opcode.HELLO:
                payload = HelloAnswer(self._settings.agent, self._settings.version).encode()
            elif request.opcode == Opcode.SASL_AUTH:
                payload = encode_sasl_answer()
        return encode_answer(request, status, payload)

    def put(self, data: bytes) -> None:
        """Send ready bytes."""
        if data:
            self._out.put(data)

    def push(self, frame: Frame, stream: bytes | None = None) -> int:
        """Send a request of ours; its opaque is set here. Returns the bytes of the frame."""
        opaque = self.next_opaque(stream)
        data = encode_frame(
            Frame(frame.opcode, opaque, frame.payload, None, frame.flags, frame.flex)
        )
        self.push_all(data, 1)
        return len(data)

    def next_opaque(self, stream: bytes | None) -> int:
        """The opaque of the next request of ours, which is about that stream."""
        opaque = self._last_push + 1
        if opaque > _OPAQUE_MAX - _ROWS_MAX:
            opaque = _PUSH_MIN
            self._last_push = opaque - 1
            self._ranges.clear()
            self._pushing = None
        if stream is not None and stream != self._pushing:
            self._pushing = stream
            self._ranges[opaque] = stream
            while len(self._ranges) > _RANGES_MAX:
                self._ranges.popitem(last=False)
        return opaque

    def push_all(self, data: bytes, count: int) -> None:
        """Send `count` requests of ours, at most `_ROWS_MAX`, whose opaques begin with that of
        `next_opaque`."""
        self._last_push += count
        self._out.put(data)

    def open_stream(
        self, name: bytes, lane: bytes | None, asked: StreamOpen, now: float
    ) -> Outgoing:
        """Begin to push a stream under a name that is not used."""
        credit_seconds = self._settings.credit_seconds
        made = Outgoing(name, lane, asked, self, now, credit_seconds=credit_seconds)
        self.streams[name] = made
        return made

    def time_us(self) -> int:
        """Microseconds since 1970."""
        return int(self._settings.clock() * 1_000_000)

    def notice(self, code: NoticeCode, text: str, detail: str = "") -> None:
        """Tell the client something, if it asked to be told."""
        if self.has(Feature.NOTICES) and not self.close_reason:
            payload = encode_notice(code, text, detail)
            self.push(Frame(Opcode.NOTICE, payload=payload, flags=Flag.QUIET))

    # --- inside -----------------------------------------------------------------------------------

    def _break(self, reason: str) -> None:
        self.notice(NoticeCode.PROTOCOL_ERROR, reason)
        self.end(reason)

    def _take_request(self, frame: Frame, events: list[Event]) -> None:
        """Raises `Failed`, `DecodeError`."""
        opcode = frame.opcode
        feature = _OF_FEATURE.get(opcode)  # type: ignore[call-overload]
        if opcode not in _KNOWN or (feature is not None and not self.has(feature)):
            raise Failed(Status.UNKNOWN_COMMAND)
        if frame.flex:
            is_long = len(frame.flex.get(FlexKey.LANE, b"")) > GREENSTACK_LANE_BYTES
            if is_long or frame.wrong_key() is not None:
                raise Failed(Status.INVALID_ARGUMENTS)
        if opcode == Opcode.HELLO:
            self._hello(frame, events)
        elif not self.is_open:
            raise Failed(Status.INVALID_STATE)
        elif frame.flags & Flag.MORE and opcode not in (Opcode.MUTATION, Opcode.REMOVE):
            raise Failed(Status.INVALID_ARGUMENTS)
        elif opcode == Opcode.SASL_AUTH:
            self._sasl(frame, events)
        elif opcode == Opcode.NOOP:
            self._answered(frame, events)
        elif opcode == Opcode.KEEPALIVE:
            seconds = self._keepalive_seconds = decode_keepalive(frame.payload) * 60.0
            self._keepalive_at = self._now + seconds if seconds else None
            self._answered(frame, events)
        elif opcode == Opcode.STREAM_ACK:
            self._acknowledge(frame, events)
        elif opcode == Opcode.STREAM_CLOSE:
            events.append(StreamOver(frame.flex.get(FlexKey.DCP_ID, b"")))
            self._answered(frame, events)
        else:
            events.append(Pending(frame))

    def _answered(
        self,
        frame: Frame,
        events: list[Event],
        status: Status = Status.SUCCESS,
        payload: bytes = b"",
    ) -> None:
        """A request whose answer is known, which waits for its turn."""
        is_silent = status == Status.SUCCESS and frame.is_quiet and frame.opcode not in _ALWAYS
        answer = b"" if is_silent else self.encode(frame, status, payload)
        refusal = None if status == Status.SUCCESS else status
        events.append(Pending(frame, refusal=refusal, answer=answer))

    def _hello(self, frame: Frame, events: list[Event]) -> None:
        hello = Hello.decode(frame.payload)
        features = tuple(one for one in self._settings.features if one in hello.features)
        self.features = frozenset(features)
        self.has_many = Feature.GET_MANY in self.features
        self.is_open = True
        settings = self._settings
        offered = settings.mechanisms
        older = [name for name, known in _NAMES_OF_2017.items() if known in offered]
        mechanisms = " ".join((*offered, *older))
        answer = HelloAnswer(settings.agent, settings.version, mechanisms, features)
        self._answered(frame, events, payload=answer.encode())
        events.append(Greeted(hello.agent, hello.version))

    def _sasl(self, frame: Frame, events: list[Event]) -> None:
        mechanism, data = decode_sasl(frame.payload)
        if mechanism:
            name = _NAMES_OF_2017.get(mechanism, mechanism)
            self._proven = self._attempt = None
            if name not in self._settings.mechanisms or not (data or name == CRAM):
                raise Failed(Status.INVALID_ARGUMENTS)
            credentials, random = self._settings.credentials, self._settings.random
            self._attempt = Authentication(credentials, name, random)
        elif self._proven is not None:
            self._enter(frame, self._proven, events)
            return
        if self._attempt is None:
            raise Failed(Status.INVALID_STATE)
        outcome = self._attempt.step(data)
        if outcome.challenge is not None:
            self._proven = outcome.user
            self._answered(frame, events, payload=encode_sasl_answer(outcome.challenge))
        elif outcome.user is not None:
            self._enter(frame, outcome.user, events)
        else:
            events.append(LoginFailed(self._attempt.claimed))
            self._attempt = None
            self._answered(frame, events, Status.AUTHENTICATION_ERROR)
            self._failures += 1
            if self._failures >= LOGIN_TRIES:
                self.end("too many failed logins")

    def _enter(self, frame: Frame, user: str, events: list[Event]) -> None:
        self._proven = self._attempt = None
        self._answered(frame, events, payload=encode_sasl_answer())
        events.append(Authenticated(user))

    def _acknowledge(self, frame: Frame, events: list[Event]) -> None:
        name = frame.flex.get(FlexKey.DCP_ID, b"")
        position, credit = decode_ack(frame.payload)
        if not 0 < len(name) <= GREENSTACK_STREAM_NAME_BYTES:
            raise Failed(Status.INVALID_ARGUMENTS)
        events.append(Acknowledged(name, position, credit))
        if not frame.is_quiet:
            self._answered(frame, events)

    def _take_response(self, frame: Frame, events: list[Event]) -> None:
        stream: bytes | None = None
        if _PUSH_MIN <= frame.opaque <= self._last_push:
            for first in reversed(self._ranges):
                if first <= frame.opaque:
                    stream = self._ranges[first]
                    break
        else:
            self.unawaited += 1
        is_push = frame.opcode in (Opcode.MUTATION, Opcode.REMOVE, Opcode.TRUNCATE)
        if stream is not None and is_push and frame.status:
            reason = f"the client refused a row with status {frame.status:#06x}"
            events.append(StreamOver(stream, Status.INVALID_STATE, reason))
