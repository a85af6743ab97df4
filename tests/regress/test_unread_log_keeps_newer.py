"""Where the disk did not give an old log's header once, newer logs were removed and it was not."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.recovery import examine
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.store.state.references import LogFiles
from logweir.wal.filesystem import make_folders


@pytest.mark.parametrize("kind", ["open_read", "size", "read"])
def test_nothing_behind_a_log_that_cannot_be_read_is_removed(kind: str, tmp_path: Path) -> None:
    """No gap comes of it, whichever file it is; once all can be read, all go, and reads go on."""
    for at in range(1, 7):  # later ones are about what is in the files
        folder = tmp_path / str(at)
        disk = FaultyFileSystem(SimFileSystem())
        make_folders(disk, tmp_path)
        with logweir.open(
            folder, filesystem=disk, checkpoint_count=1, checkpoint_interval=0, wal_max_size=400
        ) as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
            log.retain("somebody", {})
            for number in range(12):
                log.insert("t", (number, "x" * 60))
            log.snapshot()
            log.release("somebody")
            assert log.status()["log_files"] > 3
            disk.fault = Fault(at, {kind})
            log.inner.collect()
            disk.fault = None
            assert disk.failed
            assert not examine(folder, filesystem=disk.inner).damage
            log.inner.collect()
            assert log.status()["log_files"] == 1


def test_a_file_that_was_not_removed_is_let_go_of_once(tmp_path: Path) -> None:
    """It is taken from again when the next removal is tried, and was closed twice then."""
    disk = SimFileSystem()
    disk.put(tmp_path / "00000000000000000007.xlog", b"")
    files = LogFiles(tmp_path, disk)
    files.hold(7)
    files.retire(7)
    files.hold(7)
    files.retire(7)
    files.close_retired()
    assert not files.has_retired
    assert disk.open_files == 0
