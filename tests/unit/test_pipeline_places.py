"""Where the pipeline reads from and writes to: URLs, mixed folders, a Tank broker's folder."""

from __future__ import annotations

import errno
import gc
import io
import json
import shutil
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from samples import DATA, damaged, sample
from support.folding import look_here, state_here
from support.logs import insert, write_log

import logweir
from logweir import pipeline
from logweir.errors import ChainGap, ConfigError, CorruptBlock, CorruptFile, WalError
from logweir.limits import META_BYTES, PIPELINE_WINDOW_BYTES
from logweir.pipeline.jobs import commits, compact
from logweir.pipeline.jobs.delta import DeltaPlace
from logweir.pipeline.jobs.folding import prepare
from logweir.pipeline.jobs.stages import sweep
from logweir.pipeline.options import ScanOptions, SinkOptions, target_folder
from logweir.pipeline.plan import plan
from logweir.pipeline.reading import scan
from logweir.pipeline.spoolplace import SpoolPlace
from logweir.pipeline.storage import UrlFileSystem, open_storage
from logweir.pipeline.tail import Tail
from logweir.pipeline.targets import open_target
from logweir.recovery import examine
from logweir.recovery.faults import SimFileSystem
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OsFileSystem, ReadFile, make_folders
from logweir.wal.reader import Block, WalReader, read_meta
from logweir.wal.vclock import VClock


@pytest.fixture
def in_memory() -> Iterator[Callable[[Path], str]]:
    """Copies a folder into fsspec's memory; returns its URL."""
    import fsspec

    memory = fsspec.filesystem("memory")
    made: list[str] = []

    def copy(folder: Path) -> str:
        name = f"/logweir-{uuid.uuid4().hex}"
        made.append(name)
        for path in folder.iterdir():
            if path.is_file():
                memory.pipe(f"{name}/{path.name}", path.read_bytes())
        return f"memory:/{name}"

    yield copy
    for name in made:
        memory.rm(name, recursive=True)


@pytest.fixture
def remembered() -> Iterator[str]:
    """The URL of a place in fsspec's memory by a file system that keeps its listings, as many do:
    each `connect` has one of its own, as each process has."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Remembering(MemoryFileSystem):  # type: ignore[misc]
        protocol = "remembered"
        cachable = False

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            path = self._strip_protocol(path)
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True)
            found = self.dircache[path]
            return found if detail else [one["name"] for one in found]

        def find(self, path: str, **options: Any) -> Any:
            return fsspec.AbstractFileSystem.find(self, path, **options)

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.clear()

    fsspec.register_implementation("remembered", Remembering, clobber=True)
    name = f"logweir-{uuid.uuid4().hex}"
    yield f"remembered://{name}"
    for path in [one for one in MemoryFileSystem.store if name in one]:
        del MemoryFileSystem.store[path]
    MemoryFileSystem.pseudo_dirs[:] = [
        one for one in MemoryFileSystem.pseudo_dirs if name not in one
    ]


def lsns(batches: Any) -> list[int]:
    """Of all rows."""
    return [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]


# --- listings that are kept -----------------------------------------------------------------------


def test_an_owner_of_a_spool_sees_a_claim_behind_listings_that_are_kept(
    tmp_path: Path, remembered: str
) -> None:
    """It acknowledges nothing then; and who reads sees what the next one puts."""
    log = f"{7:020d}.xlog"
    first = SpoolPlace(remembered)
    (tmp_path / "first").mkdir()
    first.fetch(tmp_path / "first")
    first.put(log, 0, 3, [b"abc"])
    filesystem, folder = open_storage(f"spool+{remembered}")
    file = filesystem.open_read(folder / log)
    assert file.read(9, 0) == b"abc"
    second = SpoolPlace(remembered)
    (tmp_path / "second").mkdir()
    second.fetch(tmp_path / "second")
    assert (tmp_path / "second" / log).read_bytes() == b"abc"
    second.put(log, 3, 5, [b"de"])
    with pytest.raises(OSError, match="has taken the spool over"):
        first.put(log, 3, 6, [b"XYZ"])
    assert (file.size(), file.read(9, 0)) == (5, b"abcde")
    file.close()


def test_new_logs_are_seen_behind_listings_that_are_kept(tmp_path: Path, remembered: str) -> None:
    """By who reads a folder again and again."""
    import fsspec

    memory = fsspec.filesystem("memory")
    filesystem, folder = open_storage(remembered)
    for names in (["1.xlog"], ["1.xlog", "2.xlog"]):
        memory.pipe(f"{folder.as_posix()}/{names[-1]}", b"x")
        assert filesystem.list_directory(folder) == names
        assert filesystem.has_name(folder / names[-1])


# --- reading by URL -------------------------------------------------------------------------------


def test_jobs_fold_a_folder_behind_a_url(in_memory: Callable[[Path], str]) -> None:
    """The state of a folder in another file system is that of the same folder here."""
    folder = sample("04-crashed").folder
    local = prepare(look_here, [folder])
    behind = prepare(look_here, [in_memory(folder)])
    assert state_here(behind) == state_here(local)
    assert behind.vclock == local.vclock


@pytest.mark.parametrize("name", ["v-gap", "c-flipped-payload-byte"])
def test_a_check_by_url_reports_the_same(in_memory: Callable[[Path], str], name: str) -> None:
    """What is damaged, and where, but for the place's name."""
    folder = damaged(name).folder
    filesystem, path = open_storage(in_memory(folder))
    found = [(one.kind, one.offset) for one in examine(path, filesystem=filesystem).damage]
    assert found == [(one.kind, one.offset) for one in examine(folder).damage]
    assert found


