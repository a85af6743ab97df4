"""Histories of whole stores, each from one seed: see `sim.wholestore`.

How many are lived, 300 unless it is said, 150 in CI, and which: see `sim.seeds`. A failing one is
made smaller before it is told. Of those that have lives with durability "none"
(`-k "promise and none"`) there are a third as many.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sim.seeds import DROPPED, ONE, check, chosen, count, lived
from sim.wholestore import World

from logweir.testing.scheduler import Scheduler, Stuck

SEEDS = count(300, 150)
GROUPS = max(6, SEEDS // 50)

KEPT: dict[int, str] = {
    30: "a log that could not be opened was taken for the end of the log",
    455: "of two deletions that look alike the ledger took the one that ended later for the first",
    107023: "what a failed sync had not saved was read when the log was opened, and then lost",
    760: "two removals of old files at once: one read a log that the other had removed",
}
"""Seeds that failed once, and what was wrong."""


UNLOGGED = {"logged": 0.0, "none": 0.7}
"""Which part of the lives has durability "none"."""
KEPT_UNLOGGED: dict[int, str] = {
    77: "a store that had failed was closed, and did not say that what was in no log is lost",
    99: "the end mark said that a log had what only a state had, before the snapshot of that",
}
"""Seeds of worlds with such lives that failed once, and what was wrong."""


def world(kind: str) -> Callable[[Path, int, frozenset[int]], World]:
    """What makes worlds of a kind."""

    def make(folder: Path, seed: int, dropped: frozenset[int]) -> World:
        return World(folder, seed, dropped=dropped, unlogged=UNLOGGED[kind])

    return make


def checked(seed: int, dropped: frozenset[int] = frozenset(), kind: str = "logged") -> World:
    """Live it; a failure tells what repeats it."""
    again = f"tests/sim/test_whole_store.py -k 'promise and {kind}'"
    return check(world(kind), seed, again, dropped)


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNLOGGED)
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_history_breaks_a_promise(group: int, kind: str) -> None:
    """What was acknowledged is there, what was read was durable, each transaction is whole, all
    indexes agree, nobody waits for ever: at every moment, and behind each crash. Without a log
    (none): what is there is a beginning of what was shown, with all that was promised to stay."""
    steps = cuts = kills = faults = 0
    for seed in chosen(group, GROUPS, SEEDS, 1 if kind == "logged" else 3):
        one = checked(seed, DROPPED, kind)
        steps += len(one.history)
        cuts, kills, faults = cuts + one.cuts, kills + one.kills, faults + one.faults
    assert steps or ONE is not None
    gc.collect()  # what a world freezes is not looked at again by itself: a megabyte for each
    print(f"{steps} steps, {cuts} power cuts, {kills} kills, {faults} lives with failing calls")


@pytest.mark.parametrize("seed", sorted(KEPT))
def test_seeds_that_failed_once(seed: int) -> None:
    """They no longer do."""
    assert checked(seed).history


@pytest.mark.parametrize("seed", sorted(KEPT_UNLOGGED))
def test_seeds_without_a_log_that_failed_once(seed: int) -> None:
    """They no longer do."""
    assert checked(seed, kind="none").history


def test_a_seed_repeats_its_history() -> None:
    """Thread by thread, step by step, the lives behind crashes included."""
    for seed in range(4):
        first, second = lived(world("logged"), seed)[0], lived(world("logged"), seed)[0]
        assert len(first.history) > 100
        assert first.history == second.history
    assert lived(world("logged"), 0)[0].history != lived(world("logged"), 1)[0].history


# --- the scheduler --------------------------------------------------------------------------------


def scheduled(call: Callable[[], object], seed: int) -> Scheduler:
    """Run it with the primitives of this module replaced."""
    scheduler = Scheduler(seed, packages=(__name__.split(".")[0],))
    scheduler.run(call)
    return scheduler


def test_threads_that_wait_for_one_another_are_told() -> None:
    """Two locks, taken in two orders: some seeds find it, and say who waits where."""
    found = []

    def call() -> None:
        one, other = threading.Lock(), threading.Lock()

        def take(first: threading.Lock, second: threading.Lock) -> None:
            with first, second:
                pass

        threads = [
            threading.Thread(target=take, args=args) for args in ((one, other), (other, one))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for seed in range(30):
        try:
            scheduled(call, seed)
        except Stuck as error:
            found.append(str(error))
    assert 0 < len(found) < 30
    assert all("every thread waits" in text and text.count("in take") == 2 for text in found)


def test_time_passes_where_all_wait() -> None:
    """And nothing but that wakes who waits for it."""
    seen = []

    def call() -> None:
        condition = threading.Condition()
        with condition:
            seen.append(condition.wait(3600))
            seen.append(condition.wait_for(lambda: len(seen) > 3, 10))

    assert scheduled(call, 1).seconds >= 3610
    assert seen == [False, False]


def test_a_change_that_two_threads_make_in_two_steps_is_lost() -> None:
    """With a lock between: the scheduler stops there."""
    values = set()
    for seed in range(40):
        number = [0]

        def call(number: list[int] = number) -> None:
            lock = threading.Lock()

            def add() -> None:
                with lock:
                    before = number[0]
                with lock:
                    number[0] = before + 1

            threads = [threading.Thread(target=add) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        scheduled(call, seed)
        values.add(number[0])
    assert values == {1, 2}


def test_a_semaphore_lets_as_many_in_as_it_has() -> None:
    """In every order, and all of them in the end."""
    most = set()
    for seed in range(40):
        inside: list[int] = []
        came: list[int] = []

        def call(inside: list[int] = inside, came: list[int] = came) -> None:
            room = threading.Semaphore(2)
            pause = threading.Event().set

            def enter(number: int) -> None:
                with room:
                    inside.append(number)
                    pause()
                    came.append(len(inside))
                    inside.remove(number)

            threads = [threading.Thread(target=enter, args=(one,)) for one in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        scheduled(call, seed)
        assert len(came) == 5
        most.add(max(came))
    assert most == {1, 2}


def test_a_semaphore_refuses_what_that_of_threading_refuses() -> None:
    """And says who got in, at once or in time."""
    seen: list[object] = []

    def use(seconds: float) -> list[object]:
        def refusal(call: Callable[[], object]) -> str:
            with pytest.raises(ValueError, match=r"must be|specify") as raised:
                call()
            return str(raised.value)

        none = threading.Semaphore(0)
        found: list[object] = [
            refusal(lambda: threading.Semaphore(-1)),
            refusal(lambda: none.release(0)),
            refusal(lambda: none.acquire(False, 1.0)),
            none.acquire(False),
            none.acquire(timeout=seconds),
        ]
        none.release(2)
        return [*found, none.acquire(), none.acquire(False), none.acquire(False)]

    assert scheduled(lambda: seen.extend(use(3600)), 1).seconds >= 3600
    assert seen == use(0.0)
