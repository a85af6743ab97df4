"""Greeting, frames, requests and answers of iproto: golden bytes and refusals."""

from __future__ import annotations

import base64
import contextlib
import uuid
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import ErrorCode, RemoteProtocolError, RequestError
from logweir.replication.iproto.wire import auth, codec
from logweir.replication.iproto.wire.codec import (
    Ballot,
    BrokenStream,
    RequestType,
    Splitter,
    decode_answer,
    decode_greeting,
    encode_greeting,
)
from logweir.replication.iproto.wire.requests import Request, decode_request, encode_request
from logweir.replication.service.verifiers import verifier
from logweir.wal.vclock import VClock

UUID = uuid.UUID("11111111-1111-4111-8111-111111111111")
SET = uuid.UUID("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa")


def body_of(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def decoded(frame: bytes) -> Request:
    spans, rest_at, _ = Splitter().split(frame)
    assert rest_at == len(frame)
    ((start, end),) = spans
    request = Request(-1)
    decode_request(frame, start, end, request)
    return request


def asked(header: dict[int, Any], body: object = None) -> bytes:
    payload = msgpack.packb(header) + (b"" if body is None else msgpack.packb(body))
    return codec.frame(payload)


def refused(header: dict[int, Any], body: object = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decoded(asked(header, body))
    return caught.value


# --- golden bytes ---------------------------------------------------------------------------------


def test_greeting_is_that_of_tarantool() -> None:
    """Two lines of 64 bytes; what we write we read."""
    noise = bytes(range(32))
    greeting = encode_greeting(UUID, noise)
    assert len(greeting) == 128
    assert greeting[:63].rstrip() == f"Tarantool 2.11.0 (Binary) {UUID}".encode()
    assert (greeting[63], greeting[127]) == (10, 10)
    assert greeting[64:108] == base64.b64encode(noise)
    read = decode_greeting(greeting)
    assert (read.version, read.instance, read.salt) == ((2, 11, 0), UUID, noise[:20])


@pytest.mark.parametrize(
    "line", ["SSH-2.0-x", "Tarantool 2.6 (Binary) " + str(UUID), "Tarantool 2.6.0 (Binary)", ""]
)
def test_foreign_greeting_is_refused(line: str) -> None:
    """Anything but a Tarantool gives a remote protocol error."""
    data = line.ljust(63).encode() + b"\n" + base64.b64encode(bytes(32)).ljust(63) + b"\n"
    with pytest.raises(RemoteProtocolError):
        decode_greeting(data)


def test_answer_to_insert_is_byte_for_byte_that_of_2_6_0() -> None:
    """INSERT of [78, "x"], sync 300, schema version 0x59."""
    answer = codec.encode_answer(300, 0x59, codec.data_body([body_of("92 4e a1 78")]))
    assert answer == body_of(
        "ce00000022 83 00ce00000000 01cf000000000000012c 05ce00000059 81 30 dd00000001 92 4e a178"
    )


def test_answer_to_ping_is_byte_for_byte_that_of_2_6_0() -> None:
    """An empty body is an empty map."""
    assert codec.encode_answer(7, 0x59, codec.EMPTY_BODY) == body_of(
        "ce00000018 83 00ce00000000 01cf0000000000000007 05ce00000059 80"
    )


def test_error_answer_has_message_and_stack() -> None:
    """Keys 31 and 52; the number in the header and in the stack."""
    error = RequestError(ErrorCode.NO_SUCH_SPACE, "Space '9999' does not exist")
    frame = codec.encode_error(7, 0x59, error)
    assert frame[5:28] == body_of("83 00ce00008024 01cf0000000000000007 05ce00000059")
    body = msgpack.unpackb(frame[28:], strict_map_key=False)
    assert body[0x31] == "Space '9999' does not exist"
    assert list(body[0x52][0][0]) == [0, 2, 1, 3, 4, 5]
    assert body[0x52][0][0][5] == 36
    answer = decode_answer(frame, 5, len(frame))
    assert answer.is_error
    assert answer.error().code == ErrorCode.NO_SUCH_SPACE


def test_replication_frames_are_byte_for_byte_those_of_2_6_0() -> None:
    """Vclock answers, heartbeat and acknowledgement as captured between two servers."""
    assert codec.encode_vclock_answer(VClock({1: 13})) == body_of("ce00000008 810000 8126 81010d")
    subscribed = codec.encode_vclock_answer(VClock({1: 14}), replica_id=1, replicaset=SET)
    assert subscribed[5:15] == body_of("82 0000 0201 82 26 81010e")
    heartbeat = codec.encode_heartbeat(1, 1.5)
    assert heartbeat == body_of("ce0000000f 83 0000 0201 04cb3ff8000000000000")
    assert codec.encode_ack(VClock({1: 14, 0: 9})) == body_of("ce00000008 810000 8126 81010e")
    assert encode_request(RequestType.VOTE, 0) == body_of("ce00000003 81 00 44")
    join = encode_request(RequestType.JOIN, 0, {0x24: str(UUID)})
    assert join[:10] == body_of("ce0000002b 81 00 41 81 24")[:10]


def test_ballot_is_that_of_2_6_0() -> None:
    """{29: {1: read-only, 4: loading, 2: vclock, 3: oldest vclock}}."""
    assert Ballot(False, VClock({1: 13}), VClock()).body() == body_of(
        "81 29 84 01c2 04c2 02 81010d 03 80"
    )
    body = msgpack.unpackb(Ballot(True, VClock({2: 5})).body(), strict_map_key=False)
    assert codec.decode_ballot(body) == Ballot(True, VClock({2: 5}))
    assert codec.decode_ballot({}) == Ballot()


def test_auth_vector_of_a_real_server() -> None:
    """A scramble that Tarantool 2.6.0 accepted, its frame, and the verifier that it kept."""
    noise = base64.b64decode("hkZxZt2/opJ7NHy1CY+gVjXfaa43cx9c4tHSchvDF8U=")
    proof = auth.scramble("opensesame", noise[:20])
    assert proof.hex() == "f131ae752c9a104240c4d8777b31aa7c05d7cc98"
    assert verifier("opensesame") == "zQhK9mPUPsUa2iw2m5R4395BUz8="
    assert auth.check(verifier("opensesame"), noise[:20], proof)
    assert not auth.check(verifier("opensesame2"), noise[:20], proof)
    assert not auth.check("no base64!", noise[:20], proof)
    frame = body_of(
        "ce0000002c 82 0007 0101 82 23a3766563 2192 a9636861702d73686131"
        "b4f131ae752c9a104240c4d8777b31aa7c05d7cc98"
    )
    request = decoded(frame)
    assert (request.type, request.sync, request.name) == (RequestType.AUTH, 1, "vec")
    assert request.tuple is not None
    assert auth.read_scramble(request.tuple) == proof
    assert auth.read_scramble(b"\x92\xa1x\xc4\x14" + proof) == proof
    assert auth.read_scramble(b"\x90") == b""


@pytest.mark.parametrize("array", [b"\x01", b"\x91\xa1x", b"\x92\x01\x02", b"\x92\xa1x\xa3abc"])
def test_malformed_scramble_is_error_20(array: bytes) -> None:
    """Too few parts, other types, another size."""
    with pytest.raises(RequestError) as caught:
        auth.read_scramble(array)
    assert caught.value.code == ErrorCode.INVALID_MSGPACK


# --- requests -------------------------------------------------------------------------------------


def test_select_of_asynctnt_is_read() -> None:
    """limit 2^64-1 keeps its low 32 bits; absent keys have their defaults."""
    body = {0x10: 281, 0x12: 2**64 - 1, 0x14: 2, 0x20: []}
    request = decoded(asked({0: 1, 1: 3}, body))
    assert (request.space_id, request.limit, request.iterator) == (281, 2**32 - 1, 2)
    assert (request.index_id, request.offset, request.key) == (0, 0, b"\x90")


def test_any_unsigned_length_is_taken() -> None:
    """tarantool-python sends the shortest form, others five bytes."""
    payload = msgpack.packb({0: 64, 1: 9})
    for length in (
        bytes((len(payload),)),
        b"\xcc\x05",
        b"\xcd\x00\x05",
        b"\xcf" + b"\0" * 7 + b"\5",
    ):
        assert decoded(length + payload).sync == 9


def test_subscribe_is_read() -> None:
    """Every key of a replica's request; component 0 and zeros of a vclock are left out."""
    body = {
        0x25: str(SET),
        0x24: str(UUID),
        0x26: {0: 4, 1: 14, 2: 0},
        0x06: 132608,
        0x50: False,
        0x51: [2],
        0x99: "unknown",
    }
    request = decoded(asked({0: 66}, body))
    assert (request.instance, request.replicaset) == (UUID, SET)
    assert request.vclock == VClock({1: 14})
    assert (request.server_version, request.anonymous) == (132608, False)
    assert list(request.id_filter) == [2]


@pytest.mark.parametrize(
    ("header", "body", "code", "words"),
    [
        ({0: 1, 1: 6}, {0x10: 512}, 69, "'limit'"),
        ({0: 1, 1: 6}, {}, 69, "'space id'"),
        ({0: 1, 1: 6}, None, 69, "'space id'"),
        ({0: 1, 1: 6}, [], 20, "packet body"),
        ({0: 1, 1: 6}, {0x10: "x", 0x12: 1, 0x20: []}, 20, "packet body"),
        ({0: 1, 1: 6}, {0x10: -1, 0x12: 1, 0x20: []}, 20, "packet body"),
        ({0: 2, 1: 6}, {0x10: 1, 0x21: {}}, 20, "packet body"),
        ({0: 2, 1: 6}, {0x10: 1}, 69, "'tuple'"),
        ({0: 4, 1: 6}, {0x10: 1, 0x21: []}, 69, "'key'"),
        ({0: 5, 1: 6}, {0x10: 1}, 69, "'key'"),
        ({0: 9, 1: 6}, {0x10: 1, 0x21: []}, 69, "'operations'"),
        ({0: 10, 1: 6}, {0x21: []}, 69, "'function name'"),
        ({0: 10, 1: 6}, {0x22: 5}, 20, "packet body"),
        ({0: 8, 1: 6}, {0x21: []}, 69, "'expression'"),
        ({0: 7, 1: 6}, {0x23: "vec"}, 69, "'tuple'"),
        ({0: 7, 1: 6}, {0x21: []}, 69, "'user name'"),
        ({0: 7, 1: 6}, None, 20, "missing request body"),
        ({0: 99, 1: 6}, None, 48, "Unknown request type 99"),
        ({0: 71, 1: 6}, {}, 48, "Unknown request type 71"),
        ({1: 6}, None, 48, "Unknown request type 0"),
        ({0: 64, 1: 6, 0x53: 1}, None, 20, "packet header"),
        ({0: 64, 1: 6, 0x0A: "x"}, None, 20, "packet header"),
        ({0: 64, 1: 6, 0x20: 1}, None, 20, "packet header"),
        ({0: 66, 1: 6}, {0x24: "no uuid", 0x26: {}}, 20, "UUID"),
        ({0: 66, 1: 6}, {0x24: str(UUID), 0x26: {-1: 1}}, 20, "VCLOCK"),
        ({0: 66, 1: 6}, {0x24: str(UUID), 0x26: {1: -1}}, 20, "VCLOCK"),
        ({0: 66, 1: 6}, {0x24: str(UUID), 0x26: [1]}, 20, "VCLOCK"),
        ({0: 66, 1: 6}, {0x24: str(UUID), 0x51: [32]}, 20, "ID_FILTER"),
        ({0: 66, 1: 6}, {0x24: str(UUID), 0x50: 1}, 20, "REPLICA_ANON"),
        ({0: 65, 1: 6}, None, 20, "request body"),
    ],
)
def test_refusal_is_that_of_2_6_0(
    header: dict[int, Any], body: object, code: int, words: str
) -> None:
    """Number and words as a real server answers."""
    error = refused(header, body)
    assert error.code == code
    assert words in error.message


@pytest.mark.parametrize(
    ("header", "body", "code", "words"),
    [
        ({0: 14, 1: 6}, {}, 230, "Unable to process BEGIN request out of stream"),
        ({0: 16, 1: 6, 0x0A: 0}, None, 230, "Unable to process ROLLBACK request out of stream"),
        ({0: 7, 1: 6, 0x0A: 1}, None, 229, "Unable to process AUTH request in stream"),
        ({0: 66, 1: 6, 0x0A: 1}, None, 229, "Unable to process SUBSCRIBE request in stream"),
        ({0: 17, 1: 6, 0x0A: 1}, None, 48, "Unknown request type 17"),
        ({0: 18, 1: 6, 0x0A: 1}, None, 229, "Unable to process 18 request in stream"),
        ({0: 14, 1: 6, 0x0A: 1}, {0x56: 5}, 20, "request body"),
        ({0: 14, 1: 6, 0x0A: 1}, {0x59: "2"}, 20, "request body"),
        ({0: 14, 1: 6, 0x0A: 1}, {"x": 2}, 20, "request body"),
        ({0: 14, 1: 6, 0x0A: 1}, [], 20, "request body"),
        ({0: 73, 1: 6}, None, 20, "request body"),
        ({0: 73, 1: 6}, {0x55: {}}, 20, "request body"),
    ],
)
def test_refusal_is_that_of_2_11(
    header: dict[int, Any], body: object, code: int, words: str
) -> None:
    """Number and words as they stand in its source."""
    error = refused(header, body)
    assert error.code == code
    assert words in error.message


def test_begin_is_read() -> None:
    """Its stream, time limit and isolation; what it does not know is passed over."""
    request = Request(-1)
    frame = asked({0: 14, 1: 6, 0x0A: 2**40}, {0x56: 2.5, 0x59: 3, 0x7F: "?", 0x61: True})
    decode_request(frame, 5, len(frame), request)
    assert (request.stream_id, request.timeout_seconds, request.isolation) == (2**40, 2.5, 3)


def test_sync_is_kept_for_the_answer_to_a_malformed_request() -> None:
    """What was read before the error is there."""
    request = Request(-1)
    frame = asked({0: 64, 1: 77, 0x53: 1})
    with pytest.raises(RequestError):
        decode_request(frame, 5, len(frame), request)
    assert request.sync == 77


@pytest.mark.parametrize("first", [b"\xa1x", b"\xff", b"\xc0", b"\x80", b"\xd0\x05"])
def test_length_that_is_not_unsigned_breaks_the_stream(first: bytes) -> None:
    """Error 20, and the frames before it are still given."""
    good = asked({0: 64})
    with pytest.raises(BrokenStream) as caught:
        Splitter().split(good + first + bytes(8))
    assert caught.value.cause.code == ErrorCode.INVALID_MSGPACK
    assert caught.value.spans == [(5, len(good))]


def test_frame_of_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    """The limit is checked on the length alone, before anything is kept."""
    spans, rest_at, needed = Splitter(100).split(b"\xce\x00\x00\x00\x64")
    assert (spans, rest_at, needed) == ([], 0, 105)
    with pytest.raises(BrokenStream):
        Splitter(100).split(b"\xce\x00\x00\x00\x65")


def test_frame_cut_at_each_byte_waits_for_the_rest() -> None:
    """Truncation is never an error, and what is needed is never less than what is there."""
    frame = asked({0: 3, 1: 300}, {0x10: 512, 0x21: [1, "x"]})
    for cut in range(len(frame)):
        spans, rest_at, needed = Splitter().split(frame[:cut])
        assert (spans, rest_at) == ([], 0)
        assert needed == 0 or cut < needed <= len(frame)


def test_each_flipped_bit_gives_a_request_or_our_error() -> None:
    """No other exception comes out of a damaged request."""
    frame = asked({0: 9, 1: 300}, {0x10: 512, 0x21: [1, "x"], 0x28: [["+", 1, 1]], 0x15: 1})
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            for start, end in Splitter().split(bytes(damaged))[0]:
                decode_request(bytes(damaged), start, end, Request(-1))
        except (RequestError, BrokenStream):
            continue


@given(st.binary(max_size=300))
def test_garbage_gives_requests_or_our_errors(data: bytes) -> None:
    """As a stream, as one request, as one answer, as a greeting."""
    try:
        for start, end in Splitter().split(data)[0]:
            decode_request(data, start, end, Request(-1))
    except (RequestError, BrokenStream):
        pass
    for kind in range(0, 74):
        framed = bytes((0x81, 0x00, kind)) + data
        with contextlib.suppress(RequestError):
            decode_request(framed, 0, len(framed), Request(-1))
    with contextlib.suppress(RemoteProtocolError):
        codec.decode_answer(data, 0, len(data))
    with contextlib.suppress(RemoteProtocolError):
        decode_greeting(data)
