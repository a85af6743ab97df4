"""Feeding followers: waking them at a commit, and reading the log once for all that are at its end.

A `Reader` begins at any position that the log still holds, and reads the files by itself until it
has caught up. From there on it shares the *windows* of the hub: what was committed since the last
look is read and scanned once, and every reader at the end is given the same blocks; the packets
made from them are shared too, by all readers that want the same rows. A reader that falls behind
the windows that are kept (`limits.HUB_WINDOWS_BYTES`) reads by itself again.

Everything here runs in the event loop's thread, but `committed`, which may be called from any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from logweir.limits import HUB_STEP_BYTES, HUB_WINDOWS_BYTES
from logweir.wal.follow import Follower
from logweir.wal.reader import Block, Taker
from logweir.wal.vclock import VClock

__all__ = ["Hub", "Reader", "Window"]

_Wanted = tuple[tuple[tuple[int, int], ...], int]


@dataclass(slots=True)
class Window:
    """A run of the log: `blocks` hold all rows after `start` up to `end`, maybe older ones too."""

    start: VClock
    end: VClock
    blocks: tuple[Block, ...]
    size_bytes: int
    _packets: dict[_Wanted, bytes] = field(default_factory=dict)

    def packets(self, after: VClock, upto: Mapping[int, int], sync: int = 0) -> bytes:
        """The rows as iproto packets, as `RowColumns.packets` makes them.

        `after`: what the follower has; `upto`: last lsn to be sent, per replica id that is not sent
        without end. Made once for all followers that ask for the same.
        """
        limits = {i: lsn for i, lsn in upto.items() if lsn < self.end.lsn(i)}
        key = (tuple(sorted(limits.items())), sync)
        shared = all(after.lsn(i) == self.start.lsn(i) for i in self.end if i)
        if shared and (known := self._packets.get(key)) is not None:
            return known
        made = b"".join(
            block.columns.packets(0, len(block.columns), after=after, upto=limits, sync=sync)
            for block in self.blocks
        )
        if shared:
            self._packets[key] = made
        return made


class Hub:
    """The windows at the end of one log. `open_follower`: begins reading the log at a position."""

    def __init__(self, open_follower: Callable[[VClock], Follower]) -> None:
        self._open = open_follower
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
        """Begin to read behind `after`. Raises `PositionUnavailable` at its first `take`.

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
        """Begin to read the files behind `after`."""
        return self._open(after)

    def adopt(self, follower: Follower, at: VClock) -> int:
        """`follower` has read all up to `at`: the number of the window that it needs next."""
        if self._tail is None:
            self._tail = follower
            self._tail_vclock = at
            return self.next_number
        if self._tail is not follower:
            follower.close()
        for number, window in enumerate(self._windows, self._first_number):
            if not at.covers(window.end):
                return number
        return self.next_number

    def window(self, number: int) -> Window | None:
        """The window of that number, None if not there yet. Raises `LookupError` if dropped."""
        if number < self._first_number:
            raise LookupError(number)
        if number >= self.next_number:
            self._advance()
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

    def forget(self, reader: Reader) -> None:
        """A reader is closed."""
        self._readers.discard(reader)
        if not self._readers and self._tail is not None:
            self._tail.close()
            self._tail = None
            self._first_number = self.next_number
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
        start = self._tail_vclock
        size = 0
        for block in self._tail.poll():
            blocks.append(block)
            size += len(block.data)
            if size >= HUB_STEP_BYTES:
                start = self._keep(start, blocks, size)
                blocks, size = [], 0
        self._keep(start, blocks, size)

    def _keep(self, start: VClock, blocks: list[Block], size: int) -> VClock:
        if not blocks:
            return start
        end = _end(start, blocks)
        self._windows.append(Window(start, end, tuple(blocks), size))
        self._tail_vclock = end
        self._kept_bytes += size
        while self._kept_bytes > HUB_WINDOWS_BYTES and len(self._windows) > 1:
            self._kept_bytes -= self._windows.popleft().size_bytes
            self._first_number += 1
        return end


class Reader:
    """One follower's place in the log. `vclock`: everything up to it was taken."""

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
        """What comes next, at most about `limits.HUB_STEP_BYTES`; None where it is at the end.

        Raises `PositionUnavailable`, `CorruptBlock`, `ChainGap`.
        """
        if self._number is not None:
            try:
                window = self._hub.window(self._number)
            except LookupError:
                self._number = None
                self._follower = self._hub.follow(self.vclock)
            else:
                if window is not None:
                    self._number += 1
                    self.vclock = self.vclock.merge(window.end)
                return window
        return self._take_alone()

    @property
    def is_ahead(self) -> bool:
        """Whether it reads by itself, and `pack` may find something."""
        return self._follower is not None and not self._skipped and self._follower.is_ahead

    def pack(self, taker: Taker) -> bool:
        """Give `taker` what comes next instead of taking it as a window, about as much.

        False, and nothing given, where it has to be taken.
        """
        if not self.is_ahead or self._follower is None:
            return False
        if not self._follower.pack(taker, self._step_bytes):
            return False
        self._blocks = None
        self.vclock = self.vclock.merge(taker.last_lsns())
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
        follower = self._follower
        blocks: list[Block] = []
        size = 0
        if self._blocks is None:
            self._blocks = follower.poll()
        self._skipped = False
        for block in self._blocks:
            blocks.append(block)
            size += len(block.data)
            if size >= self._step_bytes:
                break
        else:
            self._blocks = None
        if blocks:
            start, self.vclock = self.vclock, _end(self.vclock, blocks)
            return Window(start, self.vclock, tuple(blocks), size)
        self._follower = None
        self._number = self._hub.adopt(follower, self.vclock)
        return self.take()


def _end(start: VClock, blocks: list[Block]) -> VClock:
    end = start
    for block in blocks:
        end = end.merge(block.columns.last_lsns())
    return end
