"""Waiting for what another process or thread does, where there is nothing to wait on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STEP_SECONDS = 0.005
"""Between two looks: the peer may need the processor that a loop without a pause would take."""


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Look repeatedly until it holds; fails if it does not in that many seconds."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come about in {seconds} s"
        pause.wait(STEP_SECONDS)
