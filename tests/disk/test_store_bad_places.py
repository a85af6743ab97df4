"""A store where there is no room, no right to write, or no file left to open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.places import few_files, mounted, remount_read_only

import logweir
from logweir.errors import LogweirError, WalError, WriteFailed
from logweir.recovery import examine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of three MB."""
    with mounted(tmp_path / "small", 3_000_000) as folder:
        yield folder


def filled(log: logweir.Log, change: Callable[[int], object]) -> tuple[int, LogweirError]:
    """Change by change until one fails: how many were acknowledged, and the error."""
    number = 0
    while True:
        try:
            change(number)
        except LogweirError as error:
            return number, error
        number += 1


def fill_up(path: Path) -> None:
    """Leave no room on a disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("kind", ["insert", "append", "transaction"])
def test_a_full_disk_costs_nothing_that_was_acknowledged(small_disk: Path, kind: str) -> None:
    """ENOSPC in log or state: a typed error that says so; with room again all is there."""
    folder = small_disk / "store"
    ballast = small_disk / "ballast"
    with logweir.open(folder, compress_threshold=None) as log:
        log.create_space("kv", [("id", "unsigned"), ("value", "any")])
    ballast.write_bytes(bytes(1_300_000))
    log = logweir.open(folder, compress_threshold=None)

    def change(number: int) -> object:
        row = (number, os.urandom(2000))
        if kind == "insert":
            return log.insert("kv", row)
        if kind == "append":
            return log.append("kv", [row])
        with log.transaction() as tx:
            return tx.insert("kv", row)

    done, error = filled(log, change)
    assert done > 50
    assert "disk is full" in f"{error} {error.hint}" or "No space left" in str(error)
    log.inner.abandon()
    ballast.unlink()
    with logweir.open(folder) as log:
        ids = [row[0] for row in log.select("kv")]
        assert ids in (list(range(done)), list(range(done + 1)))  # the last may be in the log
        log.replace("kv", (done, b"again"))
        log.snapshot()
    with logweir.open(folder) as log:
        assert log.get("kv", done) == (done, b"again")


def test_a_full_disk_leaves_a_store_that_says_what_is_wrong(small_disk: Path) -> None:
    """Opening, snapshot and state on a full disk: our errors only; the folder is not harmed."""
    folder = small_disk / "store"
    with logweir.open(folder) as log:
        log.create_space("kv", [("id", "unsigned"), ("value", "any")])
        log.append("kv", [(number, os.urandom(1000)) for number in range(300)])
    for path in sorted((folder / "state").iterdir()):
        path.unlink()  # it must be made anew
    fill_up(small_disk / "ballast")
    with pytest.raises(LogweirError, match=r"[Nn]o space left"):
        logweir.open(folder)
    (small_disk / "ballast").unlink()
    with logweir.open(folder) as log:
        assert log.count("kv") == 300


@pytest.mark.parametrize("left", [0, 80_000])
def test_a_full_disk_does_not_cost_the_state(
    left: int, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening is refused where there are rows to be applied, though LMDB takes the disk for broken
    when it gets a part of what it writes; with room again the state goes on."""
    folder, ballast = small_disk / "store", small_disk / "ballast"
    with logweir.open(folder) as log:
        log.create_space("kv", [("id", "unsigned"), ("value", "any")])
    log = logweir.open(folder, write_ahead=0)
    log.append("kv", [(number, os.urandom(1000)) for number in range(300)])
    log.inner.abandon()
    fill_up(ballast)
    os.truncate(ballast, ballast.stat().st_size - left)
    with pytest.raises(WalError, match="no space left"):
        logweir.open(folder)
    ballast.unlink()
    with logweir.open(folder) as log:
        assert log.count("kv") == 300
    assert "state.rebuilt" not in caplog.text


