"""What is looked at behind each test: what it may leave, and what not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import leaks
from support.leaks import SERVER, Leaks


@contextmanager
def looping(name: str) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of this name."""
    started: list[asyncio.AbstractEventLoop] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def work() -> None:
        started.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),), name=name)
    thread.start()
    assert ready.wait(20)
    yield started[0]
    started[0].call_soon_threadsafe(stop.set)
    thread.join(20)


@pytest.mark.parametrize(("name", "is_left"), [(SERVER, False), ("another", True)])
def test_a_server_that_tests_share_may_begin_a_thread(
    name: str, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its executor; anything else that came since is told."""
    monkeypatch.setattr(leaks, "WAIT_SECONDS", 0.02)
    with looping(name) as loop:
        before = Leaks()
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), loop).result(20)
        assert bool(before.found()) == is_left
        go = threading.Event()
        thread = threading.Thread(target=go.wait, args=(20,), name="mine")
        thread.start()
        assert any("mine" in one for one in before.found())
        go.set()
        thread.join()
