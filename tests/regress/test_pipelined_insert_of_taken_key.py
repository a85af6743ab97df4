"""One of several pipelined INSERTs had a key that was taken: none of the others was made either,
and where another change was in the group, the state kept tuples that were not in the log."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

import logweir
from logweir.errors import ErrorCode
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.batches import puts
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


@pytest.mark.parametrize("taken", [3, "x" * 600])
def test_a_refused_insert_hinders_no_other(tmp_path: Path, taken: object) -> None:
    """The others of its batch are made, and the state holds what the log does."""
    kind, least = ("unsigned", 1) if taken == 3 else ("string", "a" * 550)
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", kind)], primary=["id"])
        log.insert("t", (taken,))
        packed = pack([least]) + pack([taken])
        bounds = array("Q", (0, len(pack([least])), len(packed)))
        rows = len(list(log.rows()))

        def apply(group: Group) -> None:
            space = group.schema.space("t").id
            columns = puts(RowType.INSERT, bounds, None)
            answers = group.execute_batch(packed, columns, (space,), limit_bytes=1 << 20)
            assert answers.refused == [1]
            assert answers.error(1).code == ErrorCode.TUPLE_FOUND

        log.inner.run_job(Job(apply))
        assert sorted(log.select("t")) == sorted([(least,), (taken,)])
        assert [one.rows[0].body[6:] for one in log.rows()][rows:] == [pack([least])]
