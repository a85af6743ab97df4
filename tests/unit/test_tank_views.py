"""Views of spaces that have to be looked at before they can be answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.loops import run

import logweir
from logweir.errors import LogweirError, WalError
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client import Client
from logweir.replication.tank.client.connection import Connection
from logweir.replication.tank.wire.messages import Fetch, FetchPart, FetchStatus
from logweir.replication.topic.views import READ_BYTES, View
from logweir.replication.urls import Url


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store with a few rows in the space things."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space("things", [("id", "unsigned"), ("name", "string")], primary=["id"])
        log.append("things", [(n, "x" * 100) for n in range(10)], one_transaction=False)
        yield log


@asynccontextmanager
async def served(log: logweir.Log) -> AsyncIterator[Url]:
    """The store on a free port."""
    server = Server(
        log, ServerOptions(listen=[parse_listen_url("tank://127.0.0.1:0")], guest="all")
    )
    (url,) = await server.start()
    try:
        yield url
    finally:
        await server.stop()


def test_opening_a_view_holds_up_nobody_else(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one client's view is looked at, others are answered; then it gets its rows."""
    begun, go_on = threading.Event(), threading.Event()
    whole = View.open

    def slow(view: View) -> None:
        begun.set()
        assert go_on.wait(10)
        whole(view)

    monkeypatch.setattr(View, "open", slow)

    newest = log.vclock.signature

    async def test() -> None:
        async with served(log) as url, Client(url) as one, Client(url) as two, Client(url) as other:
            first = asyncio.ensure_future(one.partitions("space:things"))
            second = asyncio.ensure_future(two.partitions("space:things"))
            await asyncio.to_thread(begun.wait, 10)
            await other.create_topic("t", 1)
            assert (await other.status()).topics == 1
            assert not first.done()
            go_on.set()
            (state,) = await first
            assert state.last == newest
            assert await second == (state,)

    run(test)


def test_server_ends_while_a_view_is_opened(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping waits for the thread, which ends early."""
    begun, go_on = threading.Event(), threading.Event()
    whole = View.open
    opened = []

    def slow(view: View) -> None:
        begun.set()
        assert go_on.wait(10)
        whole(view)
        opened.append(view)

    monkeypatch.setattr(View, "open", slow)

    async def test() -> None:
        async with served(log) as url:
            connection = await Connection.open(url)
            asking = asyncio.ensure_future(connection.partitions("log"))
            await asyncio.to_thread(begun.wait, 10)
            asyncio.get_running_loop().call_later(0.01, go_on.set)
        assert not opened[0].is_ready
        with pytest.raises(LogweirError):
            await asking

    run(test)


def test_view_that_cannot_be_opened_is_unreadable(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is told once, and the next request tries again."""
    broken = [True]
    whole = View.grow

    def grow(view: View) -> bool:
        if broken[0]:
            raise WalError("the disk is gone.", path="x")
        return whole(view)

    monkeypatch.setattr(View, "grow", grow)

    async def test() -> None:
        async with served(log) as url:
            connection = await Connection.open(url)
            request = Fetch(0, (("log", (FetchPart("log", 0, 0, 100),)),))
            (part,) = (await connection.fetch(request)).parts
            assert part.status is FetchStatus.UNREADABLE
            broken[0] = False
            (part,) = (await connection.fetch(request)).parts
            assert part.status is FetchStatus.SPARSE
            connection.close()
            await connection.wait_closed()

    run(test)


def test_one_read_of_a_view_is_bounded(log: logweir.Log) -> None:
    """However much is asked for, one answer makes little work; the rest comes with the next."""

    async def test() -> None:
        log.append("things", [(n, "y" * 1000) for n in range(100, 2000)], one_transaction=False)
        async with served(log) as url:
            connection = await Connection.open(url)
            (state,) = (await connection.partitions("log")).partitions
            request = Fetch(0, (("log", (FetchPart("log", 0, state.first, 1 << 26),)),))
            (part,) = (await connection.fetch(request)).parts
            assert 0 < len(part.chunk) <= READ_BYTES
            connection.close()
            await connection.wait_closed()

    run(test)


def test_view_goes_on_where_logs_were_removed_by_others(log: logweir.Log) -> None:
    """It holds what is left."""
    log.snapshot()
    log.append("things", [(n, "y") for n in range(10, 20)], one_transaction=False)
    view = View(log, "things", "json")
    view.open()
    first, newest = view.extent().first, log.vclock.signature
    min(log.path.glob("*.xlog")).unlink()
    view.read(first, READ_BYTES)
    assert not view.is_ready
    view.open()
    extent = view.extent()
    view.close()
    assert (extent.first, extent.last) == (newest - 9, newest)
