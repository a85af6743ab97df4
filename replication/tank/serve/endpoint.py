"""Serving Tank clients: sessions, connections and topics brought together.

`TankService` is given to `logweir.replication.listener`. Requests of one connection are taken in
order; what is published goes to the topics at once, and its answer out when it is stored; other
answers are made while the client takes them, so that a client that asks for much and reads little
costs the memory of one answer. A publish wakes those that wait for its partition; nobody polls.

Connections that never sent a byte: above `limits.TANK_SILENT_CONNECTIONS` the oldest is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from logweir.limits import TANK_SILENT_CONNECTIONS
from logweir.replication.budget import Unanswered
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.metrics import Metrics
from logweir.replication.service.protocol import Reading
from logweir.replication.tank.push import WaitIndex
from logweir.replication.tank.serve.sending import Sending
from logweir.replication.tank.server_session import ServerSession, Waiting
from logweir.replication.tank.wire.messages import (
    Create,
    Publish,
    PublishResult,
    Request,
)
from logweir.replication.topic import kernel
from logweir.replication.topic.partition import Append, ClientTopics

PartitionKey = tuple[str, int]

_SHOWN_PLACES: Final = 4
_STORED: Final = PublishResult.STORED  # to look up members of an enumeration takes time


class TopicStore(ClientTopics, Protocol):
    """Topics that can be changed. Everything is called, and calls back, in the event loop."""

    @property
    def unstored_bytes(self) -> int:
        """With more bytes of bundles that are not stored yet no more is read of a connection."""
        ...

    def append(self, appends: list[Append], done: Callable[[list[PublishResult]], None]) -> None:
        """Store bundles that came together, in order; `done` gets their outcomes once durable."""
        ...

    def on_published(self, callback: Callable[[Iterable[PartitionKey]], None]) -> None:
        """Call `callback` with the partitions that have grown, or went away, whenever some did, and
        behind the outcomes of each `append`."""
        ...


class TankService(Service):
    """The topics of one store, served. `waiters`: who waits for what; `shown`: what of the topics
    a client may see, everything unless given."""

    def __init__(
        self,
        topics: TopicStore,
        *,
        metrics: Metrics,
        shown: Callable[[Link], ClientTopics] | None = None,
    ) -> None:
        self.topics = topics
        self.shown: Callable[[Link], ClientTopics] = shown or (lambda link: topics)
        self.metrics = metrics
        self.waiters: WaitIndex[Waiting] = WaitIndex()
        self._conversations: dict[ServerSession, _Conversation] = {}
        self._silent: dict[ServerSession, Link] = {}
        self._unflushed: dict[Link, None] = {}
        self._stored = self._refused = 0  # bundles that are to be counted
        topics.on_published(self._published)

    def begin(self, link: Link) -> _Conversation:
        conversation = _Conversation(self, link)
        self._conversations[conversation.session] = conversation
        self._silent[conversation.session] = link
        if len(self._silent) > TANK_SILENT_CONNECTIONS:
            self._close_silent()
        return conversation

    def forget(self, session: ServerSession) -> None:
        """A connection is gone."""
        self._conversations.pop(session, None)
        self._silent.pop(session, None)

    def readings(self) -> list[Reading]:
        """How far each consumer asked."""
        found = []
        for session, conversation in tuple(self._conversations.items()):
            places = sorted(session.places.items())
            lag = 0
            for (topic, partition), number in places:
                extent = self.topics.extent(topic, partition)
                lag += max(extent.last + 1 - number, 0) if extent is not None else 0
            shown = [f"{topic}/{part}: {number - 1}" for (topic, part), number in places]
            text = ", ".join((*shown[:_SHOWN_PLACES], "…")[: len(shown)])
            if places:
                peer = conversation.link.peer
                found.append(Reading("tank", peer, peer, text, lag, "messages"))
        return found

    def published(self, link: Link, results: Sequence[PublishResult]) -> None:
        """Bundles are stored, or not: tell so, when the topics have told all of them."""
        self._unflushed[link] = None
        stored = results.count(_STORED)
        self._stored += stored
        self._refused += len(results) - stored

    def _flush(self) -> None:
        links, self._unflushed = self._unflushed, {}
        self.metrics.answered("tank", self._stored, self._refused)
        self._stored = self._refused = 0
        for link in links:
            with link.guarded():
                link.flush()

    def _close_silent(self) -> None:
        self._silent = {
            session: link for session, link in self._silent.items() if not session.spoke
        }
        while len(self._silent) > TANK_SILENT_CONNECTIONS:
            oldest = next(iter(self._silent))
            self._silent.pop(oldest).close("too many connections that never sent a byte")

    def _published(self, keys: Iterable[PartitionKey]) -> None:
        if self._unflushed:
            self._flush()
        for key in keys:
            for waiting in self.waiters.waiters(key):
                conversation = self._conversations.get(waiting.session)
                if conversation is not None:
                    conversation.news(waiting)


class _Conversation:
    """One connection of a client."""

    def __init__(self, service: TankService, link: Link) -> None:
        self._service = service
        self.link = link
        self._topics = service.shown(link)
        self.session = ServerSession(self._topics, service.waiters, link.time())
        self._sending = Sending(link, service.metrics.latencies)
        self._line: deque[Request | Waiting] = deque()
        self._noted: set[Waiting] = set()
        self._prepared: Request | None = None  # for which its topics were made ready
        self._pumping = False
        self._unanswered = Unanswered(link, service.topics.unstored_bytes)

    def handle(self, events: Sequence[Request]) -> None:
        self._line.extend(events)
        if not self._pumping:
            self._serve()

    def news(self, waiting: Waiting) -> None:
        """A partition that `waiting` awaits has grown."""
        if waiting not in self._noted:
            self._noted.add(waiting)
            self._line.append(waiting)
        if not self._pumping:
            with self.link.guarded():  # else those who wait beside it would not be told
                self._serve()
                self.link.flush()

    def closed(self, reason: str) -> None:
        self._line.clear()
        self._sending.end()
        self.session.end(reason)
        self._service.forget(self.session)

    def _serve(self) -> None:
        """Take what is in line while the client takes its answers; else go on when it does."""
        line = self._line
        while line:
            item = line[0]
            if isinstance(item, Publish):
                self._publish()
                continue
            if not self.link.writable:
                if self.link.is_open:
                    self._later(self.link.drained())
                return
            if self._prepare(item):
                return
            line.popleft()
            self._take(item)
            self._prepared = None
            if self._pumping:
                return
            if line:
                self.link.flush()

    def _prepare(self, item: Request | Waiting) -> bool:
        """Whether `item` has to wait for its topics; asked once for each."""
        if item is self._prepared or isinstance(item, Waiting):
            return False
        preparing = self._topics.prepare(item)
        if preparing is None:
            return False
        self._prepared = item
        self._later(preparing)
        return True

    def _later(self, awaited: Awaitable[object]) -> None:
        self._pumping = True
        self.link.spawn(self._serve_later(awaited))

    async def _serve_later(self, awaited: Awaitable[object]) -> None:
        try:
            await awaited
        finally:
            self._pumping = False
        self._serve()
        self.link.flush()

    def _take(self, item: Request | Waiting) -> None:
        session = self.session
        began = self.link.time()
        match item:
            case Waiting():
                self._noted.discard(item)
                session.published(item)
            case Create():
                if session.creation(item) is not None:
                    self._later(self._create(item))
            case _:
                session.answer(item, began)
        if session.given:
            topics = [one for one in session.given if self._topics.is_topic(one)]
            session.given = ()
            self._sending.send(topics, began)

    def _publish(self) -> None:
        """Store what the publishes bring that are first in line."""
        line = self._line
        requests: list[Publish] = []
        while line and isinstance(first := line[0], Publish):
            requests.append(first)
            line.popleft()
        session = self.session
        appends = session.publish(requests)
        if not appends:
            return
        size = kernel.size_of(appends)
        self._unanswered.add(size)

        def done(results: list[PublishResult]) -> None:
            session.stored(appends, results)
            self._unanswered.add(-size)
            self._service.published(self.link, results)

        self._service.topics.append(appends, done)

    async def _create(self, request: Create) -> None:
        """Make a topic; what its client asks for next waits for it."""
        self.session.created(request, await self._topics.create_from(request))
