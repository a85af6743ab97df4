"""Following another logweir by Greenstack: a change stream of one bucket, applied here.

With `prefix` and `vbuckets` in the address only what they choose is asked for, stored and removed;
the rest of the bucket here is left alone. With `from=now` there is no snapshot the first time: the
position where the stream began is kept before anything else.

The first time, or when the server no longer has what comes after our position (or is another
instance than it was), a snapshot is taken: documents are stored as they come and their keys noted
(8 bytes each); at its end what was not among them is removed here, and the position is kept in the
same transaction. A snapshot that breaks off removes nothing and is taken anew.

From then on what comes in one step is applied as one transaction together with the position after
it (`logweir_position`: stream "greenstack", the bucket's name, a map from origin id to lsn and the
server's UUID), and acknowledged when that is durable: each change is taken once. A document that is
here already as it comes makes no row, so two servers may follow one another. CAS, flags, datatype
and expiration stay as they came. The source has caught up when nothing was left, and at the latest
when all is here that the server had when the stream was opened.

A server without the extension, and one that is no Greenstack server, is told as what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from logweir.errors import ConfigError, PeerRefused, SourceStopped, Unreachable
from logweir.limits import UPSTREAM_STEP_BYTES
from logweir.replication.bucket.address import bucket_of, vbuckets_of
from logweir.replication.bucket.change import BURY, TAKE, TAKEN
from logweir.replication.bucket.follow import BucketSource, SeenKeys
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.bucket.store import Bucket, GroupItems
from logweir.replication.greenstack.client.connection import Connection, Stream, status_of
from logweir.replication.greenstack.follow.incoming import (
    Alive,
    CaughtUp,
    Ended,
    Rows,
    SnapshotBegins,
    SnapshotEnds,
    Step,
)
from logweir.replication.greenstack.push.pushing import Choice
from logweir.replication.greenstack.wire.codec import Status
from logweir.replication.greenstack.wire.messages import Feature, StreamOpen, StreamRow
from logweir.replication.logs import get_logger
from logweir.replication.runner import Progress, SourceState
from logweir.replication.service.shared import Shared
from logweir.replication.urls import Url, option_choice
from logweir.store.commit.group import Group
from logweir.wal.vclock import VClock

_log = get_logger("logweir.replication.greenstack")

_STREAM: Final = "greenstack"
_INSTANCE: Final = "instance"
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_NOTE_ROWS: Final = 1000
_ANEW: Final = frozenset((Status.ROLLBACK, Status.POSITION_GONE))


class GreenstackSource(BucketSource):
    """One server, for a `Runner`."""

    divides = False

    def __init__(self, shared: Shared, url: Url) -> None:
        super().__init__(shared, url)
        self._is_from_now, prefix, self._vbuckets = read_options(url)
        self.choice = Choice(prefix, self._vbuckets)

    async def attempt(self, progress: Progress) -> None:
        bucket = await asyncio.to_thread(self.fill)
        needed = {Feature.CHANGE_STREAM: "change streams"}
        if not self.choice.is_all:
            needed[Feature.FILTERS] = "filters of change streams"
        connection = await Connection.open(self._url, features=tuple(needed))
        progress.alive()
        try:
            for feature, what in needed.items():
                if feature not in connection.features:
                    raise SourceStopped(
                        f"{self.url}: {connection.agent or 'the server'} does not offer {what}, "
                        "which are logweir's extension of Greenstack",
                        hint="Greenstack itself has none: a Couchbase server can be followed by "
                        "TAP; an older logweir has no filters",
                    )
            stream = await self._open(connection, bucket)
            await _Following(self, bucket, stream, progress).run()
        finally:
            connection.close("the follower is done")

    async def _open(self, connection: Connection, bucket: Bucket) -> Stream:
        asked = StreamOpen(
            buckets=(bucket_of(self._url),),
            window_bytes=_WINDOW_BYTES,
            prefix=self.choice.prefix,
            vbuckets=self._vbuckets,
        )
        position, instance = self.tokens(self._local)
        if instance:
            try:
                stream = await connection.stream(self.name, replace(asked, start=position))
            except PeerRefused as error:
                if error.result not in _ANEW:
                    raise
                _log.warning("greenstack.position_lost", url=self.url, reason=str(error))
            else:
                if stream.instance == instance:
                    return stream
                _log.warning("greenstack.other_instance", url=self.url, instance=stream.instance)
                stream.close()
        elif self._is_from_now:
            stream = await connection.stream(self.name, replace(asked, now=True))
            await self.keep(bucket, stream.opened_at, stream.instance)
            return stream
        _log.info("greenstack.full_copy", url=self.url, bucket=bucket_of(self._url))
        return await connection.stream(self.name, replace(asked, snapshot=True))

    def tokens(self, bucket: str) -> tuple[VClock, str]:
        """Position and UUID of the server's instance; "": there is no position yet."""
        found = dict(self.position(_STREAM, bucket))
        instance = str(found.pop(_INSTANCE, ""))
        return VClock({int(origin): int(lsn) for origin, lsn in found.items()}), instance

    async def keep(self, bucket: Bucket, position: VClock, instance: str) -> None:
        """Keep a position, in a transaction of its own."""
        await self.apply(
            bucket, lambda items, group: self.note(group, bucket, position, instance), 256
        )

    def note(self, group: Group, bucket: Bucket, position: VClock, instance: str) -> None:
        """Keep a position, in the open transaction."""
        tokens: dict[str, object] = {str(origin): lsn for origin, lsn in position.items()}
        tokens[_INSTANCE] = instance
        self.put_position(group, _STREAM, bucket, tokens)

    def lag_seconds(self, timestamp: float) -> float:
        """How long ago something happened at the server, by our clock."""
        return max(self._shared.options.clock() - timestamp, 0.0)


