"""Two ways in which acknowledged rows could have gone."""

from __future__ import annotations

import threading
from pathlib import Path

import logweir
from logweir.errors import ErrorCode, RequestError
from logweir.store.commit.append import append_job, pack_run
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def test_reopening_from_the_states_position_keeps_every_row_of_the_log(tmp_path: Path) -> None:
    """Reading from a position in a file once took its text header for its end, and cut there."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.append("kv", [(i,) for i in range(10)])
    (path,) = tmp_path.glob("*.xlog")
    before = path.read_bytes()
    for _ in range(2):
        with logweir.open(tmp_path) as log:
            assert sum(len(one.rows) for one in log.rows({})) == log.vclock.lsn(1)
        assert path.read_bytes() == before


def test_jobs_of_one_group_see_what_an_append_before_them_added(tmp_path: Path) -> None:
    """Tuples that LMDB takes during the sync are there for the next job of the same group."""
    with logweir.open(tmp_path) as log:
        space = log.create_space("kv", [("id", "unsigned")])
        results: list[Job] = []
        done = threading.Event()

        def finished(job: Job) -> None:
            results.append(job)
            if len(results) == 4:
                done.set()

        def insert(number: int) -> Job:
            request = Request(RowType.INSERT, space, tuple=pack([number]))
            return Job(lambda group: group.execute(request), finished=finished)

        packed, bounds = pack_run([(i,) for i in range(100)])
        first = append_job("kv", packed, bounds, one_transaction=True)
        again = append_job("kv", packed, one_transaction=True)
        jobs = [Job(first, finished=finished), insert(50), insert(100)]
        jobs.append(Job(again, finished=finished))
        with log.transaction():  # while it is open the jobs gather: they become one group
            log.inner.submit_jobs(jobs)
        assert done.wait(20)
        assert jobs[0].error is None
        assert jobs[2].error is None
        for refused in (jobs[1], jobs[3]):
            assert isinstance(refused.error, RequestError)
            assert refused.error.code == ErrorCode.TUPLE_FOUND
        assert log.select("kv") == [(i,) for i in range(101)]
    with logweir.open(tmp_path) as log:
        assert log.count("kv") == 101
        assert (
            len([row for one in log.rows({}) for row in one.rows if row.space_id == space]) == 101
        )
