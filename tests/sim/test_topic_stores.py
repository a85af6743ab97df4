"""Histories of a source of topics and its followers, each from one seed: `sim.topicstores`.

How many are lived, 54 unless it is said, 12 in CI, and which: see `sim.seeds`. Of three one has
slow disks.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim.seeds import DROPPED, ONE, check, chosen, count, lived
from sim.topicstores import FSYNC, SLOW, TopicStores

from logweir.replication.tank.follow.ingest import Batch
from logweir.replication.tank.follow.source import TankSource

SEEDS = count(54, 12)
THIRDS = {FSYNC: 2, SLOW: 1}
"""Of all worlds, of each kind."""


KEPT = {31: "a server whose start was cancelled did not end what it had begun"}
"""Seeds that failed once, and what was wrong."""


def checked(kind: str, seed: int) -> TopicStores:
    """Live it; a failure tells what repeats it."""
    again = f"tests/sim/test_topic_stores.py -k 'missing and {kind}'"

    def make(folder: Path, seed: int, dropped: frozenset[int]) -> TopicStores:
        return TopicStores(folder, seed, kind=kind, dropped=dropped)

    return check(make, seed, again, DROPPED)


@pytest.mark.parametrize("kind", THIRDS)
def test_no_bundle_is_missing_or_another(kind: str) -> None:
    """What a follower shows of a partition is the beginning of what its source has put there, and
    never gets less; in the end, and soon, all stores have the same tuples."""
    worlds = [checked(kind, seed) for seed in chosen(0, 1, SEEDS * THIRDS[kind] // 3)]
    assert ONE is not None or sum(len(one.put) for one in worlds) > len(worlds)
    resumed = sum(one.resumed for one in worlds)
    assert ONE is not None or resumed >= len(worlds) // 3, "hardly a follower goes on anywhere"
    steps = sum(len(one.history) for one in worlds)
    gc.collect()
    print(f"{steps} steps, {sum(len(one.done) for one in worlds)} disturbances")


@pytest.mark.parametrize("seed", KEPT)
def test_seeds_that_failed_once(seed: int) -> None:
    """They no longer do."""
    assert checked(FSYNC, seed).history


def test_a_bundle_that_is_lost_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the other test can fail: of several that come together the first is left out."""
    read = TankSource._batch

    def lose(*given: Any) -> Batch | None:
        batch = read(*given)
        if batch is None or len(batch.bundles) < 2:
            return batch
        return replace(batch, bundles=batch.bundles[1:])

    monkeypatch.setattr(TankSource, "_batch", lose)
    error = lived(lambda *given: TopicStores(*given[:2]), 0)[1]
    assert isinstance(error, AssertionError)
    assert "written" in str(error)


def test_a_seed_repeats_its_history() -> None:
    """Of all nodes, their threads and what passes between them."""
    first, second = (lived(lambda *given: TopicStores(*given[:2]), 3)[0] for _ in range(2))
    assert len(first.history) > 100
    assert first.history == second.history
