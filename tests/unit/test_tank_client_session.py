"""A client's side of a Tank connection: the recorded brokers' bytes, and what they never send."""

from __future__ import annotations

import pytest
from support.tankserving import decode_chunk

from interop.tankmodel import captures, frames
from logweir.replication.tank.client_session import Answered, ClientSession
from logweir.replication.tank.wire.codec import (
    PING,
    decode_request,
    encode_fetch_header,
    encode_request,
)
from logweir.replication.tank.wire.messages import (
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Ping,
    Publish,
    PublishPart,
    PublishResult,
    Status,
)

CAPTURES = captures()
ANSWERED = sorted(name for name in CAPTURES if not name.endswith("-closes"))


def replayed(name: str, portion: int) -> tuple[list[Answered], ClientSession]:
    """The recorded requests sent, the recorded answers fed in portions with our ids."""
    session = ClientSession()
    ids: dict[int, int] = {}
    for kind, payload in frames(CAPTURES[name]["c2s"]):
        request = decode_request(kind, payload)
        if not isinstance(request, Ping):
            ids[request.request_id] = session.send(request).request_id
    data = PING
    for kind, payload in frames(CAPTURES[name]["s2c"])[1:]:
        at = 4 if kind == 2 else 0
        old = int.from_bytes(payload[at : at + 4], "little")
        payload = payload[:at] + ids[old].to_bytes(4, "little") + payload[at + 4 :]
        data += bytes((kind,)) + len(payload).to_bytes(4, "little") + payload
    events: list[Answered] = []
    for start in range(0, len(data), portion):
        events += session.receive_data(data[start : start + portion], 0.0)
    return events, session


@pytest.mark.parametrize("name", ANSWERED)
def test_recorded_answers_are_understood(name: str) -> None:
    """Matched with their requests, in any portions, with the messages the other decoder found."""
    events, session = replayed(name, 1 << 20)
    assert not session.close_reason
    assert events == replayed(name, 7)[0]
    expected = [item for item in CAPTURES[name]["answered"] if item["type"] != 3]
    assert len(events) == len(expected)
    for event, theirs in zip(events, expected, strict=True):
        if not isinstance(event.answer, FetchAnswer):
            continue
        known = [part for part in event.answer.parts if part.status is not None]
        described = [part for part in theirs["partitions"] if "error_or_flags" in part]
        for mine, other in zip(known, described, strict=True):
            assert mine.status == other["error_or_flags"]
            assert mine.high_water_mark == other.get("high_water_mark", 0)
            messages = decode_chunk(mine.chunk, mine.base)
            bundles = other.get("bundles", [])
            assert sum(bundle["messages"] for bundle in bundles) == len(messages)
            if bundles:
                assert messages[0].number == bundles[0]["first_seq"]
                assert messages[-1].number == bundles[-1]["last_seq"]


def test_publish_results_come_with_the_answer() -> None:
    """Per topic and partition."""
    events, _ = replayed("raw-publish-mixed-outcomes", 5)
    table = PublishResult
    assert events[0].results == (
        (table.UNKNOWN_TOPIC, table.UNKNOWN_TOPIC),
        (table.STORED, table.UNKNOWN_PARTITION),
        (table.STORED,),
    )


@pytest.mark.parametrize(
    "data",
    [
        "0a1e000000090000000000020000000300000002000000000000008eab006b90010000",
        "01050000000100000000",
        "0a05000000010000000000",
        "2000000000",
        "0100000020",
    ],
    ids=["unknown id", "other kind", "cut", "unknown type", "too long"],
)
def test_answer_that_cannot_be_closes_the_connection(data: str) -> None:
    """And nothing more is read."""
    session = ClientSession()
    session.send(Status(0))
    assert session.receive_data(bytes.fromhex(data), 0.0) == []
    assert session.close_reason
    assert session.receive_data(PING, 0.0) == ()
    assert session.unanswered == 1


def test_result_outside_the_table_closes_the_connection() -> None:
    """A broker that sends it cannot be trusted with the rest."""
    session = ClientSession()
    part = PublishPart("t", 0, b"x")
    session.send(Publish(0, (("t", (part,)),)))
    session.receive_data(bytes.fromhex("01050000000100000007"), 0.0)
    assert "publish result" in session.close_reason


@pytest.mark.parametrize(
    "told", [[("t", 1)], [("t", 0), ("t", 0)], [("u", 0)]], ids=["other", "twice", "topic"]
)
def test_fetch_answered_with_other_partitions_closes_the_connection(
    told: list[tuple[str, int]],
) -> None:
    """Whoever reads it looks for the place of what it asked for."""
    session = ClientSession()
    session.send(Fetch(0, (("t", (FetchPart("t", 0, 1, 1),)),)))
    groups = tuple((topic, (FetchPart(topic, number, 1, 1),)) for topic, number in told)
    parts = [FetchedPart(topic, number, FetchStatus.FINE) for topic, number in told]
    answer = encode_fetch_header(Fetch(1, groups), parts, [0] * len(parts))
    assert session.receive_data(answer, 0.0) == []
    assert "was not asked for" in session.close_reason


def test_ids_are_counted_and_requests_are_pipelined() -> None:
    """From 1, each with its own answer."""
    session = ClientSession()
    asked = [session.send(Fetch(0, (("t", (FetchPart("t", 0, 1, 1),)),))) for _ in range(2)]
    assert [each.request_id for each in asked] == [1, 2]
    assert session.data_to_send() == encode_request(asked[0]) + encode_request(asked[1])
    assert session.unanswered == 2
    session.receive_eof(0.0)
    assert session.close_reason
    assert session.next_deadline() is None
    assert session.deadline_passed(1.0) == ()
