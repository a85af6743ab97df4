"""The envelope: every source in one form, whatever protocol its follower speaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client as SynapseClient

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.greenstack.follow.incoming import CaughtUp, Rows
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.urls import Url

SPACES = ("orders", "events", "cache")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    """A space, a topic and a bucket, with listeners that give envelopes."""
    plain = ("memcached://:0/cache", "tank://:0")
    listen = [*plain, *(f"{one}://:0?value=envelope" for one in ("tap", "greenstack", "synapse"))]
    urls = [parse_listen_url(one) for one in listen]
    with Serving(tmp_path / "s", listen=urls, guest="all") as serving:
        serving.log.create_space("orders", [("id", "unsigned"), ("who", "string")])
        with TankClient(serving.urls[1]) as client:
            client.create_topic("events")
        yield serving


def address(serving: Serving, scheme: str) -> Url:
    return next(url for url in serving.urls if url.scheme == scheme)


def write(serving: Serving) -> None:
    """Changes of every kind."""
    serving.log.insert("orders", (1, "ada"))
    serving.log.update("orders", 1, [("=", 1, "bob")])
    serving.log.insert("orders", (2, "cy"))
    with TankClient(serving.urls[1]) as client, client.producer() as producer:
        for number in range(3):
            producer.send("events", b"m%d" % number, key=b"k", time_ms=1000 * number)
    with KvClient(serving.port) as client:
        client.ask(store(b"a", b"x"), store(b"a", b"y"), Packet(Opcode.DELETE, b"a"))


def wanted(space: str) -> list[Any]:
    """The envelopes of what has a value, without times and positions that only the log knows."""
    if space == "events":
        return [
            ("tank", "insert", "k", f"m{number}", number, {"partition": 0, "number": number + 1})
            for number in range(3)
        ]
    if space == "orders":
        changes = (("insert", 1, "ada"), ("update", 1, "bob"), ("insert", 2, "cy"))
        return [("tarantool", op, [key], [key, who]) for op, key, who in changes]
    return [("memcached", "replace", "a", "x"), ("memcached", "replace", "a", "y")]


def told(text: str | bytes, space: str) -> tuple[Any, ...]:
    """An envelope in the shape of `wanted`."""
    one = json.loads(text)
    assert list(one) == ["kind", "name", "position", "time", "op", "key", "value"]
    assert one["name"] == space
    if space == "events":
        return one["kind"], one["op"], one["key"], one["value"], one["time"], one["position"]
    assert one["time"] > 1.7e9
    keys = {"orders": ["replica", "lsn"], "cache": ["vbucket", "cas"]}[space]
    assert list(one["position"] or keys) == keys
    return one["kind"], one["op"], one["key"], one["value"]


def by_tap(serving: Serving, space: str) -> list[str]:
    """From the present on."""
    future = Connect(b"", Option.BACKFILL | Option.SUPPORT_ACK, backfill=2**64 - 1)
    with TapStream(
        f"tap://127.0.0.1:{address(serving, 'tap').port}/space:{space}", future
    ) as stream:
        next(stream)
        write(serving)
        messages = (one for one in stream if one.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE))
        return [one.value.decode() for one in islice(messages, 3) if one.value]


def by_greenstack(serving: Serving, space: str) -> list[str]:
    """The same."""

    async def main() -> list[str]:
        found: list[str] = []
        rows = 0
        name = f"space:{space}"
        port = address(serving, "greenstack").port
        async with (
            asyncio.timeout(20),
            GreenstackClient(f"greenstack://127.0.0.1:{port}") as client,
            client.follow(b"n", start=serving.log.vclock, buckets=[name]) as steps,
        ):
            async for step in steps:
                if isinstance(step, CaughtUp):
                    await asyncio.to_thread(write, serving)
                elif isinstance(step, Rows):
                    for one in step.changes:
                        assert one.bucket == name
                        assert one.item is not None
                        rows += 1
                        if one.item.value:
                            assert one.item.datatype == 1
                            found.append(one.item.value.decode())
                if rows >= 3:
                    return found
        return found

    return asyncio.run(main())


def by_synapse(serving: Serving, space: str) -> list[str]:
    """The same."""
    with SynapseClient(address(serving, "synapse").port) as client:
        client.send(f"REPLICATE {space} NOW")
        client.until("POSITION")
        write(serving)
        lines = iter(client.line, "")
        rows = (one.split(" ", 3)[3] for one in lines if one.startswith(f"RDATA {space} "))
        return [one for one in islice(rows, 3) if json.loads(one)["op"] != "delete"]


@pytest.mark.parametrize("follow", [by_tap, by_greenstack, by_synapse])
@pytest.mark.parametrize("space", SPACES)
def test_a_source_is_told_alike(served: Serving, space: str, follow: Any) -> None:
    """Kind, name, position, time, operation, key and value."""
    expected = wanted(space)
    found = [told(one, space) for one in follow(served, space)]
    assert found[: len(expected)] == expected
