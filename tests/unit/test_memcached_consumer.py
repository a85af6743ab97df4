"""A consumer's session, fed with what real servers sent."""

from __future__ import annotations

import pytest
from support.tapmodel import MemoryBucket, Server, Users, captures, packets, sent

from logweir.errors import RemoteProtocolError
from logweir.limits import TAP_BODY_BYTES
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.client_session import (
    Alive,
    ClientSession,
    Refused,
    Started,
    StreamEvent,
)
from logweir.replication.memcached.serve.commands import Executor
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    Status,
    encode_answer,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    Option,
    TapMessage,
    decode_connect,
    encode_connect,
    encode_tap,
)
from logweir.replication.service.sasl import MECHANISMS, Login

CONNECT = Connect(b"n", Option.SUPPORT_ACK)
STREAMS = sorted(
    name
    for name in captures()
    if not name.startswith(("kv-", "sasl", "bad-", "consumer-"))
    and not name.endswith("-destination")
)


def followed(name: str, step: int) -> tuple[ClientSession, MemoryBucket, list[TapMessage]]:
    """A recording's stream taken by our consumer into a bucket."""
    session = ClientSession(CONNECT)
    session.data_to_send()
    bucket = MemoryBucket(states={n: VbucketState.ACTIVE for n in (0, 1, 102)})
    executor = Executor(bucket, bucket.now)
    data = sent(name, "s2c")
    messages = []
    for at in range(0, len(data), step):
        for event in session.receive_data(data[at : at + step], 0.0):
            if isinstance(event, TapMessage):
                assert executor.apply(event) == Status.SUCCESS
                messages.append(event)
    return session, bucket, messages


@pytest.mark.parametrize("name", STREAMS)
def test_recorded_streams_are_taken_whole(name: str) -> None:
    """The same messages and the same bucket in any portions; every packet is understood."""
    session, bucket, messages = followed(name, 1)
    _, other, same = followed(name, 1 << 20)
    assert session.close_reason == ""
    assert messages == same
    assert bucket.items.keys() == other.items.keys()
    recorded = [p for p in packets(sent(name, "s2c")) if p.opcode != Opcode.NOOP]
    assert len(messages) == len(recorded)


