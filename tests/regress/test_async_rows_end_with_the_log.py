"""`AsyncLog.rows(follow=True)` waited for ever when the log was closed while it waited."""

from __future__ import annotations

import asyncio
from pathlib import Path

from logweir import aio
from logweir.wal.filesystem import OsFileSystem, ReadFile


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


def test_following_rows_reads_each_block_once(tmp_path: Path) -> None:
    """Every piece had begun at the first byte of the file again: following was quadratic."""
    reads = 0

    class Counting(OsFileSystem):
        def open_read(self, path: Path) -> ReadFile:
            nonlocal reads
            reads += path.suffix == ".xlog"
            return super().open_read(path)

    async def scenario() -> list[int]:
        nonlocal reads
        log = await aio.open(tmp_path, filesystem=Counting())
        await log.run(lambda sync: sync.create_space("event", format=[("id", "unsigned")]))
        rows = [(number,) for number in range(2500)]
        await log.run(lambda sync: sync.append("event", rows, one_transaction=False))
        reads = 0
        lsns = []
        async for transaction in log.rows(follow=True):
            lsns.append(transaction.rows[-1].lsn)
            if len(lsns) == 2502:
                break
            if len(lsns) == 2501:
                await log.insert("event", (2500,))
        await log.close()
        return lsns

    lsns = asyncio.run(scenario())
    assert lsns == sorted(set(lsns))
    assert 0 < reads <= 3
