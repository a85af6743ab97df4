"""Tailing a folder while it is written: across rotation, torn ends, cuts and restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from samples import damaged, sample
from support.logs import INSTANCE, insert, transaction

from logweir.errors import ChainGap, CorruptBlock, PositionUnavailable, WalError
from logweir.recovery import examine, plan
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS
from logweir.wal.follow import Follower
from logweir.wal.meta import Meta
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions


def rows(lsn: int) -> bytes:
    """A transaction of one row."""
    return transaction(lsn, [insert(512, [lsn, "x" * 50])])


def poll(follower: Follower) -> list[int]:
    """The lsns that are new."""
    before = follower.vclock
    return [
        lsn
        for block in follower.poll()
        for replica_id, lsn in zip(block.columns.replica_id, block.columns.lsn, strict=True)
        if lsn > before.lsn(replica_id)
    ]


class Log:
    """A folder that is being written."""

    def __init__(self, folder: Path, *, max_bytes: int = 2**20) -> None:
        self.folder = folder
        self.lsn = 0
        options = WriterOptions(max_bytes=max_bytes)
        self.writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()), options=options)

    def write(self, count: int = 1) -> list[int]:
        """Append single rows in one batch each."""
        first = self.lsn + 1
        for _ in range(count):
            self.lsn += 1
            self.writer.write([rows(self.lsn)], VClock({1: self.lsn}))
        return list(range(first, self.lsn + 1))


@pytest.mark.parametrize("max_bytes", [2, 400, 2**20])
def test_every_row_comes_once_at_any_pace(tmp_path: Path, max_bytes: int) -> None:
    """Polls between, before and after writes and rotations; files of one row and of many."""
    rng = random.Random(max_bytes)
    log = Log(tmp_path, max_bytes=max_bytes)
    seen: list[int] = []
    with Follower(tmp_path, VClock()) as follower:
        assert poll(follower) == []
        for _ in range(60):
            choice = rng.random()
            if choice < 0.6:
                log.write(rng.randint(1, 4))
            elif choice < 0.8:
                log.writer.rotate()
            seen += poll(follower) if rng.random() < 0.6 else []
        log.writer.close()
        seen += poll(follower)
        assert seen == list(range(1, log.lsn + 1))
        assert follower.vclock == VClock({1: log.lsn})
        assert poll(follower) == []


def test_a_follower_begins_behind_any_position(tmp_path: Path) -> None:
    """In any file, in the middle of it or at its end."""
    log = Log(tmp_path, max_bytes=500)
    log.write(30)
    log.writer.close()
    for lsn in range(31):
        with Follower(tmp_path, VClock({1: lsn})) as follower:
            assert poll(follower) == list(range(lsn + 1, 31))


def test_a_block_that_is_not_wholly_there_is_waited_for(tmp_path: Path) -> None:
    """At every byte of a growing block: nothing yet; at the last one: the row."""
    log = Log(tmp_path)
    log.write(3)
    path = log.writer.path
    assert path is not None
    log.writer.abandon()
    block = b"".join(encode_block(rows(4)))
    with Follower(tmp_path, VClock()) as follower, path.open("ab", buffering=0) as file:
        assert poll(follower) == [1, 2, 3]
        for byte in block[:-1]:
            file.write(bytes((byte,)))
            assert poll(follower) == []
        file.write(block[-1:])
        assert poll(follower) == [4]


def test_what_a_failed_write_left_is_never_relied_on(tmp_path: Path) -> None:
    """A part of a batch is there, is cut off again, and something else is written there."""
    log = Log(tmp_path)
    log.write(2)
    path = log.writer.path
    assert path is not None
    log.writer.abandon()
    good = path.read_bytes()
    left = b"".join(encode_block(transaction(3, [insert(512, [3, "lost"])] * 2)))
    with Follower(tmp_path, VClock()) as follower:
        path.write_bytes(good + left[:-5])
        assert poll(follower) == [1, 2]
        path.write_bytes(good)
        assert poll(follower) == []
        path.write_bytes(good + b"".join(encode_block(rows(3))))
        assert poll(follower) == [3]


def test_a_torn_end_is_passed_when_a_newer_file_goes_on(tmp_path: Path) -> None:
    """A real Tarantool leaves the torn file as it is and begins the next where its rows end."""
    log = Log(tmp_path)
    log.write(2)
    path = log.writer.path
    assert path is not None
    log.writer.abandon()
    path.write_bytes(path.read_bytes() + b"".join(encode_block(rows(3)))[:20])
    with Follower(tmp_path, VClock()) as follower:
        assert poll(follower) == [1, 2]
        writer = WalWriter(tmp_path, INSTANCE, AppendPoint(VClock({1: 2}), VClock()))
        writer.write([rows(3)], VClock({1: 3}))
        assert poll(follower) == [3]
        writer.close()


def test_a_restart_that_cuts_and_goes_on_in_the_same_file_is_followed(tmp_path: Path) -> None:
    """Our own recovery cuts the torn end, or the EOF marker, and appends there."""
    (tmp_path / f"{0:020d}.snap").write_bytes(
        Meta("SNAP", VClock(), INSTANCE).encode() + EOF_MARKER
    )
    log = Log(tmp_path)
    log.write(2)
    log.writer.sync()
    with Follower(tmp_path, VClock()) as follower:
        assert poll(follower) == [1, 2]
        for lsn, closed in ((3, True), (4, False)):
            if closed:
                log.writer.close()
            else:
                log.writer.abandon()
            assert poll(follower) == []
            log.writer = WalWriter(tmp_path, INSTANCE, plan(examine(tmp_path)).append_point)
            log.lsn = lsn - 1
            assert log.write() == poll(follower)
        assert len(list(tmp_path.glob("*.xlog"))) == 1
    log.writer.close()


def test_only_what_is_synced_is_given_out_in_the_writers_own_process(tmp_path: Path) -> None:
    """`durable` says how far: rows that could still be lost are not passed on."""
    log = Log(tmp_path)
    newest, synced = tmp_path / "0", 0

    def durable() -> tuple[Path, int]:
        return newest, synced

    with Follower(tmp_path, VClock(), durable=durable) as follower:
        log.write(3)
        assert poll(follower) == []
        log.writer.sync()
        assert log.writer.path is not None
        newest, synced = log.writer.path, log.writer.size
        assert poll(follower) == [1, 2, 3]
        log.write()
        assert poll(follower) == []
        synced = log.writer.size
        log.writer.close()
        assert poll(follower) == [4]
        log.write()  # into the next file
        assert poll(follower) == []
        newest, synced = log.writer.path, log.writer.size
        assert poll(follower) == [5]
    log.writer.close()


def test_damage_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """A follower must not go on as if there were no more rows."""
    with (
        Follower(damaged("i-huge-length").folder, VClock()) as follower,
        pytest.raises(CorruptBlock) as caught,
    ):
        poll(follower)
    assert caught.value.offset == 2134
    assert follower.vclock == {1: 40}
    with (
        Follower(damaged("h-flipped-magic").folder, VClock()) as follower,
        pytest.raises(CorruptBlock),
    ):
        poll(follower)


def test_a_wrong_bit_in_the_newest_file_is_not_its_end(tmp_path: Path) -> None:
    """What stands behind it proves that it was written whole, and so does a sync; the last block
    of another process may be under way."""
    log = Log(tmp_path)
    log.write(3)
    log.writer.abandon()
    (path,) = tmp_path.glob("*.xlog")
    whole = path.read_bytes()
    with Follower(tmp_path, VClock()) as follower:
        assert poll(follower) == [1, 2, 3]
        last = follower.offset - 10
    for offset in (last, last - len(b"".join(encode_block(rows(3))))):
        data = bytearray(whole)
        data[offset] ^= 1
        path.write_bytes(data)
        with Follower(tmp_path, VClock()) as follower:
            if offset == last:
                assert poll(follower) == [1, 2]
            else:
                with pytest.raises(CorruptBlock, match="checksum"):
                    poll(follower)
        with (
            Follower(tmp_path, VClock(), durable=lambda: (path, len(whole))) as follower,
            pytest.raises(CorruptBlock, match="checksum"),
        ):
            poll(follower)


def test_a_position_is_compared_by_replica(tmp_path: Path) -> None:
    """One that is far ahead of a log in one component may lack rows of another before it."""
    log = Log(tmp_path)
    log.write(3)
    log.writer.rotate()
    log.write(1)
    log.writer.close()
    index = scan_directory(tmp_path)
    first, second = index.xlogs
    assert index.xlogs_after(VClock({7: 100, 1: 2})) == [first, second]
    assert index.xlogs_after(VClock({7: 100, 1: 3})) == [second]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Rows between two files are not skipped."""
    with Follower(damaged("v-gap").folder, VClock()) as follower, pytest.raises(ChainGap) as caught:
        poll(follower)
    assert caught.value.expected == {1: 20}
    assert caught.value.found == {1: 79}
    assert follower.vclock == {1: 20}


