"""Named places at which a test stops, kills or breaks the program.

`failpoint("store.after_sync")` stands beside the line that could fail. It costs one test of an
empty map while nothing is armed. A child process is armed through the environment:
``LOGWEIR_FAILPOINTS="store.after_sync=kill@3"`` kills it with SIGKILL at the third pass.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from logweir.errors import ConfigError

_armed: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Do what is armed under `name`; nothing by default. Raises what the armed action raises."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` each time the program passes `name`, in the thread that passes it."""
    _armed[name] = action


def disarm() -> None:
    """Forget everything that was armed."""
    _armed.clear()


def kill_at(name: str, count: int) -> None:
    """Kill the process the `count`-th time that it passes `name`."""
    left = [count]

    def action() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(name, action)


def arm_from_environment() -> None:
    """Arm what ``LOGWEIR_FAILPOINTS`` says. Raises `ConfigError` for what it cannot read."""
    for entry in filter(None, os.environ.get("LOGWEIR_FAILPOINTS", "").split(",")):
        name, _, what = entry.partition("=")
        word, _, count = what.partition("@")
        if not name or word != "kill" or not (count or "1").isdigit():
            raise ConfigError(
                "LOGWEIR_FAILPOINTS",
                f"{entry!r} is not NAME=kill or NAME=kill@COUNT",
                origin="environment",
            )
        kill_at(name, int(count or "1"))


arm_from_environment()
