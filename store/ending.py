"""What has to come to its end once it has begun, also if who asked for it is interrupted.

An interrupt (Ctrl-C, a timeout's signal) comes to the main thread alone, at any place of what that
does: a lock of Python's `threading.Event` or `Condition` that it has taken a moment before is never
given back then. So the work is done in a thread of its own, and who asks only waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from logweir.wal.process import start_thread


class Ending:
    """Work that is done once, however often it is asked for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._alone = threading.Lock()
        self._errors: list[BaseException] = []
        self.is_over = False

    def end(self) -> None:
        """Do the work, or wait until it is done. Raises what it raised, once, also if who asked
        before was interrupted.

        The first interrupt waits for the end of it, the second does not; the work goes on then.
        """
        if not self.is_over:
            self._wait()
        if self._errors:
            raise self._errors.pop()

    def _wait(self) -> None:
        try:
            thread = start_thread("logweir-close", self._run)
        except RuntimeError:  # there are no more threads, as when the interpreter ends
            self._run()
            return
        try:
            thread.join()
        except BaseException:
            thread.join()
            raise

    def _run(self) -> None:
        with self._alone:
            if self.is_over:
                return
            try:
                self._work()
                self.is_over = True
            except BaseException as error:
                self.is_over = isinstance(error, Exception)  # all steps were tried
                self._errors.append(error)
