"""What a test leaves behind in its process: open files, threads, tasks of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.nursery import LOGWEIR

DESCRIPTORS = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
SERVER = "serving"
"""Name of the thread of a server that tests share, see `interop.serving`."""
EXECUTORS = ("asyncio_", "uvloop_")
"""How the names of threads begin that an event loop has for `asyncio.to_thread`."""
WAIT_SECONDS = 20.0
"""How long threads that were told to end may take for it."""


def open_files() -> Counter[str]:
    """What the open descriptors stand for, and how many of each; without those of Spark's session,
    which outlives tests and opens more when objects of it are collected, and of where programs
    `logweir` come from."""
    found: Counter[str] = Counter()
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError):
            found[os.readlink(DESCRIPTORS / name)] += 1
    if "pyspark" in sys.modules and (gateway := sys.modules["pyspark"].SparkContext._gateway):
        for connection in list(gateway._gateway_client.deque):
            with contextlib.suppress(OSError, AttributeError):
                del found[os.readlink(DESCRIPTORS / str(connection.socket.fileno()))]
    for file in LOGWEIR.files():
        del found[os.readlink(DESCRIPTORS / str(file))]
    return found


class Leaks:
    """Notes what there is, and says later what came since and is still there."""

    def __init__(self) -> None:
        self._files = open_files()
        self._threads = set(threading.enumerate())

    def files(self) -> list[str]:
        """Descriptors that are open now and were not."""
        return sorted((open_files() - self._files).elements())

    def threads(self) -> list[str]:
        """Threads that run now and did not; of a server that was there already, which may begin to
        write down at any time how far followers are, not those in which its loop has that done."""
        found = set(threading.enumerate()) - self._threads
        if any(one.name == SERVER and one.is_alive() for one in self._threads):
            found = {one for one in found if not one.name.startswith(EXECUTORS)}
        return sorted(map(str, found))

    def found(self) -> list[str]:
        """All of it, once what was told to end has had time for it."""
        if not self.files() and not self.threads():
            return []
        gc.collect()
        waiting = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.01)):
            if not self.files() and not self.threads():
                return []
            waiting.wait(0.01)
        return [f"open: {one}" for one in self.files()] + [
            f"thread: {one}" for one in self.threads()
        ]


@contextlib.contextmanager
def unfinished_tasks() -> Iterator[list[str]]:
    """The tasks that still run when an event loop of `asyncio.run` ends, which cancels them."""
    found: list[str] = []
    close = asyncio.Runner.close

    def closing(runner: asyncio.Runner) -> None:
        with contextlib.suppress(RuntimeError):  # it was closed before
            found.extend(f"task: {task}" for task in asyncio.all_tasks(runner.get_loop()))
        close(runner)

    asyncio.Runner.close = closing  # type: ignore[method-assign]
    try:
        yield found
    finally:
        asyncio.Runner.close = close  # type: ignore[method-assign]
