"""One connection to a Tank broker: requests out, answers awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from logweir.errors import LogweirError, PeerRefused
from logweir.limits import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, CONNECT_SECONDS
from logweir.replication.dialer import Asking
from logweir.replication.tank.client_session import Answered, ClientSession, Question
from logweir.replication.tank.follow.cursor import Cursor
from logweir.replication.tank.wire.messages import (
    CreateError,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Partitions,
    PartitionsAnswer,
    PartitionState,
    PublishResult,
    ReloadError,
    Topics,
    TopicsAnswer,
)
from logweir.replication.topic.bundle import Message
from logweir.replication.urls import Url

A = TypeVar("A")
DISCOVER_SECONDS = 30.0
"""How often who reads looks for topics and partitions that are new."""

ANSWER_SECONDS = 32.0
"""How long an answer may take that waits for nothing. Source: Tank's own client, publish."""

_NOTHING = (FetchStatus.FINE, FetchStatus.SPARSE)
_MOST = 0xFF  # topics of a fetch, partitions of a topic in it
_NAMES = 5  # that a hint has


def fetches_of(parts: Sequence[FetchPart], *, min_bytes: int = 0) -> list[Fetch]:
    """The fetches that ask for all `parts`, none of which names a topic twice: a broker's deferred
    answer would put both together and count their partitions in one byte. Source: Tank 4.0,
    observed."""
    topics: dict[str, list[FetchPart]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part)
    rounds: dict[int, list[tuple[str, tuple[FetchPart, ...]]]] = {}
    for topic, wanted in topics.items():
        for start in range(0, len(wanted), _MOST):
            rounds.setdefault(start, []).append((topic, tuple(wanted[start : start + _MOST])))
    return [
        Fetch(0, tuple(groups[start : start + _MOST]), min_bytes=min_bytes, client="logweir")
        for groups in rounds.values()
        for start in range(0, len(groups), _MOST)
    ]


class Connection(Asking[ClientSession, Answered]):
    """See the module's text. Made by `Connection.open`."""

    server = "Tank broker"

    @classmethod
    async def open(cls, url: Url, *, timeout_seconds: float = CONNECT_SECONDS) -> Connection:
        """Connect to the broker at `url`. Raises `Unreachable`."""
        connection = cls(url, ClientSession())
        await connection._dial(timeout_seconds)
        return connection

    def handle(self, events: Sequence[Answered]) -> None:
        """Give each answer to who waits for it."""
        for event in events:
            self._answered(event.request.request_id, event)

    async def ask(self, request: Question, *, timeout_seconds: float = ANSWER_SECONDS) -> Answered:
        """Send a request and wait for its answer.

        Raises `Unreachable` if the connection breaks or no answer comes in time (whether the
        request was carried out is then not known), `RemoteProtocolError` for a malformed answer.
        """
        link = await self._ready_link()
        waiting = self._awaited(self.session.send(request).request_id)
        link.flush()
        return await self._in_time(waiting, timeout_seconds)

    async def answer(
        self, request: Question, kind: type[A], *, timeout_seconds: float = ANSWER_SECONDS
    ) -> A:
        """The same without its request. `kind`: of the answer."""
        answer = (await self.ask(request, timeout_seconds=timeout_seconds)).answer
        assert isinstance(answer, kind)
        return answer

    async def fetch(self, request: Fetch) -> FetchAnswer:
        """A fetch, waiting as long as it asks for and a while longer."""
        wait_seconds = request.max_wait_ms / 1000 + ANSWER_SECONDS
        return await self.answer(request, FetchAnswer, timeout_seconds=wait_seconds)

    async def fetch_first(self, fetches: Sequence[Fetch], wait_ms: int) -> list[FetchedPart]:
        """What comes for any of `fetches`, waited for together, `wait_ms` at most."""
        if len(fetches) == 1:
            return list((await self.fetch(replace(fetches[0], max_wait_ms=wait_ms))).parts)
        answers = await asyncio.gather(*(self.fetch(each) for each in fetches))
        parts = [part for each in answers for part in each.parts]
        if not wait_ms or any(part.status not in _NOTHING or part.chunk for part in parts):
            return parts
        waiting = [
            asyncio.ensure_future(self.fetch(replace(each, max_wait_ms=wait_ms)))
            for each in fetches
        ]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()  # an answer that comes later is passed over
            await asyncio.gather(*waiting, return_exceptions=True)
        return [part for task in done for part in task.result().parts]

    async def bundle_at(self, topic: str, partition: int, number: int) -> Sequence[Message]:
        """The messages of the bundle that holds a number, or of the next one; none where the broker
        has neither. Raises `DecodeError`."""
        part = FetchPart(topic, partition, number, 0)
        answer = await self.fetch(Fetch(0, ((topic, (part,)),), client="logweir"))
        return Cursor(topic, partition, 1, 0).bundle(answer.parts[0])

    async def number_at(
        self, topic: str, partition: int, state: PartitionState, time_ms: int
    ) -> int:
        """Number of the first message with that time or a later one; behind the last one where
        there is none. The times have to rise. By halving: each step fetches one bundle."""
        low, high = max(1, state.first), state.last + 1
        while low < high:
            middle = (low + high) // 2
            messages = await self.bundle_at(topic, partition, middle)
            later = [each.number for each in messages if each.time_ms >= time_ms]
            if not messages:
                high = middle
            elif not later:
                low = messages[-1].number + 1
            elif later[0] != messages[0].number or messages[0].number <= low:
                low = high = max(low, later[0])
            else:
                high = min(middle, messages[0].number)
        return low

    async def partitions(self, topic: str) -> PartitionsAnswer:
        """What the partitions of a topic hold; none: the topic is unknown."""
        return await self.answer(Partitions(0, topic), PartitionsAnswer)

    async def states(self, topic: str) -> Sequence[PartitionState]:
        """What the partitions of a topic hold. Raises `PeerRefused` for an unknown topic."""
        found = (await self.partitions(topic)).partitions
        if not found:
            raise await self.unknown(topic, PublishResult.UNKNOWN_TOPIC)
        return found

    async def unknown(self, topic: str, result: PublishResult | ReloadError) -> PeerRefused:
        """The error for a topic that is not there, which `result` says, with the names that are
        nearest."""
        from difflib import get_close_matches  # mostly not asked for

        hint = "create it there, or correct the name"
        with suppress(LogweirError):  # brokers of before October 2021 do not tell
            names = [name for name, _, _ in (await self.answer(Topics(0), TopicsAnswer)).topics]
            near = ", ".join(get_close_matches(topic, names, _NAMES, cutoff=0)) or "none"
            hint += f"; topics there, the nearest first: {near}"
        return PeerRefused(f"{self.url}: there is no topic {topic!r}", result=result, hint=hint)


def now_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


def pause_seconds(failures: int) -> float:
    """How long to wait behind so many failures, before the next attempt to connect."""
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(failures, 10)) / 2


def refused(what: str, result: PublishResult | CreateError | ReloadError) -> PeerRefused:
    """The error for a broker's refusal of `what`."""
    name = result.name.lower().replace("_", " ")
    return PeerRefused(f"{what}: the broker says {name} ({result:#04x}).", result=result)
