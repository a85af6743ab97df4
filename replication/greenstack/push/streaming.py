"""Driving one change stream: what exists if that is asked for, then what changes.

==============  ====================================================================================
asked           given
==============  ====================================================================================
no snapshot     every change after the position; 0402 Rollback if our log does not have it,
                0c00 PositionGone if it has no more what comes after it
snapshot        mark 1, what exists, mark 2 with the position for which it stands; then changes
follow = false  mark 3 once nothing is left, then STREAM_CLOSE with Success
==============  ====================================================================================

The snapshot is read in short views, and what changes meanwhile is given with it: at mark 2 the
client holds exactly what the buckets held at that mark's position. The position of mark 1 is an
earlier one. Emptying a bucket meanwhile makes the snapshot begin anew, with another mark 1.

Changes come in the order of our log, transaction by transaction. A removal's tombstone is not a row
of its own. A change made by operations (UPDATE by another protocol) is given as the document that
stands there now. Rows of other buckets count, too: the marks tell. Streams over all buckets take in
new ones as they are made. A stream ends when a bucket that it names is removed. `space:NAME` among
the buckets is any other space, given as documents (`replication.outgoing.spacefeed`), of which a
stream over all buckets takes none. Of vbuckets, keys that begin so, and keys without their values
only what was asked for is given (`pushing.Choice`); that a bucket was emptied always is.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from logweir.errors import LogweirError, PositionUnavailable
from logweir.replication.bucket.feed import Backfill, Change, Chunks, Feed
from logweir.replication.bucket.item import VbucketState, unpack_item
from logweir.replication.greenstack.push.pushing import Names, lsns_of
from logweir.replication.greenstack.push.stream import STEP_BYTES, Outgoing
from logweir.replication.greenstack.wire.codec import Status
from logweir.replication.greenstack.wire.messages import MarkKind, StreamOpen, StreamRow
from logweir.replication.greenstack.wire.pushkernel import ODD
from logweir.replication.stream.hub import Reader, Window
from logweir.store.schema.access import Privilege
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.replication.greenstack.serve.endpoint import Conversation

LABEL: Final = "greenstack:"
"""So begin the names under which logs are kept for snapshots."""

OURS: Final = f"{LABEL}{token_hex(4)}:"
"""So do those of this process."""

_STEP_ROWS: Final = 256

Transaction = Sequence[tuple[Feed, Change]]


def transactions(changes: Sequence[tuple[Feed, Sequence[Change]]]) -> Iterator[Transaction]:
    """The changes of several feeds in one window, as the log's transactions in its order."""
    found: dict[int, list[tuple[Feed, Change]]] = {}
    for feed, of_feed in changes:
        part: list[tuple[Feed, Change]] = []
        for change in of_feed:
            part.append((feed, change))
            if change.position is not None:
                found.setdefault(change.position.signature, []).extend(part)
                part = []
    several = len(changes) > 1
    for signature in sorted(found) if several else found:
        rows = found[signature]
        if several and len(rows) > 1:
            rows.sort(key=lambda row: row[1].signature)
        yield rows


@dataclass(slots=True)
class _Ended(Exception):
    """The stream is over."""

    status: int
    reason: str


