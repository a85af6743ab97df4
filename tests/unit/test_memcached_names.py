"""Names of streams: how long they are kept, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.limits import TAP_KEEPALIVE_SECONDS, TAP_STREAMS
from logweir.replication.memcached.push.names import STREAMS_SPACE, NamedStreams
from logweir.replication.metrics import Metrics
from logweir.replication.stream.retention import Retention
from logweir.testing import SimClock


@pytest.mark.parametrize("restarts", [False, True])
def test_a_registered_name_is_kept_until_it_deregisters(tmp_path: Path, restarts: bool) -> None:
    """Through any time and a restart, its logs too; another one for the keepalive time, and not
    while somebody uses it."""
    clock = SimClock()
    with logweir.open(tmp_path / "s") as log:
        names = NamedStreams(log, Retention(log, metrics=Metrics()), clock)
        for name, is_registered in ((b"plain", False), (b"registered", True), (b"used", False)):
            stream = names.claim("b", name)
            stream.position, stream.is_registered = log.vclock, is_registered
            names.save(stream, at_once=True)
        names.claim("b", b"used").owner = log
        if restarts:
            names = NamedStreams(log, Retention(log, metrics=Metrics()), clock)
            names.claim("b", b"used").owner = log
        clock.now += TAP_KEEPALIVE_SECONDS - 1
        assert names.find("b", b"plain") is not None
        clock.now += 2
        assert names.find("b", b"plain") is None
        assert names.find("b", b"used") is not None
        clock.now += 1e9
        assert names.find("b", b"registered") is not None
        names.forget("b", b"registered")
        assert names.find("b", b"registered") is None
        log.insert(STREAMS_SPACE, ("c", b"x", {}, False, 0.0))  # behind what was put in line
        assert [row[1] for row in log.select(STREAMS_SPACE)] == [b"used", b"x"]


def test_names_are_bounded(tmp_path: Path) -> None:
    """Above the limit the one that is away longest goes; one that is in use never."""
    clock = SimClock()
    with logweir.open(tmp_path / "s") as log:
        names = NamedStreams(log, Retention(log, metrics=Metrics()), clock)
        names.claim("b", b"0").owner = log
        for number in range(1, TAP_STREAMS + 2):
            clock.now += 0.001
            names.claim("b", b"%d" % number).seen_at = clock.now
        assert names.find("b", b"0") is not None
        assert names.find("b", b"1") is None
        assert names.find("b", b"2") is None
        assert names.find("b", b"3") is not None
        assert len(names) == TAP_STREAMS
