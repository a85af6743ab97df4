"""Rows that are missing between or behind the logs of a scan are told where they are wanted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import pipeline
from logweir.errors import ChainGap, CorruptBlock, WalError
from logweir.pipeline.frames import scan_options
from logweir.pipeline.plan import plan
from logweir.pipeline.reading import scan
from logweir.pipeline.tail import Tail

BLOCK = bytes.fromhex("d5ba0bab")
FORMAT = [("id", "unsigned"), ("text", "string")]


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Those of a closed store, the oldest first."""
    with logweir.open(tmp_path, wal_max_size=2000, checkpoint_interval=0) as log:
        log.create_space("t", FORMAT)
        for number in range(60):
            log.insert("t", (number, "x" * 50))
    return sorted(tmp_path.glob("*.xlog"))


def scanned(folder: Path, **options: Any) -> list[dict[str, Any]]:
    wanted = {"kinds": "xlog", "columns": ["lsn"], **options}
    return [row for batch in pipeline.batches(folder, **wanted) for row in batch.to_pylist()]


def test_a_missing_log_is_told_though_nothing_behind_it_is_wanted(logs: list[Path]) -> None:
    """A bound leaves out the log whose header would tell it. What is whole up to a bound is
    read."""
    folder, start, end = logs[0].parent, int(logs[2].stem), int(logs[3].stem)
    logs[2].unlink()
    for options in ({"vclock_to": {1: start + 1}}, {"replica_id": 1, "lsn_to": end}):
        with pytest.raises(ChainGap, match="a log is missing"):
            scanned(folder, **options)
    for options in ({"vclock_to": {1: start}}, {"replica_id": 1, "lsn_to": start}):
        assert [row["lsn"] for row in scanned(folder, **options)] == list(range(1, start + 1))


@pytest.mark.parametrize("is_there", [False, True])
def test_newest_rows_that_are_gone_are_told(is_there: bool, logs: list[Path]) -> None:
    """By the mark beside the logs, as `cat` and `verify` tell it: of a log that is not there, or
    lacks whole blocks at its end."""
    last, data = logs[-1], logs[-1].read_bytes()
    last.write_bytes(data[: data.rindex(BLOCK)]) if is_there else last.unlink()
    folder, start = last.parent, int(last.stem)
    with pytest.raises(CorruptBlock, match="the newest rows are gone"):
        scanned(folder)
    told = scanned(folder, on_error="report", columns=["damage"])
    assert [row["damage"][:12] for row in told if row["damage"]] == ["missing_end:"]
    rows = scanned(folder, vclock_to={1: start})
    assert [row["lsn"] for row in rows] == list(range(1, start + 1))


def test_newest_rows_in_the_place_of_which_zeros_stand_are_told(logs: list[Path]) -> None:
    """The log has its size, and ends as one does that was being written to: only the mark tells.
    As `verify` does."""
    last, data = logs[-1], logs[-1].read_bytes()
    at = data.rindex(BLOCK)
    last.write_bytes(data[:at] + bytes(len(data) - at))
    folder, lsns = last.parent, [row["lsn"] for row in scanned(last.parent, vclock_to={1: 50})]
    for options in ({}, {"kinds": "xlog,snap"}, {"columns": ["lsn", "id"], "space": "t"}):
        with pytest.raises(CorruptBlock, match="the newest rows are gone"):
            scanned(folder, **options)
    told = scanned(folder, on_error="report", columns=["damage"])
    assert "missing_end:" in [row["damage"][:12] for row in told if row["damage"]]
    rows = [row["lsn"] for row in scanned(folder, on_error="skip")]
    assert rows == list(range(1, rows[-1] + 1))
    assert rows[:50] == lsns == list(range(1, 51))


def test_a_stream_of_a_folder_without_its_newest_rows_is_refused(logs: list[Path]) -> None:
    """Unless it is to go on without them."""
    logs[-1].unlink()
    folder, start = str(logs[0].parent), int(logs[-1].stem)
    with (
        closing(Tail(scan_options(folder))) as tail,
        pytest.raises(CorruptBlock, match="the newest rows are gone"),
    ):
        tail.newest()
    with closing(Tail(scan_options(folder, fail_on_data_loss=False))) as tail:
        assert tail.newest() == {1: start}


def test_the_package_as_a_zip_file_has_all_that_the_pipeline_imports(tmp_path: Path) -> None:
    """As on a cluster whose machines have what logweir needs, and no logweir."""
    libraries = sysconfig.get_paths()["purelib"]
    program = (
        f"import sys; sys.path[:] = [sys.argv[1], {libraries!r}, *sys.path]; "
        "import logweir.pipeline, pkgutil, importlib; "
        "names = [one.name for one in pkgutil.walk_packages(logweir.__path__, 'logweir.')]; "
        "[importlib.import_module(one) for one in names if one.startswith('logweir.pipeline.')]; "
        "print(logweir.pipeline.__file__, len(names))"
    )
    zipped = pipeline.py_files(tmp_path / "logweir.zip")
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, zipped], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    file, count = told.stdout.split()
    assert file.startswith(zipped)
    assert int(count) > 400


def test_another_file_of_the_same_name_is_not_read(tmp_path: Path) -> None:
    """A store that was made anew in the folder behind the plan: its rows are not the scan's."""
    for name, count in (("planned", 5), ("other", 50)):
        with logweir.open(tmp_path / name) as log:
            log.create_space("t", format=[("id", "unsigned")])
            for number in range(count):
                log.insert("t", (number,))
    options = scan_options(tmp_path / "planned", kinds="xlog", columns=["lsn"])
    planned = plan(options)
    assert sum(batch.num_rows for batch in scan(planned.splits[0], options)) > 5
    path = Path(planned.sources[0].path)
    shutil.copy(tmp_path / "other" / path.name, path)
    with pytest.raises(WalError, match="was replaced by another one") as caught:
        list(scan(planned.splits[0], options))
    assert str(path) in str(caught.value)
