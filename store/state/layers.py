"""What was changed and is not in LMDB yet: layers of sorted maps over the base.

A transaction, and each group of jobs, makes its changes in a `Layer` of its own: for each index a
`Memtable` from key to value, or to nothing where the key is gone. To undo it is to forget it. Once
its rows are durable it is put on the *stack*, which is what readers see: the newest layer that
knows a key has its value, what no layer knows stands in the base (`store.state.state`). Layers on
the stack do not change while anybody looks at them: where nobody does the newest takes in what
comes, else small ones are joined, so that there are few. When they hold `limits.LAYER_BYTES`, or
the oldest is `limits.LAYER_SECONDS` old, a thread puts what they say into the base, in one LMDB
transaction with the position in the log behind them. Where changes come faster than it takes them
they are spread over the time that it will need, so that nobody waits for all of it at once.

A process that dies in between has them in the log, behind the base's position, so opening the
folder applies them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from logweir.errors import LogweirError, RequestError, WriteFailed
from logweir.limits import LAYER_SECONDS, STATE_KEPT_BYTES
from logweir.store.state import heap, stacked
from logweir.store.state.stacked import Stacked
from logweir.store.state.stackkernel import Layer, Stack, whole
from logweir.store.state.state import MapFull, State, StateError
from logweir.store.state.statetxn import Position, Txn
from logweir.store.state.viewers import Viewers
from logweir.wal.failpoint import failpoint
from logweir.wal.process import start_thread

_T = TypeVar("_T")

_RETRY_SECONDS: Final = 0.5
_PAGE_BYTES: Final = 4096
_PASSING: Final = (RequestError, WriteFailed)
"""Why the state cannot take something now: a view is in the way of its growth, the disk is full."""


class Layers(Stacked):
    """The stack of one store, over its base.

    `guard`: held around what opens a view and what changes the stack or the base; `taking`: around
    what changes the base, for what failures of it mean.
    """

    def __init__(
        self,
        state: State,
        viewers: Viewers,
        guard: threading.Lock,
        position: Position | None,
        taking: contextlib.AbstractContextManager[object],
    ) -> None:
        super().__init__(state, position)
        self._base_position = position
        self._viewers = viewers
        self._guard = guard
        self._taking = taking
        self._one = threading.Lock()  # one apply at a time
        self._kept_bytes = 0  # at most, of freed memory since it was last given back
        self._rests_since = 0.0  # where the stack is empty
        self._byte_seconds = 0.0  # that the base needed for each byte, last time
        self._closing = False

    def admit(self) -> None:
        """Before a change: wait until the layers have room for it. Raises why they have none."""
        with self._lock:
            if self._thread is None and self._failure is None and not self._closing:
                start_thread("logweir-apply", self._serve, self._keep_thread)
            if isinstance(self._failure, _PASSING):  # which may have passed
                self._failure = None
                self._changed.notify_all()
            while self.is_full and not self._closing:
                if self._failure is not None:
                    raise self._failure
                is_paced = self.size_bytes <= 2 * stacked.LAYER_BYTES
                self._changed.wait(self._next_at - time.monotonic() if is_paced else None)

    # --- the base ---------------------------------------------------------------------------------

    def apply(self) -> None:
        """Put into the base what the layers say, whoever does it. What it raises, they still
        say."""
        with self._taking, self._one:
            self._apply()

    def change_base(self, change: Callable[[Txn], _T]) -> _T:
        """Let `change` have a transaction on the base that holds all that is published. The caller
        sees to it that nobody publishes more. Its result."""
        with self._taking, self._one:
            self._apply()
            result, position = self._changed_base(lambda txn: (change(txn), txn.position()), ())
            self._base_position, self.position = position, lambda: position
            return result

    def reserve(self, room_bytes: int) -> None:
        """See `Viewers.reserve`."""
        with self._one:
            self._viewers.reserve(room_bytes)

    def _apply(self) -> None:
        with self._lock:
            stack, behind, size = self.stack, self.position, self.size_bytes
            began = time.monotonic()
            self._under_way, self._next_at = stack, 0.0
            self._taken_at = began + size * self._byte_seconds
        try:
            position = behind()
            if stack or position != self._base_position:  # what was logged may change nothing
                joined = whole(stack)
                try:
                    self._changed_base(lambda txn: put_into(txn, joined, position), stack)
                except StateError:
                    # It writes pages, so how many is not known before. As to a write that failed
                    # nothing was changed; as to a sync that did it is another error.
                    self.state.check_disk(_disk_bytes(joined))
                    raise
                self._base_position = position
                if size >= stacked.LAYER_BYTES:  # of few it is not their bytes that take the time
                    self._byte_seconds = (time.monotonic() - began) / size
                self._kept_bytes = max(self._kept_bytes, _disk_bytes(joined))
        finally:
            with self._lock:
                self._under_way, self._rests_since = (), time.monotonic()

    def _give_back(self) -> None:
        """Nothing has come for a while: let the system have the memory that the last layers, and
        what took them, needed."""
        with self._taking, self._one:
            self._rests_since = time.monotonic()
            with contextlib.suppress(WriteFailed):  # the folder is no longer at its name
                if self._viewers.give_back():
                    self._kept_bytes = 0
                    heap.give_back()

    def _changed_base(self, change: Callable[[Txn], _T], done: Stack) -> _T:
        """`done`: the layers that the base then holds."""
        while True:
            txn: Txn | None = None
            try:
                txn = self.state.begin()
                result = change(txn)
                failpoint("store.before_apply_commit")
                # Whoever looks meanwhile may have the base of before or of afterwards: the layers
                # over it say the same as what they have become.
                txn.write()
                failpoint("store.after_apply_commit")
                with self._guard:
                    txn.settle()
                    with self._lock:
                        left = self.stack[: len(self.stack) - len(done)]
                        # First: nobody waits for what an interrupt leaves on the stack alone.
                        self.size_bytes = sum([one.size_bytes for one in left])
                        self.stack, self._under_way = left, ()
                        self._changed.notify_all()
                return result
            except MapFull:
                if txn is not None:
                    txn.abort()
                self._viewers.grow()
            except BaseException:
                if txn is not None:
                    txn.abort()
                raise

    def close(self, *, apply: bool = True) -> None:
        """End the thread; `apply`: when the base holds everything."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        if apply:
            with contextlib.suppress(LogweirError):  # the log has failed: it is known already
                self.apply()

    def _keep_thread(self, thread: threading.Thread | None) -> None:
        self._thread = thread

    def _serve(self) -> None:
        try:
            while self._is_due():
                self._serve_once()
        finally:
            with self._lock:
                self._thread = None
                self._changed.notify_all()

    def _is_due(self) -> bool:
        """Wait until the base is to take the layers, or to give memory back; False: never more."""
        with self._lock:
            if self._failure is not None and not isinstance(self._failure, _PASSING):
                return False  # who changes something next is told
            while not self._closing and (left := self._seconds_left()) != 0:
                self._changed.wait(left)
            return not self._closing

    def _serve_once(self) -> None:
        failure: Exception | None = None
        try:
            if self.stack:
                self.apply()
            else:
                self._give_back()
        except Exception as error:
            failure = error
        with self._lock:
            self._failure = failure
            self._changed.notify_all()
            if isinstance(failure, _PASSING):
                self._changed.wait(_RETRY_SECONDS)

    def _seconds_left(self) -> float | None:
        """Until there is something to do; None: not before something comes."""
        since = self.stack[-1].since if self.stack else self._rests_since
        if self.size_bytes >= stacked.LAYER_BYTES:
            return 0
        if not self.stack and self._kept_bytes < STATE_KEPT_BYTES:
            return None
        return max(since + LAYER_SECONDS - time.monotonic(), 0)


def _disk_bytes(layer: Layer) -> int:
    """At most what LMDB writes for it: each entry, and each page that it changes, two for one."""
    entries = sum(map(len, layer.tables.values()))
    return 2 * _PAGE_BYTES * entries + 2 * layer.size_bytes


def put_into(txn: Txn, layer: Layer, position: Position | None) -> None:
    """Let a transaction on the base say what a layer does. `position`: behind it, or None."""
    for name, table in layer.tables.items():
        if name in layer.cleared:
            txn.drop(*name)
        tree = txn.tree(*name)
        assert tree is not None
        references = tree.take(table)
        if references and not name[1]:
            txn.refer(name[0], references)
    if position is not None:
        txn.set_position(position)
