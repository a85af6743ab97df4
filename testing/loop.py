"""An event loop of asyncio for tasks under a `Scheduler`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from logweir.testing.network import Host, Listening
from logweir.testing.primitives import modules_of
from logweir.testing.scheduler import Killed, Scheduler, Task

_TURN_SECONDS: Final = 1e-6


class _Task(asyncio.Task[Any]):
    """A task that lies in sets in an order that its loop decides, and not its place in memory."""

    def __init__(self, number: int, work: Any, **given: Any) -> None:
        self._number = number
        super().__init__(work, **given)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """As `_Task`."""

    def __init__(self, number: int, **given: Any) -> None:
        self._number = number
        super().__init__(**given)

    def __hash__(self) -> int:
        return self._number


class ScheduledLoop(asyncio.BaseEventLoop):
    """A loop without files, sockets and signals, whose waiting and time are the scheduler's. What
    is to run in a thread does so in a scheduled one; those of one executor take turns. `host`: its
    place in a simulated network, None for none."""

    def __init__(self, scheduler: Scheduler, host: Host | None = None) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._host = host
        if host is not None:
            host.loop = self
        self._selector = self  # what `BaseEventLoop` asks for events
        self._is_woken = False
        self._last: dict[Any, Any] = {}
        self._waiter: Task | None = None
        self._made = 0
        self.set_task_factory(self._task)

    def _task(self, _: asyncio.AbstractEventLoop, work: Any, **given: Any) -> asyncio.Task[Any]:
        return _Task(self._number(), work, loop=self, **given)

    def create_future(self) -> asyncio.Future[Any]:
        """As `AbstractEventLoop.create_future`."""
        return _Future(self._number(), loop=self)

    def _number(self) -> int:
        self._made += 1
        return self._made

    def time(self) -> float:
        """As `AbstractEventLoop.time`."""
        return self._scheduler.seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until something is to be done, or comes in."""
        scheduler, host = self._scheduler, self._host
        moment = None if host is None else host.next_moment
        if moment is not None:
            left = max(moment - scheduler.seconds, 0.0)
            timeout = left if timeout is None else min(left, timeout)
        if timeout is None or timeout > 0:
            self._waiter = scheduler.current
            scheduler.wait("loop", lambda: self._is_woken, timeout)
            self._waiter = None
        else:
            if host is not None:  # who waits for so little that no float tells goes on, too
                scheduler.seconds += _TURN_SECONDS
            scheduler.pause("loop")
        self._is_woken = False
        return [] if host is None else host.due()

    def expect(self, moment: float) -> None:
        """Something comes in then."""
        if self._waiter is not None:
            self._scheduler.hurry(self._waiter, moment)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any, port: int, **_: Any
    ) -> Listening:
        """As `AbstractEventLoop.create_server`, in the simulated network."""
        assert self._host is not None
        return self._host.listen(protocol_factory, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any, port: int, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        """As `AbstractEventLoop.create_connection`, in the simulated network."""
        assert self._host is not None
        return await self._host.connect(protocol_factory, port)

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
            if not (future.cancelled() and self.is_closed()):  # as asyncio has it
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
            if self._scheduler.is_over:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Killed, RuntimeError):
                    task.get_coro().close()
        if self._scheduler.is_over:
            self.set_exception_handler(lambda _loop, _context: None)
            self._check_closed = lambda: None  # coroutines that are let go later ask for nothing
        self.close()

    def _process_events(self, event_list: list[Callable[[], object]]) -> None:
        """What has come in."""
        for call in event_list:
            self.call_soon(call)

    def _write_to_self(self) -> None:
        self._is_woken = True
