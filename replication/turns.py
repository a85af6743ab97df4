"""How much of what a client sends is handled at a time, before the others have their turn.

What has come waits in the socket: a connection is given a *portion* of it, which is received and
handled, and if the portion was full nothing more is read of it until the loop has looked at all
other connections once. A portion is `limits.TURN_BYTES` at most. How much work so many bytes are
depends on what they ask for, so the time that a portion took settles how large the next one is: it
should take `limits.TURN_SECONDS` at most (`portkernel.Pace`). Cheap bytes, such as those of large
values, are therefore handled as they come, and expensive ones in small portions.

What a small request asks for may be large. So who answers requests that have been read looks at the
`Turn`, and leaves the rest for the next one after `limits.TURN_ANSWER_BYTES` of answers, or
`limits.TURN_SECONDS`. A single request that takes longer is an iterator that stops after each
step, and of which each turn does some (`advance`; `Link.in_turns`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Protocol

from logweir.limits import TURN_SECONDS
from logweir.replication.portkernel import Turn

__all__ = ["Taking", "Turn", "advance", "finish"]


class Taking(Protocol):
    """What is asked of a link that is sent something in turns."""

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""

    async def drained(self) -> None:
        """Let the others have their turn, and wait until more can be sent."""


def advance(work: Iterator[None]) -> bool:
    """Do steps of `work` for a turn. Returns whether it is done."""
    end = time.thread_time() + TURN_SECONDS
    return all(time.thread_time() < end for _ in work)


async def finish(work: Generator[None, None, None], link: Taking) -> None:
    """Do the rest of `work`, turn by turn, while `link` is open and its peer takes what it is
    sent."""
    is_done = False
    with contextlib.closing(work):
        while not is_done and link.is_open:
            await link.drained()
            is_done = advance(work)
