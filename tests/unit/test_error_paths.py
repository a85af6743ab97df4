"""What fails seldom: files that go away, places that cannot be written, values from outside."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from samples import damaged, sample
from support.logs import SPACE_ROW, insert, write_log, write_snapshot

import logweir
from logweir.errors import (
    ConfigError,
    CorruptFile,
    DecodeError,
    ErrorCode,
    RecoveryRefused,
    RequestError,
    WalError,
)
from logweir.recovery import restore
from logweir.store.engine import ddl
from logweir.wal.damage import Damage
from logweir.wal.failpoint import arm_from_environment, disarm, failpoint
from logweir.wal.filesystem import OsFileSystem
from logweir.wal.follow import Follower
from logweir.wal.vclock import VClock

FORMAT = [("id", "unsigned"), ("text", "string")]


class Refusing(OsFileSystem):
    """A disk on which nothing may be removed while `refuses`."""

    def __init__(self) -> None:
        self.refuses = threading.Event()

    def remove(self, path: Path) -> None:
        if self.refuses.is_set():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        super().remove(path)


def test_a_folder_with_an_unusable_header_is_read_past_it_on_request() -> None:
    """Without `on_damage` it is an error; with it, one report, and every other row."""
    folder = damaged("k-wrong-filetype").folder
    with pytest.raises(CorruptFile):
        list(logweir.read(folder))
    found: list[Damage] = []
    rows = list(logweir.read(folder, on_damage=found.append))
    assert len(found) == 1
    assert rows


def test_a_log_that_cannot_be_removed_is_told_and_removed_later(tmp_path: Path) -> None:
    """The snapshot is there all the same; what is the oldest row is looked at anew."""
    disk = Refusing()
    with logweir.open(tmp_path, "write", checkpoint_count=1, filesystem=disk) as log:
        log.create_space("s", FORMAT)
        oldest = log.oldest_position
        disk.refuses.set()
        with pytest.raises(WalError, match="ermission"):
            log.snapshot()
        assert log.oldest_position == oldest
        disk.refuses.clear()
        assert log.inner.collect()
        assert log.oldest_position.signature > oldest.signature or not log.oldest_position
        log.insert("s", (1, "x"))
    with logweir.open(tmp_path) as log:
        assert log.select("s") == [(1, "x")]


def test_a_backup_without_a_snapshot_is_refused_by_number(tmp_path: Path) -> None:
    """Somebody removed it behind our back."""
    with logweir.open(tmp_path) as log:
        for path in tmp_path.glob("*.snap"):
            path.unlink()
        with pytest.raises(RequestError) as caught, log.backup():
            pass
        assert caught.value.code == ErrorCode.MISSING_SNAPSHOT
        log.create_space("s", FORMAT)
        log.snapshot()
        with log.backup() as files:
            assert files[0].suffix == ".snap"


def test_a_folder_without_snapshot_restores_nothing(tmp_path: Path) -> None:
    """It says so, and makes no folder."""
    folder = tmp_path / "old"
    folder.mkdir()
    write_log(folder, [[insert(512, [1])]])
    with pytest.raises(RecoveryRefused):
        restore(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_state_at_a_time_is_exact(tmp_path: Path) -> None:
    """The end of all time is the newest state."""
    one = sample("02-spaces")
    done = restore(one.folder, tmp_path / "new", at=4e9)
    assert done.is_exact
    assert done.vclock == one.vclock


@pytest.mark.parametrize("length", [10, 700])
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_an_index_is_built_in_portions(
    chunk: int, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text twice is found wherever the portions end, however long the keys are."""
    monkeypatch.setattr(ddl, "_CHUNK", chunk)
    with logweir.open(tmp_path) as log:
        log.create_space("s", FORMAT)
        log.append("s", [(n, f"{n:x}".rjust(length, "k")) for n in range(30)])
        log.create_index("s", "text", ["text"])
        ordered = [row[1] for row in log.select("s", index="text")]
        assert ordered == sorted(row[1] for row in log.select("s"))
        log.drop_index("s", "text")
        log.insert("s", (99, "3".rjust(length, "k")))
        with pytest.raises(RequestError) as caught:
            log.create_index("s", "text", ["text"])
        assert caught.value.code == ErrorCode.TUPLE_FOUND
        log.create_index("s", "many", {"parts": ["text"], "unique": False})
        assert [row[0] for row in log.select("s", "3".rjust(length, "k"), index="many")] == [3, 99]


def test_a_place_whose_file_is_gone_is_looked_for_anew(tmp_path: Path) -> None:
    """A follower that is told where to begin falls back to its position."""
    write_snapshot(tmp_path, {512: [SPACE_ROW]})
    write_log(tmp_path, [[insert(512, [number])] for number in range(3)])
    place = (tmp_path / "00000000000000000777.xlog", 97, VClock())
    with Follower(tmp_path, VClock({1: 1}), place=place) as follower:
        assert follower.file is None
        lsns = [lsn for block in follower.poll() for lsn in block.columns.lsn]
        assert lsns == [2, 3]
        assert follower.file == next(tmp_path.glob("*.xlog"))


@pytest.mark.parametrize("text", ["x", "x=stop", "x=kill@", "x=kill@two", "=kill"])
def test_failpoints_from_outside_are_checked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read is named."""
    monkeypatch.setenv("LOGWEIR_FAILPOINTS", text)
    if text == "x=kill@":
        arm_from_environment()  # once, as without a count
        disarm()
        return
    with pytest.raises(ConfigError):
        arm_from_environment()


def test_a_failpoint_from_outside_acts_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before, and never where it is not armed."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
    monkeypatch.setenv("LOGWEIR_FAILPOINTS", "here=kill@3,there=kill")
    arm_from_environment()
    try:
        failpoint("nowhere")
        failpoint("here")
        failpoint("here")
        assert signals == []
        failpoint("here")
        failpoint("here")
        assert len(signals) == 1
        failpoint("there")
        assert len(signals) == 2
    finally:
        disarm()


def test_an_error_of_no_place_names_none() -> None:
    """ "(at byte 0)" stood behind every error of a message whose place nobody knew."""
    assert str(DecodeError("the answer has no token")) == "the answer has no token"
    assert str(DecodeError("flex length is cut", offset=0)) == "flex length is cut (at byte 0)"
    assert DecodeError("the answer has no token").offset is None
