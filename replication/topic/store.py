"""The topics of a store as the endpoint wants them: cached, in the event loop, told of changes.

Changes go to the log as jobs, so that whatever all connections have ready shares one sync; their
outcomes come back into the loop. What others write into topic spaces (the embedded API, an upstream
that is followed, another protocol) is noticed too: each commit tells how far the log has come, and
what was not written here is looked for in the state.

Names besides those of topics: `consumer:GROUP/TOPIC` holds a group's places in a topic, one number
per partition (`publish` with an explicit number sets it, discovery tells it), `group:GROUP/TOPIC`
who of the group has which partition (`logweir.replication.topic.groups`). `space:NAME` and
`log` are views of other spaces, see `logweir.replication.topic.views`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final

from logweir.errors import LogweirError, RequestError
from logweir.limits import (
    GROUP_BYTES,
    TANK_UNSTORED_BYTES,
    TANK_UNSTORED_HERE_BYTES,
)
from logweir.replication.logs import SparingLog, get_logger
from logweir.replication.metrics import Metrics, TopicFigures
from logweir.replication.service.line import Line
from logweir.replication.topic import kernel
from logweir.replication.topic.consumers import (
    KEPT_PREFIXES,
    ConsumerPlaces,
    is_group,
    need_spaces,
    topic_of,
)
from logweir.replication.topic.groups import Leases
from logweir.replication.topic.openviews import OpenViews
from logweir.replication.topic.partition import Append, Chunk, Extent
from logweir.replication.topic.publishing import (
    FAILED,
    News,
    Outcome,
    Publication,
    Run,
    Writing,
    framed_bytes,
)
from logweir.replication.topic.readahead import ReadAhead, ReadKey
from logweir.replication.topic.requests import (
    Create,
    CreateError,
    Fetch,
    Partitions,
    PublishResult,
    ReloadError,
)
from logweir.replication.topic.spaces import (
    TOPIC_SPACE,
    TopicDef,
    bundles_from,
    create_topic,
    last_bundle,
    oldest_bundle,
    topics_of,
    view_config,
)
from logweir.replication.topic.upkeep import Upkeep
from logweir.replication.topic.views import is_view
from logweir.store import Log
from logweir.store.commit.append import append_job, append_tuples
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import QUICK_BYTES
from logweir.store.schema.schema import Schema
from logweir.wal.vclock import VClock

UPKEEP_SECONDS: Final = 1.0
"""How often limits of topics that have some are looked at."""

LOOK_SECONDS: Final = 0.02
"""What others write into topic spaces is looked for at most so often."""

_EMPTY: Final = Chunk(0, False)
_LARGE_BYTES: Final = 8 * 1024  # so large tuples are cheaper to store one by one than joined
_log = get_logger("logweir.replication.tank")

PartitionKey = tuple[str, int]


@dataclass(slots=True)
class _Tail:
    """What is known of a partition. `generation`: of the caches, when it was looked up."""

    first: int
    last: int
    written_bytes: int
    generation: int


class StoredTopics:
    """See the module's text. Implements `logweir.replication.tank.serve.endpoint.TopicStore`.

    To be made inside of a running event loop, and closed there. `line`: of the server whose topics
    they are.
    """

    def __init__(
        self,
        log: Log,
        *,
        read_only: bool = False,
        upkeep_seconds: float = UPKEEP_SECONDS,
        leases: Leases | None = None,
        line: Line | None = None,
    ) -> None:
        self._log = log
        self._sparing = SparingLog(_log)
        self.read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        is_unsynced = log.durability == "write"
        self.unstored_bytes = TANK_UNSTORED_HERE_BYTES if is_unsynced else TANK_UNSTORED_BYTES
        self._start_time = int(log.inner.now())
        began = time.perf_counter()
        self._topics: Mapping[str, TopicDef] = topics_of(log)
        self._opening_ms = int((time.perf_counter() - began) * 1000)
        self._defined: tuple[Schema, int] | None = None  # what the topics were made from
        self._tails: dict[PartitionKey, _Tail] = {}
        self._changes: dict[int, int] = {}  # of spaces of partitions in use, when looked at
        self._counts: dict[str, list[int]] = {}  # see `figures`
        self._generation = 0
        self._reads = ReadAhead(log)
        self._news: dict[PartitionKey, News] = {}  # while those that wait are told
        self._listeners: list[Callable[[Iterable[PartitionKey]], None]] = []
        self._line = line or Line(log, Metrics())
        self._quick_bytes = GROUP_BYTES // 2 if is_unsynced else QUICK_BYTES
        self._foreign = False
        self._looked = -LOOK_SECONDS
        self._look_timer: asyncio.TimerHandle | None = None
        self._called = False
        self._writing = Writing(log)
        self._consumers = ConsumerPlaces(log, leases or Leases(), self._count)
        self._tasks: set[asyncio.Task[CreateError]] = set()
        self._creating, self._closed = asyncio.Lock(), False
        self._views = OpenViews(log)
        self._forget_commits = log.on_commit(self._on_commit)
        self._upkeep = Upkeep(log, upkeep_seconds, self._topics_now, self.extent, self._shortened)

    async def close(self) -> None:
        """Take no more notice of the log, finish upkeep that runs."""
        self._closed = True
        self._forget_commits()
        if self._look_timer is not None:
            self._look_timer.cancel()
        ending = (self._upkeep.close(), *self._tasks, *self._views.close())
        await asyncio.gather(*ending, return_exceptions=True)

    def status(self) -> list[dict[str, object]]:
        """Each partition in use: what it holds, and how far groups of consumers are behind."""
        places = self._consumers.all()
        out: list[dict[str, object]] = []
        for name, partition in sorted({*self._tails, *places}):
            is_topic = name in self._topics
            view = None if is_topic else self._views.get(name)
            if not is_topic and is_view(name) and (view is None or not view.is_ready):
                # Anybody may ask, from any thread: it is looked at, and told the next time.
                self._loop.call_soon_threadsafe(self._prepare_view, name)
                continue
            extent = self.extent(name, partition) if is_topic or is_view(name) else None
            if extent is not None:
                lag = {
                    group: max(0, extent.last + 1 - number)
                    for group, number in places.get((name, partition), {}).items()
                }
                row = {"topic": name, "partition": partition, "first": extent.first}
                out.append(row | {"last": extent.last, "consumer_lag": lag})
        return out

    def figures(self) -> Iterable[TopicFigures]:
        """What was stored and read since this began, of each topic of which something was."""
        return [TopicFigures(topic, *counts) for topic, counts in tuple(self._counts.items())]

    def _topics_now(self) -> Iterable[TopicDef]:
        return tuple(self._topics.values())

    def _shortened(self) -> None:
        """Upkeep has removed bundles."""
        changed = self._look_around()
        for listener in self._listeners:
            listener(changed)

    def on_published(self, callback: Callable[[Iterable[PartitionKey]], None]) -> None:
        self._listeners.append(callback)

    # --- what sessions ask ------------------------------------------------------------------------

    def partitions(self, topic: str) -> int | None:
        found = self._topics.get(topic)
        if found is not None and not topic.startswith(KEPT_PREFIXES):
            return found.partitions
        if topic.startswith(KEPT_PREFIXES) and not is_group(topic):
            return None
        name = topic_of(topic)
        if is_view(name) and name not in self._topics:
            return 1 if self._views.find(name) is not None else None
        found = self._topics.get(name)
        return None if found is None else found.partitions

    def _count(self, name: str) -> int | None:
        """How many partitions members of a group share; from any thread."""
        found = self._topics.get(name)
        return found.partitions if found is not None else 1 if is_view(name) else None

    def writable(self, topic: str) -> bool:
        return topic in self._topics or topic.startswith(KEPT_PREFIXES)

    def creatable(self, topic: str) -> bool:
        return not self.read_only

    def is_topic(self, name: str) -> bool:
        return name in self._topics

    def prepare(self, request: object) -> Awaitable[object] | None:
        """Open the views that `request` is about, in threads: the log may be long."""
        names: Iterable[str] = ()
        if isinstance(request, Fetch):
            names = (name for name, _ in request.topics)
        elif isinstance(request, Partitions):
            names = (request.topic,)
        found = [self._prepare_view(name) for name in names if is_view(name)]
        opening = [task for task in found if task is not None]
        return asyncio.wait(opening) if opening else None

    def _prepare_view(self, name: str) -> asyncio.Task[None] | None:
        """What opens that view; None if nothing has to be opened."""
        return None if name in self._topics else self._views.open(name)

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        return [(topic.name, True, topic.partitions) for topic in self._topics.values()]

    def opening(self) -> tuple[int, int, int]:
        return len(self._tails), self._opening_ms, self._start_time

    def reload(self, topic: str, partition: int) -> ReloadError:
        self._topics = topics_of(self._log)
        found = self._topics.get(topic)
        if found is None:
            self._views.drop(topic)
            text, _ = view_config(self._log, topic)
            return ReloadError.DONE if text.strip() else ReloadError.NO_CONFIG
        return ReloadError.DONE if found.config_text.strip() else ReloadError.NO_CONFIG

    def extent(self, topic: str, partition: int) -> Extent | None:
        if topic.startswith(KEPT_PREFIXES):
            return self._consumers.place(topic, partition)
        try:
            if topic not in self._topics:
                view = self._views.find(topic)
                return None if view is None else view.extent()
            tail = self._tail(topic, partition)
        except LogweirError as error:
            self._tell_unreadable(topic, partition, error)
            return None
        return Extent(tail.first, tail.last, tail.written_bytes)

    def read(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk | None:
        try:
            chunk = self._chunk(topic, partition, start, limit_bytes)
            if chunk.size_bytes and topic in self._topics:
                self._counts.setdefault(topic, [0, 0, 0])[2] += chunk.size_bytes
            return chunk
        except LogweirError as error:
            self._tell_unreadable(topic, partition, error)
            return None

    def _tell_unreadable(self, topic: str, partition: int, error: LogweirError) -> None:
        told = {"topic": topic, "partition": partition, "error": str(error)}
        self._sparing.warning("topic.unreadable", **told)

    def _chunk(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk:
        if topic.startswith(KEPT_PREFIXES):
            return self._consumers.chunk(topic, partition)
        if topic not in self._topics:
            view = self._views.find(topic)
            return _EMPTY if view is None else view.read(start, limit_bytes)
        tail = self._tail(topic, partition)
        news = self._news.get((topic, partition))
        if news is not None and news.before < start <= news.bundles[0].last:
            return news.chunk(limit_bytes)
        found = self._reads.take(self._topics[topic], partition, start, limit_bytes, tail.last)
        if found.next_is_wanted:
            self._loop.call_soon(self._read_ahead, (topic, partition, found.next, limit_bytes))
        return found.chunk

    def _read_ahead(self, key: ReadKey) -> None:
        """Read what whoever reads in order asks for next, while the network takes the last."""
        topic, partition, start, limit_bytes = key
        if self._closed or key in self._reads or topic not in self._topics:
            return
        with contextlib.suppress(LogweirError):  # who asks for it is told
            tail = self._tail(topic, partition)
            if tail.first <= start <= tail.last:
                self._reads.read(self._topics[topic], partition, start, limit_bytes, tail.last)

    def _tail(self, topic: str, partition: int) -> _Tail:
        tail = self._tails.get((topic, partition))
        if tail is not None and tail.generation == self._generation:
            return tail
        space_id = self._topics[topic].space_id
        # Before the view, which may show more; what is known already others were looked up by.
        self._changes.setdefault(space_id, self._log.inner.changes_of(space_id))
        with self._log.read_view() as view:
            newest = last_bundle(view.engine, space_id, partition)
            oldest = oldest_bundle(view.engine, space_id, partition)
            if tail is None:
                tail = self._tails[topic, partition] = _Tail(0, 0, 0, 0)
            else:
                for bundle in bundles_from(view.engine, space_id, partition, tail.last + 1):
                    tail.written_bytes += framed_bytes(len(bundle.data))
            tail.last = newest.last if newest else 0
        tail.first = oldest.first if oldest else 0
        tail.generation = self._generation
        return tail

    # --- changes ----------------------------------------------------------------------------------

    def append(self, appends: list[Append], done: Callable[[list[PublishResult]], None]) -> None:
        spans: list[tuple[int, TopicDef | None]] = []
        for end in kernel.spans(appends):
            topic = self._topics.get(appends[end - 1].topic)
            if topic is not None and topic.config.by_arrival:
                now_ms, start = int(self._log.inner.now() * 1000), spans[-1][0] if spans else 0
                appends[start:end] = [
                    append._replace(time_ms=now_ms) for append in appends[start:end]
                ]
            spans.append((end, topic))
        size = kernel.size_of(appends) + 64 * len(appends)
        part = Publication(appends, spans, done)
        self._line.submit_part(
            self, part, size, self._apply, self._stored, quick_bytes=self._quick_bytes
        )

    def _apply(self, publishes: Sequence[Publication], group: Group) -> None:
        """Give every bundle its numbers and add them as one run per space; in the thread that
        commits."""
        mark = self._writing.begin(group)
        runs: dict[int, Run] = {}
        try:
            for publish in publishes:
                publish.outcomes = []
                for end, topic in publish.spans:
                    self._number(group, publish.appends, end, topic, runs, publish.outcomes)
            for space_id, run in runs.items():
                if run.tuples:
                    self._add_run(group, space_id, run)
        except BaseException:
            self._writing.rollback(mark)
            raise

    def _add_run(self, group: Group, space_id: int, run: Run) -> None:
        """Add the bundles of one space; what it refuses fails them and no others."""
        mark = group.mark()
        sizes = [len(head) + len(data) for head, data in run.tuples]
        are_large = sum(sizes) >= _LARGE_BYTES * len(sizes)
        try:
            if are_large and append_tuples(group, space_id, run.tuples):
                return
            packed = b"".join(chain.from_iterable(run.tuples))
            bounds = array("Q", accumulate(sizes, initial=0))
            append_job(space_id, packed, bounds, one_transaction=False)(group)
        except RequestError as error:
            group.rollback(mark)
            self._writing.forget(space_id, len(run.tuples))
            for outcomes, index, count in run.places:
                outcomes[index : index + count] = [FAILED] * count
            self._sparing.warning("publish.refused", space_id=space_id, error=str(error))

    def _number(
        self,
        group: Group,
        appends: list[Append],
        end: int,
        topic: TopicDef | None,
        runs: dict[int, Run],
        outcomes: list[Outcome],
    ) -> None:
        """Give numbers to bundles of one partition: those that have no outcome yet, to before
        `end`."""
        at = len(outcomes)
        name, partition = appends[at].topic, appends[at].partition
        if name.startswith(KEPT_PREFIXES):
            need_spaces(group)
            outcomes += [self._keep(group, append) for append in appends[at:end]]
            return
        if topic is None or group.schema.get(topic.space_id) is None:
            outcomes += [FAILED] * (end - at)
            return
        space_id = topic.space_id
        run = runs.setdefault(space_id, Run(self._sparing))
        before = len(run.tuples)
        last = self._writing.last(group, space_id, partition)
        last = run.add(name, appends, end, last, outcomes)
        self._writing.wrote(space_id, partition, last, len(run.tuples) - before)

    def _keep(self, group: Group, append: Append) -> Outcome:
        """Set a place, or hear a member; what the space refuses fails no other."""
        mark = group.mark()
        try:
            return self._consumers.store(group, append, self._writing)
        except RequestError as error:
            group.rollback(mark)
            self._sparing.warning("publish.refused", topic=append.topic, error=str(error))
            return FAILED

    def create_from(self, request: Create, owner: int | None = None) -> Awaitable[CreateError]:
        def make() -> CreateError:
            try:
                create_topic(
                    self._log,
                    request.topic,
                    request.partitions,
                    request.config.decode(),
                    now_seconds=self._log.inner.now(),
                    owner=owner,
                )
            except RequestError as error:
                _log.warning("topic.not_created", topic=request.topic, error=str(error))
                return CreateError.EXISTS
            except LogweirError as error:
                _log.error("topic.not_created", topic=request.topic, error=str(error))
                return CreateError.FAILED
            return CreateError.CREATED

        async def work() -> CreateError:
            async with self._creating:  # threads that all compute would keep the loop waiting
                outcome = await asyncio.to_thread(make)
                self._topics = topics_of(self._log)
            return outcome

        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)  # who asked may go

    # --- from the committing thread into the loop -------------------------------------------------

    def _on_commit(self, vclock: VClock) -> None:
        if not self._writing.committed(vclock):
            self._foreign = True
        elif not self._views:
            return
        if self._called or self._closed:
            return
        self._called = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._look)
        else:
            self._loop.call_soon_threadsafe(self._look)

    def _stored(self, publishes: Sequence[Publication], error: BaseException | None) -> None:
        """Bundles are durable, or refused: tell those that published them, then those that wait."""
        grown: set[PartitionKey] = set()
        for publish in publishes:
            appends = publish.appends
            if error is not None:
                publish.outcomes = [FAILED] * len(appends)
            outcomes, start = publish.outcomes, 0
            for end, _ in publish.spans:
                key = appends[start].topic, appends[start].partition
                if self._grow(key, appends[start:end], outcomes[start:end]):
                    grown.add(key)
                start = end
            publish.done([outcome.result for outcome in outcomes])
        self._tell(grown)

    def _look(self) -> None:
        """Others wrote, or views have more to show."""
        self._called = False  # before anything is looked at: what comes now is looked at anew
        foreign, self._foreign = self._foreign, False
        grown: set[PartitionKey] = set()
        if foreign:
            wait_seconds = self._looked + LOOK_SECONDS - self._loop.time()
            if wait_seconds <= 0:
                grown = self._look_around()
            elif self._look_timer is None:
                self._look_timer = self._loop.call_later(wait_seconds, self._look_later)
        grown |= {(name, 0) for name in self._views.grow()}
        if grown:
            self._tell(grown)

    def _tell(self, grown: set[PartitionKey]) -> None:
        try:
            for listener in self._listeners:
                listener(grown)
        finally:
            self._news.clear()

    def _grow(
        self, key: PartitionKey, appends: Sequence[Append], outcomes: Sequence[Outcome]
    ) -> bool:
        """Whether any of these bundles are new ones of a topic."""
        stored: list[Outcome] = []
        size = messages = 0
        for append, made in zip(appends, outcomes, strict=True):
            if made.size_bytes:
                stored.append(made)
                size += made.size_bytes
                messages += append.head.count
        if not stored:
            return False
        counts = self._counts.setdefault(key[0], [0, 0, 0])
        counts[0] += size
        counts[1] += messages
        tail = self._tails.get(key)
        if tail is not None and stored[-1].last > tail.last:
            if stored[0].first <= tail.last:  # they were seen in the state, some of them
                stored = [each for each in stored if each.last > tail.last]
                size = sum([each.size_bytes for each in stored])
            known = self._news.get(key)
            if known is not None:
                known.bundles.extend(stored)
            elif stored[0].first == tail.last + 1:  # else others may have written between
                self._news[key] = News(tail.last, stored)
            tail.first = tail.first or stored[0].first
            tail.last = stored[-1].last
            tail.written_bytes += size
        return True

    def _look_later(self) -> None:
        self._look_timer = None
        self._foreign = True
        self._look()

    def _look_around(self) -> set[PartitionKey]:
        """Somebody else wrote: which partitions in use may have changed."""
        self._looked = self._loop.time()
        schema, before = self._log.schema, self._topics
        space = schema.get(TOPIC_SPACE)
        defined = schema, 0 if space is None else self._log.inner.changes_of(space.id)
        if defined != self._defined:
            self._topics, self._defined = topics_of(self._log), defined
        changed = {name for name, topic in before.items() if self._topics.get(name) != topic}
        for name, topic in self._topics.items():
            space_id, now = topic.space_id, self._log.inner.changes_of(topic.space_id)
            if self._changes.get(space_id, now) != now:
                self._changes[space_id] = now
                changed.add(name)
        keys = {key for key in self._tails if key[0] in changed}
        if keys:
            self._generation += 1
            self._reads.forget()
            for key in keys:
                if key[0] not in self._topics:
                    del self._tails[key]
        return keys
