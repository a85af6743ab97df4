"""`compact`: snapshot + logs → a new snapshot that logweir and a real Tarantool open.

Tasks write parts (runs of blocks) into a folder of their own inside the target; the driver puts the
file together under a temporary name, syncs and renames it. So nothing is visible before all of it
is there; a task that is run twice leaves a second part that nobody names; a driver that is killed
leaves a temporary file and a folder that the next run into the same place removes. The target is a
folder or what a URL names (`targets`): the steps are the same.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from logweir.errors import ConfigError, WalError
from logweir.limits import READ_WINDOW_BYTES
from logweir.pipeline.jobs.fold import Folder
from logweir.pipeline.jobs.folding import Prepared, by_part, looking, prepare
from logweir.pipeline.jobs.keyed import keyer_of
from logweir.pipeline.jobs.parts import encode_part, system_blocks
from logweir.pipeline.jobs.stages import stage_name, sweep
from logweir.pipeline.jobs.survey import Until
from logweir.pipeline.jobs.work import Told, typed_errors, watched
from logweir.pipeline.options import place_texts
from logweir.pipeline.storage import inside
from logweir.pipeline.targets import open_target
from logweir.wal.block import EOF_MARKER
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, explain, make_folders
from logweir.wal.lease import leased
from logweir.wal.meta import Meta
from logweir.wal.newfile import create_file
from logweir.wal.vclock import VClock
from logweir.wal.writer import INPROGRESS, PROGRAM, file_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGE: Final = ".logweir-compact-"
_PARTS_DDL: Final = "part INT, name STRING, rows BIGINT, size BIGINT, crc BIGINT"
_PARTS_SCHEMA: Final = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("crc", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Part:
    """A staged part. `name`: of its file; `crc`: CRC-32 of all of it."""

    part: int
    name: str
    rows: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The new snapshot. `path`: of a URL, that in its file system; `rows`: tuples in it, of system
    spaces too; `read_rows`: rows that it was made of; `parts`: how many tasks wrote it."""

    path: Path
    vclock: VClock
    rows: int
    read_rows: int
    size: int
    parts: int


def compact(
    spark: SparkSession,
    paths: Sequence[str | Path] | str | Path,
    to: str | Path,
    *,
    until: Until = None,
    snapshot: str | None = None,
    parts: int | None = None,
    split_bytes: int | None = None,
    told: Told | None = None,
) -> Compacted:
    """Write the state of an archive as one snapshot into the folder `to`.

    `paths`: folders of one instance; `to`: a folder that the driver and all workers see, or a URL;
    it may be one of them; `until`: a vclock or time to stop at, else the end of the log;
    `snapshot`, `parts`: as of `folding.prepare`; `told`: progress. Raises `WalError` and its kinds
    for damage and for rows that are missing, `RequestError` 5 for a space whose rows are elsewhere,
    `PositionUnavailable`, `ConfigError`.
    """
    folders = place_texts("paths", paths)
    filesystem, target = open_target("to", to)
    with leased(*folders), watched(spark, told):
        prepared = prepare(
            looking(spark),
            folders,
            until=until,
            snapshot=snapshot,
            parts=parts,
            split_bytes=split_bytes,
        )
        prepared.history.refuse_other_engines()
        name = stage_name(STAGE)
        stage = target / name
        timestamp = time.time()
        try:
            make_folders(filesystem, target)
            _check_free(filesystem, target, prepared.vclock)
            sweep(filesystem, target, STAGE)
            make_folders(filesystem, stage)
            staged = _staged(spark, prepared, inside(str(to), name), timestamp)
            return publish(prepared, staged, stage, target, timestamp, filesystem)
        except OSError as error:
            raise explain(error, str(target)) from error
        finally:
            with contextlib.suppress(OSError):
                filesystem.remove_tree(stage)


