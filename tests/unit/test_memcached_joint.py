"""What several clients ask for in one job: each is answered, and waits, by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path

import pytest
from support.tapmodel import asked

import logweir
from logweir.limits import TAP_ANSWERS_BYTES
from logweir.replication.bucket import joint
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.joint import change_all
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.memcached.serve.commands import Executor
from logweir.replication.memcached.serve.runs import Commands, execute_one, take_run
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_request,
)
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.log import Log

SET_EXTRAS = bytes(8)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with logweir.open(tmp_path / "s", durability="write") as log:
        yield log


@pytest.fixture
def bucket(log: Log) -> Bucket:
    """Vbucket 0 is active, 1 pending."""
    bucket = Buckets(log).make("default")

    def pend(group: Group) -> None:
        GroupItems(bucket, group, 0.0).set_state(1, VbucketState.PENDING)

    log.inner.run_job(Job(pend))
    return bucket


def part(*requests: Packet) -> Commands:
    pieces, problem = PacketBuffer().feed(b"".join(map(encode_request, requests)), take_run)
    assert problem is None
    return asked(pieces)


def store(key: bytes, value: bytes = b"v", vbucket: int = 0) -> Packet:
    return Packet(Opcode.SET, key, value, SET_EXTRAS, vbucket=vbucket)


def change(log: Log, bucket: Bucket, *parts: Commands) -> None:
    def apply(group: Group) -> None:
        items = GroupItems(bucket, group, 0.0)
        executor = Executor(items, 0.0)
        ordinary: Callable[[Commands, Packet], bytes]
        ordinary = lambda _, one: execute_one(group, executor, one)  # noqa: E731
        change_all(parts, items, 0.0, ordinary, group)

    log.inner.run_job(Job(apply))


def told(one: Commands) -> list[tuple[int, int]]:
    """Opcode and status of each answer."""
    found, problem = PacketBuffer().feed(b"".join(one.fresh))
    assert problem is None
    return [(packet.opcode, packet.status) for packet in found]


def test_runs_of_several_clients_are_answered_apart(log: Log, bucket: Bucket) -> None:
    one = part(store(b"a"), Packet(Opcode.GET, b"b"), Packet(Opcode.DELETE, b"a"))
    other = part(Packet(Opcode.SETQ, b"b", b"w", SET_EXTRAS))
    third = part(Packet(Opcode.GET, b"b"), Packet(Opcode.GET, b"a"))
    change(log, bucket, one, other, third)
    assert told(one) == [(Opcode.SET, 0), (Opcode.GET, Status.NOT_FOUND), (Opcode.DELETE, 0)]
    assert told(other) == []
    assert told(third) == [(Opcode.GET, 0), (Opcode.GET, Status.NOT_FOUND)]
    assert b"w" in third.fresh[0]
    assert [one.left, other.left, third.left] == [[], [], []]


def test_a_client_that_waits_holds_no_other(log: Log, bucket: Bucket) -> None:
    """In the middle of a joined run; what it asked for behind that waits, too."""
    before = part(store(b"0"))
    one = part(store(b"a"), store(b"held", vbucket=1), store(b"behind"))
    other = part(store(b"b"), Packet(Opcode.GET, b"a"))
    change(log, bucket, before, one, other)
    assert told(before) == told(one) == [(Opcode.SET, 0)]
    assert one.is_held
    assert told(other) == [(Opcode.SET, 0), (Opcode.GET, 0)]
    assert not other.left
    assert sorted(row[0] for row in log.select("default")) == [b"0", b"a", b"b"]

    def activate(group: Group) -> None:
        GroupItems(bucket, group, 0.0).set_state(1, VbucketState.ACTIVE)

    log.inner.run_job(Job(activate))
    one.rest, one.asker.waits = one.left, False
    change(log, bucket, one)
    assert told(one) == [(Opcode.SET, 0), (Opcode.SET, 0)]
    assert not one.left
    assert log.count("default") == 5


def test_answers_of_one_client_are_limited_by_themselves(log: Log, bucket: Bucket) -> None:
    """Large answers to one leave the others' requests in the job."""
    value = bytes(TAP_ANSWERS_BYTES * 2 // 5)
    change(log, bucket, part(store(b"large", value)))
    one = part(store(b"a"), *[Packet(Opcode.GET, b"large")] * 5)
    other = part(*[Packet(Opcode.GET, b"large"), store(b"b")])
    change(log, bucket, one, other)
    assert len(told(one)) == 1 + 3
    assert one.left
    assert not one.is_held
    assert told(other) == [(Opcode.GET, 0), (Opcode.SET, 0)]


def test_each_client_has_its_first_request_made_in_a_job_that_took_long(
    log: Log, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "_JOB_SECONDS", -inf)
    flush = partial(Packet, Opcode.VERBOSITY, extras=bytes(4))  # no part of a run
    one, other = part(flush(), store(b"a")), part(flush(), store(b"b"))
    change(log, bucket, one, other)
    for each in (one, other):
        assert told(each) == [(Opcode.VERBOSITY, 0)]
        assert len(each.left) == 1
    assert log.count("default") == 0
