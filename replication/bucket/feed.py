"""What followers of a bucket get: what it holds, then each change.

`Changes` reads the changes of a bucket out of the log's windows, once for all followers at the same
place. `Backfill` reads what is there in chunks, each in its own short read view, so that a slow
follower pins nothing: a chunk has the position of its view, and a change of the log that is not
after the position of the chunk in which its key falls was seen already (`was_seen`). Once the log
was followed to `end`, what was given is exactly the bucket as it was at `end`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from logweir.limits import BACKFILL_CHUNK_BYTES, BACKFILL_CHUNK_ITEMS, HUB_WINDOWS_BYTES
from logweir.replication.bucket.item import VBUCKETS, Item, VbucketState, unpack_item
from logweir.replication.bucket.store import Bucket, ViewItems
from logweir.replication.stream.hub import Window
from logweir.store.log import Log
from logweir.store.schema.definition import SystemSpace
from logweir.store.view import ReadView
from logweir.wal.columns import RowColumns
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType

_KEPT_WINDOWS: Final = max(8, HUB_WINDOWS_BYTES // (1024 * 1024))
_PUTS: Final = frozenset((RowType.INSERT, RowType.REPLACE))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a bucket. `item`: as it is now; of a removal its tombstone; None: the whole
    bucket was emptied. `partial`: only its key is known, the change was made by operations.

    `position`: the log's after the whole transaction, on its last change; `signature`: of the row;
    `timestamp`: Unix seconds; `origin`, `lsn`: replica id and lsn of the row.
    """

    item: Item | None
    is_removal: bool
    position: VClock | None
    signature: int
    timestamp: float
    partial: bool = False
    origin: int = 0
    lsn: int = 0


@dataclass(frozen=True, slots=True)
class Puts:
    """What a window puts into one bucket: `tuples`, in order, each by a transaction of its own.
    `start`: the log's position before the window; `origins`, `lsns`: of the tuples' rows."""

    tuples: list[bytes]
    start: VClock
    origins: array[int]
    lsns: array[int]

    def places(self, numbers: Sequence[int]) -> Callable[[int], VClock]:
        """The log's positions after the tuples of these numbers, which rise: what is returned is
        called with a place in `numbers`, and keeps little more than that takes."""
        origin, start = self.origins[0], self.start
        if self.origins.count(origin) == len(self.origins):
            lsns = array("Q", (self.lsns[number] for number in numbers))
            return lambda at: start.with_lsn(origin, lsns[at])
        reached, found, begin = dict(start), [], 0
        for number in numbers:
            for row in range(begin, number + 1):
                reached[self.origins[row]] = self.lsns[row]
            begin = number + 1
            found.append(VClock(reached))
        return found.__getitem__


