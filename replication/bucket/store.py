"""Buckets in a store: their spaces, and how commands change them inside a commit.

`Buckets` finds and makes buckets. `GroupItems` is one bucket inside a group of the commit queue:
each command that changed something is a transaction of its own (`end`). `ViewItems` is one bucket
in a read view: it cannot remove what it finds expired, and says so in `expired`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from logweir.errors import ConfigError, SourceStopped
from logweir.replication.bucket.item import (
    BUCKET_FORMAT,
    BUCKET_INDEXES,
    NO_HOPS_MADE,
    CasClock,
    Item,
    VbucketState,
    pack_item,
    pack_key,
    tombstone,
    unpack_item,
)
from logweir.store.commit.group import Group
from logweir.store.engine import definitions, reads
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.store.log import Log
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.keys import exact_key
from logweir.store.view import ReadView
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

__all__ = [
    "DEFAULT_BUCKET",
    "STATES_SPACE",
    "Bucket",
    "Buckets",
    "GroupItems",
    "ViewItems",
    "primary_of",
]

DEFAULT_BUCKET: Final = "default"
STATES_SPACE: Final = "logweir_vbucket"
_STATES_FORMAT: Final = (("bucket", "string"), ("vbucket", "unsigned"), ("state", "unsigned"))
_clocks: Final[WeakKeyDictionary[Log, CasClock]] = WeakKeyDictionary()
"""Of each store: protocols that share its buckets give no CAS twice."""


class Bucket:
    """One bucket that is there. `space_id`: of its space; `states_id`: of the vbucket states."""

    __slots__ = ("cas", "name", "space_id", "states_id")

    def __init__(self, name: str, space_id: int, states_id: int, cas: CasClock) -> None:
        self.name = name
        self.space_id = space_id
        self.states_id = states_id
        self.cas = cas


class Buckets:
    """The buckets of one store. `clock`: Unix seconds; `executor`: of statements on what is
    published, for one thread."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.time) -> None:
        self.log = log
        self.clock = clock
        self.executor = Executor()
        self._cas = _clocks.setdefault(log, CasClock(clock))
        self._known: dict[str, Bucket] = {}

    def find(self, name: str) -> Bucket | None:
        """A bucket that is there; None: no space of that name, or not in a bucket's format."""
        space = self.log.schema.get(name)
        states = self.log.schema.get(STATES_SPACE)
        if space is None or states is None or not _has_format(space):
            return None
        known = self._known.get(name)
        if known is None or known.space_id != space.id:
            known = Bucket(name, space.id, states.id, self._cas)
            self._known[name] = known
        return known

    def all(self) -> list[Bucket]:
        """All buckets that are there."""
        found = [self.find(space.name) for space in self.log.schema if _has_format(space)]
        return [bucket for bucket in found if bucket is not None]

    def make(self, name: str) -> Bucket:
        """The bucket of that name, made with vbucket 0 active where it is not there.

        Raises `ConfigError` where a space of that name is no bucket.
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


def _has_format(space: SpaceDef) -> bool:
    names = [field.name for field in space.fields]
    return names == [name for name, _ in BUCKET_FORMAT]


def primary_of(space: SpaceDef) -> IndexDef:
    """The primary index of a bucket's space."""
    assert space.primary is not None
    return space.primary


class _Reader:
    """What a group and a view have in common."""

    def __init__(self, bucket: Bucket, engine: Engine, now: float) -> None:
        self.bucket = bucket
        self._engine = engine
        self._now = now
        self._space = engine.schema.space(bucket.space_id)
        self._primary = primary_of(self._space)
        self._states: dict[int, VbucketState | None] = {}

    def find(self, key: bytes) -> Item | None:
        """The item with that key, whatever its vbucket, expired or not."""
        data = reads.one(self._engine, self._space, self._primary, pack_key(key))
        return None if data is None else unpack_item(data)

    @property
    def space(self) -> SpaceDef:
        """The bucket's space."""
        return self._space

    def state(self, vbucket: int) -> VbucketState | None:
        """See `ItemStore`."""
        if vbucket not in self._states:
            space = self._engine.schema.space(self.bucket.states_id)
            key = pack((self.bucket.name, vbucket))
            row = self._engine.get(space, primary_of(space), key)
            self._states[vbucket] = None if row is None else VbucketState(unpack(row)[2])
        return self._states[vbucket]

    def states(self) -> dict[int, VbucketState]:
        """All vbuckets that are here."""
        wanted = Select.of(
            self._engine.schema, self.bucket.states_id, [self.bucket.name], iterator="EQ"
        )
        rows = (unpack(row) for row in select(self._engine, wanted))
        return {row[1]: VbucketState(row[2]) for row in rows}

    def count(self) -> int:
        """See `ItemStore`."""
        return reads.count(self._engine, self._space)

    def ordered(self, after: tuple[int, bytes]) -> Iterator[bytes]:
        """The tuples in the order of vbucket and key, behind `after`."""
        schema = self._engine.schema
        wanted = Select.of(schema, self._space.id, list(after), iterator="GT", index=1)
        return select(self._engine, wanted)

    def by_key(
        self, after: bytes | None, limit_items: int, limit_bytes: int
    ) -> tuple[list[bytes], bool]:
        """Tuples in the order of their keys, behind that of `after`, and whether these were the
        last; so many, or soon after so many bytes."""
        tree = self._engine.txn.tree(self._space.id, 0)
        if tree is None:
            return [], True
        start = b"" if after is None else exact_key(pack_key(after), self._primary) + b"\x00"
        return tree.values(start, limit_items, limit_bytes)


