"""A log was refused where a write went past its zeros and only its first piece was lost."""

from __future__ import annotations

from logweir.testing import histories


def test_a_write_over_a_filler_and_behind_it_may_lose_its_first_piece() -> None:
    """Found as cut 35 of this history."""
    found = histories.power_cuts(1, 3)
    assert found.broken == 0, found.found
    assert found.tried > 35
