"""`logweir bench spark`: scans, checks and compaction on Spark, as ratios in one run.

The rows are a mixed workload (of ten: 5 replace, 2 insert, 2 update or upsert, 1 delete) of a store
that writes about 220 rows per block; the log is there several times over, as files of one archive.
The same rows stand as Parquet (snappy) and as JSON lines (binary as base64, schema given).

What is measured is processor time: of this process, the JVM and all Python workers, from /proc.
Wall time of a shared machine says little. `scan` reads all default columns into Spark's `noop`
sink.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logweir import pipeline
from logweir.pipeline.jobs.checks import check_blocks
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.store import open as open_log
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.scan import make_log
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader, decompress
from logweir.wal.vclock import VClock
from logweir.wal.writer import file_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkFigures", "run_spark", "to_json"]

_BLOCK_ROWS: Final = 220
_KEYS: Final = 50_000
_COPIES: Final = 4


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """Ratios. `scan`: rows per CPU-second, Parquet is the baseline; `checks`: bytes of file per
    CPU-second of one core; `compaction_scans`: CPU of a compaction in scans of the same rows;
    `splits`: wall time of one file in eight splits to that of eight files; `scaling`: of one core
    to two; `rows`, `log_bytes`: what was scanned."""

    rows: int
    log_bytes: int
    scan: list[Result]
    checks: dict[str, float]
    compaction_scans: list[float]
    splits: list[float]
    scaling: list[float]


def to_json(figures: SparkFigures) -> dict[str, Any]:
    """For `--json`."""
    return {
        "rows": figures.rows,
        "log_bytes": figures.log_bytes,
        "scan": [one.to_json() for one in figures.scan],
        "checks_bytes_per_second": figures.checks,
        "compaction_scans": figures.compaction_scans,
        "splits_wall_ratio": figures.splits,
        "scaling_wall_ratio": figures.scaling,
    }


# --- processor time -------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Of this process and everything below it, those that have ended and were waited for too."""
    ticks: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks[int(name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in ticks.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid][1] for pid in mine) / os.sysconf("SC_CLK_TCK")


def _spent(run: Callable[[], object]) -> float:
    before = cpu_seconds()
    run()
    return max(cpu_seconds() - before, 0.01)


