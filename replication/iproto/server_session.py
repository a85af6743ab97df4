"""The server's side of an iproto connection: a state machine without I/O.

===========  =====================================  ==============================================
state        what arrives                           what happens
===========  =====================================  ==============================================
REQUESTS     a well-formed request                  event `Request`; PING is answered here
REQUESTS     changes, one behind the other          one event `Run`
REQUESTS     a malformed one, an unknown type       answered here, the connection goes on
REQUESTS     JOIN, SUBSCRIBE, FETCH_SNAPSHOT,       event `Request`, then state STREAM: what comes
             REGISTER                               after it waits
STREAM       anything                               waits; `end_stream` → REQUESTS, `begin_relay`
                                                    → RELAY
RELAY        a frame with a vclock                  event `Ack`
RELAY        anything else                          the connection ends
any          no frame can be found any more         answered with error 20, the connection ends
===========  =====================================  ==============================================

Requests of one connection may be answered in any order: the answer carries the request's sync.
The greeting goes out first. A frame that has begun must be complete after `limits.FRAME_SECONDS`.
Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from logweir.errors import ErrorCode, LimitExceeded, RemoteProtocolError, RequestError
from logweir.limits import FRAME_SECONDS, IPROTO_FRAME_BYTES
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.codec import (
    EMPTY_BODY,
    SALT_BYTES,
    BrokenStream,
    IprotoKey,
    RequestType,
    Splitter,
    answer_head,
    decode_answer,
    encode_answer,
    encode_error,
    encode_greeting,
)
from logweir.replication.iproto.wire.requests import STREAM_TYPES, Request, decode_request
from logweir.replication.iproto.wire.runs import Run, no_ids, take_run
from logweir.replication.session import BaseSession, InputBuffer
from logweir.wal.vclock import VClock


@dataclass(frozen=True, slots=True)
class Ack:
    """A replica has written everything up to `vclock`."""

    vclock: VClock


Event = Request | Run | Ack


class State(Enum):
    """Where a connection stands; the table is in the module's text."""

    REQUESTS = "requests"
    STREAM = "stream"
    RELAY = "relay"


# To look for a member of an enumeration takes ten times as long as for a name.
_REQUESTS: Final = State.REQUESTS
_STREAM: Final = State.STREAM
_RELAY: Final = State.RELAY
_ENTERS: Final = {
    (_REQUESTS, "stream"): _STREAM,
    (_STREAM, "end"): _REQUESTS,
    (_STREAM, "relay"): _RELAY,
}


