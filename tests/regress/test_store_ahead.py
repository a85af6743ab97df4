"""Transactions that are made on top of others which are not durable yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.helddisk import WAIT_SECONDS, HeldDisk

import logweir
from logweir import aio
from logweir.errors import ErrorCode, RequestError, WriteFailed
from logweir.store.transaction import Transaction

MANY = 60


class Store:
    """A store with some rows in `kv`, and threads that change it."""

    def __init__(self, folder: Path) -> None:
        self.disk = HeldDisk()
        self.log = logweir.open(folder, filesystem=self.disk, write_ahead=0)
        self.log.create_space(
            "kv", [("id", "unsigned"), ("value", "string")], indexes={"value": ["value"]}
        )
        self.log.append("kv", [(key, f"v{key}") for key in range(10)])
        self.pool = ThreadPoolExecutor(8)

    def transact(self, change: Callable[[Transaction], object]) -> Future[object]:
        """Make a transaction in a thread."""

        def run() -> object:
            with self.log.transaction() as tx:
                return change(tx)

        return self.pool.submit(run)

    @contextmanager
    def held(self, change: Callable[[Transaction], object]) -> Iterator[Future[object]]:
        """One transaction has ended, and its sync does not, before the block does."""
        self.disk.waits.clear()
        self.disk.go.clear()
        first = self.transact(change)
        assert self.disk.waits.wait(WAIT_SECONDS)
        try:
            yield first
        finally:
            self.disk.go.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    made.disk.go.set()
    made.pool.shutdown()
    made.log.close()


def test_threads_share_the_syncs_of_their_transactions(tmp_path: Path) -> None:
    """One has ended and is synced: all that end meanwhile share the next sync."""
    store = Store(tmp_path / "store")
    store.pool = ThreadPoolExecutor(MANY)
    before = store.log.status()["syncs"]
    with store.held(lambda tx: tx.insert("kv", (100, "first"))) as first:
        left = threading.Semaphore(0)

        def change(tx: Transaction, key: int) -> None:
            tx.insert("kv", (key, f"v{key}"))
            left.release()

        others = [
            store.transact(lambda tx, key=key: change(tx, key)) for key in range(101, 100 + MANY)
        ]
        for _ in others:
            assert left.acquire(timeout=WAIT_SECONDS)
        assert not any(one.done() for one in (first, *others))
        assert store.log.count("kv") == 10
    for one in (first, *others):
        one.result(WAIT_SECONDS)
    assert store.log.count("kv") == 10 + MANY
    assert store.log.status()["syncs"] - before <= 4
    store.pool.shutdown()
    store.log.close()
    with logweir.open(tmp_path / "store") as log:
        assert log.count("kv") == 10 + MANY


def test_tasks_share_the_syncs_of_their_transactions(tmp_path: Path) -> None:
    """Far fewer syncs than transactions; each is answered."""

    async def main() -> None:
        async with aio.open(tmp_path / "store") as log:
            await log.run(lambda sync: sync.create_space("kv", [("id", "unsigned")]))
            before = log.sync.status()["syncs"]

            async def change(key: int) -> None:
                async with log.transaction() as tx:
                    assert await tx.insert("kv", (key,)) == (key,)
                assert log.sync.get("kv", key) == (key,)

            await asyncio.gather(*(change(key) for key in range(300)))
            assert log.sync.status()["syncs"] - before < 150
            assert log.sync.count("kv") == 300

    asyncio.run(main())


SEEN: dict[str, Callable[[Transaction], object]] = {
    "get": lambda tx: tx.get("kv", 1),
    "get-gone": lambda tx: tx.get("kv", 2),
    "select": lambda tx: tx.select("kv", limit=1),
    "by-index": lambda tx: tx.select("kv", "new", index="value"),
    "replace": lambda tx: tx.replace("kv", (1, "mine")),
    "taken-again": lambda tx: tx.insert("kv", (2, "mine")),
    "update": lambda tx: tx.update("kv", 1, [["=", 1, "mine"]]),
    "delete": lambda tx: tx.delete("kv", 1),
    "upsert": lambda tx: tx.upsert("kv", (1, "mine"), [["=", 1, "mine"]]),
}


@pytest.mark.parametrize("name", SEEN)
def test_nothing_is_told_of_what_is_not_durable(name: str, store: Store) -> None:
    """A statement that finds a row, or the lack of one, whose sync is under way waits for it."""

    def change(tx: Transaction) -> None:
        tx.replace("kv", (1, "new"))
        tx.delete("kv", 2)

    told, other = threading.Event(), threading.Event()

    def look(tx: Transaction) -> object:
        tx.insert("kv", (50, "fifty"))
        assert tx.get("kv", 7) == (7, "v7")
        other.set()  # of all that it has seen nothing waits
        found = SEEN[name](tx)
        told.set()
        return found

    with store.held(change) as first:
        second = store.transact(look)
        assert other.wait(WAIT_SECONDS)
        assert not told.wait(0.05)
        assert not first.done()
    first.result(WAIT_SECONDS)
    found = second.result(WAIT_SECONDS)
    if name == "get":
        assert found == (1, "new")
    elif name == "get-gone":
        assert found is None
    elif name == "by-index":
        assert found == [(1, "new")]
    assert store.log.get("kv", 50) == (50, "fifty")


def test_a_refusal_because_of_what_is_not_durable_waits_too(store: Store) -> None:
    """That a key is taken is told only once its row is durable."""
    begun = threading.Event()

    def look(tx: Transaction) -> object:
        begun.set()
        with pytest.raises(RequestError) as caught:
            tx.insert("kv", (100, "mine"))
        return caught.value.code

    with store.held(lambda tx: tx.insert("kv", (100, "first"))):
        second = store.transact(look)
        assert begun.wait(WAIT_SECONDS)
        with pytest.raises(TimeoutError):
            second.result(0.05)
    assert second.result(WAIT_SECONDS) == ErrorCode.TUPLE_FOUND


def refused(change: Callable[[], object]) -> ErrorCode:
    """With which code a change is refused."""
    with pytest.raises(RequestError) as caught:
        change()
    return ErrorCode(caught.value.code)


ALONE: dict[str, tuple[Callable[[logweir.Log], object], object]] = {
    "insert": (
        lambda log: refused(lambda: log.insert("kv", (100, "mine"))),
        ErrorCode.TUPLE_FOUND,
    ),
    "append": (
        lambda log: refused(lambda: log.append("kv", [(100, "mine")])),
        ErrorCode.TUPLE_FOUND,
    ),
    "create": (lambda log: refused(lambda: log.create_space("more")), ErrorCode.SPACE_EXISTS),
    "delete-gone": (lambda log: log.delete("kv", 2), None),
    "update-gone": (lambda log: log.update("kv", 2, [["=", 1, "mine"]]), None),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_change_by_itself_is_told_of_nothing_that_is_not_durable(name: str, store: Store) -> None:
    """Not that a key is taken or gone, nor that a space is there, by a transaction before it."""

    def change(tx: Transaction) -> None:
        if name == "create":
            tx.create_space("more")
            return
        tx.insert("kv", (100, "first"))
        tx.delete("kv", 2)

    ask, told = ALONE[name]
    with store.held(change):
        second = store.pool.submit(ask, store.log)
        with pytest.raises(TimeoutError):
            second.result(0.05)
    assert second.result(WAIT_SECONDS) == told


def test_a_change_by_itself_is_not_refused_for_a_row_that_was_dropped(store: Store) -> None:
    """It is told that the write failed; asked for again it is made."""
    store.disk.is_full.set()
    with store.held(lambda tx: tx.insert("kv", (100, "first"))) as first:
        second = store.pool.submit(lambda: store.log.insert("kv", (100, "mine")))
        with pytest.raises(TimeoutError):
            second.result(0.05)
    for one in (first, second):
        with pytest.raises(WriteFailed):
            one.result(WAIT_SECONDS)
    store.disk.is_full.clear()
    store.log.insert("kv", (100, "mine"))
    assert store.log.get("kv", 100) == (100, "mine")


def test_definitions_that_are_not_durable_are_waited_for(store: Store) -> None:
    """The next transaction begins once they are."""
    with store.held(lambda tx: tx.create_space("more")):
        second = store.transact(lambda tx: tx.schema.space("more").name)
        with pytest.raises(TimeoutError):
            second.result(0.05)
    assert second.result(WAIT_SECONDS) == "more"


@pytest.mark.parametrize("when", ["in a statement", "before its end"])
def test_what_stands_on_a_write_that_failed_is_dropped_with_it(when: str, store: Store) -> None:
    """Nothing of either is there, and both are told; the next one is made."""
    store.disk.is_full.set()
    begun, failed = threading.Event(), threading.Event()

    def change(tx: Transaction) -> None:
        tx.insert("kv", (101, "second"))
        begun.set()
        if when == "in a statement":
            tx.get("kv", 100)  # which waits
        else:
            assert failed.wait(WAIT_SECONDS)

    with store.held(lambda tx: tx.insert("kv", (100, "first"))) as first:
        second = store.transact(change)
        assert begun.wait(WAIT_SECONDS)
    with pytest.raises(WriteFailed):
        first.result(WAIT_SECONDS)
    store.disk.is_full.clear()
    failed.set()
    with pytest.raises(WriteFailed):
        second.result(WAIT_SECONDS)
    store.transact(lambda tx: tx.insert("kv", (102, "third"))).result(WAIT_SECONDS)
    assert store.log.select("kv", 100, iterator="GE") == [(102, "third")]


def test_a_statement_that_waits_holds_up_its_task_only(tmp_path: Path) -> None:
    """Others of its loop go on; what it finds is told when it is durable."""
    store = Store(tmp_path / "store")

    async def main() -> None:
        log = aio.AsyncLog(store.log)
        with store.held(lambda tx: tx.replace("kv", (1, "new"))):
            asked = asyncio.Event()

            async def look() -> object:
                async with log.transaction() as tx:
                    await tx.insert("kv", (50, "fifty"))
                    asked.set()
                    return await tx.get("kv", 1)

            looking = asyncio.create_task(look())
            await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
            done, _ = await asyncio.wait([looking], timeout=0.05)
            assert not done
            assert await log.get("kv", 1) == (1, "v1")
        assert await asyncio.wait_for(looking, WAIT_SECONDS) == (1, "new")
        assert await log.get("kv", 50) == (50, "fifty")
        await log.close()

    asyncio.run(main())
    store.pool.shutdown()
