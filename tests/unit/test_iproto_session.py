"""The server's and the replica's state machines of iproto, without sockets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import LocalProtocolError
from logweir.limits import FRAME_SECONDS, IPROTO_FRAME_BYTES
from logweir.replication.iproto import client_session as follower
from logweir.replication.iproto.client_session import ClientSession
from logweir.replication.iproto.server_session import Ack, ServerSession, State
from logweir.replication.iproto.wire import codec
from logweir.replication.iproto.wire.codec import encode_ack
from logweir.replication.iproto.wire.requests import Request, encode_request
from logweir.replication.iproto.wire.runs import Run
from logweir.replication.urls import STALL_SECONDS
from logweir.store.engine.batches import Asked
from logweir.store.engine.reference import request_of
from logweir.wal.vclock import VClock

UUID = uuid.UUID("11111111-1111-4111-8111-111111111111")
SET = uuid.UUID("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa")
NOISE = bytes(range(32))


def server() -> ServerSession:
    session = ServerSession(UUID, NOISE, lambda: 80)
    assert len(session.data_to_send()) == 128
    return session


def answers(session: ServerSession) -> list[codec.Answer]:
    data = session.data_to_send()
    return [codec.decode_answer(data, *span) for span in codec.Splitter().split(data)[0]]


def requests(events: Iterable[object]) -> list[object]:
    """Requests one by one, also those of runs, each with its sync."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Run):
            for number, sync in enumerate(event.syncs):
                change = request_of(Asked(event.data, event.columns, event.space_ids, 0), number)
                found.append((sync, change))
        else:
            found.append((event.sync, event) if isinstance(event, Request) else event)
    return found


def syncs(events: Iterable[object]) -> list[int]:
    return [one[0] for one in requests(events) if isinstance(one, tuple)]


def insert(sync: int) -> bytes:
    return encode_request(2, sync, {0x10: 512, 0x21: [sync]})


# --- server ---------------------------------------------------------------------------------------


def test_pipelined_requests_come_together() -> None:
    """All complete requests of one read; pings are answered at once. Changes come as runs."""
    session = server()
    stream = insert(1) + encode_request(64, 2) + insert(3) + insert(4)
    events = session.receive_data(stream, 0.0)
    assert syncs(events) == [1, 3, 4]
    assert [type(event) for event in events] == [Run, Run]
    assert [answer.header.sync for answer in answers(session)] == [2]


def test_malformed_request_is_answered_and_the_connection_goes_on() -> None:
    """Each in its place, with its sync."""
    session = server()
    stream = encode_request(99, 5) + encode_request(1, 6, {}) + insert(7)
    events = session.receive_data(stream, 0.0)
    assert len(events) == 1
    got = answers(session)
    assert [(one.header.sync, int(one.error().code)) for one in got] == [(5, 48), (6, 69)]
    assert not session.close_reason


def test_another_schema_version_is_error_109_also_for_ping() -> None:
    """0 and our own pass."""
    session = server()
    for version in (0, 80, 81):
        session.receive_data(codec.frame(msgpack.packb({0: 64, 1: 1, 5: version})), 0.0)
    assert [one.is_error for one in answers(session)] == [False, False, True]


def test_stream_that_cannot_be_followed_is_answered_and_closed() -> None:
    """Error 20 with sync 0; requests before it still count."""
    session = server()
    events = session.receive_data(insert(1) + b"\xa1xxxx", 0.0)
    assert len(events) == 1
    (answer,) = answers(session)
    assert (answer.header.sync, int(answer.error().code)) == (0, 20)
    assert "packet length" in session.close_reason
    assert session.receive_data(insert(2), 0.0) == ()


def test_requests_behind_a_join_wait_for_its_end() -> None:
    """They are read when the stream is complete."""
    session = server()
    join = encode_request(65, 1, {0x24: str(UUID)})
    events = session.receive_data(insert(1) + join + insert(2), 0.0)
    assert syncs(events) == [1, 1]
    assert session.state == State.STREAM
    assert session.receive_data(insert(3), 0.0) == ()
    events = session.end_stream(0.0)
    assert syncs(events) == [2, 3]


