"""Staged parts → one new file of a log folder, all of it or nothing.

The file is written under a temporary name, synced, renamed, and its folder synced, with the
folder's lock held, so a folder that a server has open is refused. Its `VClock` is where the
folder's log ends, `PrevVClock` that of the log before it. Parts follow one another in the order of
their partitions: rows that keep their positions must come, for every replica, after those of the
part before and after the folder's own; rows that get new ones are numbered through.

A batch of a stream leaves its name in the header line ``Logweir-Batch: query/number``, which other
readers ignore: a batch that is committed a second time, because a crash came between this commit
and Spark's, finds it there and adds nothing.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from logweir.errors import ChainGap, ConfigError, CorruptBlock, DecodeError, WalError
from logweir.limits import COMPRESS_THRESHOLD_BYTES
from logweir.pipeline.options import STAGE
from logweir.pipeline.parts import Part, SinkLayout
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, decompress, encode_block
from logweir.wal.columns import RowColumns, encode_columns
from logweir.wal.crc32c import checksum
from logweir.wal.damage import Damage, FileEnd
from logweir.wal.directory import DirectoryIndex, scan_directory
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import (
    OS,
    AppendFile,
    FileSystem,
    explain,
    give_up,
    make_folders,
)
from logweir.wal.meta import Meta
from logweir.wal.newfile import create_file
from logweir.wal.reader import WalReader
from logweir.wal.replacing import finish_replacing, replacing
from logweir.wal.vclock import VClock
from logweir.wal.walk import walk_blocks
from logweir.wal.writer import INPROGRESS, PROGRAM, file_name

BATCH_KEY: Final = "Logweir-Batch"
LOCK_NAME: Final = "logweir.lock"
STALE_SECONDS: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where and as what to publish. `vclock`: of a snapshot, what it contains; `replica_id`: of
    rows that get new positions; `batch`: `query/number` of a stream's batch, "" else; `replaces`:
    everything that was there goes, once the new file is there."""

    folder: Path
    layout: SinkLayout
    vclock: VClock | None = None
    instance: uuid.UUID | None = None
    replica_id: int = 1
    batch: str = ""
    replaces: bool = False


def publish(target: Target, parts: Sequence[Part], filesystem: FileSystem = OS) -> Path | None:
    """Make the file, in a folder that is made where there is none. Returns its path; None where
    there are no rows or the batch is there already.

    Raises `WalError` and its kinds: `DirectoryLocked` where a server has the folder, `ChainGap`
    where positions do not rise, `CorruptBlock` where a part is not as its task left it.
    """
    with _locked(target.folder, filesystem) as held:
        finish_replacing(target.folder, held)
        index = scan_directory(target.folder, held)
        if target.batch and is_published(index, target.batch):
            return None
        kept = [part for part in parts if part.rows]
        if not kept and target.layout.kind != "snap":
            return None
        for part in kept:
            _check_part(part, held)
        if not index.files:  # who made the folder need not have made its name durable
            held.sync_directory(target.folder.parent)
        if target.layout.kind == "snap":
            return _publish_snapshot(target, index, kept, held)
        return _publish_log(target, index, kept, held)


def is_published(index: DirectoryIndex, batch: str) -> bool:
    """Whether a log of the folder holds that batch."""
    return any((BATCH_KEY, batch) in log.meta.unknown for log in index.xlogs)


def remove_stale_stages(folder: Path, *, query: str = "", now: float | None = None) -> None:
    """Remove staging folders that are a day old, and those of `query` whatever their age."""
    limit = (time.time() if now is None else now) - STALE_SECONDS
    for name in os.listdir(folder):
        path = folder / name
        if not name.startswith(STAGE):
            continue
        if (query and name.startswith(f"{STAGE}{query}-")) or path.stat().st_mtime < limit:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(folder: Path, filesystem: FileSystem) -> Iterator[FileSystem]:
    try:
        make_folders(filesystem, folder)
        with filesystem.lock(folder / LOCK_NAME) as held:
            yield held
    except OSError as error:
        raise explain(error, str(folder)) from error


