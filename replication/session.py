"""The contract that the state machine of every protocol keeps. No I/O, no clock.

A session is fed with what came from the peer and with clock readings (seconds of any monotonic
clock, always the same one), and returns *events*: values of the protocol's own event types, in
the order in which they happened. What it wants to send it keeps until it is fetched::

    events = session.receive_data(data, now)     # or receive_eof(now), or deadline_passed(now)
    …                                            # the owner acts, calls session.answer_…(…)
    transport.write(session.data_to_send())
    timer at session.next_deadline()             # None: nothing is waited for
    if session.close_reason: close once everything is written

Rules: after `close_reason` is set, `receive_data` returns no events; errors of the peer become an
answer in the protocol's own form and a `close_reason`, never an exception; nothing in a session
grows without a limit of `logweir.limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from logweir.errors import LimitExceeded, LogweirError
from logweir.replication.portkernel import Outbox

__all__ = ["BaseSession", "InputBuffer", "Outbox", "Parting", "SendsParts", "Session"]

Event_co = TypeVar("Event_co", covariant=True)


class Parting(str):
    """A `close_reason` that is nothing out of the ordinary: one side has all that it wanted."""

    __slots__ = ()


class Session(Protocol[Event_co]):
    """One conversation with one peer; see the module's text."""

    @property
    def close_reason(self) -> str:
        """Why the connection has to be closed after what is still to be sent; "" while it lives."""

    def receive_data(self, data: bytes, now: float) -> Sequence[Event_co]:
        """Take bytes of the peer, in any portions. `now`: seconds."""

    def receive_eof(self, now: float) -> Sequence[Event_co]:
        """The peer sends nothing more."""

    def data_to_send(self) -> bytes:
        """What is to go out, which is thereby taken; b"" for nothing."""

    def next_deadline(self) -> float | None:
        """When `deadline_passed` wants to be called, in seconds of the same clock."""

    def deadline_passed(self, now: float) -> Sequence[Event_co]:
        """The time of `next_deadline` has come. Calling it early changes nothing."""


@runtime_checkable
class SendsParts(Protocol):
    """A session whose answers are large: its owner may spare joining them."""

    def parts_to_send(self) -> list[bytes | memoryview]:
        """`data_to_send` in several buffers, to be sent one after the other."""


@runtime_checkable
class ReceivesInto(Protocol[Event_co]):
    """A session whose requests are large: its owner receives them where it wants them."""

    def room(self) -> memoryview:
        """Where the next bytes are to be received, some at least; `received` is called next."""

    def received(self, count: int, now: float) -> Sequence[Event_co]:
        """`receive_data` of so many bytes in what `room` gave."""


class InputBuffer:
    """The beginning of a message whose rest has not come. `limit_bytes`: the most it keeps.

    What is kept is joined only when all that is needed is there, so that a large message which
    comes in small portions costs no repeated copying.
    """

    __slots__ = ("_needed_bytes", "_parts", "limit_bytes", "limit_name", "size_bytes")

    def __init__(self, limit_name: str, limit_bytes: int) -> None:
        self.limit_name = limit_name
        self.limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self.size_bytes = 0
        self._needed_bytes = 0

    def __len__(self) -> int:
        return self.size_bytes

    def join(self, data: bytes) -> bytes:
        """What was kept with `data` after it; b"" while less than is needed is there."""
        if not self._parts:
            return data
        self._parts.append(data)
        self.size_bytes += len(data)
        if self.size_bytes < self._needed_bytes:
            return b""
        return self.take()

    def keep(self, rest: bytes, needed_bytes: int = 0) -> None:
        """Keep `rest`. `needed_bytes`: how long it must get before it is worth a look.

        Raises `LimitExceeded` if either is over the limit.
        """
        size = max(len(rest), needed_bytes)
        if size > self.limit_bytes:
            raise LimitExceeded(self.limit_name, self.limit_bytes, size)
        self._parts = [rest] if rest else []
        self.size_bytes = len(rest)
        self._needed_bytes = needed_bytes

    def add(self, data: bytes) -> None:
        """Keep `data` after what is kept, without a look at it. Raises `LimitExceeded`."""
        if self.size_bytes + len(data) > self.limit_bytes:
            raise LimitExceeded(self.limit_name, self.limit_bytes, self.size_bytes + len(data))
        self._parts.append(data)
        self.size_bytes += len(data)

    def take(self) -> bytes:
        """What was kept, whether it is enough or not; nothing is kept any more."""
        whole = b"".join(self._parts)
        self.clear()
        return whole

    def clear(self) -> None:
        """Forget what was kept."""
        self._parts = []
        self.size_bytes = self._needed_bytes = 0


Event = TypeVar("Event")
Unit = TypeVar("Unit")


class BaseSession(Generic[Event]):
    """What the state machines have in common: an end with a reason, what waits to be sent, and one
    deadline. `peer`, `unit`: what the peer, and a message of it, are called in reasons."""

    peer: ClassVar[str] = "the client"
    unit: ClassVar[str] = "frame"

    def __init__(self) -> None:
        self.close_reason = ""
        self._out = Outbox()
        self.data_to_send = self._out.take
        self._unit_deadline: float | None = None  # when a message that has begun must be whole

    def end(self, reason: str) -> None:
        """Close the connection once everything is written; the first reason counts."""
        self.close_reason = self.close_reason or reason

    def receive_eof(self, now: float) -> Sequence[Event]:
        """See `Session`."""
        del now
        self.end(f"{self.peer} closed the connection")
        return ()

    def _take_each(
        self,
        units: Iterable[Unit],
        problem: LogweirError | None,
        take: Callable[[Unit, list[Event]], None],
    ) -> list[Event]:
        """The events that `take` makes of whole messages, until the session ends. One for which it
        raises an error of the tree is malformed, and so is what `problem` says stands after them.
        """
        events: list[Event] = []
        for each in units:
            if self.close_reason:
                break
            try:
                take(each, events)
            except LogweirError as error:
                self.end(f"malformed {self.unit}: {error}")
        if problem is not None:
            self.end(f"malformed {self.unit}: {problem}")
        return events

    def next_deadline(self) -> float | None:
        """See `Session`."""
        return self._unit_deadline

    def deadline_passed(self, now: float) -> Sequence[Event]:
        """See `Session`."""
        if self._unit_deadline is not None and now >= self._unit_deadline:
            self.end(f"{self.peer}'s {self.unit} does not go on")
        return ()