def test_a_folder_behind_a_url_is_followed(
    in_memory: Callable[[Path], str], tmp_path: Path
) -> None:
    """A stream's steps over a log in another file system hold every row once."""
    with logweir.open(tmp_path / "log") as log:
        log.create_space("t", format=[("id", "unsigned")])
        for number in range(20):
            log.insert("t", (number,))
    options = ScanOptions.parse({"path": in_memory(tmp_path / "log")})
    tail = Tail(options)
    start, end = tail.oldest(), tail.advance(tail.oldest())
    splits = tail.splits(start, end)
    tail.close()
    found = lsns(batch for split in splits for batch in scan(split, options))
    assert found == list(range(1, end.lsn(1) + 1))
    assert len(found) > 20


def test_a_part_of_an_arrow_file_system_is_read(tmp_path: Path) -> None:
    """A `SubTreeFileSystem` over a local one lists, indexes and reads as the folder itself."""
    from pyarrow import fs

    shutil.copytree(sample("02-spaces").folder, tmp_path / "deep" / "logs")
    system = UrlFileSystem(fs.SubTreeFileSystem(str(tmp_path / "deep"), fs.LocalFileSystem()))
    index = scan_directory(Path("logs"), system)
    local = scan_directory(tmp_path / "deep" / "logs")
    assert [file.path.name for file in index.files] == [file.path.name for file in local.files]
    name = max(index.xlogs, key=lambda log: local.path.joinpath(log.path.name).stat().st_size).path
    with WalReader(name, filesystem=system) as far:
        found = [bytes(one.columns.data) for one in far.blocks() if isinstance(one, Block)]
    with WalReader(local.path / name.name) as near:
        wanted = [bytes(one.columns.data) for one in near.blocks() if isinstance(one, Block)]
    assert found == wanted
    assert found


