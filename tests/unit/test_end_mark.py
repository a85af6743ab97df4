"""The end mark tells that the newest rows are gone; nothing else about it can be fatal."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest
from support.logs import INSTANCE, ORDERS, SPACE_ROW, insert, transaction, write_log, write_snapshot

import logweir
from logweir.errors import DecodeError, LogweirError, RecoveryRefused
from logweir.recovery import examine, plan, repair
from logweir.recovery.chain import missing_end
from logweir.recovery.faults import SimFileSystem
from logweir.wal.damage import DamageKind
from logweir.wal.directory import scan_directory
from logweir.wal.endmark import END_MARK_NAME, EndMark, EndMarks, load_end_mark
from logweir.wal.filesystem import OS, make_folders
from logweir.wal.vclock import VClock
from logweir.wal.writer import PROGRAM, AppendPoint, WalWriter, WriterOptions

MARK = EndMark(INSTANCE, "00000000000000000423.xlog", 5012, VClock({0: 3, 1: 436}))
FORMAT = [("id", "unsigned"), ("text", "string")]
SMALL = {"wal_max_size": 4096, "checkpoint_interval": 0}


def logs(folder: Path) -> list[Path]:
    """The logs of a folder, the oldest first."""
    return sorted(folder.glob("*.xlog"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of 100 rows in several logs, closed in order."""
    path = tmp_path / "store"
    with logweir.open(path, **SMALL) as log:
        log.create_space("t", format=FORMAT)
        for number in range(100):
            log.insert("t", (number, "x" * 50))
    assert len(logs(path)) > 2
    return path


# --- the file -------------------------------------------------------------------------------------


def test_mark_is_read_as_it_was_written() -> None:
    """All four parts come back."""
    assert EndMark.decode(MARK.encode()) == MARK


def test_mark_that_is_cut_or_has_a_flipped_bit_is_refused() -> None:
    """At every byte, and for every bit: never another mark."""
    data = MARK.encode()
    for at in range(len(data)):
        with pytest.raises(DecodeError):
            EndMark.decode(data[:at])
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            with pytest.raises(DecodeError):
                EndMark.decode(bytes(bad))


def test_mark_never_goes_back_in_one_process(tmp_path: Path) -> None:
    """A snapshot that ends behind a rotation does not take back what that said."""
    marks = EndMarks(tmp_path, INSTANCE, OS)
    marks.put(tmp_path / "b", 9, VClock({1: 20}))
    marks.put(tmp_path / "a", 9, VClock({1: 10}))
    assert load_end_mark(tmp_path, OS) == EndMark(INSTANCE, "b", 9, VClock({1: 20}))


# --- what it tells --------------------------------------------------------------------------------


def test_rows_of_one_replica_make_not_up_for_those_of_another(tmp_path: Path) -> None:
    """Each of them has to reach the mark."""
    index = scan_directory(tmp_path)
    mark = EndMark(INSTANCE, "b.xlog", 9, VClock({1: 5, 2: 3}))
    assert missing_end(mark, index, VClock({1: 5, 2: 3})) is None
    missing = missing_end(mark, index, VClock({1: 90, 2: 2}))
    assert missing is not None
    assert missing.rows_lost == 1


@pytest.mark.parametrize("with_state", [True, False])
def test_newest_log_that_is_gone_is_refused_and_named(folder: Path, with_state: bool) -> None:
    """With a state or without, by `examine` and by `open`: what is lost, and from where."""
    newest = logs(folder)[-1]
    newest.unlink()
    if not with_state:
        shutil.rmtree(folder / "state")
    (damage,) = examine(folder).damage
    assert damage.kind is DamageKind.MISSING_END
    assert newest.name in damage.message
    assert damage.lsn_before == int(newest.stem)
    assert damage.rows_lost == 103 - int(newest.stem)
    with pytest.raises(RecoveryRefused, match=r"the newest rows are gone, \d+ of them") as caught:
        logweir.open(folder)
    assert "force_recovery" in caught.value.hint
    assert END_MARK_NAME in caught.value.hint


