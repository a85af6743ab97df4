"""Packets of memcached and TAP: golden bytes, what is refused, and any portions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.tapmodel import packets, vectors

from logweir.errors import DecodeError, LimitExceeded, LogweirError, RemoteProtocolError
from logweir.limits import TAP_BODY_BYTES, TAP_BODY_MAX_BYTES
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_ack,
    encode_answer,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    NO_OPTIONS,
    Connect,
    Marks,
    Opaque,
    Option,
    TapMessage,
    decode_connect,
    decode_filter,
    decode_tap,
    encode_connect,
    encode_tap,
)

CONNECT = vectors("connect")
STREAM = vectors("stream")
ANSWERS = vectors("answers")

MEANT: dict[str, Connect] = {
    "C1 bare, no extras": Connect(b"node1"),
    "C2 no options": Connect(b"node1"),
    "C3 BACKFILL -1": Connect(b"node1", Option.BACKFILL, 2**64 - 1),
    "C4 DUMP": Connect(b"node1", Option.DUMP),
    "C5 LIST_VBUCKETS {1,2,5}": Connect(b"node1", Option.LIST_VBUCKETS, vbuckets=(1, 2, 5)),
    "C6 TAKEOVER + LIST {0}": Connect(
        b"node1", Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS, vbuckets=(0,)
    ),
    "C7 SUPPORT_ACK": Connect(b"node1", Option.SUPPORT_ACK),
    "C8 KEYS_ONLY": Connect(b"node1", Option.REQUEST_KEYS_ONLY),
    "C9 CHECKPOINT, pairs (0,6),(3,9)": Connect(
        b"node1", Option.CHECKPOINT, checkpoints=((0, 6), (3, 9))
    ),
    "C10 CHECKPOINT, body omitted": Connect(b"node1", Option.CHECKPOINT),
    "C11 REGISTERED, closed-only byte 1": Connect(
        b"node1", Option.REGISTERED_CLIENT, closed_only=True
    ),
    "C12 DUMP + FIX_FLAG_BYTEORDER": Connect(b"node1", Option.DUMP | Option.FIX_FLAG_BYTEORDER),
    "C13 all body-bearing: BACKFILL 5, LIST {0,1}, ACK, CHECKPOINT {(0,6)}, REGISTERED 0": Connect(
        b"node1",
        Option.BACKFILL
        | Option.LIST_VBUCKETS
        | Option.SUPPORT_ACK
        | Option.CHECKPOINT
        | Option.REGISTERED_CLIENT,
        5,
        (0, 1),
        ((0, 6),),
        closed_only=False,
    ),
}


@pytest.mark.parametrize("name", CONNECT)
def test_each_connect_vector_means_what_it_says(name: str) -> None:
    """Every option and body; written again it is the same, but for extras that were left out."""
    (packet,) = packets(CONNECT[name])
    connect = decode_connect(packet)
    assert connect == MEANT[name]
    if packet.extras:
        assert encode_connect(connect) == CONNECT[name]


@pytest.mark.parametrize("name", STREAM)
def test_each_stream_vector_survives_reading_and_writing(name: str) -> None:
    """Both forms, with and without private bytes."""
    (packet,) = packets(STREAM[name])
    if packet.opcode == Opcode.NOOP:
        assert encode_request(packet) == STREAM[name]
        return
    message = decode_tap(packet)
    in_order = name == "mutation-2.x-netorder"
    assert encode_tap(message, fix_flags=in_order) == STREAM[name]


def test_item_flags_mean_the_same_in_both_orders() -> None:
    """With packet flag 4 as they stand, without it reversed, and as they stand on request."""
    (ordered,) = packets(STREAM["mutation-2.x-netorder"])
    (reversed_,) = packets(STREAM["mutation-2.x-legacy-order"])
    assert decode_tap(ordered).item_flags == decode_tap(reversed_).item_flags == 0x01020304
    assert decode_tap(reversed_, big_endian_producer=True).item_flags == 0x04030201
    assert decode_tap(ordered).expiry == 1_400_000_000
    assert decode_tap(ordered).private == bytes.fromhex("000000000000000702")


def test_a_value_left_out_is_not_an_empty_value() -> None:
    """Packet flag 2 is kept apart."""
    absent = decode_tap(packets(STREAM["mutation-no-value"])[0])
    empty = decode_tap(packets(STREAM["mutation-empty-value"])[0])
    assert (absent.has_value, empty.has_value) == (False, True)
    assert absent.value == empty.value == b""


def test_numbers_of_control_messages() -> None:
    """Subtypes, states and checkpoint ids in both forms."""
    numbers = {name: decode_tap(packets(data)[0]).number for name, data in STREAM.items()
               if name != "noop"}  # fmt: skip
    assert numbers["opaque-close-tap-stream"] == Opaque.CLOSE_TAP_STREAM
    assert numbers["opaque-unknown-99"] == 99
    assert numbers["vbucket-set-pending"] == 3
    assert numbers["checkpoint-start-1.x"] == numbers["checkpoint-end-1.x"] == 255
    assert numbers["checkpoint-start-2.x"] == numbers["checkpoint-end-2.x"] == 256


def test_an_opaque_without_subtype_is_a_sign_of_life() -> None:
    """A Go server sends it as heartbeat."""
    message = TapMessage(Opcode.TAP_OPAQUE, wants_ack=True)
    assert decode_tap(packets(encode_tap(message))[0]) == message


def test_answers_have_their_golden_bytes() -> None:
    """Acknowledgements, refusals, the answer to NOOP."""
    names = list(ANSWERS)
    assert encode_ack(Opcode.TAP_MUTATION, 7) == ANSWERS[names[0]]
    assert encode_ack(Opcode.TAP_MUTATION, 7, Status.TEMPORARY_FAILURE) == ANSWERS[names[1]]
    assert encode_ack(Opcode.TAP_VBUCKET_SET, 19) == ANSWERS[names[2]]
    request = Packet(Opcode.TAP_CONNECT, opaque=0x77)
    assert encode_answer(request, Status.NOT_SUPPORTED) == ANSWERS[names[3]]
    assert encode_answer(Packet(Opcode.NOOP)) == ANSWERS[names[4]]


ALL = b"".join((*CONNECT.values(), *STREAM.values(), *ANSWERS.values()))


@pytest.mark.parametrize("step", [1, 7, 24, 100])
def test_portions_do_not_matter(step: int) -> None:
    """Fed in pieces of any size the packets are the same."""
    buffer = PacketBuffer()
    found: list[Packet] = []
    for at in range(0, len(ALL), step):
        new, problem = buffer.feed(ALL[at : at + step])
        assert problem is None
        found += new
    assert found == packets(ALL)
    assert len(buffer) == 0


def test_nothing_is_found_before_a_packet_is_whole() -> None:
    """Each vector, cut at each byte."""
    for data in (*CONNECT.values(), *STREAM.values(), *ANSWERS.values()):
        for cut in range(len(data)):
            found, problem = PacketBuffer().feed(data[:cut])
            assert (found, problem) == ([], None)


def test_flipped_bits_give_a_value_or_our_error() -> None:
    """Each bit of each vector; a malformed packet never raises anything else."""
    seen = 0
    for data in (*CONNECT.values(), *STREAM.values()):
        for bit in range(len(data) * 8):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            found, _ = PacketBuffer().feed(bytes(broken))
            for packet in found:
                for decode in (decode_connect, decode_tap):
                    try:
                        decode(packet)
                    except LogweirError:
                        seen += 1
    assert seen > 1000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00" * 24, "magic"),
        (b"get key\r\n" + b" " * 20, "magic"),
        (bytes.fromhex("80000005000000000000000400000000") + bytes(8) + b"four", "in a body of 4"),
        (
            bytes.fromhex("80410001080000000000000900000000") + bytes(8) + b"\x00\x02" + bytes(7),
            "private",
        ),
    ],
)
def test_lengths_and_magics_that_cannot_be_end_the_connection(data: bytes, text: str) -> None:
    """What cannot be split says why, and nothing more is found."""
    buffer = PacketBuffer()
    good = STREAM["noop"]
    found, problem = buffer.feed(good + data)
    assert len(found) == 1
    assert isinstance(problem, DecodeError)
    assert text in str(problem)
    assert buffer.feed(good) == ([], problem)


@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_a_body_above_the_limit_is_passed_over(step: int) -> None:
    """At the limit it is kept; one more byte and only its header is given, then things go on."""
    at_limit = encode_request(Packet(Opcode.SET, b"k", bytes(TAP_BODY_BYTES - 9), bytes(8)))
    above = encode_request(Packet(Opcode.SET, b"k", bytes(TAP_BODY_BYTES - 8), bytes(8), opaque=7))
    buffer = PacketBuffer()
    data = at_limit + above + STREAM["noop"]
    found: list[Packet] = []
    for at in range(0, len(data), step):
        found += buffer.feed(data[at : at + step])[0]
    assert [packet.too_big for packet in found] == [False, True, False]
    assert (found[1].opaque, found[1].key) == (7, b"")
    assert found[2].opcode == Opcode.NOOP


def test_a_body_that_nobody_means_is_refused() -> None:
    """Above the second limit the connection ends at once."""
    header = bytes.fromhex("8001000000000000") + (TAP_BODY_MAX_BYTES + 1).to_bytes(4, "big")
    _, problem = PacketBuffer().feed(header + bytes(12))
    assert isinstance(problem, LimitExceeded)


def raw_connect(extras: bytes, value: bytes) -> Packet:
    """A TAP_CONNECT of any content."""
    return Packet(Opcode.TAP_CONNECT, b"n", value, extras)


@pytest.mark.parametrize(
    ("extras", "value", "answer"),
    [
        ("0000000000000001", "", Status.INVALID),
        ("00", "", Status.INVALID),
        ("00000001", "00000000000000", None),
        ("00000004", "", Status.NOT_SUPPORTED),
        ("00000004", "00", Status.NOT_SUPPORTED),
        ("00000006", "00030001", Status.NOT_SUPPORTED),
        ("00000042", "00020001", Status.NOT_SUPPORTED),
        ("00000040", "0001000000000000000000", Status.NOT_SUPPORTED),
    ],
)
def test_bad_connects_get_the_answer_of_a_real_server(
    extras: str, value: str, answer: Status | None
) -> None:
    """A date that is missing: closed in silence; short lists: 83; odd extras: 04."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_connect(raw_connect(bytes.fromhex(extras), bytes.fromhex(value)))
    assert caught.value.reply_hint == answer


