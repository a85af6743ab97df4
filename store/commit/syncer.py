"""A thread that syncs the log while the one that wrote it does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from logweir.wal.process import start_thread


class BackgroundSync:
    """One helper thread, made when first used, for a call that nobody waits for, neither for its
    end nor for its beginning. The call must not raise."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._line: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to go on
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have it called; what is asked for while it runs is done after it, once. For one thread at
        a time."""
        if self._thread is None:
            start_thread("logweir-sync", self._serve, self._keep_thread)
        self._line.put(True)

    def _keep_thread(self, thread: threading.Thread | None) -> None:
        self._thread = thread

    def close(self) -> None:
        """End the thread, behind a call that was asked for."""
        if self._thread is not None:
            self._line.put(False)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        goes_on = True
        while goes_on and (goes_on := self._line.get()):
            while goes_on and not self._line.empty():  # what was asked for until now
                goes_on = self._line.get()
            self._call()
