"""Reading what is far larger than memory should be stays small."""

from __future__ import annotations

import subprocess
import sys
import uuid
from array import array
from itertools import accumulate
from pathlib import Path

import pytest

from logweir.wal.columns import encode_run
from logweir.wal.mp import pack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import RowType

LIMIT_KIB = 200 * 1024
LOG_BYTES = 1_000_000_000
SNAPSHOT_ROWS = 10_000_000
ROWS = 1300
TUPLES = [pack([i, "customer", "x" * 40, 12345678, 1.5]) for i in range(ROWS)]

READ_ALL = """
import sys
from logweir.recovery import examine
from logweir.wal.damage import Damage
from logweir.wal.reader import WalReader
from pathlib import Path
rows = 0
with WalReader(sys.argv[1]) as reader:
    for item in reader.blocks():
        assert not isinstance(item, Damage), item
        rows += len(item.columns)
if sys.argv[1].endswith("xlog"):
    assert examine(Path(sys.argv[1]).parent).files[-1].rows == rows
# Not getrusage: what it tells of a child is at least the size of the parent at the fork.
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        print(rows, line.split()[1])
"""


def read_in_child(path: Path) -> tuple[int, int]:
    """Read all of a file in a process of its own. Returns its rows and its largest size in KiB."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ_ALL, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, kib = done.stdout.split()
    return int(rows), int(kib)


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the largest size is read from /proc (Linux)"
)


@pytest.mark.slow
def test_a_log_of_one_gigabyte_is_read_and_examined_in_200_mib(tmp_path: Path) -> None:
    """Reading every row, and examining the folder, takes memory for one block, not for the file."""
    bounds = array("Q", accumulate(map(len, TUPLES), initial=0))
    source = b"".join(TUPLES)
    writer = WalWriter(
        tmp_path,
        uuid.uuid4(),
        AppendPoint(VClock()),
        options=WriterOptions(max_bytes=2**40, compress_threshold_bytes=None),
    )
    rows = 0
    while writer.size < LOG_BYTES:
        block = encode_run(
            type=RowType.INSERT,
            replica_id=1,
            first_lsn=rows + 1,
            timestamp=1.5,
            source=source,
            bounds=bounds,
            prefix=b"\x82\x10\xcd\x02\x00\x21",
        )
        rows += ROWS
        writer.write([block], VClock({1: rows}))
    path = writer.path
    writer.close()
    assert path is not None
    read, kib = read_in_child(path)
    path.unlink()
    assert read == rows
    assert kib < LIMIT_KIB


@pytest.mark.slow
def test_a_snapshot_of_ten_million_rows_is_read_in_200_mib(tmp_path: Path) -> None:
    """The same of a compressed snapshot."""
    writer = SnapshotWriter(tmp_path, VClock(), uuid.uuid4(), timestamp=1.5)
    while writer.rows < SNAPSHOT_ROWS:
        writer.write(512, TUPLES)
    path = writer.finish()
    rows, kib = read_in_child(path)
    assert rows == writer.rows
    assert kib < LIMIT_KIB
