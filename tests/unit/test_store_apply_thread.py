"""The thread that puts layers into the state: there is one, and `close` waits for its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.waiting import until

import logweir

NAME = "logweir-apply"
Held = Callable[[Callable[[], bool]], list[threading.Thread]]


@pytest.fixture
def held() -> Iterator[Held]:
    """Such threads, once they run, before their first step: held until something holds. What it
    returns are those that have begun."""
    begun: list[threading.Thread] = []

    def hold(is_enough: Callable[[], bool]) -> list[threading.Thread]:
        def profile(frame: FrameType, event: str, arg: Any) -> None:
            thread = threading.current_thread()
            sys.setprofile(None)
            if thread.name == NAME:
                begun.append(thread)
                until(is_enough)

        threading.setprofile(profile)
        return begun

    try:
        yield hold
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


def test_a_thread_that_has_not_begun_counts(tmp_path: Path, held: Held) -> None:
    """The second change comes before the thread that the first one started has run at all."""
    changed = threading.Event()
    threads = held(changed.is_set)
    with logweir.open(tmp_path) as log:
        log.create_space("t", [("id", "unsigned")])
        log.insert("t", (1,))
        log.insert("t", (2,))
        changed.set()
    assert len(threads) == 1


def test_close_waits_for_a_thread_that_has_not_begun(tmp_path: Path, held: Held) -> None:
    """It begins when it is waited for, or behind all that `close` does."""
    log = logweir.open(tmp_path)
    closed: list[bool] = []

    def may_begin() -> bool:
        closing = [one.ident for one in threading.enumerate() if one.name == "logweir-close"]
        frames = [sys._current_frames().get(ident or 0) for ident in closing]
        is_waited_for = any(one and one.f_code.co_name.startswith("_wait_for") for one in frames)
        closed[:] = [log.inner.committer.is_closed]
        return is_waited_for or closed[0]

    threads = held(may_begin)
    log.create_space("t", [("id", "unsigned")])
    log.close()
    assert len(threads) == 1
    assert closed == [False]
    assert not threads[0].is_alive()


def test_a_change_that_comes_while_it_is_closed_starts_none(tmp_path: Path, held: Held) -> None:
    """Behind the end of the thread: nobody would wait for another one."""
    threads = held(lambda: True)
    log = logweir.open(tmp_path)
    log.create_space("t", [("id", "unsigned")])
    log.inner.committer.layers.close()
    log.insert("t", (1,))
    log.close()
    until(lambda: not any(one.name == NAME for one in threading.enumerate()))
    assert len(threads) == 1
