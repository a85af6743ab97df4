"""How much of what a client sends is handled at a time, before the others have their turn.

What has come waits in the socket: a connection is given a *portion* of it, which is received and
handled, and if the portion was full nothing more is read of it until the loop has looked at all
other connections once. A portion is `limits.TURN_BYTES` at most. How much work so many bytes are
depends on what they ask for, so the time that a portion took settles how large the next one is: it
should take `limits.TURN_SECONDS` at most. Cheap bytes, such as those of large values, are therefore
handled as they come, and expensive ones in small portions.

What a small request asks for may be large. So who answers requests that have been read looks at the
`Turn`, and leaves the rest for the next one after `limits.TURN_ANSWER_BYTES` of answers, or
`limits.TURN_SECONDS`. A single request that takes longer is an iterator that stops after each
step, and of which each turn does some (`advance`; `Link.in_turns`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, Protocol

from logweir.limits import TURN_ANSWER_BYTES, TURN_BYTES, TURN_SECONDS

__all__ = ["Pace", "Receiver", "Turn", "advance", "finish"]

_FIRST_BYTES: Final = 4096
_LEAST_BYTES: Final = 256
_SCRATCH_BYTES: Final = 256 * 1024


class _Scratch(threading.local):
    """Where the connections of one thread receive; each takes out what came before the next one
    does."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(_SCRATCH_BYTES))


_scratch: Final = _Scratch()


class Pace:
    """The portions of one connection. `portion_bytes`: of the next one."""

    __slots__ = ("portion_bytes",)

    def __init__(self) -> None:
        self.portion_bytes = _FIRST_BYTES

    def took(self, count: int, seconds: float) -> None:
        """A portion of `count` bytes took so long; of fewer than 256 that settles nothing."""
        if seconds > TURN_SECONDS:
            fitting = int(count * TURN_SECONDS / seconds)
            self.portion_bytes = max(min(fitting, self.portion_bytes), _LEAST_BYTES)
        elif count >= self.portion_bytes and 2 * seconds < TURN_SECONDS:
            self.portion_bytes = min(2 * self.portion_bytes, TURN_BYTES)


class Receiving(Protocol):
    """What is asked of a link here."""

    def end_turn(self) -> None:
        """Read nothing more before the others have had their turn."""
        ...

    def take(
        self,
        count: int,
        what: Any,
        receive: Callable[[Any, float], Sequence[Any]] | None = None,
    ) -> None:
        """`count` bytes came: act on what `receive`, or who acts on data, makes of `what`."""
        ...

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        ...

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        ...

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        ...


class Taking(Protocol):
    """What is asked of a link that is sent something in turns."""

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        ...

    async def drained(self) -> None:
        """Let the others have their turn, and wait until more can be sent."""
        ...


class Receiver(asyncio.BufferedProtocol):
    """Receives for a link, in portions. `room`, `received`: of a session that says where to
    receive."""

    def __init__(
        self,
        link: Receiving,
        room: Callable[[], memoryview] | None = None,
        received: Callable[[int, float], Sequence[Any]] | None = None,
    ) -> None:
        self._link = link
        self._scratch = _scratch.room
        self._room = room
        self._received = received
        self._pace = pace = Pace()
        self._size = pace.portion_bytes  # of the portion that was asked for
        self._portion = self._scratch[: self._size]
        self.pause_writing = link.pause_writing  # type: ignore[method-assign]
        self.resume_writing = link.resume_writing  # type: ignore[method-assign]
        self.eof_received = link.eof_received  # type: ignore[method-assign]
        self.connection_lost = link.connection_lost  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._room is None:
            return self._portion
        room = self._room()
        self._size = min(len(room), self._pace.portion_bytes)
        return room[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        link = self._link
        if nbytes >= self._size:
            link.end_turn()  # there may be more
        is_timed = nbytes >= _LEAST_BYTES
        began = time.thread_time() if is_timed else 0.0
        if self._received is None:
            link.take(nbytes, bytes(self._scratch[:nbytes]))
        else:
            link.take(nbytes, nbytes, self._received)
        if is_timed:
            pace = self._pace
            pace.took(nbytes, time.thread_time() - began)
            if self._room is None and pace.portion_bytes != self._size:
                self._portion = self._scratch[: pace.portion_bytes]
                self._size = len(self._portion)


class Turn:
    """What is answered in one turn of so many `seconds`. `answered_bytes`: of answers that there
    were before it.

    It is measured as the others feel it, by the time that passes: the clock of the thread would be
    a system call for each request.
    """

    __slots__ = ("_bytes_end", "_end")

    def __init__(self, answered_bytes: int = 0, seconds: float = TURN_SECONDS) -> None:
        self._bytes_end = answered_bytes + TURN_ANSWER_BYTES
        self._end = time.monotonic() + seconds

    def is_over(self, answered_bytes: int) -> bool:
        """Whether the others are to have theirs. `answered_bytes`: of answers that there are."""
        return answered_bytes >= self._bytes_end or time.monotonic() >= self._end


def advance(work: Iterator[None]) -> bool:
    """Do steps of `work` for a turn. Returns whether it is done."""
    end = time.thread_time() + TURN_SECONDS
    return all(time.thread_time() < end for _ in work)


async def finish(work: Generator[None, None, None], link: Taking) -> None:
    """Do the rest of `work`, turn by turn, while `link` is open and its peer takes what it is
    sent."""
    is_done = False
    with contextlib.closing(work):
        while not is_done and link.is_open:
            await link.drained()
            is_done = advance(work)