class ViewItems(_Reader):
    """One bucket in a read view, for commands that change nothing. `expired`: keys of items that
    are to be removed."""

    def __init__(self, bucket: Bucket, view: ReadView, now: float) -> None:
        super().__init__(bucket, view.engine, now)
        self.expired: list[tuple[bytes, int]] = []

    def get(self, key: bytes, vbucket: int) -> Item | None:
        """See `ItemStore`."""
        found = self.find(key)
        if found is None or found.vbucket != vbucket:
            return None
        if found.is_expired(self._now):
            self.expired.append((key, vbucket))
            return None
        return found

    def put(self, item: Item) -> Item:
        """Not in a view."""
        raise AssertionError("a view cannot be changed")

    def remove(self, key: bytes, vbucket: int, *, cas: int = 0, ttl: int = NO_HOPS_MADE) -> bool:
        """Not in a view."""
        raise AssertionError("a view cannot be changed")

    def flush(self) -> None:
        """Not in a view."""
        raise AssertionError("a view cannot be changed")

    def set_state(self, vbucket: int, state: VbucketState | None) -> None:
        """Not in a view."""
        raise AssertionError("a view cannot be changed")


class GroupItems(_Reader):
    """One bucket in a group. `changes`: how many rows it has made so far; `divides`: whether what
    it removes because it is expired is a transaction of its own."""

    def __init__(self, bucket: Bucket, group: Group, now: float) -> None:
        super().__init__(bucket, group.engine, now)
        self._group = group
        self.changes = 0
        self.divides = True

    def _execute(self, request: Request) -> None:
        self._group.execute(request)
        self.changes += 1

    def get(self, key: bytes, vbucket: int) -> Item | None:
        """See `ItemStore`; an expired item is removed."""
        found = self.find(key)
        if found is None or found.vbucket != vbucket:
            return None
        if found.is_expired(self._now):
            self._remove(found, 0)
            if self.divides:
                self._group.divide()
            return None
        return found

    def put(self, item: Item) -> Item:
        """See `ItemStore`."""
        old = self.find(item.key)
        if old is not None and old.vbucket != item.vbucket:
            self._remove(old, 0)  # it moves: whoever follows the other vbucket has to know
        if not item.cas:
            item = replace(item, cas=self.bucket.cas.after())
        self._execute(Request(RowType.REPLACE, self._space.id, tuple=pack_item(item)))
        return item

    def remove(self, key: bytes, vbucket: int, *, cas: int = 0, ttl: int = NO_HOPS_MADE) -> bool:
        """See `ItemStore`."""
        found = self.find(key)
        if found is None or found.vbucket != vbucket:
            return False
        self._remove(found, cas, ttl)
        return True

    def _remove(self, item: Item, cas: int, ttl: int = NO_HOPS_MADE) -> None:
        grave = tombstone(item, cas or self.bucket.cas.after(item.cas), ttl)
        self._execute(Request(RowType.REPLACE, self._space.id, tuple=pack_item(grave)))
        self._execute(Request(RowType.DELETE, self._space.id, key=pack_key(item.key)))

    def flush(self) -> None:
        """See `ItemStore`."""
        requests, _ = definitions.truncate(self._group.engine, self._space.id)
        for request in requests:
            self._execute(request)

    def set_state(self, vbucket: int, state: VbucketState | None) -> None:
        """See `ItemStore`."""
        name, states_id = self.bucket.name, self.bucket.states_id
        if state is None:
            for item in self.of_vbucket(vbucket):
                self._remove(item, 0)
                self._group.divide()
            self._execute(Request(RowType.DELETE, states_id, key=pack((name, vbucket))))
        else:
            row = pack((name, vbucket, int(state)))
            self._execute(Request(RowType.REPLACE, states_id, tuple=row))
        self._states[vbucket] = state

    def of_vbucket(self, vbucket: int) -> list[Item]:
        """All items of one vbucket."""
        wanted = Select.of(self._engine.schema, self._space.id, [vbucket], iterator="EQ", index=1)
        return [unpack_item(data) for data in select(self._engine, wanted)]
