"""Lines, commands and rows of Synapse's protocol."""

from __future__ import annotations

import json

import pytest

from interop.synapsemodel import captures, wire
from logweir.errors import DecodeError, LimitExceeded, LocalProtocolError
from logweir.replication.synapse.wire.codec import (
    Dialect,
    FederationAck,
    LineBuffer,
    NotText,
    Plain,
    Position,
    Rdata,
    Replicate,
    decode_row_value,
    encode,
    encode_row,
    instance_label,
    parse,
    read_label,
    row_json,
    row_text,
    stream_of_space,
    text_of,
)

GOLDEN = [
    ("POSITION events master 31 31", Dialect.D3, Position("events", "master", 31, 31)),
    ("POSITION typing master 8 9", Dialect.D4, Position("typing", "master", 8, 9)),
    ("POSITION events master 31", Dialect.D2, Position("events", "master", 31, 31)),
    ("POSITION events 31", Dialect.D1, Position("events", "master", 31, 31)),
    ("RDATA events batch [1, 2]", Dialect.D1, Rdata("events", "master", None, "[1, 2]")),
    ("RDATA events w1 -5 [1,2]", Dialect.D3, Rdata("events", "w1", -5, "[1,2]")),
    ("SERVER logweir.test", Dialect.D1, Plain("SERVER", "logweir.test")),
    ("PING 1795206750075", Dialect.D1, Plain("PING", "1795206750075")),
    ("ERROR server shutting down", Dialect.D1, Plain("ERROR", "server shutting down")),
    ("NAME follower one", Dialect.D1, Plain("NAME", "follower one")),
    ("REPLICATE events 31", Dialect.D1, Replicate("events", 31)),
    ("REPLICATE ALL NOW", Dialect.D1, Replicate("ALL", None)),
    ("REPLICATE ", Dialect.D3, Replicate()),
    ("FEDERATION_ACK 1", Dialect.D1, FederationAck("master", 1)),
    ("FEDERATION_ACK sender1 1", Dialect.D3, FederationAck("sender1", 1)),
    ("REMOTE_SERVER_UP other.example", Dialect.D3, Plain("REMOTE_SERVER_UP", "other.example")),
    ("SYNC abc", Dialect.D1, Plain("SYNC", "abc")),
]


@pytest.mark.parametrize(("line", "dialect", "command"), GOLDEN)
def test_golden_lines_in_both_directions(line: str, dialect: Dialect, command: object) -> None:
    """Text to command, and back to the same bytes."""
    assert parse(line, dialect) == command
    assert encode(command, dialect) == line.encode() + b"\n"  # type: ignore[arg-type]


def test_worked_bytes_of_one_line() -> None:
    """Every byte, with the LF."""
    data = bytes.fromhex("504f534954494f4e206576656e7473206d61737465722033312033310a")
    assert encode(Position("events", "master", 31, 31), Dialect.D3) == data


@pytest.mark.parametrize(
    ("line", "dialect"),
    [
        ("USER_SYNC @a:b start 1600000000000", Dialect.D1),
        ("USER_SYNC XZbue @a:b end 1600000000000", Dialect.D3),
        ("USER_SYNC XZbue @a:b None start 1", Dialect.D4),
        ("USER_SYNC XZbue @a:b start 1", Dialect.D4),
        ("CLEAR_USER_SYNC XZbue", Dialect.D3),
        ("REMOVE_PUSHER app key @a:b", Dialect.D1),
        ('INVALIDATE_CACHE get_user ["@a:b"]', Dialect.D1),
        ("INVALIDATE_CACHE get_user null", Dialect.D1),
        ('LOCK_RELEASED ["master","n","k"]', Dialect.D4),
        ("NEW_ACTIVE_TASK t1", Dialect.D4),
        ("CANCEL_TASK t1", Dialect.D4),
    ],
)
def test_commands_without_effect_are_known(line: str, dialect: Dialect) -> None:
    """They are checked and give their text."""
    command = parse(line, dialect)
    assert isinstance(command, Plain)
    assert command.known


