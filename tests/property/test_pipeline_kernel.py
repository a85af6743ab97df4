"""The pipeline's kernel: compiled and interpreted give the slices that Python gives."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import interpreted as load_interpreted

from logweir.pipeline import kernel

SOURCE = Path(__file__).resolve().parents[2] / "pipeline" / "kernel.py"


interpreted = load_interpreted("interpreted_pipeline_kernel", SOURCE)
RUNS = pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])


def span(start: int, stop: int) -> int:
    """A span as `wal.kernel` gives it."""
    return start | stop << 32


def gathered(run: ModuleType, data: bytes, spans: array[int], room: int) -> tuple[int, bytes]:
    """What `gather` returns and writes, with the offsets behind the values."""
    offsets, out = array("i", [7]) * (len(spans) + 1), bytearray(room)
    found = run.gather(data, spans, offsets, out)
    return found, bytes(out[: max(found, 0)]) + (offsets.tobytes() if found >= 0 else b"")


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
    for run in (kernel, interpreted):
        assert run.span_bytes(spans, len(data)) == len(wanted)
        assert gathered(run, data, spans, len(wanted)) == (
            len(wanted),
            wanted + edges.tobytes(),
        )
        if wanted:
            found, _ = gathered(run, data, spans, len(wanted) - 1)
            assert found == -1 - max(i for i, piece in enumerate(pieces) if piece)


@RUNS
@pytest.mark.parametrize(
    "bad", [span(5, 4), span(0, 11), span(11, 11), span(2**32 - 1, 2**32 - 1), 2**64 - 1]
)
def test_spans_outside_of_the_buffer_are_refused(run: ModuleType, bad: int) -> None:
    """A span that is turned round or passes the buffer's end is named, nothing is read there."""
    spans = array("Q", [span(0, 3), bad])
    assert run.span_bytes(spans, 10) == -2
    assert gathered(run, bytes(10), spans, 100) == (-2, b"")


@RUNS
def test_more_than_arrow_counts_is_refused(run: ModuleType) -> None:
    """Values of 2^31 bytes and more together have no 32-bit offsets."""
    spans = array("Q", [span(0, 2**30)] * 3)
    assert run.span_bytes(spans, 2**30) == -2
    assert run.span_bytes(spans[:1], 2**30) == 2**30


@RUNS
def test_offsets_of_another_number_are_refused(run: ModuleType) -> None:
    """The room for offsets is checked before any is written."""
    offsets = array("i", [7, 7])
    assert run.gather(b"abc", array("Q", [span(0, 1), span(1, 2)]), offsets, bytearray(9)) == -1
    assert offsets.tolist() == [7, 7]
