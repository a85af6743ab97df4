"""`verify`: every file of an archive checked, in tasks; what the files mean, in the driver.

Tasks do what `logweir.recovery.logscan` does, and the driver judges as `recovery.examine` judges,
so the report is the one that `logweir verify` gives, byte for byte. `level="crc"` does less, as
fast as memory goes: block headers, checksums, endings and the chain of headers; rows stay packed.
`level="unpack"` also unpacks what is compressed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import DecodeError, LimitExceeded, WalError
from logweir.pipeline.jobs.work import Told, per_item, typed_errors, watched
from logweir.pipeline.options import ScanOptions, absolute
from logweir.pipeline.plan import Plan, Range, Source, Split, plan, together
from logweir.pipeline.storage import open_storage
from logweir.recovery.examine import examine
from logweir.recovery.logscan import LogScan, scan_log, scan_snapshot
from logweir.recovery.report import RecoveryReport
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, decompress
from logweir.wal.crc32c import checksum
from logweir.wal.directory import LogFile
from logweir.wal.lease import leased
from logweir.wal.walk import Walked, walk_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checked", "check_blocks", "quick_check", "verify"]

_SCAN_DDL: Final = "number INT, scan BINARY"
_CHECK_DDL: Final = "number INT, blocks BIGINT, end BIGINT, bad BIGINT, reason STRING"


def verify(spark: SparkSession, path: str | Path, *, told: Told | None = None) -> RecoveryReport:
    """The report on a folder that `recovery.examine` gives, made by tasks of large files, and of
    small ones together.

    Raises `WalError` if the folder cannot be listed.
    """
    filesystem, folder = open_storage(absolute(str(path)))

    def every(snaps: Sequence[LogFile], logs: Sequence[LogFile]) -> list[LogScan]:
        files = [*snaps, *logs]
        location = absolute(str(path))

        def work(numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
            opened, _ = open_storage(location)
            for number in numbers:
                scan = scan_snapshot if number < len(snaps) else scan_log
                found = scan(files[number], opened, _nothing)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int32()), pa.array([pickle.dumps(found)], pa.binary())],
                    names=["number", "scan"],
                )

        if not files:
            return []
        with watched(spark, told), typed_errors():
            tasks = list(together(range(len(files)), lambda number: files[number].size))
            rows = per_item(spark, tasks, work, _SCAN_DDL).collect()
        # What our own tasks packed a moment ago.
        found = {row[0]: pickle.loads(bytes(row[1])) for row in rows}  # noqa: S301
        return [found[number] for number in range(len(files))]

    with leased(absolute(str(path))):
        return examine(folder, filesystem=filesystem, scans=every)


def _nothing(count: int) -> None:
    """Progress of one file is not told."""


# --- checksums only -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """One file after a quick check. `end`: how it ends (clean, unclosed), "" where it is bad;
    `offset`: of the first bad block, None if there is none; `reason`: what is wrong."""

    file: str
    blocks: int
    size: int
    end: str
    offset: int | None
    reason: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.reason


def quick_check(
    spark: SparkSession,
    *paths: str | Path,
    unpack: bool = False,
    told: Told | None = None,
    **options: Any,
) -> list[Checked]:
    """Checksums of all blocks and ends of all files. Reads each byte once.

    Finds flipped bits, torn ends, and a log that is missing between two others by their headers;
    not what only rows tell (an lsn twice, rows missing at a border): that is `verify`. `unpack`:
    also whether what is compressed can be unpacked. Raises `WalError` and its kinds for headers.
    """
    given = {name: value for name, value in options.items() if name in ("split_bytes", "recursive")}
    locations = tuple(absolute(str(path)) for path in paths)
    wanted = ScanOptions(paths=locations, settled=False, **given)
    with leased(*wanted.paths):
        return _quickly_checked(spark, plan(wanted), unpack, told)


def _quickly_checked(
    spark: SparkSession, planned: Plan, unpack: bool, told: Told | None
) -> list[Checked]:
    def work(split: Split) -> Iterator[pa.RecordBatch]:
        for one in split.ranges:
            blocks, end, bad, reason = check_blocks(one, unpack=unpack)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([one.source.number], pa.int32()),
                    pa.array([blocks], pa.int64()),
                    pa.array([end], pa.int64()),
                    pa.array([bad], pa.int64()),
                    pa.array([reason], pa.string()),
                ],
                names=["number", "blocks", "end", "bad", "reason"],
            )

    splits = [split for split in planned.splits if split.ranges]
    found: dict[int, list[tuple[Any, ...]]] = {one.number: [] for one in planned.sources}
    with watched(spark, told), typed_errors():
        for number, *rest in per_item(spark, splits, work, _CHECK_DDL).collect() if splits else ():
            found[number].append(tuple(rest))
    return [_checked(source, found[source.number]) for source in planned.sources]


def _checked(source: Source, found: list[tuple[Any, ...]]) -> Checked:
    blocks = sum(one[0] for one in found)
    bad = min((one for one in found if one[3] is not None), key=lambda one: one[2], default=None)
    if bad is not None:
        return Checked(source.path, blocks, source.size, "", bad[2], bad[3])
    reached = max((one[1] for one in found), default=source.first_block)
    if source.gap:
        return Checked(source.path, blocks, source.size, "", 0, source.gap)
    if source.lost:
        return Checked(source.path, blocks, source.size, "", reached, source.lost.message)
    if reached == source.size - len(EOF_MARKER):
        return Checked(source.path, blocks, source.size, "clean", None, "")
    if reached == source.size:
        newest = source.kind == "XLOG" and source.following is None
        why = "" if newest else "there is no EOF marker, and it is not the newest log"
        return Checked(
            source.path, blocks, source.size, "unclosed", None if newest else reached, why
        )
    return Checked(source.path, blocks, source.size, "", reached, "no block begins here")


def check_blocks(one: Range, *, unpack: bool = False) -> tuple[int, int, int | None, str | None]:
    """The checksums of one range: how many blocks are whole, where they end, the first bad one and
    why. `unpack`: unpack them too. Raises `WalError` where the file cannot be read."""
    filesystem, _ = open_storage(one.source.location)
    try:
        file = filesystem.open_read(Path(one.source.path))
    except OSError as error:
        raise WalError(f"{error.strerror}.", path=one.source.path) from error
    blocks, at = 0, one.start
    try:
        for walked in walk_blocks(file, one.start, one.end, whole=True):
            wrong = walked.first_wrong()
            if unpack and (found := _not_unpacked(walked, wrong)):
                number, reason = found
                offset = walked.at + walked.column(0)[number]
                return blocks + number, offset, offset, reason
            blocks += wrong
            at = walked.at + walked.table[wrong]
            if wrong < walked.blocks:
                start = walked.table[wrong] + FIXHEADER_BYTES
                payload = walked.window[start : start + walked.column(1)[wrong]]
                said = walked.column(2)[wrong]
                reason = f"block checksum is {checksum(payload):08x}, its header says {said:08x}"
                return blocks, at, at, reason
        if at < one.end:
            head = bytes(file.read(len(EOF_MARKER), at))
            is_end = head == EOF_MARKER and at + len(head) == one.source.size
            if not is_end:
                return blocks, at, at, "no whole block begins here"
    finally:
        file.close()
    return blocks, at, None, None


def _not_unpacked(walked: Walked, count: int) -> tuple[int, str] | None:
    """Which of the first `count` blocks cannot be unpacked, and why."""
    window = memoryview(walked.window)
    starts, sizes, _, packed = (walked.column(number) for number in range(4))
    for number in range(count):
        if packed[number]:
            start = starts[number] + FIXHEADER_BYTES
            try:
                decompress(window[start : start + sizes[number]])
            except (DecodeError, LimitExceeded) as error:
                return number, f"checksum matches but {error.message}"
    return None
