"""Restore, repair and trim where their 1st, 2nd, … call to the disk fails: a typed error, the
source as it was, no half of anything without its mark, and the same again goes through."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sim.test_failing_calls import FOLDER, prepared_disk
from sim.test_unfinished_copies import BOTH, TARGET, names
from sim.writing import fresh_disk, rows_of
from support.logs import INSTANCE, insert, transaction

from logweir.errors import LogweirError
from logweir.recovery import RepairResult, examine
from logweir.recovery.faults import SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, Run
from logweir.recovery.trim import trim
from logweir.recovery.unfinished import UNFINISHED_NAME
from logweir.replication.iproto.follow.join import _Copy
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock

Copy = Callable[..., Any]
FAULTS = pytest.mark.parametrize(
    "fault",
    [
        {"number": errno.EIO},
        {"number": errno.ENOSPC, "part": 0.5, "lasts": True},
        {"number": errno.EINTR},
    ],
    ids=["EIO", "ENOSPC", "EINTR"],
)


def failing(
    base: SimFileSystem, call: Callable[..., Any], fault: dict[str, Any], least: set[str]
) -> Iterator[tuple[Run[Any], SimFileSystem]]:
    """Each run, and its disk: in turn as the process left it, and behind a power cut. Calls of the
    kinds in `least` have to be among those that failed."""
    seen = set()
    for seed, run in enumerate(every_fault(base.copy, call, kinds=KINDS, **fault)):
        disk = run.filesystem.inner
        assert isinstance(disk, SimFileSystem)
        assert run.error is None or isinstance(run.error, LogweirError), run.failed
        assert disk.open_files == 0, run.failed
        seen.add(run.failed.partition(" ")[0])
        yield run, disk.crash(seed=seed) if seed % 2 else disk
    assert seen >= least | {""}


@BOTH
@FAULTS
def test_no_failing_call_leaves_half_a_copy(copy: Copy, fault: dict[str, Any]) -> None:
    """What returned without an error is there, whole, or a repair says that rows are lost, or
    that nobody knows."""
    base, _ = prepared_disk()
    whole = rows_of(examine(FOLDER, filesystem=base))

    def call(disk: Any) -> Any:
        return copy(FOLDER, TARGET, filesystem=disk)

    least = {"create", "write", "sync", "close", "rename", "open_read", "read"}
    for run, disk in failing(base, call, fault, least):
        lost = run.outcome.rows_lost if isinstance(run.outcome, RepairResult) else 0
        left = names(disk) - {f"{UNFINISHED_NAME}.new"}
        if UNFINISHED_NAME in left or not left:
            assert run.error is not None, run.failed
            call(disk)
        assert rows_of(examine(FOLDER, filesystem=disk)) == whole, run.failed
        there = rows_of(examine(TARGET, filesystem=disk))
        assert (set(there) < set(whole)) if lost else (there == whole or lost is None), run.failed
        assert set(there) <= set(whole), run.failed


@FAULTS
def test_no_failing_call_of_a_trim_takes_a_row(fault: dict[str, Any]) -> None:
    """The log ends behind its last whole block, then or at the next trim; one that returns has
    cut."""
    base, _ = prepared_disk()
    whole = rows_of(examine(FOLDER, filesystem=base))
    (done,) = trim(FOLDER, filesystem=base.copy())
    least = {"open_append", "truncate", "sync", "lock", "open_read", "read"}
    for run, disk in failing(base, lambda disk: trim(FOLDER, filesystem=disk), fault, least):
        again = trim(FOLDER, filesystem=disk)
        assert again == (() if run.error is None else again and (done,)), run.failed
        assert dict(disk.files(FOLDER))[done.path.name][: done.size + 1][done.size :] == b""
        assert rows_of(examine(FOLDER, filesystem=disk)) == whole, run.failed


@FAULTS
def test_no_failing_call_of_a_join_leaves_a_file_open(fault: dict[str, Any]) -> None:
    """Of the snapshot and of the log, which there is where the master is written to meanwhile."""

    def call(disk: Any) -> None:
        copy = _Copy(FOLDER, INSTANCE, disk)
        try:
            copy.begin(VClock({1: 5}), 1.0)
            copy.add_final(RowColumns.scan(transaction(6, [insert(512, [1])])))
            copy.finish(VClock({1: 6}))
        finally:
            copy.let_go()

    for _ in failing(fresh_disk(1), call, fault, {"create", "write", "sync", "close", "rename"}):
        pass
