# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""What every read of a connection passes, and every answer: a link's side towards its socket.

A busy server spends more of its time between the socket and the request than on the request
itself, so this much of `logweir.replication.link`, and what a session has to send, is compiled; how
much is read at a time says `logweir.replication.turns`. This file is plain Python and runs as it
is; Cython compiles the same file with the types that stand in `portkernel.pxd`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from logweir.limits import MEMORY_FREE_BYTES, TURN_ANSWER_BYTES, TURN_BYTES, TURN_SECONDS

if TYPE_CHECKING:
    import asyncio

    from logweir.replication.budget import Budget, Holder

LOOK_SECONDS = 0.00001
"""So long is looked at a time: timers and calls that wait in the loop are late by no more."""

_FIRST_BYTES = 4096
_LEAST_BYTES = 256
_SCRATCH_BYTES = 256 * 1024
_JOINED_BYTES = 64 * 1024  # less than this is joined: one buffer costs less than many
_TRUST_MOST = 4  # of busy polling: so many waits in vain end it, and
_TRIED_EVERY = 16  # then it is tried once in so many answers
_BUSY_TIMES = 4  # what comes more often than that at a time keeps the loop awake by itself


class Outbox:
    """Bytes that wait to be sent."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self.size_bytes = 0
        self.is_held = False
        """Nothing is taken meanwhile, all in one piece."""

    def put(self, data: bytes | memoryview) -> None:
        """Add `data` after what waits; it must not change until it was taken."""
        self._parts.append(data)
        self.size_bytes += len(data)

    def put_all(self, parts: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """`put` of each of several, of so many bytes together."""
        self._parts += parts
        self.size_bytes += size_bytes

    def take(self) -> bytes:
        """All that waits, in one piece."""
        parts = self._parts
        if not parts or self.is_held:
            return b""
        self._parts, self.size_bytes = [], 0
        first = parts[0]
        return first if len(parts) == 1 and isinstance(first, bytes) else b"".join(parts)

    def take_parts(self) -> list[bytes | memoryview]:
        """All that waits, as it was put."""
        parts, self._parts = self._parts, []
        self.size_bytes = 0
        return parts


class Counted:
    """What is counted with each request: plain numbers of one thread, which cost a tenth of those
    of the library. `answered`: by scheme, well and with an error; `commits`: by their seconds, as
    `bounds` divides them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.answered: dict[str, list[int]] = {}
        self.commits = [0] * (len(bounds) + 1)
        self.commit_seconds = 0.0
        self._bounds = bounds

    def answer(self, scheme: str, done: int, failed: int) -> None:
        """See `logweir.replication.metrics.Metrics`."""
        counts = self.answered.get(scheme)
        if counts is None:
            counts = self.answered[scheme] = [0, 0]
        counts[0] += done
        counts[1] += failed

    def commit(self, seconds: float) -> None:
        """See `logweir.replication.metrics.Metrics`."""
        self.commits[bisect_left(self._bounds, seconds)] += 1
        self.commit_seconds += seconds


