"""Groups that are committed in the thread that brings them, where nothing is to be synced."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError, WalError, WriteFailed
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store.commit.group import Group
from logweir.store.commit.queue import Job
from logweir.store.engine.request import Request
from logweir.store.log import Log
from logweir.wal.failpoint import arm, disarm
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def opened(folder: Path, filesystem: FileSystem = OS, **options: object) -> Log:
    """A store that syncs nothing, with a space and one row in it."""
    log = logweir.open(folder, durability="write", filesystem=filesystem, **options)  # type: ignore[arg-type]
    if log.schema.get("t") is None:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        log.insert("t", (0, 0))
    return log


def insert(log: Log, number: int) -> Job:
    """A job of one INSERT."""
    space_id = log.schema.space("t").id
    request = Request(RowType.INSERT, space_id, tuple=pack([number, 0]))
    return Job(lambda group: group.execute(request)[1])


def test_a_group_is_committed_in_this_thread(tmp_path: Path) -> None:
    """All jobs of it are answered when the call returns, and survive the process."""
    log = opened(tmp_path / "s")
    threads = []
    log.on_commit(lambda vclock: threads.append(threading.get_ident()))
    answered: list[Job] = []
    jobs = [insert(log, 1), insert(log, 0), insert(log, 2)]
    for job in jobs:
        job.finished = answered.append
    commits = log.inner.commits
    assert log.inner.run_jobs_here(jobs)
    assert answered == jobs
    assert threads == [threading.get_ident()]
    assert log.inner.commits == commits + 1
    assert jobs[0].result == pack([1, 0])
    assert isinstance(jobs[1].error, RequestError)
    assert jobs[2].error is None
    log.inner.abandon()
    with opened(tmp_path / "s") as again:
        assert again.select("t") == [(0, 0), (1, 0), (2, 0)]


def test_a_group_that_would_have_to_wait_is_left_alone(tmp_path: Path) -> None:
    """While a transaction is open, where syncs are due, and once the log is closed."""
    with opened(tmp_path / "s") as log:
        job = insert(log, 1)
        with log.transaction():
            assert not log.inner.run_jobs_here([job])
        assert not job.done
    assert not log.inner.run_jobs_here([job])
    with logweir.open(tmp_path / "s") as log:
        assert not log.inner.run_jobs_here([job])
        assert log.count("t") == 1


def test_a_full_file_is_closed_by_another_thread(tmp_path: Path) -> None:
    """Closing it syncs all of it: who must not wait, waits not for that."""
    with opened(tmp_path / "s", wal_max_size=2) as log:
        job = insert(log, 1)
        assert not log.inner.run_jobs_here([job])
        log.inner.run_job(job)
        assert log.count("t") == 2


def test_a_failing_disk_refuses_the_group(tmp_path: Path) -> None:
    """Nothing of it is left, and the next one is taken."""
    faulty = FaultyFileSystem(OS)
    with opened(tmp_path / "s", faulty) as log:
        job = insert(log, 1)
        faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
        assert log.inner.run_jobs_here([job])
        assert isinstance(job.error, WriteFailed)
        again = insert(log, 1)
        assert log.inner.run_jobs_here([again])
        assert again.error is None
        assert log.count("t") == 2


def test_a_group_that_is_stopped_behind_its_write_ends_the_log(tmp_path: Path) -> None:
    """Its jobs are told so; opening the folder again applies what was written."""
    log = opened(tmp_path / "s")
    job = insert(log, 1)
    arm("store.after_sync_before_publish", broken)
    try:
        assert log.inner.run_jobs_here([job])
    finally:
        disarm()
    assert isinstance(job.error, WalError)
    late = insert(log, 2)
    assert log.inner.run_jobs_here([late])
    assert isinstance(late.error, WalError)
    log.inner.abandon()
    with opened(tmp_path / "s") as again:
        assert again.select("t") == [(0, 0), (1, 0)]


def test_an_interrupt_answers_the_group_and_leaves_the_lead(tmp_path: Path) -> None:
    """The others of its group are told, the lock is free, nothing was written."""
    with opened(tmp_path / "s") as log:

        def apply(group: Group) -> None:
            raise KeyboardInterrupt

        jobs = [insert(log, 1), Job(apply)]
        with pytest.raises(KeyboardInterrupt):
            log.inner.run_jobs_here(jobs)
        assert all(job.done for job in jobs)
        assert isinstance(jobs[0].error, WalError)
        assert log.inner.run_jobs_here([insert(log, 3)])
        assert log.select("t") == [(0, 0), (3, 0)]


def broken() -> None:
    raise OSError(errno.EIO, "broken")
