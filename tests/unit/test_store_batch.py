"""Batches: what is put and removed in bytes is in the log and in both indexes, and is seen."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError
from logweir.store.commit.batch import Batch
from logweir.store.commit.group import Group
from logweir.store.commit.queue import Job
from logweir.store.engine.request import Request
from logweir.store.log import Log
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def entry(number: int) -> bytes:
    """An entry of the first index."""
    return b"\x31" + number.to_bytes(8, "big")


def open_log(folder: Path) -> Log:
    """A store with one space of two indexes."""
    log = logweir.open(folder)
    log.create_space(
        "t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"], indexes={"n": ("n",)}
    )
    return log


def put(group: Group, *rows: tuple[int, int]) -> None:
    """Put rows that are not there."""
    batch = Batch.of(group, group.schema.space("t"))
    tuples = [pack(row) for row in rows]
    bounds = array("Q", (0,))
    for row, data in zip(rows, tuples, strict=True):
        bounds.append(bounds[-1] + len(data))
        batch.latest[entry(row[0])] = data
        batch.born[entry(row[0])] = entry(row[1])
    batch.put(b"".join(tuples), bounds)


@pytest.mark.parametrize("count", [1, 63, 64, 300])
def test_puts_are_in_log_and_indexes(tmp_path: Path, count: int) -> None:
    """Each is a transaction, few or many; the state is the same when it is made from the log."""
    wanted = [(number, 1000 - number) for number in range(count)]
    with open_log(tmp_path / "s") as log:
        start = log.vclock
        log.run_job(Job(lambda group: put(group, *wanted)))
        assert log.select("t") == wanted
        assert log.select("t", index="n") == wanted[::-1]
        found = list(log.rows(start))
        assert [len(each.rows) for each in found] == [1] * count
        assert log.vclock.signature == start.signature + count
    for file in (tmp_path / "s" / "state").iterdir():
        file.unlink()
    (tmp_path / "s" / "state").rmdir()
    with logweir.open(tmp_path / "s") as log:
        assert log.select("t", index="n") == wanted[::-1]


def test_removal_is_one_transaction_of_two_rows(tmp_path: Path) -> None:
    """Its tombstone, then the deletion; both entries are gone, that of a tuple put again stays."""
    with open_log(tmp_path / "s") as log:
        log.run_job(Job(lambda group: put(group, (1, 11), (2, 12), (3, 13))))
        start = log.vclock

        def change(group: Group) -> None:
            batch = Batch.of(group, group.schema.space("t"))
            for number in (1, 2):
                batch.remove(pack((number, 0)), pack((number,)))
                batch.latest[entry(number)] = None
                batch.gone[entry(number)] = entry(10 + number)
            put(group, (2, 20))

        log.run_job(Job(change))
        assert log.select("t") == [(2, 20), (3, 13)]
        assert log.select("t", index="n") == [(3, 13), (2, 20)]
        found = [[row.type for row in each.rows] for each in log.rows(start)]
        both = [RowType.REPLACE, RowType.DELETE]
        assert found == [both, both, [RowType.REPLACE]]


def test_other_jobs_of_the_group_see_the_batch(tmp_path: Path) -> None:
    """A job that knows of it goes on with it; for any other it is applied before."""
    seen: list[object] = []
    with open_log(tmp_path / "s") as log:

        def knows(group: Group) -> None:
            batch = Batch.of(group, group.schema.space("t"))
            seen.append(dict(batch.latest))
            put(group, (2, 12))

        def other(group: Group) -> None:
            seen.append(group.batch)
            seen.append(group.execute(Request(RowType.DELETE, 512, key=pack((1,))))[0])

        with log.transaction():
            log.submit_jobs(
                [
                    Job(lambda group: put(group, (1, 11)), sees_batch=True),
                    Job(knows, sees_batch=True),
                    Job(other),
                ]
            )
        log.run_job(Job(lambda group: None))
        assert seen == [{entry(1): pack((1, 11))}, None, pack((1, 11))]
        assert log.select("t") == [(2, 12)]


def test_job_that_fails_behind_a_batch_takes_nothing_along(tmp_path: Path) -> None:
    """The group is made again without it; what the others put is there once."""
    failed: list[BaseException | None] = []
    with open_log(tmp_path / "s") as log:
        start = log.vclock

        def fails(group: Group) -> None:
            put(group, (1, 99), (7, 70))
            raise RequestError(1, "no")

        with log.transaction():
            log.submit_jobs(
                [
                    Job(lambda group: put(group, (1, 11)), sees_batch=True),
                    Job(fails, sees_batch=True, finished=lambda job: failed.append(job.error)),
                    Job(lambda group: put(group, (2, 12)), sees_batch=True),
                ]
            )
        log.run_job(Job(lambda group: None))
        assert log.select("t") == [(1, 11), (2, 12)]
        assert log.vclock.signature == start.signature + 2
        assert len(failed) == 1
        assert "no" in str(failed[0])
