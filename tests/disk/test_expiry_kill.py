"""What has expired is deleted through kills, and a Tarantool sees it so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from disk.test_failpoints import forked, kill

import logweir
from interop.realtarantool import RealTarantool
from logweir.limits import EXPIRY_BATCH_TUPLES
from logweir.testing.clock import SimClock
from logweir.wal import failpoint

NOW = 1_795_000_000
COUNT = 3 * EXPIRY_BATCH_TUPLES
STAYS = [(COUNT, NOW + 1000)]
STEPS = [
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
]


def make(folder: Path) -> None:
    """Three batches of tuples that expire, and one that stays."""
    with logweir.open(folder, clock=SimClock(NOW)) as log:
        log.create_space("s", [("id", "unsigned"), ("till", "unsigned")])
        log.create_index("s", "till", {"parts": ["till"], "unique": False})
        log.set_expiry("s", "till")
        log.append("s", [*((number, NOW + number % 100) for number in range(COUNT)), *STAYS])


def left(log: logweir.Log) -> int:
    """How many are not deleted yet."""
    log.inner.now = SimClock(0)
    return log.count("s")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_kill_amid_the_batches(step: str, passes: int, tmp_path: Path) -> None:
    """Whole batches are gone or there, nobody reads either; the rest goes with the next."""
    folder = tmp_path / "s"
    make(folder)

    def work(acknowledge: object) -> None:
        log = logweir.open(folder, clock=SimClock(NOW + 100))
        log.inner.sweeper.close()
        count = [passes]

        def at_failpoint() -> None:
            count[0] -= 1
            if count[0] == 0:
                kill()

        failpoint.arm(step, at_failpoint)
        log.delete_expired()
        os._exit(3)

    status, _ = forked(work)  # type: ignore[arg-type]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with logweir.open(folder, clock=SimClock(NOW + 100)) as log:
        log.inner.sweeper.close()
        assert log.select("s") == STAYS
        deleted = log.delete_expired()
        assert deleted % EXPIRY_BATCH_TUPLES == 0
        assert deleted >= COUNT - passes * EXPIRY_BATCH_TUPLES
        assert left(log) == 1


@pytest.mark.tarantool
def test_a_tarantool_sees_the_deletes(tmp_path: Path) -> None:
    """It recovers the folder: rows like any others, and a space more."""
    folder = tmp_path / "s"
    make(folder)
    with logweir.open(folder, clock=SimClock(NOW + 100)) as log:
        log.delete_expired()
    with RealTarantool(folder) as box:
        rows = box.eval("return box.space.s:select()")[0]
        assert [tuple(row) for row in rows] == STAYS
        assert box.eval("return box.space.logweir_expiry:count()") == [1]
