"""A network under a `Scheduler`: connections of event loops, whose bytes a seed delays and cuts.

`SimNetwork.join` gives a program its `Host`, which its `ScheduledLoop` is made with; what the loop
then listens on and connects to is simulated. Bytes of one connection come in their order, in pieces
of any size, each a while after it was sent; other connections may overtake it. A sender whose peer
does not read is stopped, as by TCP.

* `cut` and `heal`: nothing passes between two places; what was sent meanwhile comes later, as it
  does when it is sent again.
* `bar`: from one place no connections to another can be made, until `heal`; those that are stay.
* `Host.sever`: a connection of which neither side hears anything any more, also not its end. Both
  are told after `KEEPALIVE_SECONDS`, as by probes of TCP; who has sent something meanwhile, which
  is sent again and again, only after `RETRIES_SECONDS`.
* `Host.stop`: the process ends, and its peers are told so; or the power goes and they are not: who
  still sends something to it is told once the place has joined again.

Names and addresses are not known: a port is enough, of whatever host.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from logweir.testing.loop import ScheduledLoop
    from logweir.testing.scheduler import Scheduler

KEEPALIVE_SECONDS: Final = 120.0
RETRIES_SECONDS: Final = 924.0
_WINDOW_BYTES: Final = 32 * 1024
"""So much of a connection is on its way, or waits to be read."""
_HIGH_BYTES: Final = 64 * 1024
_RESOLUTION: Final = 1e-9
"""Seconds, as of an event loop's timers: differences are added to moments."""
_DELAYS: Final = (0.0, 0.0001, 0.001, 0.02, 0.3)
"""Seconds that a piece takes at most; each connection has one of them."""

Call = Callable[[], object]


class SimNetwork:
    """See the module. `seed`: decides all delays and sizes."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self.listening: dict[int, Listening] = {}
        self._cut: dict[frozenset[str], list[tuple[Host, float, Call]]] = {}
        self._barred: set[tuple[str, str]] = set()
        self._unheard: dict[str, list[End]] = {}
        self._number = 0

    def join(self, place: str) -> Host:
        """A program begins there. `place`: where its machine is, for `cut`."""
        host = Host(self, place)
        for end in self._unheard.pop(place, ()):
            end.refuse()
        return host

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two places, until `heal`."""
        self._cut.setdefault(frozenset((one, other)), [])

    def bar(self, one: str, other: str) -> None:
        """Who is at `one` gets no answer when he connects to `other`, until `heal`."""
        self._barred.add((one, other))

    def bars(self, one: str, other: str) -> bool:
        """Whether that is so."""
        return (one, other) in self._barred

    def heal(self) -> None:
        """Everything passes everywhere."""
        self._barred.clear()
        held, self._cut = self._cut, {}
        for waiting in held.values():
            for host, moment, call in waiting:  # behind what was on its way before the cut
                host.put(max(moment, self.scheduler.seconds), call)

    def send(self, sender: Host, receiver: Host, moment: float, call: Call) -> None:
        """Have `call` made in the receiver's loop at that moment, or behind `heal`."""
        waiting = self._cut.get(frozenset((sender.place, receiver.place)))
        if waiting is not None:
            waiting.append((receiver, moment, call))
        else:
            receiver.put(moment, call)

    def lost(self, end: End, receiver: Host) -> None:
        """Something was sent to a program that is no more."""
        if receiver.is_dark:
            self._unheard.setdefault(receiver.place, []).append(end)
        else:
            end.refuse()

    def number(self) -> int:
        """The next one."""
        self._number += 1
        return self._number


