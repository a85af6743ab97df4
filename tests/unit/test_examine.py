"""What an examination finds in folders made for the purpose."""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from samples import GOOD, sample
from support.logs import INSTANCE, SPACE_ROW, insert, transaction, write_snapshot

from logweir.errors import RecoveryRefused, WalError
from logweir.limits import DAMAGED_PLACES
from logweir.recovery import LogPosition, examine, plan, replay
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.wal.block import EOF_MARKER, MAGIC_PLAIN, encode_block
from logweir.wal.damage import DamageKind, FileEnd
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.filesystem import OS, make_folders
from logweir.wal.meta import Meta
from logweir.wal.resync import Unsynced
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter
from logweir.wal.xrow import Row, RowType, encode_row

FOREIGN = "2.6.0-0-g47aa4e01e"


def name(signature: int, kind: str = "xlog") -> str:
    """The name of a file."""
    return f"{signature:020d}.{kind}"


def write_raw(
    folder: Path,
    start: VClock,
    blocks: list[bytes],
    *,
    program: str = FOREIGN,
    prev: VClock | None = None,
    tail: bytes = EOF_MARKER,
) -> Path:
    """A log as some other program could have written it. `blocks`: rows of each."""
    meta = Meta("XLOG", start, INSTANCE, prev, program)
    data = meta.encode() + b"".join(b"".join(encode_block(rows)) for rows in blocks) + tail
    path = folder / name(start.signature)
    path.write_bytes(data)
    return path


def singles(first: int, last: int) -> list[bytes]:
    """Blocks of one row each, lsns `first` … `last`."""
    return [transaction(lsn, [insert(512, [lsn])]) for lsn in range(first, last + 1)]


def flip(path: Path, offset: int) -> None:
    """Invert one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Snapshot at 0, logs with rows 1-10, 11-20 and 21-30, closed in order, of another program."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    for first in (1, 11, 21):
        prev = None if first == 1 else VClock({1: first - 11})
        write_raw(tmp_path, VClock({1: first - 1}), singles(first, first + 9), prev=prev)
    return tmp_path


def lsns(folder: Path, *, force: bool = False) -> list[int]:
    """Lsns of the rows that opening would apply."""
    return [
        batch.block.columns.lsn[i]
        for batch in replay(plan(examine(folder), force=force))
        for i in range(batch.first, batch.last)
    ]


@pytest.mark.parametrize("which", GOOD)
def test_whole_samples_are_whole_and_counted_right(which: str) -> None:
    """Vclock, rows, blocks and endings agree with what the real program said."""
    one = sample(which)
    report = examine(one.folder)
    assert report.ok
    assert report.blocking == ()
    assert report.lost == ""
    assert report.vclock == one.vclock
    assert len(report.files) == len(one.files)
    for expected in one.files:
        file = report.file(expected.path)
        assert file is not None
        assert (file.rows, file.blocks) == (len(expected.rows), len(expected.blocks))
        assert file.end is (FileEnd.CLEAN if expected.eof else FileEnd.UNCLOSED)
        if expected.rows and file.kind == "xlog":
            assert file.first_timestamp == expected.rows[0]["timestamp"]
            assert file.last_timestamp == expected.rows[-1]["timestamp"]
            commits = sum(row.get("commit", "tsn" not in row) for row in expected.rows)
            assert file.transactions == commits


def test_an_empty_folder_is_ok_and_empty(tmp_path: Path) -> None:
    """Nothing there is nothing lost: a fresh store may begin."""
    report = examine(tmp_path)
    assert report.ok
    assert report.is_empty
    assert plan(report).snapshot is None
    assert report.append_point == AppendPoint(VClock())


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error names the path and says what to do."""
    with pytest.raises(WalError, match="no such file") as caught:
        examine(tmp_path / "absent")
    assert caught.value.hint


def test_other_names_are_left_alone(folder: Path) -> None:
    """What is not named like a log is listed, not read."""
    (folder / "state").mkdir()
    (folder / "00000000000000000031.xlog.inprogress").write_bytes(b"XLOG")
    (folder / "notes.txt").write_text("hello")
    report = examine(folder)
    assert report.ok
    assert set(report.others) == {"state", "00000000000000000031.xlog.inprogress", "notes.txt"}