class PerWindow(Generic[T]):
    """What is made of windows of the log, once for all that are at the same one. `most`: kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, int], tuple[Window, T]] = OrderedDict()

    def of(self, window: Window, space_id: int, make: Callable[[], T]) -> T:
        """What `make` makes of a space in a window."""
        key = (id(window), space_id)
        known = self._known.get(key)
        if known is None or known[0] is not window:
            known = self._known[key] = window, make()
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return known[1]


class Changes:
    """The changes of buckets in windows of the log, as all streams share them."""

    def __init__(self) -> None:
        self.all: PerWindow[Sequence[Change]] = PerWindow(_KEPT_WINDOWS)
        self.puts: PerWindow[Puts | None] = PerWindow(_KEPT_WINDOWS)


def _puts(window: Window, space_id: int) -> Puts | None:
    found: list[bytes] = []
    origins, lsns = array("Q"), array("Q")
    for block in window.blocks:
        columns = block.columns
        rows = zip(
            columns.type, columns.replica_id, columns.lsn, columns.tsn, columns.flags,
            columns.space_id, strict=True,
        )  # fmt: skip
        for row, (kind, replica_id, lsn, tsn, flags, space) in enumerate(rows):
            if space == space_id:
                data = columns.tuple_bytes(row)
                if kind not in _PUTS or tsn != lsn or not flags & FLAG_COMMIT or data is None:
                    return None
                found.append(data)
                origins.append(replica_id)
                lsns.append(lsn)
            elif space == SystemSpace.TRUNCATE:
                return None
    return Puts(found, window.start, origins, lsns)


def _changes(window: Window, space_id: int) -> Iterator[Change]:
    reached = dict(window.start)
    for block in window.blocks:
        columns = block.columns
        for first, last in columns.transactions():
            yield from transaction_changes(columns, first, last, reached, space_id)


def transaction_changes(
    columns: RowColumns, first: int, last: int, reached: dict[int, int], space_id: int
) -> list[Change]:
    """What the transaction of rows first … last - 1 does to the bucket of a space. `reached`: the
    lsns that were had before it by replica id, raised by it."""
    spaces, replicas, lsns = columns.space_id, columns.replica_id, columns.lsn
    found: list[Change] = []
    for row in range(first, last):
        reached[replicas[row]] = lsns[row]
        if spaces[row] == space_id or spaces[row] == SystemSpace.TRUNCATE:
            _take(found, columns, row, space_id, sum(reached.values()))
    if found:
        found[-1] = replace(found[-1], position=VClock(reached))
    return found


def _take(
    found: list[Change], columns: RowColumns, row: int, space_id: int, signature: int
) -> None:
    """Append what a row does to the bucket. `found`: what its transaction has done before."""
    kind, data = columns.type[row], columns.tuple_bytes(row)
    item: Item | None = None
    is_emptied, partial = columns.space_id[row] != space_id, False
    if is_emptied:
        if data is None or unpack(data)[0] != space_id:
            return
    elif kind in _PUTS or kind == RowType.UPSERT:
        item = unpack_item(data or b"\x90")
        partial = kind == RowType.UPSERT or not item.fits
    elif kind in (RowType.DELETE, RowType.UPDATE):
        (key,) = unpack(columns.key_bytes(row) or b"\x90")
        item, partial = Item(key), kind == RowType.UPDATE
        if not partial and found and found[-1].item is not None and found[-1].item.key == key:
            item = found.pop().item  # its tombstone
    else:
        return
    is_removal = is_emptied or kind == RowType.DELETE
    time, place = columns.timestamp[row], (columns.replica_id[row], columns.lsn[row])
    found.append(Change(item, is_removal, None, signature, time, partial, *place))


def located(
    changes: Sequence[Change], states: Callable[[], Mapping[int, VbucketState]]
) -> Sequence[Change]:
    """The same changes. A removal that left no tombstone, of which nobody knows the vbucket,
    becomes one for each that there is: where nothing has the key, nothing goes."""
    if not any(map(_is_lost, changes)):
        return changes
    vbuckets = sorted(states()) or [0]
    found: list[Change] = []
    for change in changes:
        if change.item is None or not _is_lost(change):
            found.append(change)
            continue
        for vbucket in vbuckets:
            item = replace(change.item, vbucket=vbucket)
            found.append(replace(change, item=item, position=None))
        found[-1] = replace(found[-1], position=change.position)
    return found


def _is_lost(change: Change) -> bool:
    return change.is_removal and change.item is not None and not change.item.cas


def vbucket_table(wanted: Iterable[int] | None) -> bytes:
    """One byte for each vbucket, 1 for those wanted; None: all."""
    if wanted is None:
        return b"\x01" * VBUCKETS
    table = bytearray(VBUCKETS)
    for vbucket in wanted:
        if vbucket < VBUCKETS:
            table[vbucket] = 1
    return bytes(table)


class Chunks(ABC):
    """What there is, in chunks, behind which the log has to be followed: from a position that was
    there before the vbuckets were looked up and this was made, to `end`, None before the last chunk
    was read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends: list[bytes] = []
        self._signatures: list[int] = []
        self.end: VClock | None = None

    @abstractmethod
    def take(self) -> list[Item]:
        """The next items; [] may come in between. `end` is set with the last ones."""

    @abstractmethod
    def _key(self, change: Change) -> bytes:
        """Where a change stands in the order of the chunks."""

    def _read(self, vclock: VClock, last: bytes | None) -> None:
        """A chunk was read, as of that position, up to that key; None: it is the last one."""
        self._signatures.append(vclock.signature)
        if last is None:
            self.end = vclock
        else:
            self._ends.append(last)

    def was_seen(self, change: Change) -> bool:
        """Whether a change of the log is in what was given already."""
        place = 0 if change.item is None else bisect_left(self._ends, self._key(change))
        return change.signature <= self._signatures[place]