class Host:
    """One program on the network. `is_up`: whether it runs; `is_dark`: it has ended without a word;
    `ends`: of its connections."""

    def __init__(self, network: SimNetwork, place: str) -> None:
        self.network, self.place = network, place
        self.is_up, self.is_dark = True, False
        self.ends: list[End] = []
        self.loop: ScheduledLoop | None = None
        self._events: list[tuple[float, int, Call]] = []

    def put(self, moment: float, call: Call) -> None:
        """Something comes in at that moment."""
        if self.is_up:
            heapq.heappush(self._events, (moment, self.network.number(), call))
            if self.loop is not None:
                self.loop.expect(moment)

    @property
    def next_moment(self) -> float | None:
        """When the next thing comes in."""
        return self._events[0][0] if self._events else None

    def is_due(self) -> bool:
        """Whether something has come in."""
        now = self.network.scheduler.seconds + _RESOLUTION
        return bool(self._events) and self._events[0][0] <= now

    def due(self) -> list[Call]:
        """What has come in, in order."""
        found = []
        while self.is_due():
            found.append(heapq.heappop(self._events)[2])
        return found

    def stop(self, *, is_dark: bool) -> None:
        """The program ends here. `is_dark`: nobody is told, as when the power goes."""
        self.is_up, self.is_dark = False, is_dark
        self._events.clear()
        if not is_dark:
            for at in [at for at in self.network.listening.values() if at.host is self]:
                at.close()
        ends, self.ends = self.ends, []
        for end in ends:
            end.vanish()

    def sever(self, end: End) -> None:
        """From now on nothing passes on this connection, in either direction."""
        for one in filter(None, (end, end.peer)):
            one.is_severed = True
            one.time_out()

    # --- for its loop -----------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], port: int) -> Listening:
        """Accept at a port, 0: any that is free. Raises `OSError`."""
        listening = self.network.listening
        port = port or next(one for one in range(30_000, 60_000) if one not in listening)
        if port in listening and listening[port].host.is_up:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listening[port] = Listening(self, factory, port)
        return listening[port]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `AbstractEventLoop.create_connection`. Raises `OSError`."""
        network, loop = self.network, asyncio.get_running_loop()
        waiting: asyncio.Future[End] = loop.create_future()
        ours = End(self, port)
        at = network.listening.get(port)
        moment = ours.moment()

        def refused() -> None:
            if not waiting.done():
                error = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                waiting.set_exception(error)

        def agreed() -> None:
            if waiting.done():  # nobody waits for it any more
                ours.refuse_peer()
                return
            self.ends.append(ours)
            ours.begin(factory())
            waiting.set_result(ours)

        def asked() -> None:
            now = network.listening.get(port)
            if now is None or not now.host.is_up:
                network.send(host, self, ours.moment(), refused)
                return
            theirs = End(now.host, network.number())
            theirs.peer, ours.peer = ours, theirs
            network.send(now.host, self, theirs.moment(), agreed)
            now.host.ends.append(theirs)
            theirs.begin(now.factory())

        if at is None:
            self.put(moment, refused)
        elif not network.bars(self.place, at.host.place):  # else nobody answers
            host = at.host
            network.send(self, host, moment, asked)
        await waiting
        protocol = ours.get_protocol()
        assert protocol is not None
        return ours, protocol


class Listening:
    """A port that is listened on; as `asyncio.Server`, as far as that is needed."""

    def __init__(self, host: Host, factory: Callable[[], asyncio.BaseProtocol], port: int) -> None:
        self.host, self.factory, self.port = host, factory, port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        """As of a socket."""
        return "127.0.0.1", self.port

    async def start_serving(self) -> None:
        """It does so already."""

    def close(self) -> None:
        """Accept nothing more."""
        if self.host.network.listening.get(self.port) is self:
            del self.host.network.listening[self.port]


class End(asyncio.Transport):
    """One side of a connection. `peer`: the other one."""

    def __init__(self, host: Host, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port), "sockname": ("127.0.0.1", port)})
        self.host = host
        self.peer: End | None = None
        self.is_severed = False
        self._slowest = host.network.dice.choice(_DELAYS)
        self._last_moment = 0.0
        self._protocol: asyncio.BufferedProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_bytes = self._on_way = 0
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._is_full = self._is_closing = self._is_lost = self._is_paused = False
        self._is_finished = False
        self._came = bytearray()
        self._has_ended = self._told_end = False

    # --- what the network does --------------------------------------------------------------------

    def moment(self) -> float:
        """When what is sent now comes there: in its order."""
        network = self.host.network
        late = network.dice.random() * self._slowest
        self._last_moment = max(self._last_moment, network.scheduler.seconds + late)
        return self._last_moment

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection stands."""
        self._protocol = cast(asyncio.BufferedProtocol, protocol)
        protocol.connection_made(self)

    def refuse(self) -> None:
        """Who was sent something does not know of this connection."""
        if not self.is_severed and self.host.is_up:
            self.host.put(self.moment(), self._reset)

    def refuse_peer(self) -> None:
        """The other side is told that this one does not know of the connection."""
        self._tell(lambda peer: peer._reset())

    def vanish(self) -> None:
        """The program that had this side is gone."""
        self._is_lost = self._is_closing = True
        self._out.clear()
        if not self.host.is_dark:
            self.refuse_peer()
        elif self.peer is not None:
            self.peer.time_out()

    def time_out(self) -> None:
        """The other side answers no probes any more."""
        now = self.host.network.scheduler.seconds
        self.host.put(now + KEEPALIVE_SECONDS, self._probe)
        self.host.put(now + RETRIES_SECONDS, self._reset)

    def _probe(self) -> None:
        if not self._on_way:
            self._reset()

    def _tell(self, call: Callable[[End], object]) -> None:
        """Have something made at the other side."""
        peer = self.peer
        if peer is None or self.is_severed:
            return
        if not peer.host.is_up:
            self.host.network.lost(self, peer.host)
            return

        def arrived() -> None:
            if not peer.is_severed:
                call(peer)

        self.host.network.send(self.host, peer.host, self.moment(), arrived)

    def _arrived(self, data: bytes) -> None:
        self._came += data
        if self._is_lost:
            self.refuse_peer()
        else:
            self._read()

    def _ended(self) -> None:
        self._has_ended = True
        self._read()

    def _taken(self, count: int) -> None:
        self._on_way -= count
        self._pump()
        if self._is_full and self._out_bytes <= self._low and not self._is_lost:
            self._is_full = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def _reset(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._out.clear()
            error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            asyncio.get_running_loop().call_soon(self._lose, error)

    # --- what it does -----------------------------------------------------------------------------

    def _read(self) -> None:
        if self._is_paused or self._is_closing or self._protocol is None:
            return
        if self._came:
            room = memoryview(self._protocol.get_buffer(-1))
            count = min(len(room), len(self._came))
            room[:count] = self._came[:count]
            del self._came[:count]
            self._tell(lambda peer: peer._taken(count))
            self._protocol.buffer_updated(count)
            if self._came or self._has_ended:
                asyncio.get_running_loop().call_soon(self._read)
        elif self._has_ended and not self._told_end:
            self._told_end = True
            if not self._protocol.eof_received():
                self.close()

    def _pump(self) -> None:
        dice = self.host.network.dice
        while self._out and self._on_way < _WINDOW_BYTES and not self._is_lost:
            data = self._out.popleft()
            most = _WINDOW_BYTES - self._on_way
            size = min(len(data), most if dice.random() < 0.8 else dice.randint(1, most))
            piece, rest = data[:size], data[size:]
            if rest:
                self._out.appendleft(rest)
            self._out_bytes -= size
            self._on_way += size
            self._tell(lambda peer, piece=piece: peer._arrived(piece))  # type: ignore[misc]
        if self._is_closing and not (self._out or self._is_finished or self._is_lost):
            self._finish()

    def _finish(self) -> None:
        """All is sent: say so, and be gone."""
        self._is_finished = True
        if self._came:
            self.refuse_peer()  # who does not read what came resets
        else:
            self._tell(lambda peer: peer._ended())
        asyncio.get_running_loop().call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            if self in self.host.ends:
                self.host.ends.remove(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # --- as `asyncio.Transport` -------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        """As `BaseTransport.get_protocol`."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """As `BaseTransport.is_closing`."""
        return self._is_closing

    def close(self) -> None:
        """As `BaseTransport.close`."""
        if not self._is_closing:
            self._is_closing = True
            self._pump()

    def abort(self) -> None:
        """As `WriteTransport.abort`."""
        if not self._is_lost:
            self._is_closing = True
            self._out.clear()
            self._out_bytes = 0
            self.refuse_peer()
            asyncio.get_running_loop().call_soon(self._lose, None)

    def is_reading(self) -> bool:
        """As `ReadTransport.is_reading`."""
        return not (self._is_paused or self._is_closing)

    def pause_reading(self) -> None:
        """As `ReadTransport.pause_reading`."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """As `ReadTransport.resume_reading`."""
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As `WriteTransport.set_write_buffer_limits`."""
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """As `WriteTransport.get_write_buffer_size`."""
        return self._out_bytes

    def write(self, data: Any) -> None:
        """As `WriteTransport.write`."""
        if data and not self._is_closing:
            self._out.append(bytes(data))
            self._out_bytes += len(data)
            self._pump()
            if self._out_bytes > self._high and not self._is_full:
                self._is_full = True
                assert self._protocol is not None
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """As `WriteTransport.writelines`."""
        self.write(b"".join(list_of_data))