def test_a_store_on_a_read_only_disk_is_refused_by_name(small_disk: Path) -> None:
    """It can be examined, not opened; the error names a path and says what to do."""
    folder = small_disk / "store"
    with logweir.open(folder) as log:
        log.create_space("kv", [("id", "unsigned")])
    remount_read_only(small_disk)
    with pytest.raises(WalError, match="read-only") as caught:
        logweir.open(folder)
    assert str(folder) in caught.value.path
    assert caught.value.hint
    assert examine(folder).ok


def test_a_store_without_a_file_left_to_open_is_refused_and_not_harmed(tmp_path: Path) -> None:
    """EMFILE at opening: an error of ours; with files again everything is there."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("kv", [("id", "unsigned")])
        log.append("kv", [(number,) for number in range(10)])
    refused = 0
    for spare in range(100):
        try:
            with few_files(spare):
                logweir.open(tmp_path / "store").close()
            break
        except LogweirError as error:
            assert error.hint  # noqa: PT017
            refused += 1
    assert 3 < refused < 99
    with logweir.open(tmp_path / "store") as log:
        assert log.count("kv") == 10


def test_zeros_are_not_written_ahead_where_the_disk_is_small(tmp_path: Path) -> None:
    """They would take what the state needs."""
    with mounted(tmp_path / "small", 1_500_000) as disk, logweir.open(disk / "s") as log:
        log.create_space("kv", [("id", "unsigned"), ("value", "string")])
        (newest,) = (disk / "s").glob("*.xlog")
        zeros = []
        for number in range(300):
            log.insert("kv", (number, "x" * 1000))
            zeros.append(newest.stat().st_size - log.status()["log_bytes"])
        assert 0 < max(zeros) < 150_000


@pytest.fixture
def allow_files() -> Iterator[Callable[[int | None], None]]:
    """Sets what the system takes of a process in a file (`ulimit -f`), in bytes, or what it did."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(most_bytes: int | None) -> None:
        soft = before[0] if most_bytes is None else most_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield allow
    allow(None)


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_log_is_written_in_smaller_files_where_large_ones_are_not_allowed(
    tmp_path: Path, durability: str, allow_files: Callable[[int | None], None]
) -> None:
    """No change is refused for it. One that no file can hold is, and those behind it are written
    into one file."""
    allow_files(300_000)
    with logweir.open(tmp_path, durability=durability) as log:
        log.create_space("t")
        for number in range(20):
            log.insert("t", (number, os.urandom(50_000)))
        with pytest.raises(WriteFailed, match="no file as large as that"):
            log.append("t", [(number, os.urandom(50_000)) for number in range(100, 110)])
        files = len(list(tmp_path.glob("*.xlog")))
        for number in range(20, 70):
            log.insert("t", (number, b""))
        assert log.count("t") == 70
        assert files > 3
        assert len(list(tmp_path.glob("*.xlog"))) == files
    allow_files(None)
    report = examine(tmp_path)
    assert not report.blocking
    with logweir.open(tmp_path) as log:
        assert log.count("t") == 70


def test_log_goes_on_where_not_even_the_mark_of_its_end_fits(
    tmp_path: Path, allow_files: Callable[[int | None], None]
) -> None:
    """The file that is full stays as a killed process leaves it, and no row is missing."""
    with logweir.open(tmp_path, write_ahead=0) as log:
        log.create_space("t")
        for number in range(6):
            log.insert("t", (number, os.urandom(50_000)))
        allow_files(log.status()["log_bytes"] + 2)
        for number in range(6, 20):
            log.insert("t", (number, b""))
        assert [row[0] for row in log.select("t")] == list(range(20))
        rows = [row.lsn for one in log.rows(after={}) for row in one.rows]
        assert rows == list(range(1, rows[-1] + 1))
    allow_files(None)
    report = examine(tmp_path)
    assert not report.blocking
    assert len(list(tmp_path.glob("*.xlog"))) == 2
    with logweir.open(tmp_path) as log:
        assert log.count("t") == 20
        assert [row.lsn for one in log.rows(after={}) for row in one.rows] == rows
