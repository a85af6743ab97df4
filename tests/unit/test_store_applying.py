"""What fails in the thread that puts layers into the base stops the log, or is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
        made = 0
        until = time.monotonic() + 30
        with pytest.raises(LogStopped, match="MemoryError"):
            while time.monotonic() < until:
                log.insert("kv", (made,))
                made += 1
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(number,) for number in range(made)]


def test_a_full_disk_is_tried_again(tmp_path: Path, failing: list[Exception]) -> None:
    """The log goes on, and the state has taken everything when there is room."""
    applied = threading.Event()
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        failing += [WriteFailed("no room", path=str(tmp_path))] * 2
        log.insert("kv", (1,))
        until = time.monotonic() + 30
        while failing and time.monotonic() < until:
            applied.wait(0.01)
        assert not failing
        log.insert("kv", (2,))
        log.change_base(lambda txn: None)
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,)]


def test_an_interrupted_start_of_the_thread_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ever put layers into the base."""
    served = threading.Event()
    failpoint.arm("store.before_apply_commit", served.set)
    start = threading.Thread.start
    interrupts = [KeyboardInterrupt()]

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "logweir-apply" and interrupts:
            raise interrupts.pop()
        start(thread)

    try:
        with logweir.open(tmp_path) as log:
            monkeypatch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.create_space("kv", [("id", "unsigned")])
            log.create_space("kv", [("id", "unsigned")])
            assert served.wait(30)
    finally:
        failpoint.disarm()
