"""A clock that a test moves."""

from __future__ import annotations


class SimClock:
    """Seconds since 1970 that stand still, for `logweir.open(clock=…)` and for programs that are
    given their clock. `now`: may be set to any time, an earlier one too, as clocks of machines
    are."""

    def __init__(self, now: float = 1_795_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass; with a number below 0 the clock is set back."""
        self.now += seconds
