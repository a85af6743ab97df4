"""Batches of several lanes in one job: what one leaves holds up what is behind it in its lane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import logweir
from interop.gsraw import get, mutation
from logweir.limits import TAP_ANSWERS_BYTES
from logweir.replication.bucket.store import Bucket, Buckets
from logweir.replication.greenstack.serve.lanes import Batch, BatchKind, Lane, Pending
from logweir.replication.greenstack.serve.runs import take_run
from logweir.replication.greenstack.serve.statements import Work, change_works
from logweir.replication.greenstack.wire.codec import Frame, FrameBuffer, encode_frame
from logweir.store.commit.jobs import Job
from logweir.store.log import Log

NOW = 1_795_000_000.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with logweir.open(tmp_path / "s", durability="write", clock=lambda: NOW) as log:
        yield log


@pytest.fixture
def bucket(log: Log) -> Bucket:
    return Buckets(log, lambda: NOW).make("default")


def work(bucket: Bucket, lane: Lane[str], *frames: Frame, binds: bool = False) -> Work:
    """A batch of runs, or a transaction."""
    requests = [Pending(one) for one in frames]
    if not binds:
        pieces, problem = FrameBuffer().feed(b"".join(map(encode_frame, frames)), take_run)
        assert problem is None
        requests = [Pending(one) for one in pieces]
    kind = BatchKind.TRANSACTION if binds else BatchKind.STORE
    batch = Batch(kind, lane, requests, sum(one.size_bytes for one in requests))
    return Work(batch, bucket, requests, 7, asker=None)  # type: ignore[arg-type]


def change(log: Log, *works: Work) -> None:
    log.inner.run_job(Job(lambda group: change_works(works, group, NOW)))


def told(one: Work) -> list[int]:
    """The opaques of what is answered."""
    return [each.opaque for each in FrameBuffer().feed(b"".join(one.fresh))[0]]


def test_what_is_behind_in_a_lane_waits_and_other_lanes_do_not(log: Log, bucket: Bucket) -> None:
    """Behind answers that are as many as are made at a time: also a transaction, whole."""
    large = bytes(TAP_ANSWERS_BYTES * 2 // 5)
    lane, other = Lane(None, "default"), Lane(b"x", "default")
    change(log, work(bucket, lane, mutation(b"large", large)))
    gets = work(bucket, lane, *[get(b"large", opaque=n) for n in range(5)])
    bound = work(bucket, lane, mutation(b"a", opaque=5), mutation(b"b", opaque=6), binds=True)
    behind = work(bucket, lane, mutation(b"c", opaque=7))
    apart = work(bucket, other, mutation(b"d", opaque=8))
    change(log, gets, bound, behind, apart)
    assert told(gets) == [0, 1, 2]
    assert told(bound) == told(behind) == []
    assert told(apart) == [8]
    assert sorted(row[0] for row in log.select("default")) == [b"d", b"large"]
    assert [one.count for one in gets.left] == [2]
    assert [one.count for one in bound.left] == [2]
    assert [one.count for one in behind.left] == [1]
    assert not apart.left
    for one in (gets, bound, behind):
        one.rest = one.left
    change(log, gets, bound, behind)
    assert (told(gets), told(bound), told(behind)) == ([3, 4], [5, 6], [7])
    assert {row[0] for row in log.select("default")} == {b"a", b"b", b"c", b"d", b"large"}


def test_a_job_that_is_made_again_answers_all(log: Log, bucket: Bucket) -> None:
    """Also what it left the first time: the group may be given up before it is durable."""
    lane = Lane(None, "default")
    one = work(bucket, lane, mutation(b"a", opaque=1), mutation(b"a", opaque=2))

    def again(group: object) -> None:
        one.begin()
        one.leave(one.rest[0])
        change_works([one], group, NOW)  # type: ignore[arg-type]

    log.inner.run_job(Job(again))
    assert told(one) == [1, 2]
    assert not one.left
