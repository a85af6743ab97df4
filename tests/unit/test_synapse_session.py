"""The server's session against everything that was sent to real servers."""

from __future__ import annotations

import pytest

from interop.synapsemodel import captures, wire
from logweir.replication.synapse.server_session import ServerSession
from logweir.replication.synapse.wire.codec import Dialect, FederationAck, Plain, Rdata, Replicate


def session(dialect: Dialect = Dialect.D1) -> ServerSession:
    """A session whose greeting was taken."""
    made = ServerSession(0.0, dialect=dialect, server_name="logweir.test", milliseconds=lambda: 7)
    assert made.data_to_send() == b"SERVER logweir.test\nPING 7\n"
    return made


ERRORS = [name for name in captures() if "/err_" in name]

TOLERATED = ("blank_line", "crlf_blank", "one_word_ping", "unknown_stream")
"""What real servers drop a follower for and we do not, at least not the session."""


@pytest.mark.parametrize("name", ERRORS)
def test_faults_of_followers_are_met_as_a_real_server_meets_them(name: str) -> None:
    """Closed where the real server closed, with an ERROR where it had one, but for a few."""
    records = captures()[name]["records"]
    sent = [text for who, text in records if who == "C"]
    error = any(who == "S" and text.startswith("ERROR") for who, text in records)
    stayed = any(who == "#" and text.startswith("still open") for who, text in records)
    made = session(Dialect(name[:2]))
    made.receive_data(wire(sent[0]), 1.0)
    answer = made.data_to_send()
    if any(name.endswith(one) for one in TOLERATED):
        assert not made.close_reason
        return
    if "%" not in sent[0]:  # the real one fails while it writes that answer
        assert answer.startswith(b"ERROR ") == error
    assert bool(made.close_reason) == (not stayed)


def test_recorded_commands_of_followers_are_taken() -> None:
    """What real workers and the raw follower sent gives events or nothing, and no fault."""
    for name in (
        "D1/client_normal",
        "D3/client_normal",
        "D1/client_cmds_sender",
        "D3/client_cmds_sender",
    ):
        made = session(Dialect(name[:2]))
        for who, text in captures()[name]["records"]:
            if who == "C" and not text.startswith("GET"):
                made.receive_data(wire(text), 1.0)
        assert not made.close_reason, name


def test_subscriptions_and_acknowledgements_become_events() -> None:
    """In both dialects that are served."""
    made = session()
    lines = b"REPLICATE events 5\nREPLICATE ALL NOW\nREPLICATE typing now\nREPLICATE s -5\n"
    assert made.receive_data(lines, 1.0) == [
        Replicate("events", 5),
        Replicate("ALL", None),
        Replicate("typing", None),
        Replicate("s", -5),
    ]
    assert made.receive_data(b"FEDERATION_ACK 9\nREMOTE_SERVER_UP x.y\n", 1.0) == [
        FederationAck("master", 9),
        Plain("REMOTE_SERVER_UP", "x.y"),
    ]
    newer = session(Dialect.D3)
    assert newer.receive_data(b"REPLICATE \nREPLICATE events 1\nFEDERATION_ACK w 9\n", 1.0) == [
        Replicate("ALL", None),
        Replicate("ALL", None),
        FederationAck("w", 9),
    ]


def test_name_is_remembered_and_changed() -> None:
    """A second NAME renames."""
    made = session()
    made.receive_data(b"NAME one\nNAME two words\n", 1.0)
    assert made.name == "two words"


def test_access_token_of_user_ip_is_nowhere_in_the_session() -> None:
    """The line is checked and forgotten."""
    made = session()
    line = b'USER_IP @a:b ["secret-token","10.0.0.1","agent","DEV",1]\n'
    assert made.receive_data(line, 1.0) == []
    assert "secret" not in repr([getattr(made, name) for name in vars(made)])


def test_follower_that_pinged_is_timed_out_and_one_that_did_not_is_not() -> None:
    """25 s after the last command; PING of ours after 5 s without another command."""
    armed, never = session(), session()
    armed.receive_data(b"PING 1\n", 0.0)
    assert armed.next_deadline() == 5.0
    armed.deadline_passed(5.0)
    assert armed.data_to_send() == b"PING 7\n"
    armed.put(Rdata("s", "master", 1, "[]"), 9.0)
    armed.deadline_passed(10.0)
    assert armed.data_to_send() == b"RDATA s 1 []\n"
    for made in (armed, never):
        made.deadline_passed(25.0)
        never.deadline_passed(1000.0)
    assert armed.data_to_send() == b"ERROR ping timeout\n"
    assert armed.close_reason
    assert not never.close_reason


def test_line_of_16384_bytes_is_taken_and_one_more_is_not() -> None:
    """Both as whole lines."""
    made = session()
    made.receive_data(b"PING " + b"x" * 16379 + b"\n", 1.0)
    assert not made.close_reason
    made.receive_data(b"PING " + b"x" * 16380 + b"\n", 1.0)
    assert made.data_to_send() == b"ERROR Line length exceeded\n"
    assert made.receive_data(b"PING 1\n", 1.0) == ()


def test_error_text_is_one_short_readable_line() -> None:
    """Whatever the follower sent."""
    made = session()
    made.receive_data(b"FROB\x01" + b"y" * 5000 + b" %s\n", 1.0)
    answer = made.data_to_send()
    assert answer.startswith(b"ERROR invalid command: FROB?")
    assert answer.count(b"\n") == 1
    assert len(answer) < 400
