"""`logweir bench sustained`: a load for a short time, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logweir.tools.bench.sustained import Sample, growth, run_sustained


def test_a_load_is_told_of_stretch_by_stretch(tmp_path: Path) -> None:
    """Each sample is later than the one before; what was changed is in log and memory, and in
    layers or state."""
    samples = list(run_sustained(tmp_path, minutes=0.02, rows=2000, sample_seconds=0.3))
    seconds = [one.seconds for one in samples]
    assert seconds == sorted(set(seconds))
    assert seconds[-1] >= 1.2  # it ends when the last exchange did
    assert max(one.rate for one in samples) > 0
    assert max(one.slowest for one in samples) > 0
    assert [one for one in samples if not (one.log_bytes and one.state_bytes)] == []
    assert max(one.layers_bytes for one in samples) > 0


def test_growth_is_that_of_the_second_half() -> None:
    """What the first half grew by, when everything is filled, is not told."""
    first = Sample(30.0, 100.0, 0.1, 5, 1000, 1000, 1000)
    middle = replace(first, seconds=60.0, state_bytes=9000, log_bytes=9000, memory_bytes=9000)
    third = replace(middle, seconds=90.0, rate=50.0)
    last = replace(third, seconds=180.0, state_bytes=9200, log_bytes=9400, memory_bytes=8800)
    assert growth([first, middle, third, last]) == pytest.approx(
        {"state_bytes": 100.0, "log_bytes": 200.0, "memory_bytes": -100.0, "rate": 0.5}
    )
    assert growth([first, middle, last]) == {}
