"""The runner of a source, with a clock, a pause and a chance of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from logweir.errors import SourceStopped, Unreachable
from logweir.replication.metrics import Metrics
from logweir.replication.runner import Progress, Runner, SourceState, SourceStatus, Timing


class Clock:
    """A clock that moves only when somebody pauses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.seconds

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)

    def timing(self, stall_seconds: float = 1e9) -> Timing:
        return Timing(
            now=self.now, pause=self.pause, chance=lambda: 1.0, stall_seconds=stall_seconds
        )


class Script:
    """A source whose attempts are functions, one after the other."""

    url = "tarantool://h:1"

    def __init__(self, *attempts: Callable[[Progress], None]) -> None:
        self._attempts = list(attempts)

    async def attempt(self, progress: Progress) -> None:
        self._attempts.pop(0)(progress)


def fail(progress: Progress) -> None:
    raise Unreachable("tarantool://h:1", "no answer")


def follow_then_fail(progress: Progress) -> None:
    progress.state(SourceState.FOLLOWING)
    progress.applied(3, "{1: 3}", 0.5)
    fail(progress)


def stop(progress: Progress) -> None:
    raise SourceStopped("a row cannot be applied")


def test_backoff_doubles_and_begins_anew_after_following() -> None:
    """0.5, 1, 2 …; a good connection in between starts it again."""
    clock = Clock()
    source = Script(fail, fail, fail, follow_then_fail, fail, stop)
    runner = Runner(source, metrics=Metrics(), timing=clock.timing())
    status = asyncio.run(runner.run())
    waits = [pause for pause in clock.pauses if pause < 1e8]
    assert waits == [0.5, 1.0, 2.0, 0.5, 1.0]
    assert status.state == SourceState.STOPPED
    assert "cannot be applied" in status.last_error
    assert (status.attempts, status.rows, status.position) == (6, 3, "{1: 3}")


def refuse(progress: Progress) -> None:
    raise SourceStopped(f"{Script.url}: no such topic")


def test_an_error_is_told_without_the_address_beside_it() -> None:
    """Each place that tells it has the address, too."""
    runner = Runner(Script(refuse), metrics=Metrics(), timing=Clock().timing())
    assert asyncio.run(runner.run()).last_error == "no such topic"


def follow_for_ever(progress: Progress) -> None:
    progress.applied(3, "{1: 3}", 0.5)
    progress.state(SourceState.FOLLOWING)


class Endless(Script):
    """A source whose attempts go on until they are cancelled."""

    async def attempt(self, progress: Progress) -> None:
        await super().attempt(progress)
        await asyncio.Event().wait()


def test_once_ends_when_it_has_caught_up() -> None:
    """The attempt is ended, and no other follows; failures before it are told and tried again."""
    runner = Runner(
        Endless(fail, follow_for_ever), metrics=Metrics(), timing=Clock().timing(), once=True
    )
    status = asyncio.run(runner.run())
    assert (status.state, status.attempts, status.rows) == (SourceState.FOLLOWING, 2, 3)
    assert isinstance(runner.failure, Unreachable)


def go_wrong(progress: Progress) -> None:
    raise KeyError("what nobody thought of")


def test_an_error_that_nobody_thought_of_is_told_and_tried_again() -> None:
    """As any other: the upstream is not left in silence, with a status that says it is followed."""
    clock, told = Clock(), set[tuple[SourceState, str]]()

    async def pause(seconds: float) -> None:
        told.add((runner.status.state, runner.status.last_error))
        await clock.pause(seconds)

    timing = replace(clock.timing(), pause=pause)
    runner = Runner(Script(go_wrong, stop), metrics=Metrics(), timing=timing)
    assert asyncio.run(runner.run()).state == SourceState.STOPPED
    assert (SourceState.WAITING, "internal error: KeyError") in told
    assert isinstance(runner.failure, SourceStopped)


