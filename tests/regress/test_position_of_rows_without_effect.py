"""Rows that change nothing move the state's position all the same."""

from __future__ import annotations

from pathlib import Path

import logweir
from logweir.store.engine.request import Request
from logweir.store.state.state import State
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def test_state_closed_behind_rows_without_effect_is_at_the_end_of_the_log(tmp_path: Path) -> None:
    """A DELETE of nothing is logged; a state that stood before it would be read again from there,
    and be thrown away once the logs from there on are collected."""
    with logweir.open(tmp_path / "s") as log:
        space = log.create_space("t", [("id", "unsigned")], primary=["id"])
        log.inner.change_base(lambda txn: None)
        for number in range(5):
            log.execute(Request(RowType.DELETE, space, key=pack([number])))
        position = log.vclock
    state = State(tmp_path / "s" / "state")
    state.open_to_read()
    with state.read() as txn:
        found = txn.position()
    state.close(clean=False)
    assert found is not None
    assert found.vclock == position
