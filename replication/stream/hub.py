"""Feeding followers: waking them at a commit, and reading the log once for all that are at its end.

A `Reader` begins at any position that the log still holds, and reads the files by itself until it
has caught up. From there on it shares the *windows* of the hub: what was committed since the last
look is read and scanned once, and every reader at the end is given the same blocks; the packets
made from them are shared too, by all readers that want the same rows. A reader that falls behind
the windows that are kept (`limits.HUB_WINDOWS_BYTES`) reads by itself again.

The contract of a reader: it gives exactly the rows above its position, in log order, whole
transactions, each once, and its position moves by nothing but rows that it gave and log that was
read. Who uses it cuts nothing. A position may be ahead of the log in any component: it says what
the reader wants, never where the log was read to. So the windows begin and end where the *log was
read to*, and a reader is given one only if its position covers the window's start: then nothing
above its position lies before. What of the window is not above its position is cut off.

Everything here runs in the event loop's thread, but `committed`, which may be called from any.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from logweir.errors import LogweirError, StreamGap
from logweir.limits import HUB_STEP_BYTES, HUB_WINDOWS_BYTES
from logweir.replication.logs import get_logger
from logweir.wal.follow import Follower
from logweir.wal.reader import Block, Taker
from logweir.wal.vclock import VClock

_log = get_logger("logweir.replication.hub")

_Wanted = tuple[tuple[tuple[int, int], ...], int]
_KEPT_ABOVE: Final = 4  # positions at which readers are given another window than the log's


@dataclass(slots=True)
class Window:
    """A run of the log: `blocks` hold exactly the rows after `start` up to `end`."""

    start: VClock
    end: VClock
    blocks: tuple[Block, ...]
    size_bytes: int
    _packets: dict[_Wanted, bytes] = field(default_factory=dict)
    _above: dict[VClock, Window] = field(default_factory=dict)

    def above(self, position: VClock) -> Window:
        """The window as a reader at `position` gets it; `position` covers `start`. Made once for
        all readers that are at the same one."""
        if position == self.start:
            return self
        known = self._above.get(position)
        if known is None:
            blocks, packets = self.blocks, self._packets
            read = ((i, lsn) for i, lsn in self.end.items() if lsn != self.start.lsn(i))
            if any(position.lsn(i) != self.start.lsn(i) for i, _ in read):
                lsns = array("Q", position.lsns())
                blocks = tuple(cut for one in blocks if (cut := one.above(lsns)) is not None)
                packets = {}
            known = Window(position, position.merge(self.end), blocks, self.size_bytes, packets)
            if len(self._above) == _KEPT_ABOVE:
                del self._above[next(iter(self._above))]
            self._above[position] = known
        return known

    def packets(self, upto: Mapping[int, int], sync: int = 0) -> bytes:
        """The rows as iproto packets, as `RowColumns.packets` makes them.

        `upto`: last lsn to be sent, per replica id that is not sent without end. Made once for all
        followers that ask for the same.
        """
        limits = {i: lsn for i, lsn in upto.items() if lsn < self.end.lsn(i)}
        key = (tuple(sorted(limits.items())), sync)
        known = self._packets.get(key)
        if known is None:
            known = self._packets[key] = b"".join(
                block.columns.packets(0, len(block.columns), upto=limits, sync=sync)
                for block in self.blocks
            )
        return known


class Hub:
    """The windows at the end of one log. `open_follower`: begins reading the log at a position;
    `on_gap`: called when a reader would have missed rows."""

    def __init__(
        self,
        open_follower: Callable[[VClock], Follower],
        *,
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self._open = open_follower
        self._on_gap = on_gap
        self._loop = asyncio.get_running_loop()
        self._tail: Follower | None = None
        self._tail_vclock = VClock()
        self._windows: deque[Window] = deque()
        self._first_number = 0  # of the oldest window kept
        self._kept_bytes = 0
        self._readers: set[Reader] = set()
        self._woken = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()
        self._pending = False

    @property
    def readers(self) -> int:
        """How many are open."""
        return len(self._readers)

    @property
    def next_number(self) -> int:
        """The number that the next window will have."""
        return self._first_number + len(self._windows)

    def committed(self) -> None:
        """Rows became durable. From any thread; many calls before the loop turns count as one."""
        if not self._pending and self._readers:
            self._pending = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody follows
                self._loop.call_soon_threadsafe(self._wake)

    def reader(self, after: VClock, *, step_bytes: int = HUB_STEP_BYTES) -> Reader:
        """Begin to read above `after`. Raises `PositionUnavailable` at its first `take`.

        `step_bytes`: how much it takes at once, about, while it reads by itself.
        """
        made = Reader(self, self._open(after), after, step_bytes)
        self._readers.add(made)
        return made

    def listen(self, call: Callable[[], None]) -> None:
        """Have `call` called at each commit for which somebody reads, in the loop's thread."""
        self._listeners.add(call)

    def close(self) -> None:
        """Close every reader."""
        for reader in tuple(self._readers):
            reader.close()

    # --- for readers ------------------------------------------------------------------------------

    def follow(self, after: VClock) -> Follower:
        """Begin to read the files after `after`."""
        return self._open(after)

    def adopt(self, follower: Follower, at: VClock) -> int | None:
        """A reader at `at` has read all with `follower`: the number of the window that it needs
        next. `follower` is taken over then. None: it has to read more by itself."""
        if self._tail is None:
            if follower.file is None:
                return None  # nothing was read: there is no place to begin at
            self._tail = follower
            self._tail_vclock = follower.share()
            return self.next_number
        if not at.covers(self._tail_vclock):
            return None
        follower.close()
        return self.next_number

    def window(self, number: int) -> Window | None:
        """The window of that number, None if not there yet. Raises `LookupError` if dropped."""
        if self._first_number <= number == self.next_number:
            try:
                self._advance()
            except LogweirError:
                self._drop_tail()  # each reader reads by itself, and is told what concerns it
        place = number - self._first_number
        if place < 0:
            raise LookupError(number)
        return self._windows[place] if place < len(self._windows) else None

    def wait(self) -> Coroutine[Any, Any, object]:
        """Until the next commit after this call, whenever it is awaited.

        It is bound to the present here: a task that begins to wait later must not miss a commit
        that was made in between.
        """
        return self._woken.wait()

    def report_gap(self, position: VClock, found: VClock) -> None:
        """A reader at `position` was to be given what comes after `found`."""
        _log.error("stream.gap", position=str(position), found=str(found))
        self._on_gap()

    def forget(self, reader: Reader) -> None:
        """A reader is closed."""
        self._readers.discard(reader)
        if not self._readers:
            self._drop_tail()

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
            self._first_number = self.next_number + 1
            self._windows.clear()
            self._kept_bytes = 0

    def _wake(self) -> None:
        self._pending = False
        self._woken.set()
        self._woken = asyncio.Event()
        for call in self._listeners:
            call()

    def _advance(self) -> None:
        assert self._tail is not None
        blocks: list[Block] = []
        size = 0
        for block in self._tail.poll():
            blocks.append(block)
            size += len(block.data)
            if size >= HUB_STEP_BYTES:
                self._keep(self._tail.vclock, blocks, size)
                blocks, size = [], 0
        if blocks:
            self._keep(self._tail.vclock, blocks, size)

    def _keep(self, end: VClock, blocks: list[Block], size: int) -> None:
        self._windows.append(Window(self._tail_vclock, end, tuple(blocks), size))
        self._tail_vclock = end
        self._kept_bytes += size
        while self._kept_bytes > HUB_WINDOWS_BYTES and len(self._windows) > 1:
            self._kept_bytes -= self._windows.popleft().size_bytes
            self._first_number += 1


