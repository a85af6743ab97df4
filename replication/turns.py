"""How much of what a client sends is handled at a time, before the others have their turn.

What has come waits in the socket: a connection is given a *portion* of it, which is received and
handled, and if the portion was full nothing more is read of it until the loop has looked at all
other connections once. A portion is `limits.TURN_BYTES` at most. How much work so many bytes are
depends on what they ask for, so the time that a portion took settles how large the next one is: it
should take `limits.TURN_SECONDS` at most. Cheap bytes, such as those of large values, are therefore
handled as they come, and expensive ones in small portions. No I/O, no clock.
"""

from __future__ import annotations

import threading
from typing import Final

from logweir.limits import TURN_BYTES, TURN_SECONDS

__all__ = ["Pace", "scratch"]

_FIRST_BYTES: Final = 4096
_LEAST_BYTES: Final = 256
_SCRATCH_BYTES: Final = 64 * 1024


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.room = memoryview(bytearray(_SCRATCH_BYTES))


_scratch: Final = _Scratch()


def scratch() -> memoryview:
    """Where the connections of this thread receive; each takes out what came before the next
    one does."""
    return _scratch.room


class Pace:
    """The portions of one connection. `portion_bytes`: of the next one."""

    __slots__ = ("portion_bytes",)

    def __init__(self) -> None:
        self.portion_bytes = _FIRST_BYTES

    def worth_timing(self, count: int) -> bool:
        """Whether the time that so many bytes take settles anything."""
        return count >= _LEAST_BYTES

    def took(self, count: int, seconds: float) -> None:
        """A portion of `count` bytes took so long."""
        if seconds > TURN_SECONDS:
            fitting = int(count * TURN_SECONDS / seconds)
            self.portion_bytes = max(min(fitting, self.portion_bytes), _LEAST_BYTES)
        elif count >= self.portion_bytes and 2 * seconds < TURN_SECONDS:
            self.portion_bytes = min(2 * self.portion_bytes, TURN_BYTES)
