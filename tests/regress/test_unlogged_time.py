"""What durability "none" leaves out of the log is a gap that nobody is led across in silence."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

import logweir
from logweir.errors import ChainGap, LogStopped, LogweirError
from logweir.wal import failpoint


def test_a_time_without_a_log_is_a_gap_for_whoever_reads_on(tmp_path: Path) -> None:
    """What was logged before is given, then an error; behind the gap one can go on."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.insert("kv", (1,))
        logged = log.vclock
    with logweir.open(tmp_path, "none") as log:
        log.insert("kv", (2,))
        unlogged = log.vclock
    with logweir.open(tmp_path) as log:
        log.insert("kv", (3,))
        assert log.select("kv") == [(1,), (2,), (3,)]
        given: list[int] = []
        with pytest.raises(ChainGap):
            given.extend(one.rows[-1].lsn for one in log.rows())
        assert given[-1] == logged.lsn(log.replica_id)
        (after,) = log.rows(after=unlogged)
        assert after.rows[-1].lsn == log.vclock.lsn(log.replica_id)


def test_a_snapshot_counts_where_the_state_did_not_get_what_was_not_logged(tmp_path: Path) -> None:
    """Died between the snapshot and the state's next transaction."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.insert("kv", (1,))
    log = logweir.open(tmp_path, "none")

    def fail() -> None:
        raise OSError(5, "no more")

    failpoint.arm("store.before_apply_commit", fail)
    try:
        log.insert("kv", (2,))
        with contextlib.suppress(OSError, LogweirError):
            log.snapshot()
    finally:
        log.inner.abandon()
        failpoint.disarm()
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,)]


def test_a_power_cut_at_an_opening_leaves_a_folder_that_opens(tmp_path: Path) -> None:
    """Before the snapshot of what was not logged is written, nothing may say that it was there."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.insert("kv", (1,))
    log = logweir.open(tmp_path, "none")
    log.insert("kv", (2,))
    log.inner.committer.layers.apply()
    log.inner.abandon()

    class Kill(BaseException):
        """A kill."""

    def kill() -> None:
        raise Kill

    failpoint.arm("snapshot.before_rename", kill)
    try:
        with pytest.raises(Kill):
            logweir.open(tmp_path)
    finally:
        failpoint.disarm()
    shutil.rmtree(tmp_path / "state")  # as after a start of the machine
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,)]


def test_closing_tells_that_what_was_not_logged_is_lost(tmp_path: Path) -> None:
    """Where the store has failed it makes no snapshot, and nobody may have been told."""
    log = logweir.open(tmp_path, "none")
    log.create_space("kv", [("id", "unsigned")])
    log.insert("kv", (1,))

    def fail() -> None:
        raise OSError(5, "no more")

    failpoint.arm("store.before_apply_commit", fail)
    try:
        with pytest.raises(LogStopped):
            log.inner.committer.layers.apply()
        with pytest.raises(LogStopped):
            log.close()
    finally:
        failpoint.disarm()
    log.close()
    logweir.open(tmp_path).close()


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_store_has_what_its_snapshots_hold(seed: int, tmp_path: Path) -> None:
    """Lives of either durability, closed or killed, the first killed: nothing is there but what
    was written, in its order without a gap, and no less than the newest snapshot, the last row that
    was logged, and the last closing had."""
    dice = random.Random(seed)
    written = safe = 0
    for life in range(12):
        durability = "none" if life == 0 else dice.choice(["none", "fsync"])
        with contextlib.ExitStack() as stack:
            log = logweir.open(tmp_path, durability)
            stack.callback(log.inner.abandon)
            if not written:
                log.create_space("kv", [("id", "unsigned")])
            there = [row[0] for row in log.select("kv")]
            assert there == list(range(len(there)))
            assert safe <= len(there) <= written
            written = len(there)
            for _ in range(dice.randrange(5) + (life == 0)):
                log.insert("kv", (written,))
                written += 1
                safe = written if durability == "fsync" else safe
            if life == 0 or dice.random() < 0.5:
                log.snapshot()
                safe = written
            if life and dice.random() < 0.4:
                log.close()
                safe = written