class Reader:
    """One follower's place in the log; the module tells the contract. `vclock`: its position,
    everything up to it was taken, or is not wanted."""

    def __init__(self, hub: Hub, follower: Follower, after: VClock, step_bytes: int) -> None:
        self.vclock = after
        self._step_bytes = step_bytes
        self._hub = hub
        self._follower: Follower | None = follower
        self._blocks: Iterator[Block] | None = None
        self._skipped = False  # `_blocks` holds one that the follower has passed
        self._number: int | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether it shares the windows at the end of the log."""
        return self._number is not None

    def take(self) -> Window | None:
        """What comes next, at most about `limits.HUB_STEP_BYTES`, maybe no rows; None at the end.

        Raises `PositionUnavailable`, `CorruptBlock`, `ChainGap`, `StreamGap`.
        """
        if self._number is not None:
            try:
                window = self._hub.window(self._number)
            except LookupError:
                self._number = None
            else:
                if window is None:
                    return None
                self._check(window)
                window = window.above(self.vclock)
                self._number += 1
                self.vclock = window.end
                return window
        return self._take_alone()

    def _check(self, window: Window) -> None:
        """The next lsn of each replica must be the smallest above the position that the log holds:
        so the position must cover what was read before the window, whatever lsns the log has."""
        if not self.vclock.covers(window.start):
            self._hub.report_gap(self.vclock, window.start)
            raise StreamGap(self.vclock, window.start)

    @property
    def is_ahead(self) -> bool:
        """Whether it reads by itself, and `pack` may find something."""
        return self._follower is not None and not self._skipped and self._follower.is_ahead

    def pack(self, taker: Taker) -> bool:
        """Give `taker` the rows that come next instead of taking them as a window, about as much.

        False, and nothing given, if they have to be taken.
        """
        if not self.is_ahead or self._follower is None:
            return False
        if not self._follower.pack(taker, self._step_bytes):
            return False
        self._blocks = None
        self.vclock = self._follower.vclock
        return True

    def skip(self) -> None:
        """Pass over what the follower has already, which may take long; in any thread, before the
        first `take`."""
        follower = self._follower
        assert follower is not None
        blocks = follower.poll()
        first = next(blocks, None)
        if first is not None:
            self._blocks = chain((first,), blocks)
            self._skipped = True

    async def skip_in_background(self) -> None:
        """`skip` in a thread, which ends soon if the task is cancelled; then it is closed."""
        work = asyncio.ensure_future(asyncio.to_thread(self.skip))

        def close(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # nobody asks for it any more
            self.close()

        try:
            await asyncio.shield(work)
        except BaseException:
            if self._follower is not None:
                self._follower.is_given_up = True
            work.add_done_callback(close)
            raise

    async def next(self) -> Window:
        """`take`, once there is something."""
        while (window := self.take()) is None:
            await self.wait()
        return window

    def wait(self) -> Coroutine[Any, Any, object]:
        """Until there may be more than at this call, whenever it is awaited."""
        return self._hub.wait()

    def close(self) -> None:
        """Give up the place."""
        self.park()
        self._hub.forget(self)

    def park(self) -> None:
        """Give back the file that is read, until the next `take`."""
        if self._follower is not None:
            self._blocks = None
            self._skipped = False
            self._follower.close()
            self._follower = None

    def _take_alone(self) -> Window | None:
        if self._follower is None:
            self._follower = self._hub.follow(self.vclock)
        window = self._read(self._follower) or self._read(self._follower)
        if window is None:
            self._number = self._hub.adopt(self._follower, self.vclock)
            if self._number is not None:
                self._follower = None
                return self.take()
        return window

    def _read(self, follower: Follower) -> Window | None:
        """What was there when `poll` was begun, at most about a step of it. None if that is
        used up, and the next call looks again."""
        blocks: list[Block] = []
        size = 0
        ahead, self._blocks = self._blocks or follower.poll(), None
        self._skipped = False
        try:
            for block in ahead:
                blocks.append(block)
                size += len(block.data)
                if size >= self._step_bytes:
                    self._blocks = ahead
                    break
        except LogweirError:
            if not blocks:
                raise  # else it is told at the next call, which finds the same
        if not blocks:
            return None
        start, self.vclock = self.vclock, follower.vclock
        return Window(start, self.vclock, tuple(blocks), size)
