"""One TCP connection under one session: the only place where sessions meet sockets and timers.

A `Link` is an asyncio protocol, for accepted connections (`logweir.replication.listener`) and for
those that were opened (`logweir.replication.dialer`). Every read is given whole to the session, its
events as one batch to the `Conversation`, and what the session then has to send is written in one
piece. How much is read and answered at a time, so that all connections have their turns, see
`logweir.replication.turns`.

Back-pressure: above `limits.OUTPUT_HIGH_BYTES` of unsent bytes `writable` is false, nothing more is
read from the peer, and producers wait in `drained`; at `limits.OUTPUT_LOW_BYTES` they go on. A peer
that takes nothing for `limits.OUTPUT_STALL_SECONDS` meanwhile is disconnected as a slow reader, and
one for which `limits.OUTPUT_MAX_BYTES` are unsent at once. Both are told in the log with the peer,
as is every other end; one that the peer wanted, or a `Parting`, only at the level DEBUG.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

from logweir.errors import LogweirError
from logweir.limits import (
    MEMORY_FREE_BYTES,
    OUTPUT_HIGH_BYTES,
    OUTPUT_MAX_BYTES,
    OUTPUT_STALL_SECONDS,
)
from logweir.replication.budget import Budget
from logweir.replication.logs import get_logger
from logweir.replication.portkernel import BusyPoll, Port
from logweir.replication.session import Parting, ReceivesInto, SendsParts, Session
from logweir.replication.turns import Turn, advance, finish

UNIX_PEER: Final = "unix/:"
"""With this the text of a peer at a unix socket begins."""

_log = get_logger("logweir.replication")


class Conversation(Protocol):
    """What acts on the events of one session. Made once per connection."""

    @property
    def session(self) -> Session[Any]:
        """The state machine of this connection."""

    def handle(self, events: Sequence[Any]) -> None:
        """Act on events; answers go into the session, long work into `Link.spawn`."""

    def closed(self, reason: str) -> None:
        """The connection is gone."""


@runtime_checkable
class Keeps(Protocol):
    """A conversation, or a session, that keeps beginnings of messages."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages whose rest has not come."""


