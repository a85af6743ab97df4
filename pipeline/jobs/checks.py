"""`verify`: every file of an archive checked, in tasks; what the files mean, in the driver.

Tasks do what `logweir.recovery.logscan` does, and the driver judges as `recovery.examine` judges,
so the report is the one that `logweir verify` gives, byte for byte. Large files are read in parts:
a task tells which stretches of its part are in order (`wal.ordered`), and one task then reads the
file as `logscan` does, but jumps over them where their first lsns are the next ones. So borders
between parts, and what is out of order, are judged by the same code in the same order.

The other levels do less, as fast as memory goes: `crc` looks at block headers, checksums, endings
and the chain of headers, and rows stay packed; `unpack` also unpacks what is compressed.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, overload

import pyarrow as pa

from logweir.errors import ConfigError, DecodeError, LimitExceeded, WalError
from logweir.limits import PIPELINE_SPLIT_BYTES
from logweir.pipeline.jobs.work import Told, per_item, typed_errors, watched
from logweir.pipeline.options import ScanOptions, absolute, place_text, whole
from logweir.pipeline.plan import Plan, Range, Source, Split, plan, together
from logweir.pipeline.storage import open_storage
from logweir.recovery.examine import examine
from logweir.recovery.logscan import LogScan, scan_log, scan_snapshot
from logweir.recovery.report import RecoveryReport
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, decompress
from logweir.wal.crc32c import checksum
from logweir.wal.directory import LogFile, no_store
from logweir.wal.filesystem import FileSystem
from logweir.wal.lease import leased
from logweir.wal.ordered import Stretch, stretches
from logweir.wal.reader import WalReader
from logweir.wal.walk import Walked, walk_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCAN_DDL: Final = "number INT, scan BINARY"
_CHECK_DDL: Final = "number INT, blocks BIGINT, end BIGINT, bad BIGINT, reason STRING"


@overload
def verify(
    spark: SparkSession,
    path: str | Path,
    *,
    level: Literal["rows"] = "rows",
    split_bytes: int = PIPELINE_SPLIT_BYTES,
    told: Told | None = None,
) -> RecoveryReport:
    """Of the rows."""


@overload
def verify(
    spark: SparkSession,
    path: str | Path,
    *,
    level: Literal["crc", "unpack"],
    split_bytes: int = PIPELINE_SPLIT_BYTES,
    told: Told | None = None,
) -> QuickReport:
    """Of the blocks."""


def verify(
    spark: SparkSession,
    path: str | Path,
    *,
    level: str = "rows",
    split_bytes: int = PIPELINE_SPLIT_BYTES,
    told: Told | None = None,
) -> RecoveryReport | QuickReport:
    """Check a folder in tasks: large files in parts of about `split_bytes`, small ones together.

    `level`: `rows` gives the report of `logweir.recovery.examine`. `crc` and `unpack` give a
    `QuickReport`, of checksums and endings, and of what can be unpacked: they read each byte once,
    find flipped bits, torn ends, and a log that is missing between two others by their headers;
    not what only rows tell (an lsn twice, rows missing at a border). Both have `ok` and `to_json`.
    `told`: progress. Raises `WalError` if the folder cannot be listed or holds neither a log nor
    a snapshot, as where a disk is not mounted, `ConfigError` for another level.
    """
    location = absolute(place_text("path", path))
    if level not in ("rows", "crc", "unpack"):
        hint = "rows, crc or unpack"
        raise ConfigError("level", f"is {level!r}.", origin="pipeline.verify", hint=hint)
    split_bytes = whole("split_bytes", split_bytes)
    with leased(location):
        if level != "rows":
            planned = plan(ScanOptions(paths=(location,), settled=False, split_bytes=split_bytes))
            return QuickReport(tuple(_quickly_checked(spark, planned, level == "unpack", told)))

        def every(snaps: Sequence[LogFile], logs: Sequence[LogFile]) -> list[LogScan]:
            with watched(spark, told), typed_errors():
                return _Scans(location, snaps, logs, split_bytes).run(spark)

        filesystem, folder = open_storage(location)
        report = examine(folder, filesystem=filesystem, scans=every)
        if report.is_empty:
            raise no_store(location)
        return report


class _Piece(NamedTuple):
    """The blocks of a file that begin from byte `start` on and before `stop`."""

    number: int
    start: int
    stop: int


class _Scans:
    """The scans of all files of a folder, made in tasks."""

    def __init__(
        self, location: str, snaps: Sequence[LogFile], logs: Sequence[LogFile], step: int
    ) -> None:
        self._location = location
        self._snaps = len(snaps)
        self._files = (*snaps, *logs)
        self._step = step

    def run(self, spark: SparkSession) -> list[LogScan]:
        """The scans, in the order of the files: those of small files, and what of large ones is in
        order, then those of large ones."""
        pieces = [one for number in range(len(self._files)) for one in self._cut(number)]
        found = self._told(spark, list(together(pieces, _bytes, self._step)), self._look)
        known = {
            number: list(chain.from_iterable(some))
            for number, some in found.items()
            if self._is_cut(number)
        }
        left = {n: self._left(n, some) for n, some in known.items()}
        tasks = [
            {number: known[number] for number in some}
            for some in together(left, left.__getitem__, self._step)
        ]
        found |= self._told(spark, tasks, self._read)
        return [found[number][0] for number in range(len(self._files))]

    def _is_cut(self, number: int) -> bool:
        return self._files[number].size > self._step + self._step // 8

    def _cut(self, number: int) -> Iterator[_Piece]:
        size, step = self._files[number].size, self._step
        starts = range(0, size - step // 8, step) if self._is_cut(number) else (0,)
        for start, stop in pairwise((*starts, size)):
            yield _Piece(number, start, stop)

    def _left(self, number: int, known: Sequence[Stretch]) -> int:
        return self._files[number].size - sum(one.end - one.start for one in known)

    def _told(
        self, spark: SparkSession, tasks: Sequence[Any], work: Callable[..., Iterator[Any]]
    ) -> dict[int, list[Any]]:
        """What `work` tells of each file, in the order of tasks."""

        def pack(task: Any) -> Iterator[pa.RecordBatch]:
            for number, value in work(task):
                columns = pa.array([number], pa.int32()), pa.array([pickle.dumps(value)])
                yield pa.RecordBatch.from_arrays(list(columns), names=["number", "scan"])

        found: dict[int, list[Any]] = {}
        for number, value in per_item(spark, tasks, pack, _SCAN_DDL).collect() if tasks else ():
            # What our own tasks packed a moment ago.
            found.setdefault(number, []).append(pickle.loads(bytes(value)))  # noqa: S301
        return found

    def _look(self, pieces: Sequence[_Piece]) -> Iterator[tuple[int, LogScan | list[Stretch]]]:
        """A task's work: scans of small files, stretches of parts of large ones."""
        filesystem, _ = open_storage(self._location)
        for one in pieces:
            if self._is_cut(one.number):
                yield one.number, _stretches(self._files[one.number].path, filesystem, one)
            else:
                yield from self._read({one.number: []})

    def _read(self, known: Mapping[int, Sequence[Stretch]]) -> Iterator[tuple[int, LogScan]]:
        """A task's work: scans of files, of which some stretches are known."""
        filesystem, _ = open_storage(self._location)
        for number, some in known.items():
            scan = scan_snapshot if number < self._snaps else scan_log
            yield number, scan(self._files[number], filesystem, _nothing, some)


def _bytes(piece: _Piece) -> int:
    return piece.stop - piece.start


def _stretches(path: Path, filesystem: FileSystem, piece: _Piece) -> list[Stretch]:
    found: list[Stretch] = []
    with contextlib.suppress(WalError), WalReader(path, filesystem=filesystem) as reader:
        for one in stretches(reader, piece.start, piece.stop):
            found.append(one)  # where an error comes then, whoever reads the file says it
    return found


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


@dataclass(frozen=True, slots=True)
class QuickReport:
    """A quick check of a folder."""

    files: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(one.ok for one in self.files)

    def to_json(self) -> dict[str, Any]:
        """As `logweir pipeline verify --level crc --json` prints it."""
        return {"ok": self.ok, "files": [asdict(one) for one in self.files]}


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
    for number in walked.odd(count):
        start = walked.table[number] + FIXHEADER_BYTES
        try:
            decompress(window[start : start + walked.column(1)[number]])
        except (DecodeError, LimitExceeded) as error:
            return number, f"checksum matches but {error.message}"
    return None