@pytest.mark.parametrize(
    "name", [name for name in STREAMS if name.endswith(("-go", "-spymemcached"))]
)
def test_we_acknowledge_what_real_consumers_acknowledge(name: str) -> None:
    """The same packets, once each, in order."""
    recorded = [p for p in packets(sent(name, "c2s")) if p.is_response]
    session, _, _ = followed(name, 4096)
    session.acknowledge()
    ours = [(p.opcode, p.opaque) for p in packets(session.data_to_send())]
    theirs = [(p.opcode, p.opaque) for p in recorded if p.opcode != Opcode.NOOP]
    if name == "scripted-all-packets-spymemcached":  # it takes a flush for a deletion
        theirs = [(Opcode.TAP_FLUSH, 17) if each[1] == 17 else each for each in theirs]
    assert set(theirs) <= set(ours)
    assert [each for each in ours if each in set(theirs)] == [
        each for i, each in enumerate(theirs) if each not in theirs[:i]
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_recorded_connects_are_understood_and_written_again(name: str) -> None:
    """What real clients ask for; some write empty lists, which mean nothing."""
    first = packets(sent(name, "c2s"))[0]
    connect = decode_connect(first)
    assert first.opcode == Opcode.TAP_CONNECT
    (again,) = packets(encode_connect(connect))
    assert decode_connect(again) == connect


def test_the_whole_stream_of_a_takeover_moves_the_items() -> None:
    """Items twice, later wins; the deleted one is gone."""
    _, bucket, messages = followed("takeover-vbucketmigrator-source", 100)
    assert {item.vbucket for item in bucket.items.values()} == {1}
    assert bucket.items[b"ncxcgu4t:lo"].flags == 0xDEADBEEF
    states = [m.number for m in messages if m.opcode == Opcode.TAP_VBUCKET_SET]
    assert states == [VbucketState.PENDING, VbucketState.ACTIVE]


def test_acknowledgements_wait_for_the_owner() -> None:
    """None before, as many as it says, in order."""
    session = ClientSession(CONNECT)
    session.data_to_send()
    for opaque in (1, 2, 3):
        message = TapMessage(Opcode.TAP_DELETE, b"k", wants_ack=True, opaque=opaque)
        session.receive_data(encode_tap(message), 0.0)
    assert session.data_to_send() == b""
    session.acknowledge(2)
    assert [p.opaque for p in packets(session.data_to_send())] == [1, 2]
    assert session.unacknowledged == 1
    session.refuse(TapMessage(Opcode.TAP_DELETE, b"k", opaque=3), Status.TEMPORARY_FAILURE)
    (refusal,) = packets(session.data_to_send())
    assert (refusal.opaque, refusal.status, session.unacknowledged) == (3, 0x86, 0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login_comes_before_the_stream(mechanism: str) -> None:
    """By each mechanism against our own server's side; TAP_CONNECT only behind a good answer."""
    session = ClientSession(CONNECT, user="ada", password="lovelace")
    server = Server(credentials=Users(mechanism), must_login=True)
    for _ in range(6):
        session.receive_data(server.feed(session.data_to_send()), 0.0)
        if server.connected:
            break
    assert [event.connect for event in server.connected] == [CONNECT]
    assert server.session.user == "ada"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_that_fails_is_told_and_ends(mechanism: str) -> None:
    """A wrong password, by each mechanism."""
    session = ClientSession(CONNECT, user="ada", password="wrong")
    server = Server(credentials=Users(mechanism), must_login=True)
    events: list[StreamEvent] = []
    while not session.close_reason:
        events += session.receive_data(server.feed(session.data_to_send()), 0.0)
    assert events == [Refused("the login", 0x20, "Auth failure.")]
    assert server.connected == []


@pytest.mark.parametrize(
    ("opcode", "status", "text"),
    [
        (Opcode.SASL_LIST_MECHS, Status.UNKNOWN_COMMAND, b""),
        (Opcode.SASL_LIST_MECHS, Status.SUCCESS, b"GSSAPI OTP"),
        (Opcode.SASL_LIST_MECHS, Status.SUCCESS, b""),
        (Opcode.SASL_AUTH, Status.SUCCESS, b"Authenticated"),
    ],
)
def test_servers_that_cannot_log_us_in(opcode: Opcode, status: Status, text: bytes) -> None:
    """No SASL, no mechanism that we know, an answer before the question: refused, and no stream."""
    session = ClientSession(CONNECT, user="ada", password="lovelace")
    session.data_to_send()
    (event,) = session.receive_data(encode_answer(Packet(opcode), status, value=text), 0.0)
    assert isinstance(event, Refused)
    assert session.close_reason
    assert session.data_to_send() == b""


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=foreign,s=c2FsdA==,i=4096",
        b"r=%s,s=c2FsdA==,i=100000000",
        b"r=%s,s=?,i=1",
        b"r=%s,s=c2FsdA==,i=x",
    ],
)
def test_a_server_that_does_not_play_by_scram_is_refused(challenge: bytes) -> None:
    """Foreign nonces, too many iterations, what is no number: no proof is sent."""
    login = Login("ada", "lovelace", bytes)
    first = login.begin(["SCRAM-SHA-1"])
    nonce = first.rpartition(b"r=")[2]
    with pytest.raises(RemoteProtocolError):
        login.step(challenge.replace(b"%s", nonce + b"x"))


def test_a_server_without_the_verifier_is_found_out() -> None:
    """SCRAM: who says yes without the proof is not trusted."""
    login = Login("ada", "lovelace", bytes)
    nonce = login.begin(["SCRAM-SHA-256"]).rpartition(b"r=")[2]
    login.step(b"r=%sx,s=c2FsdA==,i=64" % nonce)
    for text in (b"", b"v=AAAA", b"Authenticated"):
        with pytest.raises(RemoteProtocolError):
            login.finish(text)


