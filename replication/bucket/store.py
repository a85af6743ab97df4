"""Buckets in a store: their spaces, and how commands change them inside a commit.

`Buckets` finds and makes buckets. `GroupItems` is one bucket inside a group of the commit queue:
what becomes of its items is computed there (`replication.bucket.change`). `ViewItems` is one bucket
in a read view.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from logweir.errors import ConfigError, SourceStopped
from logweir.replication.bucket.change import BURY, TAKEN, ItemComputer
from logweir.replication.bucket.item import (
    BUCKET_FORMAT,
    BUCKET_INDEXES,
    NO_HOPS_MADE,
    VBUCKETS,
    CasClock,
    Changed,
    Item,
    VbucketState,
    pack_item,
    pack_key,
    unpack_item,
)
from logweir.replication.bucket.reads import Bucket
from logweir.store.commit.group import Group
from logweir.store.engine import definitions, reads
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Answer, Executor
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.store.log import Log
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.keys import exact_key
from logweir.store.schema.schema import Schema
from logweir.store.view import ReadView
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

__all__ = [
    "NO_STATE",
    "STATES_SPACE",
    "Bucket",
    "Buckets",
    "GroupItems",
    "ViewItems",
    "is_bucket",
    "primary_of",
]

STATES_SPACE: Final = "logweir_vbucket"
NO_STATE: Final = 255
"""In the place of the state of a vbucket that is not there."""

_STATES_FORMAT: Final = (("bucket", "string"), ("vbucket", "unsigned"), ("state", "unsigned"))
_clocks: Final[WeakKeyDictionary[Log, CasClock]] = WeakKeyDictionary()
"""Of each store: protocols that share its buckets give no CAS twice."""


class Buckets:
    """The buckets of one store. `clock`: Unix seconds; `executor`: of statements on what is
    published, for one thread."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.time) -> None:
        self.log = log
        self.clock = clock
        self.executor = Executor()
        self._cas = _clocks.setdefault(log, CasClock(clock))
        self._known: dict[str, tuple[Schema, Bucket]] = {}

    def find(self, name: str) -> Bucket | None:
        """A bucket that is there; None: no space of that name, or not in a bucket's format."""
        schema, known = self.log.schema, self._known.get(name)
        if known is not None and known[0] is schema:
            return known[1]
        space, states = schema.get(name), schema.get(STATES_SPACE)
        if space is None or states is None or not is_bucket(space):
            return None
        bucket = None if known is None else known[1]
        if bucket is None or (bucket.space_id, bucket.states_id) != (space.id, states.id):
            bucket = Bucket(name, space.id, states.id, self._cas, self.log)
        self._known[name] = schema, bucket
        return bucket

    def learn(self, bucket: Bucket, vbucket: int, states: bytearray) -> None:
        """Read the state of a vbucket into those that are known, see `Bucket.known_states`."""
        with self.log.read_view() as view:
            states[vbucket] = ViewItems(bucket, view).state(vbucket) or NO_STATE

    def all(self) -> list[Bucket]:
        """All buckets that are there."""
        found = [self.find(space.name) for space in self.log.schema if is_bucket(space)]
        return [bucket for bucket in found if bucket is not None]

    def make(self, name: str) -> Bucket:
        """The bucket of that name, made with vbucket 0 active if it is not there.

        Raises `ConfigError` if a space of that name is no bucket.
        """
        log = self.log
        log.create_space(
            STATES_SPACE, _STATES_FORMAT, primary=("bucket", "vbucket"), if_not_exists=True
        )
        if log.schema.get(name) is None:
            with log.transaction() as tx:
                tx.create_space(name, BUCKET_FORMAT, primary=("key",), indexes=BUCKET_INDEXES)
                tx.replace(STATES_SPACE, (name, 0, int(VbucketState.ACTIVE)))
        found = self.find(name)
        if found is None:
            raise ConfigError(
                "bucket",
                f"space {name!r} is there and is no bucket",
                hint="choose another name; the format of buckets stands in the guide",
            )
        return found

    def fill(self, name: str) -> Bucket:
        """`make` for an upstream. Raises `SourceStopped` if a space of that name is no bucket."""
        try:
            return self.make(name)
        except ConfigError as error:
            raise SourceStopped(
                f"a space {name!r} is here already, and is no bucket",
                hint="name=two in the address puts two_ before the name of its bucket",
            ) from error


def is_bucket(space: SpaceDef) -> bool:
    """Whether a space has the format of buckets."""
    names = [field.name for field in space.fields]
    return names == [name for name, _ in BUCKET_FORMAT]


def primary_of(space: SpaceDef) -> IndexDef:
    """The primary index of a bucket's space."""
    primary = space.primary
    assert primary is not None
    return primary


