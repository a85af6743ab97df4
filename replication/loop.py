"""The event loop of a process that serves, follows or asks."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from logweir.limits import MALLOC_ARENAS, MALLOC_KEPT_BYTES, MALLOC_SHARED_BYTES
from logweir.replication.portkernel import BusyPoll
from logweir.store.state import heap

try:
    from logweir.replication import pollkernel
except ImportError:
    pollkernel = None  # type: ignore[assignment]

SWITCH_SECONDS: Final = 0.001
"""How long a thread of a serving process may keep the interpreter while another one waits."""

BUSY_POLL_SECONDS: Final = 0.0001
"""How long a server that has answered looks for what comes next before it sleeps."""

BUSY_POLL_MAX_SECONDS: Final = 0.01
"""The longest that this can be set to."""

T = TypeVar("T")


def _prepare_process() -> None:
    """Spare a process that moves large blocks of bytes costs that come again and again.

    glibc gives freed blocks of 128 KiB and more back to the system, which fills those that come
    next with zeros, page by page; they are kept up to `MALLOC_KEPT_BYTES`. And what was imported
    lives as long as the process: the collector of cycles need not look at it. The thread that
    commits and the one that talks to the peers hand the interpreter to each other all the time:
    neither should wait long for it.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    heap.set_limits(
        shared_bytes=MALLOC_SHARED_BYTES, kept_bytes=MALLOC_KEPT_BYTES, arenas=MALLOC_ARENAS
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run an event loop: uvloop's if that is installed."""
    _prepare_process()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The time of a loop in seconds, as exact as there is: that of uvloop is in whole
    milliseconds (observed with 0.21)."""
    return time.monotonic if hasattr(loop, "_get_backend_id") else loop.time


def busy_poll(seconds: float) -> BusyPoll | None:
    """How the loop that runs waits for what comes to its connections; None if it sleeps at once:
    for 0 seconds, without the compiled kernels, or where a loop does not say what it waits on."""
    loop = asyncio.get_running_loop()
    file = _waits_on(loop)
    if pollkernel is None or seconds <= 0 or file < 0:
        return None
    return BusyPoll(seconds, partial(pollkernel.look, file), loop.call_soon)


def _waits_on(loop: Any) -> int:
    """The descriptor that can be read when a loop has something to do; below 0 for none."""
    try:
        is_uvloop = not isinstance(loop, asyncio.SelectorEventLoop)
        return int(loop._get_backend_id() if is_uvloop else loop._selector.fileno())
    except (AttributeError, TypeError, ValueError):
        return -1
