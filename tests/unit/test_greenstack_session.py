"""A server session: HELLO, logins, quiet, edge cases, keepalive, pushes."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from support.gsmodel import Server, frames, malformed

from logweir.replication.bucket.item import Item
from logweir.replication.greenstack.server_session import StreamOver
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    Opcode,
    Status,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    Hello,
    HelloAnswer,
    MarkKind,
    NoticeCode,
    Operation,
    StreamOpen,
    StreamRow,
)
from logweir.replication.service.sasl import Authenticated
from logweir.wal.vclock import VClock


def test_nothing_but_hello_before_hello() -> None:
    """InvalidState, and the connection goes on."""
    server = Server(hello=False)
    for opcode in (Opcode.NOOP, Opcode.SASL_AUTH, Opcode.MUTATION, Opcode.LIST_BUCKETS):
        assert server.status(Frame(opcode)) == Status.INVALID_STATE
    hello = Frame(Opcode.HELLO, payload=Hello("a", "1").encode())
    (answer,) = server.ask(hello)
    told = HelloAnswer.decode(answer.payload)
    assert (told.agent, told.mechanisms, told.features) == ("logweir", "PLAIN", ())
    assert server.status(hello) == Status.SUCCESS
    assert server.status(Frame(Opcode.NOOP)) == Status.SUCCESS


def test_scram_is_offered_under_both_its_names() -> None:
    """Also with the spelling of the 2017 code, whose client looks for no other."""
    server = Server("SCRAM-SHA-512", "SCRAM-SHA-1", "PLAIN", hello=False, plain=False)
    (answer,) = server.ask(Frame(Opcode.HELLO, payload=Hello("a", "1").encode()))
    offered = HelloAnswer.decode(answer.payload).mechanisms
    assert offered.split() == ["SCRAM-SHA-512", "SCRAM-SHA-1", "SCRAM-SHA512", "SCRAM-SHA1"]


def test_features_are_those_that_both_know() -> None:
    """What the client asks beyond is not in the answer."""
    server = Server(hello=False)
    payload = Hello("a", "1", "", (0x0C02, 0x0C77)).encode()
    (answer,) = server.ask(Frame(Opcode.HELLO, payload=payload))
    assert HelloAnswer.decode(answer.payload).features == (Feature.NOTICES,)
    for opcode in (Opcode.REMOVE, Opcode.STREAM_OPEN, Opcode.STREAM_MARK, Opcode.TRUNCATE, 0x0005):
        assert server.status(Frame(opcode)) == Status.UNKNOWN_COMMAND


# What our server does with each edge case after a HELLO: a status, None for no answer, "closes".
VERDICTS = {
    "noop_min_request": Status.SUCCESS,
    "noop_min_response": None,
    "flags_fence_more_quiet": Status.INVALID_ARGUMENTS,
    "flex_empty_len0": Status.SUCCESS,
    "flex_unknown_key": Status.SUCCESS,
    "flex_vb_wrong_len1": Status.INVALID_ARGUMENTS,
    "flex_prio_len0": Status.INVALID_ARGUMENTS,
    "flex_lane_len0": Status.SUCCESS,
    "flex_unsorted": Status.SUCCESS,
    "opcode_unknown_0005": Status.UNKNOWN_COMMAND,
    "opcode_unassigned_0c00": Status.INVALID_ARGUMENTS,
    "opcode_ffff": Status.UNKNOWN_COMMAND,
    "opcode_keepalive": Status.SUCCESS,
    "status_unknown_0012": None,
    "status_unassigned_0c00": None,
    "hello_no_payload": Status.INVALID_ARGUMENTS,
    "hello_garbage": Status.INVALID_ARGUMENTS,
    "hello_missing_required": Status.INVALID_ARGUMENTS,
    "hello_no_comment": Status.SUCCESS,
    "hello_trailing_bytes": Status.SUCCESS,
    "hello_error_rsp_no_payload": None,
    "sasl_error_rsp_no_payload": None,
    "sasl_error_rsp_empty_table": None,
    "sasl_req_no_mechanism": Status.INVALID_STATE,
    "mutation_no_vbucket": Status.INVALID_ARGUMENTS,
    "mutation_ok": Status.SUCCESS,
    "mutation_op_99": Status.INVALID_ARGUMENTS,
    "mutation_rsp_error_empty": None,
    "mutation_rsp_error_payload": None,
    "get_no_vbucket": Status.INVALID_ARGUMENTS,
    "get_rsp_ok_no_payload": None,
    "get_rsp_err_payload": None,
    "select_rsp_with_payload": None,
}


@pytest.mark.parametrize("name", malformed())
def test_edge_cases_are_answered_or_end_the_connection(name: str) -> None:
    """As `VERDICTS` says; a frame that cannot be closes it, with a notice first."""
    case = malformed()[name]
    server = Server()
    out = frames(server.feed(bytes.fromhex(case["hex"])))
    verdict = case["strict_frame_layer"]
    if verdict.startswith("reject"):
        assert server.session.close_reason
        assert [messages.decode_notice(frame.payload)[0] for frame in out] == [
            NoticeCode.PROTOCOL_ERROR
        ]
    elif verdict == "incomplete":
        assert not out
        assert not server.session.close_reason
    elif name in ("list_req_with_payload", "opcode_unassigned_0c00"):
        assert not server.session.close_reason  # the owner answers
    elif name == "two_frames":
        assert [frame.status for frame in out] == [0, 0]
    elif (status := VERDICTS[name]) is None:
        assert not out
        assert not server.session.close_reason
    else:
        assert [frame.status for frame in out] == [status]
        assert not server.session.close_reason


def test_failures_of_hello_and_sasl_have_a_table() -> None:
    """The libraries crash, or refuse the answer, without."""
    server = Server()
    (answer,) = server.ask(Frame(Opcode.HELLO, payload=b"junk"))
    assert HelloAnswer.decode(answer.payload).agent == "logweir"
    (answer,) = server.ask(Frame(Opcode.SASL_AUTH, payload=b"junk"))
    assert messages.decode_sasl_answer(answer.payload) == b""
    (answer,) = server.ask(Frame(Opcode.GET, payload=b"junk", flex={7: b"\0\0"}))
    assert answer.payload == b""


def login(server: Server, mechanism: str, data: bytes) -> Frame:
    """One step of a login."""
    payload = messages.encode_sasl(mechanism, data)
    (answer,) = server.ask(Frame(Opcode.SASL_AUTH, payload=payload))
    return answer


def test_plain_logins() -> None:
    """Right, wrong, not offered, and a step of nothing."""
    server = Server()
    assert login(server, "PLAIN", b"\0ada\0lovelace").status == Status.SUCCESS
    assert Authenticated("ada") in server.events
    assert login(server, "PLAIN", b"\0ada\0wrong").status == Status.AUTHENTICATION_ERROR
    assert login(server, "PLAIN", b"junk").status == Status.AUTHENTICATION_ERROR
    assert login(server, "PLAIN", b"").status == Status.INVALID_ARGUMENTS
    assert login(server, "EXTERNAL", b"x").status == Status.INVALID_ARGUMENTS
    assert login(server, "", b"x").status == Status.INVALID_STATE
    assert login(Server(plain=False), "PLAIN", b"\0ada\0lovelace").status == 1


def test_cram_md5_logins() -> None:
    """Challenge with status Success, then the digest."""
    for password, status in (("lovelace", 0), ("wrong", Status.AUTHENTICATION_ERROR)):
        server = Server("CRAM-MD5")
        first = login(server, "CRAM-MD5", b"")
        challenge = messages.decode_sasl_answer(first.payload)
        assert (first.status, bool(challenge)) == (Status.SUCCESS, True)
        digest = hmac.new(password.encode(), challenge, "md5").hexdigest()
        assert login(server, "", f"ada {digest}".encode()).status == status


@pytest.mark.parametrize(
    ("name", "hash_name"),
    [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA512", "sha512"), ("SCRAM-SHA1", "sha1")],
)
def test_scram_logins(name: str, hash_name: str) -> None:
    """The server's last word is a challenge, which is answered with nothing."""
    server = Server("SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM-SHA-1")
    bare = "n=ada,r=abc"
    first = messages.decode_sasl_answer(login(server, name, f"n,,{bare}".encode()).payload).decode()
    fields = dict(part.split("=", 1) for part in first.split(","))
    salt = base64.b64decode(fields["s"])
    salted = hashlib.pbkdf2_hmac(hash_name, b"lovelace", salt, int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", hash_name)
    without = f"c=biws,r={fields['r']}"
    message = f"{bare},{first},{without}".encode()
    signature = hmac.digest(hashlib.new(hash_name, key).digest(), message, hash_name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    last = f"{without},p={base64.b64encode(proof).decode()}".encode()
    word = messages.decode_sasl_answer(login(server, "", last).payload)
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    assert word == b"v=" + base64.b64encode(hmac.digest(server_key, message, hash_name))
    assert Authenticated("ada") not in server.events
    done = login(server, "", b"")
    assert (done.status, messages.decode_sasl_answer(done.payload)) == (0, b"")
    assert Authenticated("ada") in server.events


def test_quiet_requests_are_answered_only_when_they_fail() -> None:
    """But HELLO and SASL always."""
    server = Server()
    entries = {7: b"\0\0", 0: b"l"}
    quiet = Frame(Opcode.MUTATION, 5, Document(b"k", b"v").encode(), flags=Flag.QUIET, flex=entries)
    assert not server.ask(quiet)
    add = Document(b"k", b"v").encode(Operation.ADD)
    (answer,) = server.ask(Frame(Opcode.MUTATION, 6, add, flags=Flag.QUIET, flex=entries))
    assert (answer.opaque, answer.status) == (6, Status.ALREADY_EXISTS)
    assert answer.flex == {FlexKey.LANE.value: b"l"}
    assert not server.ask(Frame(Opcode.NOOP, flags=Flag.QUIET))
    hello = Frame(Opcode.HELLO, payload=Hello("a", "1").encode(), flags=Flag.QUIET)
    assert server.status(hello) == Status.SUCCESS


def test_keepalive_sends_noops_until_it_is_ended() -> None:
    """Every so many minutes one that wants no answer."""
    server = Server()
    ask = Frame(Opcode.KEEPALIVE, payload=messages.encode_keepalive(2))
    assert server.status(ask) == Status.SUCCESS
    assert server.session.next_deadline() == 120.0
    assert server.session.deadline_passed(119.0) == []
    assert server.session.data_to_send() == b""
    server.session.deadline_passed(120.0)
    (noop,) = frames(server.session.data_to_send())
    assert (noop.opcode, noop.flags, noop.is_response) == (Opcode.NOOP, Flag.QUIET, False)
    server.ask(Frame(Opcode.KEEPALIVE, payload=messages.encode_keepalive(0)))
    assert server.session.next_deadline() is None


def test_a_frame_that_does_not_go_on_ends_the_connection() -> None:
    """After the time that a frame may take."""
    server = Server()
    server.feed(encode_frame(Frame(Opcode.NOOP))[:5], now=1.0)
    deadline = server.session.next_deadline()
    assert deadline is not None
    server.session.deadline_passed(deadline)
    assert "does not go on" in server.session.close_reason


def test_a_heartbeat_waits_for_the_end_of_a_transaction() -> None:
    """A client takes nothing but rows between a row with `more` and the last one."""
    session = Server().session
    stream = session.open_stream(b"s", None, StreamOpen(), 0.0)
    row = StreamRow("b", Item(b"k", cas=9), False, 5, 1, 2.5)
    stream.row(row, 1.0, has_more=True)
    session.data_to_send()
    assert stream.next_deadline() is None
    session.deadline_passed(100.0)
    assert session.data_to_send() == b""
    stream.row(row, 101.0, has_more=False)
    session.data_to_send()
    assert stream.next_deadline() == 111.0
    session.deadline_passed(111.0)
    (mark,) = frames(session.data_to_send())
    assert mark.opcode == Opcode.STREAM_MARK


def test_times_that_are_none_are_told_as_0() -> None:
    """Another program may have written anything into the log."""
    session = Server().session
    stream = session.open_stream(b"s", None, StreamOpen(), 0.0)
    for time in (float("nan"), float("inf"), -1.0, 1e300):
        stream.row(StreamRow("b", Item(b"k"), False, 5, 1, time), 1.0, has_more=False)
    pushed = frames(session.data_to_send())
    assert [frame.number(FlexKey.TIME) for frame in pushed] == [0] * 4


def test_streams_count_credit_and_show_that_they_live() -> None:
    """Heartbeats, room, and a client that owes credit for too long."""
    server = Server()
    session = server.session
    stream = session.open_stream(b"s", b"lane", StreamOpen(window_bytes=1), 0.0)
    assert stream.window_bytes == 4096
    row = StreamRow("b", Item(b"k", 3, bytes(3000), cas=9), False, 5, 1, 2.5)
    stream.row(row, 1.0, has_more=True)
    assert stream.has_room
    stream.row(row, 1.0, has_more=False)
    assert not stream.has_room
    pushed = frames(session.data_to_send())
    assert stream.owed_bytes == sum(len(encode_frame(frame)) for frame in pushed)
    assert [frame.flags for frame in pushed] == [Flag.QUIET | Flag.MORE, Flag.QUIET]
    assert pushed[0].opaque == 0x80000001
    assert dict(pushed[0].flex) == {
        FlexKey.LANE: b"lane",
        FlexKey.DCP_ID: b"s",
        FlexKey.VBUCKET: b"\0\3",
        FlexKey.LSN: (5).to_bytes(8, "big"),
        FlexKey.ORIGIN: (1).to_bytes(4, "big"),
        FlexKey.TIME: (2_500_000).to_bytes(8, "big"),
        FlexKey.BUCKET: b"b",
    }
    session.deadline_passed(11.0)
    (mark,) = frames(session.data_to_send())
    assert messages.Mark.decode(mark.payload).kind == MarkKind.HEARTBEAT
    assert session.deadline_passed(301.0) == [
        StreamOver(b"s", Status.TOO_BUSY, "no credit came for too long")
    ]
    stream.credit(stream.owed_bytes, 301.0)
    assert stream.has_room
    assert not stream.is_starved(10_000.0)
    server.feed(encode_frame(Frame(Opcode.MUTATION, 0x80000002, status=Status.UNKNOWN_COMMAND)))
    reason = f"the client refused a row with status {Status.UNKNOWN_COMMAND:#06x}"
    assert StreamOver(b"s", Status.INVALID_STATE, reason) in server.events
    stream.mark(MarkKind.CAUGHT_UP, VClock({1: 5}), 302.0, 1)
    server.feed(encode_frame(Frame(Opcode.MUTATION, 0x99999999, status=1)))
    assert session.unawaited == 1


def test_what_comes_in_parts_is_read_as_a_whole() -> None:
    """Who answers from bytes is given a frame once all of it is there, and no part of it again."""
    server = Server()
    given: list[bytes] = []

    def read(data: bytes) -> int:
        given.append(data)
        return len(frame) if data.startswith(frame) else 0

    server.session.read = read
    frame = encode_frame(
        Frame(Opcode.GET, 7, messages.encode_get(b"k"), flex={FlexKey.VBUCKET: bytes(2)})
    )
    for part in (frame[:9], frame[9:20], frame[20:] + frame[:5]):
        assert list(server.session.receive_data(part, 0.0)) == []
    assert given == [frame[:9], frame + frame[:5]]
    assert server.session.kept_bytes == 5
