"""Repair and restore: what is saved, what is said to be lost, what the new folder holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from samples import DAMAGED, GOOD, damaged, sample
from support.logs import (
    INSTANCE,
    SPACE_ROW,
    START,
    forget_end,
    insert,
    transaction,
    write_snapshot,
)

from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    DecodeError,
    PositionUnavailable,
    RecoveryRefused,
    WalError,
)
from logweir.recovery import (
    Hole,
    RecoveryReport,
    examine,
    plan,
    repair,
    replay,
    restore,
    rewrite,
)
from logweir.recovery.faults import FaultyFileSystem
from logweir.wal.filesystem import OS
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions

REPAIRABLE = tuple(name for name in DAMAGED if name[0] not in "qs")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def row_bytes(report: RecoveryReport, *, force: bool = False) -> list[bytes]:
    """The exact rows that opening would apply."""
    return [
        batch.block.columns.row_bytes(i)
        for batch in replay(plan(report, force=force))
        for i in range(batch.first, batch.last)
    ]


def write_log_of(folder: Path, count: int, *, max_bytes: int = 700) -> None:
    """A snapshot at 0 and logs of `count` single rows, one a second."""
    write_snapshot(folder, {space: [SPACE_ROW] for space in (272, 276, 280, 288)})
    options = WriterOptions(max_bytes=max_bytes)
    writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()), options=options)
    for lsn in range(1, count + 1):
        writer.write([transaction(lsn, [insert(512, [lsn])])], VClock({1: lsn}))
    writer.close()
    forget_end(folder)


# --- repair ---


@pytest.mark.parametrize("name", REPAIRABLE)
def test_repair_saves_every_row_that_a_forced_opening_would_and_touches_nothing(
    name: str, tmp_path: Path
) -> None:
    """Same bytes of rows, same vclock, no damage; a dry run says the same and writes nothing."""
    folder = damaged(name).folder
    before = contents(folder)
    report = examine(folder, headerless=True)
    said = repair(folder, tmp_path / "none", dry_run=True)
    assert not (tmp_path / "none").exists()
    done = repair(folder, tmp_path / "new")
    after = examine(tmp_path / "new")
    assert after.ok
    end = report.vclock.with_lsn(1, report.vclock.lsn(1) + report.lsn_reserve)
    assert after.vclock == done.vclock == end
    assert len(row_bytes(after)) == done.rows
    if not report.unforceable:
        assert row_bytes(after) == row_bytes(report, force=True)
    assert (said.rows, said.holes, said.lost, said.vclock) == (
        done.rows,
        done.holes,
        done.lost,
        done.vclock,
    )
    assert contents(folder) == before
    assert set(done.files) == set(contents(tmp_path / "new"))


@pytest.mark.parametrize("name", [name for name in DAMAGED if name[0] in "qs"])
def test_without_system_spaces_there_is_nothing_to_repair(name: str, tmp_path: Path) -> None:
    """Refused, and no folder is made."""
    with pytest.raises(RecoveryRefused, match="system spaces"):
        repair(damaged(name).folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "holes", "rows_lost", "bytes_lost"),
    [
        ("a-truncated-in-payload", [], 0, 0),
        ("c-flipped-payload-byte", ["{1: 40} {1: 41}"], 1, 50),
        ("d-flipped-tx-byte", ["{1: 64} {1: 74}"], 10, 321),
        ("g-zeroed-tail", ["{1: 110} {1: 361} ?"], None, 251),
        ("i-huge-length", [], 0, 0),
        ("j-bad-version-line", [], 0, 0),
        ("k-wrong-filetype", [], 0, 0),
        ("l-foreign-uuid", ["{} {1: 5725} ?"], None, 5725),
        ("o-data-after-eof", [], 0, 16),
        ("v-gap", ["{1: 20} {1: 79}"], 59, 0),
        ("x-first-log-short", ["{1: 19} {1: 20}"], 1, 0),
    ],
)
def test_repair_says_exactly_what_is_lost(
    name: str, holes: list[str], rows_lost: int | None, bytes_lost: int, tmp_path: Path
) -> None:
    """Holes as vclocks, rows where they can be known, bytes; the new folder remembers the holes."""
    done = repair(damaged(name).folder, tmp_path / "new")
    assert [str(hole) for hole in done.holes] == holes
    assert done.rows_lost == rows_lost
    assert done.bytes_lost == bytes_lost
    after = examine(tmp_path / "new")
    assert after.holes == done.holes
    assert [hole.sentence for hole in done.holes] == list(after.warnings)
    found = done.to_json()
    assert found["rows_lost"] == rows_lost
    assert len(found["holes"]) == len(holes)


def test_several_holes_are_all_recorded_and_survive_a_second_repair(tmp_path: Path) -> None:
    """Holes in one file, between files and at the end, in one folder."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 60)
    logs = sorted(folder.glob("*.xlog"))
    assert len(logs) > 4
    first = bytearray(logs[0].read_bytes())
    for lsn in (3, 7):
        at = first.index(transaction(lsn, [insert(512, [lsn])]))
        first[at + 3] ^= 1
    logs[0].write_bytes(first)
    missing = int(logs[2].name[:20]), int(logs[3].name[:20])
    logs[2].unlink()
    last = bytearray(logs[-1].read_bytes())
    last[-6] ^= 1
    logs[-1].write_bytes(last)
    done = repair(folder, tmp_path / "new")
    expected = ["{1: 2} {1: 3}", "{1: 6} {1: 7}", f"{{1: {missing[0]}}} {{1: {missing[1]}}}"]
    assert [str(hole) for hole in done.holes] == [*expected, "{1: 59} ?"]
    report = examine(tmp_path / "new")
    assert report.ok
    assert report.holes == done.holes
    assert len(row_bytes(report)) == 60 - 3 - (missing[1] - missing[0])
    again = repair(tmp_path / "new", tmp_path / "newer")
    assert again.holes == done.holes
    assert examine(tmp_path / "newer").holes == done.holes
    assert row_bytes(examine(tmp_path / "newer")) == row_bytes(report)