# --- borders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_an_older_file_that_lost_rows_at_its_end_is_a_gap(folder: Path, number: int) -> None:
    """Also where it was closed in order: the vclock reached is compared, not the headers."""
    prev = None if number == 0 else VClock({1: 0})
    path = write_raw(
        folder, VClock({1: number * 10}), singles(number * 10 + 1, number * 10 + 7), prev=prev
    )
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.GAP
    assert damage.file == str(path)
    assert (damage.lsn_before, damage.lsn_after) == (number * 10 + 7, number * 10 + 11)
    assert damage.rows_lost == 3
    with pytest.raises(RecoveryRefused, match="3 rows"):
        plan(examine(folder))


def test_an_older_file_that_was_not_closed_is_a_warning(folder: Path) -> None:
    """Tarantool leaves it so after a crash; no row is missing."""
    path = folder / name(10)
    path.write_bytes(path.read_bytes()[:-4])
    report = examine(folder)
    assert report.ok
    assert any("was not closed" in text for text in report.warnings)


def test_an_older_file_with_a_torn_tail_and_all_rows_is_a_warning(folder: Path) -> None:
    """What was cut off was never acknowledged: the next file begins where the rows end."""
    path = folder / name(10)
    path.write_bytes(path.read_bytes()[:-4] + b"".join(encode_block(singles(21, 21)[0]))[:30])
    report = examine(folder)
    assert report.ok
    assert any("unfinished write" in text for text in report.warnings)
    assert lsns(folder) == list(range(1, 31))


def test_zeros_at_the_end_are_an_ending_only_in_our_own_logs(tmp_path: Path) -> None:
    """A real Tarantool refuses them, and so do we in its files."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    for program, kind in (("logweir 0.1.0", None), (FOREIGN, DamageKind.ZERO_TAIL)):
        path = write_raw(tmp_path, VClock(), singles(1, 5), program=program, tail=bytes(100))
        report = examine(tmp_path)
        assert [damage.kind for damage in report.damage] == ([kind] if kind else [])
        point = report.append_point
        assert point.path == (None if kind else path)
        assert point.vclock == {1: 5}


def test_a_previous_file_that_is_not_there_is_a_gap_even_without_lost_rows(folder: Path) -> None:
    """The header names the log before; Tarantool refuses where another one is found."""
    write_raw(folder, VClock({1: 20}), singles(21, 30), prev=VClock({1: 15}))
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.GAP
    assert damage.rows_lost == 0


def test_a_file_that_overlaps_the_next_is_doubted(folder: Path) -> None:
    """Two histories: refused; with force the newer file's rows are taken from its begin on."""
    write_raw(folder, VClock({1: 10}), singles(11, 24), prev=VClock())
    report = examine(folder)
    (damage,) = report.blocking
    assert damage.kind is DamageKind.ORDER
    assert lsns(folder, force=True) == list(range(1, 31))
    batches = list(replay(plan(report, force=True)))
    assert {batch.block.path for batch in batches if batch.first < batch.last} >= {
        str(folder / name(20))
    }
    newer = [b for b in batches if b.block.path == str(folder / name(20))]
    assert newer[0].block.columns.lsn[newer[0].first] == 21


@pytest.mark.parametrize("last", [20, 21, 24])
def test_border_of_overlapping_logs_inside_a_block_takes_each_row_once(
    folder: Path, last: int
) -> None:
    """With force the older log gives its rows up to the next one's begin, the last one too."""
    blocks = [*singles(11, 15), b"".join(singles(16, last))]
    write_raw(folder, VClock({1: 10}), blocks, prev=VClock())
    assert lsns(folder, force=True) == list(range(1, 31))
    reached = [batch.vclock.lsn(1) for batch in replay(plan(examine(folder), force=True))]
    assert 20 in reached


