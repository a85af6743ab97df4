"""Named places at which a test stops, kills or breaks the program.

`failpoint("store.after_sync")` stands beside the line that could fail. It costs one test of an
empty map while nothing is armed. A child process is armed through the environment:
``LOGWEIR_FAILPOINTS="store.after_sync=kill@3"`` kills it with SIGKILL at the third pass.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from logweir.errors import ConfigError

ARMED: Final[dict[str, Callable[[], None]]] = {}
"""What is armed: where each change passes a place that is looked at before it is called."""


def failpoint(name: str) -> None:
    """Do what is armed under `name`; nothing by default. Raises what the armed action raises."""
    if ARMED and (action := ARMED.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` each time the program passes `name`, in the thread that passes it."""
    ARMED[name] = action


def disarm() -> None:
    """Forget everything that was armed."""
    ARMED.clear()


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
