"""What followers of any space are given, in the shape of a bucket's items.

==========  ========================================================================================
of an item  is
==========  ========================================================================================
key         of an entry of the space (`shape`), as an array
value       the tuple of the entry as an array, or its envelope
vbucket     0, which is always active
flags, CAS  0; expiry: never
==========  ========================================================================================

Arrays are JSON text (UTF-8, values as everywhere in logweir's JSON) or MsgPack, by choice; the
envelope is JSON. A change by operations (UPDATE, UPSERT) is given as the tuple that it made, or,
if that was changed again meanwhile, as what is there now. A truncated space is an emptied one. A
space that is dropped ends its followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from logweir.errors import ConfigError, ErrorCode, RequestError
from logweir.replication.bucket.feed import Change, Chunks, Feed, PerWindow, Puts, resolve
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.outgoing.shape import OPS, Entry, Shape, Stamp
from logweir.replication.stream.hub import Window
from logweir.replication.topic.views import SPACE_PREFIX
from logweir.store.engine.engine import key_of
from logweir.store.engine.select import Select, select
from logweir.store.log import Log
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.keys import exact_key
from logweir.store.view import ReadView
from logweir.wal.columns import RowColumns
from logweir.wal.mp import unpack
from logweir.wal.render import value_json
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

ENCODINGS: Final = ("json", "msgpack", "envelope")

CHUNK_ITEMS: Final = 128
"""Entries that are put into the shape of items at a time, each by itself: some milliseconds' work.
"""
CHUNK_BYTES: Final = 32 * 1024
"""Bytes of their tuples, about."""

_ALL: Final = 2  # the iterators of `store.engine.select`, by number
_GT: Final = 6
_EMPTY: Final = b"\x90"
_KEPT_WINDOWS: Final = 8
_STATE: Final = Stamp()


@dataclass(frozen=True, slots=True)
class SpaceChange(Change):
    """One change of a space. `primary_key`: of the tuple, as MsgPack, b"" if everything was
    removed; `stamp`: what happened."""

    primary_key: bytes = b""
    stamp: Stamp = field(default=_STATE)


class SpaceFeed(Feed):
    """One space as followers see it. `encoding`: one of `ENCODINGS`; `json_datatype`: the datatype
    of items whose values are JSON.

    Raises `RequestError` for a space that is not there or has no primary key, `ConfigError`.
    """

    holds_items: Final = False

    def __init__(self, log: Log, name: str, encoding: str, *, json_datatype: int = 0) -> None:
        space = log.schema.get(name)
        if space is None or space.primary is None:
            raise RequestError(
                ErrorCode.NO_SUCH_SPACE,
                f"Space '{name}' does not exist or has no primary key",
                hint="the spaces are shown by `logweir info`",
            )
        if encoding not in ENCODINGS:
            raise ConfigError("value", f"{encoding!r}", hint=f"one of {', '.join(ENCODINGS)}")
        self.name = SPACE_PREFIX + name
        self.space_id = space.id
        self._log = log
        self._encoding = encoding
        self._datatype = 0 if encoding == "msgpack" else json_datatype
        self._shape = Shape(space, space.primary)
        self._known: PerWindow[Sequence[SpaceChange]] = PerWindow(_KEPT_WINDOWS)

    def shape(self) -> Shape:
        """How the space is shown now. Raises `RequestError` once it was dropped."""
        space = self._log.schema.get(self.space_id)
        if space is None or space.primary is None:
            raise RequestError(ErrorCode.NO_SUCH_SPACE, f"{self.name} was dropped")
        if space.primary is not self._shape.primary:
            self._shape = Shape(space, space.primary)
        return self._shape

    def states(self) -> dict[int, VbucketState]:
        """The one vbucket that there is."""
        return {0: VbucketState.ACTIVE}

    def items(self, shape: Shape, data: bytes, stamp: Stamp = _STATE) -> list[Item]:
        """A stored tuple as items."""
        return [self._item(shape, entry, stamp) for entry in shape.entries(data)]

    def _item(self, shape: Shape, entry: Entry, stamp: Stamp) -> Item:
        value = b""
        if entry.data is not None and self._encoding == "envelope":
            value = shape.envelope(entry, stamp).encode("utf-8", "surrogateescape")
        elif entry.data is not None:
            value = self._encode(entry.data)
        return Item(self._encode(entry.key), value=value, datatype=self._datatype)

    def _encode(self, data: bytes) -> bytes:
        if self._encoding == "msgpack":
            return data
        return value_json(data).encode("utf-8", "surrogateescape")

    def resolved(self, changes: Sequence[Change]) -> tuple[Sequence[Change], VClock | None]:
        def find(change: Change, view: ReadView) -> Item | None:
            assert isinstance(change, SpaceChange)
            shape = self.shape()
            space = view.engine.schema.space(self.space_id)
            found = view.engine.get(space, shape.primary, change.primary_key)
            if found is None:
                return None
            return self._item(shape, Entry(change.primary_key, found), change.stamp)

        return resolve(self._log, changes, find)

    def changes(self, window: Window) -> Sequence[SpaceChange]:
        """The changes in a window of the log, in order; made once for all followers."""
        return self._known.of(window, self.space_id, lambda: tuple(self._changes(window)))

    def puts(self, window: Window) -> Puts | None:
        """None: they are not known as tuples of items."""
        return None

    def _changes(self, window: Window) -> Iterator[SpaceChange]:
        self.shape()
        reached = dict(window.start)
        for block in window.blocks:
            columns = block.columns
            for first, last in columns.transactions():
                yield from self.transaction(columns, first, last, reached)

    def transaction(
        self, columns: RowColumns, first: int, last: int, reached: dict[int, int]
    ) -> list[SpaceChange]:
        spaces, replicas, lsns = columns.space_id, columns.replica_id, columns.lsn
        found: list[SpaceChange] = []
        for row in range(first, last):
            reached[replicas[row]] = lsns[row]
            if spaces[row] == self.space_id or spaces[row] == SystemSpace.TRUNCATE:
                found += self._take(columns, row, sum(reached.values()))
        if found:
            found[-1] = replace(found[-1], position=VClock(reached))
        return found

    def _take(self, columns: RowColumns, row: int, signature: int) -> list[SpaceChange]:
        """What a row does to the space."""
        kind, shape = columns.type[row], self._shape
        data = columns.tuple_bytes(row)
        place = columns.replica_id[row], columns.lsn[row]
        time = columns.timestamp[row]
        if columns.space_id[row] != self.space_id:
            if data is None or unpack(data)[0] != self.space_id:
                return []
            return [SpaceChange(None, True, None, signature, time, False, *place)]
        if not shape.tells(kind):
            return []
        key = columns.key_bytes(row) if data is None else key_of(shape.primary, data)
        if key is None:
            return []
        stamp = Stamp(OPS[RowType(kind)], time, *place)
        if kind in (RowType.INSERT, RowType.REPLACE) and data is not None:
            items = self.items(shape, data, stamp)
        else:
            items = [self._item(shape, Entry(key, None), stamp)]
        is_removal = kind == RowType.DELETE
        is_partial = kind in (RowType.UPDATE, RowType.UPSERT)
        return [
            SpaceChange(item, is_removal, None, signature, time, is_partial, *place, key, stamp)
            for item in items
        ]

    def backfill(
        self, vbuckets: Sequence[int], clock: Callable[[], float], prefix: bytes = b""
    ) -> SpaceBackfill:
        """What is there, in chunks, of all keys. `clock` is not needed."""
        return SpaceBackfill(self._log, self, 0 in vbuckets)


class SpaceFeeds:
    """The spaces of one store that followers of a listener asked for. `encoding`, `json_datatype`:
    see `SpaceFeed`."""

    def __init__(self, log: Log, encoding: str, *, json_datatype: int = 0) -> None:
        self._log = log
        self._encoding = encoding
        self._datatype = json_datatype
        self._known: dict[str, SpaceFeed] = {}

    def get(self, space: str) -> SpaceFeed:
        """The feed of a space, the same for all. Raises `RequestError` if there is none."""
        found = self._log.schema.get(space)
        known = self._known.get(space)
        if known is None or found is None or known.space_id != found.id:
            known = SpaceFeed(self._log, space, self._encoding, json_datatype=self._datatype)
            self._known[space] = known
        return known


class SpaceBackfill(Chunks):
    """What a space holds."""

    def __init__(self, log: Log, feed: SpaceFeed, is_wanted: bool) -> None:
        super().__init__(log)
        self._feed = feed
        self._primary = feed.shape().primary
        self._after = _EMPTY
        self._is_wanted = is_wanted

    def take(self) -> list[Item]:
        items: list[Item] = []
        size = 0
        shape = self._feed.shape()
        with self._log.read_view() as view:
            schema = view.engine.schema
            iterator = _ALL if self._after == _EMPTY else _GT
            wanted = Select.packed(schema, self._feed.space_id, self._after, iterator)
            whole = True
            for data in select(view.engine, wanted) if self._is_wanted else ():
                self._after = key_of(self._primary, data)
                items += self._feed.items(shape, data)
                size += len(data)
                if size >= CHUNK_BYTES or len(items) >= CHUNK_ITEMS:
                    whole = False
                    break
            vclock = view.vclock
        self._read(vclock, None if whole else exact_key(self._after, self._primary))
        return items

    def _key(self, change: Change) -> bytes:
        assert isinstance(change, SpaceChange)
        return exact_key(change.primary_key, self._primary)
