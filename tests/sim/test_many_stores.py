"""Histories of a source and its followers over a network, each from one seed: `sim.manystores`.

How many are lived, 54 unless it is said, 36 in CI, and which: see `sim.seeds`. Of six one is a
world of durability `write`, and one of slow disks. A failing one is made smaller before it is told.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from sim.manystores import FSYNC, SLOW, WRITE, Stores
from sim.seeds import DROPPED, ONE, check, chosen, count, lived

SEEDS = count(54, 36)
GROUPS = max(6, SEEDS // 50)
SIXTHS = {FSYNC: 4, WRITE: 1, SLOW: 1}
"""Of all worlds, of each kind."""
PARTS = [(kind, group) for kind in SIXTHS for group in range(max(1, GROUPS * SIXTHS[kind] // 6))]
KEPT: dict[tuple[str, int], str] = {
    (FSYNC, 8): "a copy waited for ever for a source over a connection that was not heard any more",
    (
        SLOW,
        2,
    ): "a follower whose disk was slow said nothing meanwhile and was disconnected for that",
    (WRITE, 14): "a follower went on with rows that its source had lost with the power",
    (WRITE, 40): "an anonymous follower was not told that its source had lost rows",
    (
        WRITE,
        103,
    ): "one whose place the source had lost, too, was told that it has none, again and again",
}
"""Seeds that failed once, and what was wrong."""


def stores(kind: str) -> Callable[[Path, int, frozenset[int]], Stores]:
    """What makes the world of a seed."""
    return lambda folder, seed, dropped: Stores(folder, seed, kind=kind, dropped=dropped)


def checked(kind: str, seed: int, dropped: frozenset[int] = frozenset()) -> Stores:
    """Live it; a failure tells what repeats it."""
    again = f"tests/sim/test_many_stores.py -k 'promise and {kind}'"
    return check(stores(kind), seed, again, dropped)


@pytest.mark.parametrize(("kind", "group"), PARTS)
def test_no_history_breaks_a_promise(kind: str, group: int) -> None:
    """What a follower shows its source has written, each row once, in order, whole transactions;
    positions never go back; in the end, and soon, all stores are alike. With durability `write` a
    power cut takes the newest rows, and followers that have them are told."""
    steps = rows = looks = done = 0
    groups = sum(of == kind for of, _ in PARTS)
    for seed in chosen(group, groups, SEEDS * SIXTHS[kind] // 6):
        one = checked(kind, seed, DROPPED)
        steps, rows = steps + len(one.history), rows + len(one.rows)
        looks, done = looks + len(one.looks), done + len(one.done)
    assert steps or ONE is not None
    gc.collect()
    print(f"{steps} steps, {rows} rows, {looks} looks, {done} disturbances")


@pytest.mark.parametrize(("kind", "seed"), sorted(KEPT))
def test_seeds_that_failed_once(kind: str, seed: int) -> None:
    """They no longer do."""
    assert checked(kind, seed).history


def test_a_seed_repeats_its_history() -> None:
    """Of all nodes, their threads and what passes between them, the lives behind crashes too."""
    for seed in range(3):
        first, second = (lived(stores(FSYNC), seed)[0] for _ in range(2))
        assert len(first.history) > 100
        assert first.history == second.history