def test_subscribed_replica_sends_acknowledgements_only() -> None:
    """A vclock is an acknowledgement; anything else ends the connection."""
    session = server()
    session.receive_data(encode_request(66, 0, {0x24: str(UUID), 0x26: {}}), 0.0)
    session.receive_data(encode_ack(VClock({1: 3})), 0.0)
    assert session.begin_relay(0.0) == [Ack(VClock({1: 3}))]
    assert session.receive_data(encode_ack(VClock({1: 4, 2: 1})), 0.0) == [
        Ack(VClock({1: 4, 2: 1}))
    ]
    session.receive_data(codec.frame(b"\x81\x00\x00\x81\x26\xa1x"), 0.0)
    assert "acknowledgement" in session.close_reason


def test_frame_that_never_ends_has_a_deadline() -> None:
    """From its first byte on; an idle connection has none."""
    session = server()
    assert session.next_deadline() is None
    session.receive_data(insert(1)[:7], 5.0)
    session.receive_data(insert(1)[7:9], 6.0)
    assert session.next_deadline() == 5.0 + FRAME_SECONDS
    session.deadline_passed(5.0 + FRAME_SECONDS - 1)
    assert not session.close_reason
    session.deadline_passed(5.0 + FRAME_SECONDS)
    assert "does not go on" in session.close_reason