def _check_part(part: Part, filesystem: FileSystem) -> None:
    try:
        with closing(filesystem.open_read(Path(part.path))) as file:
            size = file.size()
    except OSError as error:
        raise explain(error, part.path) from error
    if size != part.size:
        raise CorruptBlock(
            f"the staged part has {size} bytes, its task wrote {part.size}.",
            path=part.path,
            offset=min(size, part.size),
            hint="nothing was published: run the write again",
        )


def _end_of(index: DirectoryIndex, filesystem: FileSystem) -> VClock:
    """Where the folder's log ends."""
    if not index.xlogs:
        snap = index.newest_snap()
        return snap.vclock if snap else VClock()
    newest = index.xlogs[-1]
    with WalReader(newest.path, filesystem=filesystem) as reader:
        for item in reader.blocks():
            if isinstance(item, Damage):
                raise item.to_error()
        if reader.end not in (FileEnd.CLEAN, FileEnd.UNCLOSED):
            raise WalError(
                f"the log ends in a {reader.end}.",
                path=str(newest.path),
                offset=reader.end_offset,
                hint="open the store once, or `logweir repair` it, before rows are added",
            )
        return reader.vclock


def _check_order(parts: Sequence[Part], reached: VClock) -> VClock:
    """The vclock behind parts that keep their positions. Raises `ChainGap`."""
    for part in parts:
        for replica_id, lsn in part.first.items():
            if lsn <= reached.lsn(replica_id):
                raise ChainGap(
                    f"{Path(part.path).name} begins with replica {replica_id} lsn {lsn}, which "
                    f"does not come after {reached}.",
                    path=str(Path(part.path).parent.parent),
                    expected=reached,
                    found=dict(part.first),
                    hint="sort by replica_id and lsn into ordered partitions (or coalesce(1)), or "
                    "give positions=new",
                )
        reached = reached.merge(part.last)
    return reached


def _publish_log(
    target: Target, index: DirectoryIndex, parts: Sequence[Part], filesystem: FileSystem
) -> Path:
    fresh = target.replaces or not index.files
    start = (target.vclock or VClock()) if fresh else _end_of(index, filesystem)
    if target.layout.keeps:
        _check_order(parts, start)
    before = index.xlogs[-1].vclock if index.xlogs and not fresh else None
    path = target.folder / file_name(start, "xlog")
    taken = [log for log in index.xlogs if log.path == path]
    if taken and not target.replaces:
        if start != taken[0].vclock:
            raise FileExistsError(path)
        before = index.xlogs[-2].vclock if len(index.xlogs) > 1 else None
    meta = Meta(
        kind="XLOG",
        vclock=start,
        instance=target.instance or index.instance or uuid.uuid4(),
        prev_vclock=before,
        program=PROGRAM,
        unknown=((BATCH_KEY, target.batch),) if target.batch else (),
    )
    first = start.lsn(target.replica_id)
    chunks = _chunks(target, parts, first, filesystem)
    return _write(path, meta, chunks, _replaced_by(target, index), filesystem)


def _publish_snapshot(
    target: Target, index: DirectoryIndex, parts: Sequence[Part], filesystem: FileSystem
) -> Path:
    if target.vclock is None:
        raise ConfigError("vclock", "a snapshot has to say what it contains.", origin="option")
    highest = -1
    for part in parts:
        if part.spaces[0] < highest:
            raise DecodeError(
                f"{Path(part.path).name} begins with space {part.spaces[0]} after {highest}",
                hint="sort by space_id and key into ordered partitions",
            )
        highest = part.spaces[1]
    path = target.folder / file_name(target.vclock, "snap")
    if any(snap.path == path for snap in index.snaps) and not target.replaces:
        raise ConfigError(
            "vclock", f"{path.name} is there already.", origin="option", hint="mode('overwrite')"
        )
    meta = Meta(
        kind="SNAP",
        vclock=target.vclock,
        instance=target.instance or index.instance or uuid.uuid4(),
        program=PROGRAM,
    )
    chunks = _chunks(target, parts, 0, filesystem)
    return _write(path, meta, chunks, _replaced_by(target, index), filesystem)


