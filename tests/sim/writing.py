"""A random writer on a disk that loses power or fails, and what must be true of what is left."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from support.logs import INSTANCE, START, insert, transaction

from logweir.errors import WriterPoisoned
from logweir.recovery import RecoveryReport, examine, plan, replay
from logweir.recovery.faults import SimFileSystem
from logweir.wal.columns import RowColumns
from logweir.wal.filesystem import FileSystem, make_folders
from logweir.wal.mp import pack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter, WriterOptions

FOLDER = Path("/log")


def fresh_disk(seed: int = 0) -> SimFileSystem:
    """A disk with a folder that holds one snapshot, all of it stable."""
    disk = SimFileSystem(seed=seed)
    make_folders(disk, FOLDER)
    writer = SnapshotWriter(FOLDER, VClock(), INSTANCE, timestamp=START, filesystem=disk)
    writer.write(272, [pack(["version", 2, 3, 1])])
    writer.finish()
    return disk


def rows_of(report: RecoveryReport, *, force: bool = False) -> list[bytes]:
    """The bytes of all rows that opening the folder would apply."""
    return [
        batch.block.columns.row_bytes(i)
        for batch in replay(plan(report, force=force))
        for i in range(batch.first, batch.last)
    ]


@dataclass
class Written:
    """What a writer did: `rows`, one by one; `block_ends`: how many there were after each block;
    `synced`: how many are known to be safe."""

    rows: list[bytes] = field(default_factory=list)
    block_ends: list[int] = field(default_factory=lambda: [0])
    synced: int = 0

    @property
    def vclock(self) -> VClock:
        return VClock({1: len(self.rows)})

    def cut(self, count: int) -> None:
        """Forget what is behind row `count`: it was never acknowledged and is gone."""
        del self.rows[count:]
        self.block_ends = [end for end in self.block_ends if end <= count]
        self.synced = min(self.synced, count)


def random_body(rng: random.Random) -> bytes:
    """Contents that are hard on whoever looks for zeros and heads of blocks."""
    size = rng.choice((0, 1, 20, 200, 511, 512, 513, 1024, 3000))
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(size)
    if kind == 1:
        return (bytes.fromhex("d5ba0bab28") * size)[:size]
    if kind == 2:
        return bytes(size // 2) + rng.randbytes(size - size // 2)
    return rng.randbytes(size)


def random_options(rng: random.Random) -> WriterOptions:
    """Options under which files are short or long, blocks plain or packed, zeros ahead or none."""
    return WriterOptions(
        is_synced=rng.random() < 0.8,
        write_ahead_bytes=rng.choice((0, 600, 5000, 2**20)),
        max_bytes=rng.choice((2, 3000, 20000, 2**20)),
        compress_threshold_bytes=rng.choice((None, None, 2029)),
    )


def open_writer(
    disk: FileSystem, written: Written, options: WriterOptions | None = None
) -> WalWriter:
    """Open the folder as a store does. What recovery found is safe from then on."""
    opened = plan(examine(FOLDER, filesystem=disk))
    opened.prepare()
    writer = WalWriter(FOLDER, INSTANCE, opened.append_point, options=options, filesystem=disk)
    assert writer.vclock == written.vclock
    written.synced = len(written.rows)
    return writer


def write_batch(writer: WalWriter, written: Written, rng: random.Random) -> None:
    """Write a batch of up to 4 blocks of up to 3 transactions.

    Raises what the writer raises; where that is `WriterPoisoned` the batch may be there or not.
    """
    blocks, ends = [], []
    lsn = len(written.rows)
    for _ in range(rng.randint(1, 4)):
        block = b""
        for _ in range(rng.randint(1, 3)):
            bodies = [random_body(rng) for _ in range(rng.randint(1, 3))]
            changes = [insert(512, [lsn + 1 + i, body]) for i, body in enumerate(bodies)]
            block += transaction(lsn + 1, changes)
            lsn += len(bodies)
        blocks.append(block)
        ends.append(lsn)
    poisoned = None
    try:
        writer.write(blocks, VClock({1: lsn}))
    except WriterPoisoned as error:
        poisoned = error
    for block in blocks:
        columns = RowColumns.scan(block)
        written.rows += [columns.row_bytes(i) for i in range(len(columns))]
    written.block_ends += ends
    if poisoned is not None:
        raise poisoned


def write_some(disk: FileSystem, written: Written, rng: random.Random, operations: int) -> None:
    """Open the folder and write; returns as if killed, at any moment."""
    writer = open_writer(disk, written, random_options(rng))
    for _ in range(operations):
        choice = rng.random()
        if choice < 0.6:
            write_batch(writer, written, rng)
            continue
        if choice < 0.85:
            writer.sync()
        elif choice < 0.95:
            writer.rotate()
        else:
            writer.close()
            written.synced = len(written.rows)
            return
        written.synced = len(written.rows)


def check_image(disk: FileSystem, written: Written) -> int:
    """After a power cut: all synced rows, no other rows, whole blocks only, nothing to doubt.

    Returns how many rows are there.
    """
    report = examine(FOLDER, filesystem=disk)
    assert report.ok, [str(one) for one in report.damage]
    rows = rows_of(report)
    assert len(rows) >= written.synced
    assert rows == written.rows[: len(rows)]
    assert len(rows) in written.block_ends
    assert report.vclock == VClock({1: len(rows)})
    return len(rows)


def live_through(seed: int, *, crashes: int = 4, operations: int = 8) -> None:
    """Write, lose power, recover, go on; several times."""
    rng = random.Random(seed)
    disk = fresh_disk(seed)
    written = Written()
    for _ in range(crashes):
        write_some(disk, written, rng, rng.randint(0, operations))
        for _ in range(3):  # several disks could be left by the same power cut
            check_image(disk.crash(seed=rng.getrandbits(32)), written)
        disk = disk.crash(seed=rng.getrandbits(32))
        written.cut(check_image(disk, written))
