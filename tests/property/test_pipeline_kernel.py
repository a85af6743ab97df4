"""The pipeline's kernel: compiled and interpreted give the slices that Python gives."""

from __future__ import annotations

import math
from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.pipeline import kernel
from logweir.store.schema.bulk import interpreted as plain_twin

interpreted = plain_twin(kernel)
RUNS = pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])


def span(start: int, stop: int) -> int:
    """A span as `wal.kernel` gives it."""
    return start | stop << 32


def gathered(run: ModuleType, data: bytes, spans: array[int]) -> bytes | None:
    """What `gather` returns, with the offsets and the bits behind the values."""
    offsets, valid = array("i", [7]) * (len(spans) + 1), bytearray((len(spans) + 7) // 8)
    found = run.gather(data, spans, offsets, valid)
    return None if found is None else bytes(found) + offsets.tobytes() + valid


def test_compiled_kernel_runs_where_it_can() -> None:
    """Where the log's kernel is compiled, this one is too."""
    from logweir.wal import kernel as rows

    assert not interpreted.COMPILED
    assert kernel.COMPILED == rows.COMPILED


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300))))
def test_values_stand_one_behind_the_other(data: bytes, places: list[tuple[int, int]]) -> None:
    """Any slices, empty ones and absent ones too: their bytes, and where each begins."""
    clipped = [sorted((min(a, len(data)), min(b, len(data)))) for a, b in places]
    spans = array("Q", (span(start, stop) for start, stop in clipped))
    pieces = [data[start:stop] for start, stop in clipped]
    wanted = b"".join(pieces)
    edges = array("i", [0])
    for piece in pieces:
        edges.append(edges[-1] + len(piece))
    present = bytearray((len(spans) + 7) // 8)
    for i, one in enumerate(spans):
        present[i // 8] |= (one != 0) << i % 8
    for run in (kernel, interpreted):
        assert run.span_bytes(spans, len(data)) == len(wanted)
        assert gathered(run, data, spans) == wanted + edges.tobytes() + present


@RUNS
@pytest.mark.parametrize(
    "bad", [span(5, 4), span(0, 11), span(11, 11), span(2**32 - 1, 2**32 - 1), 2**64 - 1]
)
def test_spans_outside_of_the_buffer_are_refused(run: ModuleType, bad: int) -> None:
    """A span that is turned round or passes the buffer's end is named, nothing is read there."""
    spans = array("Q", [span(0, 3), bad])
    assert run.span_bytes(spans, 10) == -2
    assert gathered(run, bytes(10), spans) is None


@RUNS
def test_more_than_arrow_counts_is_refused(run: ModuleType) -> None:
    """Values of 2^31 bytes and more together have no 32-bit offsets."""
    spans = array("Q", [span(0, 2**30)] * 3)
    assert run.span_bytes(spans, 2**30) == -2
    assert run.span_bytes(spans[:1], 2**30) == 2**30


@RUNS
def test_room_of_another_size_is_refused(run: ModuleType) -> None:
    """The room for offsets and bits is checked before any is written."""
    spans = array("Q", [span(0, 1), span(1, 2)] * 5)
    for offsets, bits in ((array("i", [7] * 10), 2), (array("i", [7] * 11), 1)):
        valid = bytearray(bits)
        assert run.gather(b"abc", spans, offsets, valid) is None
        assert set(offsets) == {7}
        assert not any(valid)


@given(st.lists(st.tuples(st.sampled_from((2, 4, 9)), *[st.integers(0, 2**64 - 1)] * 2)))
def test_updates_have_their_operations_as_tuple(listed: list[tuple[int, int, int]]) -> None:
    """What an update has for a tuple are its operations; without one its own stay. All else is
    as it was."""
    types, tuples, ops = (array("Q", [one[i] for one in listed]) for i in range(3))
    wanted = [(0, a or b) if kind == 4 else (a, b) for kind, a, b in listed]
    for run in (kernel, interpreted):
        left, right = (array("Q", [7]) * len(listed) for _ in range(2))
        assert run.split_updates(types, 4, tuples, ops, left, right)
        assert list(zip(left, right, strict=True)) == wanted
        assert not run.split_updates(types, 4, tuples, ops, left, array("Q", [7, *right]))


@RUNS
def test_no_number_is_behind_all_times(run: ModuleType) -> None:
    """Where rows are counted: the least time is one, if there is any, and the largest is not."""
    for times in ([math.nan, 1.5], [1.5, math.nan]):
        ends, two = array("d", [0.0, 0.0]), array("Q", [0, 0])
        counted = run.tally(
            *(b"", b"", array("Q", [5, 5]), 4, array("Q", [7, 7]), array("Q", [1, 2])),
            *(array("d", times), two, two, two, 0),
            *(array("Q", [0, 0]), array("Q", [0] * 4), ends, bytearray(1 << 12)),
        )
        assert counted == 2
        assert ends[0] == 1.5
        assert math.isnan(ends[1])