def test_a_refused_stream_is_told_and_ends() -> None:
    """With the status and text of the server."""
    session = ClientSession(CONNECT)
    answer = encode_answer(Packet(Opcode.TAP_CONNECT), Status.NOT_SUPPORTED)
    assert session.receive_data(answer, 0.0) == [Refused("the stream", 0x83, "Not supported")]
    assert session.close_reason


def test_signs_of_life_need_no_answer() -> None:
    """NOOP in both directions."""
    session = ClientSession(CONNECT)
    session.data_to_send()
    noop = Packet(Opcode.NOOP)
    assert session.receive_data(encode_request(noop) + encode_answer(noop), 0.0) == [
        Alive(),
        Alive(),
    ]
    assert session.data_to_send() == b""


def test_a_message_that_may_go_no_further_is_dropped() -> None:
    """TTL 0: counted, status 04 if an answer is due; TTL 1 is taken."""
    session = ClientSession(CONNECT)
    session.data_to_send()
    data = b"".join(
        encode_tap(TapMessage(Opcode.TAP_DELETE, b"k", ttl=ttl, wants_ack=ack, opaque=7))
        for ttl, ack in ((0, False), (0, True), (1, True))
    )
    (taken,) = session.receive_data(data, 0.0)
    assert isinstance(taken, TapMessage)
    assert taken.ttl == 1
    assert session.dropped == 2
    assert [p.status for p in packets(session.data_to_send())] == [Status.INVALID]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request",
        encode_answer(Packet(Opcode.GET)),
        encode_request(Packet(Opcode.TAP_MUTATION, b"k", extras=bytes(3))),
        encode_request(Packet(Opcode.TAP_MUTATION, b"k", bytes(TAP_BODY_BYTES), bytes(16))),
    ],
)
def test_what_no_server_sends_ends_the_connection(data: bytes) -> None:
    """With a reason, and without an exception; what is too large for good is told as such."""
    session = ClientSession(CONNECT)
    events = session.receive_data(data, 0.0)
    assert [type(event) for event in events] == [Refused] * (len(data) > TAP_BODY_BYTES)
    assert session.close_reason
    assert session.receive_data(data, 0.0) == ()


def test_unknown_requests_are_answered_as_unknown() -> None:
    """Status 81, as a real consumer does."""
    session = ClientSession(CONNECT)
    session.data_to_send()
    session.receive_data(encode_request(Packet(0x48, opaque=3)), 0.0)
    (answer,) = packets(session.data_to_send())
    assert (answer.status, answer.opaque) == (Status.UNKNOWN_COMMAND, 3)


@pytest.mark.parametrize(
    ("value", "at"), [(b"100", 95), (b"5", None), (b"-1", None), (b"", None), (b"9" * 5000, None)]
)
def test_a_start_that_no_server_can_have_had_is_told_as_none(value: bytes, at: int | None) -> None:
    session = ClientSession(CONNECT, asks_start=True)
    asked = packets(session.data_to_send())[0]
    assert asked.opcode == Opcode.STAT
    told = ((b"time", value), (b"uptime", b"5"), (b"", b""))
    data = b"".join(encode_answer(asked, key=key, value=text) for key, text in told)
    assert session.receive_data(data, 0.0) == [Started(at)]
    assert packets(session.data_to_send())[0].opcode == Opcode.TAP_CONNECT


def test_statistics_that_nobody_asked_for_yet_end_the_connection() -> None:
    """They would have the stream begin before the login."""
    session = ClientSession(CONNECT, user="u", password="p", asks_start=True)
    session.data_to_send()
    assert session.receive_data(encode_answer(Packet(Opcode.STAT)), 0.0) == []
    assert session.close_reason == "a response of opcode 0x10 to nothing"
    assert session.data_to_send() == b""