def test_headers_of_a_store_of_objects_are_read_several_at_a_time(tmp_path: Path) -> None:
    """Where each answer takes its time: four wait for one another here; all are planned, in order.
    A file that cannot be opened is told of, as by a disk."""
    from pyarrow import fs

    folder = tmp_path / "log"
    with logweir.open(folder, wal_max_size=2) as log:  # each change is in a file of its own
        for number in range(4):
            log.create_space(f"t{number}")
    together = threading.Barrier(4, timeout=20)
    broken: set[str] = set()

    class Slow(UrlFileSystem):
        def open_read(self, path: Path) -> ReadFile:
            if path.suffix == ".xlog":
                together.wait()
            if path.name in broken:
                raise OSError(errno.EIO, "the store is away", str(path))
            return super().open_read(path)

    near = scan_directory(folder)
    assert len(near.xlogs) == 4
    slow = Slow(fs.LocalFileSystem())
    assert scan_directory(folder, slow).files == near.files
    broken.add(near.xlogs[2].path.name)
    far = scan_directory(folder, slow)
    assert [one.path for one in far.xlogs] == [
        one.path for one in near.xlogs if one.path.name not in broken
    ]
    assert [Path(one.file).name for one in far.damage] == sorted(broken)


def test_a_plan_opens_each_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Header, end, and whether a space is synchronous, in one opening, and of a small file in one
    reading; the newest snapshot, which is searched for spaces by itself, in two openings. Nothing
    of it is looked at for garbage, and the collector is as before."""
    with logweir.open(tmp_path, wal_max_size=2) as log:
        for number in range(9):
            log.create_space(f"t{number}")
    opened: Counter[str] = Counter()
    read: Counter[str] = Counter()
    collects: list[bool] = []
    reading = OsFileSystem.open_read

    def counting(self: OsFileSystem, path: Path) -> ReadFile:
        opened[path.name] += 1
        file = reading(self, path)
        read[path.name] += 0
        asked = file.read

        def reads(count: int, offset: int) -> bytes:
            read[path.name] += 1
            collects.append(gc.isenabled())
            return asked(count, offset)

        monkeypatch.setattr(file, "read", reads)
        return file

    monkeypatch.setattr(OsFileSystem, "open_read", counting)
    assert gc.isenabled()
    planned = plan(ScanOptions(paths=(str(tmp_path),)))
    assert gc.isenabled()
    assert not any(collects)
    logs = [Path(one.path).name for one in planned.sources if one.kind == "XLOG"]
    assert len(logs) >= 9
    assert {opened[name] for name in logs} == {1}
    assert max((tmp_path / name).stat().st_size for name in logs) <= META_BYTES
    assert {read[name] for name in logs} == {1}


def test_the_collector_is_there_again_behind_the_last_of_plans_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two threads, of which the first one's ends first; where it was not there it is not then,
    nor does a plan that fails keep it away."""
    write_log(tmp_path, [[insert(512, [1])]])
    options = ScanOptions(paths=(str(tmp_path),))
    first_is_done, second_is_in = threading.Event(), threading.Event()
    collects: list[bool] = []
    reading = OsFileSystem.open_read

    def waiting(self: OsFileSystem, path: Path) -> ReadFile:
        if threading.current_thread() is not second:
            if not second_is_in.is_set():
                second.start()
                assert second_is_in.wait(20)
        elif not second_is_in.is_set():
            second_is_in.set()
            assert first_is_done.wait(20)
            collects.append(gc.isenabled())
        return reading(self, path)

    second = threading.Thread(target=plan, args=(options,))
    with monkeypatch.context() as patched:
        patched.setattr(OsFileSystem, "open_read", waiting)
        plan(options)
        first_is_done.set()
        second.join()
    assert collects == [False]
    assert gc.isenabled()
    with pytest.raises(WalError):
        plan(ScanOptions(paths=(str(tmp_path / "none"),)))
    assert gc.isenabled()
    gc.disable()
    try:
        plan(options)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_of_large_blocks_a_plan_reads_the_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they begin, small ones between them, too; the cuts are those of reading all."""
    random = Random(1)
    sizes = [200_000] * 60 + [10] * 2000 + [200_000, 10] * 10
    rows = [insert(512, [n, random.randbytes(size)]) for n, size in enumerate(sizes)]
    write_log(tmp_path, [[row] for row in rows])
    (log,) = tmp_path.glob("*.xlog")
    options = ScanOptions(paths=(str(tmp_path),), split_bytes=1 << 16, settled=False)
    counted = 0
    reading = OsFileSystem.open_read

    def open_read(self: OsFileSystem, path: Path) -> ReadFile:
        file = reading(self, path)
        asked = file.read

        def read(count: int, offset: int) -> bytes:
            nonlocal counted
            counted += count
            return asked(count, offset)

        monkeypatch.setattr(file, "read", read)
        return file

    monkeypatch.setattr(OsFileSystem, "open_read", open_read)
    found = plan(options)
    assert counted < log.stat().st_size / 4
    monkeypatch.setattr("logweir.pipeline.plan._HEADS_BYTES", PIPELINE_WINDOW_BYTES)
    counted = 0
    assert plan(options) == found
    assert counted > log.stat().st_size / 2
    assert len(found.splits) > 20


# --- writing --------------------------------------------------------------------------------------


def test_targets_that_are_no_folders_are_refused_by_name() -> None:
    """A sink and the jobs that write no URL name it, before anything is read."""
    spark: Any = None
    for write in (
        lambda: SinkOptions.parse({"path": "s3://bucket/log"}),
        lambda: pipeline.import_frame(spark, "s3://bucket/log", "t"),
    ):
        with pytest.raises(ConfigError, match=r"'s3://bucket/log' is no local folder.*archive"):
            write()


def test_a_file_url_is_a_local_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be written, as the path it holds; a relative path is one from the root."""
    assert target_folder("to", (tmp_path / "a b").as_uri()) == tmp_path / "a b"
    assert SinkOptions.parse({"path": (tmp_path / "log").as_uri()}).path == str(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    assert target_folder("to", "log") == tmp_path / "log"


# --- folders --------------------------------------------------------------------------------------


def test_mixed_folders_are_read_recursively_each_by_itself(tmp_path: Path) -> None:
    """Folders of two instances under one, with files of other kinds beside: every row of each,
    and no chain is asked for between them. The same two in one folder are refused."""
    names = {"one": "02-spaces", "two/deep": "04-crashed"}
    for place, name in names.items():
        shutil.copytree(sample(name).folder, tmp_path / "all" / place)
    (tmp_path / "all" / "notes.txt").write_text("no log")
    (tmp_path / "all" / "empty").mkdir()
    (tmp_path / "all" / ".hidden").mkdir()
    shutil.copy(next((tmp_path / "all" / "one").glob("*.xlog")), tmp_path / "all" / ".hidden")
    wanted = [n for name in sorted(names.values()) for n in lsns(every(sample(name).folder))]
    found = lsns(every(tmp_path / "all", recursive=True))
    assert sorted(found) == sorted(wanted)
    assert len({source.path for source in plan(options(tmp_path / "all")).sources}) == sum(
        len(list(sample(name).folder.glob("*.[xs]n*p")))
        + len(list(sample(name).folder.glob("*.xlog")))
        for name in names.values()
    )
    mixed = tmp_path / "mixed"
    shutil.copytree(sample("02-spaces").folder, mixed)
    for path in sample("04-crashed").folder.glob("*.xlog"):
        shutil.copy(path, mixed / f"{int(path.stem) + 1000:020d}.xlog")
    with pytest.raises(CorruptFile, match=r"\.xlog"):
        list(every(mixed))


def options(folder: Path) -> ScanOptions:
    """A recursive scan."""
    return ScanOptions.parse({"path": str(folder), "recursive": "true"})


def every(folder: Path, **given: Any) -> Iterator[Any]:
    """All batches."""
    return pipeline.batches(folder, **given)


def test_a_missing_log_shows_in_the_headers(tmp_path: Path) -> None:
    """A log whose header names another one before it than is there: a quick check says so."""
    with logweir.open(tmp_path / "log", wal_max_size=1000) as log:
        log.create_space("t", format=[("id", "unsigned")])
        for number in range(60):
            log.insert("t", (number,))
    logs = sorted((tmp_path / "log").glob("*.xlog"))
    assert len(logs) > 3
    assert not any(one.gap for one in plan(options(tmp_path / "log")).sources)
    logs[2].unlink()
    (gap,) = [one for one in plan(options(tmp_path / "log")).sources if one.gap]
    assert Path(gap.path).name == logs[3].name
    assert "a log is missing before this one" in gap.gap


def test_a_log_that_is_missing_behind_the_newest_snapshot_is_a_gap(tmp_path: Path) -> None:
    """The oldest one that is left follows none: rows between the snapshot and it are not there,
    unless reading begins behind them, or another folder of the store that is read has the log."""
    with logweir.open(tmp_path / "log", wal_max_size=1000) as log:
        log.create_space("t", format=[("id", "unsigned")])
        for number in range(60):
            log.insert("t", (number,))
    oldest, following, *_ = sorted((tmp_path / "log").glob("*.xlog"))
    whole = sum(batch.num_rows for batch in every(tmp_path / "log"))
    (beside := tmp_path / "beside").mkdir()
    oldest.rename(beside / oldest.name)
    for given in ({}, {"kinds": "xlog"}, {"kinds": "xlog", "vclock_from": {1: 1}}):
        with pytest.raises(ChainGap, match="behind the snapshot at") as caught:
            list(every(tmp_path / "log", **given))
        assert caught.value.path == str(following)
    told = [
        text
        for batch in every(tmp_path / "log", on_error="report", columns=["damage"])
        for text in batch["damage"].to_pylist()
        if text
    ]
    assert [text[:4] for text in told] == ["gap:"]
    after = dict(read_meta(following).vclock)
    own = {"kinds": "xlog", "replica_id": 1}
    for given in ({"kinds": "xlog", "vclock_from": after}, own | {"lsn_from": after[1] + 1}):
        assert sum(batch.num_rows for batch in every(tmp_path / "log", **given)) == 63 - after[1]
    with pytest.raises(ChainGap, match="behind the snapshot at"):
        list(every(tmp_path / "log", **own, lsn_from=after[1]))
    both = pipeline.batches(tmp_path / "log", beside)
    assert sum(batch.num_rows for batch in both) == whole
    for snap in (tmp_path / "log").glob("*.snap"):  # as where it has a folder of its own
        snap.rename(beside / snap.name)
    (beside / oldest.name).rename(tmp_path / oldest.name)
    with pytest.raises(ChainGap, match="behind the snapshot at"):
        list(pipeline.batches(tmp_path / "log", beside))


# --- a Tank broker's folder -----------------------------------------------------------------------


def test_a_tank_folder_is_imported(tmp_path: Path) -> None:
    """`logweir pipeline import --format tank` takes every topic and message number, without
    starting Spark; done again it takes nothing twice."""
    folder = DATA.parent / "tank" / "data"
    program = "from logweir.tools.cli.main import run; run()"
    words = ["--json", "pipeline", "import", str(folder), "--format", "tank", "--to", "store"]
    runs = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stderr
        runs.append({(one["topic"], one["partition"]): one for one in json.loads(ran.stdout)})
    ends = {key: (one["first"], one["last"], one["messages"]) for key, one in runs[0].items()}
    assert ends == {
        ("events", 0): ("1", "505", 48),
        ("events", 1): ("1", "7", 7),
        ("logs", 0): ("1", "48", 48),
        ("logs", 1): ("1", "11", 11),
        ("orders", 0): ("1", "90000", 21),
    }
    assert {one["messages"] for one in runs[1].values()} == {0}
    with logweir.open(tmp_path / "store", create=False) as log:
        kept = {name: list(log.select(name)) for name in ("events", "logs", "orders")}
    for (name, partition), (first, last, _) in ends.items():
        bundles = [row for row in kept[name] if row[0] == partition]
        assert (bundles[0][1], bundles[-1][2]) == (int(first), int(last))
        assert len(bundles) == runs[0][name, partition]["bundles"]


def test_state_of_synchronous_rows_is_that_of_one_folder(tmp_path: Path) -> None:
    """Which of them hold is decided behind them; where that may be in another folder it is
    refused, but for the state at a snapshot."""
    with logweir.open(tmp_path / "d") as log:
        log.insert("_space", (600, 1, "s", "memtx", 0, {"is_sync": True}, []))
        log.insert("_index", (600, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]))
        log.insert("s", (1,))
    assert prepare(look_here, [tmp_path / "d"]).vclock == VClock({1: 4})
    (tmp_path / "older").mkdir()
    (log_file,) = (tmp_path / "d").glob("*.xlog")
    with logweir.open(tmp_path / "d") as log:
        newest = log.snapshot()
        log.insert("s", (2,))
    newest.unlink()
    shutil.move(log_file, tmp_path / "older")
    with pytest.raises(WalError, match="synchronous spaces"):
        prepare(look_here, [tmp_path / "older", tmp_path / "d"])
    shutil.move(tmp_path / "older" / log_file.name, log_file)
    with logweir.open(tmp_path / "d") as log:
        log.snapshot()
    assert prepare(look_here, [tmp_path / "d"]).vclock == VClock({1: 6})


