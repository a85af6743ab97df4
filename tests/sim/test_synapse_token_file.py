"""The file in which a follower of a homeserver keeps its cursors, on a disk that loses power."""

from __future__ import annotations

from pathlib import Path

import pytest

from logweir.recovery.faults import SimFileSystem
from logweir.replication.synapse.client import TokenFile
from logweir.replication.synapse.wire.units import Cursor


@pytest.mark.parametrize("seed", range(30))
def test_cursors_that_were_saved_are_there_after_a_power_cut(seed: int) -> None:
    """The last ones that `save` returned for, whatever else the disk forgets."""
    disk = SimFileSystem()
    path = Path("/tokens")
    file = TokenFile(path, filesystem=disk)
    for number in range(1, 4):
        file.save("matrix.example", {("events", "master"): Cursor(number, number, 0)})
    server, cursors = TokenFile(path, filesystem=disk.crash(seed=seed)).load()
    assert server == "matrix.example"
    assert cursors == {("events", "master"): Cursor(3, 3, 0)}
