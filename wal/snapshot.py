"""Snapshots: one file with every tuple of every space, as of one vclock.

All rows are INSERT, alone, without replica id; their lsn is the row's number from 0, their
timestamp one value for the file; rows of local spaces have group id 1. The body begins with the
space id as a full 32-bit number: `82 10 ce <space id> 21`, then the tuple. System spaces come
first, ascending by id, since they define the rest; inside a space tuples stand in the order of
the primary key. A snapshot without its EOF marker is not complete and never used: it is written as
`….snap.inprogress`, synced, renamed, and its folder synced. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

from logweir.errors import CorruptBlock, CorruptFile
from logweir.limits import BLOCK_TARGET_BYTES, COMPRESS_THRESHOLD_BYTES
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.columns import encode_run
from logweir.wal.damage import Damage, FileEnd
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, explaining, give_up
from logweir.wal.meta import Meta
from logweir.wal.newfile import create_file
from logweir.wal.process import OfProcess
from logweir.wal.reader import Block, WalReader
from logweir.wal.vclock import VClock
from logweir.wal.writer import INPROGRESS, PROGRAM, Written, file_name
from logweir.wal.xrow import GROUP_LOCAL, RowType

_FLUSH_ROWS: Final = 100_000


def insert_prefix(space_id: int) -> bytes:
    """What stands before the tuple in a snapshot's row body."""
    return b"\x82\x10\xce" + space_id.to_bytes(4, "big") + b"\x21"


class SnapshotWriter(OfProcess):
    """Writes one snapshot. Nothing of it is visible before `finish` returns; `abort` removes it.

    `directory`, `vclock`: where, and what it contains; `timestamp`: of all rows, seconds since the
    epoch; `compress_level`: of zstd, 1 … 22. Raises `WalError`.
    """

    def __init__(
        self,
        directory: Path,
        vclock: VClock,
        instance: uuid.UUID,
        *,
        timestamp: float,
        compress_level: int = 1,
        filesystem: FileSystem = OS,
    ) -> None:
        self.path = directory / file_name(vclock, "snap")
        self.rows = 0
        """Rows written so far."""
        self.last_block: Written | None = None
        """Its end: see `WalWriter.last_block`."""
        self.size = 0
        """Bytes of the complete file."""
        self._temporary = self.path.with_name(self.path.name + INPROGRESS)
        self._timestamp = timestamp
        self._level = compress_level
        self._filesystem = filesystem
        self._rows = bytearray()
        meta = Meta(kind="SNAP", vclock=vclock, instance=instance, program=PROGRAM)
        try:
            with explaining(self._temporary):
                self._file = create_file(filesystem, self._temporary)
                self._file.write([meta.encode()])
            self._belong()
        except BaseException:
            self.abort()
            raise

    def write(self, space_id: int, tuples: Iterable[bytes], *, local: bool = False) -> None:
        """Add the tuples (MsgPack) of one space, in the order of its primary key."""
        self.check_process()
        pending: list[bytes] = []
        size = 0
        for one in tuples:
            pending.append(one)
            size += len(one)
            if size >= BLOCK_TARGET_BYTES or len(pending) >= _FLUSH_ROWS:
                self._add(space_id, pending, local)
                pending, size = [], 0
        self._add(space_id, pending, local)

    def finish(self) -> Path:
        """Complete the file and make it visible and durable. Returns its path."""
        self.check_process()
        self._flush()
        with explaining(self._temporary):
            self._file.write([EOF_MARKER])
            self._file.sync()
            self.size = self._file.size()
            self._file.close()
            failpoint("snapshot.before_rename")
            self._filesystem.rename(self._temporary, self.path)
            failpoint("snapshot.after_rename_before_directory_sync")
            self._filesystem.sync_directory(self.path.parent)
        return self.path

    def abort(self) -> None:
        """Give up: close and remove what was written; what cannot be removed is read by nobody."""
        if self.is_foreign:
            return
        if hasattr(self, "_file"):  # it could be made
            give_up(self._file)
        with suppress(OSError):
            self._filesystem.remove(self._temporary)

    def _add(self, space_id: int, tuples: list[bytes], local: bool) -> None:
        if not tuples:
            return
        self._rows += encode_run(
            type=RowType.INSERT,
            replica_id=0,
            first_lsn=self.rows,
            timestamp=self._timestamp,
            source=b"".join(tuples),
            bounds=array("Q", accumulate(map(len, tuples), initial=0)),
            prefix=insert_prefix(space_id),
            group_id=GROUP_LOCAL if local else 0,
        )
        self.rows += len(tuples)
        if len(self._rows) >= BLOCK_TARGET_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        parts = encode_block(
            self._rows, threshold_bytes=COMPRESS_THRESHOLD_BYTES, level=self._level
        )
        begin = self._file.size()
        with explaining(self._temporary, begin):
            self._file.write(parts)
        self.last_block = (self.path, self._file.size(), begin, parts[0])
        self._rows = bytearray()


@contextmanager
def new_snapshot(
    directory: Path,
    vclock: VClock,
    instance: uuid.UUID,
    *,
    timestamp: float,
    filesystem: FileSystem = OS,
) -> Iterator[SnapshotWriter]:
    """A `SnapshotWriter`, of which nothing is left where an exception leaves the context."""
    writer = None
    try:
        writer = SnapshotWriter(
            directory, vclock, instance, timestamp=timestamp, filesystem=filesystem
        )
        yield writer
    except BaseException:
        if writer is not None:
            writer.abort()
        raise


def read_snapshot(path: Path, filesystem: FileSystem = OS) -> Iterator[Block]:
    """The blocks of a complete snapshot, in constant memory.

    Raises `CorruptBlock` at the first damage and at the end of a file without EOF marker: a part
    of a snapshot is no state.
    """
    with WalReader(path, filesystem=filesystem) as reader:
        if reader.meta.kind != "SNAP":
            raise CorruptFile(f"is of kind {reader.meta.kind}, not a snapshot.", path=str(path))
        for item in reader.blocks():
            if isinstance(item, Damage):
                raise item.to_error()
            yield item
        if reader.end is not FileEnd.CLEAN:
            raise CorruptBlock(
                "the snapshot has no EOF marker: it is not complete.",
                path=str(path),
                offset=reader.end_offset,
                hint="use an older snapshot and the logs behind it",
            )