def test_one_byte_behind_checkpoint_and_registered_is_of_the_client() -> None:
    """And undefined bits and what is left over do not matter."""
    connect = decode_connect(raw_connect(bytes.fromhex("000000c0"), b"\x01"))
    assert (connect.checkpoints, connect.closed_only) == ((), True)
    odd = decode_connect(raw_connect(bytes.fromhex("80001000"), b"left over"))
    assert odd.options & ~0x80001000 == NO_OPTIONS


@pytest.mark.parametrize(
    "packet",
    [
        Packet(Opcode.TAP_MUTATION, b"k", extras=bytes(8)),
        Packet(Opcode.TAP_MUTATION, b"", extras=bytes(16)),
        Packet(Opcode.TAP_DELETE, b"", extras=bytes(8)),
        Packet(Opcode.TAP_DELETE, b"k", extras=b""),
        Packet(Opcode.TAP_OPAQUE, extras=bytes(8), private=b"\0"),
        Packet(Opcode.TAP_VBUCKET_SET, extras=bytes(8)),
        Packet(Opcode.TAP_CHECKPOINT_START, extras=bytes(16)),
    ],
)
def test_stream_packets_without_their_parts_are_refused(packet: Packet) -> None:
    """Extras, key, private bytes or value are missing."""
    with pytest.raises(DecodeError):
        decode_tap(packet)