class _Following:
    """One stream: steps in, acknowledgements out."""

    def __init__(
        self, source: GreenstackSource, bucket: Bucket, stream: Stream, progress: Progress
    ) -> None:
        self._source = source
        self._bucket = bucket
        self._stream = stream
        self._progress = progress
        self._seen: SeenKeys | None = None  # inside a snapshot
        self._follows = False
        self._noted = source.tokens(bucket.name)[0]

    async def run(self) -> None:
        """Until the stream or the connection ends, which raises."""
        self._progress.state(SourceState.SYNCING)
        while True:
            step = await self._stream.step()
            self._progress.alive()
            match step:
                case Rows():
                    await self._rows(step)
                case SnapshotBegins():
                    self._seen = SeenKeys(self._source.name[:64])
                case SnapshotEnds():
                    await self._snapshot_ends(step.position)
                case CaughtUp() | Alive():
                    await self._reach(step.position)
                    self._follow(isinstance(step, CaughtUp), step.position)
                case Ended(number, reason):
                    name = status_of(number).name.lower()
                    text = f"the server ended the stream: {reason} ({name})"
                    raise Unreachable(self._source.url, text, hint="see the server's log")

    async def _rows(self, first: Rows) -> None:
        """Apply a step and what has come after it."""
        steps: list[Step] = [first]
        changes = list(first.changes)
        position, size = first.position, first.size_bytes
        while self._stream.waiting and size < UPSTREAM_STEP_BYTES:
            following = self._stream.peek()
            if not isinstance(following, Rows):
                break
            steps.append(await self._stream.step())
            changes += following.changes
            position, size = following.position, size + following.size_bytes
        await self._apply(changes, position, size)
        self._stream.acknowledge(*steps)
        lag = self._source.lag_seconds(changes[-1].timestamp) if position is not None else None
        self._progress.applied(len(changes), _place(position), lag)
        self._follow(False, position)

    def _follow(self, nothing_left: bool, position: VClock | None) -> None:
        """Tell it once everything is here that the server had when it was asked."""
        if self._follows or self._seen is not None or position is None:
            return
        if nothing_left or position.covers(self._stream.opened_at):
            self._follows = True
            self._progress.state(SourceState.FOLLOWING)

    async def _apply(
        self, changes: Sequence[StreamRow], position: VClock | None, size: int
    ) -> None:
        seen = self._seen

        def work(items: GroupItems, group: Group) -> None:
            for change in changes:
                _apply(items, change, self._source.choice)
                if position is None:
                    group.divide()
            if position is not None:
                self._source.note(group, self._bucket, position, self._stream.instance)

        if seen is not None:
            for change in changes:
                if change.item is not None and not change.is_removal:
                    seen.add(change.item.key)
        await self._source.apply(self._bucket, work, size)
        if position is not None:
            self._noted = position

    async def _snapshot_ends(self, position: VClock) -> None:
        """Remove what the server does not have, and keep the position."""
        seen, self._seen = self._seen, None
        assert seen is not None

        def work(items: GroupItems, group: Group) -> None:
            for item in _chosen(items, self._source.choice):
                if item.key not in seen:
                    items.remove(item.key, item.vbucket)
                    group.divide()
            self._source.note(group, self._bucket, position, self._stream.instance)

        await self._source.apply(self._bucket, work, UPSTREAM_STEP_BYTES)
        self._noted = position
        self._progress.applied(0, _place(position), None)
        self._follow(False, position)

    async def _reach(self, position: VClock) -> None:
        """Everything up to here was taken; rows of other buckets are behind us. Kept now and then:
        if two follow one another each note would be news to the other."""
        if self._seen is not None or position.signature < self._noted.signature + _NOTE_ROWS:
            return
        _, instance = self._source.tokens(self._bucket.name)
        if instance:
            await self._source.keep(self._bucket, position, self._stream.instance)
            self._noted = position