@pytest.mark.parametrize("with_state", [True, False])
def test_force_goes_on_behind_the_rows_that_are_gone(folder: Path, with_state: bool) -> None:
    """None of their lsns is used again, and the next opening needs no force."""
    logs(folder)[-1].unlink()
    if not with_state:
        shutil.rmtree(folder / "state")
    with logweir.open(folder, force_recovery=True) as log:
        left = log.count("t")
        assert 0 < left < 100
        assert log.vclock == {1: 103}
        log.insert("t", (1000, "behind"))
    with logweir.open(folder) as log:
        assert log.count("t") == left + 1


def test_newest_log_that_lost_whole_blocks_at_its_end_is_told(folder: Path) -> None:
    """Cut between two blocks a log looks like one that was not closed."""
    path = logs(folder)[-1]
    report = examine(folder).file(path)
    assert report is not None
    data = path.read_bytes()
    last = data.rindex(bytes.fromhex("d5ba0bab"))
    path.write_bytes(data[:last])
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.MISSING_END
    assert damage.rows_lost == 1


def test_repair_does_not_call_the_log_whole_where_the_mark_cannot_be_read(folder: Path) -> None:
    """The newest log is gone, and what would tell is damaged: nobody knows what is lost."""
    logs(folder)[-1].unlink()
    mark = folder / END_MARK_NAME
    told = repair(folder, folder.with_name("told"), dry_run=True)
    assert told.rows_lost
    mark.write_bytes(mark.read_bytes()[:-3])
    done = repair(folder, folder.with_name("untold"), dry_run=True)
    assert done.rows_lost is None
    assert "what is lost is not known" in done.summary
    assert done.to_json()["silent_mark"] == done.silent_mark == examine(folder).silent_mark
    assert "Whether the newest logs are there is not known" in done.silent_mark


def test_rotation_of_a_log_that_is_still_open_is_marked(tmp_path: Path) -> None:
    """What a kill leaves: the mark of the last rotation, and more rows than that."""
    log = logweir.open(tmp_path, **SMALL)
    log.create_space("t", format=FORMAT)
    for number in range(100):
        log.insert("t", (number, "x" * 50))
    log.inner.abandon()
    mark = load_end_mark(tmp_path, OS)
    assert isinstance(mark, EndMark)
    assert mark.file == logs(tmp_path)[-2].name
    with logweir.open(tmp_path) as log:
        assert log.count("t") == 100
    for path in logs(tmp_path)[-2:]:
        path.unlink()
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(RecoveryRefused):
        logweir.open(tmp_path)


def test_snapshot_without_logs_is_marked(tmp_path: Path) -> None:
    """With durability "none" the newest snapshot is all there is."""
    with logweir.open(tmp_path, durability="none") as log:
        log.create_space("t", format=FORMAT)
        log.insert("t", (1, "a"))
        log.snapshot()
        log.insert("t", (2, "b"))
    newest = max(tmp_path.glob("*.snap"))
    mark = load_end_mark(tmp_path, OS)
    assert isinstance(mark, EndMark)
    assert (mark.file, mark.offset) == (newest.name, newest.stat().st_size)
    newest.unlink()
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(RecoveryRefused, match="the newest rows are gone, 1 of them"):
        logweir.open(tmp_path)


def test_snapshot_that_is_there_already_is_marked(tmp_path: Path) -> None:
    """A folder that came without a mark, and has no log to close, has one behind its snapshot."""
    with logweir.open(tmp_path, durability="none") as log:
        log.create_space("t", format=FORMAT)
        newest = log.snapshot()
    (tmp_path / END_MARK_NAME).unlink()
    with logweir.open(tmp_path, durability="none") as log:
        assert log.snapshot() == newest
        log.inner.abandon()
    mark = load_end_mark(tmp_path, OS)
    assert isinstance(mark, EndMark)
    assert (mark.file, mark.offset) == (newest.name, newest.stat().st_size)


