"""A server's session: order of answers, login, bad connects, and what ends a connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from support.tapmodel import Server, Users, packets, sent

from logweir.limits import FRAME_SECONDS
from logweir.replication.memcached.push.stream import StreamOptions
from logweir.replication.memcached.serve.runs import RequestRun, refusals, take_run
from logweir.replication.memcached.server_session import (
    Commands,
    Connected,
    Named,
    ServerSession,
    Settings,
)
from logweir.replication.memcached.wire import linekernel
from logweir.replication.memcached.wire.codec import (
    SERVER_VERSION,
    Opcode,
    Packet,
    Status,
    encode_ack,
    encode_answer,
    encode_request,
)
from logweir.replication.memcached.wire.messages import Connect, Option, encode_connect
from logweir.replication.service.sasl import Authenticated


def test_answers_keep_the_order_of_requests() -> None:
    """What is answered here waits for what the store answers before it."""
    session = ServerSession(Settings(bytes), 0.0)
    data = [Packet(Opcode.SET, b"k", b"v", bytes(8)), Packet(Opcode.SASL_LIST_MECHS)]
    data.append(Packet(Opcode.NOOP))
    first, second = session.receive_data(b"".join(map(encode_request, data)), 0.0)
    assert isinstance(first, Commands)
    assert isinstance(second, Commands)
    assert session.data_to_send() == b""
    session.answer(second.slot, b"second")
    assert session.data_to_send() == b""
    session.answer(first.slot, b"first")
    whole = session.data_to_send()
    assert whole.startswith(b"first\x81")
    assert whole.endswith(b"Unknown commandsecond")


def test_version_and_verbosity_are_parts_of_runs() -> None:
    """None of them is handled one by one, however many come at once, by lines and by packets."""
    lines = b"get a\r\nversion\r\nversion x\r\nverbosity 1\r\nverbosity 1 noreply\r\nmn\r\n"
    taker = linekernel.Lines(bytearray())
    made = taker.take(lines, 0, 100)
    assert (taker.how, taker.at) == (linekernel.WAITS, len(lines))
    assert [one.opcode for one in packets(made)] == [
        *(Opcode.GETK, Opcode.VERSION, Opcode.VERSION, Opcode.NOOP, Opcode.NOOP)
    ]
    for data in (lines, made):
        (event,) = ServerSession(Settings(bytes), 0.0).receive_data(data, 0.0)
        assert isinstance(event, Commands)
        assert [type(one) for one in event.requests] == [RequestRun]
        assert event.count == 5
        assert not event.changes


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_line_that_came_in_two_portions_keeps_nothing(reads_all: bool) -> None:
    """Whoever answers it: neither bytes nor a deadline of it are left."""
    session = ServerSession(Settings(bytes), 0.0)
    session.read = lambda data: len(data) if reads_all else 0
    assert session.receive_data(b"get k", 5.0) == []
    assert (session.kept_bytes, session.next_deadline()) == (5, 5.0 + FRAME_SECONDS)
    assert len(session.receive_data(b"ey\r\n", 6.0)) == (not reads_all)
    assert (session.kept_bytes, session.next_deadline()) == (0, None)


def test_version_is_told_to_who_may_do_nothing_else() -> None:
    """As NOOP is answered: neither is about the bucket."""
    asked = [Packet(Opcode.VERSION), Packet(Opcode.NOOP), Packet(Opcode.GET, b"k")]
    (run,) = [take_run(b"".join(map(encode_request, asked)))]
    assert run is not None
    told = packets(b"".join(refusals((run,), Status.AUTH_ERROR)))
    assert [one.status for one in told] == [0, 0, Status.AUTH_ERROR]
    assert told[0].value == SERVER_VERSION


@pytest.mark.parametrize("name", ["sasl"])
def test_recorded_logins_get_the_recorded_answers(name: str) -> None:
    """Three connections: what a stranger may do, a login with a command behind it, a stream."""
    recorded = packets(sent(name, "s2c"))
    answers: list[Packet] = []
    server = Server(credentials=Users(), must_login=True)
    for request in packets(sent(name, "c2s")):
        if server.session.close_reason or server.connected:
            server = Server(credentials=Users(), must_login=True)
        answers += packets(server.feed(encode_request(request)))
    wanted = [p for p in recorded if p.opcode != Opcode.TAP_MUTATION]
    assert [(p.opcode, p.status, p.opaque) for p in answers] == [
        (p.opcode, p.status, p.opaque) for p in wanted
    ]
    assert server.session.close_reason


def test_without_users_sasl_is_not_known() -> None:
    """As memcached without SASL."""
    (answer,) = packets(Server().feed(encode_request(Packet(Opcode.SASL_LIST_MECHS))))
    assert answer.status == Status.UNKNOWN_COMMAND


def authenticate(server: Server, opcode: int, mechanism: bytes, data: bytes) -> Packet:
    """One step of a login."""
    (answer,) = packets(server.feed(encode_request(Packet(opcode, mechanism, data))))
    return answer


@pytest.mark.parametrize(("password", "status"), [(b"lovelace", 0), (b"wrong", 0x20)])
def test_cram_md5_proves_the_password(password: bytes, status: int) -> None:
    """A challenge, then user and digest; no second answer to it."""
    server = Server(credentials=Users("CRAM-MD5"))
    first = authenticate(server, Opcode.SASL_AUTH, b"CRAM-MD5", b"")
    assert first.status == Status.AUTH_CONTINUE
    digest = hmac.new(password, first.value, "md5").hexdigest().encode()
    last = authenticate(server, Opcode.SASL_STEP, b"CRAM-MD5", b"ada " + digest)
    assert last.status == status
    assert (server.session.user == "ada") == (status == 0)
    again = authenticate(server, Opcode.SASL_STEP, b"CRAM-MD5", b"ada " + digest)
    assert again.status == Status.AUTH_ERROR


@pytest.mark.parametrize(("password", "status"), [(b"lovelace", 0), (b"wrong", 0x20)])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_scram_proves_the_password_and_the_server(
    mechanism: str, password: bytes, status: int
) -> None:
    """RFC 5802, from a client's side; the server's signature comes with success."""
    name = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256"}[mechanism]
    server = Server(credentials=Users(mechanism))
    bare = b"n=ada,r=clientnonce"
    first = authenticate(server, Opcode.SASL_AUTH, mechanism.encode(), b"n,," + bare)
    assert first.status == Status.AUTH_CONTINUE
    fields = dict(part.split(b"=", 1) for part in first.value.split(b","))
    salted = hashlib.pbkdf2_hmac(name, password, base64.b64decode(fields[b"s"]), 64)
    client_key = hmac.digest(salted, b"Client Key", name)
    without = b"c=biws,r=" + fields[b"r"]
    message = b",".join((bare, first.value, without))
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = authenticate(
        server, Opcode.SASL_STEP, mechanism.encode(), without + b",p=" + base64.b64encode(proof)
    )
    assert last.status == status
    if not status:
        expected = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
        assert last.value == b"v=" + base64.b64encode(expected)


@pytest.mark.parametrize("mechanism", ["PLAIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256", "X"])
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"a,b,c,d", b"n,,n=ada", b"n,,r=1"])
def test_a_login_that_makes_no_sense_is_refused(mechanism: str, data: bytes) -> None:
    """Whatever is sent in both steps, nobody comes in and nothing breaks."""
    server = Server(credentials=Users("PLAIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256"))
    for opcode in (Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.SASL_STEP):
        answer = authenticate(server, opcode, mechanism.encode(), data)
        assert answer.status in (Status.AUTH_ERROR, Status.AUTH_CONTINUE)
    assert server.session.user is None


def test_a_login_is_told_to_the_owner() -> None:
    """Before the commands behind it."""
    session = ServerSession(Settings(bytes, Users()), 0.0)
    login = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0lovelace")
    noop = encode_request(Packet(Opcode.NOOP))
    first, second = session.receive_data(encode_request(login) + noop, 0.0)
    assert first == Authenticated("ada")
    assert isinstance(second, Commands)


def test_recorded_bad_connects_get_the_recorded_answers() -> None:
    """Closed in silence, or status 83 and closed; an undefined bit does not matter."""
    requests = packets(sent("bad-connects-raw", "c2s"))
    answers = []
    for request in requests:
        server = Server()
        answers.append(packets(server.feed(encode_request(request))))
        assert bool(server.session.close_reason) == (not server.connected)
    refused = packets(sent("bad-connects-raw", "s2c"))[:3]
    assert [[(p.opcode, p.status) for p in each] for each in answers] == [
        [],
        *[[(p.opcode, p.status)] for p in refused],
        [],
    ]


def streaming(options: Option = Option.SUPPORT_ACK) -> tuple[ServerSession, Any]:
    """A session that is a stream."""
    session = ServerSession(Settings(bytes), 0.0)
    (event,) = session.receive_data(encode_connect(Connect(b"n", options)), 0.0)
    assert isinstance(event, Connected)
    producer = session.stream(event.slot, event.connect, 0.0, options=StreamOptions())
    return session, producer


def test_a_stream_takes_answers_and_noop_only() -> None:
    """Other requests get status 83 and the stream goes on."""
    session, producer = streaming()
    producer.begin(0.0)
    (first,) = packets(session.data_to_send())
    session.receive_data(encode_ack(first.opcode, first.opaque), 1.0)
    assert producer.unacknowledged == 0
    session.receive_data(encode_request(Packet(Opcode.NOOP, opaque=4)), 1.0)
    session.receive_data(encode_request(Packet(Opcode.GET, b"k")), 1.0)
    noop, refusal = packets(session.data_to_send())
    assert (noop.opaque, refusal.status) == (4, Status.NOT_SUPPORTED)
    assert session.close_reason == ""


def test_a_refusal_by_the_consumer_ends_the_connection() -> None:
    """As every status that does not mean busy."""
    session, producer = streaming()
    producer.begin(0.0)
    (first,) = packets(session.data_to_send())
    session.receive_data(encode_ack(first.opcode, first.opaque, Status.INVALID), 1.0)
    assert "refused" in session.close_reason


def test_an_answer_where_none_is_due_ends_the_connection() -> None:
    """A response before any stream."""
    server = Server()
    assert server.feed(encode_answer(Packet(Opcode.NOOP))) == b""
    assert server.session.close_reason


@pytest.mark.parametrize(("opcode", "answers"), [(Opcode.QUIT, 1), (Opcode.QUITQ, 0)])
def test_quit_ends_behind_its_answer(opcode: Opcode, answers: int) -> None:
    """The quiet form has none; what comes behind is not looked at."""
    server = Server()
    data = encode_request(Packet(opcode)) + encode_request(Packet(Opcode.NOOP))
    assert len(packets(server.feed(data))) == answers
    assert server.session.close_reason


def test_a_frame_that_does_not_go_on_ends_the_connection() -> None:
    """Not before its time; a whole frame takes the deadline away."""
    session = ServerSession(Settings(bytes), 0.0)
    data = encode_request(Packet(Opcode.VERSION))
    session.receive_data(data[:10], 5.0)
    assert session.next_deadline() == 5.0 + FRAME_SECONDS
    session.receive_data(data[10:], 6.0)
    assert session.next_deadline() is None
    session.receive_data(data[:1], 7.0)
    session.deadline_passed(7.0 + FRAME_SECONDS - 0.1)
    assert session.close_reason == ""
    session.deadline_passed(7.0 + FRAME_SECONDS)
    assert session.close_reason


@pytest.mark.parametrize(
    ("begun", "kept"),
    [
        (b"set k 0 0 60000000\r\n", 0),
        (encode_request(Packet(Opcode.SET, b"k", bytes(1_300_000), bytes(8)))[:100], 0),
        (b"set k 0 0 1000\r\nvalue", 21),
        (encode_request(Packet(Opcode.SET, b"k", bytes(1000), bytes(8)))[:100], 100),
    ],
    ids=["long-line", "long-packet", "line", "packet"],
)
def test_what_is_passed_over_takes_no_memory(begun: bytes, kept: int) -> None:
    """And is waited for as long as any other rest of a frame."""
    session = ServerSession(Settings(bytes), 0.0)
    session.receive_data(begun, 5.0)
    assert session.kept_bytes == kept
    assert session.next_deadline() == 5.0 + FRAME_SECONDS
    session.deadline_passed(5.0 + FRAME_SECONDS)
    assert session.close_reason


def test_deregister_is_the_owners_affair() -> None:
    """It carries the name."""
    session = ServerSession(Settings(bytes), 0.0)
    data = encode_request(Packet(Opcode.DEREGISTER_TAP_CLIENT, b"name"))
    (event,) = session.receive_data(data, 0.0)
    assert isinstance(event, Named)
    assert event.request.key == b"name"
