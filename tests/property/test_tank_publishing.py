"""What the kernel does for runs of published bundles is what the ordinary way does one by one;
interpreted and compiled alike."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import PLAIN_TOPIC

from logweir.errors import DecodeError
from logweir.replication.tank.wire.codec import decode_request, encode_published, encode_request
from logweir.replication.tank.wire.messages import Publish, PublishPart, PublishResult
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
    BundleHead,
    Message,
    check_bundle,
    encode_bundle,
    encode_varint,
)
from logweir.replication.topic.partition import Append
from logweir.replication.topic.publishing import Outcome
from logweir.replication.topic.spaces import Placed, bundle_tuple, place_bundle
from logweir.store.schema.values import LargeTuple

VIEWED = 100
KERNELS = pytest.mark.parametrize("module", [kernel, PLAIN_TOPIC], ids=["compiled", "interpreted"])
NUMBERS = st.one_of(
    st.integers(1, 40),
    st.integers(NUMBER_MAX - 3, NUMBER_MAX + 1),
    st.integers(0, 2**64 - 1),
)


@st.composite
def bundles(draw: Any) -> bytes:
    """Sound ones of all kinds, and such as were damaged."""
    count = draw(st.integers(1, 4))
    first = draw(st.integers(1, 40) | st.integers(NUMBER_MAX - 20, NUMBER_MAX - 12))
    step = draw(st.integers(1, 3))
    content = draw(st.binary(max_size=60))
    messages = [Message(first + step * n, 7, None, content) for n in range(count)]
    sparse = draw(st.booleans())
    data = encode_bundle(
        messages, sparse=sparse, compress=draw(st.sampled_from([False] * 4 + [True]))
    )
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes((draw(st.integers(0, 255)),)) + data[at + 1 :]
    return data


@st.composite
def publishes(draw: Any) -> bytes:
    """One frame: mostly a publish of one bundle."""
    at_numbers = draw(st.booleans())
    parts = tuple(
        PublishPart(
            draw(st.sampled_from(["t", "other"])),
            draw(st.sampled_from([0, 1, 0xFFFF])),
            draw(bundles()),
            draw(NUMBERS) if at_numbers else None,
        )
        for _ in range(draw(st.sampled_from([1, 1, 1, 2])))
    )
    topics = tuple((part.topic, (part,)) for part in parts)
    request = Publish(draw(st.integers(0, 2**32 - 1)), topics, at_numbers, client="me")
    frame = encode_request(request)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(5, len(frame) - 1))
        frame = frame[:at] + bytes((draw(st.integers(0, 255)),)) + frame[at + 1 :]
    return frame


def alone(kind: int, payload: memoryview) -> Append | None:
    """What the ordinary way makes of a frame: None where it is not one sound bundle."""
    try:
        request = decode_request(kind, payload)
    except DecodeError:
        return None
    if not isinstance(request, Publish) or [len(parts) for _, parts in request.topics] != [1]:
        return None
    ((_, ((topic, partition, bundle, first),)),) = request.topics
    try:
        head, time_ms = check_bundle(bundle)
    except DecodeError:
        return None
    if head.codec or (first is not None and not 1 <= first <= NUMBER_MAX - head.count + 1):
        return None
    if head.sparse and first not in (None, head.first):
        return None
    return Append(request.request_id, -1, topic, partition, bundle, head, time_ms, first)


@KERNELS
@given(st.lists(publishes(), max_size=6), st.integers(0, 300), st.integers(0, 200))
def test_run_of_frames_is_what_each_of_them_is(
    module: ModuleType, frames: list[bytes], limit: int, cut: int
) -> None:
    """Up to the first that is something else; frames that are cut or too long are left."""
    whole = b"".join(frames)
    view = memoryview(whole)[: max(0, len(whole) - cut)]
    expected, position = [], 0
    for frame in frames:
        if position + len(frame) > len(view) or len(frame) - 5 > limit:
            break
        expected.append((frame[0], frame[5:]))
        position += len(frame)
    found: list[tuple[int, memoryview]] = []
    assert module.frames(view, 0, limit, found) == position
    assert [(kind, bytes(payload)) for kind, payload in found] == expected

    at = 0
    while at < len(found):
        out: list[Append] = []
        stop = module.alone(found, at, VIEWED, Append, BundleHead, out)
        assert len(out) == stop - at
        for each, (kind, payload) in zip(out, found[at:stop], strict=True):
            assert each == alone(kind, payload)
            assert isinstance(each.head, BundleHead)
            assert isinstance(each.bundle, memoryview) == (len(each.bundle) >= VIEWED)
        if stop < len(found):
            assert alone(*found[stop]) is None
        at = stop + 1


@st.composite
def appends(draw: Any) -> list[Append]:
    """Some for the same few partitions, one behind the other."""
    out = []
    for ticket in range(draw(st.integers(1, 8))):
        try:
            head, time_ms = check_bundle(data := draw(bundles()))
        except DecodeError:
            continue
        topic = draw(st.sampled_from(["t", "t", "u"]))
        first = draw(st.none() | NUMBERS)
        if head.sparse:
            first = None
        out.append(Append(ticket, -1, topic, draw(st.integers(0, 1)), data, head, time_ms, first))
    return out


@KERNELS
@given(appends().filter(bool))
def test_spans_and_sizes(module: ModuleType, some: list[Append]) -> None:
    """A span ends where topic or partition change."""
    keys = [(each.topic, each.partition) for each in some]
    ends = [at for at in range(1, len(some)) if keys[at] != keys[at - 1]]
    assert module.spans(some) == [*ends, len(some)]
    assert module.size_of(some) == sum(len(each.bundle) for each in some)


@KERNELS
@given(appends(), st.integers(0, 60) | st.integers(NUMBER_MAX - 9, NUMBER_MAX), st.integers(20, 99))
def test_numbers_are_those_of_the_ordinary_way(
    module: ModuleType, some: list[Append], last: int, most: int
) -> None:
    """Up to the first bundle that is refused, or is not stored as it came."""
    tuples: list[LargeTuple] = []
    outcomes: list[Outcome] = []
    stored = PublishResult.STORED
    at, found = module.place(
        some, 0, len(some), last, most, stored, LargeTuple, tuples, Outcome, outcomes
    )
    assert at == len(tuples) == len(outcomes)
    for index, each in enumerate(some):
        placed = place_bundle(each.bundle, each.head, last, each.first)
        if index == at:
            assert (
                not isinstance(placed, Placed)
                or placed.data is not each.bundle
                or len(each.bundle) > most
            )
            break
        assert isinstance(placed, Placed)
        first, last, data = placed
        size = len(encode_varint(len(data))) + len(data)
        assert tuples[index] == bundle_tuple(each.partition, placed, each.time_ms)
        assert outcomes[index] == Outcome(stored, first, last, size, each.bundle)
        assert outcomes[index].result is stored
    assert found == last


@KERNELS
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(PublishResult)), max_size=5))
def test_answers_are_those_of_each(
    module: ModuleType, outcomes: list[tuple[int, PublishResult]]
) -> None:
    """One frame each, in order."""
    head = BundleHead(0, 1, False, 0, 0, 1)
    some = [Append(ticket, -1, "t", 0, b"", head, 0, None) for ticket, _ in outcomes]
    expected = b"".join(encode_published(ticket, bytes((code,))) for ticket, code in outcomes)
    assert module.published(some, [code for _, code in outcomes]) == expected


@KERNELS
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), min_size=4, max_size=4),
    st.sampled_from([0, 1, 255, 256, 65_535, 65_536]),
)
def test_head_of_a_stored_tuple_is_read_back(
    module: ModuleType, numbers: list[int], size: int
) -> None:
    """At all lengths of numbers and of the bundle; a head without its end is refused."""
    head = kernel.tuple_head(*numbers, size)
    whole = head + bytes(size)
    assert module.stored(whole) == (numbers[0], numbers[1], len(head))
    header = 2 if size < 0x100 else 3 if size < 0x10000 else 5
    for end in range(1, len(head) - header + 1):
        with pytest.raises(ValueError, match="no tuple"):
            module.stored(head[:end])