class Link(Port, asyncio.BufferedProtocol):
    """One connection. `begin`: makes the conversation, once the connection stands; `budget`: in
    which what it holds is counted; `polling`: how its loop waits for what comes."""

    def __init__(
        self,
        scheme: str,
        begin: Callable[[Link], Conversation],
        *,
        on_closed: Callable[[Link], None] = lambda link: None,
        stall_seconds: float = OUTPUT_STALL_SECONDS,
        budget: Budget | None = None,
        polling: BusyPoll | None = None,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        super().__init__(loop.time, budget, polling)
        self.scheme = scheme
        self.is_known = False
        self.peer = "?"
        self.address = ""
        self.failed_logins = 0
        self.cut_bytes = 0  # of those sent, what the peer had not taken when it was cut off
        self._taken_bytes = 0  # of those sent, when that was looked at last
        self.is_quiet = False  # its end is not told in the log
        self.user = ""  # whom the connection itself names, before any login
        self._has_left = False  # the peer has said that it sends nothing more
        self._begin = begin
        self._on_closed = on_closed
        self._stall_seconds = stall_seconds
        self._high_bytes = OUTPUT_HIGH_BYTES
        self._is_squeezed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._reading_holds = 0
        self._turn_is_over = False
        self._later: Callable[[], None] | None = None
        self._beside_bytes = 0
        self._pieces: list[tuple[int, int]] = []  # not wholly taken: begin and end in `sent_bytes`
        self._tasks: set[asyncio.Task[None]] = set()
        self._deafness: tuple[float, Callable[[], None]] | None = None  # that is to begin
        self._unheard: list[bytes] | None = None  # what came meanwhile
        self.gone: asyncio.Future[str] = loop.create_future()

    # --- what conversations use -------------------------------------------------------------------

    def time(self) -> float:
        """The clock of this link's session, in seconds."""
        return self._loop.time()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet, as far as this process knows."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """The same with what it has taken of a piece that was written at once, since the transport
        lets go of that as a whole, and with what is held beside."""
        pieces = self._untaken_pieces()
        return self._beside_bytes + (self.sent_bytes - pieces[0][0] if pieces else 0)

    def hold_beside(self, size_bytes: int) -> None:
        """So many bytes are held for the peer, in all, that were not written: what it subscribes
        to, what was read for it, what it has not acknowledged."""
        grown_bytes = size_bytes - self._beside_bytes
        self._beside_bytes = size_bytes
        if grown_bytes > 0:
            self._count(grown_bytes)

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return bool(self._transport and self._transport.get_extra_info("ssl_object"))

    @property
    def reached_at(self) -> str:
        """The text of our address to which the peer has connected."""
        return peer_text(self._transport and self._transport.get_extra_info("sockname"))

    def certificate_names(self) -> list[str]:
        """The common names of the subject of the peer's certificate; none without one."""
        certificate = self._transport and self._transport.get_extra_info("peercert")
        subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
        return [value for part in subject for kind, value in part if kind == "commonName"]

    async def drained(self) -> None:
        """Let the others have their turn, and wait until `writable`, or the connection is gone."""
        await asyncio.sleep(0)
        await self._room.wait()

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes as they are, after what the session had to send; nobody changes them."""
        self.flush()
        self.send(data)

    def limit_output(self, high_bytes: int) -> None:
        """Have `writable` end at so many unsent bytes, and come back at a quarter of them."""
        self._high_bytes = high_bytes
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high_bytes, low=high_bytes // 4)

    def know(self) -> None:
        """The peer has said who it is, and that is so."""
        if self.budget is not None:
            self.budget.know(self)

    def give_up(self, reason: str) -> None:
        """See `logweir.replication.budget.Holder`."""
        self.abort(reason)

    def hold_reading(self) -> None:
        """Read nothing more from the peer until `resume_reading` was called as often as this."""
        self._reading_holds += 1
        if self._reading_holds == 1 and self._transport is not None and not self.close_reason:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """End one `hold_reading`."""
        self._reading_holds -= 1
        if self._reading_holds == 0 and self._transport is not None and not self.close_reason:
            self._transport.resume_reading()

    def deafen(self, seconds: float, heard: Callable[[], None]) -> bool:
        """Take nothing of the peer for so long, then call `heard`; at the beginning of a connection
        from its first byte on. Returns False, and does nothing, if that is so already."""
        if self._unheard is not None or self._deafness is not None:
            return False
        self._deafness = (seconds, heard)
        if self._receive is not None:
            self._begin_deafness()
        return True

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """Around what a callback does for this connection: what goes wrong in it ends the
        connection, is told in the log, and nothing else."""
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return error is not None and self._takes(error)

    def _takes(self, error: BaseException) -> bool:
        """Whether an error ends this connection, and nothing else."""
        if isinstance(error, LogweirError | OSError):
            self.close(str(error))
            return True
        if isinstance(error, Exception):
            _log.error("link.failed", scheme=self.scheme, peer=self.peer, exc_info=error)
            self.abort(f"internal error: {type(error).__name__}")
            return True
        return False

    def call_after_next_read(self, call: Callable[[], None]) -> None:
        """Call `call` as soon as the loop has looked once more for what came, and had it handled;
        `guarded`, and what the session then has to send is sent."""
        if self._turn_is_over:  # it is not looked for before the next one
            self._loop.call_soon(self.call_after_next_read, call)
        else:
            self._loop.call_soon(self._loop.call_soon, self._call, call)

    def turn(self) -> Turn:
        """What is answered from now on, see `Turn`; `go_on_later` when it is over."""
        return Turn(self.sent_bytes)

    def go_on_later(self, work: Callable[[], None]) -> None:
        """Call `work`, `guarded`, when the others have had their turn and the peer takes more; once
        however often that was asked for. Nothing is read until then."""
        if self._later is None and self.is_open:
            self._later = work
            self.hold_reading()
            self.spawn(self._go_on())

    def in_turns(self, work: Generator[None, None, None], then: Callable[[], None]) -> bool:
        """Do `work`, a request that may be long: all in this turn, if True is returned, else in
        later ones, with `then` after it; nothing is read until then."""
        if advance(work):
            return True
        self.hold_reading()
        self.spawn(self._work(work, then))
        return False

    async def _work(self, work: Generator[None, None, None], then: Callable[[], None]) -> None:
        await finish(work, self)
        self.resume_reading()
        if self.is_open:
            then()
            self.flush()

    async def _go_on(self) -> None:
        await self.drained()
        work, self._later = self._later, None
        self.resume_reading()
        if work is not None and self.is_open:
            work()
            self.flush()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the connection; it is cancelled when the connection is gone, also if
        that was before.

        An error of the tree in `logweir.errors`, or of the socket, closes the connection.
        """
        task = self._loop.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: work.close())  # it may have been cancelled unbegun
        if self.gone.done():
            task.cancel()
        return task

    def close(self, reason: str) -> None:
        """Send what is still to be sent, then close. `reason`: one sentence for the log."""
        if self.close_reason:
            return
        self.close_reason = reason or "closed"
        self._cancel_timer()
        if self._transport is not None:
            self._transport.close()
            self._watch_output()

    def abort(self, reason: str) -> None:
        """Cut the connection; what is unsent is lost."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self.cut_bytes = self.cut_bytes or self.unsent_bytes
            self._transport.abort()

    async def shut(self, reason: str, within_seconds: float = 1.0) -> None:
        """`close`, and wait until the connection is gone; cut it after `within_seconds`."""
        self.close(reason)
        _, late = await asyncio.wait((self.gone,), timeout=within_seconds)
        if late:
            self.abort(reason)
            await self.gone

    # --- what asyncio calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = peer_text(address)
        self.address = str(address[0]) if isinstance(address, tuple) else ""
        plain = transport.get_extra_info("socket")
        if plain is not None:
            _prepare(plain)
        self.limit_output(self._high_bytes)
        self.last_received = self.time()
        with self:
            self._conversation = self._begin(self)
            conversation = self._conversation
            session = self._session = conversation.session
            if self.budget is not None:
                self.is_known = bool(self.user)
                self.budget.join(self)
                each = (one for one in (conversation, session) if isinstance(one, Keeps))
                self._keeps = next(each, None)
            # To look for a method is slow: a fifth of a busy server's time when done at each flush.
            self._in_parts = session if isinstance(session, SendsParts) else None
            self._into = session if isinstance(session, ReceivesInto) else None
            self._receive = session.receive_data if self._into is None else self._into.received
            if self._deafness is not None and self._into is None:
                self._begin_deafness()
            self.flush()

    def end_turn(self) -> None:
        """Read nothing more before the others have had their turn."""
        if not self._turn_is_over:
            self._turn_is_over = True
            self.hold_reading()
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_is_over = False
        self.resume_reading()

    def _begin_deafness(self) -> None:
        assert self._deafness is not None
        seconds, heard = self._deafness
        self._unheard, receive = [], self._receive
        if self._into is None:
            self._receive = self._keep
        self.hold_reading()
        self._loop.call_later(seconds, self._end_deafness, receive, heard)

    def _keep(self, data: bytes, now: float) -> Sequence[Any]:
        del now
        if self._unheard is not None:
            self._unheard.append(data)
            assert self._transport is not None
            self._transport.pause_reading()  # uvloop forgets it when asked in `connection_made`
        return ()

    def _end_deafness(
        self, receive: Callable[[bytes, float], Sequence[Any]] | None, heard: Callable[[], None]
    ) -> None:
        unheard, self._unheard, self._deafness = self._unheard, None, None
        heard()
        if self._transport is None:
            return
        self._receive = receive
        self.resume_reading()
        if unheard:
            data = b"".join(unheard)
            self.received_bytes -= len(data)
            self.take(len(data), data)

    def eof_received(self) -> bool:
        session, conversation = self._session, self._conversation
        if session is not None and conversation is not None and not self.close_reason:
            self._has_left = True
            with self:
                if events := session.receive_eof(self.time()):
                    conversation.handle(events)
                self.flush()
        return False

    def pause_writing(self) -> None:
        self._has_room = False
        self._room.clear()
        self.hold_reading()
        self._watch_output()

    def resume_writing(self) -> None:
        if not self._has_room:
            self._has_room = True
            self._room.set()
            if self._stall_timer is not None:
                self._stall_timer.cancel()
                self._stall_timer = None
            if self._is_squeezed:
                self._is_squeezed = False
                self.limit_output(self._high_bytes)
            self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # Who leaves without reading all that was sent to it resets the connection.
        has_cut = not self.close_reason and (exc is None or isinstance(exc, ConnectionError))
        has_left = self._has_left or has_cut
        reason = self.close_reason or (
            f"connection broke: {exc}" if exc is not None else "the peer closed the connection"
        )
        self.close_reason = reason
        if exc is not None and self._pieces:  # the transport has let go of what was unsent
            self.cut_bytes = self.cut_bytes or self.sent_bytes - self._taken_bytes
        self._cancel_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._transport = None
        self._has_room = True
        self._room.set()
        for task in tuple(self._tasks):
            task.cancel()
        if not self.is_quiet:
            tell = _log.debug if has_left or isinstance(reason, Parting) else _log.info
            tell("link.closed", scheme=self.scheme, peer=self.peer, reason=reason)
        if self._conversation is not None:
            self._conversation.closed(reason)
        self._conversation = self._session = self._in_parts = None
        self._into = self._receive = self._keeps = self._later = None
        if self.budget is not None:
            self.budget.leave(self)
        self._on_closed(self)
        if not self.gone.done():
            self.gone.set_result(reason)

    # --- inside -----------------------------------------------------------------------------------

    def _keep_back(self, size_bytes: int, unsent: int) -> None:
        end, pieces = self.sent_bytes, self._untaken_pieces()
        begin = end - size_bytes
        if pieces and end - pieces[-1][0] < MEMORY_FREE_BYTES:
            begin = pieces.pop()[0]  # many small ones are looked at as one
        pieces.append((begin, end))
        if unsent > OUTPUT_MAX_BYTES:
            self.abort(f"slow reader: {unsent} bytes are unsent")
        else:
            self._count(size_bytes)

    def _count(self, size_bytes: int) -> None:
        """So many more bytes are held."""
        budget, transport = self.budget, self._transport
        if budget is None or not budget.wrote(self, size_bytes, self._loop.time()):
            return
        if not self._is_squeezed and self.is_open and transport is not None:
            self._is_squeezed = True
            transport.set_write_buffer_limits(MEMORY_FREE_BYTES, MEMORY_FREE_BYTES // 4)

    def _untaken_pieces(self) -> list[tuple[int, int]]:
        taken, pieces = self.sent_bytes - self.unsent_bytes, self._pieces
        self._taken_bytes = taken
        while pieces and pieces[0][1] <= taken:
            del pieces[0]
        return pieces

    def _watch_output(self) -> None:
        if self._stall_timer is None and self._transport is not None:
            self._stall_timer = self._loop.call_later(
                self._stall_seconds, self._check_stall, self.unsent_bytes + 1, self.sent_bytes
            )

    def _check_stall(self, unsent_before: int, sent_before: int) -> None:
        self._stall_timer = None
        if self._transport is None:
            return
        taken = unsent_before + (self.sent_bytes - sent_before) - self.unsent_bytes
        if taken <= 1:
            self.abort(
                f"slow reader: it took nothing of {self.unsent_bytes} bytes in "
                f"{self._stall_seconds:g} seconds"
            )
        else:
            self._watch_output()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer_at <= deadline:
                return  # it rings early, and is set anew then
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._ring)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        session, conversation = self._session, self._conversation
        if session is None or conversation is None or self.close_reason:
            return
        with self:
            if events := session.deadline_passed(self.time()):
                conversation.handle(events)
            self.flush()

    def _call(self, call: Callable[[], None]) -> None:
        with self:
            call()
            self.flush()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        with self:
            await work


def peer_text(address: object) -> str:
    """The address of one end of a connection, with the port, for the log."""
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return f"{UNIX_PEER}{address or ''}"


def _prepare(plain: socket.socket) -> None:
    """Small answers go out at once; a peer that vanished is noticed after about two minutes."""
    with contextlib.suppress(OSError, AttributeError):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