class _Reader:
    """What a group and a view have in common."""

    def __init__(self, bucket: Bucket, engine: Engine) -> None:
        self.bucket = bucket
        self._engine = engine
        self._space = engine.schema.space(bucket.space_id)

    def find(self, key: bytes) -> Item | None:
        """The item with that key, whatever its vbucket, expired or not."""
        data = reads.one(self._engine, self._space, primary_of(self._space), pack_key(key))
        return None if data is None else unpack_item(data)

    @property
    def space(self) -> SpaceDef:
        """The bucket's space."""
        return self._space

    def state(self, vbucket: int) -> VbucketState | None:
        """The state of a vbucket; None: there is no such vbucket here."""
        space = self._engine.schema.space(self.bucket.states_id)
        key = pack((self.bucket.name, vbucket))
        row = reads.one(self._engine, space, primary_of(space), key)
        return None if row is None else VbucketState(unpack(row)[2])

    def states(self) -> dict[int, VbucketState]:
        """All vbuckets that are here."""
        wanted = Select.of(
            self._engine.schema, self.bucket.states_id, [self.bucket.name], iterator="EQ"
        )
        rows = (unpack(row) for row in select(self._engine, wanted))
        return {row[1]: VbucketState(row[2]) for row in rows}

    def ordered(self, after: tuple[int, bytes]) -> Iterator[bytes]:
        """The tuples in the order of vbucket and key, after `after`."""
        schema = self._engine.schema
        wanted = Select.of(schema, self._space.id, list(after), iterator="GT", index=1)
        return select(self._engine, wanted)

    def by_key(
        self, after: bytes | None, limit_items: int, limit_bytes: int, *, begin: bytes = b""
    ) -> tuple[list[bytes], bool]:
        """Tuples in the order of their keys, after that of `after` or from `begin` on, and whether
        these were the last; so many, or soon after so many bytes."""
        tree = self._engine.txn.tree(self._space.id, 0)
        if tree is None:
            return [], True
        start = b""
        if after is not None or begin:
            start = exact_key(pack_key(after or begin), primary_of(self._space))
            start += b"" if after is None else b"\x00"
        return tree.values(start, limit_items, limit_bytes)


class ViewItems(_Reader):
    """One bucket in a read view."""

    def __init__(self, bucket: Bucket, view: ReadView) -> None:
        super().__init__(bucket, view.engine)


class GroupItems(_Reader):
    """One bucket in a group. `divides`: whether what it removes because it is expired is a
    transaction of its own."""

    def __init__(self, bucket: Bucket, group: Group, now: float) -> None:
        super().__init__(bucket, group.engine)
        self._now = int(now)
        self._group = group
        self._own_states: bytearray | None = None
        self.divides = True

    def known_states(self) -> bytearray:
        """See `Bucket`: those of this group, if it, or what it stands on, has changed any."""
        if not self._group.txn.has_changed(self.bucket.states_id):
            return self.bucket.known_states()
        if self._own_states is None:
            self._own_states = bytearray(VBUCKETS)
        return self._own_states

    def state(self, vbucket: int) -> VbucketState | None:
        """As of a view. What is committed is read once for all groups."""
        known = self.known_states()
        if not known[vbucket]:
            known[vbucket] = super().state(vbucket) or NO_STATE
        return None if known[vbucket] == NO_STATE else VbucketState(known[vbucket])

    def change(self, kind: int, given: Item, number: int = 0) -> Changed:
        """What becomes of an item: see `replication.bucket.change`. Raises `RequestError`."""
        _, old, new, _, told = self.compute(kind, pack_item(given), given.vbucket, number)
        return Changed(told[0], told[1], new or old)

    def compute(self, kind: int, given: bytes, vbucket: int, number: int) -> Answer:
        """`Group.compute` of a given tuple, which is of that vbucket, after the removal of what is
        in the way."""
        while True:
            computer = ItemComputer(self._now, self.bucket.cas.next())
            try:
                answer = self._group.compute(self._space.id, given, computer, kind, number)
            finally:  # also one that is refused has had its CAS, as in a batch
                self.bucket.cas.reach(computer.cas)
            if computer.obstacle is None:
                break
            self._clear(unpack_item(computer.obstacle), vbucket)
        if kind & ~TAKEN == BURY and answer[2] is not None:
            key = pack_key(unpack_item(given).key)
            self._group.execute(Request(RowType.DELETE, self._space.id, key=key))
        return answer

    def new_cas(self) -> int:
        """A CAS that was never given."""
        return self.bucket.cas.after()

    def _clear(self, item: Item, vbucket: int) -> None:
        """Remove an item that is in the way of a change in a vbucket."""
        self.change(BURY | TAKEN, replace(item, value=b"", cas=0, ttl=NO_HOPS_MADE))
        if self.divides and item.vbucket == vbucket:  # else who follows the other has to know
            self._group.divide()

    def remove(self, key: bytes, vbucket: int) -> None:
        """Remove the item with that key, if it is there, expired or not."""
        self.change(BURY | TAKEN, Item(key, vbucket))

    def flush(self) -> None:
        """Remove all items."""
        requests, _ = definitions.truncate(self._group.engine, self._space.id)
        for request in requests:
            self._group.execute(request)

    def set_state(self, vbucket: int, state: VbucketState | None) -> None:
        """Set the state of a vbucket; None removes it with its items."""
        name, states_id = self.bucket.name, self.bucket.states_id
        if state is None:
            for item in self.of_vbucket(vbucket):
                self.remove(item.key, vbucket)
                self._group.divide()
            self._group.execute(Request(RowType.DELETE, states_id, key=pack((name, vbucket))))
        else:
            row = pack((name, vbucket, int(state)))
            self._group.execute(Request(RowType.REPLACE, states_id, tuple=row))
        self._own_states = None

    def of_vbucket(self, vbucket: int) -> list[Item]:
        """All items of one vbucket."""
        wanted = Select.of(self._engine.schema, self._space.id, [vbucket], iterator="EQ", index=1)
        return [unpack_item(data) for data in select(self._engine, wanted)]
