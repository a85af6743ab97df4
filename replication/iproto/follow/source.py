"""Following a real master: its rows become rows here, with their own replica id, lsn and time.

One source is one master; several may run at once, and the vclock keeps their rows apart: a
transaction that came over another one already is passed over. A transaction is applied and logged
in one commit, whole or not at all, and acknowledged when it is durable. One that cannot be applied
(a duplicate key, an unknown space) stops its source for good, with what and why; nothing is
skipped.

The store must belong to the master's replica set already: `logweir.replication.iproto.follow.join`
makes such a folder. Our own rows are not asked for, unless the master has some that we have lost. A
position that the master's logs do not hold any more stops the source: a new join is needed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from logweir.errors import ErrorCode, RemoteProtocolError, RequestError, SourceStopped
from logweir.replication.iproto.client_session import Heartbeat, Refused, Rows, Subscribed
from logweir.replication.iproto.follow.upstream import Upstream, connect
from logweir.replication.iproto.wire.codec import Ballot
from logweir.replication.runner import Progress, SourceState, UrlSource
from logweir.replication.service.shared import Shared
from logweir.replication.urls import Url
from logweir.store.commit.jobs import Job
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock

_REJOIN: Final = "copy it anew: `logweir follow --rejoin URL DIR` puts the old folder aside"


class TarantoolSource(UrlSource):
    """One master, for a `Runner`. `shared`: our own server's state."""

    def __init__(self, shared: Shared, url: Url) -> None:
        super().__init__(url)
        self.shared = shared

    async def attempt(self, progress: Progress) -> None:
        log = self.shared.log
        async with connect(self._url, on_data=progress.alive) as (upstream, greeting, ballot):
            if greeting.instance == log.instance:
                raise SourceStopped(f"{self.url} is this instance itself", hint="follow another")
            self._check_position(ballot)
            progress.state(SourceState.SYNCING)
            subscribed = await self._subscribe(upstream, ballot)
            await _Following(self, upstream, subscribed.vclock, progress).run()

    def _check_position(self, ballot: Ballot) -> None:
        ours = self.shared.log.vclock
        if not ours.covers(ballot.gc_vclock):
            raise SourceStopped(
                f"{self.url} holds rows from {ballot.gc_vclock} on, we end at "
                f"{ours.without_local()}: rows between are gone there",
                hint=_REJOIN,
            )

    async def _subscribe(self, upstream: Upstream, ballot: Ballot) -> Subscribed:
        log = self.shared.log
        ours = log.replica_id
        lost = ours and ballot.vclock.lsn(ours) > log.vclock.lsn(ours)
        replicaset = self.shared.replicaset()
        upstream.session.subscribe(
            log.instance,
            replicaset,
            log.vclock,
            anonymous=not ours or self._url.flag("anonymous"),
            id_filter=() if lost or not ours else (ours,),
        )
        upstream.link.flush()
        subscribed = await upstream.expect(Subscribed)
        if subscribed.replicaset not in (None, replicaset):
            raise SourceStopped(
                f"{self.url} belongs to replica set {subscribed.replicaset}, we to {replicaset}",
                hint="follow a member of our own replica set, or join that one into a new folder",
            )
        return subscribed

    async def apply(self, columns: RowColumns) -> None:
        """Apply and log whole transactions; return when they are durable.

        Raises `SourceStopped` for the first one that cannot be applied; those before it are.
        """
        ends = columns.transaction_ends()
        done = await self.shared.run(
            Job(lambda group: group.add_replicated(columns, ends), len(columns.data))
        )
        assert isinstance(done, int)
        for first, last in columns.transactions()[done:]:  # one by one, to know which it is
            try:
                await self.shared.run(_job(columns, first, last))
            except RequestError as error:
                row = columns.row(last - 1)
                raise SourceStopped(
                    f"{self.url}: the transaction of replica {row.replica_id} that ends with lsn "
                    f"{row.lsn} ({last - first} rows) cannot be applied: {error.message} "
                    f"(error {int(error.code)})",
                    hint=error.hint
                    or "mend the difference between the two, or copy the master anew",
                ) from error


def _job(columns: RowColumns, first: int, last: int) -> Job:
    return Job(lambda group: group.add_transaction(columns, first, last), len(columns.data))


class _Following:
    """A subscribed connection: rows in, acknowledgements out."""

    def __init__(
        self, source: TarantoolSource, upstream: Upstream, target: VClock, progress: Progress
    ) -> None:
        self._source = source
        self._shared = source.shared
        self._upstream = upstream
        self._target = target
        self._progress = progress
        self._follows = False
        self._said = 0

    async def run(self) -> None:
        """Until the connection ends, which raises."""
        self._look()
        beats = asyncio.ensure_future(self._beat())
        try:
            await self._follow()
        finally:
            beats.cancel()

    async def _beat(self) -> None:
        """Say where we are while nothing else does: a commit may wait for its disk for longer than
        the master waits for a word (4 x replication_timeout)."""
        pause = self._shared.options.replication_timeout_seconds
        while True:
            said = self._said
            await asyncio.sleep(pause)
            if said == self._said and self._upstream.link.is_open:
                self._acknowledge()

    async def _follow(self) -> None:
        while True:
            event = await self._upstream.next()
            if isinstance(event, Rows):
                await self._take(event)
            elif isinstance(event, Heartbeat):
                self._applied(0, event.timestamp)
            elif isinstance(event, Refused):
                raise self._refusal(event)
            else:
                raise RemoteProtocolError(f"{type(event).__name__} came while following")

    def _refusal(self, event: Refused) -> Exception:
        if event.error.code == ErrorCode.PROC_LUA and "Missing .xlog" in event.error.message:
            return SourceStopped(
                f"{self._source.url} no longer holds our position: {event.error.message}",
                hint=_REJOIN,
            )
        return self._upstream.refusal(event)

    async def _take(self, event: Rows) -> None:
        """Apply what came, with what else waits already."""
        columns = await self._upstream.whole(event)
        if columns is None:
            return
        await self._source.apply(columns)
        self._applied(len(columns), columns.timestamp[len(columns) - 1])

    def _applied(self, rows: int, timestamp: float) -> None:
        """`timestamp`: of the last row, or a heartbeat, by the master's clock; 0: not known."""
        lag = max(self._shared.options.clock() - timestamp, 0.0) if timestamp else None
        self._progress.applied(rows, str(self._shared.log.vclock), lag)
        self._acknowledge()

    def _acknowledge(self) -> None:
        self._said += 1
        self._upstream.session.acknowledge(self._shared.log.vclock)
        self._upstream.link.flush()
        self._look()

    def _look(self) -> None:
        if not self._follows and self._shared.log.vclock.covers(self._target):
            self._follows = True
            self._progress.state(SourceState.FOLLOWING)