class Backfill(Chunks):
    """What a bucket holds. `vbuckets`: those wanted; `clock`: Unix seconds; `prefix`: how keys
    begin. Tuples of other keys may come with the last ones."""

    def __init__(
        self,
        log: Log,
        bucket: Bucket,
        vbuckets: Sequence[int],
        clock: Callable[[], float],
        prefix: bytes,
    ) -> None:
        super().__init__(log)
        self._bucket = bucket
        self._wanted = frozenset(vbuckets)
        self._clock = clock
        self._prefix = prefix
        self._after: bytes | None = None

    @property
    def wanted(self) -> bytes:
        """One byte for each vbucket, 1 for those wanted; others are none of a client's."""
        return vbucket_table(self._wanted)

    def take(self) -> list[Item]:
        now = self._clock()
        items = map(unpack_item, self.take_tuples())
        return [item for item in items if item.vbucket in self._wanted and not item.is_expired(now)]

    def take_tuples(self) -> list[bytes]:
        """As `take`, but tuples, those of other vbuckets and those that are expired included."""
        with self._log.read_view() as view:
            found, is_whole = ViewItems(self._bucket, view).by_key(
                self._after, BACKFILL_CHUNK_ITEMS, BACKFILL_CHUNK_BYTES, begin=self._prefix
            )
            vclock = view.vclock
        self._after = unpack_item(found[-1]).key if found else None
        is_whole = is_whole or self._after is None or not self._after.startswith(self._prefix)
        self._read(vclock, None if is_whole else self._after)
        return found

    def was_seen(self, change: Change) -> bool:
        """As of all chunks. Of a vbucket that is not wanted, since it is newer, nothing was."""
        item = change.item
        is_wanted = item is None or change.partial or item.vbucket in self._wanted
        return is_wanted and super().was_seen(change)

    def _key(self, change: Change) -> bytes:
        assert change.item is not None
        return change.item.key


def resolve(
    log: Log, changes: Sequence[Change], find: Callable[[Change, ReadView], Item | None]
) -> tuple[Sequence[Change], VClock | None]:
    """See `Feed.resolved`. `find`: looks up what stands under the key of a change."""
    if not any(change.partial for change in changes):
        return changes, None
    found: list[Change] = []
    with log.read_view() as view:
        for change in changes:
            item = find(change, view) if change.partial else change.item
            if item is not None or not change.partial:
                found.append(replace(change, item=item, partial=False))
        return found, view.vclock


class Feed(Protocol):
    """What a stream is fed with: a bucket, or another space in the shape of one. `name`: under
    which its streams are known; `holds_items`: whether its tuples are a bucket's as they stand in
    the log."""

    name: str
    space_id: int

    @property
    def holds_items(self) -> bool:
        """See above."""

    def states(self) -> dict[int, VbucketState]:
        """The vbuckets that are here."""

    def changes(self, window: Window) -> Sequence[Change]:
        """The changes in a window of the log, in order."""

    def transaction(
        self, columns: RowColumns, first: int, last: int, reached: dict[int, int]
    ) -> Sequence[Change]:
        """The changes in a transaction: see `transaction_changes`."""

    def puts(self, window: Window) -> Puts | None:
        """The items that a window puts, if it does nothing else; None: it does, or it is not
        known."""

    def resolved(self, changes: Sequence[Change]) -> tuple[Sequence[Change], VClock | None]:
        """The same changes with what stands now under the keys of those of which only that is
        known, all of one view, and its position; None if nothing had to be looked up. What is
        gone is left out: its removal follows."""

    def backfill(
        self, vbuckets: Sequence[int], clock: Callable[[], float], prefix: bytes = b""
    ) -> Chunks:
        """What there is of these vbuckets, and maybe only of keys that begin with `prefix`.
        `clock`: Unix seconds."""


class BucketFeed(Feed):
    """A bucket as what a stream is fed with. `known`: the changes that its streams share."""

    holds_items: Final = True

    def __init__(self, log: Log, bucket: Bucket, known: Changes) -> None:
        self.name = bucket.name
        self.space_id = bucket.space_id
        self._log = log
        self._bucket = bucket
        self._known = known

    def states(self) -> dict[int, VbucketState]:
        with self._log.read_view() as view:
            return ViewItems(self._bucket, view).states()

    def changes(self, window: Window) -> Sequence[Change]:
        number = self.space_id
        return self._known.all.of(window, number, lambda: tuple(_changes(window, number)))

    def transaction(
        self, columns: RowColumns, first: int, last: int, reached: dict[int, int]
    ) -> Sequence[Change]:
        return transaction_changes(columns, first, last, reached, self.space_id)

    def puts(self, window: Window) -> Puts | None:
        return self._known.puts.of(window, self.space_id, lambda: _puts(window, self.space_id))

    def resolved(self, changes: Sequence[Change]) -> tuple[Sequence[Change], VClock | None]:
        def find(change: Change, view: ReadView) -> Item | None:
            assert change.item is not None
            return ViewItems(self._bucket, view).find(change.item.key)

        return resolve(self._log, changes, find)

    def backfill(
        self, vbuckets: Sequence[int], clock: Callable[[], float], prefix: bytes = b""
    ) -> Backfill:
        return Backfill(self._log, self._bucket, vbuckets, clock, prefix)
