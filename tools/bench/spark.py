"""`logweir bench spark`: scans, checks and compaction on Spark, as ratios in one run.

The rows are a mixed workload (of ten: 5 replace, 2 insert, 2 update or upsert, 1 delete) of a store
that writes about 220 rows per block; the log is there several times over, as files of one archive.
The same rows stand as Parquet (snappy) and as JSON lines (binary as base64, schema given).

What is compared is processor time, of this process, the JVM and all Python workers (`spending`):
wall time of a shared machine says little. Only splits and scaling are times of a clock, so they
want an idle machine. `scan` reads all default columns into Spark's `noop` sink. Memory is what the
largest resident set of a Python worker grows by while it scans, also with eight times the file.

Scaling is told twice. One task at a time is two processes, the JVM and a Python worker, which work
at the same time where there are two cores; one core is one core for both.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import random
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logweir import pipeline
from logweir.pipeline.jobs.checks import check_blocks
from logweir.pipeline.jobs.spaces import resolved
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.recovery.logscan import scan_log
from logweir.store import open as open_log
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.scan import make_log
from logweir.tools.bench.spending import CPUS, grown, only_on, spent, wall
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, encode_block
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS
from logweir.wal.meta import Meta
from logweir.wal.reader import Block, WalReader
from logweir.wal.vclock import VClock
from logweir.wal.writer import file_name
from logweir.wal.xrow import Row, RowType, encode_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_ROWS: Final = 220
_KEYS: Final = 50_000
_COPIES: Final = 8
_TIMES: Final = 2
_EIGHT: Final = 8
_SMALL_ROWS: Final = 5
_CHECK_TIMES: Final = 5
_LOGS: Final = 10_000
_FILE_BYTES: Final = 300_000
_INSTANCE: Final = uuid.UUID(int=1)
_BODY: Final = bytes.fromhex("8210cd0200219101")  # [1] into space 512
_MB: Final = 1e6
_SAID: Final = 4000  # so many letters of what a process said are shown


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured. `values`: of each round; `unit`: of them, "" for a ratio;
    `least`, `most`: what it is to reach, None for no bound."""

    name: str
    values: list[float]
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)

    @property
    def aim(self) -> str:
        """What it is to reach, as text."""
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    @property
    def reached(self) -> bool | None:
        """Whether the median does; None where nothing is asked."""
        if self.least is not None:
            return self.median >= self.least
        return None if self.most is None else self.median <= self.most

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "figure": self.name,
            "unit": self.unit,
            "median": round(self.median, 3),
            "rounds": [round(value, 3) for value in self.values],
            "aim": self.aim,
            "reached": self.reached,
        }

    def to_text(self) -> str:
        """As one line."""
        unit = f" {self.unit}" if self.unit else ""
        spread = f"{min(self.values):.2f} … {max(self.values):.2f}"
        aim = f"; aim: {self.aim}, {'reached' if self.reached else 'missed'}" if self.aim else ""
        return f"{self.name}: {self.median:.2f}{unit} ({spread}{aim})"


# --- what is read ---------------------------------------------------------------------------------


def _make_store(path: Path, rows: int) -> Path:
    """A store with a log of about `rows` rows. Returns that log."""
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
    return max(path.glob("*.xlog"), key=lambda log: log.stat().st_size)


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


def _eightfold(log: Path, folder: Path) -> tuple[Path, int]:
    """One log with the blocks of `log` eight times. Returns it and the size of an eighth."""
    header = plan(ScanOptions(paths=(str(log),))).sources[0].first_block
    body = log.read_bytes()
    folder.mkdir()
    path = folder / file_name(VClock(), "xlog")
    with open(path, "wb") as out:
        out.write(body[:header])
        for _ in range(_EIGHT):
            out.write(body[header:-4])
        out.write(body[-4:])
    return path, len(body) - header + 1


def _noop(spark: SparkSession, *paths: str | Path, **options: Any) -> None:
    _into_noop(pipeline.scan(spark, *paths, **options))


