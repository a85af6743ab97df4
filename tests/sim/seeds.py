"""Worlds from seeds: live one, and make one that fails smaller.

`LOGWEIR_SEEDS` says how many are lived, where CI lives fewer than one does by hand, and
`LOGWEIR_RUN` which: with 2 those behind the first two
times as many. `LOGWEIR_SEED` names one alone, and `LOGWEIR_DROPPED` operations that it leaves out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

__all__ = ["DROPPED", "ONE", "check", "chosen", "count", "lived"]

ONE = os.environ.get("LOGWEIR_SEED")
DROPPED = frozenset(map(int, filter(None, os.environ.get("LOGWEIR_DROPPED", "").split(","))))
TRIES = 30
"""Lives that are spent on making a failure smaller."""


class Lived(Protocol):
    """A world. `operations`: how many were to be done in it."""

    operations: int

    def live(self) -> None:
        """Raises what was found."""


W = TypeVar("W", bound=Lived)
Make = Callable[[Path, int, frozenset[int]], W]
"""A world of a seed in an empty folder, without some operations."""


def count(some: int, few: int) -> int:
    """How many seeds: `some` unless it is said, in CI `few`."""
    return int(os.environ.get("LOGWEIR_SEEDS", few if os.environ.get("CI") else some))


def chosen(group: int, groups: int, seeds: int, part: int = 1) -> Sequence[int]:
    """The seeds of one of several groups; `part`: of so many only one is taken."""
    if ONE is not None:
        return [int(ONE)][group:]
    first = seeds * int(os.environ.get("LOGWEIR_RUN", "0"))
    return range(first + group, first + seeds // part, groups)


def lived(
    make: Make[W], seed: int, dropped: frozenset[int] = frozenset()
) -> tuple[W, BaseException | None]:
    """The world of a seed, and what was found in it."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        path = (
            Path(folder) / "disk" / "world"
        )  # what is above is synced too, and has a name of chance
        path.mkdir(parents=True)
        world = make(path, seed, dropped)
        try:
            world.live()
        except Exception as error:
            return world, error
        return world, None


def _smaller(make: Make[W], seed: int, count: int) -> frozenset[int]:
    """Operations without which that seed still fails."""
    dropped: frozenset[int] = frozenset()
    size, tries = max(count // 2, 1), 0
    while size and tries < TRIES:
        for first in range(1, count + 1, size):
            more = dropped | frozenset(range(first, first + size))
            tries += 1
            if more != dropped and tries < TRIES and lived(make, seed, more)[1]:
                dropped = more
        size //= 2
    return dropped


def check(make: Make[W], seed: int, again: str, dropped: frozenset[int] = frozenset()) -> W:
    """Live it; a failure tells what repeats it. `again`: the words for pytest."""
    world, error = lived(make, seed, dropped)
    if error is None:
        return world
    dropped = dropped or _smaller(make, seed, world.operations)
    least = lived(make, seed, dropped)[1] or error
    left = "" if not dropped else f"LOGWEIR_DROPPED={','.join(map(str, sorted(dropped)))} "
    again = f"{left}LOGWEIR_SEED={seed} python -m pytest -n 0 {again}"
    raise AssertionError(f"seed {seed}: {least}\nagain: {again}") from least
