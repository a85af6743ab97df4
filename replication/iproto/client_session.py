"""The replica's side of an iproto connection: a state machine without I/O.

===========  =================================  ==================================================
state        what arrives                       event
===========  =================================  ==================================================
GREETING     128 bytes                          `Greeting`
READY        the answer to AUTH, to VOTE        `Authenticated`, `Ballot`
INITIAL      OK with a vclock, first            `StreamBegun`: JOIN or FETCH_SNAPSHOT was accepted
INITIAL      rows without lsn                   `Rows`
INITIAL      OK with a vclock, second           `StreamEnded`; → FINAL after JOIN, else → READY
FINAL        rows; OK with a vclock             `Rows`; `StreamEnded`; → READY
SUBSCRIBING  OK with a vclock                   `Subscribed`; → FOLLOWING
FOLLOWING    rows; a frame without type         `Rows`; `Heartbeat`
any          an error                           `Refused`
===========  =================================  ==================================================

The rows of one read come as one event: their bytes one after the other, as they would stand in a
block of a log file. Rows of types 30 … 32 (raft) are left out. Once subscribed, a master that says
nothing for `SILENCE_SECONDS` is given up, during a join one that does so for `stall_seconds`: as
long as it sends something it may take as long as it likes, and in FINAL while it is heard of
elsewhere (`lives`). While it is not read, because rows wait for our disk, it is not silent. A 2.6.0
with an undecided synchronous row says nothing to JOIN until that is decided. Source: Tarantool
2.6.0, observed.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from logweir.errors import LocalProtocolError, RemoteProtocolError, RequestError
from logweir.limits import CONNECT_SECONDS, IPROTO_FRAME_BYTES
from logweir.replication.iproto.wire.auth import scramble
from logweir.replication.iproto.wire.codec import (
    ERROR_BIT,
    GREETING_BYTES,
    REPLICA_VERSION_ID,
    Answer,
    Ballot,
    BrokenStream,
    Greeting,
    IprotoKey,
    RequestType,
    Splitter,
    decode_answer,
    decode_ballot,
    decode_greeting,
    encode_ack,
)
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.session import BaseSession, InputBuffer
from logweir.replication.urls import STALL_SECONDS
from logweir.store.schema.definition import LOGIN_METHOD
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock

SILENCE_SECONDS: Final = 4.0
"""A subscribed master that says nothing for so long is gone. Source: 4 x replication_timeout."""

RAFT_TYPES: Final = frozenset((30, 31, 32))


@dataclass(frozen=True, slots=True)
class Authenticated:
    """AUTH was accepted."""


@dataclass(frozen=True, slots=True)
class StreamBegun:
    """Initial rows follow, of the state at `vclock` or later."""

    vclock: VClock


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stage of a join is complete. `is_last`: nothing more follows; `vclock`: the state now."""

    vclock: VClock
    is_last: bool


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Rows follow for ever. `replica_id`: of the master, 0 if it does not say."""

    vclock: VClock
    replica_id: int
    replicaset: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they would stand in a block. `is_initial`: of a join's first stage, without lsn."""

    data: bytes
    count: int
    is_initial: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The master lives. `timestamp`: its clock, seconds since the epoch; 0 if it does not say."""

    timestamp: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The master answered with an error. `state`: what was going on."""

    error: RequestError
    state: str


Event = (
    Greeting
    | Authenticated
    | Ballot
    | StreamBegun
    | StreamEnded
    | Subscribed
    | Rows
    | Heartbeat
    | Refused
)


class _State(Enum):
    GREETING = "greeting"
    READY = "ready"
    AUTH = "authentication"
    VOTE = "vote"
    JOIN_START = "join"
    INITIAL = "initial rows"
    FINAL = "final rows"
    SUBSCRIBING = "subscription"
    FOLLOWING = "following"


_ROW_STATES: Final = (_State.INITIAL, _State.FINAL, _State.FOLLOWING)
E = TypeVar("E")


