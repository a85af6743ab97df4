"""Whole stores in random histories: see `logweir.testing.histories`.

Power is lost before any call to the disk, each call fails in turn, the process is killed at any
moment. `LOGWEIR_POWER_CUTS` says how many disks are looked at, 300 unless it is set, in groups of
300 at most; `LOGWEIR_RUN`, 0 unless it is set: others for each number. Longer ones, which go on
where they were ended: `python -P -m logweir.testing.figures --kept FOLDER histories`.
"""

from __future__ import annotations

import errno
import os

import pytest

from logweir.recovery.faults import Fault
from logweir.recovery.faults.faulty import KINDS
from logweir.testing import histories

IMAGES = int(os.environ.get("LOGWEIR_POWER_CUTS", "300"))
GROUPS = max(6, IMAGES // 300)
FIRST = 10_000_000 * int(os.environ.get("LOGWEIR_RUN", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_power_cut_at_any_call_loses_and_doubles_nothing(group: int) -> None:
    """Everything acknowledged is there, nothing twice, nothing half; a failing one is repeated by
    the number of its history and its cut."""
    found = histories.power_cuts(IMAGES // GROUPS, FIRST + 1000 * group)
    assert found.broken == 0, found.found
    assert found.tried >= IMAGES // GROUPS


@pytest.mark.slow
def test_a_failing_call_loses_and_doubles_nothing() -> None:
    """Each of a short history."""
    found = histories.failing_calls(1, FIRST, Fault(0, KINDS, errno.EIO))
    assert found.broken == 0, found.found
    assert found.tried > 100


@pytest.mark.kill
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.slow
def test_kills_lose_and_double_nothing() -> None:
    """One folder, ten times."""
    found = histories.kills(10, FIRST)
    assert found.broken == 0, found.found
    assert found.tried == 10
