"""Histories of a source and its followers over a network, each from one seed: `sim.manystores`.

How many are lived, 60 unless it is said, and which: see `sim.seeds`. A failing one is made smaller
before it is told.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from sim.manystores import Stores
from sim.seeds import DROPPED, ONE, check, chosen, count, lived

SEEDS = count(60)
GROUPS = max(6, SEEDS // 50)
KEPT: dict[int, str] = {
    8: "a copy waited for ever for a source over a connection that was not heard any more",
}
"""Seeds that failed once, and what was wrong."""


def stores(folder: Path, seed: int, dropped: frozenset[int]) -> Stores:
    """The world of a seed."""
    return Stores(folder, seed, dropped=dropped)


def checked(seed: int, dropped: frozenset[int] = frozenset()) -> Stores:
    """Live it; a failure tells what repeats it."""
    return check(stores, seed, "tests/sim/test_many_stores.py -k promise", dropped)


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_history_breaks_a_promise(group: int) -> None:
    """What a follower shows its source has written, each row once, in order, whole transactions;
    positions never go back; in the end, and soon, all stores are alike."""
    steps = rows = looks = done = 0
    for seed in chosen(group, GROUPS, SEEDS):
        one = checked(seed, DROPPED)
        steps, rows = steps + len(one.history), rows + len(one.rows)
        looks, done = looks + len(one.looks), done + len(one.done)
    assert steps or ONE is not None
    gc.collect()
    print(f"{steps} steps, {rows} rows, {looks} looks, {done} disturbances")


@pytest.mark.parametrize("seed", sorted(KEPT))
def test_seeds_that_failed_once(seed: int) -> None:
    """They no longer do."""
    assert checked(seed).history


def test_a_seed_repeats_its_history() -> None:
    """Of all nodes, their threads and what passes between them, the lives behind crashes too."""
    for seed in range(3):
        first, second = (lived(stores, seed)[0] for _ in range(2))
        assert len(first.history) > 100
        assert first.history == second.history
