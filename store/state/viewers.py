# cython: annotation_typing=False
"""The views of a store that are open, and the growing of its state, which waits until none is.

Views are counted as a set, so that whatever stops a reader at whatever line (Ctrl-C, the signal of
a timeout), taking its view out once more than it was put in does no harm; and the set does not keep
them, so that what was stopped before anybody had it counts no longer.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `viewers.pxd`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from logweir.errors import ErrorCode, RequestError
from logweir.store.state.state import State

_LOOK_SECONDS: Final = 0.5
"""A reader that was stopped on its way out may have told nobody, so it is looked again."""


class _Here(threading.local):
    """Of one thread: its views."""

    def __init__(self) -> None:
        self.views: set[View] = set()


class Look:
    """One view, from when it is made until `end`, or until nobody has it any more: whoever was
    stopped before he could end it. `mine`: the views of its thread."""

    def __init__(self, viewers: Viewers, mine: set[View]) -> None:
        self._viewers, self._mine = viewers, mine
        self._view = self._viewers.add(self, mine)

    def end(self) -> None:
        """Twice does no harm."""
        self._viewers.discard(self._view, self._mine)


View: TypeAlias = weakref.ref[Look]
"""What stands for a view while it may be there."""


class Viewers:
    """Who looks at `state`. For all threads of a store."""

    def __init__(self, state: State) -> None:
        self._state = state
        # Held by `with` itself: an interrupt inside of Condition.__enter__ would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._views: set[View] = set()
        self._stuck: set[View] = set()  # of threads that wait for a change
        self._here = _Here()
        self._is_growing = self._is_closed = self._is_left = False
        self._on_grow: list[Callable[[], object]] = []

    def left_behind(self) -> None:
        """In a child of `fork`."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_closed = self._is_left = True

    @property
    def has_mine(self) -> bool:
        """Whether this thread has a view."""
        return bool(self._here.views)

    @property
    def is_growing(self) -> bool:
        """Whether a new view would wait."""
        return self._is_growing

    def has_more(self, count: int) -> bool:
        """Whether more than so many views are open."""
        return len(self._views) > count

    def close(self) -> None:
        """Nobody waits any more to get a view."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def look(self) -> Look:
        """Begin a view of this thread."""
        return Look(self, self._here.views)

    def add(self, look: Look, mine: set[View]) -> View:
        """Let a view begin, among those of its thread. Returns what stands for it."""
        view = weakref.ref(look, self._views.discard)
        with self._lock:
            if mine:
                mine.difference_update([one for one in mine if one() is None])
            while self._is_growing and not mine and not self._is_closed:
                self._changed.wait()
            mine.add(view)
            self._views.add(view)
        return view

    def discard(self, view: View, mine: set[View]) -> None:
        """Let it end."""
        mine.discard(view)
        self._stuck.discard(view)
        self._views.discard(view)
        # Who begins to wait after this was looked at finds no view.
        if not (self._views or self._is_left) and (
            self._is_growing or self._state.files.has_retired
        ):
            with self._lock:
                if not self._views and self._state.files.has_retired:
                    self._state.files.close_retired()
                if self._is_growing:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a change of this thread: views that it has meanwhile cannot end before it."""
        added = self.begin_waiting()
        try:
            yield
        finally:
            self.end_waiting(added)

    def begin_waiting(self) -> set[View]:
        """The beginning of `waiting`. Returns what its end is to be given."""
        if not self._here.views:
            return set()
        with self._lock:
            added = self._here.views - self._stuck
            self._stuck |= added
            self._changed.notify_all()
        return added

    def end_waiting(self, added: set[View]) -> None:
        """The end of `waiting`; twice does no harm."""
        self._stuck.difference_update(added)

    def on_grow(self, callback: Callable[[], object]) -> Callable[[], None]:
        """See `Inner.on_grow`."""
        self._on_grow.append(callback)
        return lambda: self._on_grow.remove(callback)

    def grow(self) -> None:
        """Double the state's memory map, once nobody looks at it. No transaction may be open.

        Raises MEMORY_ISSUE if only threads look that wait for a change themselves.
        """
        with self.waiting(), self._lock:
            try:
                self._is_growing = True
                for callback in tuple(self._on_grow) if self._views else ():
                    callback()
                while self._views:
                    if self._views <= self._stuck:
                        raise RequestError(
                            ErrorCode.MEMORY_ISSUE,
                            "the state must grow, but a thread makes a change inside `read_view`",
                            hint="leave the view first, or read what is needed into a list",
                        )
                    self._changed.wait(_LOOK_SECONDS)
                self._state.grow()
            finally:
                self._is_growing = False
                self._changed.notify_all()

    def give_back(self) -> bool:
        """Let the state give memory back, where nobody looks at it; whether it did. No transaction
        may be open."""
        with self._lock:
            if self._is_closed or self._views:
                return False
            self._state.give_back()
            return True

    def reserve(self, room_bytes: int) -> None:
        """Let the state grow by as much, where nobody looks at it. No transaction may be open."""
        with self._lock:
            while not (self._is_closed or self._views) and self._state.lacks_room(room_bytes):
                self._state.grow()
