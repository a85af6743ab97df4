"""The line of changes: what it makes together, and how long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.replication.metrics import Metrics
from logweir.replication.service import line
from logweir.replication.service.line import Line
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

LONG = 1e6
"""So many times as long as a group takes it is waited for more."""


class Watched(Line):
    """Notes how many jobs there are in each of its groups."""

    def __init__(self, log: logweir.Log) -> None:
        super().__init__(log, Metrics())
        self.groups: list[int] = []
        self.left = 0
        self.failed: list[BaseException | None] = []
        self.all_done = asyncio.Event()

    def _is_made_at_once(self, jobs: list[Job]) -> bool:
        self.groups.append(len(jobs))
        return bool(super()._is_made_at_once(jobs))

    def ask(self, number: int) -> None:
        """One change more."""
        self.left += 1
        self.all_done.clear()
        space = self.log.schema.space("t").id
        request = Request(RowType.REPLACE, space, tuple=pack([number]))
        self.submit(Job(lambda group: group.execute(request)), self.done)

    def done(self, job: Job) -> None:
        self.failed.append(job.error)
        self.left -= 1
        if not self.left:
            self.all_done.set()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logweir.Log]:
    monkeypatch.setattr(line, "_QUICK_SECONDS", LONG)  # however slow the disk is just now
    with logweir.open(tmp_path / "s") as made:
        made.create_space("t", [("id", "unsigned")])
        yield made


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """With each event loop there is."""
    asyncio.run(main())
    uvloop = pytest.importorskip("uvloop", reason="uvloop does not run here")
    uvloop.run(main())


def test_as_many_as_the_last_time_are_made_together(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they come in several turns of the loop."""
    monkeypatch.setattr(line, "_GATHER_PART", LONG)

    async def main() -> None:
        made = Watched(log)
        for number in range(3):
            made.ask(number)
        await made.all_done.wait()
        for number in range(3):
            made.ask(number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await made.all_done.wait()
        assert made.groups == [3, 3]
        assert made.failed == [None] * 6

    run(main)


def test_who_does_not_come_back_is_not_waited_for_again(log: logweir.Log) -> None:
    async def main() -> None:
        made = Watched(log)
        for number in range(3):
            made.ask(number)
        await made.all_done.wait()
        made.ask(1)
        await made.all_done.wait()
        assert made.groups == [3, 1]
        assert made._asked_last == 1

    run(main)


def test_one_alone_is_made_in_the_next_turn(
    log: logweir.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_GATHER_PART", LONG)

    async def main() -> None:
        made = Watched(log)
        for number in range(3):
            made.ask(number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert made.groups == [1] * (number + 1)

    run(main)


def test_the_time_of_a_group_is_told_exactly(log: logweir.Log) -> None:
    """In parts of a millisecond, also where the loop's own time is in whole ones."""

    async def main() -> None:
        made = Watched(log)
        made.ask(1)
        await made.all_done.wait()
        taken = made.metrics._often.counted.commit_seconds
        assert taken > 0
        assert taken * 1000 != int(taken * 1000)

    run(main)