def test_a_log_behind_the_snapshot_only_is_a_gap(folder: Path) -> None:
    """Gap rule: the first log to read must not begin behind the snapshot."""
    (folder / name(0)).unlink()
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.GAP
    assert (damage.offset, damage.rows_lost) == (0, 10)
    assert lsns(folder, force=True) == list(range(11, 31))


# --- rows -----------------------------------------------------------------------------------------


def test_an_lsn_twice_in_the_newest_log_is_never_forced(folder: Path) -> None:
    """As in Tarantool: nobody can say which of the two rows counts."""
    write_raw(folder, VClock({1: 20}), [*singles(21, 25), *singles(24, 30)], prev=VClock({1: 10}))
    report = examine(folder)
    assert {damage.kind for damage in report.blocking} == {DamageKind.ORDER}
    with pytest.raises(RecoveryRefused, match="even with force"):
        plan(report, force=True)


def test_an_lsn_twice_in_an_older_log_is_skipped_with_force(folder: Path) -> None:
    """The first one counts, as in Tarantool's replay."""
    write_raw(folder, VClock({1: 10}), [*singles(11, 15), *singles(14, 20)], prev=VClock())
    with pytest.raises(RecoveryRefused, match="used twice"):
        plan(examine(folder))
    assert lsns(folder, force=True) == list(range(1, 31))


def test_a_jump_of_lsns_is_a_warning(folder: Path) -> None:
    """A replica logs what it was sent, so gaps inside a file are legal; they are named."""
    write_raw(
        folder,
        VClock({1: 20}),
        [*singles(21, 23), *singles(27, 28), *singles(30, 30)],
        prev=VClock({1: 10}),
    )
    report = examine(folder)
    assert report.ok
    assert report.vclock == {1: 30}
    (text,) = report.warnings
    assert "3 are not there" in text
    assert "1 more such places" in text


@pytest.mark.parametrize(
    "rows",
    [
        encode_row(Row(RowType.NOP, replica_id=32, lsn=21)),
        encode_row(Row(RowType.NOP, replica_id=1, lsn=2**63)),
        b"",
        transaction(21, [insert(512, [1]), insert(512, [2])])[:-30],
    ],
    ids=["replica 32", "lsn 2^63", "no rows", "cut row"],
)
def test_a_block_whose_checksum_matches_but_whose_rows_do_not_make_sense_is_damage(
    folder: Path, rows: bytes
) -> None:
    """Never an exception of Python's, never taken for rows."""
    write_raw(folder, VClock({1: 20}), [rows, *singles(22, 30)], prev=VClock({1: 10}))
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.ROWS
    assert damage.rows_lost == 1
    assert lsns(folder, force=True) == [*range(1, 21), *range(22, 31)]


def test_very_many_damaged_places_are_counted_not_kept(folder: Path) -> None:
    """A report stays small whatever a file holds."""
    count = DAMAGED_PLACES + 500
    blocks = [b"".join(encode_block(rows)) for rows in singles(21, 20 + 2 * count)]
    bad = [
        block if i % 2 else block[:-1] + bytes((block[-1] ^ 1,)) for i, block in enumerate(blocks)
    ]
    meta = Meta("XLOG", VClock({1: 20}), INSTANCE, VClock({1: 10}), FOREIGN)
    (folder / name(20)).write_bytes(meta.encode() + b"".join(bad) + EOF_MARKER)
    report = examine(folder)
    assert len(report.damage) == DAMAGED_PLACES
    assert "500 more damaged places" in report.damage[-1].message
    assert len(lsns(folder, force=True)) == 20 + count


# --- snapshots ------------------------------------------------------------------------------------


def test_damage_before_the_snapshot_is_reported_but_does_not_block(folder: Path) -> None:
    """The snapshot holds its rows; a follower from further back would miss them."""
    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 25}))
    for path in (folder / name(0), folder / name(20)):
        flip(path, path.read_bytes().index(MAGIC_PLAIN) + 25)
    report = examine(folder)
    assert not report.ok
    assert len(report.damage) == 2
    assert report.blocking == ()
    assert lsns(folder) == list(range(26, 31))


