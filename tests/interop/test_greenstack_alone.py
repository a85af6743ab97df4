"""A client that waits for each answer: its Sets are made in the loop's thread."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.bucket.item import unpack_item
from logweir.replication.greenstack.wire.codec import Flag, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import (
    MutationAnswer,
    Operation,
    decode_get_answer,
    encode_remove,
)
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import line
from logweir.replication.service.shared import Shared
from logweir.store.commit.jobs import Job
from logweir.wal.filesystem import OS
from logweir.wal.mp import pack


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each group had that was made in the loop's thread. No disk is slow for it."""
    monkeypatch.setattr(line, "_QUICK_SECONDS", 1000.0)
    found: list[int] = []
    whole = Shared._is_made_at_once

    def noted(self: Shared, jobs: list[Job]) -> bool:
        is_made = whole(self, jobs)
        if is_made:
            found.append(sum(job.size for job in jobs))  # before anybody is answered
        return is_made

    monkeypatch.setattr(Shared, "_is_made_at_once", noted)
    return found


def serve(folder: Path, **options: Any) -> Serving:
    """A server of buckets that lets guests do everything."""
    return Serving(folder, listen=[parse_listen_url("greenstack://:0")], guest="all", **options)


def put(client: RawClient, key: bytes, value: bytes, **more: Any) -> MutationAnswer:
    """A Set by itself, and what it was answered."""
    answer = client.ask(mutation(key, value, **more))
    assert answer.status == Status.SUCCESS
    return MutationAnswer.decode(answer.payload)


def alone(client: RawClient, made: list[int]) -> None:
    """Change the same again until it is made at once."""
    for number in range(1000):
        put(client, b"again", b"%d" % number)
        if made:
            return
    pytest.fail("never made at once")


def test_single_sets_are_answered_and_read_as_ever(tmp_path: Path, made: list[int]) -> None:
    """By the same connection, by another one, beside other operations, and after the store was
    opened again; CAS and lsn grow, and a CAS that was given can be asked for."""
    stored: dict[bytes, bytes] = {}
    told: list[tuple[int, int]] = []
    with serve(tmp_path / "s") as server:
        with RawClient(server.port) as one, RawClient(server.port) as other:
            for number in range(300):
                key, value = b"k%d" % (number % 7), b"v%d" % number
                answer = put(one, key, value)
                told.append((answer.cas, answer.seqno))
                assert answer.size == len(value)
                stored[key] = value
                if number % 50 == 49:
                    again = put(one, key, b"by cas", cas=answer.cas)
                    told.append((again.cas, again.seqno))
                    refused = one.ask(mutation(key, b"no", cas=answer.cas))
                    assert refused.status == Status.ALREADY_EXISTS
                    added = one.ask(mutation(key, b"no", Operation.ADD))
                    assert added.status == Status.ALREADY_EXISTS
                    stored[key] = b"by cas"
                    for client in (one, other):
                        found = decode_get_answer(client.ask(get(key)).payload)
                        assert (found.value, found.cas) == (b"by cas", again.cas)
            assert one.ask(mutation(b"k0", b"v", flex={})).status == Status.INVALID_ARGUMENTS
            remove = Frame(Opcode.REMOVE, payload=encode_remove(b"k1", 0), flex=vbucket(0))
            assert one.ask(remove).status == Status.SUCCESS
            del stored[b"k1"]
        assert server.log.vclock.lsn(1) >= told[-1][1]
    assert len(made) > 100
    assert told == sorted(set(told))
    with logweir.open(tmp_path / "s") as log:
        items = [unpack_item(pack(list(row))) for row in log.select("default")]
    assert {item.key: item.value for item in items} == stored


@pytest.mark.parametrize(("size_bytes", "at_once"), [(1000, True), (10_000, False)])
def test_a_full_lane_and_one_set_in_another_are_one_group(
    tmp_path: Path, made: list[int], size_bytes: int, at_once: bool
) -> None:
    """Both are durable when the one is answered, and the quiet ones say nothing. Where they are
    large another thread makes them."""
    large = b"y" * size_bytes
    slow = [
        mutation(b"l%d" % n, large, flags=Flag.QUIET, flex=vbucket(0, lane=b"slow"))
        for n in range(20)
    ]
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.barrier(b"slow")
        alone(client, made)
        for number in range(30):
            made.clear()
            before = server.log.inner.commits
            client.send(
                *slow, mutation(b"f%d" % number, b"v", opaque=number, flex=vbucket(0, lane=b"fast"))
            )
            answer = client.answer()
            assert (answer.opaque, answer.lane, answer.status) == (number, b"fast", Status.SUCCESS)
            assert all(size < 20 * size_bytes for size in made) or at_once
            if server.log.inner.commits == before + 1:
                assert bool(made) == at_once
                assert not made or made[0] > 20 * size_bytes
                break
        else:
            pytest.fail("never one group")
        for n in range(20):
            assert decode_get_answer(client.ask(get(b"l%d" % n)).payload).value == large


def test_a_failed_write_is_told_and_the_next_set_made(tmp_path: Path, made: list[int]) -> None:
    """A temporary failure, nothing in the bucket, and the connection stays."""
    faulty = FaultyFileSystem(OS)
    with (
        serve(tmp_path / "s", open_options={"filesystem": faulty}) as server,
        RawClient(server.port) as client,
    ):
        alone(client, made)
        faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
        assert client.ask(mutation(b"k", b"1")).status == Status.TMP_FAILURE
        assert client.ask(get(b"k")).status == Status.NOT_FOUND
        put(client, b"k", b"2")
        assert decode_get_answer(client.ask(get(b"k")).payload).value == b"2"
