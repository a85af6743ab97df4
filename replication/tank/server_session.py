"""A broker's side of one Tank connection. Keeps the contract of `logweir.replication.session`.

The broker sends one ping when the connection begins and never another. Events are the requests of
`logweir.replication.tank.wire.messages`, in the order in which they came. The owner gives each back
when there is room for its answer: `Publish`es that follow one another to `publish`, whose `Append`s
it has stored and then tells with `stored`; a `Create` to `creation`, then `created`; everything
else to `answer`.

What a fetch gets for one partition that holds `first` … `last`:

=======================  ==========================================================================
asked from               gets
=======================  ==========================================================================
0                        the oldest there is; waits if nothing was ever written
2^64-1, last + 1         waits
above last + 1           boundary failure
1 … first - 1            boundary failure
a number that is there   from the bundle that holds it, whole
a number in a gap        from the next bundle
=======================  ==========================================================================

The answer goes out at once if anything but waiting came out for any partition, or if max wait is 0.
Else it goes out when what was published since reaches min bytes (any publish if that is 0), or when
max wait has passed, with what is there by then. A deferred answer names the first number published
since as base and knows no fetch size.

Whole bundles only, at least one; the header in one piece with what follows; the high water mark is
the last number assigned. Answers may overtake each other. Malformed input closes the connection
without an answer; so does a first byte that does not come within `limits.TANK_SILENT_SECONDS`, and
a frame that began and does not go on for `limits.FRAME_SECONDS`.

Source: Tank 4.0 with its clients, observed. Not as there: what arrived below min bytes is sent when
the wait ends (there it is hidden, and a client that follows the end skips it), bundles are checked
before they are stored, the high water mark is right after sparse bundles, and a chosen partition is
described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import ConfigError, DecodeError, LimitExceeded
from logweir.limits import (
    FRAME_SECONDS,
    TANK_ANSWER_BYTES,
    TANK_FETCH_BYTES,
    TANK_FRAME_BYTES,
    TANK_SILENT_SECONDS,
    TANK_WAIT_MS,
    TANK_WAITING_FETCHES,
)
from logweir.replication.session import BaseSession
from logweir.replication.tank.push import WaitIndex
from logweir.replication.tank.wire.codec import (
    PING,
    decode_request,
    encode_answer,
    encode_fetch_header,
    encode_published,
)
from logweir.replication.tank.wire.framing import FrameBuffer
from logweir.replication.tank.wire.messages import (
    FROM_END,
    Answer,
    Create,
    CreateAnswer,
    CreateError,
    Fetch,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Partitions,
    PartitionsAnswer,
    PartitionState,
    Ping,
    Publish,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    ReloadError,
    Request,
    Status,
    StatusAnswer,
    Topics,
    TopicsAnswer,
    Topology,
    TopologyAnswer,
)
from logweir.replication.topic.bundle import NUMBER_MAX, check_bundle
from logweir.replication.topic.config import check_topic, parse_config
from logweir.replication.topic.partition import Append, Chunk, Extent, TopicReader

_NOTHING: Final = Chunk(0, False)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """One partition of an answer, its chunk apart."""

    part: FetchedPart
    chunk: Chunk = _NOTHING


@dataclass(slots=True)
class _Publishing:
    """A publish whose bundles are being stored. `results`: any number if it is not known yet;
    `missing`: how many are not."""

    request_id: int
    results: list[int]
    missing: int


@dataclass(eq=False, slots=True)
class Waiting:
    """A fetch that waits. `since`: (part, last number, written bytes) when it began."""

    session: ServerSession
    request: Fetch
    since: tuple[tuple[FetchPart, int, int], ...]
    deadline: float

    def keys(self) -> list[tuple[str, int]]:
        """The partitions awaited."""
        return [(part.topic, part.partition) for part, _, _ in self.since]


class ServerSession(BaseSession[Request]):
    """See the module's text. `now`: the clock when the connection began, in seconds."""

    def __init__(
        self,
        topics: TopicReader,
        waiters: WaitIndex[Waiting],
        now: float,
        *,
        frame_limit_bytes: int = TANK_FRAME_BYTES,
    ) -> None:
        super().__init__()
        self._topics = topics
        self._waiters = waiters
        self._frames = FrameBuffer(frame_limit_bytes)
        self._out.put(PING)
        self._unit_deadline = now + TANK_SILENT_SECONDS
        self._waiting: dict[Waiting, None] = {}
        self._publishing: dict[int, _Publishing] = {}
        self._tickets = 0
        self._turn = 0
        self.places: dict[tuple[str, int], int] = {}
        """The number that was asked for last, of each partition that was fetched from."""
        self.given: Sequence[str] = ()  # topics of bundles in the last answer that was asked for
        self.spoke = False

    # --- the contract of sessions -----------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Request]:
        return () if self.close_reason else self._received(*self._frames.feed(data), now)

    def room(self) -> memoryview:
        """See `logweir.replication.session.ReceivesInto`."""
        return self._frames.room()

    def received(self, count: int, now: float) -> Sequence[Request]:
        """See `logweir.replication.session.ReceivesInto`."""
        return () if self.close_reason else self._received(*self._frames.received(count), now)

    def _received(
        self,
        frames: list[tuple[int, memoryview]],
        problem: LimitExceeded | None,
        now: float,
    ) -> Sequence[Request]:
        self.spoke = True
        self._unit_deadline = now + FRAME_SECONDS if len(self._frames) else None
        events: list[Request] = []
        try:
            for kind, payload in frames:
                events.append(decode_request(kind, payload))
        except DecodeError as error:
            self.end(f"malformed request: {error}")
        else:
            if problem is not None:
                self.end(str(problem))
        return events

    def parts_to_send(self) -> list[bytes | memoryview]:
        return self._out.take_parts()

    def next_deadline(self) -> float | None:
        if not self._waiting:
            return self._unit_deadline
        deadlines = [waiting.deadline for waiting in self._waiting]
        if self._unit_deadline is not None:
            deadlines.append(self._unit_deadline)
        return min(deadlines, default=None)

    def deadline_passed(self, now: float) -> Sequence[Request]:
        if self._unit_deadline is not None and now >= self._unit_deadline:
            silent = "it sent nothing" if not self.spoke else "its frame does not go on"
            self.end(f"the client is silent: {silent}")
        for waiting in [each for each in self._waiting if now >= each.deadline]:
            self._finish(waiting)
        self.given = ()
        return ()

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`: memory for the frame under way."""
        return self._frames.held_bytes

    def end(self, reason: str) -> None:
        """Wait for nothing more; the connection is to be closed."""
        super().end(reason)
        self._unit_deadline = None
        for waiting in self._waiting:
            self._waiters.discard(waiting.keys(), waiting)
        self._waiting.clear()

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, requests: Iterable[Publish]) -> list[Append]:
        """The bundles of these that are sound and have a place; what is not is decided here.

        One of which none is left to be stored is answered at once.
        """
        taking: dict[str, tuple[PublishResult | None, int]] = {}
        appends: list[Append] = []
        for request in requests:
            self._tickets += 1
            results: list[int] = []
            before = len(appends)
            for topic, parts in request.topics:
                if topic not in taking:
                    taking[topic] = self._taking(topic)
                refusal, partitions = taking[topic]
                if refusal is not None:
                    results.append(refusal)
                    continue
                for part in parts:
                    if part.partition >= partitions:
                        results.append(PublishResult.UNKNOWN_PARTITION)
                    elif (append := self._append(part, len(results))) is None:
                        results.append(PublishResult.BAD_NUMBERS)
                    else:
                        results.append(0)
                        appends.append(append)
            if missing := len(appends) - before:
                pending = _Publishing(request.request_id, results, missing)
                self._publishing[self._tickets] = pending
            else:
                self._answer_publish(request.request_id, results)
        return appends

    def _taking(self, topic: str) -> tuple[PublishResult | None, int]:
        """Why a topic takes no bundles, or None and how many partitions it has."""
        partitions = self._topics.partitions(topic)
        if partitions is None:
            return PublishResult.UNKNOWN_TOPIC, 0
        if self._topics.read_only or not self._topics.writable(topic):
            return PublishResult.READ_ONLY, 0
        return None, partitions

    def _append(self, part: PublishPart, slot: int) -> Append | None:
        topic, partition, bundle, first = part
        try:
            head, time_ms = check_bundle(bundle)
        except (DecodeError, LimitExceeded):
            return None
        if first is not None:
            if head.sparse and first != head.first:
                return None
            if first < 1 or first > NUMBER_MAX - head.count + 1:
                return None
        return Append(self._tickets, slot, topic, partition, bundle, head, time_ms, first)

    def stored(self, appends: Sequence[Append], results: Sequence[PublishResult]) -> None:
        """The outcomes of appends; with the last one of a publish its answer is made."""
        for append, result in zip(appends, results, strict=True):
            pending = self._publishing[append.ticket]
            pending.results[append.slot] = result
            pending.missing -= 1
            if not pending.missing:
                del self._publishing[append.ticket]
                self._answer_publish(pending.request_id, pending.results)

    def _answer_publish(self, request_id: int, results: list[int]) -> None:
        self._out.put(encode_published(request_id, bytes(results)))

    # --- everything else --------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> None:
        """Answer what needs nothing stored; a fetch may begin to wait. `now`: seconds."""
        match request:
            case Fetch():
                self._fetch(request, now)
            case Partitions():
                states = tuple(self._states(request))
                self._put(PartitionsAnswer(request.request_id, request.topic, states))
            case Reload():
                self._put(self._reload(request))
            case Status():
                self._put(self._status(request))
            case Topics():
                self._put(TopicsAnswer(request.request_id, tuple(self._topics.topics())))
            case Topology():
                self._put(TopologyAnswer(request.request_id))
            case Ping():
                pass
            case _:
                raise TypeError(f"{type(request).__name__} is not answered without a store")

    def _put(self, answer: Answer) -> None:
        self._out.put(encode_answer(answer))

    def _states(self, request: Partitions) -> list[PartitionState]:
        count = self._topics.partitions(request.topic)
        if count is None:
            return []
        out = []
        for partition in request.chosen or range(count):
            extent = self._topics.extent(request.topic, partition) if partition < count else None
            if extent is None:
                out.append(PartitionState(0, 0, FetchStatus.UNREADABLE))
            else:
                out.append(PartitionState(extent.first, extent.last))
        return out

    def _reload(self, request: Reload) -> ReloadAnswer:
        count = self._topics.partitions(request.topic)
        if count is None:
            error = ReloadError.UNKNOWN_TOPIC
        elif request.partition >= count:
            error = ReloadError.UNKNOWN_PARTITION
        else:
            error = self._topics.reload(request.topic, request.partition)
        return ReloadAnswer(request.request_id, request.topic, request.partition, error)

    def _status(self, request: Status) -> StatusAnswer:
        topics = self._topics.topics()
        partitions = sum(count for _, _, count in topics)
        return StatusAnswer(request.request_id, len(topics), partitions, *self._topics.opening())

    def creation(self, request: Create) -> Create | None:
        """`request` if the topic may be made; else the answer is made here and None returned."""
        name = request.topic
        error = None
        if not self._topics.creatable(name):
            error = CreateError.READ_ONLY
        elif not _is_good(check_topic, name, request.partitions):
            error = CreateError.BAD_NAME
        elif self._topics.partitions(name) is not None:
            error = CreateError.EXISTS
        elif not _is_good(lambda: parse_config(request.config.decode())):
            error = CreateError.BAD_CONFIG
        if error is None:
            return request
        self.created(request, error)
        return None

    def created(self, request: Create, error: CreateError) -> None:
        """The outcome of a creation."""
        self._put(CreateAnswer(request.request_id, request.topic, error))

    # --- fetching ---------------------------------------------------------------------------------

    def _fetch(self, request: Fetch, now: float) -> None:
        self._turn += 1
        asked = [part for _, parts in request.topics for part in parts]
        found: dict[int, _Fetched] = {}
        since: list[tuple[FetchPart, int, int]] = []
        left_bytes = TANK_ANSWER_BYTES
        begin = self._turn % len(asked) if asked else 0
        for index in (*range(begin, len(asked)), *range(begin)):
            part = asked[index]
            outcome = self._fetch_part(part, left_bytes)
            if isinstance(outcome, Extent):
                since.append((part, outcome.last, outcome.written_bytes))
                found[index] = _nothing(part, outcome)
            else:
                left_bytes = max(0, left_bytes - outcome.chunk.size_bytes)
                found[index] = outcome
        wait_ms = min(request.max_wait_ms, TANK_WAIT_MS)
        if asked and len(since) == len(asked) and wait_ms:
            waiting = Waiting(self, request, tuple(since), now + wait_ms / 1000)
            if len(self._waiting) < TANK_WAITING_FETCHES and self._waiters.add(
                waiting.keys(), waiting
            ):
                self._waiting[waiting] = None
                return
        self._answer_fetch(request, [found[index] for index in range(len(asked))])

    def _fetch_part(self, part: FetchPart, left_bytes: int) -> _Fetched | Extent:
        """What one partition has; its extent if there is nothing to be had now."""
        topic, partition = part.topic, part.partition
        extent = self._extent(part)
        if extent is None:
            return self._lost(part)
        start = part.start or extent.first
        self.places[topic, partition] = min(start, extent.last + 1)
        if start in (0, FROM_END, extent.last + 1):
            return extent
        if start > extent.last or start < extent.first:
            failure = FetchStatus.BOUNDARY
            return _Fetched(FetchedPart(topic, partition, failure, 0, extent.last, extent.first))
        if not left_bytes:
            return _nothing(part, extent)
        limit_bytes = min(part.size_bytes, TANK_FETCH_BYTES, left_bytes)
        chunk = self._topics.read(topic, partition, start, limit_bytes)
        if chunk is None:
            return self._lost(part)
        status = FetchStatus.SPARSE if chunk.sparse else FetchStatus.FINE
        return _Fetched(FetchedPart(topic, partition, status, chunk.base, extent.last), chunk)

    def _answer_fetch(self, request: Fetch, found: Sequence[_Fetched]) -> None:
        """Write the answer. An unknown topic has one part for each of its partitions here."""
        merged = _one_per_unknown_topic(request, found)
        parts = [each.part for each in merged]
        sizes = [each.chunk.size_bytes for each in merged]
        self._out.put(encode_fetch_header(request, parts, sizes))
        self.given = [each.part.topic for each in merged if each.chunk.size_bytes]
        for each in merged:
            self._out.put_all(each.chunk.pieces, each.chunk.size_bytes)

    def published(self, waiting: Waiting) -> None:
        """Something was published to a partition that `waiting`, of this session, awaits."""
        if waiting not in self._waiting:
            return
        news = 0
        for part, before, before_bytes in waiting.since:
            extent = self._extent(part)
            if extent is None or extent.last < before:  # it is gone, or begins anew
                self._finish(waiting)
                return
            news += extent.written_bytes - before_bytes
        if news >= max(1, min(waiting.request.min_bytes, TANK_FETCH_BYTES)):
            self._finish(waiting)

    def _extent(self, part: FetchPart) -> Extent | None:
        count = self._topics.partitions(part.topic)
        if count is None or part.partition >= count:
            return None
        return self._topics.extent(part.topic, part.partition)

    def _finish(self, waiting: Waiting) -> None:
        """Answer a fetch that waited, with what came since it began."""
        del self._waiting[waiting]
        self._waiters.discard(waiting.keys(), waiting)
        found: dict[FetchPart, _Fetched] = {}
        left_bytes = TANK_ANSWER_BYTES
        for part, before, _ in waiting.since:
            extent = self._extent(part)
            topic, partition = part.topic, part.partition
            chunk: Chunk | None = _NOTHING
            if extent is not None and extent.last > before and left_bytes:
                chunk = self._topics.read(topic, partition, before + 1, left_bytes)
            if extent is None or chunk is None:
                found[part] = self._lost(part)
                continue
            left_bytes = max(0, left_bytes - chunk.size_bytes)
            fine = FetchedPart(topic, partition, FetchStatus.FINE, chunk.base, extent.last)
            found[part] = _Fetched(fine, chunk)
        asked = [part for _, group in waiting.request.topics for part in group]
        self._answer_fetch(waiting.request, [found[part] for part in asked])

    def _lost(self, part: FetchPart) -> _Fetched:
        """The outcome for a partition that is not there, or cannot be read."""
        count = self._topics.partitions(part.topic)
        if count is None:
            return _Fetched(FetchedPart(part.topic, None, None))
        is_known = part.partition < count
        why = FetchStatus.UNREADABLE if is_known else FetchStatus.UNKNOWN_PARTITION
        return _Fetched(FetchedPart(part.topic, part.partition, why))


def _nothing(part: FetchPart, extent: Extent) -> _Fetched:
    """A partition of which nothing is given now."""
    fine = FetchStatus.FINE
    return _Fetched(FetchedPart(part.topic, part.partition, fine, extent.first, extent.last))


def _one_per_unknown_topic(request: Fetch, parts: Sequence[_Fetched]) -> list[_Fetched]:
    """The parts with those of each unknown topic made one."""
    out: list[_Fetched] = []
    index = 0
    for _, group in request.topics:
        mine = parts[index : index + len(group)]
        index += len(group)
        out += mine[:1] if mine and mine[0].part.status is None else mine
    return out


def _is_good(check: Callable[..., object], *given: object) -> bool:
    try:
        check(*given)
    except (ConfigError, UnicodeDecodeError):
        return False
    return True