def _into_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- the suite ------------------------------------------------------------------------------------


def measure_spark(
    folder: Path, *, rows: int, rounds: int, master: str = "local[2]"
) -> Iterator[Figure]:
    """Measure, and yield each figure as soon as it is known.

    `folder`: empty, on the disk to measure; `rows`: half of the rows of one log, of which an
    archive has eight copies (of fewer, what a job costs by itself would be measured). Figures of
    splits, memory and scaling want `master` to have two cores.
    """
    store = folder / "store"
    log = _make_store(store, _TIMES * rows)
    yield from _checks(folder, log)
    yield from _planning(folder)
    yield _first_row(store, rounds)  # while no other Java of this process is there
    archive = _copies(store, folder / "archive", _COPIES)
    step = log.stat().st_size
    spark = pipeline.session(master)
    try:
        yield from _scans(spark, store, folder, archive, rounds)
        yield from _compaction(spark, store, folder, rounds)
        yield from _small_files(spark, log, folder, rounds)
        yield from _splits(spark, folder, log, archive, rounds)
        two = _walls(spark, archive, step, rounds)
    finally:
        spark.stop()
    for name, cpus, least in (
        ("scaling from one task at a time to two", CPUS, None),
        ("scaling from one core to two", sorted(CPUS)[:1], 1.7),
    ):
        spark = pipeline.session("local[1]")
        try:
            with only_on(cpus):
                one = _walls(spark, archive, step, rounds)
        finally:
            spark.stop()
        ratios = [slow / fast for slow, fast in zip(one, two, strict=True)]
        yield Figure(f"{name}, by the clock", ratios, least=least)


def _walls(spark: SparkSession, archive: list[str], step: int, rounds: int) -> list[float]:
    """How long a scan of the archive takes, one task per log."""
    return [wall(lambda: _noop(spark, *archive, split_bytes=step)) for _ in range(rounds + 1)][1:]


def _scans(
    spark: SparkSession, store: Path, folder: Path, archive: list[str], rounds: int
) -> Iterator[Figure]:
    size = sum(path.stat().st_size for path in (folder / "archive").rglob("*.xlog")) / _MB
    yield Figure("logs of the archive", [size], "MB")
    few = ["type", "lsn", "space_id"]
    found = yield from _compared(spark, folder / "raw", "scan", archive, rounds, 0.6, few=few)
    yield Figure("three columns to all of Parquet", found["few"].ratios, least=1.0)
    text = resolved(ScanOptions(paths=(str(store),), space="rows")).space
    yield from _compared(spark, folder / "typed", "typed changes", archive, rounds, 0.9, space=text)
    yield from _batches(store, folder / "typed" / "parquet", text, rounds)


