"""Lines of memcached's text protocol as requests: any bytes, in any portions."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.tapmodel import Server

from logweir.limits import TAP_VALUE_BYTES, TEXT_KEYS_BYTES, TEXT_LINE_BYTES
from logweir.replication.memcached.wire import linekernel, tellkernel
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_answer,
)
from logweir.replication.memcached.wire.text import TextCodec
from logweir.store.schema.bulk import interpreted

PLAIN = interpreted(linekernel)
PLAIN_TELL = interpreted(tellkernel)

WORDS = st.sampled_from(
    [
        *(b"get", b"gets", b"gat", b"gats", b"set", b"add", b"append", b"cas", b"incr", b"decr"),
        *(b"touch", b"delete", b"noreply", b"a", b"bb", b"0", b"1", b"2", b"7", b"-1", b"+3"),
        *(b"99999999999999999999", b"18446744073709551615", b"9223372036854775808", b"1\t2"),
        *(b"2147483646", b"4294967297", b"1048577", b"\0", b"stats", b"flush_all", b"version"),
        *(b"quit", b"mn", b"mg", b"ms", b"md", b"ma", b"me", b"k", b"v", b"q", b"t", b"Oabc"),
        *(b"T30", b"N5", b"MA", b"C7", b"F9", b"b", b"YWE=", b"k" * 250, b"k" * 251, b"c", b"s"),
    ]
)
LINES = st.lists(WORDS, max_size=26).map(b" ".join)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\n", b"", b"\r", b"\r\nab\r\n", b"\r\na\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join) | st.binary(max_size=30)).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in portions."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def requests_of(portions: list[bytes]) -> tuple[bytes, bool]:
    """What comes of them, and whether the connection is to be ended."""
    codec, made = TextCodec(), b""
    for portion in portions:
        requests, problem = codec.feed(portion)
        made += requests
        assert len(codec) <= TEXT_KEYS_BYTES + TAP_VALUE_BYTES + 2**31
        if problem is not None:
            return made, True
    return made, False


@settings(deadline=None, max_examples=400)
@given(STREAMS, st.lists(st.integers(0, 2000), max_size=8))
@example(b"set a 0 0 2\r\nab\r\nget a\r\n", [1, 5, 12, 13, 14, 15, 16, 17, 20])
def test_portions_make_no_difference(data: bytes, places: list[int]) -> None:
    """Whole requests, the same ones however the lines come."""
    made, is_over = requests_of([data])
    again, _ = requests_of(cut(data, places))
    if len(data) <= TEXT_LINE_BYTES:
        assert not is_over
        assert again == made
    packets, problem = (buffer := PacketBuffer()).feed(made)
    assert problem is None
    assert len(buffer) == 0
    for packet in packets:
        assert Opcode(packet.opcode) is not None
        assert len(packet.key) <= 250 or packet.opcode == Opcode.STAT


@settings(deadline=None, max_examples=400)
@given(STREAMS)
def test_compiled_lines_are_the_plain_ones(data: bytes) -> None:
    """The same requests, numbers and end."""
    found = []
    for kernel in (linekernel, PLAIN):
        lines, at, made = kernel.Lines(records := bytearray()), 0, []
        while at < len(data):
            made.append((lines.take(data, at, 1024), lines.how, lines.at, lines.about))
            if lines.how != kernel.OTHER:
                break
            at = lines.about
        found.append((made, records))
    assert found[0] == found[1]


ANSWERS = st.lists(
    st.builds(
        lambda opcode, opaque, status, extras, key, value, cas: encode_answer(
            Packet(opcode, opaque=opaque), status, extras=extras, key=key, value=value, cas=cas
        ),
        st.sampled_from(list(Opcode)),
        st.builds(
            lambda form, low: form << 24 | low,
            st.integers(0, 20),
            st.sampled_from([0, 1, 7, 40, 1 << 22, 1 << 23]),
        ),
        st.sampled_from(list(Status)),
        st.sampled_from([b"", bytes(4), b"\xff" * 4, bytes(3)]),
        st.sampled_from([b"", b"key"]),
        st.sampled_from([b"", b"v", b"\xff" * 8, bytes(700)]),
        st.sampled_from([0, 1, 2**64 - 1]),
    )
).map(b"".join)


@settings(deadline=None, max_examples=400)
@given(ANSWERS, st.binary(min_size=300, max_size=700))
def test_compiled_answers_are_the_plain_ones(answers: bytes, records: bytes) -> None:
    """The same lines and what is left, whatever the answers are."""
    found = []
    for kernel in (tellkernel, PLAIN_TELL):
        teller, said = kernel.Teller(left := bytearray(records)), None
        with contextlib.suppress(IndexError):  # too few records
            said = teller.tell(answers, 1_800_000_000.5)
        found.append((said, teller.failed, left))
    assert found[0] == found[1]


@pytest.mark.parametrize("kernel", [tellkernel, PLAIN_TELL])
def test_a_part_of_an_answer_is_refused(kernel: object) -> None:
    """Lengths are not believed."""
    whole = encode_answer(Packet(Opcode.NOOP), value=b"text")
    for stop in range(1, len(whole)):
        with pytest.raises(IndexError):
            kernel.Teller(bytearray()).tell(whole[:stop], 0.0)


@pytest.mark.parametrize(
    ("begin", "most"), [(b"set ", TEXT_LINE_BYTES), (b"get ", TEXT_KEYS_BYTES)]
)
def test_a_line_without_end_is_bounded(begin: bytes, most: int) -> None:
    """The client is told, and the connection ends, when it has grown too long."""
    server = Server()
    sent = 0
    while not server.session.close_reason:
        portion = begin if not sent else b"k " * 50
        said = server.feed(portion)
        sent += len(portion)
        assert sent <= most + 100
        assert server.session.kept_bytes <= most + 100
    assert sent > most
    assert said == b"CLIENT_ERROR line too long\r\n"


def test_a_huge_value_is_passed_over() -> None:
    """It is refused at once, and what comes behind it is a command again."""
    codec = TextCodec()
    made, _ = codec.feed(b"set a 0 0 500000000\r\n")
    assert codec.tell(encode_answer(PacketBuffer().feed(made)[0][0]), 0) == (
        b"SERVER_ERROR object too large for cache\r\n"
    )
    portion = bytes(1_000_000)
    for number in range(1, 501):
        assert codec.feed(portion) == (b"", None)
        assert len(codec) == 500_000_002 - number * len(portion)
    made, _ = codec.feed(b"\r\nmn\r\n")
    assert [packet.opcode for packet in PacketBuffer().feed(made)[0]] == [Opcode.NOOP]


def test_the_end_of_a_get_is_no_request_of_its_own() -> None:
    """A request for each key; what is told of the last one ends the `get`, a refusal too."""
    codec = TextCodec()
    requests, _ = codec.feed(b"get a bb \r\n")
    packets, _ = PacketBuffer().feed(requests)
    assert [(one.opcode, one.key) for one in packets] == [(Opcode.GETK, b"a"), (Opcode.GETK, b"bb")]
    missing = [encode_answer(one, Status.NOT_FOUND) for one in packets]
    assert codec.tell(b"".join(missing), 0) == b"END\r\n"
    refused = [encode_answer(packets[0], Status.TEMPORARY_FAILURE), missing[1]]
    assert codec.tell(b"".join(refused), 0) == b"SERVER_ERROR Temporary failure\r\n"
    assert codec.tell(missing[1], 0) == b"END\r\n"
