"""Following a Synapse homeserver: over its TCP listener (D1 to D3) or over Redis (D2 to D4).

``synapse://host:port`` and ``synapse+redis://[user:password@]host:port/server_name``, with the
options of docs/synapse.md; the stored position is kept under the server's name.

What arrives is decided on by `cursors.Tracker` and stored batch by batch in the order of arrival;
while one batch becomes durable the next one is gathered, and above `limits.SYNAPSE_WAITING_BYTES`
the server is not read. Without an `http` address missed rows of D2 and later are told as a gap.
The source has caught up when every stream that is known has had its POSITION on this connection
(or none for `_SURVEY_SECONDS`) and nothing that was missed is on its way; a listener that tells of
no stream for so long has none. Nothing tells which POSITION is the last one, so *once* the server
must also have been silent for `_QUIET_SECONDS`, or `_SURVEY_SECONDS` must have gone by. A server
with the wrong name is tried again after `WRONG_SERVER_SECONDS` at the earliest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Final

from logweir.errors import (
    ConfigError,
    ErrorCode,
    LogweirError,
    RequestError,
    SourceStopped,
    Unreachable,
)
from logweir.limits import SYNAPSE_WAITING_BYTES
from logweir.replication.budget import Unanswered
from logweir.replication.dialer import dial_with
from logweir.replication.link import Link
from logweir.replication.logs import get_logger
from logweir.replication.metrics import StreamFigures
from logweir.replication.runner import Progress, SourceState, UrlSource
from logweir.replication.service.rights import Choice
from logweir.replication.synapse.client_session import (
    ClientSession,
    Event,
    Greeted,
    dialect_of,
)
from logweir.replication.synapse.follow.catchup import Page, Refused, Sources, read_secret
from logweir.replication.synapse.follow.contents import (
    Contents,
    Database,
    portions,
    read_database,
)
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.follow.kinds import Named, enriched_streams
from logweir.replication.synapse.follow.retention import Expiry, Periods, read_retention
from logweir.replication.synapse.wire.units import Change, Fetch, Gap, size_of
from logweir.replication.urls import Url
from logweir.store import Log

_log = get_logger("logweir.replication.synapse")

WRONG_SERVER_SECONDS: Final = 30.0
_SURVEY_SECONDS: Final = 5.0
"""After so long a stream that has had no POSITION is one that the server no longer has."""

_QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
_ENRICH_WAITS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_DATABASE: Final = ("contents", "database")
"""How it stands among what waits."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """What an address says."""

    sources: Sources
    start_all: bool
    choice: Choice
    periods: Periods
    database: Database | None
    enriched: frozenset[str]


def read_options(
    url: Url, secret: str | None = None, database: Database | None = None
) -> FollowOptions:
    """The options of an upstream's address, over TCP and Redis. `secret`: for missed rows;
    `database`: with contents; None: as the options say. Raises `ConfigError`."""
    start = url.option("start") or "now"
    if start not in ("now", "all"):
        raise ConfigError("start", f"{start!r} is neither now nor all")
    database = database or read_database(url)
    return FollowOptions(
        Sources(url, read_secret(url) if secret is None else secret),
        start == "all",
        Choice.of(url, "streams"),
        read_retention(url),
        database,
        enriched_streams(url, is_asked=database is not None),
    )


class Upstream(UrlSource):
    """What is alike over TCP and Redis: options, the intake, the tracker, fetches, the status."""

    def __init__(self, url: Url, log: Log, once: bool, options: FollowOptions) -> None:
        super().__init__(url)
        self._log = log
        self._once = once
        self._options = options
        self._expiry: Expiry | None = None
        database = options.database
        self._contents = None if database is None else Contents(database)
        self._gaps: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[tuple[str, str], str] = {}
        self._intake: Intake | None = None
        self._tracker: Tracker | None = None

    async def tracker(self, server: str) -> Tracker:
        """The tracker of that server, from what is stored when it is first asked for."""
        name = self._url.option("name")
        if self._intake is None or self._tracker is None:
            intake = await asyncio.to_thread(
                Intake, self._log, server, name=name, enriched=self._options.enriched
            )
            self._tracker = Tracker(
                await asyncio.to_thread(intake.cursors),
                start_all=self._options.start_all,
                takes=self._options.choice.takes,
            )
            self._intake = intake
            self._expiry = Expiry(self._log, intake, self._options.periods, self._log.inner.now)
        elif self._intake.server != server:
            raise SourceStopped(
                f"{self.url} was {self._intake.server} and is {server} now",
                hint="say which one is wanted with server_name=…",
            )
        return self._tracker

    async def store(self, changes: Sequence[Change], tell: Callable[[str], None]) -> int:
        """Store changes; returns how many rows. Also when cancelled it ends only when what it began
        to store is. `tell`: see `Sources.fetch`, of the database with the contents."""
        assert self._intake is not None
        store, rows = self._intake.store, 0
        if self._contents is None:
            rows = await self._done(partial(store, changes))
        else:
            for portion, named in portions(changes, self._options.enriched):
                contents = await self._contents_of(self._contents, named, tell)
                rows += await self._done(partial(store, portion, contents))
        self._gaps.update((one.stream, one.instance) for one in changes if type(one) is Gap)
        return rows

    async def _contents_of(
        self,
        contents: Contents,
        named: Mapping[tuple[str, ...], Named],
        tell: Callable[[str], None],
    ) -> Mapping[tuple[str, ...], bytes]:
        """What is named says, however long the database takes."""
        problem = ""
        try:
            for wait in chain(_ENRICH_WAITS, repeat(_ENRICH_WAITS[-1])):
                if not named:
                    break
                self._note(_DATABASE, problem, tell)
                try:
                    return await contents.of(named)
                except Unreachable as error:
                    problem = str(error)
                await asyncio.sleep(wait)
            return {}
        except BaseException:
            self.forget()
            raise
        finally:
            self._waiting.pop(_DATABASE, None)

    def _note(self, key: tuple[str, str], problem: str, tell: Callable[[str], None]) -> None:
        """Something is asked for, again if there was a problem."""
        if problem:
            if key not in self._waiting:
                _log.warning("synapse.waits", url=self.url, stream=key[0], reason=problem)
            self._waiting[key] = problem
        tell(problem)

    async def leave(self) -> None:
        """A connection to the upstream has ended."""
        if self._contents is not None:
            await self._contents.close()

    async def expire(self) -> None:
        """Remove what was kept long enough, if it is time to look for that; ends as `store`."""
        if self._expiry is not None and self._expiry.is_due:
            removed = await self._done(self._expiry.run)
            if removed:
                _log.info("synapse.removed", url=self.url, rows=removed)

    async def _done(self, work: Callable[[], int]) -> int:
        """What `work` returns, done in a thread."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,))
            raise
        except RequestError as error:
            self.forget()
            if error.code == ErrorCode.SESSION_CLOSED:
                raise SourceStopped("the store was closed") from error
            raise
        except LogweirError:
            self.forget()
            raise

    def forget(self) -> None:
        """Read anew what is stored: not everything that was decided on was."""
        self._intake = self._tracker = self._expiry = None

    async def fetch(self, wanted: Fetch, tell: Callable[[str], None]) -> Page | Refused:
        """What was missed, or why it cannot be had. `tell`: see `Sources.fetch`."""
        key = (wanted.stream, wanted.instance)
        try:
            return await self._options.sources.fetch(
                wanted, lambda problem: self._note(key, problem, tell)
            )
        finally:
            self._waiting.pop(key, None)

    def has_caught_up(self, tracker: Tracker, now: float, began_at: float, heard: float) -> bool:
        """See the module. `began_at`: when the streams were asked for; `heard`: when the server
        said something for the last time. Raises `Unreachable` if once gives nothing at all."""
        is_late = now >= began_at + _SURVEY_SECONDS
        if not tracker.is_settled:
            if self._once and is_late and tracker.has_none:
                raise Unreachable(self.url, f"no stream can be followed: {self.place() or 'none'}")
            return False
        if is_late:
            return True
        return not tracker.unseen and (not self._once or now >= heard + _QUIET_SECONDS)

    def figures(self) -> list[StreamFigures]:
        """How each stream stands, and the database with the contents, if there is one."""
        tracker = self._tracker
        if tracker is None:
            return []
        behind = tracker.behind
        found = [
            StreamFigures(*key, one.last, behind.get(key, 0), self._gaps[key], key in self._waiting)
            for key, one in sorted(tracker.cursors.items())
        ]
        if self._contents is not None:
            found.append(StreamFigures(*_DATABASE, 0, 0, 0, _DATABASE in self._waiting))
        return found

    def place(self) -> str:
        """Where the streams stand, for people."""
        assert self._tracker is not None
        waiting = [
            f"{stream}/{who} WAITS ({self._waiting[stream, who]})"
            for stream, who in sorted(self._waiting)
        ]
        cursors = sorted(self._tracker.cursors.items())
        shown = [f"{stream}/{who}:{one.last}" for (stream, who), one in cursors if one.last]
        return ", ".join(waiting + shown[:12])