def _replaced_by(target: Target, index: DirectoryIndex) -> list[str] | None:
    """The names of the files that go with this publication, None if none do."""
    if not target.replaces:
        return None
    marks = [name for name in index.others if name == END_MARK_NAME]
    return [*(file.path.name for file in index.files), *marks]


def _chunks(
    target: Target, parts: Sequence[Part], first: int, filesystem: FileSystem
) -> Iterator[list[bytes]]:
    """The blocks of all parts, as they are, or numbered through from `first` + 1."""
    as_is = target.layout.keeps or target.layout.kind == "snap"
    for part in parts:
        for head, payload, packed in _blocks(part, filesystem):
            if as_is:
                yield [head, payload]
                continue
            rows = decompress(payload) if packed else payload
            renumbered = _renumber(rows, target.replica_id, first)
            yield [
                bytes(one)
                for one in encode_block(
                    renumbered,
                    threshold_bytes=COMPRESS_THRESHOLD_BYTES,
                    level=target.layout.compress_level,
                )
            ]
        first += part.rows


def _renumber(rows: bytes, replica_id: int, first: int) -> bytearray:
    """The same rows with lsn and tsn raised by `first`."""
    columns = RowColumns.scan(rows)
    raised = [
        array("Q", (np.frombuffer(column, dtype=np.uint64) + np.uint64(first)).tobytes())
        for column in (columns.lsn, columns.tsn)
    ]
    return encode_columns(
        type=columns.type,
        replica_id=replica_id,
        lsn=raised[0],
        timestamp_bits=columns.timestamp_bits,
        tsn=raised[1],
        flags=columns.flags,
        group_id=columns.group_id,
        source=columns.data,
        starts=columns.body_offset,
        stops=columns.end_offset,
    )


def part_rows(part: Part) -> Iterator[RowColumns]:
    """The rows of a part, a block at a time. Raises `CorruptBlock`."""
    if part.rows:
        _check_part(part, OS)
        for _, payload, packed in _blocks(part, OS):
            yield RowColumns.scan(decompress(payload) if packed else payload)


def _blocks(part: Part, filesystem: FileSystem) -> Iterator[tuple[bytes, bytes, bool]]:
    """Each block's header and payload, checked. Raises `CorruptBlock`."""
    try:
        file = filesystem.open_read(Path(part.path))
    except OSError as error:
        raise explain(error, part.path) from error
    end = 0
    try:
        for walked in walk_blocks(file, 0, part.size, whole=True):
            for number in range(walked.blocks):
                at, size, crc, packed = (walked.column(i)[number] for i in range(4))
                start = at + FIXHEADER_BYTES
                payload = walked.window[start : start + size]
                if checksum(payload) != crc:
                    break
                yield walked.window[at:start], payload, bool(packed)
                end = walked.at + start + size
    finally:
        file.close()
    if end != part.size:
        raise CorruptBlock(
            "the staged part is not as its task left it.",
            path=part.path,
            offset=end,
            hint="nothing was published: run the write again",
        )


def _write(
    path: Path,
    meta: Meta,
    chunks: Iterator[list[bytes]],
    replaces: Sequence[str] | None,
    filesystem: FileSystem,
) -> Path:
    """`replaces`: names of files that do not count any more from the rename on."""
    temporary = path.with_name(path.name + INPROGRESS)
    file: AppendFile | None = None
    try:
        file = create_file(filesystem, temporary)
        file.write([meta.encode()])
        for chunk in chunks:
            file.write(chunk)
        file.write([EOF_MARKER])
        file.sync()
        file.close()

        def rename() -> None:
            failpoint("pipeline.before_rename")
            filesystem.rename(temporary, path)
            failpoint("pipeline.after_rename")
            filesystem.sync_directory(path.parent)

        if replaces is None:
            rename()
        else:
            replacing(path, replaces, rename, filesystem)
    except BaseException as error:
        if file is not None:
            give_up(file)
            with suppress(OSError):
                filesystem.remove(temporary)  # nothing where it was renamed
        if isinstance(error, OSError):
            raise explain(error, str(temporary)) from error
        raise
    return path
