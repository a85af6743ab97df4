"""Bundles, chunks and sessions of Tank over all inputs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tankserving import decode_chunk

from interop.tankmodel import Broker, MemoryTopics, frames
from logweir.errors import DecodeError, LimitExceeded
from logweir.replication.tank.wire.codec import decode_answer, encode_request
from logweir.replication.tank.wire.messages import (
    Fetch,
    FetchAnswer,
    FetchPart,
    Publish,
    PublishPart,
)
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
    Message,
    check_bundle,
    decode_bundle,
    encode_bundle,
    encode_varint,
    make_sparse,
    read_head,
    read_varint,
)

U64 = st.integers(0, 2**64 - 1)
PARTS = st.tuples(U64, st.none() | st.binary(min_size=1, max_size=255), st.binary(max_size=300))


def numbered(parts: list[tuple[int, bytes | None, bytes]], base: int) -> list[Message]:
    """Messages with consecutive numbers."""
    return [Message(base + index, *part) for index, part in enumerate(parts)]


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_varint_round_trip(value: int, before: bytes, behind: bytes) -> None:
    """Whatever stands around it."""
    data = encode_varint(value)
    assert read_varint(before + data + behind, len(before)) == (value, len(before + data))


@given(
    st.lists(PARTS, min_size=1, max_size=40), st.integers(1, 2**60), st.sampled_from([True, False])
)
def test_ordinary_bundle_round_trip(
    parts: list[tuple[int, bytes | None, bytes]], base: int, compress: bool
) -> None:
    """Messages → bundle → messages, and made sparse the same with their numbers inside."""
    messages = numbered(parts, base)
    data = encode_bundle(messages, compress=compress)
    assert decode_bundle(data, base) == messages
    assert check_bundle(data)[1] == messages[0].time_ms
    assert decode_bundle(make_sparse(data, base)) == messages


@given(
    st.lists(st.tuples(st.integers(1, 2**32), PARTS), min_size=1, max_size=20),
    st.sampled_from([True, False]),
)
def test_sparse_bundle_round_trip(
    steps: list[tuple[int, tuple[int, bytes | None, bytes]]], compress: bool
) -> None:
    """With any gaps that fit the header's varint."""
    number = 0
    messages = []
    for step, part in steps:
        number += step
        messages.append(Message(number, *part))
    if messages[-1].number - messages[0].number > 2**32:
        messages = messages[:1]
    data = encode_bundle(messages, sparse=True, compress=compress)
    assert decode_bundle(data) == messages
    head = read_head(data)
    assert (head.first, head.last) == (messages[0].number, messages[-1].number)


@given(st.integers(0, 20))
def test_highest_numbers_are_kept(below: int) -> None:
    """Up to 2^64-2."""
    first = NUMBER_MAX - below
    messages = [Message(number, 0, None, b"") for number in range(first, NUMBER_MAX + 1)]
    assert decode_bundle(encode_bundle(messages, sparse=True)) == messages
    assert decode_bundle(encode_bundle(messages), first) == messages


@given(st.binary(max_size=200))
def test_garbage_gives_a_value_or_our_error(data: bytes) -> None:
    """For a bundle, and checking agrees with decoding."""
    try:
        messages = decode_bundle(data)
    except (DecodeError, LimitExceeded):
        try:
            check_bundle(data)
        except (DecodeError, LimitExceeded):
            return
        raise AssertionError("the check let pass what cannot be decoded") from None
    numbers = [message.number for message in messages]
    assert numbers == sorted(set(numbers))
    assert check_bundle(data)[0].numbers(1) == (numbers[0], numbers[-1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from(["plain", "at", "sparse"])),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 400),
    st.integers(0, 60),
)
def test_what_is_published_is_fetched_in_any_portions(
    bundles: list[tuple[int, int, str]], fetch_bytes: int, portion: int
) -> None:
    """Every number once and in order, whatever mix of bundles, fetch sizes and pieces of input."""
    topics = MemoryTopics()
    topics.create("t", 1)
    broker = Broker(topics)
    session = broker.connect()
    expected: list[int] = []
    requests = b""
    for request_id, (count, gap, kind) in enumerate(bundles):
        last = expected[-1] if expected else 0
        first = last + 1 + (gap if kind != "plain" else 0)
        step = 1 + (gap if kind == "sparse" else 0)
        numbers = [first + index * step for index in range(count)]
        expected += numbers
        messages = [Message(number, 5, None, b"%d" % number) for number in numbers]
        data = encode_bundle(messages, sparse=kind == "sparse")
        part = PublishPart("t", 0, data, first)
        publish = Publish(request_id, (("t", (part,)),), at_numbers=kind != "plain")
        requests += encode_request(publish)
    size = portion or len(requests)
    answered = b"".join(
        broker.feed(session, requests[start : start + size])
        for start in range(0, len(requests), size)
    )
    assert len(frames(answered)) == 1 + len(bundles)
    got: list[int] = []
    wanted = 1
    while not expected or wanted <= expected[-1]:
        asked = Fetch(1, (("t", (FetchPart("t", 0, wanted, fetch_bytes),)),))
        if wanted < expected[0]:
            wanted = expected[0]
            continue
        (frame,) = frames(broker.feed(session, encode_request(asked)))
        answer = decode_answer(*frame)
        assert isinstance(answer, FetchAnswer)
        (part_got,) = answer.parts
        messages = decode_chunk(part_got.chunk, part_got.base)
        assert all(message.content == b"%d" % message.number for message in messages)
        got += [message.number for message in messages if message.number >= wanted]
        wanted = got[-1] + 1
    assert got == expected
