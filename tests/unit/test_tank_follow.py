"""A reader's place in a partition, with answers as real and as old brokers give them."""

from __future__ import annotations

import pytest

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TANK_FETCH_BYTES
from logweir.replication.tank.follow.cursor import Cursor, Reading
from logweir.replication.tank.wire.messages import FetchedPart, FetchPart, FetchStatus
from logweir.replication.topic.bundle import Message, encode_bundle, encode_varint

F = FetchStatus


def framed(*bundles: bytes) -> bytes:
    """A chunk."""
    return b"".join(encode_varint(len(data)) + data for data in bundles)


def ordinary(count: int) -> bytes:
    """An ordinary bundle."""
    return encode_bundle([Message(0, 7, None, b"x")] * count)


def sparse(*numbers: int) -> bytes:
    """A sparse bundle."""
    return encode_bundle([Message(n, 7, None, b"x") for n in numbers], sparse=True)


def given(reading: Reading) -> list[Message]:
    """The messages of all its bundles."""
    return [message for each in reading.bundles for message in reading.messages_of(each)]


def part(base: int, mark: int, chunk: bytes) -> FetchedPart:
    """An answer with data."""
    return FetchedPart("t", 0, F.FINE, base, mark, chunk=chunk)


def test_numbers_below_the_one_wanted_are_dropped() -> None:
    """A bundle is sent whole; the mark of the broker drops nothing."""
    cursor = Cursor("t", 0, 3, 100)
    reading = cursor.take(part(2, 4, framed(ordinary(2), ordinary(1), sparse(10, 20))))
    assert [message.number for message in given(reading)] == [3, 4, 10, 20]
    assert [(bundle.first, bundle.last) for bundle in reading.bundles] == [(2, 3), (4, 4), (10, 20)]
    assert cursor.wanted == 21
    assert reading.gap is None
    assert cursor.request() == FetchPart("t", 0, 21, 100)


def test_cut_last_bundle_is_read_with_the_next_answer() -> None:
    """At whatever byte an old broker cuts."""
    whole = framed(ordinary(2), sparse(5, 9))
    first = len(framed(ordinary(2)))
    for size in range(first, len(whole)):
        cursor = Cursor("t", 0, 1, 100)
        assert [m.number for m in given(cursor.take(part(1, 9, whole[:size])))] == [1, 2]
        assert cursor.wanted == 3
        reading = cursor.take(part(0, 9, whole[first:]))
        assert [m.number for m in given(reading)] == [5, 9]


def test_more_is_asked_for_when_not_one_bundle_is_whole() -> None:
    """Up to the largest fetch there is; then the partition cannot be read."""
    chunk = framed(ordinary(100))[:50]
    cursor = Cursor("t", 0, 1, 50)
    sizes = []
    while cursor.request().size_bytes < TANK_FETCH_BYTES:
        assert given(cursor.take(part(1, 100, chunk))) == []
        assert cursor.wanted == 1
        sizes.append(cursor.request().size_bytes)
    with pytest.raises(DecodeError, match="not one whole bundle"):
        cursor.take(part(1, 100, chunk))
    assert sizes[0] == 4096
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == TANK_FETCH_BYTES
    cursor.take(part(1, 100, framed(ordinary(100))))
    assert cursor.request() == FetchPart("t", 0, 101, 50)


def test_numbers_that_a_broker_lost_are_a_gap_and_not_a_loop() -> None:
    """It answers lower numbers although its mark is above the one asked."""
    cursor = Cursor("t", 0, 6, 100)
    reading = cursor.take(part(1, 1003, framed(ordinary(5))))
    assert reading.gap == (6, 1003)
    assert given(reading) == []
    assert cursor.wanted == 1004


def test_answer_without_data_moves_nothing() -> None:
    """At the end, after a wait, after a boundary failure."""
    cursor = Cursor("t", 0, 6, 100)
    for mark in (3, 5, 6, 100):
        reading = cursor.take(part(0, mark, b""))
        assert (given(reading), reading.gap, cursor.wanted) == ([], None, 6)
    reading = cursor.take(FetchedPart("t", 0, F.BOUNDARY, 0, 99, 50))
    told = reading.part
    assert (told.status, told.first_available, cursor.wanted) == (F.BOUNDARY, 50, 6)


