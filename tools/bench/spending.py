"""What a program and all that it started spend: processor time, memory, wall time. From /proc.

The time of a process that has ended is its parent's only if that one waited for it; the parent of
Spark's Python workers does not, and idle ones end after a minute. So what they had spent before is
not taken from what others spend.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from logweir.tools.bench.servers import status_bytes

_MB: Final = 1e6
CPUS: Final = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
"""Those that this process may use."""


class Ticks(NamedTuple):
    """Of a process: its parent, its own processor time, and that of children waited for."""

    parent: int
    own: int
    waited: int


def ticks_between(before: Mapping[int, Ticks], after: Mapping[int, Ticks]) -> int:
    """What these processes spent from one look to the other. What one that ended between them
    spent after the first look counts if its parent waited for it."""
    none = Ticks(0, 0, 0)
    found = 0
    for pid, now in after.items():
        was = before.get(pid, none)
        ended = [one for at, one in before.items() if one.parent == pid and at not in after]
        known = sum(one.own + one.waited for one in ended)
        found += now.own - was.own + max(now.waited - was.waited - known, 0)
    return found


def _processes() -> dict[int, Ticks]:
    """Of this process and all below it."""
    every: dict[int, Ticks] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            user, system, waited_user, waited_system = map(int, fields[11:15])
            every[int(name)] = Ticks(int(fields[1]), user + system, waited_user + waited_system)
    mine = {os.getpid()}
    while more := {pid for pid, one in every.items() if one.parent in mine} - mine:
        mine |= more
    return {pid: every[pid] for pid in mine if pid in every}


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Of this process and everything below it, since each began."""
    return _seconds(ticks_between({}, _processes()))


def spent(run: Callable[[], object]) -> float:
    """Seconds of processor time, of this process and everything below it, at least a hundredth."""
    before = _processes()
    run()
    return max(_seconds(ticks_between(before, _processes())), 0.01)


def wall(run: Callable[[], object]) -> float:
    """Seconds by the clock."""
    start = time.monotonic()
    run()
    return time.monotonic() - start


@contextmanager
def only_on(cpus: Collection[int]) -> Iterator[None]:
    """Only these processors for every thread of this process and of all below it, and for those
    that they start meanwhile."""
    _use(cpus)
    try:
        yield
    finally:
        _use(CPUS)


def _use(cpus: Collection[int]) -> None:
    for pid in _processes():
        for thread in Path("/proc", str(pid), "task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), cpus)


def _workers() -> list[int]:
    """The Python processes below this one."""
    found = []
    for pid in _processes():
        try:
            if pid != os.getpid() and "python" in os.readlink(f"/proc/{pid}/exe"):
                found.append(pid)
        except OSError:
            continue
    return found


def grown(run: Callable[[], object]) -> float:
    """By how many MB the resident set of a worker grows at most while `run` runs."""
    resting = {}
    for pid in _workers():
        Path("/proc", str(pid), "clear_refs").write_text("5")
        resting[pid] = status_bytes(pid, "VmRSS")
    run()
    growth = [status_bytes(pid, "VmHWM") - size for pid, size in resting.items()]
    return max(growth, default=0) / _MB
