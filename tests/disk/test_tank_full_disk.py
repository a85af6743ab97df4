"""Publishing to a topic on a disk that becomes full: told, nothing acknowledged lost, goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loops import run
from support.places import mounted

import logweir
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.tank.client.connection import Connection
from logweir.replication.tank.wire.messages import (
    Create,
    Fetch,
    FetchPart,
    Publish,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic.bundle import Message, encode_bundle

DISK_BYTES = 24 * 1024 * 1024
FILLER_BYTES = 12 * 1024 * 1024
BUNDLE_BYTES = 200_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB, half of it taken by the file `filler`."""
    with mounted(tmp_path / "small", DISK_BYTES) as folder:
        (folder / "filler").write_bytes(bytes(FILLER_BYTES))
        yield folder


def bundle(number: int) -> bytes:
    """One message of bytes that do not compress; its number stands in front."""
    content = number.to_bytes(4, "big") + os.urandom(BUNDLE_BYTES)
    return encode_bundle([Message(0, 1, None, content)], compress=False)


async def publish(connection: Connection, data: bytes) -> PublishResult:
    """Publish one bundle to t/0."""
    answered = await connection.ask(Publish(0, (("t", (PublishPart("t", 0, data),)),)))
    return answered.results[0][0]


async def stored(connection: Connection) -> list[int]:
    """The numbers in front of all messages of t/0."""
    found: list[int] = []
    (state,) = (await connection.partitions("t")).partitions
    for number in range(state.first, state.last + 1):
        request = Fetch(0, (("t", (FetchPart("t", 0, number, 1),)),))
        (part,) = (await connection.fetch(request)).parts
        found.append(int.from_bytes(part.chunk[-BUNDLE_BYTES - 4 : -BUNDLE_BYTES], "big"))
    return found


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_full_disk_refuses_publishes_and_loses_none(
    disk: Path, durability: logweir.Durability
) -> None:
    """Result 2 while there is no room, the connection stays; with room it goes on or says why not;
    what was acknowledged is there, then and after opening again."""
    acknowledged: list[int] = []

    async def test() -> None:
        with logweir.open(disk / "store", durability=durability) as log:
            listen = [parse_listen_url("tank://127.0.0.1:0")]
            server = Server(log, ServerOptions(listen=listen, guest="all"))
            (url,) = await server.start()
            connection = await Connection.open(url)
            await connection.ask(Create(0, "t", 1))
            results = []
            for number in range(80):
                results.append(await publish(connection, bundle(number)))
                if results[-1] is PublishResult.STORED:
                    acknowledged.append(number)
            assert set(results) == {PublishResult.STORED, PublishResult.FAILED}
            assert results[-1] is PublishResult.FAILED
            assert await stored(connection) == acknowledged
            (disk / "filler").unlink()
            result = await publish(connection, bundle(80))
            assert result is PublishResult.STORED
            acknowledged.append(80)
            assert await stored(connection) == acknowledged
            connection.close()
            await server.stop()

    run(test)
    with logweir.open(disk / "store") as log:
        firsts = [
            int.from_bytes(bytes(row[4])[-BUNDLE_BYTES - 4 : -BUNDLE_BYTES], "big")
            for row in log.select("t")
        ]
        assert firsts == acknowledged
