"""Bytes that connections hold in memory, and what is done when they are many.

`Unanswered` is for everything that a peer sent and that waits: requests without an answer, rows
that are not stored. Above a limit nothing more is read of that peer until half of it is gone, so a
slow disk slows its clients down instead of filling the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Reading", "Unanswered"]


class Reading(Protocol):
    """What is asked of a link here."""

    def hold_reading(self) -> None:
        """Read nothing more of the peer."""
        ...

    def resume_reading(self) -> None:
        """End that."""
        ...


class Unanswered:
    """What a peer has sent and waits for its turn. `limit_bytes`: above so much the peer is not
    read; `told`: called with True when that begins, with False when it ends."""

    __slots__ = ("_link", "_told", "is_holding", "limit_bytes", "size_bytes")

    def __init__(
        self, link: Reading, limit_bytes: int, told: Callable[[bool], None] = lambda held: None
    ) -> None:
        self._link = link
        self._told = told
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.is_holding = False

    def add(self, size_bytes: int) -> None:
        """So much more waits."""
        self.set(self.size_bytes + size_bytes)

    def done(self, size_bytes: int) -> None:
        """So much of it waits no longer."""
        self.set(self.size_bytes - size_bytes)

    def set(self, size_bytes: int) -> None:
        """So much waits in all."""
        self.size_bytes = size_bytes
        if self.is_holding:
            if size_bytes <= self.limit_bytes // 2:
                self.is_holding = False
                self._link.resume_reading()
                self._told(False)
        elif size_bytes > self.limit_bytes:
            self.is_holding = True
            self._told(True)
            self._link.hold_reading()
