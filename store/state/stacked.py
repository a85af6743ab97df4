# cython: annotation_typing=False
"""The stack of layers as commits and readers have it: what is there, and one more on top of it.

`store.state.layers` adds what puts them into the base. This file is plain Python and runs as it is;
Cython compiles the same file with the types that stand in `stacked.pxd`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from logweir import limits
from logweir.store.state.stackkernel import Layer, LayeredTxn, Stack, grown
from logweir.store.state.state import State
from logweir.store.state.statetxn import Position
from logweir.store.state.viewers import Look

LAYER_BYTES = limits.LAYER_BYTES


class Stacked:
    """The stack over `state`, empty at first. `position`: the one of its base.

    `size_bytes`: of the layers on the stack, for which the base still needs about as much of the
    disk."""

    def __init__(self, state: State, position: Position | None) -> None:
        self.state = state
        self.stack: Stack = ()
        # Makes the one behind the stack: it is wanted when the base takes that.
        self.position: Callable[[], Position | None] = lambda: position
        self.size_bytes = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way: Stack = ()  # the lowest layers, while the base takes them
        self._taken_at = 0.0  # when it will have those that are under way, if it needs as long
        self._next_at = 0.0  # no sooner the next change, as long as there are such
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def begin(self, look: Look, write: bool, early: Stack = ()) -> LayeredTxn:
        """A transaction on what is there now; the caller holds the guard. `look`: ends with it;
        `early`: layers that are not durable yet, over the stack."""
        base = self.state.lend() if write else self.state.begin(write=False)
        stack = (*early, *self.stack) if early else self.stack
        return LayeredTxn(stack, base, write=write, look=look, early=len(early))

    @property
    def admits(self) -> bool:
        """Whether `admit` would have nothing to wait for, to begin or to raise."""
        return (
            self._thread is not None
            and self._failure is None
            and self.size_bytes <= 2 * LAYER_BYTES
            and not (self._under_way and self._next_at > time.monotonic())
        )

    @property
    def is_full(self) -> bool:
        """Whether changes wait until the base has taken layers, or more of them."""
        if self._under_way and self._next_at > time.monotonic():
            return True
        return self.size_bytes > 2 * LAYER_BYTES

    def push(
        self, layer: Layer, position: Callable[[], Position | None], is_unseen: bool = False
    ) -> None:
        """Show a sealed layer to everybody; the caller holds the guard. `position`: makes the one
        behind it; `is_unseen`: no view of the stack is open, nor can a read find it (`State.shown`)
        unless it has begun (`State.reading`)."""
        with self._lock:
            if not layer.tables:
                self.position = position
                return
            layer.since = time.monotonic()
            kept = len(self._under_way)
            if kept:  # its part of what there is room for, its part of the time
                room = max(2 * LAYER_BYTES - self.size_bytes, layer.size_bytes)
                part = layer.size_bytes / room
                self._next_at = layer.since + part * (self._taken_at - layer.since)
            # The position goes with what stands before it, in one: whatever stops this in between,
            # the base never takes a position without the changes that the log has there.
            before = self.stack
            below = before[0] if is_unseen and len(before) > kept else None
            if below is not None and below.takes(layer) and not self.state.reading.locked():
                # Meanwhile it stands over that one, which may be stopped when it says half of it.
                self.stack, self.position = (layer, *before), position
                more_bytes = below.take(layer)
                self.stack, self.size_bytes = before, self.size_bytes + more_bytes
            else:
                stack, size = grown(before, layer, self.size_bytes, kept)
                self.stack, self.size_bytes, self.position = stack, size, position
            if not before or self.size_bytes >= LAYER_BYTES:
                self._changed.notify_all()
