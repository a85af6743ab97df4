"""Views of spaces that have to be looked at before they can be answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.loops import run

import logweir
from logweir.errors import LogweirError, WalError
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client import Client
from logweir.replication.tank.client.connection import Connection
from logweir.replication.tank.wire.messages import Fetch, FetchPart, FetchStatus
from logweir.replication.topic.bundle import decode_bundle
from logweir.replication.topic.views import PLACE_BYTES, READ_BYTES, View, _signatures
from logweir.replication.urls import Url
from logweir.wal.blockfile import Block
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage
from logweir.wal.reader import WalReader
from logweir.wal.xrow import Row, RowType, encode_row


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


def test_a_read_far_into_a_log_reads_little_before_it(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the blocks from the place that was noted before the number, wherever that is."""
    for number in range(100, 140):
        log.append("things", [(1000 * number + n, "x" * 1000) for n in range(PLACE_BYTES // 1000)])
    view = View(log, "things", "json")
    view.open()
    last = view.extent().last
    read: list[int] = []
    blocks = WalReader.blocks

    def counted(self: WalReader, *given: Any, **how: Any) -> Iterator[Block | Damage]:
        for block in blocks(self, *given, **how):
            read.append(block.offset)
            yield block

    monkeypatch.setattr(WalReader, "blocks", counted)
    for wanted in (last, last - 3000, last - 6000):
        read.clear()
        (data, *_) = decode_bundle(view.read(wanted, READ_BYTES).pieces[1])
        assert data.number == wanted
        assert len(read) <= 3
    view.close()


@pytest.mark.parametrize("who", [(1, 1, 1, 1), (1, 2, 1, 2), (0, 0, 2, 2)])
def test_numbers_of_rows_are_signatures_of_the_log(who: tuple[int, ...]) -> None:
    """Whoever has written them, and whether or not an lsn is left out."""
    for steps in ((1, 1, 1, 1), (1, 3, 1, 2)):
        before, lsns, expected = {1: 5, 2: 7}, {1: 5, 2: 7}, []
        rows = []
        for replica_id, step in zip(who, steps, strict=True):
            lsns[replica_id] = lsns.get(replica_id, 0) + step
            expected.append(sum(lsns.values()))
            lsn = lsns[replica_id]
            rows.append(encode_row(Row(RowType.NOP, replica_id, lsn, 1.5, tsn=lsn)))
        columns = RowColumns.scan(b"".join(rows))
        assert list(_signatures(columns, before)) == expected
        assert before == lsns