class FromServer(BaseSession[Greeting | E]):
    """What a server sends: its greeting, then frames. `now`: the clock at the start, in seconds."""

    peer = "the server"

    def __init__(self, now: float) -> None:
        super().__init__()
        self._input = InputBuffer("IPROTO_FRAME_BYTES", IPROTO_FRAME_BYTES + 9)
        self._splitter = Splitter()
        self._greeting: Greeting | None = None
        self._heard = now

    def receive_data(self, data: bytes, now: float) -> Sequence[Greeting | E]:
        if self.close_reason:
            return ()
        self._heard = now
        events: list[Greeting | E] = []
        whole = self._input.join(data)
        try:
            if whole and self._greeting is None:
                whole = self._take_greeting(whole, events)
            if whole:
                spans, rest_at, needed = self._splitter.split(whole)
                self._take_frames(whole, spans, events)
                self._input.keep(whole[rest_at:], needed)
        except BrokenStream as error:
            self.close_reason = f"malformed {self.unit}: {error.cause.message}"
        except RemoteProtocolError as error:
            self.close_reason = str(error)
        return events

    def _take_greeting(self, data: bytes, events: list[Greeting | E]) -> bytes:
        """What stands behind it."""
        if len(data) < GREETING_BYTES:
            if not b"Tarantool ".startswith(data[:10]):
                decode_greeting(data)
            self._input.keep(data, GREETING_BYTES)
            return b""
        self._greeting = decode_greeting(data[:GREETING_BYTES])
        events.append(self._greeting)
        return data[GREETING_BYTES:]

    @abstractmethod
    def _take_frames(
        self, data: bytes, spans: Sequence[tuple[int, int]], events: list[Greeting | E]
    ) -> None:
        """The events that whole frames are. Raises `RemoteProtocolError`."""


