"""A transaction of another instance of which the first rows are here already, and the last are not.

It was applied and logged again, and the folder could not be opened any more: an lsn used twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError
from logweir.store.commit.jobs import Job
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import Row, RowType, encode_row

SPACE = 600
OTHER = 7


def fed(log: logweir.Log, lsns: list[int], *, together: bool) -> object:
    rows = (
        Row(
            RowType.REPLACE,
            OTHER,
            lsn,
            1.5,
            tsn=lsns[0],
            commit=lsn == lsns[-1],
            body=pack({0x10: SPACE, 0x21: [lsn]}),
        )
        for lsn in lsns
    )
    columns = RowColumns.scan(b"".join(map(encode_row, rows)))
    if together:
        job = Job(lambda group: group.add_replicated(columns, columns.transaction_ends()))
    else:
        job = Job(lambda group: group.add_transaction(columns, 0, len(columns)))
    log.inner.run_job(job)
    return job.result


def test_rows_that_are_here_are_not_taken_again(tmp_path: Path) -> None:
    """Not as one transaction among many, and alone with an error; then the rows behind come, and
    the folder opens with each of them."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")], id=SPACE)
        assert fed(log, [1, 2], together=False)
        assert fed(log, [1, 2], together=False) is False
        with pytest.raises(RequestError, match="lsn 2 of replica 7, which is here already"):
            fed(log, [2, 3], together=False)
        assert fed(log, [2, 3], together=True) == 0
        assert log.select("kv") == [(1,), (2,)]
        assert fed(log, [3, 4], together=True) == 1
        vclock = log.vclock
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,), (3,), (4,)]
        assert log.vclock == vclock
