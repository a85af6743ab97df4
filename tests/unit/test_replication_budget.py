"""What waits for its turn, and when its peer is read; what all connections hold together."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from logweir.errors import ConfigError
from logweir.limits import (
    LAYER_BYTES,
    MALLOC_KEPT_BYTES,
    MEMORY_BYTES,
    MEMORY_FREE_BYTES,
    MEMORY_LEAST_BYTES,
)
from logweir.replication.budget import Budget, Unanswered

LIMIT_BYTES = MEMORY_LEAST_BYTES - 2 * LAYER_BYTES


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test, run in an event loop."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Peer:
    """What a link is to a budget."""

    def __init__(self, budget: Budget | None = None, *, is_known: bool = False) -> None:
        self.budget = budget
        self.kept_bytes = 0
        self.held_bytes = 0
        self.is_known = is_known
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.holds = 0
        self.reason = ""
        if budget is not None:
            budget.join(self)

    def hold_reading(self) -> None:
        self.holds += 1

    def resume_reading(self) -> None:
        self.holds -= 1

    def give_up(self, reason: str) -> None:
        assert not self.reason
        self.reason = reason

    def write(self, size_bytes: int, now: float = 0.0) -> bool:
        """So much more is unsent."""
        assert self.budget is not None
        self.held_bytes += size_bytes
        return self.budget.wrote(self, size_bytes, now)


@in_a_loop
async def test_a_peer_is_read_again_when_half_of_the_limit_is_gone() -> None:
    """Above the limit it is held, once; told are both ends."""
    peer = Peer()
    told: list[bool] = []
    waiting = Unanswered(peer, 100, told.append)
    waiting.add(60)
    waiting.add(40)
    assert (peer.holds, told) == (0, [])
    waiting.add(1)
    waiting.add(500)
    assert (peer.holds, told, waiting.is_holding) == (1, [True], True)
    waiting.add(-550)
    assert peer.holds == 1
    waiting.add(-1)
    assert (peer.holds, told, waiting.size_bytes) == (0, [True, False], 50)
    waiting.set(101)
    waiting.set(51)
    assert peer.holds == 1
    waiting.set(0)
    assert (peer.holds, told) == (0, [True, False, True, False])


@in_a_loop
async def test_who_is_told_goes_with_its_connection() -> None:
    """What a conversation holds is free when its connection has ended, without a garbage
    collection."""

    class Conversation:
        def __init__(self, link: Peer) -> None:
            self.unanswered = Unanswered(link, 100, self.tell)

        def tell(self, is_held: bool) -> None:
            raise AssertionError("nobody is there any more")

    gc.disable()
    try:
        peer = Peer()
        known = weakref.ref(Conversation(peer))
        assert known() is not None
        peer.gone.set_result("")
        await asyncio.sleep(0)
        assert known() is None
    finally:
        gc.enable()


@in_a_loop
async def test_nobody_has_more_requests_waiting_than_is_left_for_another() -> None:
    """Any number of peers that send without end stay below the budget, and one with little is read;
    each is read again when half is gone, and what one that has ended left is free."""
    budget = Budget(MEMORY_LEAST_BYTES)
    peers = [Peer(budget) for _ in range(50)]
    waiting = [Unanswered(peer, 1 << 40) for peer in peers]
    for one in waiting:
        while not one.is_holding:
            one.add(10_000)
    assert waiting[0].size_bytes > LIMIT_BYTES // 2
    assert budget.used_bytes <= LIMIT_BYTES + 50 * (MEMORY_FREE_BYTES + 10_000)
    late = Unanswered(newcomer := Peer(budget), 1 << 40)
    late.add(MEMORY_FREE_BYTES)
    assert newcomer.holds == 0
    peers[0].gone.set_result("")
    await asyncio.sleep(0)
    assert budget.used_bytes < LIMIT_BYTES // 2 + 60 * MEMORY_FREE_BYTES
    for one in waiting[1:]:
        one.add(-one.size_bytes)
    assert not any(peer.holds for peer in peers)
    late.add(-MEMORY_FREE_BYTES)
    assert budget.used_bytes == 0


@in_a_loop
async def test_strangers_have_a_small_part_for_unfinished_frames() -> None:
    """Of them who holds most is closed, again and again; not one with little, nor one that has said
    who it is, whose frame may be as large as the budget."""
    told: list[object] = []
    budget = Budget(MEMORY_LEAST_BYTES, on_closed=told.append)
    small, known = Peer(budget), Peer(budget)
    budget.keep(small, 1000)
    budget.keep(known, 5000)
    budget.know(known)
    strangers = [Peer(budget) for _ in range(16)]
    for size in range(100_000, 30_000_000, 100_000):
        for one in strangers:
            if not one.reason:
                budget.keep(one, size)
                assert budget.strangers_bytes <= budget.strangers_limit_bytes
    assert sum(not one.reason for one in strangers) == 0
    assert "memory is short" in strangers[0].reason
    assert told == [one for one in told if one in strangers]
    assert budget.closed == 16
    budget.keep(known, LIMIT_BYTES - 1000)
    assert not small.reason
    assert not known.reason
    budget.keep(known, LIMIT_BYTES)
    assert known.reason
    budget.leave(small)
    assert budget.used_bytes == budget.strangers_bytes == 0


@in_a_loop
async def test_answers_that_nobody_takes_are_bounded_over_all_connections() -> None:
    """A connection is told when it holds more than is left; where one goes on all the same, it is
    closed for those that hold less. What was taken meanwhile is found out."""
    budget = Budget(MEMORY_LEAST_BYTES)
    first, second, third = (Peer(budget) for _ in range(3))
    assert not first.write(LIMIT_BYTES // 3)
    assert first.write(LIMIT_BYTES // 3)
    assert not second.write(MEMORY_FREE_BYTES)
    first.held_bytes = 0  # it took all
    assert not second.write(LIMIT_BYTES // 3, now=1.0)
    assert budget.used_bytes == second.held_bytes
    third.write(LIMIT_BYTES // 2, now=2.0)
    first.write(LIMIT_BYTES // 4, now=3.0)
    assert third.reason
    assert not first.reason
    assert not second.reason
    assert budget.status()["closed_connections"] == 1
    assert budget.used_bytes == first.held_bytes + second.held_bytes


def test_too_little_memory_is_a_config_error() -> None:
    """It names the option and the least."""
    with pytest.raises(ConfigError, match="memory") as caught:
        Budget(MEMORY_LEAST_BYTES - 1)
    assert str(MEMORY_LEAST_BYTES) in caught.value.hint
    assert Budget().memory_bytes == MEMORY_BYTES


@in_a_loop
async def test_what_ended_connections_held_is_told_to_be_free() -> None:
    """When it is much together: frames, and the most that each had unsent."""
    freed: list[int] = []
    budget = Budget(MEMORY_LEAST_BYTES, on_freed=lambda: freed.append(1))
    part = MALLOC_KEPT_BYTES // 4
    for number in range(8):
        peer = Peer(budget, is_known=True)
        if number % 2:
            budget.keep(peer, part)
        else:
            peer.write(part)
            peer.write(-part)  # it has taken it, and has held it all the same
        assert len(freed) == number // 4
        budget.leave(peer)
    assert len(freed) == 2