class ClientSession(FromServer[Event]):
    """One connection to a master."""

    peer = "the master"

    def __init__(self, now: float, stall_seconds: float = STALL_SECONDS) -> None:
        super().__init__(now)
        self._stall_seconds = stall_seconds
        self._state = _State.GREETING
        self._is_read = True
        self._with_final = False

    # --- in ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """See `Session`: when a silent master is given up."""
        if not self._is_read:
            return None
        if self._state in (_State.GREETING, _State.AUTH, _State.VOTE, _State.SUBSCRIBING):
            return self._heard + CONNECT_SECONDS
        if self._state == _State.FOLLOWING:
            return self._heard + SILENCE_SECONDS
        if self._state in (_State.JOIN_START, _State.INITIAL, _State.FINAL):
            return self._heard + self._stall_seconds
        return None

    def deadline_passed(self, now: float) -> Sequence[Event]:
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline and not self.close_reason:
            silence = now - self._heard
            self.close_reason = f"the master said nothing for {silence:.1f} s ({self._state.value})"
        return ()

    def _take_greeting(self, data: bytes, events: list[Event]) -> bytes:
        rest = super()._take_greeting(data, events)
        if events:
            self._state = _State.READY
        return rest

    def _take_frames(
        self, data: bytes, spans: Sequence[tuple[int, int]], events: list[Event]
    ) -> None:
        rows: list[bytes] = []
        initial = self._state == _State.INITIAL
        for start, end in spans:
            if self._is_row(data, start, end):
                rows.append(data[start:end])
                continue
            if rows:
                events.append(Rows(b"".join(rows), len(rows), initial))
                rows = []
            self._take_frame(decode_answer(data, start, end), events)
            initial = self._state == _State.INITIAL
        if rows:
            events.append(Rows(b"".join(rows), len(rows), initial))

    def _is_row(self, data: bytes, start: int, end: int) -> bool:
        """Whether a frame is a row: its type is neither 0 nor an error nor raft."""
        if self._state not in _ROW_STATES:
            return False
        if end - start > 3 and 0x81 <= data[start] < 0x90 and data[start + 1] == 0:
            kind = data[start + 2]
            if kind < 0x80:
                return kind not in (0, 30, 31, 32)
        kind = decode_answer(data, start, end).header.type
        return kind != 0 and not kind & ERROR_BIT and kind not in RAFT_TYPES

    def _take_frame(self, answer: Answer, events: list[Event]) -> None:
        state = self._state
        if answer.header.type in RAFT_TYPES:
            return
        if answer.is_error:
            events.append(Refused(answer.error(), state.value))
            self._state = _State.READY
            return
        if answer.header.type != RequestType.OK:
            raise RemoteProtocolError(f"frame of type {answer.header.type} during {state.value}")
        if state == _State.FOLLOWING:
            events.append(Heartbeat(answer.header.timestamp))
        elif state == _State.AUTH:
            self._state = _State.READY
            events.append(Authenticated())
        elif state == _State.VOTE:
            self._state = _State.READY
            try:
                events.append(decode_ballot(answer.body))
            except RequestError as error:
                raise RemoteProtocolError(f"malformed ballot: {error.message}") from error
        else:
            self._take_vclock(answer, events)

    def _take_vclock(self, answer: Answer, events: list[Event]) -> None:
        state = self._state
        vclock = _vclock(answer.body)
        if state == _State.JOIN_START:
            self._state = _State.INITIAL
            events.append(StreamBegun(vclock))
        elif state == _State.INITIAL:
            self._state = _State.FINAL if self._with_final else _State.READY
            events.append(StreamEnded(vclock, not self._with_final))
        elif state == _State.FINAL:
            self._state = _State.READY
            events.append(StreamEnded(vclock, True))
        elif state == _State.SUBSCRIBING:
            self._state = _State.FOLLOWING
            replicaset = answer.body.get(IprotoKey.REPLICASET_UUID)
            events.append(Subscribed(vclock, answer.header.replica_id, _uuid(replicaset)))
        else:
            raise RemoteProtocolError("an answer came to which there was no request")

    def reading(self, is_read: bool, now: float) -> None:
        """The owner stops or goes on reading."""
        self._is_read = is_read
        self._heard = now

    def lives(self, now: float) -> None:
        """The master was heard of elsewhere: it may take longer in the last stage of a join. If
        what it sends is lost probes of TCP tell; JOIN itself may be lost, and soon comes again."""
        if self._state == _State.FINAL:
            self._heard = now

    # --- out --------------------------------------------------------------------------------------

    def _ask(self, state: _State, kind: int, body: dict[int, Value] | None = None) -> None:
        if self._state != _State.READY:
            raise LocalProtocolError(
                f"{RequestType(kind).name} cannot be sent during {self._state.value}"
            )
        self._state = state
        self._out.put(encode_request(kind, 0, body))

    def authenticate(self, user: str, password: str) -> None:
        """Say who we are."""
        proof: list[str] = []
        if password or user != "guest":  # every client sends the 20 bytes as a string
            assert self._greeting is not None  # it is READY
            text = scramble(password, self._greeting.salt).decode("utf-8", "surrogateescape")
            proof = [LOGIN_METHOD, text]
        body: dict[int, Value] = {int(IprotoKey.USER_NAME): user, int(IprotoKey.TUPLE): proof}
        self._ask(_State.AUTH, RequestType.AUTH, body)

    def vote(self) -> None:
        """Ask for the ballot."""
        self._ask(_State.VOTE, RequestType.VOTE)

    def join(self, instance: uuid.UUID) -> None:
        """Ask for everything, and for a place in `_cluster`."""
        body: dict[int, Value] = {int(IprotoKey.INSTANCE_UUID): str(instance)}
        self._with_final = True
        self._ask(_State.JOIN_START, RequestType.JOIN, body)

    def fetch_snapshot(self) -> None:
        """Ask for everything, without a place in `_cluster`."""
        self._with_final = False
        self._ask(_State.JOIN_START, RequestType.FETCH_SNAPSHOT)

    def subscribe(
        self,
        instance: uuid.UUID,
        replicaset: uuid.UUID,
        vclock: VClock,
        *,
        anonymous: bool = False,
        id_filter: Sequence[int] = (),
    ) -> None:
        """Ask for all rows after `vclock`, but those of the replica ids in `id_filter`."""
        body: dict[int, Value] = {
            int(IprotoKey.REPLICASET_UUID): str(replicaset),
            int(IprotoKey.INSTANCE_UUID): str(instance),
            int(IprotoKey.VCLOCK): dict(vclock.without_local()),
            int(IprotoKey.SERVER_VERSION): REPLICA_VERSION_ID,
            int(IprotoKey.REPLICA_ANON): anonymous,
        }
        if id_filter:
            body[int(IprotoKey.ID_FILTER)] = list(id_filter)
        self._ask(_State.SUBSCRIBING, RequestType.SUBSCRIBE, body)

    def acknowledge(self, vclock: VClock) -> None:
        """Tell the master that everything up to `vclock` is durable here."""
        if self._state == _State.FOLLOWING:
            self._out.put(encode_ack(vclock))


def _vclock(body: dict[int, Value]) -> VClock:
    value = body.get(IprotoKey.VCLOCK, {})
    try:
        if not isinstance(value, dict):
            raise ValueError("it is not a map")
        return VClock(value).without_local()
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"malformed vclock: {error}") from error


def _uuid(value: Value) -> uuid.UUID | None:
    if value is None:
        return None
    try:
        return uuid.UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise RemoteProtocolError(f"malformed replica set UUID {value!r}") from error
