"""A program that writes a log until it is killed: what `crashtest` runs if it is given no other.

``python -m logweir.recovery.faults.workload DIR SEED`` opens the folder as a store would (examine,
plan, writer), then appends transactions of 1 to 5 rows in batches of 1 to 4 blocks, syncs each
batch and prints ``ack LSN``. Now and then it closes the log file or writes a snapshot. Every row is
a REPLACE into space 512 whose tuple is (lsn, bytes that follow from the lsn), so a reader can tell
whether it is what was written.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from logweir.recovery.examine import examine
from logweir.recovery.policy import plan
from logweir.recovery.replay import replay
from logweir.wal.filesystem import OS, make_folders
from logweir.wal.mp import pack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter, WriterOptions
from logweir.wal.xrow import Row, RowType, encode_row

__all__ = ["check_folder", "expected_tuple", "make_folder", "run"]

SPACE_ID: Final = 512
_INSTANCE: Final = uuid.UUID("6f6e6c79-6120-4c6f-a720-746573746564")
_FILE_BYTES: Final = 16 * 1024


def expected_tuple(lsn: int) -> bytes:
    """The tuple of the row with this lsn, MsgPack."""
    rng = random.Random(lsn)  # noqa: S311 - repeatable, nothing secret
    return pack([lsn, rng.randbytes(rng.choice((3, 60, 700, 4000)))])


def make_folder(directory: Path) -> None:
    """A folder with a snapshot to start from; nothing if it has one."""
    make_folders(OS, directory)
    if not any(name.endswith(".snap") for name in OS.list_directory(directory)):
        _snapshot(directory, VClock())


def check_folder(directory: Path, acknowledged: int) -> list[str]:
    """What is wrong with what a killed workload left; nothing if it kept its promises.

    `acknowledged`: the highest lsn that it had confirmed.
    """
    report = examine(directory)
    if not report.ok:
        return [str(damage) for damage in report.damage]
    problems = []
    if report.vclock.lsn(1) < acknowledged:
        problems.append(f"lsn {acknowledged} was acknowledged, the log ends at {report.vclock}")
    lsn = report.snapshot.vclock.lsn(1) if report.snapshot else 0
    for batch in replay(plan(report)):
        columns = batch.block.columns
        for row in range(batch.first, batch.last):
            lsn += 1
            if columns.lsn[row] != lsn or columns.tuple_bytes(row) != expected_tuple(lsn):
                problems.append(f"row {columns.lsn[row]} stands where {lsn} should, or is not it")
                return problems
    if lsn != report.vclock.lsn(1):
        problems.append(f"rows go to {lsn}, the report says {report.vclock}")
    return problems


def run(directory: Path, seed: int) -> None:
    """Write until somebody kills this process."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    opened = plan(examine(directory))
    opened.prepare()
    options = WriterOptions(max_bytes=_FILE_BYTES)
    writer = WalWriter(directory, _INSTANCE, opened.append_point, options=options)
    lsn = writer.vclock.lsn(1)
    while True:
        blocks = []
        for _ in range(rng.randint(1, 4)):
            count = rng.randint(1, 5)
            blocks.append(_transaction(lsn + 1, count))
            lsn += count
        writer.write(blocks, VClock({1: lsn}))
        writer.sync()
        os.write(1, b"ack %d\n" % lsn)
        if rng.random() < 0.02:
            writer.rotate()
        if rng.random() < 0.01:
            writer.rotate()
            _snapshot(directory, writer.vclock)


def _transaction(first: int, count: int) -> bytes:
    return b"".join(
        encode_row(
            Row(
                type=RowType.REPLACE,
                replica_id=1,
                lsn=lsn,
                timestamp=time.time(),
                tsn=first,
                commit=lsn == first + count - 1,
                body=b"\x82\x10" + pack(SPACE_ID) + b"\x21" + expected_tuple(lsn),
            )
        )
        for lsn in range(first, first + count)
    )


def _snapshot(directory: Path, vclock: VClock) -> None:
    writer = SnapshotWriter(directory, vclock, _INSTANCE, timestamp=time.time())
    writer.write(272, [pack(["written by", "a crash test"])])
    writer.finish()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