@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize(
    "spoil", [b"", b"\0" * 40, Random(1).randbytes(60)], ids=["cut", "zero", "random"]
)
def test_a_log_that_lost_its_header_alone_is_saved(
    number: int, spoil: bytes, tmp_path: Path
) -> None:
    """Its name, its rows and what is before it say where it belongs; nothing is lost."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 60)
    whole = row_bytes(examine(folder))
    path = sorted(folder.glob("*.xlog"))[number]
    data = path.read_bytes()
    path.write_bytes(spoil + data[60:])
    with pytest.raises(RecoveryRefused):
        plan(examine(folder))
    done = repair(folder, tmp_path / "new")
    assert done.holes == ()
    assert done.rows_lost == 0
    assert row_bytes(examine(tmp_path / "new")) == whole


def test_a_log_without_header_that_may_be_another_one_is_not_taken(tmp_path: Path) -> None:
    """Another name, another instance, or rows that do not come next: given up and named."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 60)
    logs = sorted(folder.glob("*.xlog"))
    path, data = logs[-1], logs[-1].read_bytes()
    begin = int(path.name[:20])
    versions = {
        "foreign": b"no log\n"
        + data[5:].replace(str(INSTANCE).encode(), b"0" * 8 + b"-0000" * 3 + b"-" + b"0" * 12),
        "other rows": b"no log\n" + logs[0].read_bytes()[5:],
        "no rows": b"no log\n",
    }
    for name, bad in versions.items():
        path.write_bytes(bad)
        done = repair(folder, tmp_path / name)
        assert [str(hole) for hole in done.holes] == [f"{{1: {begin}}} ?"], name
        assert done.vclock == {1: begin}
    path.unlink()
    path.with_name(f"{begin + 1:020d}.xlog").write_bytes(b"no log\n" + data[5:])
    assert repair(folder, tmp_path / "renamed").rows_lost is None


