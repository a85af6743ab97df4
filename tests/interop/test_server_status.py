"""What servers of each protocol say of themselves: ours, a real memcached, peers of other kinds.

Real Synapses are asked in `test_real_synapse` and `test_synapse_workers`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.memcached import memcached
from support.ports import free_port

from interop.serving import Serving
from interop.test_iproto_cli import told
from logweir.errors import (
    ConfigError,
    LogweirError,
    PeerRefused,
    RemoteProtocolError,
    SourceStopped,
    Unreachable,
)
from logweir.replication.protocols import fetch_status, parse_listen_url, parse_url
from logweir.replication.synapse.client import status as synapse_status
from logweir.replication.tank.client import Client as AsyncClient
from logweir.replication.tank.client.sync import Client

SCHEMES = ("tarantool", "tank", "tap", "greenstack", "synapse")


def asked(url: str) -> dict[str, Any]:
    """What the server at `url` tells, as programs get it."""
    found: dict[str, Any] = json.loads(json.dumps(asyncio.run(fetch_status(parse_url(url)))))
    return found


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One store behind a listener of each kind, Synapse's newer dialect among them."""
    listen = [f"{scheme}://127.0.0.1:0" for scheme in SCHEMES] + ["synapse://:0?dialect=D3"]
    folder = tmp_path_factory.mktemp("status") / "store"
    urls = [parse_listen_url(one) for one in listen]
    with Serving(folder, guest="all", listen=urls) as made:
        for name in ("orders", "returns"):
            made.log.create_space(name, [("id", "unsigned")], primary=["id"])
        with Client(parse_url(address(made, "tank"))) as client:
            client.create_topic("events", 2)
            client.create_topic("none")
            with client.producer() as producer:
                for number in range(3):
                    producer.send("events", b"%d" % number, partition=1)
        made.log.insert("orders", [1])
        yield made


def address(serving: Serving, scheme: str) -> str:
    """The first address of that scheme, as of a server that somebody else runs."""
    port = next(url.port for url in serving.urls if url.scheme == scheme)
    return f"{scheme}://127.0.0.1:{port}"


def test_tank_tells_topics_partitions_and_numbers(serving: Serving) -> None:
    """All of them, or those of the topic and the partition that the address names."""
    url = address(serving, "tank")
    status = asked(url)
    assert (status["url"], status["version"], status["partitions"]) == (url, "4.0", 3)
    rows = [(one["topic"], one["partition"], one["first"], one["last"]) for one in status["topics"]]
    assert rows == [("events", 0, 0, 0), ("events", 1, 1, 3), ("none", 0, 0, 0)]
    assert all(one["enabled"] and one["problem"] == "" for one in status["topics"])
    assert [one["partition"] for one in asked(f"{url}/events")["topics"]] == [0, 1]
    assert [one["last"] for one in asked(f"{url}/events/1")["topics"]] == [3]
    with pytest.raises(PeerRefused, match="nothing"):
        asked(f"{url}/nothing")
    with pytest.raises(PeerRefused, match="events/2: the broker says unknown partition"):
        asked(f"{url}/events/2")
    with pytest.raises(ConfigError, match="'x' is no partition"):
        asked(f"{url}/events/x")


async def fetched(url: str, topic: str, partition: int) -> None:
    """Ask for the messages of one partition."""
    async with AsyncClient(url) as client:
        assert (await client.status()).open_partitions == 0
        await client.bundle_at(topic, partition, 1)


def test_open_partitions_are_those_that_somebody_has_read(tmp_path: Path) -> None:
    """Publishing opens none, a fetch that one, and who asks for the numbers all of the topic."""
    with Serving(tmp_path, listen=[parse_listen_url("tank://:0")]) as serving:
        url = address(serving, "tank")
        with Client(parse_url(url)) as client:
            client.create_topic("events", 3)
            with client.producer() as producer:
                producer.send("events", b"x", partition=0).result(20)
        asyncio.run(fetched(url, "events", 1))
        assert [asked(url)["open_partitions"] for _ in range(2)] == [1, 3]


def test_tap_tells_its_statistics(serving: Serving) -> None:
    """Of the bucket that the address names; those of each group under its name."""
    status = asked(f"{address(serving, 'tap')}/default")
    found = {(one["group"], one["name"]): one["value"] for one in status["statistics"]}
    assert status["version"] == found["", "version"] != ""
    assert found["", "bucket"] == "default"
    assert found["", "curr_items"] == found["items", "items:1:number"] == "0"
    assert found["vbucket", "vb_0"] == "active"
    assert found["tap", "ep_tap_count"] == "0"
    with pytest.raises(SourceStopped, match="bucket 'nowhere' was refused"):
        asked(f"{address(serving, 'tap')}/nowhere")


@pytest.mark.skipif(
    shutil.which("memcached") is None, reason="no `memcached` program on this machine"
)
def test_memcached_tells_what_it_has() -> None:
    """A group that it does not know (`vbucket`, `tap`) is left out."""
    with memcached() as port:
        status = asked(f"tap://127.0.0.1:{port}")
    assert status["version"]
    groups = {one["group"] for one in status["statistics"]}
    assert {"", "settings"} <= groups
    assert "tap" not in groups


