"""A scheduler that runs one thread at a time, in an order that a seed decides.

`Scheduler.run` calls a function in a thread of its own. While it does, the modules of some packages
have other `threading`, `queue` and `time` (`logweir.testing.primitives`): wherever one of their
threads takes or gives a lock, waits, wakes another one, begins or ends, the scheduler picks the one
that goes on, and it stands still in between. Time stands still, too; it passes by chance, and where
all threads wait it goes on to the first moment for which one of them waits. So a seed repeats a run
exactly, and a run in which nobody can go on is found at once (`Stuck`), with what each waits for.

Threads are real ones, and what one does between two such places is not interrupted, compiled code
that gives the interpreter's lock up included. With `lines` it may be, at a line of code.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import random
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from logweir.testing.primitives import modules_of

_REAL: Final = {"threading": threading, "queue": queue, "time": time}
_OWN: Final = ("logweir.testing.", "logweir.recovery.faults.")
"""The packages whose threads and locks are the real ones."""
_NOT_TOLD: Final = (threading.__file__, str(Path(__file__).parent))
"""Files that are left out where it is told what threads do."""
_REAL_SECONDS: Final = 60.0
_WAITS_MAX: Final = 3000
"""So often time may go on because all wait, before one says that it got on."""


class Killed(BaseException):
    """What ends a thread where the whole schedule is ended."""


class Stuck(AssertionError):
    """No thread can go on, or they go on for ever."""


class Task:
    """One thread. `owner`: what the program knows it as; `group`: which of several processes it
    belongs to; `where`: it stopped last."""

    def __init__(self, name: str, run: Callable[[], object], owner: object, group: object) -> None:
        self.name, self.run, self.owner, self.group = name, run, owner, group
        self.is_killed = False
        self.where = "begin"
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.is_done = False
        self.weight = 1.0
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.serve: Callable[[Task], None] = lambda _: None

    def _serve(self) -> None:
        self.serve(self)

    def can_go_on(self, seconds: float) -> bool:
        """Whether it waits for nothing, at that time."""
        if self.is_done:
            return False
        if (
            self.ready is None
            or self.is_killed
            or (self.deadline is not None and self.deadline <= seconds)
        ):
            return True
        return self.ready()


class Scheduler:
    """See the module. `seed`: decides everything; `packages`: the names of those whose modules get
    other primitives, as far as they are loaded; `lines`: how often a line of a file below one of
    `within` is a place to stop at, 0.0 … 1.0; `steps`: more are a failure."""

    def __init__(
        self,
        seed: int,
        *,
        packages: tuple[str, ...] = ("logweir",),
        lines: float = 0.0,
        within: tuple[Path, ...] = (),
        steps: int = 1_000_000,
    ) -> None:
        self.seconds = 0.0
        """The time by `time.monotonic`."""
        self.history: list[str] = []
        """Which thread stopped where, from the beginning."""
        self.failure: BaseException | None = None
        """What a thread raised, or `Stuck`."""
        self.is_ending = False
        self.on_step: Callable[[str], object] = lambda _where: None
        """Called at each place, in its thread, before the next thread is picked."""
        self._packages, self._steps = packages, steps
        self._lines, self._within = lines, tuple(str(path) for path in within)
        self._dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        # Threads of which all are alike; of which one goes on for long; of which some are slow.
        self._stays = self._dice.choice((0.0, 0.0, 0.7, 0.95))
        self._spread = self._dice.choice((0.0, 0.0, 3.0))
        self._passes = self._dice.choice((0.0, 0.002, 0.02))
        self._tasks: list[Task] = []  # that have not ended
        self._started = 0
        self._current: Task | None = None
        self._waits = 0
        self._worked = 0.0
        self._over = _thread.allocate_lock()

    # --- for whoever runs something ---------------------------------------------------------------

    def run(self, call: Callable[[], object]) -> None:
        """Let `call` run, with all threads that it starts, to their end or `end`. Raises what one
        of them raised, `Stuck` where they cannot go on."""
        self._over.acquire()
        with self._installed():
            first = self.start("main", call)
            self._current = first
            first.baton.release()
            if not self._over.acquire(timeout=_REAL_SECONDS):
                raise Stuck(f"a call does not return:\n{self.stacks()}")
        self.is_ending = True
        if self.failure is not None:
            raise self.failure

    def start(
        self, name: str, run: Callable[[], object], owner: object = None, group: object = None
    ) -> Task:
        """Begin a thread. `owner`: what `threading.current_thread` gives in it; `group`: what
        `kill` knows it by, None: the same as of the thread that begins it."""
        starter = self._current
        if group is None and starter is not None:
            group = starter.group
        task = Task(f"{name}-{self._started}", run, owner, group)
        task.serve = self._serve
        task.weight = 2.0 ** self._dice.uniform(-self._spread, self._spread)
        if self.is_ending or (starter is not None and starter.is_killed):
            task.is_done = True
            return task
        self._started += 1
        self._tasks.append(task)
        task.thread.start()
        if self._current is not None:
            self.pause(f"start {task.name}")
        return task

    def end(self) -> None:
        """End all threads where they are: each raises `Killed`, this one at once."""
        self.is_ending = True
        raise Killed

    def kill(self, group: object) -> None:
        """End the threads of one process where they are, of several that run under this schedule:
        each raises `Killed`; where this one is of them, at once. `is_gone` tells when all have."""
        for task in self._tasks:
            if task.group is group:
                task.is_killed = True
        self.check()

    def is_gone(self, group: object) -> bool:
        """Whether no thread of a process is left."""
        return all(task.group is not group for task in self._tasks)

    def hurry(self, task: Task, seconds: float) -> None:
        """Let a thread that waits do so until that moment at most."""
        if task.deadline is None or task.deadline > seconds:
            task.deadline = seconds

    def keep_time(self) -> None:
        """From now on time passes only where all threads wait."""
        self._passes = 0.0

    def got_on(self) -> None:
        """Say that something was done for which the program is there, so that it is not taken for
        one that waits for ever."""
        self._waits = 0

    # --- for primitives, and for what stands for the world ----------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing is scheduled: it ends, or this thread's process does, or this thread is
        none of its own."""
        current = self._current
        if self.is_ending or current is None or current.is_killed:
            return True
        return current.thread.ident != threading.get_ident()

    @property
    def current(self) -> Task:
        """The thread that runs."""
        assert self._current is not None
        return self._current

    def work(self) -> float:
        """As `time.thread_time`: what a thread has used, of which chance says how much it is."""
        self._worked += self._dice.choice((0.0, 0.00001, 0.001))
        return self._worked

    def check(self) -> None:
        """Raise `Killed` where all threads are to end, or those of this one's process."""
        if self.is_ending or (self._current is not None and self._current.is_killed):
            raise Killed

    def pause(self, where: str) -> None:
        """A place at which another thread may go on. Raises `Killed`."""
        self._stop(where, None, None)

    def wait(self, where: str, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Go on only where `ready` holds, or after so many seconds. Whether it holds. Raises
        `Killed`."""
        deadline = None if seconds is None else self.seconds + seconds
        self._stop(where, ready, deadline)
        return ready()

    def stacks(self) -> str:
        """Where each thread is."""
        frames = sys._current_frames()
        parts = []
        for task in self._tasks:
            frame = frames.get(task.thread.ident or 0)
            if not task.is_done and frame is not None:
                stack = traceback.extract_stack(frame)
                left = [one for one in stack if not one.filename.startswith(_NOT_TOLD)]
                text = "".join(traceback.format_list(left))
                parts.append(f"--- {task.name} stops at: {task.where}\n{text}")
        return "\n".join(parts)

    # --- inside -----------------------------------------------------------------------------------

    def _stop(self, where: str, ready: Callable[[], bool] | None, deadline: float | None) -> None:
        if self.is_over:
            self.check()
            return
        task = self.current
        task.where, task.ready, task.deadline = where, ready, deadline
        self.history.append(f"{task.name} {where}")
        self.on_step(where)
        following = self._following(task)
        assert following is not None
        if following is not task:
            self._current = following
            following.baton.release()
            task.baton.acquire()
        task.ready = task.deadline = None
        self.check()

    def _following(self, task: Task) -> Task | None:
        """Who goes on; None if all have ended."""
        while True:
            left = self._tasks
            if self.is_ending or not left:
                return task if task in left else next(iter(left), None)
            if len(self.history) > self._steps:
                self._fail(Stuck(f"no end after {self._steps} steps:\n{self.stacks()}"))
                continue
            if self._passes and self._dice.random() < self._passes:
                self.seconds += self._dice.choice((0.001, 0.1, 0.6, 2.0))
            able = [one for one in left if one.can_go_on(self.seconds)]
            if task in able and self._dice.random() < self._stays:
                return task
            if able:
                return self._dice.choices(able, [one.weight for one in able])[0]
            self._pass_time(left)

    def _pass_time(self, left: list[Task]) -> None:
        """All wait."""
        self._waits += 1
        moments = [one.deadline for one in left if one.deadline is not None]
        if moments and self._waits <= _WAITS_MAX:
            self.seconds = min(moments)
            return
        what = "every thread waits" if not moments else "threads wait again and again"
        self._fail(Stuck(f"{what}:\n{self.stacks()}"))

    def _fail(self, error: BaseException) -> None:
        if self.failure is None and not self.is_ending:
            self.failure = error
        self.is_ending = True

    def _serve(self, task: Task) -> None:
        """A thread."""
        task.baton.acquire()
        if self._lines:
            sys.settrace(self._trace)
        try:
            if not self.is_ending:
                task.run()
        except Killed as killed:
            with warnings.catch_warnings():  # files that are open go with the process
                warnings.simplefilter("ignore", ResourceWarning)
                killed.__traceback__ = None
        except BaseException as error:
            if not task.is_killed:
                self._fail(error)
        finally:
            sys.settrace(None)
            task.is_done = True
            self._tasks.remove(task)
            following = self._following(task)
            self._current = following
            (self._over if following is None else following.baton).release()

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        return self._line if file.startswith(self._within) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.is_over and self._dice.random() < self._lines:
            self.pause(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self._line

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """The primitives of this schedule, in the modules that are loaded."""
        instead = modules_of(self)
        changed: list[tuple[dict[str, Any], str]] = []
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] not in self._packages or f"{name}.".startswith(_OWN):
                continue
            names = vars(module)
            changed += [(names, one) for one, real in _REAL.items() if names.get(one) is real]
        try:
            for names, one in changed:
                names[one] = instead[one]
            yield
        finally:
            for names, one in changed:
                names[one] = _REAL[one]
