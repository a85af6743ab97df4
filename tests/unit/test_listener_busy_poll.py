"""A server that has answered looks for more before it sleeps."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from unit.test_replication_turns import Conversation, Service

from logweir.replication import loop
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.portkernel import LOOK_SECONDS, BusyPoll
from logweir.replication.protocols import parse_listen_url

LONG_SECONDS = 10.0


class Loop:
    """Calls what it is asked to, and counts how often it was looked."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.looked: list[float] = []

    def turn(self) -> None:
        """All that was asked for so far."""
        for _ in range(len(self.calls)):
            self.calls.popleft()()

    def run(self) -> int:
        """Until nothing is to be called. Returns how often it was looked meanwhile."""
        before = len(self.looked)
        while self.calls:
            self.turn()
        return len(self.looked) - before


def polling(seconds: float) -> tuple[Loop, BusyPoll]:
    calls = Loop()
    return calls, BusyPoll(seconds, calls.looked.append, calls.calls.append)


def test_it_is_looked_in_slices_until_something_comes() -> None:
    calls, busy = polling(LONG_SECONDS)
    busy.answered()
    for _ in range(1000):
        calls.turn()
    assert len(calls.looked) > 1
    assert len(calls.calls) == 1
    assert all(0 < seconds <= LOOK_SECONDS for seconds in calls.looked)


def test_what_has_come_is_handled_before_it_is_looked_again() -> None:
    calls, busy = polling(LONG_SECONDS)
    busy.answered()
    while not calls.looked:
        calls.turn()
    before = len(calls.looked)
    busy.heard()
    calls.turn()
    assert len(calls.looked) == before
    assert len(calls.calls) == 1  # and it goes on after that


def test_it_ends_and_is_left_off_where_it_was_in_vain() -> None:
    """But for one try in sixteen answers."""
    calls, busy = polling(1e-9)
    begun = 0
    for _ in range(1 + 16 * 3):
        busy.answered()
        begun += len(calls.calls)
        calls.run()
    assert begun == 1 + 3


def test_it_is_trusted_again_when_something_came() -> None:
    calls, busy = polling(1e-9)
    busy.answered()
    calls.run()  # in vain
    for _ in range(16):
        busy.answered()
    assert len(calls.calls) == 1
    for _ in range(2):  # one more than what ends in vain
        busy.heard()
        busy.answered()
        calls.turn()
    calls.run()
    busy.answered()
    assert len(calls.calls) == 1  # at once


def test_where_many_talk_at_a_time_it_is_not_looked() -> None:
    """The loop has enough to do, and finds more of them when it has slept."""
    calls, busy = polling(LONG_SECONDS)
    busy.answered()
    calls.turn()
    for _ in range(5):
        busy.heard()
    busy.answered()
    calls.turn()
    assert not calls.calls
    busy.answered()  # and it begins again with the next answer
    assert len(calls.calls) == 1


def test_a_stream_that_nobody_answers_lets_the_loop_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be looked for ever, as more is sent before each look has ended."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    calls, busy = polling(1.0)
    slept = 0
    for _ in range(320):
        busy.answered()
        calls.turn()
        now[0] += 0.4
        slept += not calls.calls
    assert slept > 300 - 20 * 4


def test_it_is_looked_longer_with_each_answer_to_what_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    calls, busy = polling(1.0)
    for _ in range(320):
        busy.heard()
        busy.answered()
        calls.turn()
        now[0] += 0.4
        assert len(calls.calls) == 1
    for _ in range(4):
        calls.turn()
        now[0] += 0.4
    assert not calls.calls


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """With each event loop there is."""
    pytest.importorskip("logweir.replication.pollkernel", reason="no compiled kernels")
    asyncio.run(main())
    uvloop = pytest.importorskip("uvloop", reason="uvloop does not run here")
    uvloop.run(main())


def test_a_server_answers_who_asks_again_at_once() -> None:
    """The loop finds what comes while it looks, and what is to be called later is called."""

    async def main() -> None:
        def echo(conversation: Conversation, data: bytes) -> None:
            conversation.session.outbox.put(data)

        listener = Listener(metrics=Metrics(), busy_poll_seconds=LONG_SECONDS)
        url = await listener.listen(parse_listen_url("tarantool://:0"), Service(echo))
        reader, writer = await asyncio.open_connection(url.host, url.port)
        for number in range(200):
            writer.write(b"%8d" % number)
            assert await reader.readexactly(8) == b"%8d" % number
        rung = asyncio.Event()  # a timer, within those ten seconds
        asyncio.get_running_loop().call_later(0.001, rung.set)
        await rung.wait()
        writer.close()
        await writer.wait_closed()
        await listener.close()

    run(main)


def test_a_loop_can_be_looked_at() -> None:
    """Its descriptor can be read when something came, and not before."""

    async def main() -> None:
        from logweir.replication import pollkernel

        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        file = loop._waits_on(asyncio.get_running_loop())
        rung = asyncio.Event()  # it has waited when this rings
        asyncio.get_running_loop().call_later(0.001, rung.set)
        await rung.wait()
        assert not pollkernel.look(file, 0.0)
        theirs.send(b"x")
        assert pollkernel.look(file, LONG_SECONDS)
        assert await reader.readexactly(1) == b"x"
        writer.close()
        theirs.close()

    run(main)


def test_other_threads_run_meanwhile() -> None:
    """While it is looked the interpreter is not kept: the one who writes is another thread."""
    pollkernel = pytest.importorskip("logweir.replication.pollkernel", reason="no compiled kernels")
    out, into = os.pipe()
    thread = threading.Thread(target=lambda: os.write(into, b"x"))
    try:
        thread.start()
        assert pollkernel.look(out, LONG_SECONDS)
    finally:
        thread.join()
        os.close(out)
        os.close(into)


def test_zero_and_loops_that_do_not_say_what_they_wait_on_sleep() -> None:
    async def main() -> None:
        assert loop.busy_poll(0.0) is None
        assert (loop.busy_poll(0.001) is None) == (loop.pollkernel is None)

    run(main)
    assert loop._waits_on(object()) < 0
