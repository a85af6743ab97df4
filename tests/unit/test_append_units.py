"""Many transactions of several rows each, appended at once."""

from __future__ import annotations

import asyncio
from array import array
from itertools import accumulate
from pathlib import Path

import pytest

import logweir
from logweir import aio
from logweir.errors import ErrorCode, RequestError
from logweir.store import Log
from logweir.store.commit.append import append_units
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

SIZES = [1, 3, 2, 1, 1, 5]


def run(log: Log, tuples: list[list[object]], sizes: list[int]) -> int:
    """Append them, in transactions of these sizes."""
    parts = [pack(one) for one in tuples]
    bounds = array("Q", accumulate(map(len, parts), initial=0))
    ends = array("Q", accumulate(sizes))
    space = log.schema.space("s").id
    job = Job(append_units(space, b"".join(parts), bounds, ends))
    log.inner.run_job(job)
    assert isinstance(job.result, int)
    return job.result


def transactions(log: Log) -> list[list[tuple[int, int, int, bool, bytes]]]:
    """Of the space, each as type, lsn, tsn, commit flag and body of its rows."""
    return [
        [(row.type, row.lsn, row.tsn, row.commit, row.body) for row in one.rows]
        for one in log.rows()
        if one.rows[0].space_id == log.schema.space("s").id
    ]


@pytest.mark.parametrize("indexes", [{}, {"text": ["text"]}], ids=["plain", "second index"])
def test_borders_are_those_of_single_transactions(
    tmp_path: Path, indexes: dict[str, list[str]]
) -> None:
    """The same rows, lsns, transaction ids and flags as one `transaction()` after the other."""
    tuples: list[list[object]] = [[number, f"t{number}"] for number in range(sum(SIZES))]
    made = []
    for name in ("one", "other"):
        with logweir.open(tmp_path / name) as log:
            log.create_space("s", [("id", "unsigned"), ("text", "string")], indexes=indexes)
            if name == "one":
                assert run(log, tuples, SIZES) == sum(SIZES)
            else:
                left = iter(tuples)
                for size in SIZES:
                    with log.transaction() as tx:
                        for _ in range(size):
                            tx.insert("s", next(left))
            assert [list(row) for row in log.select("s")] == tuples
            made.append(transactions(log))
    assert made[0] == made[1]
    assert list(map(len, made[0])) == SIZES


def test_blocks_hold_whole_transactions(tmp_path: Path) -> None:
    """Far more than a block: every transaction is read back whole, also after opening again."""
    sizes = [1 + number % 7 for number in range(400)]
    tuples: list[list[object]] = [[number, "x" * 900] for number in range(sum(sizes))]
    with logweir.open(tmp_path / "data") as log:
        log.create_space("s", [("id", "unsigned"), ("text", "string")])
        run(log, tuples, sizes)
        found = transactions(log)
        log.inner.abandon()
    with logweir.open(tmp_path / "data") as log:
        assert transactions(log) == found
        assert list(map(len, found)) == sizes
        assert log.count("s") == len(tuples)


def test_key_that_is_taken_refuses_all(tmp_path: Path) -> None:
    """Within the run, or in the space: nothing of any transaction is there."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("s", [("id", "unsigned")])
        log.insert("s", [5])
        before = log.vclock
        for tuples in ([[1], [2], [1]], [[3], [4], [5]]):
            with pytest.raises(RequestError) as caught:
                run(log, tuples, [1, 2])
            assert caught.value.code == ErrorCode.TUPLE_FOUND
        with pytest.raises(RequestError):
            run(log, [[1], ["x"]], [1, 1])
        assert log.vclock == before
        assert log.select("s") == [(5,)]


def test_rows_behind_a_run_in_the_same_job_follow_it(tmp_path: Path) -> None:
    """A job may append, then go on in another transaction of the same write."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("s", [("id", "unsigned")])
        parts = [pack([number]) for number in range(3)]
        bounds = array("Q", accumulate(map(len, parts), initial=0))
        space = log.schema.space("s").id
        append = append_units(space, b"".join(parts), bounds, array("Q", (2, 3)))
        syncs = log.status()["syncs"]

        def apply(group: object) -> None:
            append(group)  # type: ignore[arg-type]
            for number in (7, 8):
                group.execute(  # type: ignore[attr-defined]
                    Request(RowType.INSERT, space, tuple=pack([number]))
                )

        log.inner.run_job(Job(apply))
        assert log.status()["syncs"] == syncs + 1
        assert list(map(len, transactions(log))) == [2, 1, 2]
        assert log.select("s") == [(0,), (1,), (2,), (7,), (8,)]


def test_a_transaction_appends_among_its_other_changes(tmp_path: Path) -> None:
    """Rows in the order of the calls, one transaction in the log; what is refused leaves nothing,
    and the transaction goes on; many are taken in several pieces."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("s", [("id", "unsigned")])
        log.create_space("gone", [("id", "unsigned")], temporary=True)
        with log.transaction() as tx:
            tx.insert("s", (1,))
            assert tx.append("s", [(3,), (2,)]) == 2
            assert tx.append("gone", [(1,)]) == 1
            assert tx.get("s", 2) == (2,)
            for wrong in ([(4,), (3,)], [(4,), ("x",)], [(4,), (object(),)]):
                with pytest.raises(RequestError):
                    tx.append("s", wrong)
            assert tx.append("s", []) == 0
            assert tx.append("s", [(number,) for number in range(100, 20_100)]) == 20_000
            tx.delete("s", 1)
            assert log.count("s") == 0
        (rows,) = transactions(log)
        assert [row[0] for row in rows] == [RowType.INSERT] * 20_003 + [RowType.DELETE]
        assert len({row[2] for row in rows}) == 1
        assert log.select("s", limit=3) == [(2,), (3,), (100,)]
        assert log.count("s") == 20_002
        assert log.count("gone") == 1
        with log.transaction() as tx:
            tx.append("s", [(4,), (5,)])
            tx.rollback()
        assert log.count("s") == 20_002


def test_an_awaited_transaction_appends(tmp_path: Path) -> None:
    """As one that is not."""

    async def main() -> None:
        async with aio.open(tmp_path / "data") as log:
            await log.run(lambda sync: sync.create_space("s", [("id", "unsigned")]))
            async with log.transaction() as tx:
                assert await tx.append("s", [(1,), (2,)]) == 2
                assert await tx.get("s", 2) == (2,)
            assert await log.select("s") == [(1,), (2,)]

    asyncio.run(main())