@pytest.mark.parametrize(
    ("line", "dialect"),
    [
        ("USER_SYNC @a:b stop 1", Dialect.D1),
        ("USER_SYNC i @a:b maybe 1", Dialect.D3),
        ("USER_SYNC @a:b start x", Dialect.D1),
        ("USER_SYNC @a:b start", Dialect.D3),
        ("REPLICATE events x", Dialect.D1),
        ("REPLICATE events", Dialect.D1),
        ("REPLICATE  5", Dialect.D1),
        ("RDATA events 5", Dialect.D1),
        ("RDATA  5 []", Dialect.D1),
        ("RDATA events master +5 []", Dialect.D3),
        ("RDATA events master 5_0 []", Dialect.D3),
        ("RDATA events master \u0665 []", Dialect.D3),
        ("RDATA events master 9223372036854775808 []", Dialect.D3),
        ("POSITION events 5", Dialect.D3),
        ("POSITION events master 5 x", Dialect.D3),
        ("FEDERATION_ACK a b c", Dialect.D3),
        ("USER_IP @a:b nothing", Dialect.D1),
        ("USER_IP @a:b {}", Dialect.D1),
        ("LOCK_RELEASED 5", Dialect.D4),
        ("LOCK_RELEASED " + "[" * 5000, Dialect.D4),
        ("REMOVE_PUSHER a b", Dialect.D1),
    ],
)
def test_bad_arguments_are_our_error(line: str, dialect: Dialect) -> None:
    """And nothing else."""
    with pytest.raises(DecodeError):
        parse(line, dialect)


def test_a_list_that_is_no_json_is_told_as_that() -> None:
    """The peer reads it behind the command's name."""
    with pytest.raises(DecodeError, match="its list is not JSON"):
        parse("USER_IP @a:b nothing", Dialect.D1)


def test_extreme_tokens_are_taken() -> None:
    """Signed 64 bits."""
    for token in (2**63 - 1, -(2**63)):
        assert parse(f"POSITION s {token}", Dialect.D1) == Position("s", "master", token, token)


def test_words_that_are_not_known_are_told_apart() -> None:
    """Case counts, an empty word is one."""
    for line in ("FROB 1", "ping 1", " PING 1", ""):
        command = parse(line, Dialect.D3)
        assert isinstance(command, Plain)
        assert not command.known


def test_access_token_of_user_ip_is_not_kept() -> None:
    """Only the user is."""
    line = 'USER_IP @a:b ["token","10.0.0.1","agent",null,1]'
    assert parse(line, Dialect.D1) == Plain("USER_IP", "@a:b")


@pytest.mark.parametrize(
    "command",
    [
        Rdata("a b", "master", 1, "[]"),
        Rdata("", "master", 1, "[]"),
        Rdata("s", "w 1", 1, "[]"),
        Rdata("s", "master", 1, "[\n]"),
        Plain("PING", "a\nb"),
    ],
)
def test_what_would_break_a_line_is_not_written(command: Rdata | Plain) -> None:
    """A space in an identifier, a LF anywhere."""
    with pytest.raises(LocalProtocolError):
        encode(command, Dialect.D3)


def test_longest_line_is_written_and_one_more_byte_is_not() -> None:
    """16 384 bytes without the LF."""
    fits = Rdata("s", "m", 1, "[" + "1" * 16370 + "]")
    assert len(encode(fits, Dialect.D3)) == 16385
    with pytest.raises(LimitExceeded):
        encode(fits._replace(row=fits.row + " "), Dialect.D3)


