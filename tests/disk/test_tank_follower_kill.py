"""A follower of a Tank broker is killed: content and position agree, and going on from there gives
what the broker has, nothing lost and nothing doubled."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from disk.test_failpoints import forked, kill
from support.nursery import LOGWEIR, Program

import logweir
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.stream.positions import GAP_SPACE, POSITION_SPACE, gaps, position
from logweir.replication.tank.client import Client
from logweir.replication.tank.follow.source import TankSource
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.store import Log
from logweir.store.state import layers
from logweir.wal import failpoint
from logweir.wal.mp import unpack
from logweir.wal.xrow import Key, RowType

PARTITIONS = 3
FIRST = 6  # number of each partition
STEPS = [
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
    "store.before_apply_commit",
]
SEED = 20261122


class Upstream:
    """A broker in a process of its own, always on the same port: that is part of the source's
    name. `rows`: what was acknowledged, as the tuples of the topic, by partition."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
        self._folder = folder
        self._port = 0
        self._dice = random.Random(SEED)
        self._process: Program | None = None

    @property
    def url(self) -> str:
        """Its address, and the source's name."""
        return f"tank://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, and make the topic where it is not there."""
        listen = ["--listen", self.url, "--json", "--quiet"]
        words = ["serve", self._folder, *listen, "--allow-guest=all"]
        self._process = LOGWEIR.begin(*words, stdout=PIPE)
        assert self._process.stdout is not None
        address = json.loads(self._process.stdout.readline())["listen"][0]
        self._port = int(address.rpartition(":")[2])

    def create(self) -> None:
        """Make the topic."""

        async def work() -> None:
            async with Client(self.url) as client:
                await client.create_topic("t", PARTITIONS)

        asyncio.run(work())

    def publish(self, count: int) -> None:
        """Bundles for chance partitions: ordinary ones, with a jump ahead, sparse ones, of all
        sizes."""

        async def work() -> None:
            async with Client(self.url) as client:
                for _ in range(count):
                    partition = self._dice.randrange(PARTITIONS)
                    first, last, data, wanted = self._bundle(partition)
                    part = PublishPart("t", partition, data, wanted)
                    result = await client.publish([part], at_numbers=wanted is not None)
                    assert list(result) == [PublishResult.STORED]
                    self.rows[partition].append((partition, first, last))

        asyncio.run(work())

    def _bundle(self, partition: int) -> tuple[int, int, bytes, int | None]:
        known = self.rows[partition]
        number = (known[-1][2] if known else 0) + 1
        size = self._dice.choice((1, 30, 3000))
        contents = [self._dice.randbytes(size) for _ in range(self._dice.choice((1, 3, 20)))]
        last = number + len(contents) - 1
        kind = self._dice.randrange(4) if known else 2
        if kind > 1:
            messages = [Message(0, 7, None, content) for content in contents]
            jump = 5 if kind == 2 else 0
            wanted = number + jump if jump else None
            return number + jump, last + jump, encode_bundle(messages, compress=size > 1), wanted
        step = 1 + 3 * kind
        messages = [
            Message(number + step * index, 7, b"k", content)
            for index, content in enumerate(contents)
        ]
        return number, messages[-1].number, encode_bundle(messages, sparse=True), None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()

    def stored(self) -> list[tuple[Any, ...]]:
        """Everything the stopped broker holds, which must be what it acknowledged."""
        with logweir.open(self._folder) as log:
            rows = log.select("t")
        numbers = [row[:3] for row in rows]
        assert numbers == [row for partition in self.rows for row in partition]
        return rows


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    """A broker with a topic of some bundles."""
    broker = Upstream(tmp_path / "upstream")
    broker.start()
    try:
        broker.create()
        broker.publish(20)
        yield broker
    finally:
        broker.stop()


def follow(url: str, folder: Path, arm: Callable[[], None] = lambda: None) -> None:
    """Follow with small answers until the end is reached; `arm` is called before."""

    async def work() -> None:
        with logweir.open(folder) as log:
            source = TankSource(parse_url(url), log, fetch_bytes=400, wait_ms=500)
            runner = Runner(source, metrics=Metrics())
            task = asyncio.create_task(runner.run())
            try:
                while runner.status.state is not SourceState.FOLLOWING:
                    assert runner.status.state is not SourceState.STOPPED
                    await runner.changed()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    arm()
    asyncio.run(work())


def killed_at(step: str, passes: int) -> Callable[[], None]:
    """What has this process killed at the pass of that number."""
    left = [passes]

    def at_failpoint() -> None:
        left[0] -= 1
        if left[0] == 0:
            kill()

    return lambda: failpoint.arm(step, at_failpoint)