def _wall(run: Callable[[], object]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


# --- what is read ---------------------------------------------------------------------------------


def _make_store(path: Path, rows: int) -> None:
    pick = random.Random(5)  # noqa: S311 - a workload, no secret
    with open_log(path, durability="write", checkpoint_interval=0) as log:
        log.create_space("rows", format=[("id", "unsigned"), ("n", "unsigned"), ("s", "string")])
        for _ in range(rows // _BLOCK_ROWS):
            with log.transaction() as tx:
                for _ in range(_BLOCK_ROWS):
                    key, kind = pick.randrange(_KEYS), pick.randrange(10)
                    if kind < 7:
                        tx.replace("rows", [key, pick.randrange(1000), f"text {key} " * 3])
                    elif kind == 7:
                        tx.update("rows", key, [("+", 1, 1)])
                    elif kind == 8:
                        tx.upsert("rows", [key, 1, "new"], [("+", 1, 1)])
                    else:
                        tx.delete("rows", key)


def _copies(source: Path, folder: Path, count: int) -> list[str]:
    """The same log under several names, each in a folder of its own."""
    paths = []
    for number in range(count):
        copy = folder / f"copy-{number}"
        copy.mkdir(parents=True)
        for log in source.glob("*.xlog"):
            shutil.copy(log, copy)
        paths.append(str(copy))
    return paths


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- the suite ------------------------------------------------------------------------------------


def run_spark(folder: Path, *, rows: int, rounds: int, master: str = "local[2]") -> SparkFigures:
    """Measure. `folder`: empty, on the disk to measure; `rows`: of one copy of the log."""
    store = folder / "store"
    _make_store(store, rows)
    archive = _copies(store, folder / "archive", _COPIES)
    spark = pipeline.session(master)
    try:
        frame = pipeline.scan(spark, *archive)
        count = frame.count()
        scan = _scans(spark, folder, frame, archive, count, rounds)
        compaction = _compaction(spark, store, folder, rounds)
        splits = _splits(spark, folder, store, rounds)
        two = [_wall(lambda: _noop(pipeline.scan(spark, *archive))) for _ in range(rounds)]
    finally:
        spark.stop()
    one_core = pipeline.session("local[1]")
    try:
        _noop(pipeline.scan(one_core, *archive))
        one = [_wall(lambda: _noop(pipeline.scan(one_core, *archive))) for _ in range(rounds)]
    finally:
        one_core.stop()
    size = sum(path.stat().st_size for path in (folder / "archive").rglob("*.xlog"))
    return SparkFigures(
        rows=count,
        log_bytes=size,
        scan=scan,
        checks=_checks(folder, store),
        compaction_scans=compaction,
        splits=splits,
        scaling=[slow / fast for slow, fast in zip(one, two, strict=True)],
    )


def _scans(
    spark: SparkSession,
    folder: Path,
    frame: DataFrame,
    archive: list[str],
    count: int,
    rounds: int,
) -> list[Result]:
    parquet, lines = str(folder / "parquet"), str(folder / "json")
    frame.write.parquet(parquet)
    frame.write.json(lines)
    narrow = ["type", "lsn", "space_id"]
    cases: dict[str, Callable[[], None]] = {
        "Parquet": lambda: _noop(spark.read.parquet(parquet)),
        "JSON lines": lambda: _noop(spark.read.schema(frame.schema).json(lines)),
        "logweir, all columns": lambda: _noop(pipeline.scan(spark, *archive)),
        "logweir, 3 columns": lambda: _noop(pipeline.scan(spark, *archive, columns=narrow)),
    }
    for run in cases.values():
        run()  # warm
    listed = [Case(name, partial(_spent, run), count) for name, run in cases.items()]
    return compare(listed, rounds=rounds)


def _compaction(spark: SparkSession, store: Path, folder: Path, rounds: int) -> list[float]:
    """CPU of a compaction in scans of the same rows."""
    target = folder / "compacted"

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        pipeline.compact(spark, store, target)

    def scan() -> None:
        _noop(pipeline.scan(spark, store))

    run()
    return [_spent(run) / _spent(scan) for _ in range(rounds)]


def _splits(spark: SparkSession, folder: Path, store: Path, rounds: int) -> list[float]:
    """Wall time of one file in eight splits to that of eight files of the same bytes."""
    files = _copies(store, folder / "eight", 8)
    whole = folder / "one"
    whole.mkdir()
    logs = sorted(store.glob("*.xlog"))
    header = plan(ScanOptions(paths=(str(logs[-1]),))).sources[0].first_block
    body = logs[-1].read_bytes()
    with open(whole / file_name(VClock(), "xlog"), "wb") as out:
        out.write(body[:header])
        for _ in range(8):
            out.write(body[header:-4])
        out.write(body[-4:])
    step = (len(body) - header) + 1

    def one() -> None:
        _noop(pipeline.scan(spark, whole, split_bytes=step))

    def eight() -> None:
        paths = [str(Path(path) / logs[-1].name) for path in files]
        _noop(pipeline.scan(spark, *paths, split_bytes=step))

    one()
    eight()
    return [_wall(one) / _wall(eight) for _ in range(rounds)]


def _checks(folder: Path, store: Path) -> dict[str, float]:
    """Bytes of file per CPU-second of one core, in this process."""
    plain_folder = folder / "plain"
    plain_folder.mkdir()
    plain = make_log(plain_folder, 300_000, compress=False)
    packed = max(store.glob("*.xlog"), key=lambda path: path.stat().st_size)
    return {
        "checksums, plain": _rate(plain, _checksums),
        "checksums, zstd": _rate(packed, _checksums),
        "checksums and unpacking, zstd": _rate(packed, _unpacked),
    }


def _rate(path: Path, check: Callable[[Path], None]) -> float:
    check(path)
    start = time.process_time()
    times = 5
    for _ in range(times):
        check(path)
    return round(times * path.stat().st_size / max(time.process_time() - start, 1e-6))


def _checksums(path: Path) -> None:
    for split in plan(ScanOptions(paths=(str(path),))).splits:
        for one in split.ranges:
            assert check_blocks(one)[2] is None


def _unpacked(path: Path) -> None:
    _checksums(path)
    data = memoryview(path.read_bytes())
    source = plan(ScanOptions(paths=(str(path),))).sources[0]
    at = source.first_block
    while at + FIXHEADER_BYTES <= len(data):
        header = decode_fixheader(data[at : at + FIXHEADER_BYTES])
        start = at + FIXHEADER_BYTES
        if header.kind == "zstd":
            decompress(data[start : start + header.stored_bytes])
        at = start + header.stored_bytes
