"""Zeros written ahead: the filler in front of them, who reads the file meanwhile, and `trim`."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.logs import INSTANCE, START, insert, transaction
from typer.testing import CliRunner

import logweir
from logweir.errors import ConfigError, CorruptBlock, DirectoryLocked
from logweir.limits import WRITE_AHEAD_MAX_BYTES
from logweir.recovery import examine
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.recovery.trim import trim
from logweir.store.schema.bulk import interpreted
from logweir.tools.cli.main import app
from logweir.wal import fillerkernel
from logweir.wal.block import (
    EOF_MARKER,
    FIXHEADER_BYTES,
    MAGIC_PLAIN,
    MAGIC_ZSTD,
    decode_fixheader,
    encode_fixheader,
)
from logweir.wal.blockfile import Block, BlockFile
from logweir.wal.crc32c import checksum, reference_checksum
from logweir.wal.damage import Damage, DamageKind, FileEnd
from logweir.wal.filesystem import OS
from logweir.wal.filler import FILLER_BYTES, encode_filler, filler_zeros
from logweir.wal.follow import Follower
from logweir.wal.reader import WalReader
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions

AHEAD = 8192
TAILS = {DamageKind.TORN_TAIL, DamageKind.ZERO_TAIL, DamageKind.UNSYNCED_TAIL}
PLAIN = interpreted(fillerkernel)


def begun(folder: Path, **options: int | None) -> WalWriter:
    """A writer of a folder with a snapshot, one synced row in its log."""
    folder.mkdir(exist_ok=True)
    snap = SnapshotWriter(folder, VClock(), INSTANCE, timestamp=START)
    snap.finish()
    settings = WriterOptions(is_synced=True, **{"write_ahead_bytes": AHEAD, **options})
    writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()), options=settings)
    add(writer, 1)
    return writer


def add(writer: WalWriter, lsn: int, text: str = "apple") -> None:
    """One durable row."""
    writer.write([transaction(lsn, [insert(512, [lsn, text])])], VClock({1: lsn}))
    writer.sync()


def begun_before(folder: Path, place: int, **options: int | None) -> WalWriter:
    """The same, with one more row, so that the next block begins at `place`."""
    writer = begun(folder, **options)
    left = place - writer.size - FIXHEADER_BYTES - len(transaction(2, [insert(512, [2, "x"])])) - 1
    add(writer, 2, random.Random(2).randbytes(999).hex()[:left])
    return writer


def lsns(path: Path) -> tuple[list[int], FileEnd | None, list[Damage]]:
    """What a reader sees in a file."""
    found: list[int] = []
    damage: list[Damage] = []
    with WalReader(path, skip_damage=True) as reader:
        for item in reader.blocks():
            if isinstance(item, Block):
                found += item.columns.lsn
            else:
                damage.append(item)
        return found, reader.end, damage


@pytest.mark.parametrize("module", [fillerkernel, PLAIN], ids=["compiled", "interpreted"])
def test_the_checksum_of_zeros_is_the_definition(module: object) -> None:
    """Of any bytes and any number of zeros behind them, by `crcmod` over the zeros themselves."""
    dice = random.Random(1)
    for count in [*range(70), *(dice.randrange(1 << 18) for _ in range(12)), 1 << 20]:
        data = dice.randbytes(dice.randrange(30))
        expected = reference_checksum(data + bytes(count))
        assert module.behind_zeros(checksum(data), count) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [fillerkernel, PLAIN], ids=["compiled", "interpreted"])
def test_a_block_that_would_leave_a_sector_of_zeros_gets_no_head(module: Any) -> None:
    """At any place, for zeros at its end and inside of it; all others get the head that stands in
    the log."""
    dice = random.Random(2)
    given = 0
    for _ in range(3000):
        front, zeros = dice.choice([0, 1, 30, 600]), dice.choice([0, 1, 200, 511, 512, 520])
        data = b"x" * front + bytes(zeros) + b"x" * dice.choice([0, 0, 1, 40])
        offset = dice.randrange(2000)
        last = (offset + FIXHEADER_BYTES + len(data)) % 512
        is_bare = 0 < last <= len(data) and not any(data[len(data) - last :])
        if bytes(512) in data or is_bare:
            expected = None
        else:
            expected = encode_fixheader("plain", len(data), reference_checksum(data), offset)
            given += 1
        found = module.block_head(MAGIC_PLAIN[3], reference_checksum, data, offset, offset)
        assert found == expected, (front, zeros, offset)
    assert 500 < given < 2900


def test_a_filler_is_a_whole_block_without_rows() -> None:
    """For all lengths of its length field: right checksum, right length, one skipped zstd frame."""
    for zeros in [*range(300), 65_519, 65_520, 65_535, 65_536, 100_000, 1 << 20]:
        head = encode_filler(zeros)
        assert head == PLAIN.filler_head(zeros)
        assert len(head) == FILLER_BYTES
        header = decode_fixheader(head[:FIXHEADER_BYTES])
        payload = head[FIXHEADER_BYTES:] + bytes(zeros)
        assert (header.kind, header.stored_bytes) == ("zstd", len(payload))
        assert reference_checksum(payload) == header.crc
        assert filler_zeros(head + b"what follows") == zeros
        for at in range(FILLER_BYTES):
            flipped = bytearray(head)
            flipped[at] ^= 1
            assert filler_zeros(flipped) is None, at
        assert filler_zeros(head[:-1]) is None


@pytest.mark.parametrize("left", range(-3, 45))
def test_every_length_of_a_block_leaves_a_whole_filler(tmp_path: Path, left: int) -> None:
    """Also one that leaves less room than a filler needs, or none, or passes the zeros' end."""
    writer = begun(tmp_path / "log", compress_threshold_bytes=None)
    path = writer.path
    assert path is not None
    room = os.stat(path).st_size - writer.size
    size = room - left - FIXHEADER_BYTES
    row = transaction(2, [insert(512, [2, "x" * (room - 200)])])
    row = transaction(2, [insert(512, [2, "x" * (room - 200 + size - len(row))])])
    assert len(row) == size
    writer.write([row], VClock({1: 2}))
    data = path.read_bytes()
    assert len(data) == writer.size + max(left, FILLER_BYTES)
    zeros = len(data) - writer.size - FILLER_BYTES
    assert data[writer.size :] == encode_filler(zeros) + bytes(zeros)
    assert lsns(path) == ([1, 2], FileEnd.UNCLOSED, [])
    add(writer, 3)
    assert lsns(path) == ([1, 2, 3], FileEnd.UNCLOSED, [])
    end = writer.size
    writer.close()
    assert os.stat(path).st_size == end + len(EOF_MARKER)
    assert lsns(path) == ([1, 2, 3], FileEnd.CLEAN, [])