class ServerSession(BaseSession[Event]):
    """One client or replica.

    `instance`: our UUID; `noise`: 32 random bytes for the greeting; `schema_version`: returns the
    current one, which is in every answer. `user`: who is authenticated, "guest" at first.
    """

    def __init__(
        self, instance: uuid.UUID, noise: bytes, schema_version: Callable[[], int]
    ) -> None:
        super().__init__()
        self.user = "guest"
        self.salt = noise[:SALT_BYTES]
        self.malformed = 0
        self.read: Callable[[bytes], int] = lambda data: 0
        """Answers requests with which what came begins, if any; returns where others begin."""
        self.ids: kernel.Ids = no_ids
        """By names; see `wire.kernel`."""
        self._schema_version = schema_version
        self._out.put(encode_greeting(instance, noise))
        self._input = InputBuffer("IPROTO_FRAME_BYTES", IPROTO_FRAME_BYTES + 9)
        self._splitter = Splitter()
        self.state = _REQUESTS

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`."""
        return self._input.size_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that `data_to_send` would give."""
        return self._out.size_bytes

    # --- in ---------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        """See `Session`. Returns requests and acknowledgements in their order."""
        if self.close_reason:
            return ()
        if self.state is _STREAM:
            try:
                self._input.add(data)
            except LimitExceeded as error:
                self.end(f"too much arrived while a stream was sent: {error}")
            return ()
        if self._input.size_bytes and not (data := self._input.join(data)):
            return ()
        return self._read(data, now)

    def _read(self, data: bytes, now: float) -> Sequence[Event]:
        broken: RequestError | None = None
        events: list[Event] = []
        read_to = self.read(data) if self.state is _REQUESTS else 0
        if read_to < len(data):
            read_to = self._take_run(data, read_to, events)
        if read_to == len(data):
            self._unit_deadline = None
            return events
        try:
            spans, rest_at, needed = self._splitter.split(data, read_to)
        except BrokenStream as error:
            spans, rest_at, needed, broken = error.spans, 0, 0, error.cause
        for start, end in spans:
            if self.close_reason:
                return events
            if end <= read_to:
                continue  # it is of a run
            if self.state is _STREAM:  # it waits, and so does what comes after it
                rest_at, needed, broken = read_to, 0, None
                break
            if self.state is _RELAY:
                self._take_ack(data, start, end, events)
            else:
                read_to = self._take_next(data, read_to, (start, end), events)
                continue
            read_to = end
        if broken is not None:
            self.put_error(0, broken)
            self.end(f"malformed: {broken.message}")
            return events
        self._input.keep(data[rest_at:], needed)
        if len(self._input) == 0 or self.state is _STREAM:
            self._unit_deadline = None
        elif spans or self._unit_deadline is None:
            self._unit_deadline = now + FRAME_SECONDS
        return events

    def again(self, run: Run) -> Sequence[Request | Run]:
        """The requests of a run, read again, since the definitions were changed."""
        events: list[Request | Run] = []
        read_to = run.at
        for span in self._splitter.split(run.data, run.at)[0]:
            if span[1] > read_to:
                read_to = self._take_next(run.data, read_to, span, events)
        return events

    def _take_next(self, data: bytes, at: int, span: tuple[int, int], events: list[Any]) -> int:
        """Take the run that begins there, or else the request of a frame. Returns where it ends."""
        behind = self._take_run(data, at, events)
        if behind > at:
            return behind
        self._take_request(data, *span, events)
        return span[1]

    def _take_run(self, data: bytes, at: int, events: list[Any]) -> int:
        """Take the run that begins there, if one does. Returns where it ends."""
        if self.state is not _REQUESTS:
            return at
        run = take_run(data, at, self._schema_version(), self.ids)
        if run is None:
            return at
        events.append(run)
        return run.stop

    def _take_request(self, data: bytes, start: int, end: int, events: list[Any]) -> None:
        request = Request(-1)
        try:
            decode_request(data, start, end, request)
            version = request.schema_version
            if version and version != self._schema_version():
                raise _wrong_version(version, self._schema_version())
        except RequestError as error:
            self.malformed += 1
            self.put_error(request.sync, error)
            return
        if request.type == RequestType.PING:
            self._out.put(encode_answer(request.sync, self._schema_version(), EMPTY_BODY))
            return
        if request.type in STREAM_TYPES:
            self._enter("stream")
        events.append(request)

    def _take_ack(self, data: bytes, start: int, end: int, events: list[Event]) -> None:
        try:
            body = decode_answer(data, start, end).body
            vclock = body.get(IprotoKey.VCLOCK, {})
            if not isinstance(vclock, dict):
                raise RemoteProtocolError("the vclock of an acknowledgement is not a map")
            events.append(Ack(VClock(vclock).without_local()))
        except (RemoteProtocolError, ValueError, TypeError) as error:
            self.end(f"malformed acknowledgement: {error}")

    # --- out --------------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Send bytes that are frames already."""
        self._out.put(data)

    def put_answer(self, sync: int, body: bytes) -> None:
        """Answer a request well. `body`: encoded."""
        self._out.put(encode_answer(sync, self._schema_version(), body))

    def begin_answer(self, sync: int, body_bytes: int) -> bytes:
        """What stands before the body of an answer that its owner sends itself; until `end_answer`
        everything else waits."""
        self._out.is_held = True
        return answer_head(sync, self._schema_version(), body_bytes)

    @property
    def is_held(self) -> bool:
        """Whether an answer has begun, see `begin_answer`."""
        return self._out.is_held

    def end_answer(self) -> None:
        """See `begin_answer`."""
        self._out.is_held = False

    def put_error(self, sync: int, error: RequestError) -> None:
        """Answer a request with an error."""
        self._out.put(encode_error(sync, self._schema_version(), error))

    def end_stream(self, now: float) -> Sequence[Event]:
        """The answer to JOIN and the like is complete: what waited is read."""
        self._enter("end")
        return self._take_waiting(now)

    def begin_relay(self, now: float) -> Sequence[Event]:
        """SUBSCRIBE was accepted: from now on acknowledgements are read."""
        self._enter("relay")
        return self._take_waiting(now)

    def _enter(self, step: str) -> None:
        self.state = _ENTERS[self.state, step]

    def _take_waiting(self, now: float) -> Sequence[Event]:
        waiting = self._input.take()
        return self._read(waiting, now) if waiting else ()


def _wrong_version(asked: int, ours: int) -> RequestError:
    """Error 109. Tarantool 2.6.0 puts the two numbers the wrong way round, and so do we."""
    return RequestError(
        ErrorCode.WRONG_SCHEMA_VERSION,
        f"Wrong schema version, current: {asked}, in request: {ours}",
    )
