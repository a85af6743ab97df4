"""Worlds of `sim.copystores` of a bucket: the source changes items in two vbuckets, some of which
expire, and removes all now and then; each other store follows it, or one that follows it, by TAP or
by Greenstack.

What becomes of an item is seen in the log of each store. At a follower it is what became of it
where that follows, in that order, maybe with steps left out; over Greenstack never one that is
over, over TAP only in a connection that goes on from a checkpoint. No row is the same as the one
before of its item. An item that expires may go at the follower first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sim.copystores import FSYNC, SLOW, CopyNode, CopyStores

import logweir
from logweir.replication.bucket.change import ADD, APPEND, INCREMENT, PREPEND, SET, TOUCH
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.bucket.store import Buckets, GroupItems
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.urls import Url
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.schema.definition import SystemSpace
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row, RowType

__all__ = ["FSYNC", "SLOW", "BucketStores"]

_BUCKET: Final = "b"
_KEYS: Final = 6
_KINDS: Final = (SET, SET, ADD, APPEND, PREPEND, INCREMENT, TOUCH)
_EXPIRY: Final = 4
_TOLD: Final = (*range(8), 9)
"""The fields of an item that all protocols tell."""
Told = tuple[Any, ...]
Put = tuple[bytes, int]
"""Key and CAS."""


class BucketNode(CopyNode):
    """One of them. `seen`: the items that it has, by their keys; `became`: of each key, None where
    it was removed; `is_tap`: how it follows."""

    world: BucketStores
    seen: dict[bytes, Told]

    def __init__(self, world: BucketStores, *given: Any) -> None:
        super().__init__(world, *given)
        self.became: dict[bytes, list[Told | None]] = {}
        self.is_tap = world.dice.random() < 0.6
        self.read_to = VClock()

    def _listened(self) -> list[Url]:
        return [
            parse_listen_url(f"tap://127.0.0.1:{self.port}/{_BUCKET}?sweep=5&noop=5"),
            parse_listen_url(f"greenstack://127.0.0.1:{self.port + 100}"),
        ]

    def _followed(self) -> list[Url]:
        port = 3300 + self.upstream
        if self.is_tap:
            return [parse_url(f"tap://127.0.0.1:{port}/{_BUCKET}?stall=30")] * bool(self.number)
        return [parse_url(f"greenstack://127.0.0.1:{port + 100}/{_BUCKET}")] * bool(self.number)

    def _take_up(self, log: logweir.Log) -> None:
        super()._take_up(log)
        log.retain("observer", self.read_to)

    def _look(self, log: logweir.Log) -> None:
        for made in log.rows(self.read_to):
            space = log.schema.get(_BUCKET)
            if space is not None:
                self._note(made.rows, space.id)
            for row in made.rows:
                self.read_to = self.read_to.with_lsn(row.replica_id, row.lsn)
        log.retain("observer", self.read_to)

    def _note(self, rows: Sequence[Row], space_id: int) -> None:
        """A transaction."""
        bodies = [(row.type, row.decoded()) for row in rows if row.body]
        removed = [body["key"][0] for kind, body in bodies if kind == RowType.DELETE]
        for kind, body in bodies:
            if body["space_id"] == SystemSpace.TRUNCATE and body["tuple"][0] == space_id:
                self._becomes([*self.seen], None)
            elif body["space_id"] != space_id:
                continue
            elif kind == RowType.DELETE:
                self._becomes(body["key"], None)
            elif not (body["tuple"][0] in removed and not body["tuple"][2]):  # no tombstone
                told = tuple(body["tuple"][field] for field in _TOLD)
                is_new = not self.number or self.seen.get(told[0]) != told
                assert is_new, f"{self.name} takes {told} twice"
                self._becomes(told[:1], told)

    def _becomes(self, keys: Iterable[bytes], told: Told | None) -> None:
        for key in keys:
            self.became.setdefault(key, []).append(told)
            if told is None:
                self.seen.pop(key, None)
            else:
                self.seen[key] = told

    def check(self) -> None:
        for key, became in self.became.items() if self.number else ():
            there = [None, *self.world.nodes[self.upstream].became.get(key, ())]
            at, before = 0, None
            for told in became:
                was_due = told is None and before is not None and before[_EXPIRY]
                if not was_due:
                    known = told in there[at:]
                    at += there[at:].index(told) if known else 0
                    # TAP goes on from a checkpoint, and what came behind it comes again.
                    assert known or (self.is_tap and told in there), (
                        f"{self.name} has {told} behind {before}, node{self.upstream} {there[:at]} "
                        f"and then {there[at:]}"
                    )
                before = told

    def has(self, put: Put) -> bool:
        key, cas = put
        return any(told is not None and told[5] == cas for told in self.became[key])

    def _change(self, log: logweir.Log, dice: random.Random) -> None:
        """Some changes of items, in one transaction; or all items are removed."""
        bucket = Buckets(log, self.world.now).make(_BUCKET)
        seed, made = dice.getrandbits(64), list[Put]()

        def work(group: Group) -> None:
            made.clear()
            items = GroupItems(bucket, group, self.world.now())
            if items.state(1) is None:
                items.set_state(1, VbucketState.ACTIVE)
            chance = random.Random(seed)
            if chance.random() < 0.05:
                items.flush()
                return
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                key, vbucket = b"k%d" % chance.randrange(_KEYS), int(chance.random() < 0.25)
                if chance.random() < 0.2:
                    items.remove(key, vbucket)
                    continue
                text = chance.choice((b"7", b"8" * 5, b"v" * chance.choice((40, 900, 5000))))
                expiry = int(self.world.now()) + chance.choice((1, 5, 30))
                kind = chance.choice(_KINDS)
                text = b"7" if kind == INCREMENT else text
                given = Item(key, vbucket, text, 9, expiry if chance.random() < 0.2 else 0)
                changed = items.change(kind, given, 1)
                if not changed.code:
                    made.append((key, changed.cas))

        log.inner.run_job(Job(work, 1000))
        self.world.put += made


class BucketStores(CopyStores):
    """See the module."""

    node_type = BucketNode
    nodes: list[BucketNode]  # type: ignore[assignment]

    def _are_alike(self) -> bool:
        now = self.now()
        return super()._are_alike() and not any(
            0 < told[_EXPIRY] <= now for told in self.nodes[0].seen.values()
        )