def test_what_stands_ahead_of_the_log_grows_with_it_and_is_bounded(tmp_path: Path) -> None:
    """Never more zeros than asked for, never past the size at which the file is closed."""
    writer = begun(tmp_path / "log", max_bytes=30_000, write_ahead_bytes=100_000)
    path = writer.path
    assert path is not None
    for lsn in range(2, 260):
        add(writer, lsn, "x" * 100)
        if writer.path != path:
            break
        assert os.stat(path).st_size <= max(30_000, writer.size + 2 * FILLER_BYTES)
    assert writer.path != path  # it was closed when its data was full, not its zeros
    assert 30_000 <= os.stat(path).st_size < 30_400
    writer.close()
    assert lsns(path)[1] is FileEnd.CLEAN


def test_without_zeros_or_without_syncs_a_log_is_as_long_as_its_data(tmp_path: Path) -> None:
    """`write_ahead=0`, and a log whose writer does not sync."""
    for name, synced, ahead in (("off", True, 0), ("unsynced", False, AHEAD)):
        with logweir.open(
            tmp_path / name, "fsync" if synced else "write", write_ahead=ahead
        ) as log:
            log.create_space("kv", [("id", "unsigned")])
            log.insert("kv", (1,))
            path, end = log.inner.durable_end
            assert os.stat(path).st_size == end


def test_a_bad_number_of_bytes_is_refused(tmp_path: Path) -> None:
    """By name, before anything is made."""
    for bad in (-1, WRITE_AHEAD_MAX_BYTES + 1, 1.5, "1"):
        with pytest.raises(ConfigError, match="write_ahead"):
            logweir.open(tmp_path / "no", write_ahead=bad)  # type: ignore[arg-type]
    assert not (tmp_path / "no").exists()


def test_a_disk_without_room_for_zeros_takes_rows_all_the_same(tmp_path: Path) -> None:
    """What fails ahead of the log is no failure of the log; the half of it is cut off."""
    for at in (1, 2, 3):
        folder = tmp_path / str(at)
        writer = begun(folder, write_ahead_bytes=0)
        writer.abandon()
        disk = FaultyFileSystem(OS)
        report = examine(folder)
        options = WriterOptions(is_synced=True, write_ahead_bytes=AHEAD)
        writer = WalWriter(folder, INSTANCE, report.append_point, options=options, filesystem=disk)
        writer.write([transaction(2, [insert(512, [2])])], VClock({1: 2}))
        disk.fault = Fault(at, {"write"}, part=0.5)
        writer.sync()
        assert disk.failed.startswith("write")
        assert os.stat(writer.path or "").st_size == writer.size
        add(writer, 3)
        writer.abandon()
        assert examine(folder).vclock == VClock({1: 3})


