"""What fails in the thread that puts layers into the base stops the log, or is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import until

import logweir
from logweir.errors import LogStopped, WriteFailed
from logweir.wal import failpoint


@pytest.fixture
def failing() -> Iterator[list[Exception]]:
    """Errors that the state's next transactions meet, the last first."""
    errors: list[Exception] = []

    def fail() -> None:
        if errors:
            raise errors.pop()

    failpoint.arm("store.before_apply_commit", fail)
    yield errors
    failpoint.disarm()


def test_an_error_that_nobody_expects_stops_the_log(
    tmp_path: Path, failing: list[Exception]
) -> None:
    """Whoever changes something next is told; after opening again everything is there."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        failing.append(MemoryError())
        log.insert("kv", (1,))

        def is_told() -> bool:
            try:
                log.inner.change_base(lambda txn: None)
            except LogStopped as error:
                return "MemoryError" in str(error)
            return False

        until(is_told, 30)
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,)]


def test_a_full_disk_is_tried_again(tmp_path: Path, failing: list[Exception]) -> None:
    """The log goes on, and the state has taken everything when there is room."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        failing += [WriteFailed("no room", path=str(tmp_path))] * 2
        log.insert("kv", (1,))
        until(lambda: log.get("kv", 1) and not failing, 30)
        assert not failing
        log.insert("kv", (2,))
        log.inner.change_base(lambda txn: None)
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,)]
