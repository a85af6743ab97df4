"""A process is killed at each durable step; what it had acknowledged is there afterwards."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from logweir.wal import failpoint

FORMAT = [("id", "unsigned"), ("value", "string")]


def forked(work: Callable[[Callable[[int], None]], None]) -> tuple[int, list[int]]:
    """Run `work` in a child of its own. Returns its wait status and what it acknowledged."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            work(lambda number: os.write(write_end, number.to_bytes(4, "big")) and None)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    acknowledged = b""
    while piece := os.read(read_end, 65536):
        acknowledged += piece
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    numbers = [
        int.from_bytes(acknowledged[at : at + 4], "big") for at in range(0, len(acknowledged), 4)
    ]
    return status, numbers


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_some(folder: Path, name: str, passes: int, acknowledge: Callable[[int], None]) -> None:
    """Transactions of three rows with small files, snapshots and followers; killed at `name`."""
    log = logweir.open(folder, wal_max_size=600, checkpoint_count=1)
    left = [passes]

    def at_failpoint() -> None:
        left[0] -= 1
        if left[0] == 0:
            kill()

    failpoint.arm(name, at_failpoint)
    start = log.count("kv") // 3
    for number in range(start, start + 30):
        with log.transaction() as tx:
            for part in range(3):
                tx.insert("kv", (3 * number + part, f"v{number}"))
        acknowledge(number)
        if number % 5 == 4:
            log.retain("somebody", log.vclock)
            log.snapshot()
    log.close()
    kill()


def prepare(folder: Path) -> None:
    with logweir.open(folder) as log:
        log.create_space("kv", FORMAT)
        for number in range(3):
            log.append("kv", [(3 * number + part, f"v{number}") for part in range(3)])


STEPS = [
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "wal.after_eof_before_sync",
    "wal.after_close",
    "wal.before_rename",
    "wal.after_rename_before_directory_sync",
    "snapshot.before_rename",
    "snapshot.after_rename_before_directory_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
    "store.before_apply_commit",
    "store.after_apply_commit",
    "checkpoint.before_remove",
    "followers.before_rename",
    "endmark.before_rename",
]


@pytest.mark.kill
@pytest.mark.parametrize("lose_state", [False, True], ids=["kill", "power-cut"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_kill_at_a_step_loses_and_doubles_nothing(
    step: str, passes: int, lose_state: bool, tmp_path: Path
) -> None:
    """After SIGKILL exactly there, every acknowledged transaction is whole, at most one more is."""
    folder = tmp_path / "store"
    prepare(folder)
    status, acknowledged = forked(lambda acknowledge: write_some(folder, step, passes, acknowledge))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    if lose_state:
        shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        check_whole(log, 3 + len(acknowledged))
        known = log.count("kv") // 3
        log.append("kv", [(3 * known + part, f"v{known}") for part in range(3)])
        check_whole(log, known + 1)
    with logweir.open(folder) as log:
        assert log.count("kv") // 3 == known + 1


def check_whole(log: logweir.Log, acknowledged: int) -> None:
    """All acknowledged transactions and at most one more, each of three rows, none twice."""
    rows = log.select("kv")
    assert len(rows) % 3 == 0
    count = len(rows) // 3
    assert acknowledged <= count <= acknowledged + 1
    assert rows == [(id_, f"v{id_ // 3}") for id_ in range(3 * count)]
    lsns = [row.lsn for transaction in log.rows() for row in transaction.rows]
    assert lsns == sorted(set(lsns))


@pytest.mark.kill
def test_kill_while_the_state_is_rebuilt_starts_again(tmp_path: Path) -> None:
    """A process killed in the middle of loading leaves a state that is not mistaken for one."""
    folder = tmp_path / "store"
    prepare(folder)
    shutil.rmtree(folder / "state")

    def work(acknowledge: Callable[[int], None]) -> None:
        failpoint.arm("loading.after_state_commit", kill)
        logweir.open(folder)

    status, _ = forked(work)
    assert os.WIFSIGNALED(status)
    with logweir.open(folder) as log:
        check_whole(log, 3)


@pytest.mark.kill
def test_kill_while_the_first_snapshot_is_written_leaves_a_fresh_folder(tmp_path: Path) -> None:
    """A store that was never complete is made anew, without a word of damage."""
    folder = tmp_path / "store"

    def work(acknowledge: Callable[[int], None]) -> None:
        failpoint.arm("snapshot.before_rename", kill)
        logweir.open(folder)

    status, _ = forked(work)
    assert os.WIFSIGNALED(status)
    with logweir.open(folder) as log:
        assert log.vclock == {}
        assert log.report.ok