def test_an_older_snapshot_is_used_where_the_newest_is_damaged(folder: Path) -> None:
    """All rows are in the logs, so nothing is lost: it opens, with a warning."""
    snap = write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 25}))
    for spoil in (lambda: flip(snap, snap.stat().st_size - 20), lambda: flip(snap, 0)):
        spoil()
        report = examine(folder)
        assert not report.ok
        assert report.blocking == ()
        assert report.snapshot is not None
        assert report.snapshot.vclock == VClock()
        assert any("is damaged" in text for text in report.warnings)
        assert lsns(folder) == list(range(1, 31))


def test_a_damaged_snapshot_without_all_older_logs_is_refused(folder: Path) -> None:
    """Even with force, as in Tarantool: there is no state to start from."""
    snap = write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 25}))
    flip(snap, snap.stat().st_size - 20)
    (folder / name(10)).unlink()
    report = examine(folder)
    with pytest.raises(RecoveryRefused):
        plan(report)
    with pytest.raises(RecoveryRefused, match="even with force") as caught:
        plan(report, force=True)
    assert caught.value.path == str(snap)


def test_a_damaged_snapshot_behind_the_end_of_the_logs_is_refused(folder: Path) -> None:
    """The logs end before it, so rows that only it held are lost."""
    snap = write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 40}))
    flip(snap, snap.stat().st_size - 20)
    with pytest.raises(RecoveryRefused):
        plan(examine(folder))


def test_logs_without_any_snapshot_are_refused(folder: Path) -> None:
    """Without system spaces the rows are no state."""
    (folder / name(0, "snap")).unlink()
    report = examine(folder)
    assert [damage.kind for damage in report.blocking] == [DamageKind.MISSING_SNAPSHOT]
    with pytest.raises(RecoveryRefused, match="no snapshot"):
        plan(report, force=True)


def test_a_snapshot_ahead_of_the_logs_is_where_the_next_log_begins(folder: Path) -> None:
    """What an unsynced log lost the snapshot has; the log is not continued in its middle."""
    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 40}))
    report = examine(folder)
    assert report.vclock == {1: 40}
    assert report.append_point == AppendPoint(VClock({1: 40}), VClock({1: 20}))


# --- where a writer goes on -----------------------------------------------------------------------


def test_our_newest_log_is_continued_and_a_foreign_one_is_not(folder: Path) -> None:
    """Ours is cut to its last whole block; a foreign one stays as it is."""
    assert examine(folder).append_point == AppendPoint(VClock({1: 30}), VClock({1: 20}))
    path = write_raw(
        folder, VClock({1: 20}), singles(21, 30), prev=VClock({1: 10}), program="logweir 0.1.0"
    )
    size = path.stat().st_size
    point = examine(folder).append_point
    meta = Meta("XLOG", VClock({1: 20}), INSTANCE, VClock({1: 10}), "logweir 0.1.0")
    end = Unsynced(path, size - 4, size - 4, is_known=True)  # it was closed
    assert point == AppendPoint(
        VClock({1: 30}), VClock({1: 20}), path, size - 4, meta, unsynced=end
    )
    path.write_bytes(path.read_bytes()[:-10])
    point = examine(folder).append_point
    assert point.vclock == {1: 29}
    assert point.path == path


def test_an_empty_foreign_log_is_replaced_by_ours(folder: Path) -> None:
    """Its name is wanted, and what follows must say in its header who wrote it."""
    empty = write_raw(folder, VClock({1: 30}), [], prev=VClock({1: 20}))
    point = plan(examine(folder)).append_point
    assert point.replaces == empty
    writer = WalWriter(folder, INSTANCE, point)
    writer.write(singles(31, 31), VClock({1: 31}))
    writer.close()
    report = examine(folder)
    assert report.ok
    assert report.vclock == {1: 31}
    written = report.file(empty)
    assert written is not None
    assert written.is_ours
    assert written.meta is not None
    assert written.meta.prev_vclock == {1: 20}


# --- reading only what is behind a position -------------------------------------------------------