class Flow:
    """Changes between the one who decides and the one who stores."""

    def __init__(self, upstream: Upstream, progress: Progress) -> None:
        self._upstream = upstream
        self._progress = progress
        progress.streams(upstream.figures)
        self._changes: list[Change] = []
        self.waiting_bytes = 0
        """Bytes of rows that wait to be stored."""
        self._news = asyncio.Event()
        self._end: LogweirError | OSError | None = None
        self._fetches: set[asyncio.Task[None]] = set()
        self.on_room: Callable[[], None] = lambda: None
        self.on_page: Callable[[Fetch, Page | Refused], Sequence[Change]] = lambda fetch, page: ()

    def add(self, changes: Sequence[Change]) -> None:
        """Store them, in this order; begin the fetches among them."""
        for change in changes:
            if isinstance(change, Fetch):
                task = asyncio.get_running_loop().create_task(self._fetch(change))
                self._fetches.add(task)
                task.add_done_callback(self._fetches.discard)
                continue
            self._changes.append(change)
            self.waiting_bytes += size_of(change)
        self._news.set()

    def end(self, error: LogweirError | OSError) -> None:
        """Nothing more comes: store what is there, then raise `error`."""
        self._end = self._end or error
        self._news.set()

    @property
    def has_unstored(self) -> bool:
        """Whether changes were given up."""
        return bool(self._changes)

    async def run(self, settled: Callable[[], bool]) -> None:
        """Store what comes until the end, which raises. `settled`: whether nothing is missed."""
        following = False
        try:
            while True:
                self._progress.alive()  # a silent upstream ends by itself
                await self._upstream.expire()
                if self._changes:
                    await self._store()
                    continue
                if self._end is not None:
                    raise self._end
                if not following and settled():
                    following = True
                    self._progress.state(SourceState.FOLLOWING)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._news.wait()
                self._news.clear()
        finally:
            for task in tuple(self._fetches):
                task.cancel()
            await asyncio.gather(*self._fetches, return_exceptions=True)
            await self._upstream.leave()

    async def _store(self) -> None:
        batch, size = self._changes, self.waiting_bytes
        self._changes, self.waiting_bytes = [], 0
        rows = await self._upstream.store(batch, self._tell)
        if size:
            self.on_room()
        self._progress.applied(rows, self._upstream.place(), None)

    def _tell(self, problem: str) -> None:
        """An attempt to fetch or to ask begins, since `problem` ended the one before."""
        self._progress.alive()
        if problem:
            self._progress.applied(0, self._upstream.place(), None)

    async def _fetch(self, wanted: Fetch) -> None:
        try:
            page = await self._upstream.fetch(wanted, self._tell)
            self.add(self.on_page(wanted, page))
            self.on_room()
        except (LogweirError, OSError) as error:
            self.end(error)


