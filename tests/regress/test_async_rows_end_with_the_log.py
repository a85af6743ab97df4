"""`AsyncLog.rows(follow=True)` waited for ever when the log was closed while it waited."""

from __future__ import annotations

import asyncio
from pathlib import Path

from logweir import aio


def test_following_rows_ends_when_the_log_is_closed(tmp_path: Path) -> None:
    """A task that waits at the end of the log goes on when the log is closed, and ends."""

    async def scenario() -> int:
        log = await aio.open(tmp_path)
        await log.run(lambda sync: sync.create_space("event", format=[("id", "unsigned")]))
        await log.insert("event", (1,))
        seen_all = asyncio.Event()

        async def follow() -> int:
            count = 0
            async for _ in log.rows(follow=True):
                count += 1
                if count == 2:
                    seen_all.set()
            return count

        following = asyncio.create_task(follow())
        await asyncio.wait_for(seen_all.wait(), 20)
        await log.close()
        return await asyncio.wait_for(following, 20)

    assert asyncio.run(scenario()) == 2
