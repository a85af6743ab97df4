"""Changes that are made in the thread that brings them: an event loop's, or a program's own."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.helddisk import WAIT_SECONDS, HeldDisk
from support.waiting import until

import logweir
from logweir.errors import RequestError, WalError, WriteFailed
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.metrics import Metrics
from logweir.replication.service.line import Line
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import QUICK_BYTES, Job
from logweir.store.engine.request import Request
from logweir.store.log import Log
from logweir.store.state import stacked
from logweir.wal.failpoint import arm, disarm
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

_HALF = QUICK_BYTES // 2


def opened(folder: Path, filesystem: FileSystem = OS, **options: object) -> Log:
    """A store with a space and one row in it."""
    log = logweir.open(folder, filesystem=filesystem, **options)  # type: ignore[arg-type]
    if log.schema.get("t") is None:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        log.insert("t", (0, 0))
    return log


def insert(log: Log, number: int, size: int = 10, quick_bytes: int = QUICK_BYTES) -> Job:
    """A job of one INSERT."""
    space_id = log.schema.space("t").id
    request = Request(RowType.INSERT, space_id, tuple=pack([number, 0]))
    return Job(lambda group: group.execute(request)[1], size, quick_bytes=quick_bytes)


def made(log: Log, jobs: Sequence[Job], *, while_open: bool = False) -> bool:
    """Have an event loop put these in line in one turn, and wait until they are answered. Returns
    whether its own thread committed them. `while_open`: a transaction is, when they come."""
    threads = []

    async def main() -> None:
        line, answered = Line(log, Metrics()), asyncio.Event()
        told: list[Job] = []

        def done(job: Job) -> None:
            told.append(job)
            if len(told) == len(jobs):
                answered.set()

        for job in jobs:
            line.submit(job, done)
        if while_open:
            with log.transaction():
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not told
        await answered.wait()
        assert told == list(jobs)

    forget = log.on_commit(lambda vclock: threads.append(threading.get_ident()))
    asyncio.run(main())
    forget()
    return threads == [threading.get_ident()]


@pytest.mark.parametrize("durability", ["write", "fsync"])
def test_little_is_made_in_the_loop(tmp_path: Path, durability: str) -> None:
    """All jobs of a turn are one group, answered in order, and survive the process."""
    log = opened(tmp_path / "s", durability=durability)
    jobs = [insert(log, 1), insert(log, 0), insert(log, 2)]
    commits = log.inner.commits
    assert made(log, jobs)
    assert log.inner.commits == commits + 1
    assert jobs[0].result == pack([1, 0])
    assert isinstance(jobs[1].error, RequestError)
    assert jobs[2].error is None
    log.inner.abandon()
    with opened(tmp_path / "s") as again:
        assert again.select("t") == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("loads", "is_little"),
    [
        ([(_HALF, QUICK_BYTES), (_HALF, QUICK_BYTES)], True),
        ([(_HALF, QUICK_BYTES), (_HALF, QUICK_BYTES), (1, QUICK_BYTES)], False),
        ([(8 * _HALF, 8 * QUICK_BYTES), (_HALF, QUICK_BYTES)], True),
        ([(0, 0)], False),
    ],
)
def test_much_is_left_to_the_logs_thread(
    tmp_path: Path, loads: list[tuple[int, int]], is_little: bool
) -> None:
    """Much is what its jobs call so, all together; and one of which nobody knows."""
    with opened(tmp_path / "s") as log:
        jobs = [insert(log, number + 1, *load) for number, load in enumerate(loads)]
        assert made(log, jobs) == is_little
        assert log.count("t") == 1 + len(loads)


def test_who_would_have_to_wait_does_not(tmp_path: Path) -> None:
    """While somebody else's transaction is open; and closing a full file syncs all of it."""
    with opened(tmp_path / "s") as log:
        assert not made(log, [insert(log, 1)], while_open=True)
        assert log.count("t") == 2
    with opened(tmp_path / "s", wal_max_size=2) as log:
        assert not made(log, [insert(log, 2)])
        assert log.count("t") == 3


def refused(log: Log, job: Job) -> bool:
    """Whether a thread that must not wait does not make it; what it left is tried once more."""
    before = log.count("t")
    was_made = log.inner.run_if_free([job])
    assert log.count("t") == before + was_made
    assert job.done == was_made
    return not was_made


