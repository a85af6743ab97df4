"""Bugs of what is logged and how it is applied again, one test each."""

from __future__ import annotations

import shutil
from pathlib import Path

import logweir
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def test_what_a_secondary_index_did_not_find_is_not_found_in_the_primary_one(
    tmp_path: Path,
) -> None:
    """DELETE and UPDATE by another index that found nothing change nothing when replayed."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space(
            "kv",
            [("id", "unsigned"), ("number", "unsigned"), ("text", "string")],
            indexes={"number": ["number"], "text": ["text"]},
        )
        log.append("kv", [(1, 10, "a"), (2, 20, "b")])
        before = log.vclock.lsn(1)
        assert log.delete("kv", 1, index="number") is None
        assert log.update("kv", 2, [["=", 2, "wrong"]], index="number") is None
        assert log.delete("kv", "zz", index="text") is None
        rows = log.select("kv")
        assert log.vclock.lsn(1) == before + 3  # logged, as Tarantool does
    shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        assert log.select("kv") == rows == [(1, 10, "a"), (2, 20, "b")]


def test_deleting_a_definition_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    """A DELETE of a row of `_index` that does not exist is no error, now or when replayed."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        space = log.create_space("kv", [("id", "unsigned")])
        request = Request(RowType.DELETE, 288, key=pack([space, 7]))
        assert log.execute(request) is None
        log.insert("kv", (1,))
    shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        assert log.select("kv") == [(1,)]
