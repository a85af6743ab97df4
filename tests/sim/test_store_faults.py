"""The whole store with failing calls and power cuts: nothing acknowledged lost, nothing doubled.

The log is on the disk that fails; the state is LMDB on the real disk, and is thrown away at each
power cut, as opening does after one.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import random
import shutil
import threading
from pathlib import Path

import pytest
from support.calls import each

import logweir
from logweir.errors import LogweirError, WriteFailed, WriterPoisoned
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, WRITING
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.filesystem import FileSystem

FORMAT = [("id", "unsigned"), ("value", "string")]
OPTIONS = {"wal_max_size": 700, "checkpoint_count": 1, "checkpoint_interval": 0.0}


class Known:
    """What a program knows of its transactions, each of three rows. `refused`: certainly not made;
    `unknown`: an error that leaves it open; `is_unlogged`: some are in no log."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.next = 0
        self.is_unlogged = False

    def write(self, log: logweir.Log) -> None:
        number = self.next
        self.next += 1
        rows = [(3 * number + part, f"value {number} " * 8) for part in range(3)]
        try:
            if number % 2:
                log.append("kv", rows)
            else:
                with log.transaction() as tx:
                    for row in rows:
                        tx.insert("kv", row)
            self.acknowledged.add(number)
        except WriteFailed:
            self.refused.add(number)
            raise
        except LogweirError:
            self.unknown.add(number)
            raise

    def check(self, log: logweir.Log) -> None:
        """All that was acknowledged, nothing that was refused, everything whole and once."""
        rows = log.select("kv")
        found = {row[0] // 3 for row in rows}
        assert len(rows) == 3 * len(found)
        assert all(row[1] == f"value {row[0] // 3} " * 8 for row in rows)
        assert self.acknowledged <= found <= self.acknowledged | self.unknown
        if not self.is_unlogged:
            lsns = [row.lsn for transaction in log.rows() for row in transaction.rows]
            assert lsns == list(range(lsns[0], lsns[0] + len(lsns))) if lsns else True
        self.acknowledged = found
        self.unknown = set()


def opened(folder: Path, disk: FileSystem, **options: object) -> logweir.Log:
    return logweir.open(folder, filesystem=disk, **{**OPTIONS, **options})


def prepare(folder: Path, known: Known) -> SimFileSystem:
    disk = SimFileSystem(seed=1)
    with opened(folder, disk) as log:
        log.create_space("kv", FORMAT)
        known.write(log)
    disk.sync_directory(folder)
    return disk


def use(folder: Path, disk: FileSystem, known: Known) -> None:
    """Open, change, snapshot, follow, rotate, close; what fails is noted and gone on with."""
    log = opened(folder, disk)
    poisoned = False
    first: LogweirError | None = None
    for step in range(9):
        try:
            if step in (3, 6):
                log.retain("somebody", log.vclock)
                log.snapshot()
            else:
                known.write(log)
                assert not poisoned, "acknowledged after a failed sync"
        except LogweirError as error:
            first = first or error
            poisoned = poisoned or isinstance(error, WriterPoisoned)
    try:
        log.close()
    except LogweirError as error:
        first = first or error
    assert log.is_closed
    if first is not None:
        raise first


def write_many(log: logweir.Log, known: Known) -> None:
    for _ in range(5):
        known.write(log)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "number", "part", "step"),
    [
        (WRITING, errno.EIO, 0.5, 3),
        ({"write", "create"}, errno.ENOSPC, 0.9, 1),
        ({"sync", "sync_directory"}, errno.EIO, 0.0, 1),
        (KINDS - WRITING, errno.EIO, 0.0, 3),
    ],
    ids=["writing", "full", "sync", "reading"],
)
def test_every_failing_call_loses_and_doubles_nothing(
    kinds: frozenset[str], number: int, part: float, step: int, folder: Path
) -> None:
    """Whatever call fails: a typed error, and the next opening finds what was acknowledged, whether
    the program alone is begun again or the power was cut. Of the many calls that are no syncs each
    third fails, all with `LOGWEIR_CALLS=all`."""
    ready, begun = Known(), folder.with_name("begun")
    prepared = prepare(folder, ready)
    shutil.move(folder, begun)
    known = ready
    runs = 0

    def make() -> FileSystem:
        nonlocal known
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        known = copy.deepcopy(ready)
        return prepared.killed()

    fault = {"kinds": kinds, "number": number, "part": part, "step": each(step)}
    for run in every_fault(make, lambda disk: use(folder, disk, known), **fault):
        runs += 1
        if run.error is not None:
            assert isinstance(run.error, LogweirError), run.failed
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        cut = disk.crash(seed=runs), copy.deepcopy(known)
        for left, knows in ((disk, known), cut):
            with opened(folder, left) as log:
                knows.check(log)
                knows.write(log)
            shutil.rmtree(folder / "state")
            with opened(folder, left) as log:
                knows.check(log)
            shutil.rmtree(folder / "state")
    assert runs > 5


