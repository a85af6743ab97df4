"""Many documents in one request: what as many GETs are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.errors import PeerRefused
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import STATES_SPACE
from logweir.replication.greenstack.client import Client, Put
from logweir.replication.greenstack.wire.codec import Flag, Frame, Opcode, Status
from logweir.replication.greenstack.wire.many import decode_found, encode_get_many
from logweir.replication.greenstack.wire.messages import Document, Feature, decode_get_answer
from logweir.replication.protocols import parse_listen_url


def serve(folder: Path, **options: Any) -> Serving:
    """A server of buckets."""
    options.setdefault("guest", "all")
    return Serving(folder, listen=[parse_listen_url("greenstack://:0")], **options)


def connect(server: Serving) -> RawClient:
    """A client that has asked for all there is but notices."""
    return RawClient(server.port, features=(Feature.REMOVE, Feature.GET_MANY))


def many(*ids: bytes, number: int = 0, flags: int = 0, **flex: bytes) -> Frame:
    """The request."""
    entries = vbucket(number, **flex)
    return Frame(Opcode.GET_MANY, payload=encode_get_many(ids), flags=flags, flex=entries)


def one_by_one(
    client: RawClient, *ids: bytes, number: int = 0
) -> list[tuple[int, Document | None]]:
    """What GETs are answered."""
    found: list[tuple[int, Document | None]] = []
    for id_ in ids:
        answer = client.ask(get(id_, flex=vbucket(number)))
        document = None if answer.status else decode_get_answer(answer.payload)
        found.append((answer.status or 0, document))
    return found


def test_each_is_told_as_by_a_get(tmp_path: Path) -> None:
    """Documents of all kinds, some twice, some that are not there, expired or cannot be shown;
    alone, and behind a change of its lane that is not durable yet."""
    with serve(tmp_path / "s") as server, connect(server) as client:
        client.ask(mutation(b"a", b"1"))
        full = Document(b"full", b"{}", 0xDEADBEEF, "2031-04-05T06:07:08Z", 0, 1)
        client.ask(Frame(Opcode.MUTATION, payload=full.encode(), flex=vbucket(0)))
        client.ask(mutation(b"elsewhere", b"x", flex=vbucket(7)))
        rows = [
            (b"gone", 0, b"v", 0, 1000, 5, 0, 0, "", b""),
            (b"odd", 0, b"v", 1 << 40, 0, 5, 0, 0, "", b""),
        ]
        server.log.append("default", rows)
        ids = (b"a", b"none", b"full", b"odd", b"gone", b"a", b"elsewhere", b"x" * 250)
        told = one_by_one(client, *ids)
        assert [status for status, _ in told] == [0, 8, 0, 2, 8, 0, 8, 8]
        answer = client.ask(many(*ids))
        assert answer.status == Status.SUCCESS
        assert decode_found(answer.payload) == told
        assert decode_found(client.ask(many()).payload) == []
        client.send(mutation(b"a", b"2", opaque=1), many(b"a", b"none"))
        changed, answer = client.answer(), client.answer()
        assert changed.status == Status.SUCCESS
        (status, document), (missing, _) = decode_found(answer.payload)
        assert (status, missing, document and document.value) == (0, Status.NOT_FOUND, b"2")
        answer = client.ask(many(b"a", lane=b"l"))
        assert (answer.lane, answer.status) == (b"l", Status.SUCCESS)
        plain = [one for one in ids if one not in (b"odd", b"gone")]
        answers = [client.ask(many(*plain, **flex)) for flex in ({}, {"lane": b"l"})]
        assert answers[0].payload == answers[1].payload
        client.send(many(b"a", flags=Flag.QUIET))
        assert client.barrier() == []


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    """Ids that are none, more than there may be, without a vbucket, as a part of a transaction; by
    who may not read; of a vbucket that is not here each is told so."""
    with serve(tmp_path / "s") as server:
        server.log.replace(STATES_SPACE, ["default", 5, int(VbucketState.DEAD)])
        with connect(server) as client:
            for ids in ((b"",), (b"a", b"x" * 251), (b"a\0b",), (b"a",) * 1001):
                assert client.ask(many(*ids)).status == Status.INVALID_ARGUMENTS
            assert client.ask(many(b"a", flags=Flag.MORE)).status == Status.INVALID_ARGUMENTS
            bare = Frame(Opcode.GET_MANY, payload=encode_get_many((b"a",)))
            assert client.ask(bare).status == Status.INVALID_ARGUMENTS
            broken = Frame(Opcode.GET_MANY, payload=b"\xff" * 9, flex=vbucket(0))
            assert client.ask(broken).status == Status.INVALID_ARGUMENTS
            answer = client.ask(many(b"a", b"b", number=5))
            assert decode_found(answer.payload) == one_by_one(client, b"a", b"b", number=5)
            assert {status for status, _ in decode_found(answer.payload)} == {Status.NOT_MY_VBUCKET}
    with (
        serve(tmp_path / "s", guest="none") as server,
        RawClient(server.port, features=(Feature.GET_MANY,), bucket="") as client,
    ):
        assert client.ask(many(b"a")).status == Status.NO_BUCKET


def test_large_documents_are_told_in_parts_and_our_client_has_them_all(tmp_path: Path) -> None:
    """What does not go into one answer is to be asked for again; so are more than a thousand."""
    values = {b"k%04d" % n: b"%04d" % n * 1000 for n in range(1500)}

    async def work(port: int) -> None:
        async with Client(f"greenstack://127.0.0.1:{port}/default") as client:
            await client.set_all([Put(key, value) for key, value in values.items()])
            found = await client.get_many([*values, b"none", b"k0000"])
            assert {key: one.value for key, one in found.items()} == values
            assert await client.get_many([]) == {}
            with pytest.raises(PeerRefused, match="invalid arguments"):
                await client.get_many([b""])
        old = Client(f"greenstack://127.0.0.1:{port}/default", features=(Feature.REMOVE,))
        async with old:
            with pytest.raises(PeerRefused, match="does not offer GET_MANY"):
                await old.get_many([b"a"])
            with pytest.raises(PeerRefused, match="does not offer"):
                async with old.follow(b"f", now=True, prefix=b"a"):
                    pass

    with serve(tmp_path / "s") as server:
        asyncio.run(work(server.port))
        with connect(server) as client:
            told = decode_found(client.ask(many(*list(values)[:1000])).payload)
    statuses = [status for status, _ in told]
    assert statuses == sorted(statuses)
    assert set(statuses) == {Status.SUCCESS, Status.TOO_BUSY}
    assert 400 < statuses.count(Status.SUCCESS) < 800