def test_lines_in_any_portions() -> None:
    """Whole feed equals byte by byte; the limit is kept in the middle of a line too."""
    data = b"".join(wire(text) for _, text in captures()["D3/live"]["records"])
    whole, _ = LineBuffer().feed(data)
    buffer = LineBuffer()
    pieces = [line for byte in data for line in buffer.feed(bytes((byte,)))[0]]
    assert pieces == whole
    for size, fine in ((16384, True), (16385, False)):
        assert (LineBuffer().feed(b"x" * size)[1] is None) is fine
        lines, problem = LineBuffer().feed(b"a\n" + b"x" * size + b"\nb\n")
        assert lines[0] == b"a"
        assert (problem is None) is fine
        assert len(lines) == (3 if fine else 1)


def test_text_loses_a_carriage_return_and_nothing_else() -> None:
    """Not UTF-8 is told apart from other faults."""
    assert text_of(b"PING 5\r") == "PING 5"
    assert text_of(b"PING  5 ") == "PING  5 "
    with pytest.raises(NotText):
        text_of(b"PING \xff\xfe")


ROWS = [
    '["ev", ["$e", null, true, false, 0.5, -1, 18446744073709551615]]',
    '{"a": {"b": []}}',
    '"h\\u00e9llo \\ud83d\\ude00"',
    '"lone \\ud800 half"',
    "null",
    "[]",
    "-9223372036854775808",
    '["\\u0000\\n\\"\\\\"]',
    "[" * 400 + "]" * 400,
]


def shown(row: str, spaced: bool) -> str:
    """A row that was stored, as JSON."""
    return row_text(decode_row_value(encode_row(row)), spaced=spaced)


def test_rows_keep_their_values() -> None:
    """JSON → MsgPack → JSON, compact and with spaces."""
    for spaced in (True, False):
        texts = [shown(row, spaced) for row in ROWS]
        assert [json.loads(text) for text in texts] == [json.loads(text) for text in ROWS]
        assert all(text.isascii() for text in texts)
    assert shown("[1, 2]", True) == "[1, 2]"
    assert shown("[1, 2]", False) == "[1,2]"


def test_recorded_rows_are_written_as_they_came() -> None:
    """Byte for byte what the real server wrote, in the spacing of its dialect."""
    for name, spaced in (("D1/live", True), ("D3/live", False)):
        for who, line in captures()[name]["records"]:
            if who == "S" and line.startswith("RDATA"):
                row = line.split(" ", 3 if spaced else 4)[-1]
                assert shown(row, spaced) == row


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "[",
        "[NaN]",
        "NaN",
        "[-Infinity]",
        "1, 2",
        "1],[2",
        '["a", [1]',
        '[2], "b"]',
        "[1],NaN,[2]",
        "[18446744073709551616]",
        "[" * 600 + "]" * 600,
        "[" * 100000,
        "{1: 2}",
        "[1] x",
    ],
)
def test_row_that_cannot_be_stored_is_refused(bad: str) -> None:
    """No JSON, more or less than one value, or nothing that MsgPack holds."""
    with pytest.raises(DecodeError):
        encode_row(bad)


def test_values_that_json_does_not_have() -> None:
    """Binary, special numbers and maps with other keys have one form each."""
    value = [b"\x00", float("nan"), float("-inf"), {1: 2}, {"a": {True: None}}]
    assert json.loads(row_json(value)) == [
        {"$bin": "AA=="},
        {"$float": "nan"},
        {"$float": "-inf"},
        {"$map": [[1, 2]]},
        {"a": {"$map": [[True, None]]}},
    ]


def test_names_of_spaces_and_instances() -> None:
    """Streams have no spaces in their names; epochs do not meet names of instances."""
    assert stream_of_space("my space/\u00e9~") == "my%20space%2F%C3%A9%7E"
    assert instance_label("master", 1) == "master"
    assert instance_label("master", 3) == "master#3"
    for name in ("master", "w#2", "100%", "a#b%23"):
        for epoch in (1, 2, 17):
            assert read_label(instance_label(name, epoch)) == (name, epoch)