def test_flood_behind_a_stream_is_bounded() -> None:
    """What waits behind a JOIN has a limit."""
    session = server()
    session.receive_data(encode_request(65, 1, {0x24: str(UUID)}), 0.0)
    portion = bytes(IPROTO_FRAME_BYTES // 4)
    for _ in range(5):
        session.receive_data(portion, 0.0)
    assert "too much" in session.close_reason


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_whole_feed_equals_any_portions(portions: list[int]) -> None:
    """Where a stream is cut changes neither events nor answers."""
    stream = (
        insert(1)
        + encode_request(64, 2)
        + encode_request(99, 3)
        + insert(300)
        + encode_request(66, 4, {0x24: str(UUID), 0x26: {1: 5}})
    )
    whole = server()
    expected = list(whole.receive_data(stream, 0.0))
    cut = server()
    events, at, turn = [], 0, 0
    while at < len(stream):
        size = portions[turn % len(portions)]
        events += list(cut.receive_data(stream[at : at + size], 0.0))
        at, turn = at + size, turn + 1
    assert requests(events) == requests(expected)
    assert cut.data_to_send() == whole.data_to_send()


@given(st.binary(max_size=200))
def test_garbage_ends_the_connection_or_is_answered(data: bytes) -> None:
    """A session raises nothing, in any state."""
    for state in ("requests", "stream", "relay"):
        session = server()
        if state != "requests":
            session.receive_data(encode_request(66, 0, {0x24: str(UUID), 0x26: {}}), 0.0)
        if state == "relay":
            session.begin_relay(0.0)
        session.receive_data(data, 0.0)
        session.deadline_passed(1e9)
        session.receive_eof(1e9)
        assert session.close_reason


# --- replica --------------------------------------------------------------------------------------


def replica() -> ClientSession:
    session = ClientSession(0.0)
    events = session.receive_data(codec.encode_greeting(UUID, NOISE), 0.0)
    assert isinstance(events[0], codec.Greeting)
    return session


ROW = bytes.fromhex("8200020301821 0cd0200219101".replace(" ", ""))


def test_join_has_three_stages() -> None:
    """Start, initial rows, end, final rows, end; then the connection is free for SUBSCRIBE."""
    session = replica()
    session.join(UUID)
    stream = (
        codec.encode_vclock_answer(VClock({1: 13}))
        + codec.frame(ROW) * 3
        + codec.encode_vclock_answer(VClock({1: 14}))
        + codec.frame(ROW)
        + codec.encode_vclock_answer(VClock({1: 14}))
    )
    assert session.receive_data(stream, 0.0) == [
        follower.StreamBegun(VClock({1: 13})),
        follower.Rows(ROW * 3, 3, True),
        follower.StreamEnded(VClock({1: 14}), False),
        follower.Rows(ROW, 1, False),
        follower.StreamEnded(VClock({1: 14}), True),
    ]
    session.subscribe(UUID, SET, VClock({1: 14}), id_filter=[2])
    assert session.data_to_send().endswith(b"\x51\x91\x02")


def test_snapshot_without_a_place_has_one_stage() -> None:
    """FETCH_SNAPSHOT ends with the second OK."""
    session = replica()
    session.fetch_snapshot()
    answer = codec.encode_vclock_answer(VClock({1: 1}))
    assert session.receive_data(answer + codec.frame(ROW) + answer, 0.0) == [
        follower.StreamBegun(VClock({1: 1})),
        follower.Rows(ROW, 1, True),
        follower.StreamEnded(VClock({1: 1}), True),
    ]


def following() -> ClientSession:
    session = replica()
    session.subscribe(UUID, SET, VClock())
    answer = codec.encode_vclock_answer(VClock({1: 2}), replica_id=3, replicaset=SET)
    assert session.receive_data(answer, 10.0) == [follower.Subscribed(VClock({1: 2}), 3, SET)]
    session.data_to_send()
    return session


def test_rows_and_heartbeats_keep_their_order() -> None:
    """Raft rows are left out; acknowledgements go back."""
    session = following()
    raft = codec.frame(b"\x81\x00\x1e\x80")
    stream = codec.frame(ROW) + codec.encode_heartbeat(3, 1.5) + raft
    events = session.receive_data(stream + codec.frame(ROW), 10.0)
    assert events == [
        follower.Rows(ROW, 1, False),
        follower.Heartbeat(1.5),
        follower.Rows(ROW, 1, False),
    ]
    session.acknowledge(VClock({3: 1}))
    assert session.data_to_send() == encode_ack(VClock({3: 1}))


def test_silent_master_is_given_up() -> None:
    """Four seconds after its last word once subscribed, during a join as long as any upstream."""
    session = following()
    assert session.next_deadline() == 14.0
    session.receive_data(codec.encode_heartbeat(3, 1.0), 12.0)
    session.deadline_passed(14.0)
    assert not session.close_reason
    session.deadline_passed(16.0)
    assert "said nothing" in session.close_reason
    joining = replica()
    joining.join(UUID)
    assert joining.next_deadline() == STALL_SECONDS
    begun = codec.encode_vclock_answer(VClock({1: 1}))
    joining.receive_data(begun, 20.0)
    joining.deadline_passed(STALL_SECONDS)
    assert not joining.close_reason
    assert joining.next_deadline() == 20.0 + STALL_SECONDS
    joining.receive_data(begun, 40.0)  # the last stage begins
    joining.deadline_passed(40.0 + STALL_SECONDS)
    assert "said nothing for 30.0 s" in joining.close_reason


def test_refusal_is_an_event_with_its_number() -> None:
    """An error frame in any stage."""
    session = replica()
    session.vote()
    error = codec.RequestError(codec.ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
    (event,) = session.receive_data(codec.encode_error(0, 1, error), 0.0)
    assert isinstance(event, follower.Refused)
    assert (event.error.code, event.state) == (116, "vote")
    session.join(UUID)


def test_request_out_of_turn_is_our_own_mistake() -> None:
    """Nothing is sent that the master would not expect."""
    session = following()
    with pytest.raises(LocalProtocolError):
        session.join(UUID)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 128])
def test_what_is_not_a_tarantool_is_left_at_once(data: bytes) -> None:
    """Also when less than 128 bytes came."""
    session = ClientSession(0.0)
    assert session.receive_data(data, 0.0) == []
    assert "invalid greeting" in session.close_reason


@given(st.binary(max_size=200), st.integers(1, 60))
def test_master_that_sends_garbage_is_left(data: bytes, portion: int) -> None:
    """Events or a reason to close; never another exception; the same for any portions."""
    whole, cut = following(), following()
    expected = list(whole.receive_data(data, 11.0))
    events: list[object] = []
    for at in range(0, len(data), portion):
        events += list(cut.receive_data(data[at : at + portion], 11.0))
    assert bool(cut.close_reason) == bool(whole.close_reason)

    def flat(events: list[object]) -> list[object]:
        rows: list[object] = []
        for event in events:
            if isinstance(event, follower.Rows) and rows and isinstance(rows[-1], bytes):
                rows[-1] += event.data
            else:
                rows.append(event.data if isinstance(event, follower.Rows) else event)
        return rows

    if not whole.close_reason:
        assert flat(events) == flat(list(expected))
