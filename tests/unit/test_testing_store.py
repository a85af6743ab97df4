"""`CrashStore`: kills, power cuts at every place, failing calls, bits that are read wrongly."""

from __future__ import annotations

import contextlib
import errno
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from logweir.errors import LogweirError
from logweir.recovery import examine
from logweir.recovery.faults import Fault
from logweir.testing import CrashStore
from logweir.testing.strategies import crash_points, damaged_bytes, faults

FORMAT = [("id", "unsigned"), ("value", "string")]


def fill(store: CrashStore, count: int = 4) -> None:
    """Rows, each promised when it is safe."""
    with store.open() as log:
        log.create_space("t", FORMAT, if_not_exists=True)
        for number in range(log.count("t"), log.count("t") + count):
            log.insert("t", (number, "x" * 50))
            store.promise(number)


def rows_of(store: CrashStore) -> list[int]:
    """What an opened store holds."""
    with store.open() as log:
        named = {space.name for space in log.schema}
        return [row[0] for row in log.select("t")] if "t" in named else []


@pytest.fixture
def store(tmp_path: Path) -> CrashStore:
    """One in a folder of the test."""
    return CrashStore(tmp_path)


def test_what_was_acknowledged_outlives_a_kill_and_a_power_cut(store: CrashStore) -> None:
    """In any order, with the store open or closed."""
    log = store.open()
    log.create_space("t", FORMAT)
    log.insert("t", (0, "a"))
    store.kill()
    assert log.is_closed
    assert rows_of(store) == [0]
    store.open().insert("t", (1, "b"))
    store.power_cut(seed=3)
    assert rows_of(store) == [0, 1]


def test_what_the_mode_does_not_promise_is_lost_by_a_power_cut(store: CrashStore) -> None:
    """So that a test which promises too much can fail."""
    fill(store)
    losses = set()
    for seed in range(20):
        log = store.open(durability="write")
        log.insert("t", (100 + seed, "not synced"))
        store.power_cut(seed=seed)
        losses.add(100 + seed in rows_of(store))
    assert losses == {False, True}


def test_power_cuts_come_everywhere_and_take_nothing_promised(store: CrashStore) -> None:
    """Before there is anything, behind each promise, and at calls of the disk in between."""
    seen = set()
    numbers = []
    store.states = 40
    for cut in store.power_cuts(fill):
        found = rows_of(cut)
        assert set(cut.promised) <= set(found)
        assert len(found) <= len(cut.promised) + 1
        seen.add(len(cut.promised))
        numbers.append(cut.only)
        assert store.current is cut
    assert len(seen) >= 4
    assert {0, 4} <= seen
    assert len(numbers) == len(set(numbers)) == store.states
    assert rows_of(store) == [0, 1, 2, 3]
    assert store.current is store


def test_a_promise_that_comes_too_early_is_found(store: CrashStore) -> None:
    """One that is given before the change is made."""

    def work(store: CrashStore) -> None:
        with store.open() as log:
            log.create_space("t", FORMAT)
            for number in range(4):
                store.promise(number)
                log.insert("t", (number, "x"))

    store.states = 20
    broken = [cut.where for cut in store.power_cuts(work) if set(cut.promised) - set(rows_of(cut))]
    assert any("behind the promise of" in where for where in broken)


def test_a_cut_is_repeated_by_its_number(tmp_path: Path) -> None:
    """The same place and promises, the same files; their bytes name another instance."""

    def look(store: CrashStore) -> object:
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it comes before there is a folder
            names = [name for name, _ in store.disk.files(store.path)]
        return store.where, store.promised, names

    def disks(store: CrashStore) -> dict[int | None, object]:
        return {cut.only: look(cut) for cut in store.power_cuts(fill)}

    first = disks(CrashStore(tmp_path / "a", states=40, seed=5))
    for number in list(first)[:: len(first) // 3]:
        second = CrashStore(tmp_path / "a", seed=5).cut_at(fill, number or 0)
        assert second is not None
        assert look(second) == first[number]
    assert CrashStore(tmp_path / "a").cut_at(fill, 10**6) is None


def test_each_call_to_the_disk_fails_once(store: CrashStore) -> None:
    """Each time in a copy of the store as it was; the errors are the work's own."""
    fill(store, 2)
    failed, errors = [], 0
    for run in store.failing_calls(fill, number=errno.ENOSPC, part=0.5):
        failed.append(run.where)
        errors += run.error is not None
        assert run.error is None or isinstance(run.error, LogweirError)
        assert run.promised[:2] == [0, 1]
        assert set(run.promised) <= set(rows_of(run))
    assert failed[-1] == "none failed"
    assert run.error is None
    assert errors > len(failed) // 2
    assert {one.split()[3] for one in failed[:-1]} >= {"write", "sync", "create", "close"}
    assert rows_of(store) == [0, 1]


def test_one_call_fails_when_it_is_told_to(store: CrashStore) -> None:
    """Counted from then on."""
    fill(store)
    log = store.open()
    store.fault = Fault(1, {"write"}, errno.ENOSPC)
    with pytest.raises(LogweirError, match="no space"):
        log.insert("t", (10, "y"))
    store.fault = None
    log.insert("t", (11, "y"))
    store.kill()
    assert rows_of(store) == [0, 1, 2, 3, 11]


def test_the_disk_can_be_laid_out_and_examined(store: CrashStore, tmp_path: Path) -> None:
    """As a folder of the real one."""
    fill(store)
    store.lay(tmp_path / "laid")
    report = examine(tmp_path / "laid")
    assert not report.damage
    assert report.vclock.signature > 4


def test_a_bit_that_is_read_wrongly_is_never_taken_for_a_row(store: CrashStore) -> None:
    """While the log is replayed, in one read or in all from one on: an error, or the rows as they
    were. One wrong bit in a single read of a block is mended by a second look."""
    fill(store, 20)
    whole, wrong = rows_of(store), 0
    for number in itertools.count(1):
        store.power_cut(seed=1)  # the state is gone, so that everything is read
        store.fault = Fault(number, {"read"}, bit=8 * 300 + number % 8, lasts=number % 3 > 0)
        try:
            assert rows_of(store) == whole
        except LogweirError:
            wrong += 1
        store.fault = None
        if not store.failed:
            break
        store.kill()
    assert wrong > 2
    assert rows_of(store) == whole


@settings(max_examples=15)
@given(number=crash_points(150))
def test_a_crash_point_of_hypothesis_takes_nothing_promised(number: int) -> None:
    """Any place of the work."""
    with CrashStore() as store:
        cut = store.cut_at(fill, number)
        assert cut is None or set(cut.promised) <= set(rows_of(cut))


@settings(max_examples=15)
@given(fault=faults(60))
def test_a_fault_of_hypothesis_takes_nothing_promised(fault: Fault) -> None:
    """Failing calls of all kinds, and bits that are read wrongly."""
    with CrashStore() as store:
        store.fault = fault
        with contextlib.suppress(LogweirError):
            fill(store)
        store.kill()
        store.fault = None
        assert set(store.promised) <= set(rows_of(store))


@given(data=damaged_bytes(b"0123456789"))
def test_damage_is_near_to_the_original(data: bytes) -> None:
    """Cut short, a bit flipped, or a few faults."""
    assert data == b"0123456789"[: len(data)] or len(data) <= 10 + 4 * 8


def test_the_package_needs_no_pytest() -> None:
    """It and all its names but the plug-in; Hypothesis is for the strategies only."""
    text = (
        "import sys, logweir.testing as t\n"
        "[getattr(t, name) for name in t.__all__]\n"
        "print([one for one in ('pytest', 'hypothesis') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
