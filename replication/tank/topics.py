"""The topics of a store as the endpoint wants them: cached, in the event loop, told of changes.

Changes go to the log as jobs, so that whatever all connections have ready shares one sync; their
outcomes come back into the loop. What others write into topic spaces (the embedded API, an upstream
that is followed, another protocol) is noticed too: each commit tells how far the log has come, and
what was not written here is looked for in the state.

Names besides those of topics: `consumer:GROUP/TOPIC` holds a group's places in a topic, one number
per partition (`publish` with an explicit number sets it, discovery tells it). `space:NAME` and
`log` are views of other spaces, see `logweir.replication.tank.views`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

import structlog

from logweir.errors import LogweirError, RequestError
from logweir.limits import (
    GROUP_BYTES,
    TANK_READ_AHEAD_BYTES,
    TANK_UNSTORED_BYTES,
    TANK_UNSTORED_HERE_BYTES,
)
from logweir.replication.tank import kernel
from logweir.replication.tank.bundle import Message, encode_bundle, encode_varint, read_head
from logweir.replication.tank.config import TopicConfig
from logweir.replication.tank.messages import (
    Create,
    CreateError,
    Fetch,
    Partitions,
    PublishResult,
    ReloadError,
)
from logweir.replication.tank.messages import Request as WireRequest
from logweir.replication.tank.partition import Append, Chunk, Extent
from logweir.replication.tank.publishing import (
    FAILED,
    Batch,
    News,
    Outcome,
    Publication,
    Run,
    Writing,
    are_large,
    framed_bytes,
    holds_large,
    number,
)
from logweir.replication.tank.retention import compact, partition_bytes, retain
from logweir.replication.tank.topicspaces import (
    CONSUMER_FIELDS,
    CONSUMER_SPACE,
    TopicDef,
    bundles_from,
    create_topic,
    last_bundle,
    topics_of,
    view_config,
    views_from,
)
from logweir.replication.tank.views import LOG_VIEW, SPACE_PREFIX, View, is_view
from logweir.store import Log
from logweir.store.append import append_job, append_tuples
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.store.largerun import LargeRun
from logweir.store.request import Request
from logweir.store.schema import Schema
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["CONSUMER_PREFIX", "StoredTopics"]

CONSUMER_PREFIX: Final = "consumer:"
UPKEEP_SECONDS: Final = 1.0
"""How often limits of topics that have some are looked at."""

LOOK_SECONDS: Final = 0.02
"""What others write into topic spaces is looked for at most so often."""

_EMPTY: Final = Chunk(0, False)
_STORED: Final = PublishResult.STORED  # to look up members of an enumeration takes time
_RESULT: Final[Callable[[Outcome], PublishResult]] = attrgetter("result")
_log = structlog.stdlib.get_logger("logweir.replication.tank")

PartitionKey = tuple[str, int]


@dataclass(slots=True)
class _Tail:
    """What is known of a partition. `generation`: of the caches, when it was looked up."""

    first: int
    last: int
    written_bytes: int
    generation: int


@dataclass(frozen=True, slots=True)
class _Read:
    """Bundles that were read. `next`: first number of the bundle behind them that did not fit, 0
    where there was none; `last`: last number of the partition then."""

    chunk: Chunk
    next: int
    last: int

    @property
    def is_full(self) -> bool:
        """Whether later bundles would not change it."""
        return self.next > 0

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, about."""
        return self.chunk.size_bytes + 1024


@dataclass(frozen=True, slots=True)
class _Kept:
    """How a partition was when its limits were applied last."""

    config: TopicConfig
    last: int
    written_bytes: int
    size_bytes: int


