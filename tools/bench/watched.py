"""`logweir serve`, told how long the turns of its event loop take: for `logweir bench fair`.

A turn is one callback of the loop: nobody else is answered meanwhile. Its processor time tells what
it costs on a machine that others use, too. The loop is asyncio's own, whose callbacks can be timed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Final

_TOLD_SECONDS: Final = 0.002


def run(path: str) -> None:
    """Run the program of the command line; append turns of more than 2 ms to a file: when they
    ended by the monotonic clock, their seconds, what they were."""
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    from logweir.tools.cli.main import run as run_program

    handle: Any = asyncio.Handle
    run_handle = handle._run
    told = Path(path).open("a", buffering=1)  # noqa: SIM115 - until the process ends

    def timed(self: Any) -> None:
        callback = self._callback
        began = time.thread_time()
        run_handle(self)
        seconds = time.thread_time() - began
        if seconds > _TOLD_SECONDS:
            told.write(f"{time.monotonic()} {seconds} {_name(callback)}\n")

    handle._run = timed
    run_program()


def _name(callback: Any) -> str:
    """What a callback does; of a task what it awaits."""
    task = getattr(callback, "__self__", None)
    what = task.get_coro() if isinstance(task, asyncio.Task) else callback
    names = []
    while what is not None:
        names.append(getattr(what, "__qualname__", type(what).__name__))
        what = getattr(what, "cr_await", None)
    return ">".join(names)


def longest(path: Path, since: float) -> tuple[float, str]:
    """The longest turn that ended behind `since`: seconds, and what it was; 0 if all were
    short."""
    found = [(0.0, "")]
    for line in path.read_text().splitlines():
        ended, seconds, name = line.split(" ", 2)
        if float(ended) >= since:
            found.append((float(seconds), name))
    return max(found)
