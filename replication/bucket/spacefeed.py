"""What followers of any space are given, in the shape of a bucket's items.

==========  ========================================================================================
of an item  is
==========  ========================================================================================
key         the parts of the primary key as an array
value       the whole tuple as an array
vbucket     0, which is always active
flags, CAS  0; expiry: never
==========  ========================================================================================

Both arrays are JSON text (UTF-8, values as everywhere in logweir's JSON) or the MsgPack that is
stored, by choice. A change by operations (UPDATE, UPSERT) is given as the tuple that it
made, or, where that was changed again meanwhile, as what is there now. A truncated space is an
emptied one. A space that is dropped ends its followers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logweir.errors import ConfigError, ErrorCode, RequestError
from logweir.limits import BACKFILL_CHUNK_BYTES, BACKFILL_CHUNK_ITEMS
from logweir.replication.bucket.feed import Change, Puts, resolve
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.stream.hub import Window
from logweir.store.engine.engine import key_of
from logweir.store.engine.select import Select, select
from logweir.store.log import Log
from logweir.store.schema.definition import IndexDef, SystemSpace
from logweir.store.schema.keys import exact_key
from logweir.store.view import ReadView
from logweir.wal.columns import RowColumns
from logweir.wal.mp import unpack
from logweir.wal.render import value_json
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["ENCODINGS", "SpaceBackfill", "SpaceChange", "SpaceFeed"]

ENCODINGS: Final = ("json", "msgpack")
_ALL: Final = 2  # the iterators of `store.engine.select`, by number
_GT: Final = 6
_EMPTY: Final = b"\x90"
_KEPT_WINDOWS: Final = 8
_ROWS: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)


@dataclass(frozen=True, slots=True)
class SpaceChange(Change):
    """One change of a space. `primary_key`: as MsgPack, b"" where everything was removed."""

    primary_key: bytes = b""


class SpaceFeed:
    """One space as followers see it. `encoding`: one of `ENCODINGS`.

    Raises `RequestError` for a space that is not there or has no primary key, `ConfigError`.
    """

    def __init__(self, log: Log, name: str, encoding: str) -> None:
        space = log.schema.get(name)
        if space is None or space.primary is None:
            raise RequestError(
                ErrorCode.NO_SUCH_SPACE,
                f"Space '{name}' does not exist or has no primary key",
                hint="the spaces are shown by `logweir info`",
            )
        if encoding not in ENCODINGS:
            raise ConfigError("value", f"{encoding!r}", hint=f"one of {', '.join(ENCODINGS)}")
        self.name = f"space:{name}"
        self.space_id = space.id
        self._log = log
        self._as_json = encoding == "json"
        self._known: OrderedDict[int, tuple[Window, Sequence[SpaceChange]]] = OrderedDict()

    def _primary(self) -> IndexDef:
        space = self._log.schema.get(self.space_id)
        if space is None or space.primary is None:
            raise RequestError(ErrorCode.NO_SUCH_SPACE, f"{self.name} was dropped")
        return space.primary

    def states(self) -> dict[int, VbucketState]:
        """The one vbucket that there is."""
        return {0: VbucketState.ACTIVE}

    def item(self, primary_key: bytes, data: bytes | None) -> Item:
        """A tuple (None: it is gone) as an item."""
        value = b"" if data is None else self._encode(data)
        return Item(self._encode(primary_key), value=value)

    def _encode(self, data: bytes) -> bytes:
        if not self._as_json:
            return data
        return value_json(data).encode("utf-8", "surrogateescape")

    def resolved(self, changes: Sequence[Change]) -> tuple[Sequence[Change], VClock | None]:
        """See `Feed`."""

        def find(change: Change, view: ReadView) -> Item | None:
            assert isinstance(change, SpaceChange)
            space = view.engine.schema.space(self.space_id)
            found = view.engine.get(space, self._primary(), change.primary_key)
            return None if found is None else self.item(change.primary_key, found)

        return resolve(self._log, changes, find)

    def changes(self, window: Window) -> Sequence[SpaceChange]:
        """The changes in a window of the log, in order; made once for all followers."""
        known = self._known.get(id(window))
        if known is not None and known[0] is window:
            return known[1]
        made = tuple(self._changes(window, self._primary()))
        self._known[id(window)] = (window, made)
        while len(self._known) > _KEPT_WINDOWS:
            self._known.popitem(last=False)
        return made

    def puts(self, window: Window) -> Puts | None:
        """None: they are not known as tuples of items."""
        del window
        return None

    def _changes(self, window: Window, primary: IndexDef) -> Iterator[SpaceChange]:
        reached = dict(window.start)
        for block in window.blocks:
            columns = block.columns
            spaces, replicas, lsns = columns.space_id, columns.replica_id, columns.lsn
            for first, last in columns.transactions():
                found: list[SpaceChange] = []
                for row in range(first, last):
                    reached[replicas[row]] = lsns[row]
                    if spaces[row] == self.space_id or spaces[row] == SystemSpace.TRUNCATE:
                        self._take(found, columns, row, primary, sum(reached.values()))
                if found:
                    found[-1] = replace(found[-1], position=VClock(reached))
                    yield from found

    def _take(
        self,
        found: list[SpaceChange],
        columns: RowColumns,
        row: int,
        primary: IndexDef,
        signature: int,
    ) -> None:
        kind, timestamp = columns.type[row], columns.timestamp[row]
        data = columns.tuple_bytes(row)
        if columns.space_id[row] != self.space_id:
            if data is not None and unpack(data)[0] == self.space_id:
                found.append(SpaceChange(None, True, None, signature, timestamp))
            return
        if kind not in _ROWS:
            return
        is_put = kind in (RowType.INSERT, RowType.REPLACE)
        key = columns.key_bytes(row) if data is None else key_of(primary, data)
        if key is None:
            return
        found.append(
            SpaceChange(
                self.item(key, data if is_put else None),
                kind == RowType.DELETE,
                None,
                signature,
                timestamp,
                partial=kind in (RowType.UPDATE, RowType.UPSERT),
                primary_key=key,
            )
        )

    def backfill(self, vbuckets: Sequence[int], clock: Callable[[], float]) -> SpaceBackfill:
        """What is there, in chunks. `clock` is not needed."""
        del clock
        return SpaceBackfill(self._log, self, self._primary(), 0 in vbuckets)


class SpaceBackfill:
    """What a space holds, in chunks; see `logweir.replication.bucket.feed.Backfill`."""

    def __init__(self, log: Log, feed: SpaceFeed, primary: IndexDef, is_wanted: bool) -> None:
        self._log = log
        self._feed = feed
        self._primary = primary
        self._after = _EMPTY
        self._chunk_ends: list[bytes] = []
        self._chunk_signatures: list[int] = []
        self._is_wanted = is_wanted
        self.start = log.applied
        self.end: VClock | None = None

    def take(self) -> list[Item]:
        """The next items. `end` is set with the last ones."""
        items: list[Item] = []
        size = 0
        with self._log.read_view() as view:
            schema = view.engine.schema
            iterator = _ALL if self._after == _EMPTY else _GT
            wanted = Select.packed(schema, self._feed.space_id, self._after, iterator)
            whole = True
            for data in select(view.engine, wanted) if self._is_wanted else ():
                self._after = key_of(self._primary, data)
                items.append(self._feed.item(self._after, data))
                size += len(data)
                if size >= BACKFILL_CHUNK_BYTES or len(items) >= BACKFILL_CHUNK_ITEMS:
                    whole = False
                    break
            vclock = view.vclock
        self._chunk_signatures.append(vclock.signature)
        if whole:
            self.end = vclock
        else:
            self._chunk_ends.append(exact_key(self._after, self._primary))
        return items

    def was_seen(self, change: Change) -> bool:
        """Whether a change of the log is in what was given already."""
        assert isinstance(change, SpaceChange)
        if change.item is None:
            return change.signature <= self._chunk_signatures[0]
        place = bisect_left(self._chunk_ends, exact_key(change.primary_key, self._primary))
        return change.signature <= self._chunk_signatures[place]