def test_chunk_whose_numbers_go_back_is_taken_up_to_there() -> None:
    """What is before them is taken; what comes after them is asked for anew."""
    cursor = Cursor("t", 0, 1, 100)
    reading = cursor.take(part(1, 9, framed(ordinary(5), sparse(3, 4), ordinary(1))))
    assert [m.number for m in given(reading)] == [1, 2, 3, 4, 5]
    assert (reading.gap, cursor.wanted) == (None, 6)


def test_bundle_that_overlaps_one_that_was_read_is_no_gap() -> None:
    """A broker that answers from a bundle before the number wanted on: those after it count, and
    nothing up to its mark is taken for lost."""
    cursor = Cursor("t", 0, 6, 100)
    reading = cursor.take(part(1, 9, framed(ordinary(5), sparse(3, 5, 7), ordinary(2))))
    assert [m.number for m in given(reading)] == [7, 8, 9]
    assert (reading.gap, cursor.wanted) == (None, 10)
    cursor = Cursor("t", 0, 1, 100)
    reading = cursor.take(part(1, 9, framed(ordinary(5), sparse(3, 5, 7), ordinary(2))))
    assert [m.number for m in given(reading)] == [1, 2, 3, 4, 5]
    assert (reading.gap, cursor.wanted) == (None, 6)


@pytest.mark.parametrize(
    ("odd", "last"),
    [
        (b"\x06" + ordinary(1)[1:], 3),  # a codec that is not assigned
        (b"\x8c" + ordinary(3)[1:], 5),  # the reserved flag
        (bytes((sparse(7, 9)[0] | 0x80,)) + sparse(7, 9)[1:], 9),
        (ordinary(2)[:-3], 4),  # its head is right, the rest is cut
    ],
)
def test_bundle_that_cannot_be_read_has_its_numbers_and_stops_nothing(
    odd: bytes, last: int
) -> None:
    """Those before and after it are given with the right numbers."""
    cursor = Cursor("t", 0, 1, 100)
    reading = cursor.take(part(1, 99, framed(ordinary(2), odd, ordinary(2))))
    before, between, after = reading.bundles
    assert (before.last, between.last) == (2, last)
    assert [m.number for m in reading.messages_of(after)] == [last + 1, last + 2]
    with pytest.raises((DecodeError, LimitExceeded)):
        reading.messages_of(between)
    assert cursor.wanted == last + 3


def test_numbers_that_are_not_certain_are_asked_for_anew() -> None:
    """A sparse head that is cut: what comes after it is not counted from a guess. The broker that
    gives the same bundle again is followed number by number, never past what it has."""
    cut = sparse(7, 9)[:6]  # two messages, as its flags say
    cursor = Cursor("t", 0, 1, 100)
    reading = cursor.take(part(1, 12, framed(ordinary(2), cut, ordinary(2))))
    assert [(each.first, each.last) for each in reading.bundles] == [(1, 2), (3, 4)]
    assert cursor.wanted == 5
    for wanted in (5, 6):
        reading = cursor.take(part(3, 12, framed(cut, ordinary(2))))
        assert (reading.bundles, reading.gap) == ([], (wanted, wanted))
    reading = cursor.take(part(7, 12, framed(ordinary(2))))
    assert [m.number for m in given(reading)] == [7, 8]


def test_bundles_without_messages_take_no_number() -> None:
    """A real broker stores them."""
    cursor = Cursor("t", 0, 1, 100)
    reading = cursor.take(part(1, 2, framed(b"", b"\0\0", ordinary(2))))
    assert [m.number for m in given(reading)] == [1, 2]
    assert cursor.take(part(3, 9, framed(b"", b"\0\0"))).bundles == []
    assert cursor.request().size_bytes > 100