def test_a_block_that_is_lost_in_front_of_synced_ones_is_damage(tmp_path: Path) -> None:
    """A disk that lost a synced write over zeros left the filler there: more than an ending."""
    writer = begun(tmp_path / "log")
    path = writer.path
    assert path is not None
    place, before = writer.size, path.read_bytes()
    add(writer, 2)
    end = writer.size
    add(writer, 3)
    data = bytearray(path.read_bytes())
    writer.abandon()
    data[place:end] = before[place:end]
    path.write_bytes(data)
    found, _, damage = lsns(path)
    assert found == [1, 3]
    assert [(one.offset, one.rows_lost) for one in damage] == [(place, 1)]
    assert not examine(path.parent).ok
    with pytest.raises(CorruptBlock):
        trim(path.parent)


def test_a_flipped_bit_in_the_last_block_is_damage(tmp_path: Path) -> None:
    """The filler behind it tells that it was written whole."""
    writer = begun(tmp_path / "log")
    path = writer.path
    assert path is not None
    place = writer.size
    add(writer, 2, "y" * 700)
    end = writer.size
    writer.abandon()
    data = path.read_bytes()
    for at in range(place, end):
        flipped = bytearray(data)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        found, _, damage = lsns(path)
        assert damage or found == [1, 2], at


@pytest.mark.parametrize("ahead", [AHEAD, 0])
def test_a_flipped_bit_in_a_packed_block_that_begins_near_a_border_is_damage(
    tmp_path: Path, ahead: int
) -> None:
    """Its head lies in two sectors: the first could be a filler's that was there before."""
    tried = 0
    for place in range(1024 - FILLER_BYTES, 1024):
        writer = begun_before(
            tmp_path / f"{place}", place, compress_threshold_bytes=1000, write_ahead_bytes=ahead
        )
        path = writer.path
        assert path is not None
        assert writer.size == place
        add(writer, 3, random.Random(3).randbytes(600).hex())
        end = writer.size
        writer.abandon()
        data = path.read_bytes()
        assert data.startswith(MAGIC_ZSTD, place)
        last = range(place + FIXHEADER_BYTES, end, 40)
        for at in [*range(place, place + FIXHEADER_BYTES), *last]:
            for bit in range(8):
                flipped = bytearray(data)
                flipped[at] ^= 1 << bit
                path.write_bytes(flipped)
                found, _, damage = lsns(path)
                tails = [one for one in damage if one.kind in TAILS]
                assert (damage and not tails) or found == [1, 2, 3], (at - place, bit, damage)
                tried += 1
    assert tried > 20 * 8 * FIXHEADER_BYTES


