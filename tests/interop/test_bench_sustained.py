"""`logweir bench sustained`: a load for a short time, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from logweir.errors import Unreachable
from logweir.store import open as open_store
from logweir.store.log import Log
from logweir.tools.bench import sustained
from logweir.tools.bench.load import Exchanged, LoadProcess
from logweir.tools.bench.sustained import (
    Beside,
    Reopened,
    Sample,
    against,
    growth,
    run_sustained,
)
from logweir.tools.bench.tarantool import find_tarantool
from logweir.wal.block import EOF_MARKER


def test_a_load_is_told_of_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample is later than the one before; what was changed is in log and memory, and in
    layers or state. At last the folder of a killed server, which wrote no end mark, is opened."""
    ends: list[bytes] = []

    def look(folder: Path) -> Log:
        ends.append(max(folder.glob("*.xlog")).read_bytes()[-4:])
        return open_store(folder)

    monkeypatch.setattr(sustained, "open_store", look)
    found = list(run_sustained(tmp_path, minutes=0.02, rows=2000, sample_seconds=0.3))
    (reopened,) = (one for one in found if isinstance(one, Reopened))
    assert reopened.seconds > 0
    assert ends != []
    assert EOF_MARKER not in ends
    samples = [one for one in found if isinstance(one, Sample)]
    assert found[: len(samples) + 1] == [*samples, reopened]
    seconds = [one.seconds for one in samples]
    assert seconds == sorted(set(seconds))
    assert seconds[-1] >= 1.2  # it ends when the last exchange did
    assert max(one.rate for one in samples) > 0
    assert max(one.slowest for one in samples) > 0
    assert max(one.pause for one in samples) > 0
    assert [one for one in samples if one.pause > one.slowest] == []
    assert [one for one in samples if not (one.log_bytes and one.state_bytes)] == []
    assert max(one.layers_bytes for one in samples) > 0
    beside = [one for one in found if isinstance(one, Beside)]
    assert bool(beside) == (find_tarantool() is not None)
    assert [one for one in beside if not one.memory_bytes] == []
    told = against(samples, beside)
    assert bool(told) == bool(beside)
    assert min(told.values(), default=1) > 0


def test_only_the_kill_that_is_meant_ends_a_sender() -> None:
    """A server that ends by itself is told of: what it was sent was not answered."""
    is_killed = Event()

    class Refused(LoadProcess):
        def exchange(self, *told: object) -> Exchanged:
            raise Unreachable("bench", "connection refused")

    sender = sustained._Sender(Refused(), 1, 512, 10, [])
    with pytest.raises(Unreachable):
        sender.send(is_killed)
    is_killed.set()
    sender.send(is_killed)
    assert sender.took == []


def test_growth_is_that_of_the_second_half() -> None:
    """What the first half grew by, when everything is filled, is not told."""
    first = Sample(30.0, 100.0, 0.1, 0.01, 5, 1000, 1000, 1000)
    middle = replace(first, seconds=60.0, state_bytes=9000, log_bytes=9000, memory_bytes=9000)
    third = replace(middle, seconds=90.0, rate=50.0)
    last = replace(third, seconds=180.0, state_bytes=9200, log_bytes=9400, memory_bytes=8800)
    assert growth([first, middle, third, last]) == pytest.approx(
        {"state_bytes": 100.0, "log_bytes": 200.0, "memory_bytes": -100.0, "rate": 0.5}
    )
    assert growth([first, middle, last]) == {}


def test_rates_are_over_all_stretches_however_long() -> None:
    """A short last one counts for little."""
    samples = [Sample(10.0, 100.0, 0.1, 0.2, 5, 1, 1, 1), Sample(12.0, 40.0, 0.1, 0.3, 5, 1, 1, 1)]
    beside = [Beside(10.0, 50.0, 0.1, 0.7, 1), Beside(20.0, 30.0, 0.1, 0.1, 1)]
    assert against(samples, beside) == pytest.approx(
        {"rate": 90.0, "tarantool_rate": 40.0, "ratio": 2.25, "pause": 0.3, "tarantool_pause": 0.7}
    )
    assert against(samples, []) == {}