def test_folder_of_which_nothing_but_the_mark_is_left_is_no_new_store(folder: Path) -> None:
    """Neither an ordinary opening nor one with force begins anew where rows once were."""
    for path in [*logs(folder), *folder.glob("*.snap")]:
        path.unlink()
    for force in (False, True):
        with pytest.raises(RecoveryRefused):
            logweir.open(folder, force_recovery=force)


def test_repair_records_the_rows_that_the_mark_names(folder: Path, tmp_path: Path) -> None:
    """They are a hole with both ends known, and the new folder opens."""
    newest = logs(folder)[-1]
    newest.unlink()
    done = repair(folder, tmp_path / "new")
    assert [str(hole) for hole in done.holes] == [f"{{1: {int(newest.stem)}}} {{1: 103}}"]
    with logweir.open(tmp_path / "new") as log:
        assert log.vclock == {1: 103}


def test_log_that_is_damaged_at_its_end_is_told_once(tmp_path: Path) -> None:
    """The damage accounts for the rows; the mark says nothing beside it."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    writer = WalWriter(tmp_path, INSTANCE, AppendPoint(VClock()))
    for lsn in range(1, 4):
        writer.write([transaction(lsn, [insert(512, [lsn, "apple"])])], VClock({1: lsn}))
    writer.close()
    (path,) = logs(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"apple")] ^= 1
    path.write_bytes(data)
    assert [one.kind for one in examine(tmp_path).damage] == [DamageKind.CHECKSUM]


# --- what it does not forbid ----------------------------------------------------------------------


def test_copy_without_the_mark_opens(folder: Path) -> None:
    """As after a copy of the logs alone: nobody can know more."""
    logs(folder)[-1].unlink()
    shutil.rmtree(folder / "state")
    (folder / END_MARK_NAME).unlink()
    with logweir.open(folder) as log:
        assert 0 < log.count("t") < 100


def test_older_mark_beside_newer_logs_is_no_matter(folder: Path) -> None:
    """As after a crash behind the mark, or after a Tarantool went on in the folder."""
    old = (folder / END_MARK_NAME).read_bytes()
    with logweir.open(folder) as log:
        log.insert("t", (1000, "newer"))
        log.snapshot()
    (folder / END_MARK_NAME).write_bytes(old)
    for path in logs(folder)[:-1]:  # as its own garbage collection does
        path.unlink()
    assert examine(folder).ok
    with logweir.open(folder) as log:
        assert log.count("t") == 101


def test_renamed_folder_opens(folder: Path) -> None:
    """The mark names no folder."""
    with logweir.open(folder.rename(folder.with_name("other"))) as log:
        assert log.count("t") == 100


@pytest.mark.parametrize("kind", ["damaged", "foreign", "folder"])
def test_mark_that_says_nothing_is_told_and_not_fatal(kind: str, folder: Path) -> None:
    """The report says that the newest logs may be missing; opening goes on."""
    mark = folder / END_MARK_NAME
    if kind == "damaged":
        mark.write_bytes(mark.read_bytes()[:-3])
    elif kind == "foreign":
        foreign = EndMark(uuid.UUID(int=7), "00000000000000009999.xlog", 1, VClock({1: 9999}))
        mark.write_bytes(foreign.encode())
    else:
        mark.unlink()
        mark.mkdir()
    report = examine(folder)
    assert report.ok
    (warning,) = [text for text in report.warnings if END_MARK_NAME in text]
    assert "not known" in warning
    with logweir.open(folder) as log:
        assert log.count("t") == 100
        log.insert("t", (1000, "x"))


def test_disk_that_does_not_take_the_mark_stops_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is whole without it: a warning, and the rows are there."""
    mark = folder / END_MARK_NAME
    mark.unlink()
    mark.mkdir()
    with logweir.open(folder) as log:
        log.insert("t", (1000, "x"))
    assert "was not written" in caplog.text
    with logweir.open(folder) as log:
        assert log.count("t") == 101