def _compared(
    spark: SparkSession,
    folder: Path,
    name: str,
    archive: list[str],
    rounds: int,
    least: float,
    *,
    few: list[str] | None = None,
    **options: Any,
) -> Generator[Figure, None, dict[str, Result]]:
    """A scan next to the same rows as Parquet and JSON lines, and read in Python. `few`: columns
    that are selected of another scan."""
    parquet, lines = str(folder / "parquet"), str(folder / "json")
    frame = pipeline.scan(spark, *archive, **options)
    frame.write.parquet(parquet)
    frame.write.json(lines)
    count = spark.read.parquet(parquet).count()
    yield Figure(f"{name}, rows", [count / _MB], "million")

    def peer(read: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: _into_noop(read())

    cases: dict[str, Callable[[], None]] = {
        "Parquet": peer(lambda: spark.read.parquet(parquet)),
        "JSON lines": peer(lambda: spark.read.schema(frame.schema).json(lines)),
        "all": lambda: _noop(spark, *archive, **options),
        "python": lambda: _noop(spark, *archive, reader="python", **options),
    }
    if few is not None:
        cases["few"] = lambda: _into_noop(pipeline.scan(spark, *archive, **options).select(*few))
    for run in cases.values():
        run()  # warm
    listed = [Case(name, partial(spent, run), count) for name, run in cases.items()]
    found = {one.name: one for one in compare(listed, rounds=rounds)}
    labels = {"all": "all columns", "few": "three columns", "python": "all columns in Python"}
    for case, one in found.items():
        millions = [rate / _MB for rate in one.rates]
        yield Figure(f"{name}, {labels.get(case, case)}", millions, "million rows per CPU s")
    yield Figure(f"{name} to Parquet", found["all"].ratios, least=least)
    aim = 0.5 if "space" in options else None
    yield Figure(f"{name} in Python to Parquet", found["python"].ratios, least=aim)
    pairs = zip(found["all"].rates, found["JSON lines"].rates, strict=True)
    yield Figure(f"{name} to JSON lines", [mine / other for mine, other in pairs], least=2.5)
    return found


def _batches(store: Path, parquet: Path, space: str, rounds: int) -> Iterator[Figure]:
    """Typed changes in this process, next to pyarrow's reader of the same columns."""
    from pyarrow import dataset

    def ours() -> int:
        return sum(batch.num_rows for batch in pipeline.batches(store, space=space))

    def peer() -> int:
        rows = dataset.dataset(parquet, format="parquet").scanner(use_threads=False)
        return sum(batch.num_rows for batch in rows.to_batches())

    counts = [ours(), peer()]
    rates = [
        [count / spent(run) for run, count in zip((ours, peer), counts, strict=True)]
        for _ in range(rounds)
    ]
    yield Figure("typed batches", [own / _MB for own, _ in rates], "million rows per CPU s")
    yield Figure("typed batches to pyarrow's Parquet", [a / b for a, b in rates], least=0.5)


def _compaction(spark: SparkSession, store: Path, folder: Path, rounds: int) -> Iterator[Figure]:
    target = folder / "compacted"

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        pipeline.compact(spark, store, target)

    run()
    _noop(spark, store)
    pairs = [(spent(run), spent(lambda: _noop(spark, store))) for _ in range(rounds)]
    yield Figure("compaction", [whole for whole, _ in pairs], "CPU s")
    yield Figure("compaction in scans", [whole / scan for whole, scan in pairs], most=4)
    for name, job, most in (
        ("state", lambda: pipeline.state(spark, store), 3.0),
        ("stats", lambda: pipeline.stats(spark, store), 0.6),
    ):
        pairs = [
            (spent(lambda job=job: _into_noop(job())), spent(lambda: _noop(spark, store)))  # type: ignore[misc]
            for _ in range(rounds + 1)
        ][1:]
        yield Figure(f"{name} in scans", [whole / scan for whole, scan in pairs], most=most)


def _small_files(spark: SparkSession, log: Path, folder: Path, rounds: int) -> Iterator[Figure]:
    """Each job over one log, and over the same rows in small ones."""
    many, to = folder / "small-files", folder / "exported"
    yield Figure("small files", [float(_cut(log, many))], "files")

    def into(job: Callable[[Path], object]) -> Callable[[Path], object]:
        def run(path: Path) -> object:
            shutil.rmtree(to, ignore_errors=True)
            return job(path)

        return run

    jobs: dict[str, Callable[[Path], object]] = {
        "scan": lambda path: _noop(spark, path, kinds="xlog"),
        "scan in Python": lambda path: _noop(spark, path, kinds="xlog", reader="python"),
        "verify": lambda path: pipeline.verify(spark, path),
        "stats": lambda path: _into_noop(pipeline.stats(spark, path)),
        "state": lambda path: _into_noop(pipeline.state(spark, path)),
        "compact": into(lambda path: pipeline.compact(spark, path, to)),
        "export": into(lambda path: pipeline.export(spark, path, to, space="rows")),
    }
    for name, job in jobs.items():
        pairs = [
            [spent(partial(job, path)) for path in (many, log.parent)] for _ in range(rounds + 1)
        ][1:]
        yield Figure(f"small files to one, {name}", [few / one for few, one in pairs], most=1.3)


def _cut(log: Path, folder: Path) -> int:
    """The log's rows as logs of about `_FILE_BYTES`, behind the same snapshots. How many."""
    folder.mkdir()
    for snapshot in log.parent.glob("*.snap"):
        shutil.copy(snapshot, folder)
    data, count = log.read_bytes(), 0
    with WalReader(log) as reader:
        start, before, begin, end = reader.meta.vclock, None, reader.first_block, 0
        for block in reader.blocks():
            assert isinstance(block, Block)
            end = block.end
            if end - begin < _FILE_BYTES and data[end : end + len(EOF_MARKER)] != EOF_MARKER:
                continue
            head = Meta("XLOG", start, reader.meta.instance, before, "bench").encode()
            path = folder / file_name(start, "xlog")
            path.write_bytes(head + data[begin:end] + EOF_MARKER)
            start, before, begin = VClock({1: block.columns.lsn[-1]}), start, end
            count += 1
    return count


_BEGIN: Final = """
import sys
from logweir import pipeline
from logweir.tools.bench.spending import cpu_seconds
spark = pipeline.session("local[1]")
frame = pipeline.scan(spark, sys.argv[1]) if len(sys.argv) > 1 else spark.range(1)
assert frame.limit(1).toArrow().num_rows == 1
print(cpu_seconds())
"""


def _first_row(store: Path, rounds: int) -> Figure:
    """Of processes with a session that reads a row of a log, and of Spark's own numbers. Raises
    `RuntimeError` with what one said that failed."""

    def begun(*words: str) -> float:
        command = [sys.executable, "-P", "-c", _BEGIN, *words]
        ended = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        if ended.returncode:
            text = f"a new session ended with {ended.returncode}: {ended.stderr[-_SAID:]}"
            raise RuntimeError(text)
        return float(ended.stdout)

    pairs = [(begun(str(store)), begun()) for _ in range(rounds)]
    ratios = [ours / empty for ours, empty in pairs]
    return Figure("a new session to the first row of a log, to one of no log", ratios, most=1.2)


def _splits(
    spark: SparkSession, folder: Path, log: Path, archive: list[str], rounds: int
) -> Iterator[Figure]:
    whole, step = _eightfold(log, folder / "one")
    files = [Path(path) / log.name for path in archive[:_EIGHT]]

    def one() -> None:
        _noop(spark, whole, split_bytes=step)

    def eight() -> None:
        _noop(spark, *files, split_bytes=step)

    one()
    eight()
    ratios = [wall(one) / wall(eight) for _ in range(rounds)]
    yield Figure("eight splits of a file to eight files, by the clock", ratios, most=1.15)
    small = grown(lambda: _noop(spark, files[0], split_mode="none"))
    large = grown(lambda: _noop(spark, whole, split_mode="none"))
    yield Figure("memory of a task", [small], "MB")
    yield Figure("memory of a task, eight times the file", [large], "MB", most=64)


def _checks(folder: Path, log: Path) -> Iterator[Figure]:
    """Bytes of file per CPU-second of one core, in this process: what a task does."""
    plain_folder = folder / "plain"
    plain_folder.mkdir()
    plain = make_log(plain_folder, 500_000, compress=False)
    crc, unpack = partial(_checked, unpack=False), partial(_checked, unpack=True)
    small_folder = folder / "small"
    small_folder.mkdir()
    small = make_log(small_folder, 200_000, compress=False, per_block=_SMALL_ROWS)
    size = small.stat().st_size / (200_000 / _SMALL_ROWS)
    yield _rate("verify, plain blocks", plain, crc, 1000)
    yield Figure("a small block", [size], "bytes")
    yield _rate("verify, small blocks", small, crc, 200)
    yield _rate("verify, zstd blocks", log, crc, 150)
    yield _rate("verify with unpacking, zstd blocks", log, unpack, 250)
    frames = _frames(log)
    alone = partial(_unpacked_alone, frames)
    yield _rate("libzstd alone, the same blocks", log, alone)
    yield _rate("verify of all rows, plain blocks", plain, _rows)
    yield _rate("verify of all rows, small blocks", small, _rows, 200)
    yield _rate("verify of all rows, zstd blocks", log, _rows)
    with WalReader(log) as reader:
        raw = sum(len(block.data) for block in reader.blocks() if isinstance(block, Block))
    unpacked = partial(_rate, size=raw)
    yield unpacked("verify with unpacking, zstd blocks, by what is unpacked", log, unpack)
    yield unpacked("libzstd alone, the same blocks, by what is unpacked", log, alone)
    yield unpacked("verify of all rows, zstd blocks, by what is unpacked", log, _rows, 250)


def _planning(folder: Path) -> Iterator[Figure]:
    """Logs of a row each, one behind the other, without a snapshot."""
    small = folder / "many"
    small.mkdir()
    before = None
    for number in range(_LOGS):
        start = VClock({1: number})
        row = Row(type=RowType.INSERT, replica_id=1, lsn=number + 1, tsn=number + 1, body=_BODY)
        block = b"".join(encode_block(encode_rows([row])))
        head = Meta("XLOG", start, _INSTANCE, before, "bench").encode()
        (small / file_name(start, "xlog")).write_bytes(head + block + EOF_MARKER)
        before = start
    seconds = []
    for _ in range(2):
        begin = time.process_time()
        assert len(plan(ScanOptions(paths=(str(small),))).sources) == _LOGS
        seconds.append(time.process_time() - begin)
    yield Figure("planning of 10,000 logs", seconds, "CPU s", most=0.5)


def _rate(
    name: str,
    path: Path,
    check: Callable[[Path], None],
    least: float | None = None,
    *,
    size: int | None = None,
) -> Figure:
    """`size`: bytes that count; None: those of the file."""
    counted = path.stat().st_size if size is None else size
    check(path)
    rates = []
    for _ in range(_CHECK_TIMES):
        start = time.process_time()
        check(path)
        rates.append(counted / _MB / max(time.process_time() - start, 1e-6))
    return Figure(name, rates, "MB per CPU s", least=least)


def _checked(path: Path, *, unpack: bool) -> None:
    for split in plan(ScanOptions(paths=(str(path),), settled=False)).splits:
        for one in split.ranges:
            assert check_blocks(one, unpack=unpack)[2] is None


def _frames(path: Path) -> list[bytes]:
    """The payloads of the compressed blocks of a log."""
    data = path.read_bytes()
    with WalReader(path) as reader:
        blocks = [one for one in reader.blocks() if isinstance(one, Block)]
    return [
        data[one.offset + FIXHEADER_BYTES : one.end] for one in blocks if one.header.kind == "zstd"
    ]


def _unpacked_alone(frames: list[bytes], _: Path) -> None:
    """By the library that the kernel links, called from here with one context and one buffer: a
    check that unpacks cannot take less."""
    library = ctypes.CDLL(ctypes.util.find_library("zstd"))
    library.ZSTD_createDCtx.restype = ctypes.c_void_p
    unpack = library.ZSTD_decompressDCtx
    unpack.restype = ctypes.c_size_t
    unpack.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    unpack.argtypes += [ctypes.c_char_p, ctypes.c_size_t]
    context, room = library.ZSTD_createDCtx(), 1 << 20
    to = ctypes.create_string_buffer(room)
    try:
        for frame in frames:
            assert unpack(context, to, room, frame, len(frame)) <= room
    finally:
        library.ZSTD_freeDCtx(ctypes.c_void_p(context))


def _rows(path: Path) -> None:
    logs = [log for log in scan_directory(path.parent).xlogs if log.path == path]
    assert not any(scan_log(log, OS, lambda _: None).report.damage for log in logs)