class Streaming:
    """One stream of one connection. `outgoing`: its frames."""

    def __init__(self, conversation: Conversation, outgoing: Outgoing, asked: StreamOpen) -> None:
        self.outgoing = outgoing
        self.asked = asked
        self.task: asyncio.Task[None] | None = None
        self._conversation = conversation
        self._service = conversation.service
        self._log = conversation.service.shared.log
        self._link = conversation.link
        self._room = asyncio.Event()
        self._ending: _Ended | None = None
        self._reader: Reader | None = None
        self._pin = ""
        self._known: dict[str, Feed] = {}
        self._caught_up = False

    # --- what the conversation tells --------------------------------------------------------------

    def wake(self) -> None:
        """There may be room now."""
        self._room.set()

    def end(self, status: int, reason: str) -> None:
        """The stream is to end, and its client to be told."""
        self._ending = self._ending or _Ended(status, reason)
        self._room.set()
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """The stream is gone; nothing is said."""
        if self.task is not None:
            self.task.cancel()
            self.task = None  # which has what ends it, and that us
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._unpin()

    # --- the stream -------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the first frame to the last."""
        try:
            if self.asked.snapshot:
                while await self._snapshot():
                    pass
            else:
                await self._read_from(self.asked.start)
                self.outgoing.position = self.asked.start
            await self._follow()
        except PositionUnavailable as error:
            self.outgoing.close(Status.POSITION_GONE, str(error))
        except LogweirError as error:
            self.outgoing.close(Status.INTERNAL_ERROR, str(error))
        except _Ended as ended:
            self.outgoing.close(ended.status, ended.reason)
        except asyncio.CancelledError:
            if self._ending is None:
                raise
            self.outgoing.close(self._ending.status, self._ending.reason)
        self._conversation.stream_over(self.outgoing.name)
        self._link.flush()

    async def _read_from(self, position: VClock) -> None:
        if self._reader is not None:
            self._reader.close()
        start = position.with_lsn(0, self._log.applied.lsn(0))
        self._reader = self._service.shared.settled.reader(start, step_bytes=STEP_BYTES)
        if not self._log.inner.knows_settled(start):
            await self._reader.skip_in_background()

    def _feeds(self) -> Sequence[Feed]:
        """What this stream is of. A bucket or space that it names and that is gone ends it."""
        definitions, user_id = self._service.definitions, self._conversation.user_id
        if not self.asked.buckets:
            return definitions.readable(user_id)
        found = []
        for name in self.asked.buckets:
            feed = definitions.feed(name)
            known = self._known.get(name)
            if feed is None or (known is not None and known.space_id != feed.space_id):
                raise _Ended(Status.NO_BUCKET, f"bucket {name!r} was removed")
            if not definitions.may(user_id, feed, Privilege.READ):
                raise _Ended(Status.NO_ACCESS, f"bucket {name!r} may no longer be read")
            self._known[name] = feed
            found.append(feed)
        return found

    # --- what exists ------------------------------------------------------------------------------

    async def _snapshot(self) -> bool:
        """Give what exists. Returns whether it has to begin anew: a bucket was emptied."""
        start = self._log.applied
        self._mark(MarkKind.SNAPSHOT_BEGINS, start.without_local())
        await self._read_from(start)
        fills: dict[int, Chunks] = {}
        end = start
        feeds = self._feeds()
        for feed in feeds:
            alive = [one for one, state in feed.states().items() if state != VbucketState.DEAD]
            vbuckets = self.outgoing.choice.vbuckets(alive)
            fill = feed.backfill(vbuckets, self._service.now, self.asked.prefix)
            fills[feed.space_id] = fill
            while fill.end is None:
                if isinstance(fill, Backfill):
                    tuples = fill.take_tuples()
                    await self._keep_log(start, fill, is_last=feed is feeds[-1])
                    await self._put_tuples(feed, tuples, fill.wanted)
                else:
                    items = fill.take()
                    await self._keep_log(start, fill, is_last=feed is feeds[-1])
                    for item in filter(self.outgoing.choice.has, items):
                        await self._put(StreamRow(feed.name, item), has_more=False)
                    await self._pause()
            end = end.merge(fill.end)
        assert self._reader is not None
        while not self._reader.vclock.covers(end):
            window = await self._reader.next()
            changes = [(feed, feed.changes(window)) for feed in self._feeds()]
            for feed, change in chain.from_iterable(transactions(changes)):
                known = fills.get(feed.space_id)
                if known is not None and known.was_seen(change):
                    continue
                if change.item is None:
                    self._unpin()
                    return True
                row = self._row(feed, change)
                if row is not None:
                    await self._put(StreamRow(row.bucket, row.item, row.is_removal), has_more=False)
        self._unpin()
        self._mark(MarkKind.SNAPSHOT_ENDS, self._reader.vclock.without_local())
        return False

    async def _put_tuples(self, bucket: Feed, tuples: list[bytes], wanted: bytes) -> None:
        """Give tuples of a bucket. `wanted`: one byte for each vbucket, 0: it is left out."""
        clock, row = self._service.now(), 0
        while row < len(tuples):
            await self._takes()
            pushed = self.outgoing.put_documents(
                tuples, row, bucket.name, wanted, clock, self._link.time()
            )
            row = pushed.at
            if pushed.how == ODD and self.outgoing.has_room:
                item = unpack_item(tuples[row])
                row += 1
                is_wanted = item.vbucket >= len(wanted) or wanted[item.vbucket]
                is_wanted = is_wanted and self.outgoing.choice.has(item)
                if is_wanted and not item.is_expired(clock):
                    await self._put(StreamRow(bucket.name, item), has_more=False)
            await self._pause()

    async def _keep_log(self, start: VClock, fill: Chunks, *, is_last: bool) -> None:
        """Keep the log after `start` while there is more to be given."""
        if (fill.end is None or not is_last) and not self._pin:
            self._pin = f"{OURS}{id(self):x}"
            await self._service.shared.retention.keep_now(self._pin, start)

    def _unpin(self) -> None:
        if self._pin:
            self._service.shared.retention.forget(self._pin)
            self._pin = ""

    # --- what changes -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        reader = self._reader
        assert reader is not None
        while True:
            if await self._put_ahead(reader):
                continue
            window = reader.take()
            if window is not None:
                await self._put_window(window)
                self.outgoing.position = reader.vclock.without_local()
                continue
            if not self._caught_up:
                self._caught_up = True
                self._mark(MarkKind.CAUGHT_UP, reader.vclock.without_local())
            self._link.flush()
            if not self.asked.follow:
                raise _Ended(Status.SUCCESS, "nothing is left")
            self._feeds()
            await reader.wait()

    async def _put_ahead(self, reader: Reader) -> bool:
        """Give whole blocks as far as the log was read already. False, and nothing given, if
        they have to be taken as a window."""
        if not reader.is_ahead:
            return False
        await self._takes()
        names = _names(self._feeds())
        if names is None:
            return False
        if not self.outgoing.put_packed(reader.pack, names, self._link.time()):
            return False
        self.outgoing.position = reader.vclock.without_local()
        await self._pause()
        return True

    async def _put_window(self, window: Window) -> None:
        feeds = self._feeds()
        names = _names(feeds)
        lsns = lsns_of(window.start.items())
        for block in window.blocks:
            columns, at = block.columns, 0
            while at < len(columns.data):
                await self._takes()
                is_odd = names is None
                if names is not None:
                    now = self._link.time()
                    pushed = self.outgoing.put_rows(columns.data, at, lsns, names, now)
                    at, is_odd = pushed.at, pushed.how == ODD
                if is_odd and self.outgoing.has_room:
                    at = await self._put_odd(columns, at, lsns, feeds)
                reached = {origin: lsn for origin, lsn in enumerate(lsns) if origin and lsn}
                self.outgoing.position = VClock(reached)
                await self._pause()

    async def _put_odd(
        self, columns: RowColumns, at: int, lsns: array[int], feeds: Sequence[Feed]
    ) -> int:
        """Give the transaction that begins at byte `at` of a block. Returns where it ends."""
        first = bisect_left(columns.row_offset, at)
        last = next(end for end in columns.transaction_ends() if end > first)
        rows: list[tuple[int, StreamRow | None]] = []
        for feed in feeds:
            reached = dict(enumerate(lsns))
            for change in feed.transaction(columns, first, last, reached):
                rows.append((change.signature, self._row(feed, change)))
        rows.sort(key=lambda one: one[0])
        kept = [row for _, row in rows if row is not None]
        for i, row in enumerate(kept):
            await self._put(row, has_more=i < len(kept) - 1)
        for replica_id, lsn in zip(
            columns.replica_id[first:last], columns.lsn[first:last], strict=True
        ):
            lsns[replica_id] = lsn
        return int(columns.end_offset[last - 1])

    def _row(self, feed: Feed, change: Change) -> StreamRow | None:
        """A change as a row; None: it is followed by its removal, or not wanted."""
        for one in feed.resolved((change,))[0]:
            item = one.item
            # Of a removal without a tombstone nobody knows the vbucket.
            is_placed = not (one.is_removal and feed.holds_items and item and not item.cas)
            if item is not None and not self.outgoing.choice.has(item, is_placed=is_placed):
                return None
            return StreamRow(feed.name, item, one.is_removal, one.lsn, one.origin, one.timestamp)
        return None

    # --- sending ----------------------------------------------------------------------------------

    def _mark(self, kind: MarkKind, position: VClock) -> None:
        self.outgoing.mark(kind, position, self._link.time(), self._conversation.session.time_us())

    async def _put(self, row: StreamRow, *, has_more: bool) -> None:
        if not row.lsn:
            await self._takes()
        self.outgoing.row(row, self._link.time(), has_more=has_more)
        if not self.outgoing.rows % _STEP_ROWS:
            await self._pause()

    async def _pause(self) -> None:
        """Let the loop turn; a transaction once begun does not wait for credit."""
        self._link.flush()
        if self._link.is_open and not self._link.writable:
            await self._link.drained()
        await asyncio.sleep(0)

    async def _takes(self) -> None:
        """Wait until the client takes another transaction."""
        while not self.outgoing.has_room or not self._link.writable:
            self._link.flush()
            self._room.clear()
            if not self._link.is_open:
                await self._link.gone  # which cancels us
            elif not self._link.writable:
                await self._link.drained()
            else:
                await self._room.wait()


def _names(feeds: Sequence[Feed]) -> Names | None:
    """The buckets whose rows are made into frames as they stand; None: there is something else."""
    if not all(feed.holds_items for feed in feeds):
        return None
    return Names({feed.space_id: feed.name for feed in feeds})
