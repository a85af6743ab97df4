"""Tests in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from support.waiting import STEP_SECONDS


def run(test: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    """Run one test in an event loop of its own, so many seconds at most."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(limited())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(STEP_SECONDS)
