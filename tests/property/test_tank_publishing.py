"""What the kernel reads of publishes is what stands there field by field, and what it does for many
bundles is what the ordinary way does one by one; interpreted and compiled alike."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import PLAIN_TOPIC

from logweir.errors import DecodeError
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.framing import Reader
from logweir.replication.tank.wire.messages import Publish, PublishPart, PublishResult
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
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
def frames_of_publishes(draw: Any) -> bytes:
    """One frame: a publish of some bundles for some topics, mostly whole."""
    at_numbers = draw(st.booleans())
    topics = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
        name = draw(st.sampled_from(["t", "other", "", "\udcff"]))
        parts = tuple(
            PublishPart(
                name,
                draw(st.sampled_from([0, 1, 0xFFFF])),
                draw(bundles() | st.just(bytes(200))),
                draw(NUMBERS) if at_numbers else None,
            )
            for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2])))
        )
        topics.append((name, parts))
    request = Publish(draw(st.integers(0, 2**32 - 1)), tuple(topics), at_numbers, client="me")
    frame = encode_request(request)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(5, len(frame) - 1))
        frame = frame[:at] + bytes((draw(st.integers(0, 255)),)) + frame[at + 1 :]
    return frame


def fields_of(payload: bytes, at_numbers: bool) -> tuple[Any, ...] | None:
    """What a publish holds, field by field; None where it is malformed."""
    reader = Reader(payload)
    try:
        version, request_id, client = reader.u16(), reader.u32(), reader.text()
        acks, timeout_ms, topics = reader.u8(), reader.u32(), []
        for _ in range(reader.u8()):
            name, parts = reader.text(), []
            for _ in range(reader.u8()):
                partition, size = reader.u16(), reader.varint()
                first = reader.u64() if at_numbers else None
                parts.append(PublishPart(name, partition, reader.take(size), first))
            topics.append((name, tuple(parts)))
        reader.finish()
    except DecodeError:
        return None
    return version, request_id, client, acks, timeout_ms, tuple(topics)


@KERNELS
@given(st.lists(frames_of_publishes(), max_size=6), st.integers(0, 300), st.integers(0, 200))
def test_frames_are_cut_out_whole(
    module: ModuleType, frames: list[bytes], limit: int, cut: int
) -> None:
    """Up to the first that is cut or too long."""
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


@KERNELS
@given(frames_of_publishes(), st.integers(0, 3), st.booleans(), st.integers(0, 99))
def test_publishes_are_read_whole_or_refused(
    module: ModuleType, frame: bytes, cut: int, at_numbers: bool, more: int
) -> None:
    """Each field as it stands; cut anywhere, with bytes behind it, or read as the other message."""
    payload = frame[5:]
    for source in (payload, payload[: len(payload) - cut], payload + bytes(cut), payload[:more]):
        view = memoryview(source)
        found = module.publish(view, view, at_numbers, VIEWED, PublishPart)
        expected = fields_of(source, at_numbers)
        if expected is None:
            reason, place = found
            assert reason in (module.TRUNCATED, module.BAD_VARINT, module.LEFT_OVER)
            assert 0 <= place <= len(source)
            continue
        assert found == expected
        for _, parts in found[5]:
            for part in parts:
                assert isinstance(part, PublishPart)
                assert isinstance(part.bundle, memoryview) == (len(part.bundle) >= VIEWED)


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
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), min_size=4, max_size=4)
    | st.lists(st.integers(1, 2**64 - 2), min_size=4, max_size=4).map(sorted),
    st.sampled_from([0, 1, 255, 256, 65_535, 65_536]),
)
def test_head_of_a_stored_tuple_is_read_back(
    module: ModuleType, numbers: list[int], size: int
) -> None:
    """At all lengths of numbers and of the bundle; what is not whole is refused, and so are numbers
    that no message can have, and a bundle that has other ones."""
    head = kernel.tuple_head(*numbers, size)
    count = numbers[2] - numbers[1] + 1
    whole = head + (b"\x00" + encode_varint(count % 2**32) + bytes(size))[:size]
    if size < 6 or not 1 <= numbers[1] <= numbers[2] <= 2**64 - 2 or count >= 2**32:
        with pytest.raises(ValueError, match="no tuple"):
            module.stored(whole)
        return
    assert module.stored(whole) == (*numbers[:3], len(head))
    wide = b"\xdc\x00\x06" + whole[1:] + b"\x07"  # another client's, with a field more
    assert module.stored(wide) == (*numbers[:3], len(head) + 2)
    for end in (*range(len(head)), len(whole) - 1):
        with pytest.raises(ValueError, match="no tuple"):
            module.stored(whole[:end])


@KERNELS
@given(
    st.lists(st.sampled_from([1, 2, 127, 128, 4081, 4082, 4096, 70_000]), min_size=1, max_size=9),
    st.integers(0, 3),
    st.integers(1, 90_000),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_chunk_of_stored_tuples(
    module: ModuleType, sizes: list[int], started: int, limit: int, border: int, known: int
) -> None:
    """Whole bundles behind their lengths, the first in any case, of one partition, up to the last
    number that is known, within the limit; one that has a field more is cut like the others."""
    bundles = [b"\x04" + bytes((number + 1,)) * (size - 1) for number, size in enumerate(sizes)]
    tuples = [
        kernel.tuple_head(3 if number < border else 4, 10 + number, 10 + number, 0, len(data))
        + data
        for number, data in enumerate(bundles)
    ]
    tuples[-1] = b"\x96" + tuples[-1][1:] + b"\x07"
    expected, size, following, is_over = b"", started, 0, False
    for number, data in enumerate(bundles):
        framed = encode_varint(len(data)) + data
        if number >= min(border, known):
            is_over = True
            break
        if size and size + len(framed) > limit:
            following, is_over = 10 + number, True
            break
        expected += framed
        size += len(framed)
    out: list[bytes] = []
    base = 10 if expected else 0
    found = module.chunk(b"".join(tuples), len(tuples), 3, 9 + known, started, limit, out)
    assert found == (size, following, is_over, 0, base, False)
    assert b"".join(out) == expected