@pytest.mark.slow
def test_power_cuts_again_and_again_lose_and_double_nothing(folder: Path) -> None:
    """Random work, random cuts, the state gone each time; also cuts during recovery."""
    known = Known()
    disk = prepare(folder, known)
    dice = random.Random(20261120)
    for cut in range(120):
        shutil.rmtree(folder / "state", ignore_errors=True)
        log = opened(folder, disk)
        known.check(log)
        for _ in range(dice.randrange(5)):
            known.write(log)
            if dice.random() < 0.15:
                log.snapshot()
        if dice.random() < 0.3:  # power goes while a transaction is open or being written
            faulty = FaultyFileSystem(disk)
            log.close()
            log = opened(folder, faulty)
            faulty.fault = Fault(dice.randrange(1, 4), {"write", "sync"})
            with contextlib.suppress(LogweirError):
                write_many(log, known)
                assert END_MARK_NAME in faulty.failed  # without which the log is whole
        after = disk.crash(seed=cut)
        log.inner.abandon()
        disk = after


@pytest.mark.parametrize("durability", ["fsync", "write", "none"])
def test_syncs_are_as_many_as_the_mode_says(durability: str, folder: Path) -> None:
    """ "fsync": at least one for every change before it returns; the weaker two: none for them."""
    disk = FaultyFileSystem(prepare(folder, Known()))
    with opened(folder, disk, durability=durability, wal_max_size=2**30) as log:
        assert log.status()["durability"] == durability
        log.insert("kv", (1000, "first: may make a file"))
        before = disk.counts["sync"]
        for key in range(20):
            log.insert("kv", (2000 + key, "x"))
            synced = disk.counts["sync"] - before
            assert synced == (key + 1 if durability == "fsync" else 0)
        log.append("kv", [(3000 + key, "x") for key in range(100)])
        assert disk.counts["sync"] - before == (21 if durability == "fsync" else 0)


@pytest.mark.parametrize("durability", ["fsync", "write", "none"])
@pytest.mark.parametrize("event", ["close", "kill", "close then power cut", "power cut"])
def test_what_survives_is_what_the_mode_says(durability: str, event: str, folder: Path) -> None:
    """Each mode keeps what it promises, and never half a transaction or a changed old row."""
    known = Known()
    disk = prepare(folder, known)
    before = set(known.acknowledged)
    known.is_unlogged = durability == "none"
    log = opened(folder, disk, durability=durability)
    for _ in range(4):
        known.write(log)
    if event.startswith("close"):
        log.close()
    if "power cut" in event:
        crashed = disk.crash(seed=3)
        if not log.is_closed:
            log.inner.abandon()
        shutil.rmtree(folder / "state")
        disk = crashed
    elif event == "kill":
        log.inner.abandon()
    loses = {"fsync": (), "write": ("power cut",), "none": ("kill", "power cut")}
    if event in loses[durability]:
        known.unknown, known.acknowledged = known.acknowledged - before, before
    with opened(folder, disk) as log:
        known.check(log)
        known.write(log)
    shutil.rmtree(folder / "state")
    with opened(folder, disk) as log:
        known.check(log)


def test_threads_share_syncs(tmp_path: Path) -> None:
    """Single rows of eight threads need fewer syncs than there are rows; each one is answered."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("kv", FORMAT)
        before = log.status()["syncs"]
        answers: list[tuple[object, ...]] = []

        def write(first: int) -> None:
            answers.extend(log.insert("kv", (first + key, "x")) for key in range(60))

        threads = [threading.Thread(target=write, args=(1000 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == log.count("kv") == 480
        assert log.status()["syncs"] - before < 480
