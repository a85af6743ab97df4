"""Vclocks: text form, order, arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import GOOD, sample

from logweir.errors import DecodeError
from logweir.wal.vclock import VClock

clocks = st.dictionaries(st.integers(0, 31), st.integers(0, 2**63 - 1), max_size=6).map(VClock)


@pytest.mark.parametrize(
    ("text", "components"),
    [
        ("{}", {}),
        ("{1:2}", {1: 2}),
        (" { 1 : 2 , 3 : 4 } ", {1: 2, 3: 4}),
        ("{1\t:\t2}", {1: 2}),
        ("{1: 2,}", {1: 2}),
        ("{0: 5}", {0: 5}),
        ("{31: 1}", {31: 1}),
        ("{1: 0}", {}),
        ("{3: 4, 1: 2}", {1: 2, 3: 4}),
        ("{01: 002}", {1: 2}),
        ("{1: 9223372036854775807}", {1: 2**63 - 1}),
        ("{1: 00000000000000000000000000007}", {1: 7}),
    ],
)
def test_texts_that_are_read(text: str, components: dict[int, int]) -> None:
    """What Tarantool 2.6.0 takes in a header (tried), this reads."""
    assert VClock.parse(text) == components


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("{,}", 0),
        ("{1: 2,,}", 0),
        ("{,1: 2}", 0),
        ("{1: 2", 0),
        ("1: 2}", 0),
        ("{1:}", 0),
        ("{:2}", 0),
        ("{1: 2 3: 4}", 0),
        ("{}}", 0),
        ("{} ,", 0),
        ("{1: 2} x", 7),
        ("{1: -1}", 4),
        ("{+1: 2}", 1),
        ("{1: 0x10}", 5),
        ("{1; 2}", 2),
        ("{32: 1}", 1),
        ("{4294967297: 5}", 1),
        ("{1: 1, 1: 2}", 7),
        ("{1: 9223372036854775808}", 4),
        ("{1: " + "9" * 5000 + "}", 4),
        ("{" + "9" * 5000 + ": 1}", 1),
    ],
)
def test_texts_that_are_refused(text: str, offset: int) -> None:
    """What Tarantool 2.6.0 refuses (tried), this refuses, at the letter that is wrong."""
    with pytest.raises(DecodeError) as caught:
        VClock.parse(text)
    assert caught.value.offset == offset


@given(clocks)
def test_text_round_trip(clock: VClock) -> None:
    """The text form reads back, components in ascending id, none of them zero."""
    text = str(clock)
    assert VClock.parse(text) == clock
    assert list(clock) == sorted(clock)
    assert ": 0" not in text
    assert eval(repr(clock)) == clock


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text gives a vclock or a DecodeError with an offset in it."""
    offset = 0
    try:
        VClock.parse(text)
    except DecodeError as error:
        offset = error.offset
    assert 0 <= offset <= len(text)


@pytest.mark.parametrize("components", [{-1: 1}, {32: 1}, {1: -1}, {1: 2**63}])
def test_components_out_of_range(components: dict[int, int]) -> None:
    """Replica ids are 0 … 31, lsns 0 … 2^63-1."""
    with pytest.raises(ValueError, match="is not in 0"):
        VClock(components)


def test_equality_and_hash() -> None:
    """Zero components do not count; a plain dict may be equal; other things are not."""
    assert VClock({1: 2, 3: 0}) == VClock({1: 2}) == {1: 2, 2: 0}
    assert hash(VClock({2: 1, 1: 2})) == hash(VClock({1: 2, 2: 1, 3: 0}))
    assert VClock({1: 2}) != VClock({1: 3})
    assert VClock({1: 2}) != "{1: 2}"
    assert dict(VClock({1: 2})) == {1: 2}
    assert len(VClock({0: 1, 1: 2})) == 2
    with pytest.raises(KeyError):
        VClock()[1]


@given(clocks, clocks)
def test_order_is_component_wise(one: VClock, other: VClock) -> None:
    """compare, covers, merge and minimum fit one another."""
    order = one.compare(other)
    assert order == {"=": "=", "<": ">", ">": "<", "!": "!"}[other.compare(one)]
    assert (order == "=") == (one == other)
    assert one.covers(other) == (order in "=>")
    merged, least = one.merge(other), one.minimum(other)
    assert merged.covers(one)
    assert merged.covers(other)
    assert one.covers(least)
    assert other.covers(least)
    assert merged.signature + least.signature == one.signature + other.signature


def test_arithmetic() -> None:
    """Signature, single components, and what goes over the wire."""
    clock = VClock({0: 8, 1: 436})
    assert clock.signature == 444
    assert clock.lsn(1) == 436
    assert clock.lsn(2) == 0
    assert clock.with_lsn(2, 5) == {0: 8, 1: 436, 2: 5}
    assert clock.with_lsn(1, 0) == {0: 8}
    assert clock.without_local() == {1: 436}
    assert VClock({1: 1}).compare({2: 1}) == "!"
    assert VClock().compare({}) == "="


@pytest.mark.parametrize("name", GOOD)
def test_signatures_of_the_samples(name: str) -> None:
    """The signature names each file of the samples and is what the program said at its end."""
    for file in sample(name).files:
        (line,) = [line for line in file.meta if line.startswith("VClock: ")]
        assert VClock.parse(line.removeprefix("VClock: ")).signature == int(file.path.stem)
        assert str(VClock.parse(line.removeprefix("VClock: "))) == line.removeprefix("VClock: ")
    assert sample(name).vclock.signature == sample(name).summary["signature"]
