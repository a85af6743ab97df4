"""The damaged folders of a real Tarantool: its outcomes, but nothing is lost in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from samples import DAMAGED, damaged

from logweir.errors import RecoveryRefused
from logweir.recovery import RecoveryReport, examine, plan, replay
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.wal.filesystem import OS
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

SILENT = ("i-huge-length", "x-first-log-short")
"""Cases in which Tarantool 2.6.0 starts and loses rows without a word: refused here."""

SPACE = 512


def surviving_ids(report: RecoveryReport, *, force: bool) -> list[int]:
    """Primary keys of the tuples that replaying the folder gives."""
    keys: set[int] = set()
    for batch in replay(plan(report, force=force)):
        columns = batch.block.columns
        for i in range(batch.first, batch.last):
            if columns.space_id[i] == SPACE:
                found = unpack(columns.tuple_bytes(i) or b"")
                assert isinstance(found, list)
                keys.add(found[0])
    return sorted(keys)


@pytest.mark.parametrize("name", DAMAGED)
def test_without_force_it_opens_as_tarantool_does_or_is_refused(name: str) -> None:
    """Same vclock and rows where Tarantool starts; refused where it does not, or loses rows."""
    case = damaged(name)
    outcome = case.outcomes[False]
    report = examine(case.folder)
    if name in SILENT or not outcome["started"]:
        assert not report.ok
        with pytest.raises(RecoveryRefused) as caught:
            plan(report)
        error = caught.value
        assert Path(error.path).parent == case.folder
        assert error.offset is not None
        assert error.hint
        assert error.report is report
        return
    assert report.ok
    assert str(plan(report).vclock) == str(_vclock(outcome))
    assert surviving_ids(report, force=False) == outcome["ids"]
    assert len(outcome["ids"]) == outcome["counts"]["kv"]


@pytest.mark.parametrize("name", DAMAGED)
def test_with_force_at_least_what_tarantool_keeps_is_kept(name: str) -> None:
    """Same vclock and rows with force; a wrong length field alone loses nothing here."""
    case = damaged(name)
    outcome = case.outcomes[True]
    report = examine(case.folder)
    if not outcome["started"]:
        with pytest.raises(RecoveryRefused):
            plan(report, force=True)
        return
    opened = plan(report, force=True)
    ids = surviving_ids(report, force=True)
    if name == "i-huge-length":
        assert set(ids) > set(outcome["ids"])
        assert ids == damaged("u-three-logs-ok").outcomes[False]["ids"]
        assert str(opened.vclock) == "{1: 115}"
        return
    assert opened.vclock == _vclock(outcome)
    assert ids == outcome.get("ids", [])
    assert len(ids) == outcome["counts"].get("kv", 0)


@pytest.mark.parametrize(
    ("name", "lsn_before", "lsn_after", "rows_lost"),
    [
        ("c-flipped-payload-byte", 40, 42, 1),
        ("d-flipped-tx-byte", 64, 75, 10),
        ("e-flipped-zstd-byte", 74, 76, 1),
        ("f-zeroed-block", 40, 42, 1),
        ("g-zeroed-tail", 110, None, None),
        ("h-flipped-magic", 40, 42, 1),
        ("i-huge-length", 40, 42, 0),
        ("o-data-after-eof", 115, None, 0),
        ("v-gap", 20, 80, 59),
        ("x-first-log-short", 19, 21, 1),
    ],
)
def test_damage_names_the_rows_next_to_it(
    name: str, lsn_before: int, lsn_after: int | None, rows_lost: int | None
) -> None:
    """Every damaged place says which lsns stand before and behind it and how many rows it cost."""
    (damage,) = examine(damaged(name).folder).blocking
    assert damage.lsn_before == lsn_before
    assert damage.lsn_after == lsn_after
    assert damage.rows_lost == rows_lost


@pytest.mark.parametrize("name", [name for name in DAMAGED if name[0] in "jklmn"])
def test_a_log_with_an_unusable_header_is_moved_out_of_the_way(name: str, tmp_path: Path) -> None:
    """`prepare` renames what has the new log's name, deletes nothing, and can be repeated."""
    folder = tmp_path / name
    shutil.copytree(damaged(name).folder, folder)
    log = folder / "00000000000000000000.xlog"
    content = log.read_bytes()
    disk = FaultyFileSystem(OS)
    opened = plan(examine(folder, filesystem=disk), force=True)
    opened.prepare()
    disk.fault = Fault(1, {"sync_directory"})
    opened.prepare()
    assert not disk.failed
    assert not log.exists()
    assert log.with_name(log.name + ".corrupted").read_bytes() == content
    assert opened.needs_snapshot
    after = examine(folder)
    assert after.ok
    assert after.vclock == VClock()


def test_a_second_corrupted_file_does_not_replace_the_first(tmp_path: Path) -> None:
    """An earlier `.corrupted` file stays as it is."""
    folder = tmp_path / "n"
    shutil.copytree(damaged("n-empty-xlog").folder, folder)
    earlier = folder / "00000000000000000000.xlog.corrupted"
    earlier.write_bytes(b"from before")
    plan(examine(folder), force=True).prepare()
    assert earlier.read_bytes() == b"from before"
    assert (folder / "00000000000000000000.xlog.corrupted.2").exists()


@pytest.mark.parametrize("name", DAMAGED)
def test_examining_changes_nothing(name: str, tmp_path: Path) -> None:
    """An examination and a plan leave every byte and every name as they were."""
    folder = tmp_path / name
    shutil.copytree(damaged(name).folder, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = examine(folder)
    for force in (False, True):
        try:
            plan(report, force=force)
        except RecoveryRefused:
            continue
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", DAMAGED)
def test_the_report_as_json_has_the_documented_shape(name: str) -> None:
    """`verify --json` prints these keys, and only JSON values."""
    import json

    found = examine(damaged(name).folder).to_json()
    assert json.loads(json.dumps(found)) == found
    keys = ["ok", "files", "damage", "vclock", "warnings", "holes", "unfinished", "verdict"]
    assert list(found) == keys
    assert found["ok"] is not bool(found["damage"])
    for damage in found["damage"]:
        assert list(damage) == [
            "kind",
            "file",
            "offset",
            "lsn_before",
            "lsn_after",
            "replica_id",
            "rows_lost",
            "message",
            "hint",
        ]
        assert damage["message"]
        assert damage["hint"]


def test_rows_of_every_file_are_counted_as_the_xlog_module_counts_them() -> None:
    """Rows per file agree with the real program's reader wherever that could open the file."""
    compared = 0
    for name in DAMAGED:
        case = damaged(name)
        for file in examine(case.folder).files:
            seen = case.module_rows[file.path.name]
            if file.meta is None or seen["error"] is not None or name == "i-huge-length":
                continue
            assert file.rows == seen["rows"], (name, file.path.name)
            compared += 1
    assert compared > 40


def _vclock(outcome: dict[str, dict[str, int]]) -> VClock:
    return VClock({int(key): lsn for key, lsn in outcome["vclock"].items()})
