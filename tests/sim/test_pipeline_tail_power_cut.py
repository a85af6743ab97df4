"""The tail of a folder whose writer loses power: no position that it gave lies behind the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sim.writing import FOLDER, Written, fresh_disk, open_writer, random_options, write_batch

from logweir.errors import WalError
from logweir.pipeline.frames import scan_options
from logweir.pipeline.tail import Tail
from logweir.recovery import examine
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.wal.filesystem import FileSystem


def tail_of(filesystem: FileSystem) -> Tail:
    """A tail that reads another disk than the real one."""
    tail = Tail(scan_options(FOLDER))
    tail._filesystem = filesystem
    return tail


def written_disk(seed: int) -> tuple[SimFileSystem, Written]:
    """A disk with batches in one or more files, of which the last are not synced."""
    rng = random.Random(seed)
    disk, written = fresh_disk(seed), Written()
    writer = open_writer(disk, written, random_options(rng))
    for _ in range(rng.randint(2, 9)):
        write_batch(writer, written, rng)
        if rng.random() < 0.2:
            writer.sync()
    return disk, written


@pytest.mark.parametrize("asks", ["advance", "newest"])
def test_a_position_that_was_given_survives_a_power_cut(asks: str) -> None:
    """Also of rows that the writer has not synced, in files whose names it has not synced."""
    for seed in range(150):
        disk, written = written_disk(seed)
        tail = tail_of(disk)
        position = tail.advance(tail.oldest()) if asks == "advance" else tail.newest()
        tail.close()
        assert position == written.vclock
        found = examine(FOLDER, filesystem=disk.crash(seed=seed)).vclock
        assert found.covers(position), seed


def test_a_tail_whose_disk_cannot_sync_gives_no_position() -> None:
    """The error names the file; what is gone meanwhile, or cannot be written, needs no sync."""
    disk, written = written_disk(3)
    for errno, fails in ((5, True), (30, False), (2, False)):
        faulty = FaultyFileSystem(disk, Fault(1, ("sync_file",), errno=errno, lasts=True))
        tail = tail_of(faulty)
        if fails:
            with pytest.raises(WalError, match="xlog") as refused:
                tail.advance(tail.oldest())
            assert Path(refused.value.path).parent == FOLDER
        else:
            assert tail.advance(tail.oldest()) == written.vclock
        tail.close()
        assert faulty.counts["sync_file"] > 0