class _Scratch(threading.local):
    """Where the connections of one thread receive; each takes out what came before the next one
    does."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(_SCRATCH_BYTES))


_scratch = _Scratch()


class Pace:
    """The portions of one connection. `portion_bytes`: of the next one."""

    def __init__(self) -> None:
        self.portion_bytes = _FIRST_BYTES

    def took(self, count: int, seconds: float) -> None:
        """A portion of `count` bytes took so long; of fewer than 256 that settles nothing."""
        if seconds > TURN_SECONDS:
            fitting = int(count * TURN_SECONDS / seconds)
            self.portion_bytes = max(min(fitting, self.portion_bytes), _LEAST_BYTES)
        elif count >= self.portion_bytes and 2 * seconds < TURN_SECONDS:
            self.portion_bytes = min(2 * self.portion_bytes, TURN_BYTES)


class Turn:
    """What is answered in one turn of so many `seconds`. `answered_bytes`: of answers that there
    were before it.

    It is measured as the others feel it, by the time that passes: the clock of the thread would be
    a system call for each request.
    """

    def __init__(self, answered_bytes: int = 0, seconds: float = TURN_SECONDS) -> None:
        self._bytes_end = answered_bytes + TURN_ANSWER_BYTES
        self._end = time.monotonic() + seconds

    def is_over(self, answered_bytes: int) -> bool:
        """Whether the others are to have theirs. `answered_bytes`: of answers that there are."""
        return answered_bytes >= self._bytes_end or time.monotonic() >= self._end


class Unanswered:
    """What a peer has sent and waits for its turn. `limit_bytes`: above so much, or above what the
    budget has left, the peer is not read; `told`: called with True when that begins, with False
    when it ends."""

    def __init__(
        self, link: Holder, limit_bytes: int, told: Callable[[bool], None] = lambda held: None
    ) -> None:
        self._link = link
        self._budget = link.budget
        self._told = told
        self.limit_bytes = limit_bytes
        self._free_bytes = min(limit_bytes, MEMORY_FREE_BYTES)
        self.size_bytes = 0
        self.is_holding = False
        link.gone.add_done_callback(self._forget)

    def add(self, size_bytes: int) -> None:
        """So much more waits; less, if it is below 0: so much was done."""
        self.size_bytes = waiting_bytes = self.size_bytes + size_bytes
        budget = self._budget
        if budget is not None:
            budget.requests_bytes += size_bytes
        if waiting_bytes > self._free_bytes or self.is_holding:  # else there is as much
            self._look()

    def set(self, size_bytes: int) -> None:
        """So much waits in all."""
        self.add(size_bytes - self.size_bytes)

    def _look(self) -> None:
        size_bytes, limit_bytes = self.size_bytes, self.limit_bytes
        if self._budget is not None:
            limit_bytes = min(limit_bytes, self._budget.left_bytes)
        if self.is_holding:
            if size_bytes <= limit_bytes // 2:
                self.is_holding = False
                self._link.resume_reading()
                self._told(False)
        elif size_bytes > limit_bytes:
            self.is_holding = True
            self._told(True)
            self._link.hold_reading()

    def _forget(self, gone: asyncio.Future[str]) -> None:
        """The connection has ended: nothing of it waits, and who is told, who has us, is let go:
        what it holds is free at once."""
        del gone
        self._told = lambda held: None
        self.set(0)
        self._budget = None


class BusyPoll:
    """Waiting for what comes next without sleeping, for one event loop.

    A processor that has slept is slow at first: its caches are empty, and to be woken takes some
    50 us. A client that sends its next request when it has the answer to the last one lets the
    server sleep each time. So the loop, when it has answered, looks for `seconds` whether more has
    come. Where that was in vain it is left off, but for a try now and then: a server whose clients
    take their time sleeps as before, and one to whom many talk at a time finds more of them when it
    comes back. `look(seconds)`: looks for at most so long, without the interpreter's lock, and
    returns when something is there; `call_soon`: of the loop.
    """

    def __init__(
        self,
        seconds: float,
        look: Callable[[float], object],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.seconds = seconds
        self._look = look
        self._call_soon = call_soon
        self._until = 0.0
        self._trust = 1
        self._untried = 0
        self._is_looking = False
        self._heard = 0  # since it was looked last
        self._is_owed = False
        self._left = 0.0

    def heard(self) -> None:
        """Something has come."""
        self._is_owed = True
        if self._is_looking:
            self._heard += 1
            if self._heard == 1 and self._trust < _TRUST_MOST:
                self._trust += 1

    def answered(self) -> None:
        """Something was sent, and what comes next may be its answer. Where nothing has come since
        the last time it is not looked for longer: else a stream that nobody answers would never
        let the loop sleep."""
        is_owed, self._is_owed = self._is_owed, False
        if not self._is_looking:
            if self._trust == 0:
                self._untried += 1
                if self._untried < _TRIED_EVERY:
                    return
            self._untried = 0
            self._is_looking = True
            self._call_soon(self._go_on)
        elif not is_owed:
            return
        self._until = time.monotonic() + self.seconds

    def _go_on(self) -> None:
        now = time.monotonic()
        heard, self._heard = self._heard, 0
        if heard > _BUSY_TIMES:
            self._is_looking = False
            return
        if heard:  # that is handled first
            self._until = now + self.seconds
        elif now >= self._until:
            self._is_looking = False
            if self._trust:
                self._trust -= 1
            return
        elif now - self._left < LOOK_SECONDS:  # else the loop has other things to do
            self._look(min(self._until - now, LOOK_SECONDS))
        self._left = time.monotonic()
        self._call_soon(self._go_on)


class Port:
    """See the module's text. `clock`: of the session; `budget`: in which what it holds is counted;
    `polling`: how its loop waits.

    A link sets what its attributes are about, once the connection stands, and takes it away when
    that is gone.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        budget: Budget | None,
        polling: BusyPoll | None = None,
    ) -> None:
        self.budget = budget
        self._polling = polling
        self.close_reason = ""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.last_received = 0.0
        self.kept_bytes = 0
        self._clock = clock
        self._has_room = True
        self._transport: asyncio.Transport | None = None
        self._conversation: Any = None
        self._session: Any = None
        self._receive: Callable[[Any, float], Sequence[Any]] | None = None
        self._into: Any = None  # the session, if it says where to receive
        self._in_parts: Any = None  # the session, if its answers are large
        self._keeps: Any = None  # what keeps beginnings of messages
        self._pace = Pace()
        self._scratch = _scratch.room
        self._size = self._pace.portion_bytes  # of the portion that was asked for
        self._portion = self._scratch[: self._size]

    @property
    def writable(self) -> bool:
        """Whether more may be produced for this peer now."""
        return self._has_room and not self.close_reason

    @property
    def is_open(self) -> bool:
        """Whether the connection stands and is not being closed."""
        return self._transport is not None and not self.close_reason

    def attempt(self, call: Callable[..., object], *given: Any) -> None:
        """Call `call`; what goes wrong in it ends the connection, is told in the log, and nothing
        else."""
        try:
            call(*given)
        except BaseException as error:
            if not self._takes(error):
                raise

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        if self._into is None:
            return self._portion
        room: memoryview = self._into.room()
        self._size = min(len(room), self._pace.portion_bytes)
        return room[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if nbytes >= self._size:
            self.end_turn()  # there may be more
        is_timed = nbytes >= _LEAST_BYTES
        began = time.thread_time() if is_timed else 0.0
        if self._into is None:
            self.take(nbytes, self._portion[:nbytes].tobytes())
        else:
            self.take(nbytes, nbytes)
        if is_timed:
            pace = self._pace
            pace.took(nbytes, time.thread_time() - began)
            if self._into is None and pace.portion_bytes != self._size:
                self._portion = self._scratch[: pace.portion_bytes]
                self._size = len(self._portion)

    def take(self, count: int, what: Any) -> None:
        """`count` bytes came: act on the events that the session makes of them, or of their number
        if it knows where they are."""
        conversation, receive = self._conversation, self._receive
        if conversation is None or receive is None or self.close_reason:
            return
        polling = self._polling
        if polling is not None:
            polling.heard()
        self.received_bytes += count
        self.last_received = now = self._clock()
        try:
            events = receive(what, now)
            if events:
                conversation.handle(events)
            self.flush()
            keeps = self._keeps
            if keeps is not None:
                kept_bytes = keeps.kept_bytes
                if kept_bytes != self.kept_bytes:
                    assert self.budget is not None
                    self.budget.keep(self, kept_bytes)  # type: ignore[arg-type]
        except BaseException as error:  # as `guarded` does, which costs two calls
            if not self._takes(error):
                raise

    def flush(self) -> None:
        """Send what the session has to send, set its timer, close if it wants that."""
        session = self._session
        if session is None or self._transport is None:
            return
        if self._in_parts is not None:
            self._send_parts(self._in_parts.parts_to_send())
        else:
            data = session.data_to_send()
            if data:
                self.send(data)
        reason = session.close_reason
        if reason:
            self.close(reason)
        else:
            deadline = session.next_deadline()
            if deadline is not None:
                self._set_timer(deadline)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as they are, if the session has nothing to send; nobody changes them."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        self._sent(transport, len(data))

    def _send_parts(self, parts: list[bytes | memoryview]) -> None:
        size = 0
        for part in parts:
            size += len(part)
        if size < _JOINED_BYTES:
            if size:
                self.send(b"".join(parts))
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.writelines(parts)
        self._sent(transport, size)

    def _sent(self, transport: asyncio.Transport, size: int) -> None:
        self.sent_bytes += size
        polling = self._polling
        if polling is not None:
            polling.answered()
        unsent = transport.get_write_buffer_size()
        if unsent:
            self._keep_back(size, unsent)

    # --- what a link adds -------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Send what is still to be sent, then close. `reason`: one sentence for the log."""
        raise NotImplementedError

    def end_turn(self) -> None:
        """Read nothing more before the others have had their turn."""
        raise NotImplementedError

    def _takes(self, error: BaseException) -> bool:
        """Whether an error ends this connection, and nothing else."""
        raise NotImplementedError

    def _set_timer(self, deadline: float) -> None:
        """The session's deadline."""
        raise NotImplementedError

    def _keep_back(self, size_bytes: int, unsent: int) -> None:
        """So many bytes were written, and so many wait in all."""
        raise NotImplementedError
