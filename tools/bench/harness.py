"""Benchmarks as ratios: cases run in turns, in one process, on one disk.

Absolute rates of a shared machine drift by a factor of two within minutes; the ratio of two cases
that run right after one another does not. So every round runs all cases once, in turn, and what is
reported is the median of the rounds' ratios to the baseline, with their spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time. `run`: does `units` of work and returns the seconds it took."""

    name: str
    run: Callable[[], float]
    units: int


@dataclass(slots=True)
class Result:
    """What one case took. `ratios`: rate over the baseline's rate, per round."""

    name: str
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median units per second."""
        return statistics.median(self.rates)

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios to the baseline."""
        return statistics.median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "case": self.name,
            "per_second": round(self.rate, 1),
            "ratio": round(self.ratio, 3),
            "ratio_low": round(min(self.ratios), 3),
            "ratio_high": round(max(self.ratios), 3),
            "rounds": len(self.ratios),
        }


def compare(cases: Sequence[Case], *, rounds: int) -> list[Result]:
    """Time all cases in turn, `rounds` times; the first case is the baseline."""
    results = [Result(case.name) for case in cases]
    for _ in range(rounds):
        rates = [case.units / max(case.run(), 1e-9) for case in cases]
        for result, rate in zip(results, rates, strict=True):
            result.rates.append(rate)
            result.ratios.append(rate / rates[0])
    return results


def plain(figures: Any) -> Any:
    """What was measured, for `--json`: the fields of dataclasses, each `Result` as it tells itself,
    numbers with three places."""
    if isinstance(figures, Result):
        return figures.to_json()
    if isinstance(figures, float):
        return round(figures, 3)
    if isinstance(figures, list):
        return [plain(one) for one in figures]
    if is_dataclass(figures):
        figures = {one.name: getattr(figures, one.name) for one in fields(figures)}
    if isinstance(figures, dict):
        return {str(name): plain(one) for name, one in figures.items()}
    return figures
