"""Locks, conditions, events, semaphores, queues and threads of a `Scheduler`.

They do what those of `threading` and `queue` do, but each time a thread could be stopped, or has to
wait, the scheduler decides which one goes on. Once the schedule is ending nothing waits any more: a
lock is had by whoever asks, so that `with` and `finally` lead out; what would wait for somebody
raises `Killed`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logweir.testing.scheduler import Scheduler, Task


class _Lock:
    """As `threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: object = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        if self._scheduler.is_over:
            return True
        self._scheduler.pause("acquire")
        if not self._is_free():
            if not blocking:
                return False
            if not self._scheduler.wait("lock", self._nobody_has, None if timeout < 0 else timeout):
                return False
        self._take()
        return True

    def release(self) -> None:
        """As `threading.Lock.release`."""
        if self._scheduler.is_over:
            return
        self._give()
        self._scheduler.pause("release")

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _nobody_has(self) -> bool:
        return self._owner is None

    def _is_free(self) -> bool:
        """Whether the thread that runs can have it."""
        return self._nobody_has()

    def _take(self) -> None:
        self._owner = self._scheduler.current

    def _give(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None

    def leave(self) -> int:
        """Give it up in the middle, for `Condition.wait`. Returns what `come_back` wants."""
        if self._owner is not self._scheduler.current:
            raise RuntimeError("cannot wait on un-acquired lock")
        self._owner = None
        return 1

    def come_back(self, count: int) -> None:
        """Have it again."""
        self._scheduler.wait("lock", self._nobody_has)
        self._take()


class _RLock(_Lock):
    """As `threading.RLock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._count = 0

    def _is_free(self) -> bool:
        return super()._is_free() or self._owner is self._scheduler.current

    def _take(self) -> None:
        super()._take()
        self._count += 1

    def _give(self) -> None:
        if self._owner is not self._scheduler.current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None

    def leave(self) -> int:
        """Give it up in the middle, however often it is held."""
        super().leave()
        count, self._count = self._count, 0
        return count

    def come_back(self, count: int) -> None:
        """Have it again, as often."""
        super().come_back(count)
        self._count = count


class _Condition:
    """As `threading.Condition`: who waited longest is woken first, and nobody without reason."""

    def __init__(self, scheduler: Scheduler, lock: _Lock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or _RLock(scheduler)
        self._waiters: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Condition.wait`."""
        scheduler, waiter = self._scheduler, [False]
        scheduler.check()
        self._waiters.append(waiter)
        count = self._lock.leave()
        woken = scheduler.wait("condition", lambda: waiter[0], timeout)
        if not woken:
            self._waiters = [one for one in self._waiters if one is not waiter]
        self._lock.come_back(count)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """As `threading.Condition.wait_for`."""
        end = None if timeout is None else self._scheduler.seconds + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._scheduler.seconds
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """As `threading.Condition.notify`."""
        woken, self._waiters = self._waiters[:n], self._waiters[n:]
        for waiter in woken:
            waiter[0] = True

    def notify_all(self) -> None:
        """As `threading.Condition.notify_all`."""
        self.notify(len(self._waiters))


class _Event:
    """As `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._flag = False

    def is_set(self) -> bool:
        """As `threading.Event.is_set`."""
        return self._flag

    def set(self) -> None:
        """As `threading.Event.set`."""
        self._flag = True
        if not self._scheduler.is_over:
            self._scheduler.pause("set")

    def clear(self) -> None:
        """As `threading.Event.clear`."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Event.wait`."""
        return self._flag or self._scheduler.wait("event", self.is_set, timeout)


class _Semaphore:
    """As `threading.Semaphore`."""

    def __init__(self, scheduler: Scheduler, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._scheduler = scheduler
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As `threading.Semaphore.acquire`."""
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        self._scheduler.check()
        self._scheduler.pause("acquire")
        limit = timeout if blocking else 0.0
        if not self._value and not self._scheduler.wait(
            "semaphore", lambda: self._value > 0, limit
        ):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        """As `threading.Semaphore.release`."""
        if n < 1:
            raise ValueError("n must be one or more")
        self._value += n
        if not self._scheduler.is_over:
            self._scheduler.pause("release")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """As `queue.SimpleQueue.put`."""
        self._items.append(item)
        if not self._scheduler.is_over:
            self._scheduler.pause("put")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As `queue.SimpleQueue.get`."""
        if not self._items and block:
            self._scheduler.wait("queue", lambda: bool(self._items), timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """As `queue.SimpleQueue.empty`."""
        return not self._items


class _Thread:
    """As `threading.Thread`."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        target: Callable[..., object],
        name: str = "thread",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._scheduler = scheduler
        self._run = lambda: target(*args, **(kwargs or {}))
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        """As `threading.Thread.ident`."""
        return None if self._task is None else self._task.thread.ident

    def start(self) -> None:
        """As `threading.Thread.start`."""
        self._task = self._scheduler.start(self.name, self._run, owner=self)

    def is_alive(self) -> bool:
        """As `threading.Thread.is_alive`."""
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        """As `threading.Thread.join`."""
        if not self._scheduler.is_over:
            self._scheduler.wait("join", lambda: not self.is_alive(), timeout)


class _Module:
    """A module with other things of some names."""

    def __init__(self, real: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def modules_of(scheduler: Scheduler) -> dict[str, Any]:
    """What stands for the modules of these names."""

    def of(kind: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: kind(scheduler, *args, **kwargs)

    def current_thread() -> Any:
        return scheduler.current.owner or threading.current_thread()

    def sleep(seconds: float) -> None:
        scheduler.wait("sleep", lambda: False, seconds)

    return {
        "threading": _Module(
            threading,
            Lock=of(_Lock),
            RLock=of(_RLock),
            Condition=of(_Condition),
            Event=of(_Event),
            Semaphore=of(_Semaphore),
            Thread=of(_Thread),
            current_thread=current_thread,
        ),
        "queue": _Module(queue, SimpleQueue=of(_SimpleQueue)),
        "time": _Module(
            time, monotonic=lambda: scheduler.seconds, sleep=sleep, thread_time=scheduler.work
        ),
    }
