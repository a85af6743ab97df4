"""How many functions of CALL run at a time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from logweir.limits import CALL_THREADS
from logweir.replication.iproto.serve import calls
from logweir.replication.iproto.serve.calls import Calls

WAIT_SECONDS = 20


def computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs uses a processor all the time, as far as the clock of its thread tells."""
    monkeypatch.setattr(calls, "_processor_seconds", lambda thread: time.monotonic())


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none at all."""
    monkeypatch.setattr(calls, "_processor_seconds", lambda thread: 0.0)


def test_functions_that_compute_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take, in the order in which they came."""
    computes(monkeypatch)
    running: list[int] = []
    order: list[int] = []
    together: set[int] = set()

    def compute(number: int) -> int:
        running.append(number)
        end = time.monotonic() + 0.02  # several looks
        while time.monotonic() < end:
            together.add(len(running))
        running.remove(number)
        order.append(number)
        return number

    async def main() -> list[int]:
        line = Calls()
        found = await asyncio.gather(*(line.run(lambda n=n: compute(n)) for n in range(8)))
        await line.close()
        return found

    assert asyncio.run(main()) == list(range(8))
    assert order == list(range(8))
    assert together == {1}


def test_functions_that_wait_run_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are threads for; when they compute, one at a time again."""
    waits(monkeypatch)
    all_there = threading.Barrier(CALL_THREADS)

    async def main() -> None:
        line = Calls()
        each = (line.run(lambda: all_there.wait(WAIT_SECONDS)) for _ in range(CALL_THREADS))
        assert sorted(await asyncio.gather(*each)) == list(range(CALL_THREADS))
        await line.close()

    asyncio.run(main())


def test_who_is_gone_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that waits, nor one whose function runs on."""
    computes(monkeypatch)

    async def main() -> None:
        line = Calls()
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        called: list[int] = []
        go = threading.Event()
        begun = threading.Event()

        def hold() -> None:
            begun.set()
            go.wait(WAIT_SECONDS)

        running = asyncio.create_task(line.run(hold))
        tasks = [
            asyncio.create_task(line.run(lambda n=number: called.append(n))) for number in range(3)
        ]
        await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        running.cancel()
        tasks[0].cancel()
        await asyncio.wait([running, tasks[0]])
        assert not tasks[1].done()  # the function runs on
        go.set()
        await asyncio.wait_for(asyncio.gather(*tasks[1:]), WAIT_SECONDS)
        assert called == [1, 2]
        assert failed == []
        await line.close()

    asyncio.run(main())


def test_what_a_function_raises_comes_back() -> None:
    """And the next one runs."""

    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        line = Calls()
        with pytest.raises(ValueError, match="no"):
            await line.run(fail)
        assert await line.run(lambda: 1) == 1
        await line.close()

    asyncio.run(main())
