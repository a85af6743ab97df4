"""After rows were given up at the end of a log, no lsn that one may have had comes again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from samples import DAMAGED, damaged
from support.logs import INSTANCE, SPACE_ROW, insert, write_log, write_snapshot

import logweir
from logweir.errors import RecoveryRefused
from logweir.recovery import Hole, examine, plan, repair
from logweir.wal.failpoint import arm, disarm
from logweir.wal.vclock import VClock


def names_of_cases() -> list[str]:
    """The damaged samples that a forced opening takes with rows lost behind the last one."""
    found = []
    for name in DAMAGED:
        report = examine(damaged(name).folder)
        try:
            if plan(report, force=True).lsn_reserve:
                found.append(name)
        except RecoveryRefused:
            continue
    return found


@pytest.mark.parametrize("name", names_of_cases())
def test_lsns_go_on_behind_all_that_may_be_lost(name: str, tmp_path: Path) -> None:
    """Forced open, write, close, open as usual: the row is there, behind the reserve."""
    folder = tmp_path / "data"
    shutil.copytree(damaged(name).folder, folder)
    decided = plan(examine(folder), force=True)
    with logweir.open(folder, force_recovery=True) as log:
        before = log.vclock.lsn(log.replica_id)
        assert before == decided.vclock.lsn(log.replica_id) + decided.lsn_reserve
        log.create_space("after", [("id", "unsigned")])
        log.insert("after", [1])
        written = log.vclock
    report = examine(folder)
    assert not report.blocking
    assert report.vclock == written
    with logweir.open(folder) as log:
        assert log.vclock == written
        assert log.select("after") == [(1,)]


@pytest.mark.parametrize("name", names_of_cases())
def test_a_repaired_folder_goes_on_where_a_forced_opening_would(name: str, tmp_path: Path) -> None:
    """Repair, then open without force: the same lsns are left out, also by a second repair.

    Where repair saves the rows, since a log lost its header alone, none is left out.
    """
    folder = damaged(name).folder
    decided = plan(examine(folder, headerless=True), force=True)
    done = repair(folder, tmp_path / "new")
    least = decided.vclock.with_lsn(1, decided.vclock.lsn(1) + decided.lsn_reserve)
    assert done.vclock == least
    assert done.holes == (
        (Hole(decided.vclock, least, is_bound=True),) if decided.lsn_reserve else ()
    )
    assert done.rows_lost == (None if decided.lsn_reserve else 0)
    again = repair(tmp_path / "new", tmp_path / "again")
    assert (again.vclock, again.holes) == (least, done.holes)
    for one in ("new", "again"):
        with logweir.open(tmp_path / one) as log:
            assert log.vclock == least
            log.create_space("after", [("id", "unsigned")])
            log.insert("after", [1])
            assert log.vclock.lsn(1) == least.lsn(1) + 4
        assert examine(tmp_path / one).ok


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([], None),
        ([[1, str(INSTANCE)]], 1),
        ([[3, str(INSTANCE).upper()]], 3),
        ([[1, str(INSTANCE)], [1, "another"]], None),
        ([[1, "another"], [1, str(INSTANCE)]], 1),
        ([[40, str(INSTANCE)]], None),
        ([[]], None),
    ],
)
def test_the_number_is_what_the_rows_of_cluster_say(
    rows: list[Any], number: int | None, tmp_path: Path
) -> None:
    """The last row with our UUID counts; where none has it nothing is left out."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_snapshot(folder, {space: [SPACE_ROW] for space in (272, 276, 280, 288)})
    write_log(folder, [*([insert(320, one)] for one in rows), [insert(512, [1])]])
    (path,) = folder.glob("*.xlog")
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    report = examine(folder)
    (hole,) = repair(folder, tmp_path / "new").holes
    assert hole.after == report.vclock == VClock({1: len(rows)})
    assert hole.before == (
        None
        if number is None
        else report.vclock.with_lsn(number, report.vclock.lsn(number) + report.lsn_reserve)
    )
    assert report.lsn_reserve > 20


def test_there_are_such_cases() -> None:
    """At least the log whose tail was zeroed is one, else the test above would test nothing."""
    assert "g-zeroed-tail" in names_of_cases()


def test_rows_applied_and_gone_from_the_log_keep_their_lsns(tmp_path: Path) -> None:
    """The log's file was cut behind our back: the state knows which lsns were given out."""
    with logweir.open(tmp_path, compress_threshold=None) as log:
        log.create_space("s", [("id", "unsigned")])
        log.insert("s", [1])
        short = log.vclock
        (path,) = tmp_path.glob("*.xlog")
        size = log.inner.durable_end[1]
        for number in range(2, 12):
            log.insert("s", [number])
        given_out = log.vclock
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(RecoveryRefused, match="the newest rows are gone"):
        logweir.open(tmp_path)
    with logweir.open(tmp_path, force_recovery=True) as log:
        assert log.select("s") == [(1,)]
        log.insert("s", [2])
        assert log.vclock.lsn(log.replica_id) == given_out.lsn(log.replica_id) + 1
        assert log.vclock.signature > short.signature
        written = log.vclock
    with logweir.open(tmp_path) as log:
        assert (log.vclock, log.select("s")) == (written, [(1,), (2,)])


class Stopped(Exception):
    """The process ends here."""


@pytest.mark.parametrize("point", ["opening.after_reserve", "snapshot.before_rename"])
def test_a_forced_opening_that_is_stopped_reserves_again(point: str, tmp_path: Path) -> None:
    """Before its snapshot is there nothing is taken for whole, and no lsn comes again either."""
    folder = tmp_path / "data"
    shutil.copytree(damaged("g-zeroed-tail").folder, folder)
    decided = plan(examine(folder), force=True)

    def stop() -> None:
        raise Stopped

    arm(point, stop)
    try:
        with pytest.raises(Stopped):
            logweir.open(folder, force_recovery=True)
    finally:
        disarm()
    with pytest.raises(RecoveryRefused):
        logweir.open(folder)
    with logweir.open(folder, force_recovery=True) as log:
        least = decided.vclock.lsn(log.replica_id) + decided.lsn_reserve
        assert log.vclock.lsn(log.replica_id) >= least
    logweir.open(folder).close()