def test_writing_goes_on_behind_a_repair(tmp_path: Path) -> None:
    """The append point is the vclock of the damaged folder: no lsn in a hole is used again."""
    repair(damaged("v-gap").folder, tmp_path / "new")
    point = plan(examine(tmp_path / "new")).append_point
    assert point.vclock == {1: 115}
    synced = WriterOptions(is_synced=True)
    writer = WalWriter(tmp_path / "new", INSTANCE, point, options=synced)
    writer.write([transaction(116, [insert(512, [116])])], VClock({1: 116}))
    writer.close()
    report = examine(tmp_path / "new")
    assert report.ok
    assert report.vclock == {1: 116}
    assert report.holes == (Hole(VClock({1: 20}), VClock({1: 79})),)


def test_a_snapshot_without_its_end_is_saved_as_far_as_it_goes(tmp_path: Path) -> None:
    """All system spaces are there, so a store can start; what else it held nobody knows."""
    done = repair(damaged("r-snap-no-eof").folder, tmp_path / "new")
    assert not done.snapshot_is_whole
    assert done.rows_lost is None
    report = examine(tmp_path / "new")
    assert report.ok
    snap = next(file for file in report.files if file.kind == "snap")
    assert snap.rows == 513


def test_lsns_that_may_be_lost_at_the_end_are_reserved() -> None:
    """A forced opening of a zeroed tail says how many lsns must not be used again, at most."""
    opened = plan(examine(damaged("g-zeroed-tail").folder), force=True)
    assert opened.vclock == {1: 110}
    assert opened.lsn_reserve >= 5
    assert opened.needs_snapshot
    assert plan(examine(damaged("c-flipped-payload-byte").folder), force=True).lsn_reserve == 0


@pytest.mark.parametrize(
    "text", ["", "{1: 2}", "{1: 2} {", "{1: x} ?", "? {1: 2}", "{1: 2} ? ?", "{1: 2} {1: 3} x"]
)
def test_a_hole_that_cannot_be_read_is_an_error(text: str) -> None:
    """Header items are text from a file, not to be trusted."""
    with pytest.raises(DecodeError):
        Hole.parse(text)


@pytest.mark.parametrize(
    "text", ["{} ?", "{1: 2} {1: 3}", "{0: 1, 2: 5} {0: 1, 2: 9}", "{} {1: 9} ?"]
)
def test_a_hole_is_read_as_it_was_written(text: str) -> None:
    """Both ways."""
    assert str(Hole.parse(text)) == text


# --- restore ---


@pytest.mark.parametrize("which", GOOD)
def test_a_restore_of_everything_is_the_newest_state(which: str, tmp_path: Path) -> None:
    """Same vclock, same rows behind the same snapshot, same snapshot bytes."""
    one = sample(which)
    done = restore(one.folder, tmp_path / "new")
    assert done.is_exact
    assert done.vclock == one.vclock
    report = examine(tmp_path / "new")
    assert report.ok
    assert row_bytes(report) == row_bytes(examine(one.folder))
    copied = (tmp_path / "new" / done.snapshot).read_bytes()
    assert copied == (one.folder / done.snapshot).read_bytes()


def test_a_restore_at_every_lsn_holds_exactly_the_rows_up_to_it(tmp_path: Path) -> None:
    """Single-row transactions over several files and two snapshots: exact at each lsn."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 40)
    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 25}))
    everything = row_bytes(examine(folder))
    assert len(everything) == 15
    for lsn in (0, 1, 19, 20, 24, 25, 26, 39, 40):
        new = tmp_path / str(lsn)
        done = restore(folder, new, at=VClock({1: lsn}))
        assert done.is_exact
        assert done.vclock == VClock({1: lsn})
        report = examine(new)
        assert report.ok
        assert report.vclock == VClock({1: lsn})
        if lsn >= 25:
            assert row_bytes(report) == everything[: lsn - 25]


def test_a_restore_syncs_after_so_many_bytes_and_not_after_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a large one need not wait for all of it, nor a small one for each write."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_log_of(folder, 30)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    syncs = []
    for number, limit in enumerate((rewrite._SYNC_BYTES, 1)):
        monkeypatch.setattr(rewrite, "_SYNC_BYTES", limit)
        disk = FaultyFileSystem(OS)
        restore(folder, tmp_path / str(number), filesystem=disk)
        syncs.append(disk.counts["sync"])
    assert 0 < syncs[0] < 10
    assert syncs[1] == syncs[0] + 30


def test_inside_a_transaction_the_state_before_it_is_restored(tmp_path: Path) -> None:
    """Half a transaction is no state; the result says that it is not the wanted vclock."""
    done = restore(sample("04-crashed").folder, tmp_path / "new", at=VClock({1: 160}))
    assert not done.is_exact
    assert done.vclock == {1: 154}


def test_a_time_is_restored_to_the_second(tmp_path: Path) -> None:
    """Rows came one a second; a `datetime` and a number say the same."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 30)
    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 20}))
    for lsn in (1, 10, 20, 29, 30):
        done = restore(folder, tmp_path / f"a{lsn}", at=START + lsn + 0.5)
        assert done.vclock == {1: lsn}
        when = datetime.fromtimestamp(START + lsn + 0.5, UTC)
        assert restore(folder, tmp_path / f"b{lsn}", at=when).vclock == {1: lsn}
    assert restore(folder, tmp_path / "c", at=START - 100).vclock == VClock()


