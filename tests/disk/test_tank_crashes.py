"""A server of topics is killed at each step of a commit; what it had acknowledged is there."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from disk.test_failpoints import forked, kill

import logweir
from logweir.replication.tank.wire.messages import PublishResult
from logweir.replication.topic.bundle import Message, check_bundle, encode_bundle
from logweir.replication.topic.partition import Append
from logweir.replication.topic.spaces import create_topic
from logweir.replication.topic.store import StoredTopics
from logweir.store.state import stacked
from logweir.wal import failpoint

STEPS = [
    "wal.before_write",
    "wal.after_write_before_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
]


def bundle(number: int, size: int) -> bytes:
    """One message that does not compress."""
    content = random.Random(number).randbytes(size)
    return encode_bundle([Message(0, 1, None, content)], compress=False)


def publish(
    folder: Path,
    durability: str,
    step: str,
    size: int,
    passes: int,
    acknowledge: Callable[[int], None],
) -> None:
    """Four bundles at a time; killed at that pass of `step`."""

    async def work() -> None:
        log = logweir.open(folder, durability=durability)  # type: ignore[arg-type]
        topics = StoredTopics(log)
        left = [passes]

        def at_failpoint() -> None:
            left[0] -= 1
            if left[0] == 0:
                kill()

        failpoint.arm(step, at_failpoint)
        for first in range(1, 4000, 4):
            stored = asyncio.Event()
            for number in range(first, first + 4):
                data = bundle(number, size)
                head, time_ms = check_bundle(data)

                def done(results: Sequence[PublishResult], number: int = number) -> None:
                    assert results == [PublishResult.STORED]
                    acknowledge(number)
                    if number % 4 == 0:
                        stored.set()  # noqa: B023 - called before the next four

                topics.append([Append(1, 0, "t", 0, data, head, time_ms, None)], done)
            await stored.wait()

    asyncio.run(work())


@pytest.mark.kill
@pytest.mark.parametrize("size", [50, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("durability", ["write", "fsync"])
@pytest.mark.parametrize("passes", [3, 20])
@pytest.mark.parametrize("step", STEPS)
def test_kill_at_a_step_loses_and_doubles_no_bundle(
    step: str, passes: int, durability: str, size: int, tmp_path: Path
) -> None:
    """After SIGKILL exactly there bundle n is number n, up to the last acknowledged at least."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        create_topic(log, "t", 1, now_seconds=0)
    status, acknowledged = forked(
        lambda acknowledge: publish(folder, durability, step, size, passes, acknowledge)
    )
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    known = 4 * (passes - 1)
    assert acknowledged == list(range(1, known + 1))
    with logweir.open(folder) as log:
        rows = log.select("t")
        assert known <= len(rows) <= known + 4
        assert [row[:3] for row in rows] == [(0, n, n) for n in range(1, len(rows) + 1)]
        assert [row[4] for row in rows] == [bundle(n, size) for n in range(1, len(rows) + 1)]


@pytest.mark.kill
@pytest.mark.parametrize("lose_state", [False, True], ids=["kill", "power-cut"])
@pytest.mark.parametrize("passes", [1, 3])
def test_kill_while_the_state_takes_layers_loses_no_bundle(
    passes: int, lose_state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the log, and applied when the folder is opened."""
    monkeypatch.setattr(stacked, "LAYER_BYTES", 100_000)
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        create_topic(log, "t", 1, now_seconds=0)
    status, acknowledged = forked(
        lambda acknowledge: publish(
            folder, "write", "store.before_apply_commit", 20_000, passes, acknowledge
        )
    )
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    assert len(acknowledged) > 32
    if lose_state:
        shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        rows = log.select("t")
        assert len(acknowledged) <= len(rows) <= len(acknowledged) + 4
        assert [row[:3] for row in rows] == [(0, n, n) for n in range(1, len(rows) + 1)]
        assert [row[4] for row in rows] == [bundle(n, 20_000) for n in range(1, len(rows) + 1)]
