"""States of vbuckets that groups know of the last commit: whoever changed one, the next knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.replication.bucket.batch import WHOLE, Looks, Paused, Said
from logweir.replication.bucket.change import SET
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.bucket.store import STATES_SPACE, Bucket, Buckets, GroupItems
from logweir.replication.memcached.serve import runs
from logweir.replication.memcached.serve.commands import READS
from logweir.replication.memcached.serve.runs import RequestRun, take_run
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_request
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.schema.bulk import interpreted

ACTIVE, REPLICA, DEAD = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.DEAD


def in_group(log: logweir.Log, bucket: Bucket, work: Callable[[Group, GroupItems], object]) -> None:
    """Run `work` in a group of its own."""
    log.inner.run_job(Job(lambda group: work(group, GroupItems(bucket, group, 0.0))))


def states(log: logweir.Log, bucket: Bucket) -> list[VbucketState | None]:
    """Those of the first three vbuckets, as the next group sees them."""
    found: list[VbucketState | None] = []
    in_group(log, bucket, lambda _, items: found.extend(map(items.state, range(3))))
    return found


def test_a_state_that_anybody_changed_is_known_to_the_next_group(tmp_path: Path) -> None:
    """By a group, by a transaction of the store, by removing it."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        bucket = Buckets(log).make("default")
        assert states(log, bucket) == [ACTIVE, None, None]
        in_group(log, bucket, lambda _, items: items.set_state(1, REPLICA))
        assert states(log, bucket) == [ACTIVE, REPLICA, None]
        log.replace(STATES_SPACE, ("default", 2, int(DEAD)))
        assert states(log, bucket) == [ACTIVE, REPLICA, DEAD]
        log.delete(STATES_SPACE, ["default", 1])
        in_group(log, bucket, lambda _, items: items.set_state(0, None))
        assert states(log, bucket) == [None, None, DEAD]


def test_a_state_is_that_of_the_group_until_it_is_rolled_back(tmp_path: Path) -> None:
    """Also to other items of the group; and of what was given up nobody knows."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        bucket = Buckets(log).make("default")

        def change(group: Group, items: GroupItems) -> None:
            other = GroupItems(bucket, group, 0.0)
            assert items.state(1) is other.state(1) is None
            mark = group.mark()
            items.set_state(1, ACTIVE)
            assert (
                items.state(1)
                is other.state(1)
                is GroupItems(bucket, group, 0.0).state(1)
                is ACTIVE
            )
            group.rollback(mark)
            assert other.state(1) is GroupItems(bucket, group, 0.0).state(1) is None
            items.set_state(2, ACTIVE)
            assert other.state(2) is ACTIVE
            raise ValueError("the change is given up")

        with pytest.raises(ValueError, match="given up"):
            in_group(log, bucket, change)
        assert states(log, bucket) == [ACTIVE, None, None]


def test_a_state_that_is_not_durable_yet_counts_for_what_is_made_on_it(tmp_path: Path) -> None:
    """The next group begins while the one before waits to be written."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        bucket = Buckets(log).make("default")
        assert states(log, bucket) == [ACTIVE, None, None]
        with log.inner.exclusive(alone=False):
            before = log.inner.begin_group()
            GroupItems(bucket, before, 0.0).set_state(1, REPLICA)
            before.end_transaction()
            assert log.inner.end_group(before)
        with log.inner.exclusive(alone=False):
            group = log.inner.begin_group()
            seen = GroupItems(bucket, group, 0.0).state(1)
            group.txn.abort()
        with log.inner.exclusive():  # once it is written
            pass
        assert seen is REPLICA
        assert states(log, bucket) == [ACTIVE, REPLICA, None]


class Meddled(RequestRun):
    """A run during which, once its statements are made, something is changed."""

    meddle: Callable[[], object]

    def statements(self, *given: Any) -> int:
        how = super().statements(*given)
        if how == WHOLE:
            meddle, self.meddle = self.meddle, lambda: None
            meddle()
        return how


def test_a_look_is_made_again_when_a_state_changes_meanwhile(tmp_path: Path) -> None:
    """Its statements were made for states that are no longer so when they are executed."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        buckets = Buckets(log)
        bucket = buckets.make("default")
        in_group(log, bucket, lambda _, items: items.change(SET, Item(b"k", 0, value=b"v")))
        found = take_run(encode_request(Packet(Opcode.GET, b"k")))
        assert found is not None

        def odd(at: int) -> Said:
            raise Paused([], at)

        def look(meddle: Callable[[], object]) -> bytes:
            run = Meddled(found.data, found.start, found.stop, found.count, found.changes)
            run.meddle = meddle
            ((_, said),) = Looks(run, buckets, bucket, 0.0, [], odd).answer()
            return said

        assert look(lambda: None).endswith(b"v")
        assert look(lambda: log.replace(STATES_SPACE, ("default", 7, int(DEAD))))[-1:] == b"v"
        with pytest.raises(Paused):
            look(lambda: log.replace(STATES_SPACE, ("default", 0, int(DEAD))))
        with pytest.raises(Paused):
            look(lambda: None)
        log.replace(STATES_SPACE, ("default", 0, int(ACTIVE)))
        assert look(lambda: None).endswith(b"v")


def test_a_bucket_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """A bucket is kept while no definition changes: not one that is gone, nor what has its name."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        buckets = Buckets(log)
        made = buckets.make("b")
        assert buckets.find("b") is made
        log.create_space("other", [("id", "unsigned")])
        assert buckets.find("b") is made
        log.drop_space("b")
        assert buckets.find("b") is None
        log.create_space("b", [("id", "unsigned")])
        assert buckets.find("b") is None
        log.drop_space("b")
        assert buckets.make("b") is not made


def test_what_is_answered_as_a_read_is_one() -> None:
    """Who answers reads from their bytes is asked for nothing else, and for all that they know."""
    wire = interpreted(runs.kernel)
    kinds = {wire._GET, wire._SIMPLE, wire._FETCH}
    assert {opcode for opcode in range(256) if wire.KINDS[opcode] in kinds} <= READS


def test_an_item_fits_that_these_protocols_could_have_written() -> None:
    """Any other tuple of the format is another protocol's."""
    largest = Item(b"k" * 250, 0xFFFF, flags=0xFFFF_FFFF, datatype=0xFF, compression=0x7F)
    assert largest.fits
    assert Item(b"k").fits
    for field in ("vbucket", "flags", "datatype", "compression"):
        assert not replace(largest, **{field: getattr(largest, field) + 1}).fits
    assert not Item(b"k" * 251).fits
    assert not Item(b"").fits