def test_since_reads_only_what_is_behind_it(folder: Path) -> None:
    """Every position between two blocks of every file gives exactly the rows behind it."""
    whole = examine(folder)
    positions = [batch.position for batch in replay(plan(whole))]
    for position in positions:
        report = examine(folder, since=position)
        assert report.since == position
        assert report.vclock == whole.vclock
        assert report.append_point == whole.append_point
        rows = [
            batch.block.columns.lsn[i]
            for batch in replay(plan(report))
            for i in range(batch.first, batch.last)
        ]
        assert rows == list(range(position.vclock.lsn(1) + 1, 31))


def test_reading_since_a_position_does_not_depend_on_the_length_of_the_log(tmp_path: Path) -> None:
    """A hundred times as many rows before the position cost not one read more."""
    reads = []
    for rows in (100, 1000):  # a smaller file is read with its header
        folder = tmp_path / str(rows)
        folder.mkdir()
        write_snapshot(folder, {280: [SPACE_ROW]})
        path = write_raw(folder, VClock(), singles(1, rows))
        position = LogPosition(path.name, path.stat().st_size - 4, VClock({1: rows}))
        disk = FaultyFileSystem(OS)
        report = examine(folder, since=position, filesystem=disk)
        assert report.since == position
        assert report.vclock == {1: rows}
        reads.append(disk.counts["read"])
    assert reads[0] == reads[1]


@pytest.mark.parametrize(
    "position",
    [
        LogPosition(name(99), 100, VClock({1: 30})),
        LogPosition(name(20), 10**6, VClock({1: 30})),
        LogPosition(name(20), 100, VClock({1: 5})),
    ],
    ids=["no such file", "behind its end", "before its begin"],
)
def test_a_position_that_is_not_in_the_log_means_reading_everything(
    folder: Path, position: LogPosition
) -> None:
    """The report says so, and whoever asked must begin anew."""
    report = examine(folder, since=position)
    assert report.since is None
    assert len(report.files) == 4


def test_a_position_at_the_very_end_of_the_log_is_in_it(folder: Path) -> None:
    """As a writer that was killed leaves it; one byte behind that is not."""
    path = folder / name(20)
    end = path.stat().st_size
    position = LogPosition(path.name, end, VClock({1: 30}))
    assert examine(folder, since=position).since == position
    assert examine(folder, since=replace(position, offset=end + 1)).since is None


def test_damage_behind_the_position_is_found_and_before_it_is_not(folder: Path) -> None:
    """What was applied is not read again; what was not applied is checked as ever."""
    positions = [batch.position for batch in replay(plan(examine(folder)))]
    path = folder / name(10)
    flip(path, path.read_bytes().index(MAGIC_PLAIN) + 25)
    assert examine(folder, since=positions[5]).blocking
    assert not examine(folder, since=positions[25]).damage


# --- the world around -----------------------------------------------------------------------------


def test_progress_ends_at_the_number_of_bytes(folder: Path) -> None:
    """Callers can draw a bar."""
    seen: list[tuple[int, int]] = []
    examine(folder, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert seen[-1][1] == total
    assert seen[-1][0] == total
    assert seen == sorted(seen)


def test_a_foreign_instance_is_named_and_refused(folder: Path) -> None:
    """A log of another instance does not belong to this history."""
    meta = Meta("XLOG", VClock({1: 30}), uuid.UUID(int=99), VClock({1: 20}), FOREIGN)
    (folder / name(30)).write_bytes(meta.encode() + EOF_MARKER)
    (damage,) = examine(folder).blocking
    assert damage.kind is DamageKind.FOREIGN


def test_a_renamed_log_is_refused(folder: Path) -> None:
    """The number in the name is the signature in the header, or something is wrong."""
    (folder / name(20)).rename(folder / name(21))
    kinds = [damage.kind for damage in examine(folder).blocking]
    assert DamageKind.NAME in kinds


def test_a_place_that_the_disk_cannot_read_is_refused_even_with_force() -> None:
    """It may be readable tomorrow, or from the disk's copy: giving it up is no opening's choice."""
    disk = SimFileSystem()
    folder = Path("/log")
    make_folders(disk, folder)
    SnapshotWriter(folder, VClock(), INSTANCE, timestamp=0.0, filesystem=disk).finish()
    writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()), filesystem=disk)
    writer.write([transaction(1, [insert(512, [1, "x" * 3_000_000])])], VClock({1: 1}))
    writer.write(singles(2, 9), VClock({1: 9}))
    writer.close()
    disk.remove(folder / END_MARK_NAME)
    for at in range(1, 20):
        faulty = FaultyFileSystem(disk, Fault(at, {"read"}, errno.EIO))
        report = examine(folder, filesystem=faulty)
        if not faulty.failed:
            break
        assert DamageKind.UNREADABLE in [damage.kind for damage in report.damage]
        with pytest.raises(RecoveryRefused):
            plan(report, force=True)
    else:
        pytest.fail("reading never got through")


