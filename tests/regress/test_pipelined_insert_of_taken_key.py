"""One of several pipelined INSERTs had a key that was taken: none of the others was made either,
and where another change was in the group, the state kept tuples that were not in the log."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError
from logweir.store.append import store_run
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


@pytest.mark.parametrize("taken", [3, "x" * 600])
def test_a_refused_run_of_inserts_leaves_nothing(tmp_path: Path, taken: object) -> None:
    """So its requests can be tried one by one, and the state holds what the log does."""
    kind, least = ("unsigned", 1) if taken == 3 else ("string", "a" * 550)
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", kind)], primary=["id"])
        log.insert("t", (taken,))
        packed = pack([least]) + pack([taken])
        bounds = array("Q", (0, len(pack([least])), len(packed)))

        def apply(group: Group) -> None:
            space = group.schema.space("t").id
            with pytest.raises(RequestError, match="Duplicate key"):
                store_run(group, space, RowType.INSERT, packed, bounds)
            first = array("Q", bounds[:2])
            assert store_run(group, space, RowType.INSERT, packed, first)

        log.run_job(Job(apply))
        assert sorted(log.select("t")) == sorted([(least,), (taken,)])
