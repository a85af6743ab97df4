"""When a follower of a change stream has caught up: with steps from a list, into a real store."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import pytest

import logweir
from logweir.errors import Unreachable
from logweir.replication.bucket.item import Item
from logweir.replication.greenstack.follow.incoming import (
    Alive,
    CaughtUp,
    Ended,
    Rows,
    SnapshotBegins,
    SnapshotEnds,
    Step,
)
from logweir.replication.greenstack.follow.source import GreenstackSource, _Following
from logweir.replication.greenstack.wire.messages import StreamRow
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState
from logweir.replication.server import Server, ServerOptions
from logweir.replication.stream import positions
from logweir.wal.vclock import VClock


class Steps:
    """A stream of a server that stood at `opened_at` when it opened it; then it ends."""

    instance = "3d2f"

    def __init__(self, opened_at: VClock, *steps: Step) -> None:
        self.opened_at = opened_at
        self.acknowledged = 0
        self._steps = deque((*steps, Ended(0, "")))
        self.waiting = 0  # nothing behind the one that was taken

    async def step(self) -> Step:
        return self._steps.popleft()

    def acknowledge(self, *steps: Step) -> None:
        self.acknowledged += len(steps)


class Told:
    """What the source tells, in order: states, and how many rows were applied."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def alive(self) -> None:
        pass

    def state(self, state: SourceState) -> None:
        self.told.append(str(state))

    def applied(self, rows: int, position: str, lag_seconds: float | None) -> None:
        self.told.append(rows)

    def finished(self) -> None:
        raise AssertionError("a change stream has no end")


def row(number: int, position: VClock | None) -> Rows:
    """One document."""
    item = Item(b"k%d" % number, 0, b"v", cas=number)
    return Rows((StreamRow("b", item, lsn=number, origin=1),), position, 50)


def told_of(folder: Path, opened_at: int, *steps: Step) -> list[object]:
    """What is told of these steps."""
    told = Told()

    async def follow(log: logweir.Log) -> None:
        server = Server(log, ServerOptions())
        await server.start()
        try:
            source = GreenstackSource(server.shared, parse_url("greenstack://h/b"))
            bucket = source._buckets.make("b")
            positions.make_spaces(log)
            stream = Steps(VClock({1: opened_at}), *steps)
            with pytest.raises(Unreachable, match="ended the stream"):
                await _Following(source, bucket, stream, told).run()  # type: ignore[arg-type]
        finally:
            await server.stop()

    with logweir.open(folder) as log:
        asyncio.run(follow(log))
    return told.told


def at(lsn: int) -> VClock:
    """A position of one origin."""
    return VClock({1: lsn})


def test_a_busy_server_is_caught_up_with_where_it_stood(tmp_path: Path) -> None:
    """It never says that nothing is left; what it had when it was asked is here."""
    steps = (row(1, at(1)), row(2, at(2)), row(3, at(3)))
    assert told_of(tmp_path, 2, *steps) == ["syncing", 1, 1, "following", 1]


def test_rows_of_others_may_be_the_last(tmp_path: Path) -> None:
    """A heartbeat says how far the server's log was gone through."""
    assert told_of(tmp_path, 9, row(1, at(1)), Alive(at(9))) == ["syncing", 1, "following"]
    assert told_of(tmp_path, 9, Alive(at(8)), CaughtUp(at(8))) == ["syncing", "following"]


def test_a_snapshot_counts_when_it_has_ended(tmp_path: Path) -> None:
    """What was there before is removed then; marks in front of that say nothing."""
    steps = (SnapshotBegins(at(5)), row(1, None), Alive(at(5)), SnapshotEnds(at(6)))
    assert told_of(tmp_path, 5, *steps) == ["syncing", 1, 0, "following"]
