"""Large tuples on their way into the log and the state: what the kernels make of many is what
follows from each, interpreted and compiled alike."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.store.schema import largekernel
from logweir.store.schema.bulk import interpreted
from logweir.store.schema.values import LargeTuple
from logweir.store.state.references import REFERENCE
from logweir.wal import fillerkernel
from logweir.wal.crc32c import checksum
from logweir.wal.mp import pack, unpack

KERNELS = pytest.mark.parametrize(
    "module", [largekernel, interpreted(largekernel)], ids=["compiled", "interpreted"]
)
FILLER_KERNELS = pytest.mark.parametrize(
    "module", [fillerkernel, interpreted(fillerkernel)], ids=["compiled", "interpreted"]
)
SIZES = st.sampled_from([0, 1, 255, 256, 65_535, 65_536]) | st.integers(0, 700)


def large(number: int, size: int) -> LargeTuple:
    """A tuple of a number and a bin."""
    payload = bytes(size)
    whole = pack([number, payload])
    return LargeTuple(whole[: len(whole) - size], payload)


TUPLES = st.lists(st.builds(large, st.integers(0, 2**64 - 1), SIZES), max_size=6)


@KERNELS
@given(TUPLES, st.integers(0, 70_000))
def test_heads_are_the_tuples_without_their_payload(
    module: ModuleType, tuples: list[LargeTuple], limit: int
) -> None:
    """Or whole, where they are too large."""
    out: list[bytes] = []
    assert module.heads(tuples, limit, out) == sum(data.size for data in tuples)
    for data, found in zip(tuples, out, strict=True):
        number, payload = unpack(data.joined())
        assert unpack(found) == [number, payload if data.size > limit else b""]


@KERNELS
@given(TUPLES, st.integers(0, 1000))
def test_rows_are_laid_one_behind_the_other(
    module: ModuleType, tuples: list[LargeTuple], target: int
) -> None:
    """A block ends with the row that fills it; none is empty, none is left out."""
    row_heads = [bytearray(b"h%d" % n * (1 + n)) for n in range(len(tuples))]
    rows = [(head, *data) for head, data in zip(row_heads, tuples, strict=True)]
    at = 0
    while at < len(rows):
        out: list[bytes] = []
        stop, size = module.lay(row_heads, tuples, at, max(target, 1), out)
        assert out == [part for row in rows[at:stop] for part in row]
        assert size == sum(map(len, out))
        assert stop > at
        assert sum(map(len, out[:-3])) < max(target, 1)
        assert size >= target or stop == len(rows)
        at = stop


@KERNELS
@given(TUPLES, st.integers(0, 2**63), st.integers(0, 2**62))
def test_references_say_where_each_tuple_stands(
    module: ModuleType, tuples: list[LargeTuple], file: int, offset: int
) -> None:
    """Its place, length, and the checksums of the rows before and behind it."""
    parts: list[bytes] = []
    expected = []
    for data in tuples:
        parts.append(b"head")
        before = b"".join(parts)
        parts += data
        behind = b"".join(parts)
        numbers = (file, offset + len(before), data.size, checksum(before), checksum(behind))
        expected.append(struct.pack(">BQQQII", REFERENCE, *numbers))
    sums = [checksum(b"".join(parts[: end + 1])) for end in range(len(parts))]
    assert module.references(REFERENCE, file, offset, parts, sums) == expected


@FILLER_KERNELS
@given(
    st.lists(st.lists(st.sampled_from([b"\0", b"\0" * 7, b"x"]), max_size=9), max_size=4),
    st.integers(1, 20),
)
def test_zeros_are_found_in_any_part(
    module: ModuleType, pieces: list[list[bytes]], count: int
) -> None:
    """Not across two of them. There are no checksums then."""
    parts = [b"".join(each) for each in pieces]
    has_zeros = any(bytes(count) in part for part in parts)
    assert (module.running(checksum, parts, count) is None) == has_zeros


@FILLER_KERNELS
@given(st.lists(st.binary(max_size=9), max_size=5))
def test_running_checksums_go_on_from_the_one_before(
    module: ModuleType, parts: list[bytes]
) -> None:
    """Each is that of all parts up to its own."""
    expected = [checksum(b"".join(parts[: end + 1])) for end in range(len(parts))]
    assert module.running(checksum, parts, 10) == expected


@FILLER_KERNELS
@given(
    pieces=st.lists(
        st.one_of(st.integers(1, 12).map(bytes), st.binary(min_size=1, max_size=9)), max_size=8
    ),
    count=st.integers(1, 13),
    view=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_a_row_of_zeros_is_found_wherever_it_stands(
    module: ModuleType, pieces: list[bytes], count: int, view: Callable[[bytes], Any]
) -> None:
    """Looking at some places only finds the same as searching."""
    data = b"".join(pieces)
    assert module.has_zeros(view(data), count) == (bytes(count) in data)
