"""A client's side of one Greenstack connection, by the contract of `replication.session`.

HELLO goes first, with the features that are wanted; with a user SASL_AUTH follows, by the strongest
mechanism that the server offers, and with a bucket SELECT_BUCKET. When that is done `Ready` comes;
what the owner asks before waits. A refusal of one of these steps is `Refused`, and the end.

Answers are matched to requests by their opaques, counted from 1; they come in any order. A quiet
request has no answer unless it fails: `settle` forgets the ones that an answer after them in their
lane proves done. What the server asks or pushes is `Pushed`; NOOP is answered here. Ends: what
breaks `codec`, an answer that cannot be read, one to nothing counts only (`unawaited`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from logweir.errors import DecodeError
from logweir.limits import FRAME_SECONDS
from logweir.replication.greenstack.wire.codec import (
    Flag,
    Frame,
    FrameBuffer,
    Opcode,
    Status,
    encode_answer,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Hello,
    HelloAnswer,
    decode_sasl_answer,
    encode_bucket,
    encode_sasl,
)
from logweir.replication.service.sasl import Login
from logweir.replication.session import BaseSession
from logweir.wal.writer import VERSION

_PUSHES: Final = frozenset(
    (
        *(Opcode.MUTATION, Opcode.REMOVE, Opcode.TRUNCATE, Opcode.NOTICE),
        *(Opcode.STREAM_MARK, Opcode.STREAM_CLOSE),
    )
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The connection can be used. `features`: those in force; `agent`: the server."""

    agent: str
    version: str
    features: frozenset[int]


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not let us in. `what`: the step."""

    what: str
    status: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with its answer; `answer` None: a quiet one is known to have succeeded."""

    request: Frame
    answer: Frame | None


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the server sends of itself."""

    frame: Frame


ClientEvent: TypeAlias = Ready | Refused | Answered | Pushed


class ClientSession(BaseSession[ClientEvent]):
    """See the module's text. `random`: see `Login`."""

    peer = "the server"

    def __init__(
        self,
        random: Callable[[int], bytes],
        *,
        user: str = "",
        password: str = "",
        bucket: str = "",
        features: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.is_ready = False
        self.unawaited = 0
        self._login = Login(user, password, random) if user else None
        self._bucket = bucket
        self._hello: HelloAnswer | None = None
        self._frames = FrameBuffer()
        self._held: list[bytes] = []
        self._last_opaque = 0
        self._asked: dict[int, Frame] = {}
        hello = Hello("logweir", VERSION, "", features)
        self._say(Frame(Opcode.HELLO, payload=hello.encode()))

    # --- the contract of sessions -----------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[ClientEvent]:
        if self.close_reason:
            return ()
        frames, problem = self._frames.feed(data)
        self._unit_deadline = now + FRAME_SECONDS if len(self._frames) else None
        return self._take_each(frames, problem, self._take)

    # --- what the owner does ----------------------------------------------------------------------

    def send(self, request: Frame) -> Frame:
        """Send a request under an opaque of its own; returns it so."""
        self._last_opaque = self._last_opaque % 0x7FFFFFFF + 1
        request = replace(request, opaque=self._last_opaque)
        self._asked[request.opaque] = request
        data = encode_frame(request)
        if self.is_ready:
            self._out.put(data)
        else:
            self._held.append(data)
        return request

    def tell(self, frame: Frame) -> None:
        """Send a quiet request whose failure is nobody's business."""
        self._out.put(encode_frame(replace(frame, flags=frame.flags | Flag.QUIET)))

    def refuse(self, frame: Frame, status: Status) -> None:
        """Answer what was pushed with a failure."""
        self._out.put(encode_answer(frame, status))

    # --- inside -----------------------------------------------------------------------------------

    def _say(self, frame: Frame) -> None:
        """Send a step of the beginning, which has opaque 0."""
        self._out.put(encode_frame(frame))

    def _take(self, frame: Frame, events: list[ClientEvent]) -> None:
        if frame.status is not None:
            self._take_answer(frame, events)
        elif frame.opcode == Opcode.NOOP:
            if not frame.is_quiet:
                self._out.put(encode_answer(frame))
        elif frame.opcode in _PUSHES and self._hello is not None and self._hello.features:
            events.append(Pushed(frame))
        else:
            self._out.put(encode_answer(frame, Status.UNKNOWN_COMMAND))

    def _take_answer(self, frame: Frame, events: list[ClientEvent]) -> None:
        if frame.opaque == 0 and not self.is_ready:
            self._begin(frame, events)
            return
        request = self._asked.get(frame.opaque)
        if request is None:
            self.unawaited += 1
            return
        if request.opcode != frame.opcode and frame.opcode != 0xFFFF:
            raise DecodeError(f"an answer of opcode {frame.opcode:#06x} to {request.opcode:#06x}")
        del self._asked[frame.opaque]
        if not request.is_quiet:
            self._settle(request, events)
        events.append(Answered(request, frame))

    def _settle(self, request: Frame, events: list[ClientEvent]) -> None:
        """Quiet requests of that lane that went before have succeeded."""
        lane = request.lane
        done: list[Frame] = []
        for asked in self._asked.values():
            if asked.opaque == request.opaque or not asked.is_quiet:
                continue
            is_before = (request.opaque - asked.opaque) % 0x7FFFFFFF < 0x3FFFFFFF
            if is_before and asked.lane == lane:
                done.append(asked)
        for asked in done:
            del self._asked[asked.opaque]
            events.append(Answered(asked, None))

    # --- the beginning ----------------------------------------------------------------------------

    def _begin(self, frame: Frame, events: list[ClientEvent]) -> None:
        names = {Opcode.HELLO: "HELLO", Opcode.SASL_AUTH: "the login"}
        if frame.status != Status.SUCCESS:
            what = names.get(frame.opcode, f"bucket {self._bucket!r}")  # type: ignore[call-overload]
            events.append(Refused(what, frame.status or 0))
            self.end(f"the server refused {what} with status {frame.status:#06x}")
        elif frame.opcode == Opcode.HELLO and self._hello is None:
            self._hello = HelloAnswer.decode(frame.payload)
            if self._login is None:
                self._enter(self._hello, events)
            else:
                first = self._login.begin(self._hello.mechanisms.split())
                self._say_sasl(self._login.mechanism, first)
        elif self._hello is None:
            raise DecodeError(f"an answer of opcode {frame.opcode:#06x} before that to HELLO")
        elif frame.opcode == Opcode.SASL_AUTH and self._login is not None:
            challenge = decode_sasl_answer(frame.payload)
            if challenge:
                self._say_sasl("", self._login.step(challenge))
            else:
                self._login = None
                self._enter(self._hello, events)
        elif frame.opcode == Opcode.SELECT_BUCKET:
            self._bucket = ""
            self._enter(self._hello, events)
        else:
            raise DecodeError(f"an answer of opcode {frame.opcode:#06x} to nothing")

    def _say_sasl(self, mechanism: str, data: bytes) -> None:
        self._say(Frame(Opcode.SASL_AUTH, payload=encode_sasl(mechanism, data)))

    def _enter(self, hello: HelloAnswer, events: list[ClientEvent]) -> None:
        if self._bucket:
            self._say(Frame(Opcode.SELECT_BUCKET, payload=encode_bucket(self._bucket)))
            return
        self.is_ready = True
        events.append(Ready(hello.agent, hello.version, frozenset(hello.features)))
        for data in self._held:
            self._out.put(data)
        self._held = []
