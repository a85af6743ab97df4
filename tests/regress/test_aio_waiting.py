"""Bugs of `logweir.aio`, one test each: cancelled tasks, closed logs, ended loops."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logweir import Log, aio
from logweir.errors import WalError

WAIT_SECONDS = 20.0


async def opened(folder: Path) -> aio.AsyncLog:
    log = await aio.open(folder)
    await log.run(lambda sync: sync.create_space("kv", [("id", "unsigned")]))
    return log


def test_cancelled_changes_do_not_stop_the_queue(tmp_path: Path) -> None:
    """Whoever stops waiting for a change holds up nobody; the change is made or it is not."""

    async def main() -> None:
        log = await opened(tmp_path / "store")
        tasks = [asyncio.create_task(log.insert("kv", (key,))) for key in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert await asyncio.wait_for(log.insert("kv", (100,)), WAIT_SECONDS) == (100,)
        assert await asyncio.wait_for(log.append("kv", [(200,)]), WAIT_SECONDS) == 1
        assert (100,) in await log.select("kv")
        await log.close()

    asyncio.run(main())


def test_a_cancelled_entry_into_a_transaction_leaves_the_log_free(tmp_path: Path) -> None:
    """A task cancelled while it waits for its turn does not keep the turn when it comes."""

    async def main() -> None:
        log = await opened(tmp_path / "store")
        inside, leave = threading.Event(), threading.Event()

        def hold(sync: Log) -> None:
            with sync.transaction():
                inside.set()
                leave.wait(WAIT_SECONDS)

        async def enter() -> None:
            async with log.transaction() as tx:
                await tx.insert("kv", (1,))

        holder = asyncio.create_task(log.run(hold))
        await asyncio.to_thread(inside.wait)
        tasks = [asyncio.create_task(enter()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        leave.set()
        await holder
        assert await asyncio.wait_for(log.insert("kv", (2,)), WAIT_SECONDS) == (2,)
        await asyncio.wait_for(enter(), WAIT_SECONDS)
        assert await log.select("kv") == [(1,), (2,)]
        await log.close()

    asyncio.run(main())


def test_a_cancelled_transaction_is_rolled_back_whole(tmp_path: Path) -> None:
    """Cancelled between two statements, none of them is there, and the next one has its turn."""

    async def main() -> None:
        log = await opened(tmp_path / "store")
        begun = asyncio.Event()

        async def half() -> None:
            async with log.transaction() as tx:
                await tx.insert("kv", (1,))
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(half())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with log.transaction() as tx:
            await tx.insert("kv", (2,))
        assert await log.select("kv") == [(2,)]
        await log.close()

    asyncio.run(main())


def test_following_ends_when_the_log_is_closed(tmp_path: Path) -> None:
    """A task that waits for rows ends with the log."""

    async def main() -> None:
        log = await opened(tmp_path / "store")
        first = asyncio.Event()

        async def follow() -> int:
            seen = 0
            async for transaction in log.rows(follow=True):
                seen += len(transaction.rows)
                first.set()
            return seen

        task = asyncio.create_task(follow())
        await first.wait()
        await log.insert("kv", (1,))
        await log.close()
        assert await asyncio.wait_for(task, WAIT_SECONDS) in (3, 4)

    asyncio.run(main())


def test_following_ends_when_closing_the_log_fails(tmp_path: Path) -> None:
    """Here the snapshot of a store without a log: it is told, and nobody waits for ever."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        log = await aio.open(tmp_path / "store", durability="none")
        await log.run(lambda sync: sync.create_space("kv", [("id", "unsigned")]))

        async def follow() -> None:
            async for _ in log.rows(follow=True):
                pass

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await asyncio.to_thread(int)  # behind what it has read there
        name = f"{log.vclock.signature:020d}.snap.inprogress"
        (tmp_path / "store" / name).mkdir()
        with pytest.raises(WalError, match="is a directory"):
            await log.close()
        await asyncio.wait_for(follower, WAIT_SECONDS)

    asyncio.run(main())


def test_a_loop_that_ended_does_not_stop_the_log(tmp_path: Path) -> None:
    """What a closed event loop was told is dropped; the log underneath goes on."""
    kept: list[Log] = []
    streams = []

    async def main() -> None:
        log = await opened(tmp_path / "store")
        kept.append(log.sync)
        stream = log.rows(follow=True)
        streams.append(stream)
        await anext(stream)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    (log,) = kept
    assert log.insert("kv", (1,)) == (1,)
    assert log.insert("kv", (2,)) == (2,)
    log.close()
    asyncio.run(streams[0].aclose())


def test_tasks_side_by_side_share_syncs(tmp_path: Path) -> None:
    """Many concurrent inserts need far fewer syncs than there are of them; all are answered."""

    async def main() -> None:
        log = await opened(tmp_path / "store")
        before = log.sync.status()["syncs"]
        rows = await asyncio.gather(*(log.insert("kv", (key,)) for key in range(300)))
        assert rows == [(key,) for key in range(300)]
        assert log.sync.status()["syncs"] - before < 150
        await log.close()

    asyncio.run(main())


def test_a_turn_that_is_kept_for_cancelled_tasks_is_given_back(tmp_path: Path) -> None:
    """Tasks that waited for a transaction's end are cancelled at that very moment, all or some of
    them: neither they nor the store are held up."""

    async def main() -> None:
        log = await opened(tmp_path / "store")

        async def enter(key: int) -> None:
            async with log.transaction() as tx:
                await tx.insert("kv", (key,))

        async def hold(tasks: list[asyncio.Task[None]], cancelled: set[int]) -> None:
            async with log.transaction() as tx:  # while a thread waits for it, the others line up
                await tx.insert("kv", (0,))
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: [tasks[key - 1].cancel() for key in cancelled])

        for cancelled in ({1, 2, 3}, {1}, {1, 2}, {3}):
            await log.run(lambda sync: sync.truncate("kv"))
            tasks: list[asyncio.Task[None]] = []
            holder = asyncio.create_task(hold(tasks, cancelled))
            tasks += [asyncio.create_task(enter(key)) for key in range(1, 4)]
            await asyncio.wait([holder, *tasks], timeout=WAIT_SECONDS)
            assert [task.cancelled() for task in tasks] == [key in cancelled for key in (1, 2, 3)]
            assert await asyncio.wait_for(log.insert("kv", (9,)), WAIT_SECONDS) == (9,)
            rows = await log.select("kv")
            assert rows == [(key,) for key in (0, 1, 2, 3, 9) if key not in cancelled]
        await log.close()

    asyncio.run(main())
