"""A writer is killed at random moments, again and again, on the same folder.

`LOGWEIR_KILLS=1000 tools/test tests/disk/test_kill_loop.py` kills it a thousand times, half of them
with either durability. `LOGWEIR_RUN`, 0 unless it is set: other moments for each number.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import threading
from pathlib import Path

import pytest

import logweir

KILLS = int(os.environ.get("LOGWEIR_KILLS", "150"))
THREADS = 3
RUN = int(os.environ.get("LOGWEIR_RUN", "0"))
SEED = 20261120 + RUN


def writer(folder: Path, durability: str, seed: int, pipe: int) -> None:
    """Several threads, each with its own series of three rows at a time, until killed. They are
    appended, or inserted in a transaction that counts them and replaces its thread's last one."""
    log = logweir.open(
        folder, durability, wal_max_size=8000, checkpoint_count=2, checkpoint_interval=0
    )
    os.write(pipe, b"\xff" * 8)  # open: from here on it may be killed

    def series(thread: int) -> None:
        dice = random.Random(seed * 10 + thread)
        first = thread * 1_000_000
        number = len(log.select("kv", [thread], index="series")) // 3
        while True:
            alone = dice.random() < 0.5
            rows = [(first + 3 * number + part, thread, number, alone) for part in range(3)]
            if alone:
                log.append("kv", rows)
            else:
                with log.transaction() as tx:
                    for row in rows:
                        tx.insert("kv", row)
                    for last in tx.select("last", [thread], index="thread"):
                        tx.delete("last", last[0])
                    tx.insert("last", (first + number, thread, "x" * dice.randrange(3000)))
                    tx.upsert("total", (thread, 3), [["+", 1, 3]])
            os.write(pipe, thread.to_bytes(4, "big") + number.to_bytes(4, "big"))
            number += 1
            if dice.random() < 0.02:
                log.snapshot()

    for thread in range(1, THREADS):
        threading.Thread(target=series, args=(thread,), daemon=True).start()
    series(0)


def start(folder: Path, durability: str, seed: int) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            writer(folder, durability, seed, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    return pid, read_end


def acknowledgements(pid: int, pipe: int, kill_after: float) -> list[tuple[int, int]]:
    """Wait until it is open, kill it after so many seconds, return what it had acknowledged."""
    data = os.read(pipe, 8)
    stopped = threading.Event()
    stopped.wait(kill_after)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while select.select([pipe], [], [], 5)[0] and (piece := os.read(pipe, 65536)):
        data += piece
    os.close(pipe)
    assert data[:8] == b"\xff" * 8
    pairs = [data[at : at + 8] for at in range(8, len(data) // 8 * 8, 8)]
    return [(int.from_bytes(p[:4], "big"), int.from_bytes(p[4:], "big")) for p in pairs]


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_kills_lose_and_double_nothing(tmp_path: Path, durability: str) -> None:
    """After every SIGKILL all acknowledged transactions are there, whole, once: also those that
    nobody has synced, for the system has what was written."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space(
            "kv",
            [
                *(("id", "unsigned"), ("thread", "unsigned"), ("number", "unsigned")),
                ("alone", "boolean"),
            ],
            indexes={"series": {"parts": ["thread", "number"], "unique": False}},
        )
        log.create_space("total", [("thread", "unsigned"), ("rows", "unsigned")])
        log.create_space(
            "last",
            [("id", "unsigned"), ("thread", "unsigned"), ("text", "string")],
            indexes={"thread": {"parts": ["thread"], "unique": False}},
        )
    dice = random.Random(SEED)
    first_seed = RUN * 1_000_000
    acknowledged = [0] * THREADS
    total = 0
    for kill in range(KILLS // 2):
        pid, pipe = start(folder, durability, first_seed + kill)
        for thread, number in acknowledgements(pid, pipe, dice.random() * 0.06):
            assert number >= acknowledged[thread]
            acknowledged[thread] = number + 1
            total += 1
        if dice.random() < 0.25:
            shutil.rmtree(folder / "state")
        with logweir.open(folder) as log:
            for thread in range(THREADS):
                rows = log.select("kv", [thread], index="series")
                done = len(rows) // 3
                assert acknowledged[thread] <= done <= acknowledged[thread] + 1, f"kill {kill}"
                first = thread * 1_000_000
                assert [row[:3] for row in rows] == [
                    (first + 3 * n + part, thread, n) for n in range(done) for part in range(3)
                ], f"kill {kill}"
                counted = [row[2] for row in rows if not row[3]]
                totals = [] if not counted else [(thread, len(counted))]
                assert log.select("total", [thread]) == totals, f"kill {kill}"
                last = [row[0] - first for row in log.select("last", [thread], index="thread")]
                assert last == counted[-1:], f"kill {kill}"
                acknowledged[thread] = done
    with logweir.open(folder) as log:
        assert log.count("kv") == 3 * sum(acknowledged)
        assert total > KILLS // 2
    print(f"{KILLS // 2} kills, {total} acknowledged transactions")