def test_a_mirror_begins_where_nothing_else_is(tmp_path: Path) -> None:
    """A folder that is not there, or has what a killed beginning left; not one with more."""
    place = DeltaPlace.of("to", tmp_path / "to")
    place.check_free()
    left = place.writing(pa.schema({"a": pa.int64()}))
    rows = pa.record_batch({"a": [1, 2]})
    (told,) = left(iter([rows]))
    assert [path.name for path in (tmp_path / "to").iterdir()] == told.column("name").to_pylist()
    place.check_free()
    (tmp_path / "to" / "notes.parquet").touch()
    with pytest.raises(ConfigError, match="is there and no Delta table"):
        place.check_free()


def test_a_task_that_fails_leaves_no_file_of_a_table(tmp_path: Path) -> None:
    """Rows that cannot be made, after some that were written."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1, 2]})
        assert len(list((tmp_path / "to").iterdir())) == 1  # no batch waits for all others
        yield pa.record_batch({"a": [3]})
        raise CorruptBlock("block checksum is 1.", path="1.xlog", offset=97)

    put = DeltaPlace.of("to", tmp_path / "to").writing(pa.schema({"a": pa.int64()}))
    with pytest.raises(CorruptBlock):
        list(put(rows()))
    assert list((tmp_path / "to").iterdir()) == []


def test_what_a_killed_driver_left_and_nobody_may_remove_stops_no_job(tmp_path: Path) -> None:
    """As another user's does; what may be removed goes."""

    class Guarded(SimFileSystem):
        def remove_tree(self, path: Path) -> None:
            if path.name.endswith("-aa"):
                raise PermissionError(errno.EACCES, "not yours", str(path))
            super().remove_tree(path)

    disk = Guarded()
    names = [f"{compact.STAGE}elsewhere-1-1700000000-{end}" for end in ("aa", "bb")]
    for name in names:
        make_folders(disk, tmp_path / name)
    sweep(disk, tmp_path, compact.STAGE)
    assert disk.list_directory(tmp_path) == names[:1]


def test_a_place_that_does_not_answer_is_named() -> None:
    """Where the file system of the URL connects at once, as that of FTP."""
    with pytest.raises(WalError, match=r"ftp://127\.0\.0\.1:1/backup") as caught:
        open_target("to", "ftp://127.0.0.1:1/backup")
    assert caught.value.hint


def test_lines_of_json_are_read_across_windows_and_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file without ends of lines is none of JSON lines, and is not taken into memory whole."""
    monkeypatch.setattr(commits, "READ_WINDOW_BYTES", 4)
    monkeypatch.setattr(commits, "_LINE_BYTES", 16)
    found = list(commits._read_lines(io.BytesIO(b'{"a":1}\n\n{"b":22}\n{}'), "f"))
    assert [line for lines in found for line in lines] == ['{"a":1}', "", '{"b":22}', "{}"]
    with pytest.raises(CorruptFile, match="longer than 16 bytes") as caught:
        list(commits._read_lines(io.BytesIO(b"x" * 1000), "s3://b/f.json"))
    assert caught.value.path == "s3://b/f.json"
