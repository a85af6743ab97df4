"""Folders with any bytes in them: a report, a refusal or rows; nothing else, and nothing silent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import damaged

from logweir.errors import LogweirError, RecoveryRefused
from logweir.recovery import RecoveryReport, examine, plan, repair, replay, snapshot_blocks

BASE = damaged("u-three-logs-ok").folder
LOGS = sorted(path.name for path in BASE.glob("*.xlog"))
EXAMPLES = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def row_bytes(report: RecoveryReport, *, force: bool = False) -> list[bytes]:
    """The rows that opening would apply."""
    return [
        batch.block.columns.row_bytes(i)
        for batch in replay(plan(report, force=force))
        for i in range(batch.first, batch.last)
    ]


WHOLE = row_bytes(examine(BASE))


def fresh(tmp_path: Path) -> Path:
    """A copy of the base folder."""
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    shutil.copytree(BASE, folder)
    return folder


def check(folder: Path, new: Path) -> None:
    """Whatever is in the folder: our errors only, and a repair of it is whole."""
    report = examine(folder)
    for force in (False, True):
        try:
            opened = plan(report, force=force)
        except RecoveryRefused:
            continue
        if opened.snapshot is not None:
            assert sum(len(block.columns) for block in snapshot_blocks(opened)) > 0
        forced = row_bytes(report, force=force)
        assert len(forced) == len(set(forced))
    try:
        saved = repair(folder, new)
    except LogweirError:
        return
    after = examine(new)
    assert after.ok
    rows = row_bytes(after)
    assert len(rows) == saved.rows
    assert after.vclock == saved.vclock


@pytest.mark.parametrize("which", LOGS)
def test_no_single_bit_loses_a_row_in_silence(which: str, tmp_path: Path) -> None:
    """One bit of every fifth byte of a log: all rows are there, or the folder is refused."""
    folder = fresh(tmp_path)
    path = folder / which
    good = path.read_bytes()
    refused = 0
    for at in range(0, len(good), 5):
        path.write_bytes(good[:at] + bytes((good[at] ^ (1 << at % 8),)) + good[at + 1 :])
        try:
            assert row_bytes(examine(folder)) == WHOLE, f"byte {at}"
        except RecoveryRefused:
            refused += 1
    assert refused > len(good) // 10


@EXAMPLES
@given(
    which=st.sampled_from(LOGS),
    changes=st.lists(
        st.tuples(
            st.sampled_from(["set", "insert", "delete", "repeat", "zero"]),
            st.integers(0, 4000),
            st.integers(1, 700),
            st.binary(min_size=1, max_size=30),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_a_changed_log_gives_a_report_and_a_repair(
    which: str, changes: list[tuple[str, int, int, bytes]], tmp_path: Path
) -> None:
    """Bytes set, inserted, deleted, repeated and zeroed anywhere."""
    folder = fresh(tmp_path)
    data = bytearray((folder / which).read_bytes())
    for what, at, size, piece in changes:
        at %= len(data) + 1
        if what == "set":
            data[at : at + len(piece)] = piece
        elif what == "insert":
            data[at:at] = piece
        elif what == "delete":
            del data[at : at + size]
        elif what == "repeat":
            data[at:at] = data[max(at - size, 0) : at]
        else:
            data[at : at + size] = bytes(len(data[at : at + size]))
    (folder / which).write_bytes(data)
    check(folder, tmp_path / "new")


@EXAMPLES
@given(files=st.dictionaries(st.sampled_from([*LOGS, "00000000000000000000.snap"]), st.binary()))
def test_any_bytes_in_the_place_of_files(files: dict[str, bytes], tmp_path: Path) -> None:
    """Also for snapshots, and several at a time."""
    folder = fresh(tmp_path)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    check(folder, tmp_path / "new")


@pytest.mark.parametrize("which", LOGS)
def test_a_log_that_ends_anywhere(which: str, tmp_path: Path) -> None:
    """Cut at every fifth byte: the newest gives the rows before, an older one is refused."""
    folder = fresh(tmp_path)
    path = folder / which
    good = path.read_bytes()
    last = LOGS.index(which) == len(LOGS) - 1
    sizes = range(3, len(good), 5)
    opened = 0
    for size in sizes:
        path.write_bytes(good[:size])
        try:
            rows = row_bytes(examine(folder))
        except RecoveryRefused:
            continue
        opened += 1
        assert rows == WHOLE[: len(rows)]
        assert last or rows == WHOLE
    least = good.index(b"\n\n") + 2 if last else len(good) - 4
    assert opened == len([size for size in sizes if size >= least])