@pytest.mark.parametrize("at", [VClock({1: 61}), VClock({2: 1}), VClock({0: 1})])
def test_a_position_that_the_log_does_not_reach_is_unavailable(at: VClock, tmp_path: Path) -> None:
    """Nothing is written then."""
    (tmp_path / "old").mkdir()
    write_log_of(tmp_path / "old", 60)
    with pytest.raises(PositionUnavailable):
        restore(tmp_path / "old", tmp_path / "new", at=at)
    assert not (tmp_path / "new").exists()


def test_a_position_before_the_oldest_snapshot_is_unavailable(tmp_path: Path) -> None:
    """And a time is, that the remaining logs do not prove."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log_of(folder, 60)
    write_snapshot(folder, {280: [SPACE_ROW]}, VClock({1: 30}))
    (folder / f"{0:020d}.snap").unlink()
    for at in (VClock({1: 29}), START + 29):
        with pytest.raises(PositionUnavailable) as caught:
            restore(folder, tmp_path / "new", at=at)
        assert caught.value.hint
    assert restore(folder, tmp_path / "one", at=START + 30).vclock == {1: 30}
    for log in sorted(folder.glob("*.xlog")):
        if int(log.name[:20]) < 30:
            log.unlink()
    first = examine(folder).xlogs
    if first and first[0].vclock != {1: 30}:
        with pytest.raises(PositionUnavailable):
            restore(folder, tmp_path / "two", at=START + 1)


def test_damage_behind_the_cut_does_not_hinder_and_before_it_does(tmp_path: Path) -> None:
    """A state from before the damage can still be had."""
    folder = damaged("d-flipped-tx-byte").folder
    done = restore(folder, tmp_path / "new", at=VClock({1: 64}))
    assert done.vclock == {1: 64}
    assert examine(tmp_path / "new").ok
    with pytest.raises(CorruptBlock):
        restore(folder, tmp_path / "b", at=VClock({1: 80}))
    with pytest.raises(RecoveryRefused):
        restore(folder, tmp_path / "c")
    with pytest.raises(ChainGap):
        restore(damaged("v-gap").folder, tmp_path / "d", at=VClock({1: 100}))
    assert restore(damaged("v-gap").folder, tmp_path / "e", at=VClock({1: 20})).is_exact
    zeroed = damaged("g-zeroed-tail").folder
    assert restore(zeroed, tmp_path / "f", at=VClock({1: 110})).is_exact
    with pytest.raises(RecoveryRefused):
        restore(zeroed, tmp_path / "g")


@pytest.mark.parametrize("what", [repair, restore])
def test_a_folder_that_holds_something_is_not_written_to(what, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Nothing of anybody's is ever replaced."""
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="not empty"):
        what(sample("04-crashed").folder, tmp_path)
    assert contents(tmp_path) == {"mine.txt": b"keep"}
    with pytest.raises(WalError):
        what(tmp_path / "absent", tmp_path / "new")
    with pytest.raises(WalError):
        what(sample("04-crashed").folder, tmp_path / "mine.txt" / "new")
