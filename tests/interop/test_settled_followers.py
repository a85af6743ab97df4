"""Followers that show contents see nothing that waits for its CONFIRM, and never what is undone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.synapseclient import Client as SynapseClient

import logweir
from interop.kvclient import KvClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_iproto_synchronous import ALWAYS, NEVER, address
from logweir import pipeline
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import space_ids
from logweir.pipeline.reading import scan
from logweir.pipeline.tail import Tail
from logweir.replication.bucket.item import BUCKET_FORMAT, Item, pack_item
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.greenstack.follow.incoming import CaughtUp, Rows
from logweir.replication.iproto.follow.join import join
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.urls import Url
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

pytestmark = pytest.mark.tarantool

SCHEMES = ("tap", "greenstack", "synapse", "tank")
SETUP = """
jit.off()
fiber, ffi = require('fiber'), require('ffi')
box.schema.user.grant('guest', 'replication')
local states = box.schema.space.create('logweir_vbucket', {
    id = 512, format = {{'bucket', 'string'}, {'vbucket', 'unsigned'}, {'state', 'unsigned'}}
})
states:create_index('primary', {parts = {1, 'string', 2, 'unsigned'}})
states:replace{'b', 0, 1}
box.schema.space.create('b', {id = 513, is_sync = true, format = ...})
box.space.b:create_index('primary', {parts = {1, 'varbinary'}})
box.space.b:create_index('vbucket', {parts = {2, 'unsigned', 1, 'varbinary'}})
box.cfg{replication_synchro_quorum = 1, replication_synchro_timeout = 1000}
ended = 0
function later(data)
    fiber.create(function()
        local result = ffi.new('box_tuple_t *[1]')
        local start = ffi.cast('const char *', data)
        ffi.C.box_replace(box.space.b.id, start, start + #data, result)
        ended = ended + 1
    end)
end
"""
"""Space b as a bucket of ours is defined, but synchronous."""

UNDO = "box.cfg{replication_synchro_timeout = 0.01}"
WAIT = "box.cfg{replication_synchro_timeout = 1000}"
ENDED = "while ended < ... do fiber.sleep(0.001) end"
"""So many items are confirmed or undone: the master's ROLLBACK of the last may come after that of
those before it."""


def put(master: RealTarantool, *keys: str) -> None:
    """Store items, each a transaction; none is waited for."""
    for key in keys:
        master.eval("later(...)", [pack_item(Item(key.encode(), value=b"v"))])


class Sides:
    """Our server between a real master and followers of each protocol, and what they were given.

    TAP and Greenstack: stores of ours that follow; Synapse and Tank: clients that come again with
    the token or number that they had last.
    """

    def __init__(self, folder: Path, master: RealTarantool) -> None:
        self.folder = folder
        self.master = master
        self.ports = {scheme: free_port() for scheme in SCHEMES}
        self.token = "0"
        self.by_synapse: list[str] = []
        self.number = 0
        self.by_tank: list[str] = []

    @contextlib.contextmanager
    def serving(self) -> Iterator[Serving]:
        """The server; listens at the same ports each time."""
        listen = [
            parse_listen_url(f"{scheme}://127.0.0.1:{port}{'/b' if scheme == 'tap' else ''}")
            for scheme, port in self.ports.items()
        ]
        options = {"listen": listen, "follow": [address(self.master)], "guest": "all"}
        with Serving(self.folder / "ours", **options) as serving:  # type: ignore[arg-type]
            yield serving

    @contextlib.contextmanager
    def followers(self) -> Iterator[dict[str, Serving]]:
        """The stores that follow it."""
        with contextlib.ExitStack() as stack:
            yield {
                scheme: stack.enter_context(
                    Serving(
                        self.folder / scheme,
                        follow=[parse_url(f"{scheme}://127.0.0.1:{self.ports[scheme]}/b")],
                    )
                )
                for scheme in ("tap", "greenstack")
            }

    def url(self, scheme: str) -> Url:
        """Where our server speaks it."""
        return parse_url(f"{scheme}://127.0.0.1:{self.ports[scheme]}")

    def poll(self) -> None:
        """Have the clients take what is there."""
        with SynapseClient(self.ports["synapse"]) as client:
            client.send(f"REPLICATE b {self.token}")
            *rows, position = client.until("POSITION b ")
            self.token = position.split()[-1]
        self.by_synapse += [key for row in rows for key in synapse_keys(row)]
        with TankClient(self.url("tank")) as client:
            ((state),) = client.partitions("space:b")
            with client.consumer("space:b", start={0: self.number or 1}, reset="begin") as consumer:
                while self.number <= state.last and state.last:
                    record = consumer.get()
                    self.by_tank.append(unpack(record.key or b"")[0].decode())
                    self.number = record.number + 1

    def fresh(self, oldest: VClock) -> dict[str, list[str]]:
        """What new followers are given that begin with the oldest row of the log, or a copy."""
        return {
            "tap": by_tap(self.ports["tap"]),
            "greenstack": asyncio.run(by_greenstack(f"{self.url('greenstack')}/b", oldest)),
            "synapse": by_synapse(self.ports["synapse"], oldest.signature),
            "tank": by_tank(self.url("tank")),
        }


def synapse_keys(row: str) -> list[str]:
    """The keys of the items that a line names."""
    found = re.findall(r'"\$bin": ?"([^"]*)"', row) if row.startswith("RDATA b ") else []
    return [base64.b64decode(found[0]).decode()] if found else []


def item_keys(batches: Iterable[Any]) -> list[str]:
    """The keys of the items in rows of the pipeline."""
    tuples = [data for batch in batches for data in batch.column("tuple").to_pylist()]
    return [unpack(data)[0].decode() for data in tuples if data is not None]


def by_scan(folder: Path) -> list[str]:
    return item_keys(pipeline.batches(folder, columns=["tuple"], spaces="b", kinds="xlog"))


class Stream:
    """A stream of Spark without Spark, made anew for each step as after a restart."""

    def __init__(self, folder: Path) -> None:
        self._options = ScanOptions(paths=(str(folder),), columns=("tuple",), spaces=("b",))
        self._position: VClock | None = None
        self.found: list[str] = []

    def take(self) -> list[str]:
        """All that it read, ever."""
        tail = Tail(self._options)
        start = tail.oldest() if self._position is None else self._position
        self._position = tail.advance(start)
        spaces = space_ids(self._options, awaited=True)
        for split in tail.splits(start, self._position):
            self.found += item_keys(scan(split, self._options, spaces))
        tail.close()
        return self.found


def by_tap(port: int) -> list[str]:
    with KvClient(port) as client:
        stream = client.stream(Connect(b"", Option.SUPPORT_ACK | Option.DUMP))
        return [one.key.decode() for one in stream if one.opcode == Opcode.TAP_MUTATION]


async def by_greenstack(url: str, oldest: VClock) -> list[str]:
    found: list[str] = []
    async with (
        asyncio.timeout(20),
        GreenstackClient(url) as client,
        client.follow(b"fresh", start=oldest.without_local(), follow=False) as steps,
    ):
        async for step in steps:
            if isinstance(step, CaughtUp):
                break
            if isinstance(step, Rows):
                found += [one.item.key.decode() for one in step.changes if one.item]
    return found


def by_synapse(port: int, token: int) -> list[str]:
    with SynapseClient(port) as client:
        client.send(f"REPLICATE b {token}")
        return [key for row in client.until("POSITION b ") for key in synapse_keys(row)]


def by_tank(url: Url) -> list[str]:
    found: list[str] = []
    with TankClient(url) as client:
        ((state),) = client.partitions("space:b")
        with client.consumer("space:b", start="begin") as consumer:
            while state.last:
                record = consumer.get()
                found.append(unpack(record.key or b"")[0].decode())
                if record.number >= state.last:
                    break
    return found


def stored(serving: Serving) -> list[str]:
    """The keys of all items that were ever stored in a follower."""
    space = serving.log.schema.get("b")
    return [
        row.decoded()["tuple"][0].decode()
        for transaction in serving.log.rows()
        for row in transaction.rows
        if space is not None
        and row.type in (RowType.INSERT, RowType.REPLACE)
        and row.decoded()["space_id"] == space.id
    ]


def test_no_follower_sees_what_waits_or_is_undone(tmp_path: Path) -> None:
    """Amid rows of a real master that wait, are undone and are confirmed, over restarts of the
    server and of the followers; whoever begins later is given the same."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP, [[{"name": name, "type": kind} for name, kind in BUCKET_FORMAT]])
        asyncio.run(join(address(master), tmp_path / "ours"))
        sides = Sides(tmp_path, master)

        stream = Stream(tmp_path / "ours")

        def check(serving: Serving, followers: dict[str, Serving], *keys: str) -> None:
            for scheme, follower in followers.items():
                follower.wait(lambda follower=follower: set(stored(follower)) >= set(keys))
                given = stored(follower)
                # While rows wait no position of a named TAP stream is kept: it copies anew.
                assert (list(dict.fromkeys(given)) if scheme == "tap" else given) == list(keys)
            for folder in (tmp_path / "ours", tmp_path / "master"):
                assert by_scan(folder) == list(keys)
            assert stream.take() == list(keys)
            sides.poll()
            assert (sides.by_synapse, sides.by_tank) == (list(keys), list(keys))
            assert sides.fresh(serving.log.oldest_position) == {
                name: list(keys) for name in SCHEMES
            }

        with sides.serving() as serving, sides.followers() as followers:
            put(master, "k1")
            serving.wait(lambda: serving.log.count("b") == 1 and not serving.log.waiting)
            check(serving, followers, "k1")
            master.eval(NEVER)
            put(master, "k2", "k3")
            serving.wait(lambda: serving.log.waiting == 2)
            check(serving, followers, "k1")
        with sides.serving() as serving, sides.followers() as followers:
            assert serving.log.waiting == 2
            check(serving, followers, "k1")
            master.eval(UNDO)
            put(master, "k4")
            master.eval(ENDED, [4])
            serving.wait(lambda: serving.log.waiting == 0)
            master.eval(ALWAYS + WAIT)
            put(master, "k5")
            serving.wait(lambda: serving.log.count("b") == 2)
            check(serving, followers, "k1", "k5")
            master.eval(NEVER)
            put(master, "k6")
            serving.wait(lambda: serving.log.waiting == 1)
            check(serving, followers, "k1", "k5")
        with sides.serving() as serving, sides.followers() as followers:
            check(serving, followers, "k1", "k5")
            master.eval(ALWAYS)
            put(master, "k7")
            serving.wait(lambda: serving.log.count("b") == 4)
            check(serving, followers, "k1", "k5", "k6", "k7")
        with sides.serving() as serving, sides.followers() as followers:
            check(serving, followers, "k1", "k5", "k6", "k7")
    with logweir.open(tmp_path / "ours") as log:
        assert [row[0] for row in log.select("b")] == [b"k1", b"k5", b"k6", b"k7"]