def test_greenstack_tells_its_buckets(serving: Serving) -> None:
    """With its name and what it can do."""
    status = asked(address(serving, "greenstack"))
    assert status["server"] == "logweir"
    assert status["buckets"] == [{"bucket": "default"}]
    assert "change_stream" in status["features"]


@pytest.mark.parametrize("dialect", ["D1", "D3"])
def test_synapse_tells_where_its_streams_stand(serving: Serving, dialect: str) -> None:
    """Every stream, and the dialect as it is found out."""
    ports = [url.port for url in serving.urls if url.scheme == "synapse"]
    status = asked(f"synapse://127.0.0.1:{ports[dialect == 'D3']}")
    assert (status["server"], status["dialect"]) == ("logweir", dialect)
    tokens = {one["stream"]: one["token"] for one in status["positions"]}
    assert {"orders", "returns"} <= set(tokens)
    assert tokens["orders"] == serving.log.vclock.signature


async def spoken(*answers: Sequence[str]) -> dict[str, Any]:
    """The status of a homeserver that answers each REPLICATE with these lines, in their turn."""
    left = [list(lines) for lines in answers]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SERVER example.org\n")
        async for line in reader:
            if line.startswith(b"REPLICATE") and left:
                writer.write("".join(f"{each}\n" for each in left.pop(0)).encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await fetch_status(parse_url(f"synapse://127.0.0.1:{port}"))


def test_positions_of_a_homeserver_that_come_late_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the second REPLICATE shows that the one to the first is over; rows between are
    no positions. One that has no streams says nothing; one that says too little is no answer."""
    first, row, late = "POSITION a one 1 3", 'RDATA a one 4 ["x"]', "POSITION b two 7 7"
    status = asyncio.run(spoken([first], [row, late, first, late]))
    positions = [tuple(one.values()) for one in status["positions"]]
    assert positions == [("a", "one", 3), ("b", "two", 7)]
    monkeypatch.setattr(synapse_status, "SYNAPSE_PING_SECONDS", 0.05)
    assert asyncio.run(spoken())["positions"] == []
    monkeypatch.setattr(synapse_status, "SYNAPSE_PING_SECONDS", 5.0)
    monkeypatch.setattr(synapse_status, "SYNAPSE_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(Unreachable, match="does not tell all"):
        asyncio.run(spoken([first], [late]))


@pytest.mark.parametrize(
    ("scheme", "there", "error"),
    [
        ("tank", "tarantool", RemoteProtocolError),
        ("tap", "synapse", RemoteProtocolError),
        ("greenstack", "tank", RemoteProtocolError),
        ("synapse", "tank", RemoteProtocolError),
        ("synapse", "greenstack", RemoteProtocolError),
        ("tank", "greenstack", Unreachable),
        ("tap", "tank", Unreachable),
    ],
)
def test_another_protocol_is_told(
    serving: Serving, scheme: str, there: str, error: type[LogweirError]
) -> None:
    """What is no such server, or closes the connection, is said with the address and a hint."""
    port = address(serving, there).rpartition(":")[2]
    with pytest.raises(error, match=f"{scheme}://127.0.0.1:{port}") as caught:
        asked(f"{scheme}://127.0.0.1:{port}")
    assert caught.value.hint


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nobody_there_is_told(scheme: str) -> None:
    """In each protocol alike."""
    with pytest.raises(Unreachable, match=f"{scheme}://127.0.0.1") as caught:
        asked(f"{scheme}://127.0.0.1:{free_port()}")
    assert caught.value.hint


def test_upstreams_that_are_no_servers_are_refused() -> None:
    """Redis tells nothing of a homeserver's streams without a subscription."""
    with pytest.raises(ConfigError, match=r"synapse\+redis does not tell its status"):
        asked("synapse+redis://127.0.0.1:1/example.org")


def test_status_in_the_shell(serving: Serving) -> None:
    """The same object with --json, and tables of the same rows without it."""
    url = address(serving, "tank")
    code, out, _ = told("status", url, "--json")
    assert (code, json.loads(out)["topics"]) == (0, asked(url)["topics"])
    code, out, _ = told("status", url)
    assert code == 0
    assert ["events", "1", "1", "3", "yes"] in [line.split() for line in out.splitlines()]
    code, _, err = told("status", url, "--checksums")
    assert code == 2
    assert "tank does not tell them" in err


def test_seconds_are_told_to_the_millisecond(serving: Serving) -> None:
    """To people, in fields and in tables; programs get the number as it is."""
    lines = told("status", address(serving, "tarantool"))[1].splitlines()
    uptime = next(line.split()[1] for line in lines if line.startswith("uptime_seconds"))
    assert re.fullmatch(r"\d+\.\d{3}", uptime)
    assert isinstance(asked(address(serving, "tarantool"))["uptime_seconds"], float)