def test_a_file_that_is_removed_meanwhile_is_looked_for_again(folder: Path) -> None:
    """A live folder: old files may be removed between the listing and the reading."""

    class Removing(FaultyFileSystem):
        left = 1

        def open_read(self, path: Path):  # type: ignore[no-untyped-def]
            if path.name == name(0) and self.counts["open_read"] > 4 and self.left:
                self.left -= 1
                os.unlink(path)
            return super().open_read(path)

    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 25}))
    report = examine(folder, filesystem=Removing(OS))
    assert report.ok
    assert name(0) not in [file.path.name for file in report.files if file.kind == "xlog"]


def test_the_report_says_in_a_sentence_what_opening_would_lose(tmp_path: Path) -> None:
    """Nothing for a whole folder; else how much, the file, the byte and the lsn before it."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    path = write_raw(tmp_path, VClock(), singles(1, 9))
    assert examine(tmp_path).lost == ""
    offset = path.read_bytes().index(MAGIC_PLAIN, 400)
    flip(path, offset + 25)
    flip(path, len(path.read_bytes()) - 10)
    said = examine(tmp_path).lost
    assert f"{path} at byte" in said
    assert "would be lost or doubted" in said
    assert "after lsn" in said


def test_a_row_of_a_snapshot_that_is_no_insert_is_damage(tmp_path: Path) -> None:
    """A state has nothing to delete: such a snapshot is not what it says."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    path = tmp_path / name(0, "snap")
    meta = path.read_bytes().split(b"\n\n")[0] + b"\n\n"
    row = encode_row(Row(type=RowType.DELETE, lsn=0, timestamp=1.0, body=b"\x80"))
    path.write_bytes(meta + b"".join(encode_block(row)) + EOF_MARKER)
    report = examine(tmp_path)
    assert report.snapshot is None
    assert [(one.kind, "no INSERT" in one.message) for one in report.damage] == [
        (DamageKind.ROWS, True)
    ]


def test_a_log_that_does_not_come_after_the_one_before_is_named(tmp_path: Path) -> None:
    """Signatures rise, vclocks do not: two histories in one folder."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_raw(tmp_path, VClock(), singles(1, 4))
    stray = write_raw(tmp_path, VClock({2: 9}), [])
    late = write_raw(tmp_path, VClock({1: 5, 2: 8}), [])
    damage = examine(tmp_path).damage
    assert (DamageKind.ORDER, str(late)) in [(one.kind, one.file) for one in damage]
    assert str(stray) in next(one.message for one in damage if one.file == str(late))


def test_a_damaged_snapshot_is_made_up_for_by_its_rows_and_not_by_as_many(tmp_path: Path) -> None:
    """Of several instances: the log has nine rows, and not the five of the other one."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_raw(tmp_path, VClock(), singles(1, 9))
    path = write_snapshot(tmp_path, {280: [SPACE_ROW]}, VClock({1: 4, 2: 5}))
    flip(path, path.stat().st_size - 20)
    report = examine(tmp_path)
    assert [Path(one.file) for one in report.blocking] == [path]
    with pytest.raises(RecoveryRefused):
        plan(report)
