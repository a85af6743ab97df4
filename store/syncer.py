"""Threads that sync the log while the thread that wrote it does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Aside", "Syncer"]


class Syncer:
    """One helper thread, made when first used. `start`, then `wait`, or `hand`; one at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._call: Callable[[], None] | None = None
        self._is_awaited = True
        self._error: BaseException | None = None
        # Locks that are handed over: far cheaper than semaphores, which are made of Python.
        self._go, self._begun, self._done = (threading.Lock() for _ in range(3))
        for lock in (self._go, self._begun, self._done):
            lock.acquire()
        # What was begun may be done, and the next given, before who began it is awake again.
        self._starting = threading.Lock()

    def hand(self, call: Callable[[], None]) -> None:
        """`start` a call that nobody waits for. What it raises ends its thread; the next call has
        another."""
        self.start(call, is_awaited=False)

    def start(self, call: Callable[[], None], *, is_awaited: bool = True) -> None:
        """Run `call` in the thread. Returns when it has begun: a call that waits for the disk
        then leaves the interpreter to the caller."""
        with self._starting:
            if self._thread is None:
                self._start_thread()
            self._call = call
            self._is_awaited = is_awaited
            self._go.release()
            self._begun.acquire()

    def wait(self) -> None:
        """Return when the call is done. Raises what it raised."""
        self._done.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._call = None
            self._go.release()
            self._thread.join()
            self._thread = None

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="logweir-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            call = self._call
            if call is None:
                return
            is_awaited = self._is_awaited
            self._begun.release()
            if not is_awaited:
                try:
                    call()
                except BaseException:  # the next call may have been given already
                    self._start_thread()
                    raise
                continue
            try:
                call()
            except BaseException as error:  # raised again in the thread that waits
                self._error = error
            self._done.release()


class Aside:
    """One helper thread, made when first used, for a call that nobody waits for: neither for its
    end nor, as with `Syncer`, for its beginning. The call must not raise."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._line: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to go on
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have it called; what is asked for while it runs is done after it, once. For one thread at
        a time."""
        if self._is_asked:
            return
        self._is_asked = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="logweir-aside", daemon=True)
            self._thread.start()
        self._line.put(True)

    def close(self) -> None:
        """End the thread, behind a call that was asked for."""
        if self._thread is not None:
            self._line.put(False)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while self._line.get():
            self._is_asked = False
            self._call()
