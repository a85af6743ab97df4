"""Histories of a source and of stores that copy something of it, each from one seed:
`sim.topicstores`, `sim.bucketstores`, `sim.streamstores`.

How many are lived of each, 54 unless it is said, 9 in CI, and which: see `sim.seeds`. Of three one
has slow disks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim.bucketstores import BucketStores
from sim.copystores import FSYNC, SLOW, CopyStores
from sim.seeds import DROPPED, ONE, check, chosen, count, lived
from sim.streamstores import StreamStores
from sim.topicstores import TopicStores

from logweir.replication.memcached.follow import TapSource
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.tank.follow.source import TankSource

SEEDS = count(54, 9)
THIRDS = {FSYNC: 2, SLOW: 1}
"""Of all worlds, of each kind."""
WORLDS: dict[str, type[CopyStores]] = {
    "topics": TopicStores,
    "buckets": BucketStores,
    "streams": StreamStores,
}
EACH = pytest.mark.parametrize("name", WORLDS)

KEPT: dict[tuple[str, str, int], str] = {
    ("topics", FSYNC, 31): "a server whose start was cancelled did not end what it had begun",
    ("buckets", FSYNC, 73): "a TAP copy left out what came into a new vbucket just then",
    ("streams", SLOW, 26): "a position was seen before the log could be read to it",
}
"""Seeds that failed once, and what was wrong."""


def making(name: str, kind: str = FSYNC) -> Callable[[Path, int, frozenset[int]], CopyStores]:
    """What makes the world of a seed."""
    return lambda folder, seed, dropped: WORLDS[name](folder, seed, kind=kind, dropped=dropped)


def checked(name: str, kind: str, seed: int) -> CopyStores:
    """Live it; a failure tells what repeats it."""
    again = f"tests/sim/test_copy_stores.py -k 'missing and {kind} and {name}'"
    return check(making(name, kind), seed, again, DROPPED)


@EACH
@pytest.mark.parametrize("kind", THIRDS)
def test_nothing_is_missing_or_another(kind: str, name: str) -> None:
    """What a follower shows its source has had, in its order; in the end, and soon, all stores hold
    the same."""
    worlds = [checked(name, kind, seed) for seed in chosen(0, 1, SEEDS * THIRDS[kind] // 3)]
    assert ONE is not None or sum(len(one.put) for one in worlds) > len(worlds)
    resumed = sum(one.resumed for one in worlds)
    assert ONE is not None or resumed >= len(worlds) // 5, "hardly a follower goes on anywhere"
    steps = sum(len(one.history) for one in worlds)
    gc.collect()
    print(f"{steps} steps, {sum(len(one.done) for one in worlds)} disturbances")


@pytest.mark.parametrize(("name", "kind", "seed"), KEPT)
def test_seeds_that_failed_once(name: str, kind: str, seed: int) -> None:
    """They no longer do."""
    assert checked(name, kind, seed).history


def some_bundles(read: Callable[..., Any]) -> Callable[..., Any]:
    """Of several that come together the first is left out."""

    def lose(*given: Any) -> Any:
        batch = read(*given)
        if batch is None or len(batch.bundles) < 2:
            return batch
        return replace(batch, bundles=batch.bundles[1:])

    return lose


def some_changes(store: Callable[..., Any]) -> Callable[..., Any]:
    """Of several that come together the first is left out."""
    return lambda of, given, *rest: store(of, given[1:] if len(given) > 1 else given, *rest)


def all_items(dated: Callable[..., Any]) -> Callable[..., Any]:
    """An item has other flags than it came with."""
    return lambda *given: replace(dated(*given), item_flags=1)


LOSSES: dict[str, tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "topics": (TankSource, "_batch", some_bundles),
    "buckets": (TapSource, "dated", all_items),
    "streams": (Intake, "store", some_changes),
}


@EACH
def test_what_is_lost_or_changed_on_the_way_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the other test can fail."""
    of, method, wrong = LOSSES[name]
    monkeypatch.setattr(of, method, wrong(getattr(of, method)))
    found = (lived(making(name), seed)[1] for seed in range(6))
    error = next(filter(None, found), None)
    assert isinstance(error, AssertionError)


@EACH
def test_a_seed_repeats_its_history(name: str) -> None:
    """Of all nodes, their threads and what passes between them."""
    first, second = (lived(making(name), 1)[0] for _ in range(2))
    assert len(first.history) > 100
    assert first.history == second.history