def test_no_power_cut_leaves_a_mark_ahead_of_its_log() -> None:
    """Written only behind the sync of what it names, whatever else the disk forgets."""
    for seed in range(60):
        disk = SimFileSystem()
        place = Path("/log")
        make_folders(disk, place)
        options = WriterOptions(max_bytes=300)
        writer = WalWriter(place, INSTANCE, AppendPoint(VClock()), options=options, filesystem=disk)
        for lsn in range(1, 12):
            row = transaction(lsn, [insert(512, [lsn, "x" * 40])])
            writer.write([row], VClock({1: lsn}))
        if seed % 2:
            writer.close()
        after = disk.crash(seed=seed)
        report = examine(place, filesystem=after)
        assert report.end_mark is not None
        assert report.vclock.covers(report.end_mark.vclock), seed


# --- how much is known of an unfinished write -----------------------------------------------------


def tear(folder: Path) -> tuple[Path, int]:
    """Cut the newest log inside its last block, as a kill does. Returns it and its whole bytes."""
    (folder / END_MARK_NAME).unlink(missing_ok=True)
    path = logs(folder)[-1]
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    return path, data.rindex(bytes.fromhex("d5ba0bab"))


@pytest.mark.parametrize(("durability", "acknowledged"), [("fsync", False), ("write", None)])
def test_unfinished_write_was_not_acknowledged_only_where_each_was_synced(
    durability: logweir.store.Durability, acknowledged: bool | None, tmp_path: Path
) -> None:
    """The log's header says how it was written; the report claims no more than that."""
    with logweir.open(tmp_path, durability=durability) as log:
        log.create_space("t", format=FORMAT)
        log.insert("t", (1, "a"))
    path, whole = tear(tmp_path)
    report = examine(tmp_path)
    assert report.ok
    assert report.to_json()["unfinished"] == {
        "file": path.name,
        "offset": whole,
        "size": path.stat().st_size - whole,
        "acknowledged": acknowledged,
    }


def test_weaker_durability_does_not_go_on_in_a_log_that_promises_more(tmp_path: Path) -> None:
    """Its header would say of the new rows what is not so."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", format=FORMAT)
    with logweir.open(tmp_path, durability="write") as log:
        log.insert("t", (1, "a"))
    assert [log.meta.is_synced for log in examine(tmp_path).xlogs] == [True, False]
    assert plan(examine(tmp_path)).warnings == ()
    with logweir.open(tmp_path) as log:
        log.insert("t", (2, "b"))
        assert log.count("t") == 2
    assert [log.meta.is_synced for log in examine(tmp_path).xlogs] == [True, False]


def test_empty_log_that_promises_more_is_replaced(tmp_path: Path) -> None:
    """Without a row in it its name is what the next log needs."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", format=FORMAT)
        before = log.vclock
    synced = WriterOptions(is_synced=True)
    point = plan(examine(tmp_path)).append_point
    instance = examine(tmp_path).instance
    assert instance is not None
    writer = WalWriter(tmp_path, instance, point, options=synced)
    writer.rotate()
    writer.begin()
    writer.abandon()
    with logweir.open(tmp_path, durability="write") as log:
        log.insert("t", (1, "a"))
    report = examine(tmp_path)
    assert report.ok
    assert [log.vclock for log in report.xlogs] == [VClock(), before]
    assert not report.xlogs[-1].meta.is_synced


def test_log_of_another_program_says_nothing_of_its_unfinished_write(tmp_path: Path) -> None:
    """Tarantool answers before the disk has the row, unless it is told otherwise."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, ORDERS)
    path = logs(tmp_path)[-1]
    data = path.read_bytes()
    path.write_bytes(data.replace(f"{PROGRAM} (fsync)".encode(), b"2.6.0-0-g47aa4e01e"))
    _, whole = tear(tmp_path)
    report = examine(tmp_path)
    assert report.ok
    assert report.unfinished is not None
    assert report.unfinished.tail is not None
    assert f"whole up to byte {whole}" in report.unfinished.tail.hint
    assert not report.unfinished.is_tail_known


def test_every_reader_that_meets_the_mark_alone_raises_ours(folder: Path) -> None:
    """An error of the tree, also for `create=False`."""
    for path in [*logs(folder), *folder.glob("*.snap")]:
        path.unlink()
    with pytest.raises(LogweirError):
        logweir.open(folder, create=False)