FILTER = bytes.fromhex("000200010000000000000006ffff0000000000000000")


def test_a_filter_has_its_golden_bytes() -> None:
    """CHANGE_VB_FILTER: a count, then vbuckets with ids; what is behind does not matter."""
    packet = Packet(Opcode.CHANGE_VB_FILTER, b"name", FILTER)
    assert decode_filter(packet) == ((1, 6), (65535, 0))
    assert decode_filter(replace(packet, value=FILTER + b"more")) == ((1, 6), (65535, 0))
    assert decode_filter(replace(packet, value=b"\0\0")) == ()


@pytest.mark.parametrize("length", range(len(FILTER)))
def test_a_filter_that_is_cut_short_is_refused(length: int) -> None:
    """At each byte: status 04; so are one without a name and one with extras."""
    packet = Packet(Opcode.CHANGE_VB_FILTER, b"name", FILTER[:length])
    for bad in (packet, replace(packet, key=b"", value=FILTER), replace(packet, extras=b"1234")):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_filter(bad)
        assert caught.value.reply_hint == Status.INVALID


def test_flipped_bits_of_a_filter_give_a_value_or_our_error() -> None:
    """Each bit of a filter."""
    for bit in range(8 * len(FILTER)):
        broken = bytearray(FILTER)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_filter(Packet(Opcode.CHANGE_VB_FILTER, b"name", bytes(broken)))
        except RemoteProtocolError:
            continue
        assert len(found) <= 2


def test_a_dump_is_whole_where_each_vbucket_that_began_has_ended() -> None:
    """Other marks end none."""
    marks = Marks()

    def mark(number: Opaque, vbucket: int) -> bool:
        marks.take(TapMessage(Opcode.TAP_OPAQUE, number=number, vbucket=vbucket))
        return marks.is_whole(ended_whole=True, eof_is_whole=False)

    assert not mark(Opaque.INITIAL_VBUCKET_STREAM, 3)
    assert not mark(Opaque.INITIAL_VBUCKET_STREAM, 4)
    assert not mark(Opaque.CLOSE_BACKFILL, 4)
    assert not mark(Opaque.ENABLE_AUTO_NACK, 3)
    assert mark(Opaque.CLOSE_BACKFILL, 3)