def _place(position: VClock | None) -> str:
    if position is None:
        return "snapshot"
    return " ".join(f"{origin}:{lsn}" for origin, lsn in sorted(position.items()))


def read_options(url: Url) -> tuple[bool, bytes, tuple[int, ...]]:
    """Of an upstream's address: whether only what comes from now on is wanted, how keys begin, and
    the vbuckets, () for all. Raises `ConfigError`."""
    is_from_now = option_choice(url, "from", ("", "now")) == "now"
    if url.option("keys"):
        raise ConfigError(
            "keys",
            f"in {url}: a follower keeps values, and would put empty ones in their places",
            hint="leave it out; streams of keys alone are for clients (`Client.follow`)",
        )
    text = url.option("prefix")
    if "\N{REPLACEMENT CHARACTER}" in text:
        raise ConfigError("prefix", f"{text!r} in {url} is not text", hint="write it in UTF-8")
    return is_from_now, text.encode(), tuple(sorted(vbuckets_of(url)))


def _chosen(items: GroupItems, choice: Choice) -> Iterator[Item]:
    """What is here of what is followed."""
    for vbucket in choice.vbuckets(items.states()):
        for item in items.of_vbucket(vbucket):
            if choice.has(item):
                yield item


def _apply(items: GroupItems, change: StreamRow, choice: Choice) -> None:
    """Make one change, unless it is made already."""
    item = change.item
    if item is None:
        if not choice.is_all:
            for one in _chosen(items, choice):
                items.remove(one.key, one.vbucket)
        else:
            items.flush()
        return
    if change.is_removal:
        here: Item | None = item
        if not (item.cas and choice.is_all):
            here = items.find(item.key)
        if here is not None and choice.has(here):
            # Without a tombstone no vbucket was told: it is that of what is here.
            vbucket = item.vbucket if item.cas else here.vbucket
            items.change(BURY | TAKEN, Item(item.key, vbucket, cas=item.cas))
        return
    if items.state(item.vbucket) is None:
        items.set_state(item.vbucket, VbucketState.ACTIVE)
    items.change(TAKE, item)
