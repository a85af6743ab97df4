"""Functions that are called for what is committed: `Log.listen`.

The log itself is the line in which changes wait for a listener: a thread of its own reads them
there once they are durable, so a slow function holds nobody up, nothing is left out, and memory is
bounded by a block. What it has still to read is kept from being removed, for
`limits.LEASE_SECONDS` at most.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Final

from logweir.errors import LogweirError
from logweir.store.choosing import Changes, Chooser
from logweir.store.reading import Reads
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.refused import illegal
from logweir.wal.closing import Closable
from logweir.wal.mp import Value
from logweir.wal.process import start_thread
from logweir.wal.vclock import VClock

_LOGGER: Final = logging.getLogger("logweir")


class Listens(Reads):
    """The part of `Log` that tells of changes."""

    def listen(
        self,
        spaces: int | str | Sequence[int | str],
        function: Callable[[Changes], object],
        *,
        key: Value = None,
        after: Mapping[int, int] | None = None,
    ) -> Listener:
        """Call `function` for each transaction that changes a space, or one of several, once it is
        durable as `durability` says, in order, in a thread of its own. It may use the log.

        `key`: only changes of keys that begin so, of one space; `after`: a vclock, None for what is
        committed from now on. What it raises is logged and counted, and it is called for the next
        one. A slow one is called later: nothing is left out. With durability "none", and of
        temporary spaces, there is nothing to tell. After a crash nobody knows what it was called
        for: `logweir.capture` keeps the place. Raises `RequestError` for a space that is not there,
        a key that does not fit, or what is no function; `PositionUnavailable`.
        """
        self.inner.committer.check_open()
        if not callable(function) or iscoroutinefunction(function):
            raise illegal(
                f"{function!r} is no function that can be called in a thread",
                hint="give one that takes the changes; with asyncio iterate over "
                "`logweir.aio`'s `listen(spaces)`",
            )
        start = self.applied if after is None else position_of(after)
        self.inner.cursor(start).close()  # refuses a position that is not there
        return Listener(self, self.inner.chooser(spaces, key), function, start)


class Listener(Closable):
    """What `Log.listen` gives. A context manager, which ends it; it ends with the log, too."""

    def __init__(
        self, log: Listens, chooser: Chooser, function: Callable[[Changes], object], start: VClock
    ) -> None:
        self._log = log
        self._chooser = chooser
        self._function = function
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._lsns = array("Q", start.lsns())
        self._is_over = False
        self.reached = start
        """The position up to which the function was called, and returned."""
        self.errors = 0
        """How many times it raised."""
        self.last_error: BaseException | None = None
        """What it raised last."""
        self.failure: LogweirError | None = None
        """What ended it before its time: the log could not be read."""
        self._thread = start_thread("logweir-listener", self._run)

    def close(self) -> None:
        """Call the function no more; waits for the call that is under way, unless it is that which
        closes."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def wait(self, position: Mapping[int, int] | None = None, seconds: float | None = None) -> bool:
        """Wait until the function was called for everything up to a position, None for all that is
        committed now. False if it ends, or the time is over, before."""
        wanted = self._log.applied if position is None else position_of(position)
        with self._moved:
            self._moved.wait_for(lambda: self._is_over or self.reached.covers(wanted), seconds)
            return self.reached.covers(wanted)

    def _run(self) -> None:
        try:
            found = self._log.inner.blocks(self.reached, follow=True, stop=self._stop, settled=True)
            with contextlib.closing(found):
                for block in found:
                    for changes in self._chooser.taken(block.columns, self._lsns):
                        if self._stop.is_set():
                            return
                        self._call(changes)
        except LogweirError as error:
            self.failure = error
            _LOGGER.error("a listener has ended: %s", error)
        finally:
            with self._moved:
                self._is_over = True
                self._moved.notify_all()

    def _call(self, changes: Changes) -> None:
        try:
            if changes.changes:
                self._function(changes)
        except BaseException as error:  # also `sys.exit`, which else ends the thread in silence
            self.errors += 1
            self.last_error = error
            _LOGGER.exception("a function of listen failed at %s", changes.vclock)
        with self._moved:
            self.reached = changes.vclock
            self._moved.notify_all()
