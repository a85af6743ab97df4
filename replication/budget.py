"""Bytes that connections hold in memory, and what is done when they are many.

`Unanswered` is for everything that a peer sent and that waits: requests without an answer, rows
that are not stored. Above a limit nothing more is read of that peer until half of it is gone, so a
slow disk slows its clients down instead of filling the memory.

A `Budget` is for all connections of a server together. They hold

=========  =========================================================================================
kind       what, and what is done if it is too much
=========  =========================================================================================
frames     messages whose rest has not come. Who holds most of them is closed; those who have not
           said who they are have a small part of the budget for this, and are closed among
           themselves
requests   what is `Unanswered`. A connection with more of it than the budget has left is not read,
           until half of it is gone
answers    what the peer has not taken, with what it has taken of a piece that was written at once,
           which is free when all of it is taken; and what is held for it beside: what it subscribes
           to, what it has not acknowledged. For a connection with more of it than the budget has
           left nothing more is made; if the budget is passed all the same, who holds most is closed
=========  =========================================================================================

So a connection has always as much as is left for another one, whoever came first, and one that
needs little is not refused for those that take much. Up to `limits.MEMORY_FREE_BYTES` nobody is
looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from logweir.errors import ConfigError
from logweir.limits import (
    LAYER_BYTES,
    MALLOC_KEPT_BYTES,
    MEMORY_BYTES,
    MEMORY_FREE_BYTES,
    MEMORY_LEAST_BYTES,
    MEMORY_STRANGERS_SHARE,
)
from logweir.replication.portkernel import Unanswered

__all__ = ["Budget", "Holder", "Unanswered"]

_LAYERS_BYTES: Final = 2 * LAYER_BYTES  # where changes wait until the state has taken some
_LOOK_SECONDS: Final = 0.1


class Holder(Protocol):
    """What is asked of a link here. `kept_bytes`: of frames whose rest has not come;
    `held_bytes`: of answers; `is_known`: it has said who it is; `gone`: done when it has
    ended."""

    budget: Budget | None
    kept_bytes: int
    is_known: bool
    gone: asyncio.Future[str]

    @property
    def held_bytes(self) -> int:
        """See the class."""

    def hold_reading(self) -> None:
        """Read nothing more of the peer."""

    def resume_reading(self) -> None:
        """End that."""

    def give_up(self, reason: str) -> None:
        """Cut the connection."""


class Budget:
    """See the module's text. `memory_bytes`: for everything, what the state has not taken yet
    included; `on_closed`: told of each connection that is closed for it; `on_freed`: called when
    connections that held `limits.MALLOC_KEPT_BYTES`, each at most, have ended.

    Raises `ConfigError` for less than `limits.MEMORY_LEAST_BYTES`.
    """

    def __init__(
        self,
        memory_bytes: int = MEMORY_BYTES,
        *,
        on_closed: Callable[[Holder], None] = lambda holder: None,
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        if memory_bytes < MEMORY_LEAST_BYTES:
            raise ConfigError(
                "memory",
                f"{memory_bytes} bytes are too few",
                origin="--memory",
                hint=f"give {MEMORY_LEAST_BYTES} at least",
            )
        self.memory_bytes = memory_bytes
        self.limit_bytes = memory_bytes - _LAYERS_BYTES
        self.strangers_limit_bytes = memory_bytes // MEMORY_STRANGERS_SHARE
        self.frames_bytes = 0
        self.strangers_bytes = 0  # of these
        self.requests_bytes = 0
        self.closed = 0
        self._answers_bytes = 0
        self._looked_at = float("-inf")
        self._holders: dict[Holder, int] = {}  # and how much of answers it held at most
        self._freed_bytes = 0
        self._on_closed = on_closed
        self._on_freed = on_freed

    @property
    def used_bytes(self) -> int:
        """Held by all connections; of answers about."""
        return self.frames_bytes + self.requests_bytes + self._answers_bytes

    @property
    def left_bytes(self) -> int:
        """What a connection may hold."""
        return max(self.limit_bytes - self.used_bytes, MEMORY_FREE_BYTES)

    def status(self) -> dict[str, Any]:
        """In plain values."""
        self._count_answers()
        return {
            "limit_bytes": self.memory_bytes,
            "unfinished_frames_bytes": self.frames_bytes,
            "requests_bytes": self.requests_bytes,
            "answers_bytes": self._answers_bytes,
            "closed_connections": self.closed,
        }

    def join(self, holder: Holder) -> None:
        """A connection begins."""
        self._holders[holder] = 0

    def leave(self, holder: Holder) -> None:
        """It has ended."""
        if holder in self._holders:
            self._freed_bytes += holder.kept_bytes + self._holders[holder]
            self.keep(holder, 0)
            del self._holders[holder]
            if self._freed_bytes >= MALLOC_KEPT_BYTES:
                self._freed_bytes = 0
                self._on_freed()

    def know(self, holder: Holder) -> None:
        """It says who it is."""
        if not holder.is_known and holder in self._holders:
            self.strangers_bytes -= holder.kept_bytes
        holder.is_known = True

    def keep(self, holder: Holder, kept_bytes: int) -> None:
        """So many bytes of a frame have come, without its rest."""
        if holder not in self._holders:
            return
        grown = kept_bytes - holder.kept_bytes
        holder.kept_bytes = kept_bytes
        self.frames_bytes += grown
        if not holder.is_known:
            self.strangers_bytes += grown
        if grown > 0:
            while self.strangers_bytes > self.strangers_limit_bytes:
                strangers = (one for one in self._holders if not one.is_known)
                largest = max(strangers, key=lambda one: one.kept_bytes)
                self._close(largest, "who have not logged in")
            self._relieve()

    def wrote(self, holder: Holder, size_bytes: int, now: float) -> bool:
        """So many bytes were written of which some are unsent. Returns whether it holds more of
        such than it may."""
        self._answers_bytes += size_bytes
        if self.used_bytes > self.limit_bytes // 2 and now >= self._looked_at + _LOOK_SECONDS:
            self._looked_at = now
            self._count_answers()
        self._relieve()
        held_bytes = holder.held_bytes
        if held_bytes > self._holders.get(holder, held_bytes):
            self._holders[holder] = held_bytes
        return held_bytes > self.left_bytes

    def _count_answers(self) -> None:
        self._answers_bytes = sum([one.held_bytes for one in tuple(self._holders)])

    def _relieve(self) -> None:
        """Close who holds most until there is room."""
        if self.used_bytes <= self.limit_bytes:
            return
        self._count_answers()
        while self.used_bytes > self.limit_bytes:
            holding = (one for one in self._holders if _held(one) > MEMORY_FREE_BYTES)
            largest = max(holding, key=_held, default=None)
            if largest is None:
                return
            self._close(largest, "together")

    def _close(self, holder: Holder, who: str) -> None:
        self.closed += 1
        self._on_closed(holder)
        held = _held(holder)
        self.leave(holder)
        self._count_answers()
        holder.give_up(
            f"memory is short: of all connections {who} this one held most, {held} bytes that it "
            "did not finish or take"
        )


def _held(holder: Holder) -> int:
    return holder.kept_bytes + holder.held_bytes