def _check_free(filesystem: FileSystem, target: Path, vclock: VClock) -> None:
    path = target / file_name(vclock, "snap")
    if path.name in filesystem.list_directory(target):
        raise ConfigError(
            "to",
            f"{path} is there already.",
            hint="nothing came after that snapshot, or name another folder",
        )


def _staged(spark: SparkSession, prepared: Prepared, stage: str, timestamp: float) -> list[Part]:
    text = prepared.plan.to_text()

    def write(part: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filesystem, folder = open_target("to", stage)
        yield from stage_part(text, part, rows, folder, timestamp, filesystem)

    with typed_errors():
        rows = by_part(spark, prepared, write, _PARTS_DDL).collect()
    return sorted((Part(*row) for row in rows), key=lambda one: one.part)


def stage_part(
    plan_text: str,
    number: int,
    rows: Iterable[pa.RecordBatch],
    stage: Path,
    timestamp: float,
    filesystem: FileSystem = OS,
) -> Iterator[pa.RecordBatch]:
    """Write part `number` from its keyed rows in order; yields a row that describes it."""
    keyer = keyer_of(plan_text)
    name = f"part-{number}-{uuid.uuid4().hex}"
    folded = Folder(keyer.history, keyer.plan.files).fold(rows)
    crc = count = 0
    try:
        with contextlib.closing(filesystem.create(stage / name)) as file:
            for block, count in encode_part(number, folded, keyer.history, timestamp):  # noqa: B007
                file.write([block])
                crc = zlib.crc32(block, crc)
            file.sync()
            size = file.size()
    except OSError as error:
        raise explain(error, str(stage / name)) from error
    told = Part(number, name, count, size, crc)
    yield pa.RecordBatch.from_arrays(
        [pa.array([getattr(told, one.name)], one.type) for one in _PARTS_SCHEMA],
        schema=_PARTS_SCHEMA,
    )


def publish(
    prepared: Prepared,
    staged: list[Part],
    stage: Path,
    target: Path,
    timestamp: float,
    filesystem: FileSystem = OS,
) -> Compacted:
    """Put the parts together as the snapshot, durably. Raises `WalError`."""
    path = target / file_name(prepared.vclock, "snap")
    temporary = path.with_name(path.name + INPROGRESS)
    meta = Meta(kind="SNAP", vclock=prepared.vclock, instance=prepared.instance, program=PROGRAM)
    blocks, system_rows = system_blocks(prepared.history, timestamp)
    try:
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(temporary)  # of a driver that was killed here
        with contextlib.closing(create_file(filesystem, temporary)) as file:
            file.write([meta.encode(), blocks])
            for part in staged:
                for piece in _pieces(stage / part.name, part, filesystem):
                    file.write([piece])
            failpoint("compact.before_end")
            file.write([EOF_MARKER])
            file.sync()
            size = file.size()
        failpoint("compact.before_rename")
        filesystem.rename(temporary, path)
        filesystem.sync_directory(target)
    except OSError as error:
        raise explain(error, str(temporary)) from error
    finally:
        with contextlib.suppress(OSError):
            filesystem.remove(temporary)  # nothing if it was renamed
    return Compacted(
        path=path,
        vclock=prepared.vclock,
        rows=system_rows + sum(part.rows for part in staged),
        read_rows=prepared.rows,
        size=size,
        parts=len(staged),
    )


def _pieces(path: Path, part: Part, filesystem: FileSystem) -> Iterator[bytes]:
    """A part's bytes, compared with what its task said of them."""
    size = crc = 0
    with contextlib.closing(filesystem.open_read(path)) as file:
        while piece := file.read(READ_WINDOW_BYTES, size):
            yield piece
            size += len(piece)
            crc = zlib.crc32(piece, crc)
    if (size, crc) != (part.size, part.crc):
        raise WalError(
            f"the part has {size} bytes with CRC {crc:08x}, its task wrote {part.size} with "
            f"{part.crc:08x}.",
            path=str(path),
            hint="the folder is not the same for driver and workers, or its disk lost something",
        )
