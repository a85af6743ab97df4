"""The matrix of `logweir bench statements`: what a cell is, what it was measured to be.

A cell is one thing done by logweir and by a peer in turn, the same work for both. Its name is a
path of words: who does it, what, with which index, and for servers connections x requests in
flight on each. What is compared is the median of the rounds' ratios (`tools.bench.harness`); above
1 logweir is ahead, also where processor time is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.tools.bench.harness import Case, Result, compare

RATE: Final = "/s"
TIME: Final = "us"
WORST: Final = 8


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `what`: the unit, `requests` or `rows`; `scale`: `RATE`, of which more is better,
    or `TIME`, microseconds of the serving process's processor time for each, of which less is.

    `batch`: what is done together; `payload_bytes`: of one tuple or value; `durability`: when a
    change is answered, by logweir and by its peer, or "none" for what changes nothing.
    """

    name: str
    batch: str
    payload_bytes: int
    durability: str
    what: str = "requests"
    scale: str = RATE

    @property
    def group(self) -> str:
        """The first word of the name."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Figure:
    """What a cell was measured to be. `peer`: its name, and what it was, None if it is missing.

    `more`: what else was measured, name to value; `load`: the machine's load average of the last
    minute when the cell ended; `units`: requests or rows in a round.
    """

    cell: Cell
    peer: str
    ours: Result
    theirs: Result | None
    units: int
    load: float
    more: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times as good as the peer, None without one."""
        return None if self.theirs is None else self.ours.ratio

    @property
    def value(self) -> float:
        """Of logweir, in the cell's scale."""
        return self._scaled(self.ours)

    @property
    def peer_value(self) -> float | None:
        """Of the peer."""
        return None if self.theirs is None else self._scaled(self.theirs)

    def _scaled(self, result: Result) -> float:
        return result.rate if self.cell.scale == RATE else 1e6 / result.rate

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        has_peer = self.theirs is not None
        return {
            "suite": "statements",
            "cell": self.cell.name,
            "unit": self.cell.what + self.cell.scale
            if self.cell.scale == RATE
            else f"{self.cell.scale} of processor time",
            "logweir": round(self.value, 3),
            "peer": self.peer,
            "peer_value": None if self.peer_value is None else round(self.peer_value, 3),
            "ratio": round(self.ours.ratio, 3) if has_peer else None,
            "ratio_low": round(min(self.ours.ratios), 3) if has_peer else None,
            "ratio_high": round(max(self.ours.ratios), 3) if has_peer else None,
            "rounds": len(self.ours.rates),
            "units": self.units,
            "durability": self.cell.durability,
            "batch": self.cell.batch,
            "payload_bytes": self.cell.payload_bytes,
            "load": round(self.load, 1),
            "more": {name: round(value, 3) for name, value in self.more.items()},
        }


def measure(
    cell: Cell,
    *,
    ours: Callable[[], float],
    theirs: Callable[[], float] | None,
    peer: str,
    units: int,
    rounds: int,
    more: Callable[[], dict[str, float]] = dict,
) -> Figure:
    """Time a cell: the peer first, then logweir, `rounds` times.

    `ours`, `theirs`: do `units` of work and return the seconds; without `theirs` logweir is
    measured alone. `more`: called when all rounds are done.
    """
    cases = [] if theirs is None else [Case(peer, theirs, units)]
    results = compare([*cases, Case("logweir", ours, units)], rounds=rounds)
    found = None if theirs is None else results[0]
    return Figure(cell, peer, results[-1], found, units, os.getloadavg()[0], more())


def fits(name: str, patterns: str) -> bool:
    """Whether it fits one of some patterns with `*`, `?` and `[…]`, parted by commas."""
    return any(fnmatchcase(name, one) for one in patterns.split(","))


def chosen(cells: Sequence[Cell], pattern: str) -> list[Cell]:
    """The cells whose name `fits`. Raises `ConfigError` if none does."""
    found = [cell for cell in cells if fits(cell.name, pattern)]
    if not found:
        raise ConfigError(
            "--cells",
            f"no cell's name fits {pattern!r}",
            hint=f"names are such as {cells[0].name!r} and {cells[-1].name!r}",
        )
    return found


def worst_of(figures: Sequence[Figure]) -> Iterator[Figure]:
    """The eight cells with the lowest ratios, the worst last; those below their peer are told
    however many they are."""
    compared = [figure for figure in figures if figure.theirs is not None]
    compared.sort(key=lambda figure: -figure.ours.ratio)
    behind = sum(figure.ours.ratio < 1 for figure in compared)
    yield from compared[-max(WORST, behind) :]