def test_the_failure_is_kept_as_what_it_was() -> None:
    """For who wants more than its text; a connection that just ends is one, too."""
    runner = Runner(Script(stop), metrics=Metrics(), timing=Clock().timing())
    asyncio.run(runner.run())
    assert isinstance(runner.failure, SourceStopped)
    runner = Runner(Script(lambda progress: None, stop), metrics=Metrics(), timing=Clock().timing())

    async def until_it_waits() -> None:
        task = asyncio.create_task(runner.run())
        while runner.status.state != SourceState.WAITING:
            await runner.changed()
        assert isinstance(runner.failure, Unreachable)
        await task

    asyncio.run(until_it_waits())


def test_backoff_is_bounded_and_jittered() -> None:
    """Never over the maximum; chance halves it at most."""
    timing = Timing(chance=lambda: 0.0)
    assert timing.backoff_seconds(1) == 0.25
    assert timing.backoff_seconds(1000) == 15.0


def test_silent_upstream_is_ended_as_stalled() -> None:
    """An attempt without life for the stall time is cancelled and tried again."""
    clock = Clock()
    cancelled: list[bool] = []

    class Silent:
        url = "tarantool://h:1"
        attempts = 0

        async def attempt(self, progress: Progress) -> None:
            self.attempts += 1
            if self.attempts == 2:
                stop(progress)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    async def main() -> list[str]:
        runner = Runner(Silent(), metrics=Metrics(), timing=clock.timing(stall_seconds=7.0))
        seen: list[str] = []

        async def watch() -> None:
            while True:
                status = await runner.changed()
                seen.append(f"{status.state}:{status.last_error}")

        watching = asyncio.ensure_future(watch())
        await runner.run()
        await asyncio.sleep(0)
        watching.cancel()
        return seen

    seen = asyncio.run(main())
    assert cancelled == [True]
    assert clock.pauses[:2] == [7.0, 0.5]
    assert any("stalled: nothing came for 7 seconds" in text for text in seen)


def test_state_is_in_the_metrics() -> None:
    """Exactly one state of a source is 1."""
    metrics = Metrics()
    runner = Runner(Script(stop), metrics=metrics, timing=Clock().timing())
    asyncio.run(runner.run())
    lines = metrics.render().decode().splitlines()
    states = [line for line in lines if line.startswith("logweir_source_state{")]
    assert [line for line in states if line.endswith(" 1.0")] == [
        'logweir_source_state{state="stopped",url="tarantool://h:1"} 1.0'
    ]
    assert len(states) == 5


@pytest.mark.parametrize("state", SourceState)
def test_an_earlier_error_is_no_reason_of_a_new_attempt(state: SourceState) -> None:
    """`logweir follow` says it while the source waits or when it has stopped."""
    told = SourceStatus("tap://x", state=state, last_error="it broke").told
    failed = state in (SourceState.WAITING, SourceState.STOPPED)
    assert told == (f"{state}: it broke" if failed else f"{state}")


@pytest.mark.parametrize(
    ("state", "error", "lag", "behind"),
    [
        (SourceState.FOLLOWING, "", None, ""),
        (SourceState.FOLLOWING, "", 5.0, ""),
        (SourceState.FOLLOWING, "an old one", 5.1, "5.1 seconds behind"),
        (SourceState.SYNCING, "an old one", 0.0, "syncing"),
        (SourceState.CONNECTING, "", None, "connecting"),
        (SourceState.WAITING, "it broke", 0.0, "waiting: it broke"),
        (SourceState.STOPPED, "it broke", 0.0, "stopped: it broke"),
        (SourceState.STOPPED, "", None, ""),
    ],
)
def test_what_a_source_has_not_caught_up_with(
    state: SourceState, error: str, lag: float | None, behind: str
) -> None:
    """One that took all there was to take has nothing left to catch up with."""
    status = SourceStatus("tap://x", state=state, last_error=error, lag_seconds=lag)
    assert status.behind(5.0) == behind