def test_a_position_that_the_log_no_longer_holds_is_an_error(tmp_path: Path) -> None:
    """Whoever is that far behind starts from a snapshot."""
    folder = sample("03-replicaset/instance-2").folder
    with Follower(folder, VClock({1: 10})) as follower, pytest.raises(PositionUnavailable):
        poll(follower)


def test_rows_of_several_replicas_are_followed_by_their_own_lsns() -> None:
    """A position is a vclock: rows of each replica behind its own component."""
    one = sample("03-replicaset/instance-1")
    expected = [
        (row.get("replica_id", 0), row["lsn"])
        for file in one.files
        if file.path.suffix == ".xlog"
        for row in file.rows
    ]
    after = VClock({1: 38, 2: 31})
    with Follower(one.folder, after) as follower:
        found = [
            (i, lsn)
            for block in follower.poll()
            for i, lsn in zip(block.columns.replica_id, block.columns.lsn, strict=True)
            if lsn > after.lsn(i)
        ]
    assert found == [(i, lsn) for i, lsn in expected if lsn > after.lsn(i)]


@pytest.mark.parametrize("read_before", [0, 3])
def test_a_log_that_cannot_be_opened_is_not_passed_over(tmp_path: Path, read_before: int) -> None:
    """A disk that fails once is told, and what stands there comes with the next poll; it is not
    taken for the end of the log."""
    log = Log(tmp_path)
    log.write(3)
    disk = FaultyFileSystem(OS)
    with Follower(tmp_path, VClock(), filesystem=disk) as follower:
        if read_before:
            assert poll(follower) == [1, 2, 3]
            log.writer.rotate()
            log.write(2)
            assert len(scan_directory(tmp_path).xlogs) == 2
        names = sorted(path.name for path in tmp_path.glob("*.xlog"))
        if read_before:
            disk.fault = Fault(1, kinds={"list_directory"})
            with pytest.raises(WalError, match="input/output error"):
                poll(follower)
        disk.fault = Fault(len(names), kinds={"open_read"})  # the newest
        with pytest.raises(CorruptBlock, match=names[-1]):
            poll(follower)
        assert poll(follower) == ([4, 5] if read_before else [1, 2, 3])
    log.writer.close()


@pytest.mark.parametrize("max_bytes", [2, 400])
def test_poll_ends_though_each_block_that_is_taken_brings_another(
    tmp_path: Path, max_bytes: int
) -> None:
    """With the newest file that was there; the next poll goes on, and nothing is left out."""
    log = Log(tmp_path, max_bytes=max_bytes)
    log.write(20)
    with Follower(tmp_path, VClock()) as follower:
        seen: list[int] = []
        polls = 0
        while polls < 3:
            for block in follower.poll():
                seen += block.columns.lsn
                assert len(seen) < 100 * (polls + 1)
                log.write()
            polls += 1
            assert len(seen) >= 20
        seen += poll(follower)
    log.writer.close()
    assert seen == list(range(1, log.lsn + 1))
