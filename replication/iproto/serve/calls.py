"""Functions that clients call, in threads beside the event loop.

Threads of Python share its interpreter. Of functions that compute, several at a time end no sooner
than one by one, and each of them takes its share from the loop, for which all clients wait: so one
is run at a time. A function that waits, for a disk or another program, uses no processor meanwhile:
while those that run do nothing else, one more is begun, up to `limits.CALL_THREADS`. Who is not
begun yet waits in the order in which it came.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from logweir.limits import CALL_THREADS

_LOOK_SECONDS: Final = 0.005
_COMPUTING_SHARE: Final = 0.25

T = TypeVar("T")


class Calls:
    """The calls of one server. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="logweir-call")
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._most = 1  # may run now
        self._used: dict[int, float] = {}  # by thread: processor time that it had at the last look
        self._busy: set[int] = set()
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises, in a thread, when its turn has come."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[T] = loop.create_future()
        self._waiting.append((found, call))
        self._let_in(loop)
        if self._waiting and self._timer is None:
            self._used, self._looked = {}, loop.time()
            self._timer = loop.call_later(_LOOK_SECONDS, self._look, loop)
        return await found

    async def close(self) -> None:
        """Wait for those that run."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.to_thread(self._threads.shutdown)

    def _run(self, call: Callable[[], T]) -> T:
        thread = threading.get_ident()
        self._busy.add(thread)
        try:
            return call()
        finally:
            self._busy.discard(thread)

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._running < self._most:
            found, call = self._waiting.popleft()
            if not found.done():  # its connection is not gone
                self._running += 1
                begun = self._threads.submit(self._run, call)
                begun.add_done_callback(partial(self._tell, loop, found))

    def _tell(
        self, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Any], done: Future[Any]
    ) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._ended, loop, found, done)

    def _ended(
        self, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Any], done: Future[Any]
    ) -> None:
        self._running -= 1
        self._let_in(loop)
        if found.done():
            return
        if error := done.exception():
            found.set_exception(error)
        else:
            found.set_result(done.result())

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Settle how many may run, by what those that run do."""
        self._timer = None
        if not self._waiting:
            return
        used = {thread: _processor_seconds(thread) for thread in tuple(self._busy)}
        seconds, self._looked = loop.time() - self._looked, loop.time()
        gained = sum(now - self._used.get(thread, 0.0) for thread, now in used.items())
        is_known = len(used) == self._running and used.keys() <= self._used.keys()
        self._used = used
        if is_known and gained < _COMPUTING_SHARE * seconds:
            self._most = min(self._running + 1, CALL_THREADS)
        elif is_known:
            self._most = max(self._most // 2, 1)
        self._let_in(loop)
        self._timer = loop.call_later(_LOOK_SECONDS, self._look, loop)


def _processor_seconds(thread: int) -> float:
    """What a thread that runs has used; 0 if the system does not tell."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    return 0.0 if clock_of is None else time.clock_gettime(clock_of(thread))
