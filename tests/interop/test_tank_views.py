"""Tank consumers of `space:NAME` and `log` follow what clients of other protocols change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.gsraw import RawClient, mutation, vbucket
from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_synapse_source import Following, Homeserver
from interop.test_synapse_source import serving as upstream
from logweir.errors import PeerRefused
from logweir.replication.greenstack.wire.codec import Frame
from logweir.replication.greenstack.wire.codec import Opcode as GsOpcode
from logweir.replication.greenstack.wire.messages import encode_remove
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank import client as aio
from logweir.replication.tank.client import Record
from logweir.replication.tank.client.sync import Client
from logweir.replication.topic.spaces import set_config
from logweir.replication.urls import Url
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import decode_row


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    """A store that speaks memcached with TAP, Greenstack and Tank; guests may do everything."""
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in ("tap", "greenstack", "tank")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as serving:
        yield serving


def tank(serving: Serving) -> Url:
    """Its address for Tank clients."""
    (url,) = (url for url in serving.urls if url.scheme == "tank")
    return url


def row(record: Record) -> dict[str, Any]:
    """A record's content."""
    found: dict[str, Any] = json.loads(record.content)
    return found


@pytest.mark.parametrize("which", ["tap", "greenstack"])
def test_changes_of_a_bucket_are_followed(served: Serving, which: str) -> None:
    """What was there, then what a memcached or Greenstack client sets and deletes, as it comes:
    numbers are the log's signatures, keys the primary keys."""
    port = next(url.port for url in served.urls if url.scheme == which)

    def change(key: bytes, value: bytes | None) -> None:
        if which == "tap":
            packet = Packet(Opcode.DELETE, key) if value is None else store(key, value)
            with KvClient(port) as client:
                assert client.ask(packet)[0].status == 0
            return
        remove = Frame(GsOpcode.REMOVE, payload=encode_remove(key, 0), flex=vbucket(0))
        with RawClient(port) as client:
            assert client.ask(remove if value is None else mutation(key, value)).status == 0

    change(b"one", b"first")
    (name,) = (each.name for each in served.log.spaces() if each.name.endswith("default"))
    with (
        Client(tank(served)) as client,
        client.consumer(f"space:{name}", start="begin") as consumer,
    ):
        found = [consumer.get()]
        assert found[0].number == served.log.vclock.signature
        change(b"one", b"second")
        change(b"two", b"x")
        change(b"one", None)
        while not (row(found[-1])["type"] == "DELETE" and len(found) >= 4):
            found.append(consumer.get())
    rows = [row(each) for each in found]
    assert {each["space"] for each in rows} == {name}
    values = [
        (each["tuple"][0]["$bin"], each["tuple"][2]["$bin"])
        for each in rows
        if each["type"] in ("INSERT", "REPLACE")
    ]
    one, two = "b25l", "dHdv"
    assert values[:3] == [(one, "Zmlyc3Q="), (one, "c2Vjb25k"), (two, "eA==")]
    assert unpack(found[-1].key or b"") == [b"one"]
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == served.log.vclock.signature


def test_streams_of_a_synapse_are_followed(tmp_path: Path) -> None:
    """Rows that arrive from a homeserver come to a Tank consumer, in `space:` and in `log`."""

    async def scenario() -> None:
        with logweir.open(tmp_path / "s") as log:
            listen = [parse_listen_url("tank://127.0.0.1:0")]
            server = Server(log, ServerOptions(listen=listen, guest="all"))
            (url,) = await server.start()
            async with upstream(Homeserver("D1")) as home, aio.Client(url) as client:
                home.add("events", 5, ["before"])
                source = Following(log, home)
                await source.following()
                home.add("events", 6, ["a"], ["b"])
                await source.until(lambda: len(source.rows("events")) == 2)
                async with (
                    client.consumer("space:synapse_events", start="begin") as consumer,
                    client.consumer("log", start="end") as everything,
                ):
                    found = [await consumer.get() for _ in range(2)]
                    waiting = asyncio.ensure_future(everything.get())
                    await client.status()  # asked behind the fetch: that one waits now
                    home.add("events", 8, ["c"])
                    found.append(await consumer.get())
                    tuples = [row(each)["tuple"] for each in found]
                    assert [each[1::2] for each in tuples] == [[6, ["a"]], [6, ["b"]], [8, ["c"]]]
                    assert {each[0] for each in tuples} == {"master"}
                    assert (await waiting).number > found[1].number
                await source.stop()
            await server.stop()

    asyncio.run(scenario())


def test_content_and_seeking_by_time_in_a_view(tmp_path: Path) -> None:
    """The first change of a time is found; contents are MsgPack rows after the configuration was
    changed and reloaded over the wire."""
    times: Callable[[], float] = iter([1000.0 + n for n in range(1, 400)]).__next__
    with logweir.open(tmp_path / "s", durability="write", clock=times) as log:
        log.create_space("things", [("id", "unsigned")], primary=["id"])
        for number in range(30):
            log.insert("things", [number])
        stamps = [
            (batch.rows[0].timestamp, batch.rows[0].decoded()["tuple"])
            for batch in log.rows()
            if batch.rows[0].decoded().get("space_id") == log.schema.space("things").id
        ]
    listen = [parse_listen_url("tank://:0")]
    with Serving(tmp_path / "s", listen=listen) as serving, Client(tank(serving)) as client:
        with client.consumer("space:things", start="begin") as consumer:
            for wanted in (stamps[0], stamps[17], stamps[-1]):
                consumer.seek_to_time(int(wanted[0] * 1000))
                assert row(consumer.get())["tuple"] == wanted[1]
        set_config(serving.log, "space:things", "logweir.content=msgpack")
        client.reload("space:things")
        with client.consumer("space:things", start="begin") as consumer:
            record = consumer.get()
            found, end = decode_row(memoryview(record.content), 0)
            assert (found.decoded()["tuple"], end) == ([0], len(record.content))
            assert record.key == pack([0])


def test_groups_keep_their_places_in_views(tmp_path: Path) -> None:
    """Committed and fetched like those of topics; the lag is in the status, also after a restart
    before anybody asked for the view."""
    listen = [parse_listen_url("tank://:0")]
    with logweir.open(tmp_path / "s") as log:
        log.create_space("things", [("id", "unsigned")], primary=["id"])
        for number in range(10):
            log.insert("things", [number])
    name = "space:things"
    with Serving(tmp_path / "s", listen=listen) as serving, Client(tank(serving)) as client:
        with client.consumer(name, group="g") as consumer:
            read = [consumer.get() for _ in range(4)]
            consumer.commit()
            assert consumer.committed() == {0: read[-1].number + 1}
        with client.consumer(name, group="g") as consumer:
            assert consumer.get().number == read[-1].number + 1
        with pytest.raises(PeerRefused):
            client.consumer("space:nosuch", group="g").__enter__()

    async def lag() -> None:
        with logweir.open(tmp_path / "s") as log:
            server = Server(log, ServerOptions(listen=listen, guest="all"))
            (url,) = await server.start()
            assert server.status()["topics"] == []  # the view is being looked at from now on
            async with aio.Client(url) as client:
                (state,) = await client.partitions(name)
            held = {"topic": name, "partition": 0, "first": state.first, "last": state.last}
            assert server.status()["topics"] == [held | {"consumer_lag": {"g": 6}}]
            await server.stop()

    asyncio.run(lag())
