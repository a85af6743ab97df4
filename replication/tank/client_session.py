"""A client's side of one Tank connection. Keeps the contract of `logweir.replication.session`.

The client may write before the broker's ping comes. Requests carry ids, counted from 1; answers may
come in any order and are matched by them. Events are `Answered`: the request, the answer, and for a
publish its results per topic. An answer to a request that was not made, one of another kind or of
other partitions, or one that cannot be read closes the connection.

Source: Tank 4.0 with its clients, observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from logweir.errors import DecodeError
from logweir.replication.session import BaseSession
from logweir.replication.tank.wire.codec import decode_answer, encode_request, publish_results
from logweir.replication.tank.wire.framing import FrameBuffer
from logweir.replication.tank.wire.messages import (
    Answer,
    Create,
    CreateAnswer,
    Fetch,
    FetchAnswer,
    Partitions,
    PartitionsAnswer,
    Ping,
    Publish,
    PublishAnswer,
    PublishResult,
    Reload,
    ReloadAnswer,
    Status,
    StatusAnswer,
    Topics,
    TopicsAnswer,
    Topology,
    TopologyAnswer,
)

Question = Publish | Fetch | Partitions | Create | Reload | Status | Topics | Topology

_KINDS: Final[dict[type, type]] = {
    Publish: PublishAnswer,
    Fetch: FetchAnswer,
    Partitions: PartitionsAnswer,
    Create: CreateAnswer,
    Reload: ReloadAnswer,
    Status: StatusAnswer,
    Topics: TopicsAnswer,
    Topology: TopologyAnswer,
}
_Asked = TypeVar("_Asked", bound=Question)


@dataclass(frozen=True, slots=True)
class Answered:
    """One request with its answer. `results`: of a publish, per topic and partition."""

    request: Question
    answer: Answer
    results: tuple[tuple[PublishResult, ...], ...] = ()


class ClientSession(BaseSession[Answered]):
    """See the module's text."""

    peer = "the broker"

    def __init__(self) -> None:
        super().__init__()
        self._frames = FrameBuffer()
        self._asked: dict[int, Question] = {}
        self._last_id = 0

    @property
    def unanswered(self) -> int:
        """Requests that wait for their answer."""
        return len(self._asked)

    def send(self, request: _Asked) -> _Asked:
        """Send `request` under a new id; returns it with that id."""
        self._last_id = self._last_id % 0xFFFF_FFFF + 1
        request = replace(request, request_id=self._last_id)
        self._out.put(encode_request(request))
        self._asked[self._last_id] = request
        return request

    def receive_data(self, data: bytes, now: float) -> Sequence[Answered]:
        if self.close_reason:
            return ()
        frames, problem = self._frames.feed(data)
        return self._take_each(frames, problem, self._take)

    def _take(self, frame: tuple[int, memoryview], events: list[Answered]) -> None:
        answer = decode_answer(*frame)
        if not isinstance(answer, Ping):
            events.append(self._match(answer))

    def _match(self, answer: Answer) -> Answered:
        request = self._asked.get(answer.request_id)
        if request is None or not isinstance(answer, _KINDS[type(request)]):
            raise DecodeError(f"{type(answer).__name__} {answer.request_id} was not asked for")
        results: tuple[tuple[PublishResult, ...], ...] = ()
        if isinstance(request, Publish) and isinstance(answer, PublishAnswer):
            results = publish_results(answer, [len(parts) for _, parts in request.topics])
        elif isinstance(request, Fetch) and isinstance(answer, FetchAnswer):
            _check_fetched(request, answer)
        del self._asked[answer.request_id]
        return Answered(request, answer, results)


def _check_fetched(request: Fetch, answer: FetchAnswer) -> None:
    """Each partition is told of as often as it was asked for at most. Raises `DecodeError`."""
    asked = Counter((name, part.partition) for name, parts in request.topics for part in parts)
    for part in answer.parts:
        if part.partition is None:  # all of the topic
            continue
        key = (part.topic, part.partition)
        asked[key] -= 1
        if asked[key] < 0:
            raise DecodeError(f"{part.topic}/{part.partition} was not asked for, or comes twice")
