"""What is open belongs to the process that opened it; in a child made by `fork` its copy is dead.

The child has one thread, the one that forked; locks may be held by threads that are not there. Its
descriptors are its parent's: closing one does the parent no harm, unlocking or writing does. LMDB's
table of readers is memory that both write to, and its environment may wait for threads that are
gone when it is closed. So in the child, before it goes on:

* `is_foreign` of each `OfProcess` that was open becomes True, and its public methods raise
  `UsedAfterFork`; those that end it do nothing, since there is nothing of the child's own to end;
* `_left_behind` of each makes sure of that: it gives back the child's copies of descriptors, puts
  new locks in the place of old ones, and keeps what must not even be collected (`keep_for_ever`).

Nothing is done in the parent, which is not held up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Final

from logweir.errors import UsedAfterFork


class OfProcess:
    """Something that is open. A subclass calls `_belong` when it is."""

    is_foreign = False
    """Whether this is the copy that a child has of what its parent opened."""

    def check_process(self) -> None:
        """Raise `UsedAfterFork` in a child of the process that opened it."""
        if self.is_foreign:
            raise UsedAfterFork(self._what())

    def _belong(self) -> None:
        """It is open now, in this process."""
        _OPEN.add(self)

    def _what(self) -> str:
        """What an error calls it."""
        return "this handle"

    def _left_behind(self) -> None:
        """In a child: see the module. No lock may be taken, nothing awaited."""


_OPEN: Final[weakref.WeakSet[OfProcess]] = weakref.WeakSet()


def keep_for_ever(thing: object) -> None:
    """Never collect `thing`, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    left = list(_OPEN)
    _OPEN.clear()
    for one in left:
        one.is_foreign = True
    for one in left:
        with contextlib.suppress(OSError):  # of a descriptor that is given back
            one._left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def start_thread(
    name: str,
    run: Callable[[], None],
    keep: Callable[[threading.Thread | None], object] = lambda thread: None,
) -> threading.Thread:
    """A thread that nobody waits for at the end of the program.

    `keep`: notes the thread before it runs anything. Wherever an interrupt comes, the thread is
    noted and runs, or is not (None) and never will. It comes out as such: `Thread.start` makes a
    RuntimeError of it, where it may have started all the same.
    """
    told: queue.SimpleQueue[None] = queue.SimpleQueue()
    runs: list[bool] = []  # the first counts

    def begin() -> None:
        told.get()
        if runs[0]:
            run()

    thread = threading.Thread(target=begin, name=name, daemon=True)
    try:
        thread.start()
        keep(thread)
        runs.append(True)
        told.put(None)
    except BaseException as error:
        runs.append(False)
        told.put(None)
        if not runs[0]:
            keep(None)
        if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    return thread
