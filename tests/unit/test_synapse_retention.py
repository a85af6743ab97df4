"""Rows that are kept for a while only: marks, what is removed, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.serving import Serving
from logweir.errors import ConfigError
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.stream.positions import RETENTION_SPACE
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.follow.retention import Expiry, read_retention
from logweir.replication.synapse.wire.codec import encode_row
from logweir.replication.synapse.wire.units import Cursor, Unit
from logweir.store import Log


class Clock:
    """One that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "data") as opened:
        yield opened


def unit(token: int, stream: str = "typing", epoch: int = 1) -> Unit:
    """Two rows of one token."""
    rows = [encode_row(f'["{token}"]'), encode_row('["more"]')]
    return Unit(stream, "master", epoch, token, rows, False, Cursor(token, token, epoch))


def tokens(log: Log, stream: str = "typing") -> list[int]:
    """Of the rows that are there."""
    return [row[1] for row in log.select(f"synapse_{stream}")]


def test_rows_go_when_they_are_old_enough_and_not_before(log: Log) -> None:
    """Within an eighth of the time; other streams stay, and so do positions, over restarts."""
    clock = Clock()
    began: dict[int, float] = {}
    gone: dict[int, float] = {}
    intake = Intake(log, "x", clock=clock)
    expiry = Expiry(log, intake, (("typ*", 80),), clock)
    for number in range(1, 60):
        clock.seconds += 7
        began[number] = clock.seconds
        intake.store([unit(number), unit(number, "events")])
        if number % 10 == 0:  # a restart
            intake = Intake(log, "x", clock=clock)
            expiry = Expiry(log, intake, (("typ*", 80),), clock)
        if expiry.is_due:
            expiry.run()
        here = set(tokens(log))
        for token in began:
            if token not in here:
                gone.setdefault(token, clock.seconds)
    for token, when in gone.items():
        assert 80 <= when - began[token] <= 80 + 10 + 2 * 10 + 7
    assert len(gone) > 30
    assert tokens(log)[:2] == [max(gone) + 1] * 2  # whole units
    assert len(tokens(log, "events")) == 2 * 59
    assert intake.cursors()["typing", "master"] == Cursor(59, 59)
    clock.seconds += 100
    expiry.run()
    clock.seconds += 100
    expiry.run()
    assert tokens(log) == []
    ((*_, marks),) = log.select(RETENTION_SPACE)
    assert len(marks) <= 2


def test_marks_are_few_however_often_it_is_looked(log: Log) -> None:
    """Rows come every second for two periods of 80 s: a mark for an eighth, two at the ends."""
    clock = Clock()
    intake = Intake(log, "x", clock=clock)
    expiry = Expiry(log, intake, (("typing", 80),), clock)
    for number in range(1, 160):
        clock.seconds += 1
        intake.store([unit(number)])
        expiry.run()
        ((*_, marks),) = log.select(RETENTION_SPACE)
        assert len(marks) <= 8 + 2
    assert len(marks) >= 8


def test_rows_of_earlier_epochs_go_too_and_many_at_a_time(log: Log) -> None:
    """More than a page of them."""
    clock = Clock()
    intake = Intake(log, "x", clock=clock)
    intake.store([unit(number) for number in range(1, 1500)])
    intake.store([unit(number, epoch=2) for number in range(1, 40)])
    expiry = Expiry(log, intake, (("typing", 10),), clock)
    assert expiry.run() == 0
    clock.seconds += 5
    intake.store([unit(40, epoch=2)])
    clock.seconds += 5
    assert expiry.run() == 2 * (1499 + 39)
    assert tokens(log) == [40, 40]


def test_removal_that_is_cut_short_is_made_up_for(log: Log, tmp_path: Path) -> None:
    """After each transaction: no row comes back, none is left."""

    class Cut(Exception):
        pass

    class Failing(Intake):
        left = 0

        def run(self, jobs: Any) -> None:
            if not self.left:
                raise Cut
            self.left -= 1
            super().run(jobs)

    for cut in range(5):
        with logweir.open(tmp_path / str(cut)) as one:
            clock = Clock()
            Intake(one, "x", clock=clock).store([unit(number) for number in range(1, 1200)])
            Expiry(one, Intake(one, "x"), (("*", 10),), clock).run()
            Intake(one, "x", clock=clock).store([unit(5000)])
            clock.seconds += 10
            failing = Failing(one, "x", clock=clock)
            failing.left = cut
            try:
                Expiry(one, failing, (("*", 10),), clock).run()
            except Cut:
                assert len(tokens(one)) == max(2400 - 1000 * cut, 2)
        with logweir.open(tmp_path / str(cut)) as one:
            clock.seconds += 1
            Expiry(one, Intake(one, "x"), (("*", 10),), clock).run()
            assert tokens(one) == [5000, 5000]


@pytest.mark.parametrize(
    "text",
    ["typing", "typing:", ":1d", "typing:0s", "typing:1", "typing:1y", "typing:-1d", "a:99999999d"],
)
def test_period_that_is_none_is_refused(text: str) -> None:
    """With what to write."""
    with pytest.raises(ConfigError, match="typing:30m"):
        read_retention(parse_url(f"synapse://h?retention=events:1d,{text}"))


def test_periods_are_read() -> None:
    """Each unit, and patterns; none without the option."""
    url = parse_url("synapse+file://hs.yaml?retention=typing:30m,presence*:1d,a:2h,b:9s")
    assert read_retention(url) == (("typing", 1800), ("presence*", 86400), ("a", 7200), ("b", 9))
    assert read_retention(parse_url("synapse://h")) == ()


def test_follower_removes_while_it_follows_and_serves(tmp_path: Path) -> None:
    """What it removes does not disturb who follows it; the space of marks is no stream.

    Its time moves only when the third has the rows: what is removed before, nobody is sent."""
    listen, clock = [parse_listen_url("synapse://:0")], Clock()
    with Serving(tmp_path / "one", listen=listen) as one:
        one.log.create_space("s", [("id", "unsigned")], primary=["id"])
        url = parse_url(f"synapse://127.0.0.1:{one.port}?retention=s:1s")
        with Serving(
            tmp_path / "two", listen=listen, follow=[url], open_options={"clock": clock}
        ) as two:
            behind = parse_url(f"synapse://127.0.0.1:{two.port}")
            with Serving(tmp_path / "three", listen=[], follow=[behind]) as three:
                three.wait(lambda: three.log.schema.get("synapse_s") is not None)
                for number in range(20):
                    one.log.insert("s", [number])
                three.wait(lambda: three.log.count("synapse_s") == 20)
                assert two.log.count("synapse_s") == 20
                two.wait(lambda: _goes(clock) and two.log.count("synapse_s") == 0)
                one.log.insert("s", [20])
                three.wait(lambda: three.log.count("synapse_s") == 21)
                assert three.server.runners[0].status.attempts == 1
                assert three.log.schema.get(f"synapse_{RETENTION_SPACE}") is None


def _goes(clock: Clock) -> bool:
    """Half a second more of that time."""
    clock.seconds += 0.5
    return True