class StoredTopics:
    """See the module's text. Implements `logweir.replication.tank.endpoint.TopicStore`.

    To be made inside of a running event loop, and closed there.
    """

    def __init__(
        self, log: Log, *, read_only: bool = False, upkeep_seconds: float = UPKEEP_SECONDS
    ) -> None:
        self._log = log
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unstored_bytes = (
            TANK_UNSTORED_HERE_BYTES if log.durability == "write" else TANK_UNSTORED_BYTES
        )
        self._start_time = int(log.now())
        began = time.perf_counter()
        self._topics: Mapping[str, TopicDef] = topics_of(log)
        self._opening_ms = int((time.perf_counter() - began) * 1000)
        self._schema = log.schema
        self._tails: dict[PartitionKey, _Tail] = {}
        self._entries: dict[int, int] = {}
        self._generation = 0
        self._ahead: dict[tuple[str, int, int, int], _Read] = {}  # the oldest first
        self._ahead_bytes = 0
        self._news: dict[PartitionKey, News] = {}  # while those that wait are told
        self._listeners: list[Callable[[Iterable[PartitionKey]], None]] = []
        self._guard = threading.Lock()
        self._arrived: deque[tuple[Publication, Sequence[Outcome]]] = deque()
        self._gathered: list[Publication] = []
        self._gathered_bytes = 0
        self._batch: Batch | None = None  # that was given to the log last
        self._foreign = False
        self._looked = -LOOK_SECONDS
        self._look_timer: asyncio.TimerHandle | None = None
        self._called = False
        self._in_turn = self._arrived_here = False
        self._writing = Writing(log)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._views: dict[str, View] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._forget_commits = log.on_commit(self._on_commit)
        self._upkeep_seconds = upkeep_seconds
        self._kept_up: dict[PartitionKey, _Kept] = {}
        self._upkeep = self._loop.create_task(self._keep_up())

    async def close(self) -> None:
        """Take no more notice of the log, finish upkeep that runs."""
        self._closed = True
        self._forget_commits()
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._upkeep.cancel()
        for view in self._views.values():
            view.close()
        ending = (self._upkeep, *self._tasks, *self._opening.values())
        await asyncio.gather(*ending, return_exceptions=True)

    def status(self) -> list[dict[str, object]]:
        """Each partition in use: what it holds, and how far groups of consumers are behind."""
        places: dict[PartitionKey, dict[str, int]] = {}
        if self._log.schema.get(CONSUMER_SPACE) is not None:
            for group, topic, partition, number, _ in self._log.select(CONSUMER_SPACE):
                places.setdefault((str(topic), int(str(partition))), {})[str(group)] = int(
                    str(number)
                )
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
                out.append(
                    {
                        "topic": name,
                        "partition": partition,
                        "first": extent.first,
                        "last": extent.last,
                        "consumer_lag": lag,
                    }
                )
        return out

    # --- retention and compaction -----------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Keep every topic within its limits, as long as the topics are open."""
        while True:
            await asyncio.sleep(self._upkeep_seconds)
            for topic in tuple(self._topics.values()):
                if topic.config.keeps_everything:
                    continue
                for partition in range(topic.partitions):
                    try:
                        await self._keep_up_one(topic, partition)
                    except LogweirError as error:
                        _log.error("topic.upkeep_failed", topic=topic.name, error=str(error))

    async def _keep_up_one(self, topic: TopicDef, partition: int) -> None:
        """Apply the limits to a partition that has grown, or may have aged."""
        extent = self.extent(topic.name, partition)
        if extent is None or not extent.last:
            return
        key = (topic.name, partition)
        before = self._kept_up.get(key)
        grown = before is None or before.config != topic.config or before.last != extent.last
        if topic.config.compact:
            if before is not None and before.config == topic.config:
                new_bytes = extent.written_bytes - before.written_bytes
                share = topic.config.cleanable_ratio
                grown = new_bytes > 0 and new_bytes >= share * (before.size_bytes + new_bytes)
            if not grown:
                return
            gone = await asyncio.to_thread(compact, self._log, topic, partition)
        elif grown or topic.config.retention_seconds:
            now_ms = int(self._log.now() * 1000)
            gone = await asyncio.to_thread(retain, self._log, topic, partition, now_ms)
        else:
            return
        size = 0
        if topic.config.compact:
            size = await asyncio.to_thread(partition_bytes, self._log, topic, partition)
        self._kept_up[key] = _Kept(topic.config, extent.last, extent.written_bytes, size)
        if gone:
            changed = self._look_around()
            for listener in self._listeners:
                listener(changed)
            _log.info("topic.kept_up", topic=topic.name, partition=partition, gone=gone)

    def on_published(self, callback: Callable[[Iterable[PartitionKey]], None]) -> None:
        self._listeners.append(callback)

    # --- what sessions ask ------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def unstored_bytes(self) -> int:
        return self._unstored_bytes

    def partitions(self, topic: str) -> int | None:
        found = self._topics.get(topic)
        if found is not None and not topic.startswith(CONSUMER_PREFIX):
            return found.partitions
        if topic.startswith(CONSUMER_PREFIX) and not _is_group(topic):
            return None
        name = _topic_of(topic)
        if is_view(name) and name not in self._topics:
            return 1 if self._view(name) is not None else None
        found = self._topics.get(name)
        return None if found is None else found.partitions

    def writable(self, topic: str) -> bool:
        return topic in self._topics or topic.startswith(CONSUMER_PREFIX)

    def _view(self, topic: str) -> View | None:
        """The view of that name, made when it is first asked for; None: no such space."""
        space = topic.removeprefix(SPACE_PREFIX) if topic != LOG_VIEW else ""
        if space and self._log.schema.get(space) is None:
            view = self._views.pop(topic, None)
            if view is not None:
                view.close()
            return None
        view = self._views.get(topic)
        if view is None:
            _, config = view_config(self._log, topic)
            view = self._views[topic] = View(self._log, space, config.content)
        return view

    def prepare(self, request: WireRequest) -> Awaitable[object] | None:
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
        """What opens that view; None where nothing has to be opened."""
        view = self._view(name) if name not in self._topics else None
        if view is None or view.is_ready:
            return None
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = self._loop.create_task(asyncio.to_thread(view.open))
            task.add_done_callback(functools.partial(self._opened, name))
        return task

    def _opened(self, name: str, task: asyncio.Task[None]) -> None:
        del self._opening[name], task

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        return [(topic.name, True, topic.partitions) for topic in self._topics.values()]

    def opening(self) -> tuple[int, int, int]:
        return len(self._tails), self._opening_ms, self._start_time

    def reload(self, topic: str, partition: int) -> ReloadError:
        del partition
        self._topics = topics_of(self._log)
        found = self._topics.get(topic)
        if found is None:
            view = self._views.pop(topic, None)
            if view is not None:
                view.close()
            text, _ = view_config(self._log, topic)
            return ReloadError.DONE if text.strip() else ReloadError.NO_CONFIG
        return ReloadError.DONE if found.config_text.strip() else ReloadError.NO_CONFIG

    def extent(self, topic: str, partition: int) -> Extent | None:
        if topic.startswith(CONSUMER_PREFIX):
            return self._place(topic, partition)
        try:
            if topic not in self._topics:
                view = self._view(topic)
                return None if view is None else view.extent()
            tail = self._tail(topic, partition)
        except LogweirError as error:
            _log.error("topic.unreadable", topic=topic, partition=partition, error=str(error))
            return None
        return Extent(tail.first, tail.last, tail.written_bytes)

    def read(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk | None:
        try:
            return self._chunk(topic, partition, start, limit_bytes)
        except LogweirError as error:
            _log.error("topic.unreadable", topic=topic, partition=partition, error=str(error))
            return None

    def _chunk(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk:
        if topic.startswith(CONSUMER_PREFIX):
            return self._place_chunk(topic, partition)
        if topic not in self._topics:
            view = self._view(topic)
            return _EMPTY if view is None else view.read(start, limit_bytes)
        tail = self._tail(topic, partition)
        news = self._news.get((topic, partition))
        if news is not None and news.before < start <= news.bundles[0].last:
            return news.chunk(limit_bytes)
        key = (topic, partition, start, limit_bytes)
        found = self._ahead.pop(key, None)
        if found is not None:
            self._ahead_bytes -= found.kept_bytes
        if found is None or not (found.is_full or found.last == tail.last):
            found = self._read(self._topics[topic], partition, start, limit_bytes, tail.last)
        self._keep(key, found)
        if found.is_full and found.chunk.size_bytes <= TANK_READ_AHEAD_BYTES // 2:
            self._loop.call_soon(self._read_ahead, (topic, partition, found.next, limit_bytes))
        return found.chunk

    def _keep(self, key: tuple[str, int, int, int], found: _Read) -> None:
        """Keep what was read, and of what was read before only so much as the limit allows."""
        self._ahead[key] = found
        self._ahead_bytes += found.kept_bytes
        while self._ahead_bytes > TANK_READ_AHEAD_BYTES:
            self._ahead_bytes -= self._ahead.pop(next(iter(self._ahead))).kept_bytes

    def _forget_read(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0

    def _read_ahead(self, key: tuple[str, int, int, int]) -> None:
        """Read what whoever reads in order asks for next, while the network takes the last."""
        topic, partition, start, limit_bytes = key
        if self._closed or key in self._ahead or topic not in self._topics:
            return
        with contextlib.suppress(LogweirError):  # who asks for it is told
            tail = self._tail(topic, partition)
            if tail.first <= start <= tail.last:
                found = self._read(self._topics[topic], partition, start, limit_bytes, tail.last)
                self._keep(key, found)

    def _read(
        self, topic: TopicDef, partition: int, start: int, limit_bytes: int, last: int
    ) -> _Read:
        out: list[bytes | memoryview] = []
        size = 0
        base = 0
        following = 0
        with self._log.read_view() as view:
            found = views_from(view.engine, topic.space_id, partition, start)
            while True:
                try:
                    first, data = next(found)
                except StopIteration:
                    break
                except LogweirError:
                    if out:
                        break  # who asks for what is behind is told
                    raise
                length = encode_varint(len(data))
                if out and size + len(length) + len(data) > limit_bytes:
                    following = first
                    break
                base = base or first
                out += (length, data)
                size += len(length) + len(data)
        chunk = Chunk(base, bool(out) and read_head(out[1]).sparse, out, size)
        return _Read(chunk, following, last)

    def _tail(self, topic: str, partition: int) -> _Tail:
        tail = self._tails.get((topic, partition))
        if tail is not None and tail.generation == self._generation:
            return tail
        space_id = self._topics[topic].space_id
        with self._log.read_view() as view:
            self._entries[space_id] = view.count(space_id)
            newest = last_bundle(view.engine, space_id, partition)
            oldest = next(bundles_from(view.engine, space_id, partition, 0), None)
            if tail is None:
                tail = self._tails[topic, partition] = _Tail(0, 0, 0, 0)
                tail.last = newest.last if newest else 0
            elif newest is not None and newest.last > tail.last:
                for bundle in bundles_from(view.engine, space_id, partition, tail.last + 1):
                    tail.written_bytes += framed_bytes(len(bundle.data))
                tail.last = newest.last
        tail.first = oldest.first if oldest else 0
        tail.generation = self._generation
        return tail

    # --- places of consumers ----------------------------------------------------------------------

    def _place(self, topic: str, partition: int) -> Extent:
        group, _, name = topic.removeprefix(CONSUMER_PREFIX).partition("/")
        number = 0
        if self._log.schema.get(CONSUMER_SPACE) is not None:
            row = self._log.get(CONSUMER_SPACE, (group, name, partition))
            if row is not None and isinstance(row[3], int):
                number = row[3]
        return Extent(number, number, 0)

    def _place_chunk(self, topic: str, partition: int) -> Chunk:
        place = self._place(topic, partition)
        data = encode_bundle([Message(place.last, 0, None, b"")], sparse=True)
        framed = encode_varint(len(data)) + data
        return Chunk(place.first, True, (framed,), len(framed))

    def _store_place(self, group: Group, append: Append) -> Outcome:
        consumers, _, name = append.topic.removeprefix(CONSUMER_PREFIX).partition("/")
        space = group.schema.get(CONSUMER_SPACE)
        if space is None:
            return FAILED
        number = append.first or append.head.first
        if not number:
            return Outcome(PublishResult.BAD_NUMBERS)
        row = [consumers, name, append.partition, number, append.time_ms]
        group.execute(Request(RowType.REPLACE, space.id, tuple=pack(row)))
        self._writing.wrote(space.id, append.partition, number, 1)
        return Outcome(PublishResult.STORED)

    # --- changes ----------------------------------------------------------------------------------

    def append(self, appends: list[Append], done: Callable[[list[PublishResult]], None]) -> None:
        spans: list[tuple[int, TopicDef | None]] = []
        for end in kernel.spans(appends):
            name = appends[end - 1].topic
            if name.startswith(CONSUMER_PREFIX):
                self._need_consumer_space()
            topic = self._topics.get(name)
            if topic is not None and topic.config.by_arrival:
                now_ms, start = int(self._log.now() * 1000), spans[-1][0] if spans else 0
                appends[start:end] = [
                    append._replace(time_ms=now_ms) for append in appends[start:end]
                ]
            spans.append((end, topic))
        self._gathered_bytes += kernel.size_of(appends) + 64 * len(appends)
        if not self._gathered:
            self._loop.call_soon(self._submit_turn)
        self._gathered.append(Publication(appends, spans, done))
        if self._gathered_bytes > GROUP_BYTES // 2:
            self._submit()

    def _submit_turn(self) -> None:
        """`_submit`; what is stored when it returns is told at once."""
        self._in_turn = True
        try:
            self._submit()
        finally:
            self._in_turn = False
        if self._arrived_here:
            self._arrived_here = False
            self._take_arrived()
        self._log.settle()

    def _submit(self) -> None:
        """Give the log what all connections have brought in this turn of the loop.

        What comes before the log takes it goes with it: one job costs less than two.
        """
        publishes, size = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        if not publishes or (self._batch is not None and self._batch.add(publishes, size)):
            return
        if holds_large(publishes, size) and self._write_now(publishes):
            return
        batch = self._batch = Batch(publishes, size)

        def finished(job: Job) -> None:
            done = batch.take()
            if job.error is not None:
                self._arrive_failed(done, job.error)
            else:
                self._arrive(zip(done, job.result, strict=True))

        try:
            job = Job(lambda group: self._apply(group, batch.take()), size, finished=finished)
            if not self._log.run_jobs_here([job]):
                self._log.submit_jobs([job])
        except LogweirError as error:
            self._arrive_failed(batch.take(), error)

    def _write_now(self, publishes: list[Publication]) -> bool:
        """Have them stored while nobody waits, if they are such that the state may lag behind."""
        outcomes: list[list[Outcome]] = []

        def make(schema: Schema) -> list[LargeRun] | None:
            found = number(publishes, self._writing, schema)
            if found is None:
                return None
            outcomes.extend(found[1])
            return found[0]

        try:
            if not self._log.commit_large(make):
                return False
        except LogweirError as error:
            self._arrive_failed(publishes, error)
        else:
            self._arrive(zip(publishes, outcomes, strict=True))
        return True

    def _apply(self, group: Group, publishes: Sequence[Publication]) -> list[list[Outcome]]:
        """Give every bundle its numbers and add them as one run per space; in the log's thread."""
        mark = self._writing.begin(group)
        runs: dict[int, Run] = {}
        outcomes: list[list[Outcome]] = []
        try:
            for publish in publishes:
                mine: list[Outcome] = []
                outcomes.append(mine)
                for end, topic in publish.spans:
                    self._number(group, publish.appends, end, topic, runs, mine)
            for space_id, run in runs.items():
                if run.tuples:
                    self._add_run(group, space_id, run)
        except BaseException:
            self._writing.rollback(mark)
            raise
        return outcomes

    def _add_run(self, group: Group, space_id: int, run: Run) -> None:
        """Add the bundles of one space; what it refuses fails them and no others."""
        mark = group.mark()
        try:
            if are_large(run.tuples) and append_tuples(group, space_id, run.tuples):
                return
            packed = b"".join(chain.from_iterable(run.tuples))
            append_job(space_id, packed, one_transaction=False)(group)
        except RequestError as error:
            group.rollback(mark)
            self._writing.forget(space_id, len(run.tuples))
            for outcomes, index, count in run.places:
                outcomes[index : index + count] = [FAILED] * count
            _log.error("publish.refused", space_id=space_id, error=str(error))

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
        if name.startswith(CONSUMER_PREFIX):
            outcomes += [self._store_place(group, append) for append in appends[at:end]]
            return
        if topic is None or group.schema.get(topic.space_id) is None:
            outcomes += [FAILED] * (end - at)
            return
        space_id = topic.space_id
        run = runs.setdefault(space_id, Run([], []))
        before = len(run.tuples)
        last = self._writing.last(group, space_id, partition)
        last = run.add(name, appends, end, last, outcomes)
        self._writing.wrote(space_id, partition, last, len(run.tuples) - before)

    def _need_consumer_space(self) -> None:
        if self._log.schema.get(CONSUMER_SPACE) is None:
            self._log.create_space(
                CONSUMER_SPACE,
                CONSUMER_FIELDS,
                primary=["group", "topic", "partition"],
                if_not_exists=True,
            )

    def create_from(self, request: Create, done: Callable[[CreateError], None]) -> None:
        def make() -> CreateError:
            try:
                create_topic(
                    self._log,
                    request.topic,
                    request.partitions,
                    request.config.decode(),
                    now_seconds=self._log.now(),
                )
            except RequestError as error:
                _log.warning("topic.not_created", topic=request.topic, error=str(error))
                return CreateError.EXISTS
            except LogweirError as error:
                _log.error("topic.not_created", topic=request.topic, error=str(error))
                return CreateError.FAILED
            return CreateError.CREATED

        async def work() -> None:
            outcome = await asyncio.to_thread(make)
            self._topics = topics_of(self._log)
            done(outcome)

        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- from the committing thread into the loop -------------------------------------------------

    def _on_commit(self, vclock: VClock) -> None:
        if not self._writing.committed(vclock):
            with self._guard:
                self._foreign = True
            self._call()
        elif self._views:
            self._call()

    def _arrive_failed(self, publishes: Sequence[Publication], error: BaseException) -> None:
        _log.error("publish.failed", publishes=len(publishes), error=str(error))
        self._arrive((each, [FAILED] * len(each.appends)) for each in publishes)

    def _arrive(self, found: Iterable[tuple[Publication, Sequence[Outcome]]]) -> None:
        with self._guard:
            self._arrived.extend(found)
        self._call()

    def _call(self) -> None:
        with self._guard:
            if self._called or self._closed:
                return
            self._called = True
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._take_arrived)
        elif self._in_turn:
            self._arrived_here = True
        else:
            self._loop.call_soon(self._take_arrived)

    def _take_arrived(self) -> None:
        with self._guard:
            self._called = False
            foreign, self._foreign = self._foreign, False
            arrived, self._arrived = self._arrived, deque()
        grown: set[PartitionKey] = set()
        for publish, outcomes in arrived:
            start = 0
            for end, _ in publish.spans:
                append = publish.appends[start]
                key = append.topic, append.partition
                if self._grow(key, outcomes[start:end]):
                    grown.add(key)
                start = end
            publish.done(list(map(_RESULT, outcomes)))
        if foreign:
            wait_seconds = self._looked + LOOK_SECONDS - self._loop.time()
            if wait_seconds <= 0:
                self._news.clear()
                grown |= self._look_around()
            elif self._look_timer is None:
                self._look_timer = self._loop.call_later(wait_seconds, self._look_later)
        for name, view in self._views.items():
            if view.is_ready and view.grow():
                grown.add((name, 0))
        try:
            if grown:
                for listener in self._listeners:
                    listener(grown)
        finally:
            self._news.clear()

    def _grow(self, key: PartitionKey, outcomes: Sequence[Outcome]) -> bool:
        """Whether any of these bundles are new ones of a topic."""
        stored = [each for each in outcomes if each.size_bytes]
        tail = self._tails.get(key)
        if tail is not None:
            news = [each for each in stored if each.first > tail.last]
            if news:
                self._news.setdefault(key, News(tail.last, [])).bundles.extend(news)
                tail.first = tail.first or news[0].first
                tail.last = news[-1].last
                tail.written_bytes += sum([each.size_bytes for each in news])
        return bool(stored)

    def _look_later(self) -> None:
        self._look_timer = None
        with self._guard:
            self._foreign = True
        self._take_arrived()

    def _look_around(self) -> set[PartitionKey]:
        """Somebody else wrote: which partitions in use may have changed."""
        self._looked = self._loop.time()
        before = self._topics
        self._topics = topics_of(self._log)
        changed = {name for name, topic in before.items() if self._topics.get(name) != topic}
        with self._log.read_view() as view:
            for name, topic in self._topics.items():
                if self._entries.get(topic.space_id) not in (None, view.count(topic.space_id)):
                    changed.add(name)
        keys = {key for key in self._tails if key[0] in changed}
        if keys:
            self._generation += 1
            self._forget_read()
            for key in keys:
                if key[0] not in self._topics:
                    del self._tails[key]
        return keys


def _topic_of(name: str) -> str:
    """The topic that a name is about: itself, or that of a group's places."""
    if name.startswith(CONSUMER_PREFIX):
        return name.removeprefix(CONSUMER_PREFIX).partition("/")[2]
    return name


def _is_group(name: str) -> bool:
    """Whether a name of a group's places has a group, in text that can be stored."""
    group, slash, _ = name.removeprefix(CONSUMER_PREFIX).partition("/")
    return bool(group and slash) and name.isprintable()
