"""`Log.listen`: functions that are called for what is committed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loops import run

import logweir
from logweir import aio
from logweir.errors import ConfigError, PositionUnavailable, RequestError
from logweir.store.choosing import Changes

SECONDS = 30.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store with two spaces."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("a", [("id", "unsigned"), ("text", "string")])
        log.create_space("b", [("region", "string"), ("id", "unsigned")], primary=["region", "id"])
        yield log


def told(changes: Changes) -> list[tuple[Any, ...]]:
    """What a transaction tells."""
    return [(one.space, one.type_name, one.key) for one in changes.changes]


def test_called_in_order_and_after_the_commit(log: logweir.Log) -> None:
    """Each transaction once, though many threads write; what is told is there to be read."""
    seen: list[int] = []
    missing: list[int] = []

    def function(changes: Changes) -> None:
        for one in changes.changes:
            assert one.tuple is not None
            assert isinstance(one.tuple[0], int)
            seen.append(one.lsn)
            if log.get("a", one.tuple[0]) != one.tuple or not log.vclock.covers(changes.vclock):
                missing.append(one.lsn)

    def write(first: int) -> None:
        for number in range(first, first + 50):
            log.insert("a", (number, "x"))
            log.insert("b", ("eu", number))

    with log.listen("a", function) as listener:
        threads = [threading.Thread(target=write, args=(first,)) for first in range(0, 400, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert listener.wait(seconds=SECONDS)
        assert listener.errors == 0
    assert len(seen) == 200
    assert seen == sorted(seen)
    assert missing == []
    log.insert("a", (1000, "x"))
    assert len(seen) == 200


def test_spaces_and_keys_are_chosen(log: logweir.Log) -> None:
    """Transactions without a wanted change are passed over; of others only wanted ones come."""
    seen: list[Any] = []
    with (
        log.listen("b", lambda changes: seen.append(("b", told(changes)))) as one,
        log.listen(["a", "b"], lambda changes: seen.append(("ab", told(changes)))) as both,
        log.listen("b", lambda changes: seen.append(("eu", told(changes))), key="eu") as keyed,
    ):
        with log.transaction() as tx:
            tx.insert("a", (1, "x"))
            tx.insert("b", ("us", 1))
        log.delete("b", ("us", 1))
        log.insert("b", ("eu", 1))
        for listener in (one, both, keyed):
            assert listener.wait(seconds=SECONDS)
    us, gone, eu = (
        ("b", "INSERT", ("us", 1)),
        ("b", "DELETE", ("us", 1)),
        ("b", "INSERT", ("eu", 1)),
    )
    assert [what for name, what in seen if name == "b"] == [[us], [gone], [eu]]
    assert next(what for name, what in seen if name == "ab") == [("a", "INSERT", (1,)), us]
    assert [what for name, what in seen if name == "eu"] == [[eu]]


@pytest.mark.parametrize("error", [ValueError("not today"), SystemExit(3)])
def test_a_function_that_raises_is_told_and_goes_on(
    log: logweir.Log, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """The change is made, others are called, and so is it for the next transaction."""
    seen: list[Any] = []

    def function(changes: Changes) -> None:
        seen.append(told(changes))
        if len(seen) == 1:
            raise error

    with caplog.at_level(logging.ERROR, "logweir"), log.listen("a", function) as listener:
        log.insert("a", (1, "x"))
        log.insert("a", (2, "x"))
        assert listener.wait(seconds=SECONDS)
    assert [key for ((_, _, key),) in seen] == [(1,), (2,)]
    assert listener.errors == 1
    assert listener.last_error is error
    assert "a function of listen failed" in caplog.text
    assert listener.failure is None


def test_a_slow_function_holds_nobody_up_and_misses_nothing(tmp_path: Path) -> None:
    """Writers go on over files and snapshots while it stands; then all of it comes."""
    options: dict[str, Any] = {"wal_max_size": 2000, "checkpoint_count": 1, "durability": "write"}
    with logweir.open(tmp_path / "s", **options) as log:
        log.create_space("a", [("id", "unsigned"), ("text", "string")])
        goes_on = threading.Event()
        seen: list[Any] = []

        def function(changes: Changes) -> None:
            goes_on.wait(SECONDS)
            seen.extend(one.key for one in changes.changes)

        with log.listen("a", function) as listener:
            for number in range(300):
                log.insert("a", (number, "x" * 50))
                if number % 100 == 50:
                    log.snapshot()
            assert not listener.wait(seconds=0)
            goes_on.set()
            assert listener.wait(seconds=SECONDS)
        assert seen == [(number,) for number in range(300)]


def test_a_function_may_change_the_log_and_close(log: logweir.Log) -> None:
    """It runs beside those who write; closing from inside is no deadlock."""

    def function(changes: Changes) -> None:
        for one in changes.changes:
            assert one.key is not None
            log.replace("b", ("made", one.key[0]))
        if log.count("b") == 3:
            listener.close()

    listener = log.listen("a", function)
    for number in range(3):
        log.insert("a", (number, "x"))
    listener.wait(seconds=SECONDS)
    listener.close()
    assert (log.count("b"), listener.errors) == (3, 0)


def test_from_a_position_and_refusals(log: logweir.Log) -> None:
    """What is behind a position comes; what cannot be is refused at once."""
    before = log.vclock
    log.insert("a", (1, "x"))
    seen: list[Any] = []
    with log.listen("a", lambda changes: seen.append(told(changes)), after=before) as listener:
        assert listener.wait(seconds=SECONDS)
    assert seen == [[("a", "INSERT", (1,))]]
    for wrong in (lambda: log.listen("none", print), lambda: log.listen("a", print, key="x")):
        with pytest.raises(RequestError):
            wrong()

    async def waits(changes: Changes) -> None:
        raise AssertionError(changes)

    for function in (None, 5, waits):
        with pytest.raises(RequestError, match="no function"):
            log.listen("a", function)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        log.listen(["a", "b"], print, key=1)
    with pytest.raises(PositionUnavailable):
        log.listen("a", print, after={1: 10**6})


def test_it_ends_with_the_log(tmp_path: Path) -> None:
    """Whoever waits goes on."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("a", [("id", "unsigned")])
        listener = log.listen("a", print)
    assert not listener.wait({1: 10**6}, seconds=SECONDS)
    listener.close()
    assert listener.failure is None


def test_asyncio(tmp_path: Path) -> None:
    """The same as an iterator, which ends with the log."""

    async def main() -> None:
        async with aio.open(tmp_path / "s") as store:
            await store.run(lambda log: log.create_space("a", [("id", "unsigned")]))
            await store.run(lambda log: log.create_space("b", [("id", "unsigned")]))
            seen: list[Any] = []
            all_seen = asyncio.Event()

            found = store.listen("a")
            position = store.vclock
            with pytest.raises(RequestError, match="is no vclock"):
                store.listen("a", after=5)  # type: ignore[arg-type]

            async def take() -> None:
                async for changes in found:
                    seen.append(told(changes))
                    if len(seen) == 20:
                        all_seen.set()

            taking = asyncio.create_task(take())
            await asyncio.gather(*(store.insert("b", (n,)) for n in range(20)))
            for number in range(1, 21):
                await store.insert("a", (number,))
            async for changes in store.listen("a", after=position):
                if told(changes) == [("a", "INSERT", (20,))]:
                    break
            await asyncio.wait_for(all_seen.wait(), 30)  # it ends with the log, wherever it is
        await taking
        assert [key for ((_, _, (key,)),) in seen] == list(range(1, 21))

    run(main)
