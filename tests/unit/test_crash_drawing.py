"""What `logweir crashtest` draws: where a file is damaged, and when a program is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logweir.tools.crash.damage import _Run, _spoil
from logweir.tools.crash.keeping import Tally
from logweir.tools.crash.kills import _moment
from logweir.tools.crash.programs import Ended


def test_a_wrong_bit_is_one_bit(tmp_path: Path) -> None:
    """Each of the eight, and at each byte."""
    run = _Run(tmp_path, b"", ["log"], [])
    dice = random.Random(1)
    found = set()
    for _ in range(300):
        (tmp_path / "log").write_bytes(bytes(4))
        _spoil(tmp_path, run, Tally("wrong bit"), dice)
        found.add(int.from_bytes((tmp_path / "log").read_bytes(), "little"))
    assert found == {1 << bit for bit in range(32)}


@pytest.mark.parametrize(("first", "least"), [(10.0, 8.0), (None, 0.0)])
def test_a_program_that_ends_is_killed_about_behind_its_first_acknowledgement(
    first: float | None, least: float
) -> None:
    """Before that it does nothing that counts. One that acknowledges nothing: at any time."""
    ended = Ended(0, False, b"", "", first, 20.0)
    dice = random.Random(1)
    found = [_moment(dice, ended, has_pipe=False) for _ in range(300)]
    assert {one.acks for one in found} == {0}
    assert least <= min(one.seconds for one in found) < least + 1
    assert 19 < max(one.seconds for one in found) <= 20
