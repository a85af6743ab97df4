"""Every recording of real Tank clients replayed against our session, answers compared by meaning.

The topics begin as they were when the recording was made, told by what its answers say. Where the
recorded broker waited for somebody else's publish, that publish is made here through a second
connection; where its wait ended, our clock is set forward.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.tankserving import decode_chunk

from interop.tankmodel import DATA, Broker, MemoryTopics, captures, frames
from logweir.replication.tank.follow.folder import read_folder
from logweir.replication.tank.wire.codec import (
    decode_answer,
    decode_request,
    encode_request,
    publish_results,
)
from logweir.replication.tank.wire.messages import (
    FROM_END,
    Create,
    CreateAnswer,
    CreateError,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Partitions,
    PartitionsAnswer,
    Ping,
    Publish,
    PublishAnswer,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    ReloadError,
    Request,
    StatusAnswer,
    TopicsAnswer,
)
from logweir.replication.topic.bundle import read_head, split_chunk

CAPTURES = captures()
CLOSES = sorted(name for name in CAPTURES if name.endswith("-closes"))
DIFFERENT = {
    "mirror-source": "the recorded broker lost the numbers of a bundle that jumps ahead",
    "raw-discover-selected-partition": "the recorded broker never describes a chosen partition",
}
OVERTAKEN = ("benchmark-p2c", "raw-fetch-pipelined-out-of-order")
SAME = sorted(set(CAPTURES) - set(CLOSES) - set(DIFFERENT))


def recorded(name: str) -> tuple[list[Request], list[Any]]:
    """Requests and answers of one recording."""
    item = CAPTURES[name]
    requests = [decode_request(*frame) for frame in frames(item["c2s"])]
    answers = [decode_answer(*frame) for frame in frames(item["s2c"])]
    return requests, [answer for answer in answers if not isinstance(answer, Ping)]


def pairs(name: str) -> list[tuple[Request, Any]]:
    """Each request that was answered before the recording ended, with its answer."""
    requests, answers = recorded(name)
    by_id = {answer.request_id: answer for answer in answers}
    return [
        (request, by_id[request.request_id])
        for request in requests
        if not isinstance(request, Ping) and request.request_id in by_id
    ]


def fetched(request: Fetch, answer: FetchAnswer) -> list[tuple[FetchPart, FetchedPart]]:
    """Each partition asked with what came for it, those of unknown topics left out."""
    asked = {(part.topic, part.partition): part for _, parts in request.topics for part in parts}
    order = [part for _, parts in request.topics for part in parts]
    known = [part for part in answer.parts if part.status is not None]
    unknown = {part.topic for part in answer.parts if part.status is None}
    order = [part for part in order if part.topic not in unknown]
    assert len(order) == len(known)
    assert asked
    return list(zip(order, known, strict=True))


def limits_of(name: str) -> dict[tuple[str, int], int]:
    """The highest first number of a bundle that was there when the recording began."""
    found: dict[tuple[str, int], int] = {}
    for request, answer in pairs(name):
        if isinstance(request, Fetch):
            for asked, got in fetched(request, answer):
                limit = got.high_water_mark
                if got.chunk and (asked.start == FROM_END or name.startswith("tail")):
                    limit = got.base - 1
                found.setdefault((asked.topic, asked.partition), limit)
        elif isinstance(request, Publish):
            results = publish_results(answer, [len(parts) for _, parts in request.topics])
            for (_, parts), outcomes in zip(request.topics, results, strict=True):
                for part, outcome in zip(parts, outcomes, strict=True):
                    head = read_head(part.bundle)
                    first = part.first or head.first
                    if first and outcome is PublishResult.STORED:
                        found.setdefault((part.topic, part.partition), first - 1)
        elif isinstance(request, Partitions):
            for partition, state in enumerate(answer.partitions):
                found.setdefault((request.topic, partition), state.last)
    return found


def prepared(name: str) -> Broker:
    """A broker that stands as the recorded one did."""
    topics = MemoryTopics()
    limits = limits_of(name)
    for folder in read_folder(DATA / "data"):
        topics.create(folder.name, len(folder.partitions))
        for part in folder.partitions:
            for bundle in part.bundles(pytest.fail):
                if bundle.first <= limits.get((folder.name, part.partition), bundle.first):
                    partition = topics.content[folder.name][part.partition]
                    partition.add(bundle.first, bundle.last, bundle.data)
    topics.read_only = name.startswith("readonly")
    for request, answer in pairs(name):
        if isinstance(request, Create) and answer.error is CreateError.CREATED:
            del topics.content[request.topic]
        if isinstance(request, Reload) and answer.error is ReloadError.DONE:
            topics.configs[request.topic] = b"log.segment.bytes=600\n"
        if isinstance(answer, TopicsAnswer):
            topics.content = {topic: topics.content[topic] for topic, _, _ in answer.topics}
    return Broker(topics)


def provoke(broker: Broker, request: Fetch, answer: FetchAnswer) -> float:
    """Let happen what ended the recorded wait; returns how long to wait then, in seconds."""
    other = broker.connect()
    seconds = request.max_wait_ms / 1000
    for part in answer.parts:
        assert part.partition is not None
        for bundle in split_chunk(part.chunk)[0]:
            sent = PublishPart(part.topic, part.partition, bundle)
            publish = Publish(1, ((part.topic, (sent,)),))
            reply = broker.feed(other, encode_request(publish))
            assert reply.endswith(b"\x01\0\0\0\0")
            seconds = 0.0
    return seconds


def replay(name: str) -> list[tuple[Request, Any, Any]]:
    """(request, recorded answer, our answer) for each request that is answered."""
    broker = prepared(name)
    session = broker.connect()
    _, expected = recorded(name)
    by_id = {answer.request_id: answer for answer in expected}
    ours: dict[int, Any] = {}

    def take(data: bytes) -> None:
        for frame in frames(data):
            answer = decode_answer(*frame)
            if not isinstance(answer, Ping):
                ours[answer.request_id] = answer

    requests = [request for request, _ in pairs(name)]
    for request in requests:
        take(broker.feed(session, encode_request(request)))
        waits = isinstance(request, Fetch) and request.request_id not in ours
        if isinstance(request, Fetch) and waits and name not in OVERTAKEN:
            seconds = provoke(broker, request, by_id[request.request_id])
            take(broker.advance(session, seconds))
    if len(ours) < len(requests):
        take(broker.advance(session, 3600))
    assert not session.close_reason
    return [(request, by_id[request.request_id], ours[request.request_id]) for request in requests]


def check_part(name: str, asked: FetchPart, theirs: FetchedPart, mine: FetchedPart) -> None:
    """One partition of an answer means the same."""
    same_status = {theirs.status, mine.status} <= {FetchStatus.FINE, FetchStatus.SPARSE}
    assert same_status or theirs.status is mine.status
    assert (mine.topic, mine.partition) == (theirs.topic, theirs.partition)
    assert mine.first_available == theirs.first_available
    assert mine.high_water_mark >= theirs.high_water_mark
    assert bool(mine.chunk) == bool(theirs.chunk)
    if not mine.chunk:
        assert mine.base == theirs.base
        return
    if FetchStatus.SPARSE not in (mine.status, theirs.status):
        assert mine.base == theirs.base
    # The recorded broker cuts at its segments and its index, we at whole bundles of the fetch size.
    size = min(len(mine.chunk), len(theirs.chunk))
    assert mine.chunk[:size] == theirs.chunk[:size]
    bundles, end = split_chunk(mine.chunk)
    assert end == len(mine.chunk)
    assert len(bundles) == 1 or len(mine.chunk) <= asked.size_bytes
    messages = decode_chunk(mine.chunk, mine.base)
    assert messages[-1].number <= mine.high_water_mark
    if asked.start != FROM_END:
        assert messages[-1].number >= asked.start


@pytest.mark.parametrize("name", SAME)
def test_recording_is_answered_with_the_same_meaning(name: str) -> None:
    """What the real broker answered to a real client, our session answers too."""
    found = replay(name)
    assert found
    for request, theirs, mine in found:
        assert type(mine) is type(theirs)
        if isinstance(request, Fetch):
            assert isinstance(theirs, FetchAnswer)
            unknown = [part.topic for part in theirs.parts if part.status is None]
            assert [part.topic for part in mine.parts if part.status is None] == unknown
            both = zip(fetched(request, theirs), fetched(request, mine), strict=True)
            for (asked, their_part), (_, my_part) in both:
                check_part(name, asked, their_part, my_part)
        elif isinstance(theirs, StatusAnswer):
            assert mine.version == theirs.version
        elif isinstance(theirs, TopicsAnswer):
            assert sorted(mine.topics) == sorted(theirs.topics)
        else:
            kinds = PublishAnswer | PartitionsAnswer | CreateAnswer | ReloadAnswer
            assert isinstance(theirs, kinds) or mine == theirs
            assert mine == theirs


@pytest.mark.parametrize("name", CLOSES)
def test_malformed_recording_closes_without_an_answer(name: str) -> None:
    """The ping and nothing more goes out, and the connection is to be closed."""
    broker = Broker(MemoryTopics())
    session = broker.connect()
    assert broker.feed(session, CAPTURES[name]["c2s"]) == CAPTURES[name]["s2c"]
    assert session.close_reason
    assert session.receive_data(b"\x0a\x04\0\0\0\1\0\0\0", 1.0) == ()


def test_chosen_partition_is_described() -> None:
    """A discovery of a chosen partition tells its numbers, of an unknown one why it cannot."""
    broker = prepared("topology-standalone")
    session = broker.connect()
    data = broker.feed(session, encode_request(Partitions(7, "events", (1, 0, 9))))
    answer = decode_answer(*frames(data)[1])
    assert isinstance(answer, PartitionsAnswer)
    first, second, third = answer.partitions
    assert (first.first, first.last) == (1, 7)
    assert (second.first, second.last) == (1, 505)
    assert third.reason is FetchStatus.UNREADABLE


def test_mirror_of_a_topic_ends_where_the_recorded_one_looped() -> None:
    """The mirror tool's requests get every number once, and a wait at the end."""
    requests, answers = recorded("mirror-source")
    broker = prepared("mirror-source")
    session = broker.connect()
    broker.feed(session, encode_request(requests[0]))
    data = broker.feed(session, encode_request(requests[1]))
    mine = decode_answer(*frames(data)[0])
    assert isinstance(mine, FetchAnswer)
    assert isinstance(answers[1], FetchAnswer)
    assert mine.parts[1].chunk == answers[1].parts[1].chunk
    assert mine.parts[0].chunk[: len(answers[1].parts[0].chunk)] == answers[1].parts[0].chunk
