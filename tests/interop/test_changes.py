"""`logweir.follow`: the changes of a folder or a server, for a program without a store."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path

import pytest
from support.loops import run
from support.waiting import until

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir import aio
from logweir.errors import ConfigError, PositionUnavailable, Unreachable, WalError
from logweir.replication.protocols import parse_listen_url
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction

FORMAT = [("id", "unsigned"), ("text", "string")]
WRITER = """
import sys, logweir
with logweir.open(sys.argv[1], wal_max_size=64 * 1024) as log:
    space = log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
    for number in range(0, 2000, 2):
        with log.transaction() as both:
            both.insert("t", (number, "x" * 100))
            both.insert("t", (number + 1, "y" * 100))
"""
SETUP = """
box.schema.user.create('reader', {password = 'secret'})
box.schema.user.grant('reader', 'replication')
box.schema.space.create('t', {format = {{'id', 'unsigned'}, {'text', 'string'}}})
box.space.t:create_index('p')
"""
PUT = "for i = ..., select(2, ...) do box.space.t:insert{i, 'row ' .. i} end"


class Reader:
    """What a program keeps: the tuples that it was given, and its position."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.position = VClock()

    def take(self, transaction: Transaction) -> None:
        """One transaction."""
        for row in transaction.rows:
            assert row.lsn > self.position.lsn(row.replica_id)
            self.position = self.position.with_lsn(row.replica_id, row.lsn)
            body = row.decoded()
            if body.get("space_id", 0) >= 512 and isinstance(body.get("tuple"), list):
                self.seen.append(body["tuple"][0])


def test_a_folder_that_another_process_writes(tmp_path: Path) -> None:
    """Followed while it is written, over many files; whole transactions, each once."""
    folder, reader, stop = tmp_path / "s", Reader(), threading.Event()
    with subprocess.Popen([sys.executable, "-P", "-c", WRITER, folder]) as writer:
        until(lambda: folder.is_dir() and any(folder.glob("*.xlog")))
        with closing(logweir.follow(folder, stop=stop)) as changes:
            for transaction in changes:
                reader.take(transaction)
                assert len(reader.seen) % 2 == 0
                if len(reader.seen) == 2000:
                    stop.set()
        assert writer.wait(60) == 0
    assert reader.seen == list(range(2000))
    assert len(list(folder.glob("*.xlog"))) > 2
    with logweir.open(folder) as log:
        assert reader.position == log.vclock
        log.insert("t", (5000, "later"))
        later = Reader()
        for transaction in logweir.follow(folder, reader.position, once=True):
            later.take(transaction)
    assert later.seen == [5000]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """A logweir server with ten tuples."""
    listen = [parse_listen_url("tarantool://127.0.0.1:0")]
    with Serving(tmp_path / "served", listen=listen, guest="all") as serving:
        serving.log.create_space("t", format=FORMAT)
        for number in range(10):
            serving.log.insert("t", (number, "x"))
        yield serving


def test_a_server_and_more_as_it_comes(server: Serving) -> None:
    """Up to its end, and behind it what comes; as a thread and in a loop."""
    reader = Reader()
    for transaction in logweir.follow(str(server.url), once=True):
        reader.take(transaction)
    assert reader.seen == list(range(10))
    with closing(logweir.follow(str(server.url), reader.position)) as changes:
        for number in range(10, 20):
            server.log.insert("t", (number, "x"))
            reader.take(next(changes))
    assert reader.seen == list(range(20))
    assert reader.position == server.log.vclock

    async def main() -> None:
        found = Reader()
        async with aclosing(aio.follow(str(server.url), once=True)) as changes:
            async for transaction in changes:
                found.take(transaction)
        async with aclosing(aio.follow(server.folder, found.position)) as changes:
            server.log.insert("t", (20, "x"))
            async for transaction in changes:
                found.take(transaction)
                break
        assert found.seen == list(range(21))

    run(main)


def test_who_takes_long_is_not_cut_off(tmp_path: Path) -> None:
    """The server hears of it, however long the program keeps what it was given."""
    listen = [parse_listen_url("tarantool://127.0.0.1:0")]
    with Serving(
        tmp_path / "s", listen=listen, guest="all", replication_timeout_seconds=0.2
    ) as server:
        server.log.create_space("t", format=FORMAT)
        with closing(logweir.follow(str(server.url))) as changes:
            next(changes)
            (link,) = server.server.listener.links
            heard = link.received_bytes
            until(lambda: link.received_bytes > heard + 100)  # some acknowledgements
            server.log.insert("t", (1, "x"))
            reader = Reader()
            for transaction in islice(changes, 100):
                reader.take(transaction)
                if reader.seen:
                    break
            assert reader.seen == [1]
            assert link.is_open


def reading(box: RealTarantool) -> str:
    """Its address, for the user who may replicate."""
    return f"tarantool://reader:secret@127.0.0.1:{box.port}"


@pytest.mark.tarantool
def test_a_real_master_through_its_death(tmp_path: Path) -> None:
    """Each change exactly once, though the master is killed between, and goes on."""
    reader = Reader()
    with RealTarantool(tmp_path / "box") as box:
        box.eval(SETUP)
        box.eval(PUT, [1, 100])
        with closing(logweir.follow(reading(box))) as changes:
            for transaction in changes:
                reader.take(transaction)
                if len(reader.seen) == 100:
                    break
            box.kill()
            with pytest.raises(Unreachable):
                next(changes)
        box.start()
        box.eval(PUT, [101, 200])
        for transaction in logweir.follow(reading(box), reader.position, once=True):
            reader.take(transaction)
        assert reader.seen == list(range(1, 201))
        clock = {key: lsn for key, lsn in box.eval("return box.info.vclock")[0].items() if key}
        assert dict(reader.position) == clock


def test_a_position_that_is_gone(server: Serving) -> None:
    """Removed logs are told by the oldest position, of a folder and of a server."""
    for number in range(10, 14):
        server.log.snapshot()
        server.log.insert("t", (number, "x"))
    assert server.log.oldest_position.lsn(server.log.replica_id) > 1
    for where in (server.folder, str(server.url)):
        with pytest.raises(PositionUnavailable):
            next(logweir.follow(where, {1: 1}))


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    """Each with its name, and what to do."""
    with pytest.raises(WalError, match="no such folder"):
        next(logweir.follow(tmp_path / "none"))
    with pytest.raises(ConfigError, match="without a store"):
        next(logweir.follow("tank://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="scheme"):
        next(logweir.follow("http://127.0.0.1:1"))
    with pytest.raises(Unreachable):
        next(logweir.follow("tarantool://127.0.0.1:1"))