def test_trim_leaves_plain_files(tmp_path: Path) -> None:
    """Of a killed store, also one killed in the middle of a write; twice it has nothing to do."""
    folder = tmp_path / "log"
    writer = begun(folder)
    path = writer.path
    assert path is not None
    end = writer.size
    add(writer, 2, random.Random(2).randbytes(2000).hex())
    whole = path.read_bytes()
    last = writer.size
    writer.abandon()
    cut = len(whole) - last
    told = [{"path": str(path), "size": last, "cut_bytes": cut}]
    dry = CliRunner().invoke(app, ["trim", str(folder), "--dry-run"])
    assert f"{cut} bytes would be cut off, {last} left" in " ".join(dry.stdout.split())
    for dry_run in (True, False):
        assert path.read_bytes() == whole
        words = ["trim", str(folder), "--json", *["--dry-run"] * dry_run]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {"logs": told, "dry_run": dry_run}
    assert path.read_bytes() == whole[:last]
    assert trim(folder) == ()
    border = (end // 512 + 1) * 512
    path.write_bytes(whole[: border + 512] + bytes(len(whole) - border - 512))
    assert [one.size for one in trim(folder)] == [end]
    assert path.read_bytes() == whole[:end]
    assert lsns(path) == ([1], FileEnd.UNCLOSED, [])


def test_trim_leaves_a_folder_alone_that_is_written_to(tmp_path: Path) -> None:
    """And one that is closed is as it was."""
    with logweir.open(tmp_path / "s", write_ahead=AHEAD) as log:
        log.create_space("kv", [("id", "unsigned")])
        with pytest.raises(DirectoryLocked):
            trim(tmp_path / "s")
    assert trim(tmp_path / "s") == ()


def test_a_log_of_a_live_store_is_whole_to_everybody(tmp_path: Path) -> None:
    """`verify`, `info`, `cat` and `read` of a store that is open, with zeros ahead of its log."""
    with logweir.open(tmp_path / "s", write_ahead=AHEAD) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.append("kv", [(i,) for i in range(50)])
        path, end = log.inner.durable_end
        assert os.stat(path).st_size > end
        run = CliRunner().invoke
        for words in (["verify"], ["info"], ["cat"], ["cat", "--format", "hex"]):
            for place in (log.path, path):
                result = run(app, [*words, str(place)])
                assert result.exit_code == 0, (words, result.output)
                assert "unfinished" not in result.output
        assert len([row for row in logweir.read(path) if row.decoded().get("tuple")]) >= 50
        with log.backup() as files:
            (tmp_path / "copy").mkdir()
            for file in files:
                (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    with logweir.open(tmp_path / "copy") as log:
        assert log.count("kv") == 50


def _keep_writing(folder: Path, stop: int) -> None:
    writer = begun(folder)
    for lsn in range(2, stop + 1):
        add(writer, lsn, "x" * (lsn * 37 % 5000))
    writer.abandon()


@pytest.mark.parametrize("seed", range(2))
def test_a_follower_of_another_process_gets_every_row_once(tmp_path: Path, seed: int) -> None:
    """It reads while blocks are written over zeros, and never takes half of one for damage; nor
    does a reader that looks at the whole file again and again."""
    folder = tmp_path / "log"
    last = 900
    child = multiprocessing.get_context("fork").Process(target=_keep_writing, args=(folder, last))
    child.start()
    try:
        while not list(folder.glob("*.xlog")):
            assert child.is_alive()
        found: list[int] = []
        with Follower(folder, VClock()) as follower:
            while not found or found[-1] != last:
                alive = child.is_alive()
                for block in follower.poll():
                    found += array("Q", block.columns.lsn)
                assert not follower.is_ahead
                whole, _, damage = lsns(next(folder.glob("*.xlog")))
                assert whole == list(range(1, len(whole) + 1))
                assert not [one for one in damage if "unfinished" not in one.message]
                assert alive or found[-1] == last
        assert found == list(range(1, last + 1))
    finally:
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()


def test_a_file_is_looked_at_in_small_steps_behind_what_is_known(tmp_path: Path) -> None:
    """Who follows a log does not read all of its zeros at every look."""
    writer = begun(tmp_path / "log", write_ahead_bytes=1 << 20)
    path = writer.path
    assert path is not None
    for lsn in range(2, 200):
        add(writer, lsn, "x" * 8000)
    disk = _Counting()
    with BlockFile(path, filesystem=disk) as file:  # type: ignore[arg-type]
        file.refresh()
        assert file.is_filler_at(writer.size)
    assert disk.bytes_read <= 16 * 1024
    writer.close()


class _Counting:
    """The disk, with a count of what was read."""

    bytes_read = 0

    def open_read(self, path: Path) -> _Counting:
        self.file = OS.open_read(path)
        self.path = path
        self.size, self.close = self.file.size, self.file.close
        return self

    def read(self, count: int, offset: int) -> bytes:
        data = self.file.read(count, offset)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize("ahead", [None, 400], ids=["inside", "past"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_unsynced_write_over_a_filler_is_an_ending_whatever_sectors_of_it_arrived(
    tmp_path: Path, packed: bool, ahead: int | None
) -> None:
    """Also where the filler's head, and the block's, lies in two sectors, and where the write goes
    past the zeros."""
    starts: set[int] = set()
    text = random.Random(3).randbytes(600).hex()
    for place in range(512 - FILLER_BYTES - 1, 514):
        writer = begun_before(
            tmp_path / f"{place}",
            place + 512,
            compress_threshold_bytes=1000 if packed else None,
            **({} if ahead is None else {"write_ahead_bytes": ahead}),
        )
        path = writer.path
        assert path is not None
        start, old = writer.size, path.read_bytes()
        writer.write([transaction(3, [insert(512, [3, text])])], VClock({1: 3}))
        starts.add(start % 512)
        stop, new = writer.size + FILLER_BYTES, path.read_bytes()
        writer.abandon()
        assert (len(new) > len(old)) == (ahead is not None)
        sectors = range(start // 512 * 512, stop, 512)
        for choice in range(2 ** len(sectors)):
            image = bytearray(old)
            for number, at in enumerate(sectors):
                if choice >> number & 1:
                    image.extend(bytes(max(at - len(image), 0)))
                    image[at : at + 512] = new[at : at + 512]
            path.write_bytes(image)
            report = examine(path.parent)
            assert not report.damage, (start % 512, choice, [str(one) for one in report.damage])
            assert report.vclock.lsn(1) in (2, 3)
    assert starts >= set(range(490, 512))
