"""Keeping logs for followers: what is noted becomes durable, what is forgotten goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import logweir
from logweir.errors import WalError
from logweir.replication.metrics import Metrics
from logweir.replication.stream.retention import Retention
from logweir.wal.failpoint import arm, disarm

PLACE = "followers.before_rename"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store whose failpoints are disarmed at the end."""
    with logweir.open(tmp_path, "none") as opened:
        yield opened
        disarm()


def kept(log: logweir.Log) -> dict[str, dict[int, int]]:
    """Who keeps logs, from where on."""
    return log.status()["followers"]  # type: ignore[no-any-return]


def test_positions_become_durable_and_forgotten_ones_go(log: logweir.Log) -> None:
    """The last word of each follower counts."""

    async def main() -> None:
        retention = Retention(log, metrics=Metrics())
        retention.keep("a", logweir.VClock({1: 1}))
        retention.keep("a", logweir.VClock({1: 2}))
        retention.keep("b", logweir.VClock({1: 3}))
        retention.forget("b")
        retention.forget("never heard of")
        await retention.look()
        assert kept(log) == {"a": {1: 2}}
        retention.forget("a")
        retention.keep("a", logweir.VClock({1: 4}))
        await retention.look()
        assert kept(log) == {"a": {1: 4}}
        retention.forget("a")
        await retention.look()
        assert kept(log) == {}

    asyncio.run(main())


def test_what_could_not_be_stored_is_stored_the_next_time(log: logweir.Log) -> None:
    """A disk that fails once: neither a position nor a farewell is forgotten; newer words win."""

    async def main() -> None:
        retention = Retention(log, metrics=Metrics())
        log.retain("old", {})
        log.retain("stays", {})
        retention.keep("a", logweir.VClock({1: 2}))
        retention.keep("b", logweir.VClock({1: 2}))
        retention.forget("old")
        retention.forget("stays")

        def fail() -> None:
            # While the disk fails, the followers go on.
            retention.keep("b", logweir.VClock({1: 3}))
            retention.keep("stays", logweir.VClock({1: 3}))
            raise OSError(5, "Input/output error")

        arm(PLACE, fail)
        with pytest.raises(WalError):
            await retention.look()
        disarm()
        await retention.look()
        assert kept(log) == {"a": {1: 2}, "b": {1: 3}, "stays": {1: 3}}

    asyncio.run(main())


def test_who_is_cancelled_while_it_is_kept_can_be_forgotten(log: logweir.Log) -> None:
    """The thread that keeps the logs ends before the one that lets them go begins."""
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        go_on.wait(10)

    async def main() -> None:
        retention = Retention(log, metrics=Metrics())
        arm(PLACE, wait)
        keeping = asyncio.ensure_future(retention.keep_now("a", log.vclock))
        await asyncio.to_thread(entered.wait, 10)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        retention.forget("a")
        looking = asyncio.ensure_future(retention.look())
        go_on.set()
        await looking
        assert kept(log) == {}

    asyncio.run(main())


def test_who_is_cancelled_before_it_is_kept_can_be_forgotten(log: logweir.Log) -> None:
    """While somebody else has the turn: what was forgotten meanwhile is not kept after all."""

    async def main() -> None:
        retention = Retention(log, metrics=Metrics())
        async with retention._busy:
            keeping = asyncio.create_task(retention.keep_now("a", logweir.VClock({1: 1})))
            await asyncio.sleep(0)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            retention.forget("a")
        await retention.keep_now("b", logweir.VClock({1: 2}))
        await retention.look()
        assert kept(log) == {"b": {1: 2}}

    asyncio.run(main())


def test_a_follower_may_keep_as_much_as_the_bound(tmp_path: Path) -> None:
    """One byte less, and it is evicted."""

    async def look(log: logweir.Log, most: int) -> list[str]:
        evicted: list[str] = []
        retention = Retention(log, metrics=Metrics(), max_bytes=most)
        retention.attend(
            evicted=lambda name, reason: evicted.append(name),
            departed=lambda names: (),
            forgotten=lambda name: None,
        )
        await retention.look()
        return evicted

    with logweir.open(tmp_path, checkpoint_count=1) as log:
        log.create_space("t", format=[("id", "unsigned")])
        log.retain("a", {1: 0})
        for number in range(2):
            log.insert("t", (number,))
            log.snapshot()
        (size,) = log.inner.pinned_bytes().values()
        assert size > 0
        assert asyncio.run(look(log, size)) == []
        assert asyncio.run(look(log, size - 1)) == ["a"]