class _TcpConversation:
    """One connection to a TCP listener."""

    def __init__(self, link: Link, source: SynapseSource, progress: Progress) -> None:
        self._link = link
        self._source = source
        self._progress = progress
        self.session = ClientSession(
            link.time(),
            dialect=source.dialect,
            server_name=source.server_name,
            milliseconds=source.milliseconds,
        )
        self.flow = Flow(source, progress)
        self.flow.on_page = self.session.take_page
        self.flow.on_room = self._look
        self.tracker: Tracker | None = None
        self.began_at = 0.0
        self._unanswered = Unanswered(
            link, SYNAPSE_WAITING_BYTES, lambda held: self.session.reading(not held, link.time())
        )

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation`."""
        changes = []
        for event in events:
            if isinstance(event, Greeted):
                self._link.spawn(self._begin(event.server))
            else:
                changes.append(event)
        if changes:
            self.flow.add(changes)
        self._look()

    def closed(self, reason: str) -> None:
        """See `Conversation`."""
        self.session.lost()
        self.flow.end(Unreachable(self._source.url, reason))

    def settled(self) -> bool:
        """Whether everything that was missed is here."""
        tracker, link = self.tracker, self._link
        if tracker is None:
            return False
        now, heard = link.time(), link.last_received
        if self._source.has_caught_up(tracker, now, self.began_at, heard):
            return True
        return tracker.is_empty and now >= self.began_at + _SURVEY_SECONDS

    async def _begin(self, server: str) -> None:
        try:
            self.tracker = await self._source.tracker(server)
        except LogweirError as error:
            self.flow.end(error)
            return
        self._progress.state(SourceState.SYNCING)
        self.began_at = self._link.time()
        self.session.begin(self.tracker, self.began_at)
        self._link.flush()

    def _look(self) -> None:
        """Read the server only while there is room."""
        waiting = self.flow.waiting_bytes
        if self.tracker is not None and self.tracker.is_fetching:
            waiting += self.tracker.held_bytes
        self._unanswered.set(waiting)


class SynapseSource(Upstream):
    """A homeserver's TCP listener, for a `Runner`. `once`: see the module."""

    def __init__(self, url: Url, log: Log, *, once: bool = False) -> None:
        super().__init__(url, log, once, read_options(url))
        self.server_name = url.option("server_name")
        self.dialect = dialect_of(url)
        self.milliseconds = lambda: int(log.inner.now() * 1000)
        self._not_before = 0.0

    async def attempt(self, progress: Progress) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._not_before - loop.time()) > 0:
            progress.alive()
            await asyncio.sleep(min(left, 5.0))
        link, conversation = await dial_with(
            self._url, lambda link: _TcpConversation(link, self, progress)
        )
        try:
            await conversation.flow.run(conversation.settled)
        finally:
            if conversation.session.wrong_server:
                self._not_before = loop.time() + WRONG_SERVER_SECONDS
            if conversation.flow.has_unstored:
                self.forget()
            link.close("following ends")
            await link.gone
