"""An event loop of asyncio for tasks under a `Scheduler`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from logweir.testing.primitives import modules_of
from logweir.testing.scheduler import Killed, Scheduler

__all__ = ["ScheduledLoop"]


class ScheduledLoop(asyncio.BaseEventLoop):
    """A loop without files, sockets and signals, whose waiting and time are the scheduler's. What
    is to run in a thread does so in a scheduled one; those of one executor take turns."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = self  # what `BaseEventLoop` asks for events
        self._is_woken = False
        self._last: dict[Any, Any] = {}

    def time(self) -> float:
        """As `AbstractEventLoop.time`."""
        return self._scheduler.seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until something is to be done."""
        if timeout is None or timeout > 0:
            self._scheduler.wait("loop", lambda: self._is_woken, timeout)
        else:
            self._scheduler.pause("loop")
        self._is_woken = False
        return []

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As `AbstractEventLoop.run_in_executor`."""
        future = self.create_future()
        before = self._last.get(executor) if executor is not None else None

        def run() -> None:
            if before is not None:
                before.join()
            result = error = None
            try:
                result = func(*args)
            except Killed:
                raise
            except BaseException as caught:
                error = caught
            self.call_soon_threadsafe(tell, error, result)

        def tell(error: BaseException | None, result: Any) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        threads = modules_of(self._scheduler)["threading"]
        thread = threads.Thread(target=run, name="aside")
        self._last[executor] = thread
        thread.start()
        return future

    def let_go(self) -> None:
        """Close it, with the tasks that are left where the schedule was ended."""
        for task in asyncio.all_tasks(self):
            if self._scheduler.is_ending:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Killed, RuntimeError):
                    task.get_coro().close()
        if self._scheduler.is_ending:
            self.set_exception_handler(lambda _loop, _context: None)
        self.close()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._is_woken = True
