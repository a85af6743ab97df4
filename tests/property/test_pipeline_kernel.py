"""The pipeline's kernel: compiled and interpreted give the slices that Python gives."""

from __future__ import annotations

import itertools
import math
from array import array
from types import ModuleType
from typing import Any

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


def hashed(key: bytes) -> int:
    """What `tally` makes of a key, in other words."""
    ones = 2**64 - 1
    found = len(key) * 0x9E3779B97F4A7C15
    for at in range(0, max(len(key), 1), 8):
        found = (found ^ int.from_bytes(key[at : at + 8], "little")) & ones
        for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x9E3779B97F4A7C15)):
            found = (found ^ found >> shift) * odd & ones
        found ^= found >> 31
    return found


counted_rows = st.tuples(
    *(st.sampled_from([b"xlog", b"snap", b""]), st.integers(0, 2), st.integers(0, 1)),
    *(st.integers(0, 63), st.integers(0, 2**40), st.integers(0, 2**63)),
    *(st.floats(), st.binary(max_size=20)),
)


@given(st.lists(counted_rows, max_size=20))
def test_rows_are_counted_by_their_groups(rows: list[Any]) -> None:
    """Sums and ends of each group, NaN behind all times, and the registers that keys raise."""
    columns = zip(*rows, strict=True) if rows else [()] * 8
    kinds, spaces, types, has, sizes, lsns, times, keys = columns
    offsets, kind_offsets = (
        array("i", itertools.accumulate(map(len, texts), initial=0)) for texts in (keys, kinds)
    )
    of = [(kind, space, number, seen & 56) for kind, space, number, seen, *_ in rows]
    groups = list(dict.fromkeys(of))
    for run in (kernel, interpreted):
        room = len(groups)
        known, sums = array("Q", [0] * 4 * room), array("Q", [0] * 5 * room)
        ends, registers = array("d", [0] * 2 * room), bytearray(room << 12)
        found = run.tally(
            *(bytes(has), b"".join(kinds), kind_offsets, array("Q", spaces), array("Q", types)),
            *(array("Q", sizes), array("Q", lsns), array("d", times), b"".join(keys), offsets),
            *(known, sums, ends, registers),
        )
        assert found == room
        for group, told in enumerate(groups):
            kind, *others = known[4 * group : 4 * group + 4].tolist()
            assert (kind.to_bytes(8, "little").rstrip(b"\0"), *others) == told
            mine = [row for row, its in zip(rows, of, strict=True) if its == told]
            numbers = [row[5] for row in mine if row[3] & 2]
            assert sums[5 * group : 5 * group + 2].tolist() == [len(mine), sum(r[4] for r in mine)]
            assert sums[5 * group + 3] == min(numbers, default=0)
            assert sums[5 * group + 4] == max(numbers, default=0)
            every = [row[6] for row in mine if row[3] & 4]
            whole = [one for one in every if one == one]
            least, last = ends[2 * group], ends[2 * group + 1]
            if every:
                assert (least == min(whole)) if whole else math.isnan(least)
                assert (last == max(whole)) if len(every) == len(whole) else math.isnan(last)
            wanted = bytearray(1 << 12)
            for row in mine:
                value = hashed(row[7])
                rank = 53 - (value & 2**52 - 1).bit_length()
                if row[3] & 1:
                    wanted[value >> 52] = max(rank, wanted[value >> 52])
            assert registers[group << 12 : (group + 1) << 12] == wanted