def check(log: Log, source: str, whole: list[tuple[Any, ...]] | None = None) -> int:
    """Each partition ends where its position says, and so did it behind each transaction of the
    log; what the broker never had is a gap. `whole`: rows of which those here are the beginning.
    Returns how many bundles are here."""
    if any(log.schema.get(name) is None for name in ("t", POSITION_SPACE, GAP_SPACE)):
        return 0
    rows = log.select("t")
    for partition in range(PARTITIONS):
        mine = [row for row in rows if row[0] == partition]
        lost = [(gap.start, gap.end) for gap in gaps(log, source) if gap.instance == str(partition)]
        noted = position(log, source, "t", str(partition))
        if noted is None:
            assert not mine
            assert not lost
        else:
            assert lost == [(1, FIRST - 1)]
            assert noted == {"next": mine[-1][2] + 1 if mine else FIRST}
        if whole is not None:
            theirs = [row for row in whole if row[0] == partition]
            assert mine == theirs[: len(mine)]
    check_transactions(log)
    return len(rows)


def check_transactions(log: Log) -> None:
    """Whoever writes bundles or gaps of a partition writes its position with them, and only
    then."""
    spaces = {log.schema.space(name).id: name for name in ("t", POSITION_SPACE, GAP_SPACE)}
    seen: list[tuple[int, int]] = []
    for transaction in log.rows():
        ends: dict[str, int] = {}
        noted: dict[str, int] = {}
        for row in transaction.rows:
            if row.space_id not in spaces:
                continue
            fields = unpack(row.body)[Key.TUPLE]
            match spaces[row.space_id]:
                case "t":
                    assert row.type == RowType.INSERT
                    seen.append((fields[0], fields[1]))
                    ends[str(fields[0])] = fields[2] + 1
                case "logweir_gap":
                    ends[fields[2]] = fields[4] + 1
                case _:
                    noted[fields[2]] = fields[3]["next"]
        assert noted == ends
    assert len(seen) == len(set(seen))


@pytest.mark.kill
@pytest.mark.parametrize("lose_state", [False, True], ids=["kill", "power-cut"])
@pytest.mark.parametrize("step", STEPS)
def test_kill_at_a_step_keeps_content_and_position_together(
    step: str,
    lose_state: bool,
    tmp_path: Path,
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each pass of each step of a commit in turn, on one folder, until nothing is left."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 0.0)  # the state takes each change
    folder = tmp_path / "store"
    before = kills = 0
    passes = 1
    while True:
        status, _ = forked(
            lambda _, passes=passes: follow(upstream.url, folder, killed_at(step, passes))
        )
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        kills += 1
        if lose_state:
            shutil.rmtree(folder / "state", ignore_errors=True)
        with logweir.open(folder) as log:
            count = check(log, upstream.url)
        assert count >= before
        passes = 1 if count > before else passes + 1
        before = count
    # The state takes what several commits have left, where it comes late.
    assert kills > (2 if step == "store.before_apply_commit" else 5)
    upstream.stop()
    whole = upstream.stored()
    with logweir.open(folder) as log:
        assert check(log, upstream.url, whole) == len(whole)


@pytest.mark.kill
def test_kills_of_both_sides_lose_and_double_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """Follower and broker are killed at chance moments while there is publishing."""
    folder = tmp_path / "store"
    dice = random.Random(SEED)
    words = ["follow", upstream.url + "/t", str(folder), "--quiet"]
    for turn in range(6):
        with LOGWEIR.begin(*words, stderr=DEVNULL) as follower:
            upstream.publish(dice.randrange(10, 150))
            if turn % 2:
                upstream.stop(signal.SIGKILL)
                upstream.start()
                upstream.publish(dice.randrange(10, 60))
            follower.kill()
        with logweir.open(folder) as log:
            check(log, upstream.url)
    code, _, complaints = LOGWEIR.run(*words, "--once", timeout=60)
    lines = complaints.splitlines()
    assert all("the broker no longer has them" in line for line in lines), lines
    assert code == (1 if lines else 0)
    upstream.stop()
    whole = upstream.stored()
    with logweir.open(folder) as log:
        assert check(log, upstream.url, whole) == len(whole)


def test_log_cut_anywhere_has_content_and_position_of_one_moment(
    tmp_path: Path, upstream: Upstream
) -> None:
    """What a power cut leaves of the newest log is a beginning: it is gone on from there."""
    dice = random.Random(SEED)
    upstream.publish(20)
    follow(upstream.url, tmp_path / "store")
    with logweir.open(tmp_path / "store") as log:
        total = check(log, upstream.url)
    (newest,) = sorted((tmp_path / "store").rglob("*.xlog"))[-1:]
    size = newest.stat().st_size
    found = set()
    for at in sorted(dice.randrange(size // 4, size) for _ in range(16)):
        copy = tmp_path / f"cut-{at}"
        shutil.copytree(tmp_path / "store", copy)
        shutil.rmtree(copy / "state")
        os.truncate(copy / newest.relative_to(tmp_path / "store"), at)
        (copy / "logweir.end").unlink()  # it was written when the log was closed
        with logweir.open(copy) as log:
            found.add(check(log, upstream.url))
        follow(upstream.url, copy)
        with logweir.open(copy) as log:
            assert check(log, upstream.url) == total
        shutil.rmtree(copy)
    assert len(found) > 5