def test_who_commits_if_free_waits_for_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for one whose transaction is open, nor for one that waits for its sync or its turn to
    write, nor for room in the state; once that is over it does it."""
    disk = HeldDisk()
    with opened(tmp_path / "s", disk, write_ahead=0) as log, ThreadPoolExecutor(2) as threads:
        assert not refused(log, insert(log, 1))
        inside, leave = threading.Event(), threading.Event()

        def transact(number: int) -> None:
            with log.transaction() as tx:
                tx.insert("t", (number, 0))
                inside.set()
                assert leave.wait(WAIT_SECONDS)

        work = threads.submit(transact, 10)
        assert inside.wait(WAIT_SECONDS)
        assert refused(log, insert(log, 2))  # its transaction is open
        disk.go.clear()
        leave.set()
        assert disk.waits.wait(WAIT_SECONDS)
        assert refused(log, insert(log, 2))  # and is synced
        waiting = threads.submit(transact, 11)
        disk.go.set()
        work.result(WAIT_SECONDS)
        waiting.result(WAIT_SECONDS)
        assert not refused(log, insert(log, 2))
        before = log.transaction().__enter__()
        before.insert("t", (12, 0))
        before._leave(None)
        assert refused(log, insert(log, 3))  # nobody writes that yet, and anybody may begin to
        assert log.insert("t", (4, 0)) == (4, 0)
        with log.read_view(), monkeypatch.context() as patched:
            patched.setattr(stacked, "LAYER_BYTES", 0)
            assert refused(log, insert(log, 3))  # the state may have to grow first
        leading = threading.Event()

        def wait(group: Group) -> None:
            inside.set()
            assert leading.wait(WAIT_SECONDS)

        inside.clear()
        log.inner.submit_jobs([Job(wait)])
        assert inside.wait(WAIT_SECONDS)
        assert refused(log, insert(log, 3))
        leading.set()
        log.insert("t", (5, 0))  # behind it
        until(lambda: not refused(log, insert(log, 3)))
        assert [row[0] for row in log.select("t")] == [0, 1, 2, 3, 4, 5, 10, 11, 12]


def test_a_disk_that_took_long_once_is_left_to_the_logs_thread(tmp_path: Path) -> None:
    """Else whoever is connected would wait for each of its syncs, health among them; it is tried
    again when ten times as long has gone by, also if others took less meanwhile."""
    passed = 0.0

    def pass_seconds(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + passed  # type: ignore[method-assign]
        line = Line(log, Metrics())
        for number, before, sync in ((1, 0, 3), (2, 1, 0.4), (3, 1, 0), (4, 20, 0)):
            pass_seconds(before)
            arm("store.after_sync_before_publish", lambda sync=sync: pass_seconds(sync))
            try:
                await line.run(insert(log, number))
            finally:
                disarm()
        for number in range(5, 100):  # the log's thread may hold the log for a moment yet
            pass_seconds(9000)
            await line.run(insert(log, number))
            if threads[-1] == threading.get_ident():
                break

    with opened(tmp_path / "s") as log:
        threads: list[int] = []
        log.on_commit(lambda vclock: threads.append(threading.get_ident()))
        asyncio.run(main())
    here = [one == threading.get_ident() for one in threads]
    assert (here[:4], here[-1]) == ([True, False, False, False], True)


def test_a_log_that_is_closed_refuses(tmp_path: Path) -> None:
    """Every job is told so."""
    log = opened(tmp_path / "s")
    jobs = [insert(log, 1), insert(log, 2, QUICK_BYTES)]
    log.close()
    made(log, jobs)
    assert [type(job.error) for job in jobs] == [RequestError] * 2


def test_a_failing_disk_refuses_the_group(tmp_path: Path) -> None:
    """Nothing of it is left, and the next one is taken."""
    faulty = FaultyFileSystem(OS)
    with opened(tmp_path / "s", faulty, durability="write") as log:
        job = insert(log, 1)
        faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
        assert not made(log, [job])
        assert isinstance(job.error, WriteFailed)
        again = insert(log, 1)
        assert made(log, [again])
        assert again.error is None
        assert log.count("t") == 2


def test_a_group_that_is_stopped_behind_its_write_ends_the_log(tmp_path: Path) -> None:
    """Its jobs are told so; opening the folder again applies what was written."""
    log = opened(tmp_path / "s", durability="write")
    job, late = insert(log, 1), insert(log, 2)
    arm("store.after_sync_before_publish", broken)
    try:
        made(log, [job])
    finally:
        disarm()
    assert isinstance(job.error, WalError)
    made(log, [late])
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
            log.inner.run_job(jobs[1], jobs[:1])
        assert all(job.done for job in jobs)
        assert isinstance(jobs[0].error, WalError)
        log.inner.run_job(insert(log, 3))
        assert log.select("t") == [(0, 0), (3, 0)]


def broken() -> None:
    raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize("quick_bytes", [QUICK_BYTES, 0])
def test_an_answer_that_fails_holds_up_no_other(quick_bytes: int, tmp_path: Path) -> None:
    """Made in the loop's thread or left to the log's: the error is the loop's to tell."""
    failures: list[object] = []

    async def main(log: Log) -> None:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        line = Line(log, Metrics())

        def fail(job: Job) -> None:
            raise ValueError("an answer")

        line.submit(insert(log, 1, quick_bytes=quick_bytes), fail)
        line.submit(insert(log, 2, quick_bytes=quick_bytes), lambda job: answered.set())
        await asyncio.wait_for(answered.wait(), 20)

    with opened(tmp_path) as log:
        asyncio.run(main(log))
        assert log.count("t") == 3
    assert [str(one) for one in failures] == ["an answer"]
