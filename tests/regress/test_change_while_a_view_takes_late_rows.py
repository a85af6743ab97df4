"""A change that began while a view was having the state take late rows: it did not wait for them,
saw the state without them, and the two threads waited for each other for ever."""

from __future__ import annotations

import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from logweir.limits import LATE_AFTER
from logweir.store import late as late_module
from logweir.store import open as open_store
from logweir.store.append import store_run
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.store.log import Log
from logweir.store.run import Run
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def replace_late(log: Log, number: int) -> None:
    """A REPLACE that the state gets late, once there were enough of them."""
    data = pack([number, 0])
    run = Run(log.schema.space("t").id, data, array("Q", (0, len(data))))

    def apply(group: Group) -> None:
        assert store_run(group, run.space_id, RowType.REPLACE, run.packed, run.bounds)

    log.run_job(Job(apply, len(data), run=run))


def is_inside(thread: threading.Thread, *names: str) -> bool:
    """Whether one of these functions runs in a thread."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def test_change_waits_for_rows_that_a_view_makes_the_state_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change sees the late row, and both come to an end."""
    log = open_store(tmp_path / "s")
    log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
    for number in range(LATE_AFTER + 1):
        replace_late(log, number)
    seen: list[Any] = []

    def change() -> None:
        seen.append(log.update("t", LATE_AFTER, [("+", "n", 5)]))

    changing = threading.Thread(target=change, daemon=True)
    latest = late_module._latest

    def interrupted(*args: Any) -> Any:
        """Lets the change go as far as it can before the rows are taken."""
        changing.start()
        while changing.is_alive() and not is_inside(changing, "_apply_late", "finish_group"):
            pass
        return latest(*args)

    monkeypatch.setattr(late_module, "_latest", interrupted)
    viewing = threading.Thread(target=log.get, args=("t", LATE_AFTER), daemon=True)
    viewing.start()
    for thread in (viewing, changing):
        thread.join(30)
        assert not thread.is_alive()
    assert log.get("t", LATE_AFTER) == (LATE_AFTER, 5)
    assert seen == [(LATE_AFTER, 5)]
    log.close()
