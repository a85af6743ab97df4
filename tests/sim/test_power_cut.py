"""A writer on a disk that loses power: what was synced stays, nothing else is ever half there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sim.writing import (
    FOLDER,
    Written,
    check_image,
    fresh_disk,
    live_through,
    open_writer,
    rows_of,
    write_batch,
)

from logweir.recovery import examine
from logweir.recovery.faults import SimFileSystem
from logweir.wal.block import EOF_MARKER, MAGIC_PLAIN, MAGIC_ZSTD, encode_block
from logweir.wal.damage import FileEnd
from logweir.wal.filesystem import make_folders
from logweir.wal.reader import WalReader
from logweir.wal.writer import WriterOptions

SEEDS = 250


@pytest.mark.parametrize("group", range(10))
def test_after_any_power_cut_everything_synced_is_there(group: int) -> None:
    """Random histories of four power cuts each; a failing one is repeated by its number."""
    for seed in range(group, SEEDS, 10):
        try:
            live_through(seed)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error


def test_any_subset_of_the_sectors_of_an_unsynced_write_is_an_ending() -> None:
    """One batch of four blocks over nine sectors: all 512 images of it open, and lose only it."""
    disk = fresh_disk()
    rng = random.Random(5)
    written = Written()
    writer = open_writer(disk, written)
    write_batch(writer, written, rng)
    writer.sync()
    path = writer.path
    assert path is not None
    safe = disk.contents(path)
    written.synced = len(written.rows)
    while len(disk.contents(path)) < len(safe) // 512 * 512 + 9 * 512 - 400:
        write_batch(writer, written, rng)
    whole = disk.contents(path)
    first = len(safe) // 512 * 512
    sectors = range(first, len(whole), 512)
    ends = set()
    for choice in range(2 ** min(len(sectors), 9)):
        image = bytearray(safe.ljust(len(whole), b"\0"))
        for number, start in enumerate(sectors):
            if choice >> number & 1 or number >= 9:
                image[start : start + 512] = whole[start : start + 512]
        left = fresh_disk()
        left.put(path, bytes(image))
        check_image(left, written)
        with WalReader(path, filesystem=left) as reader:
            ends.update(type(item).__name__ for item in reader.blocks())
            ends.add(str(reader.end))
    assert {FileEnd.UNSYNCED_TAIL, FileEnd.ZERO_TAIL, FileEnd.UNCLOSED} <= ends


def written_log(*, close: bool) -> tuple[SimFileSystem, Path]:
    """A log of several synced batches, over 4000 bytes."""
    disk = fresh_disk()
    rng = random.Random(6)
    written = Written()
    writer = open_writer(disk, written)
    while writer.size < 4000:
        write_batch(writer, written, rng)
        writer.sync()
    path = writer.path
    assert path is not None
    if close:
        writer.close()
        assert disk.contents(path).endswith(EOF_MARKER)
    else:
        write_batch(writer, written, rng)
        writer.sync()
    return disk, path


@pytest.mark.parametrize("close", [True, False])
def test_a_lost_sector_of_synced_blocks_is_corruption(close: bool) -> None:
    """A later block, or the EOF marker, which is only written behind synced data, proves it."""
    disk, path = written_log(close=close)
    whole = disk.contents(path)
    for start in range(512, 4000 - 512, 512):
        disk.put(path, whole[:start] + bytes(512) + whole[start + 512 :])
        assert not examine(FOLDER, filesystem=disk).ok, start


def test_no_block_leaves_a_sector_with_zeros_only() -> None:
    """On disk that means a missing sector; so such rows are packed, wherever the block stands."""
    head, payload = encode_block(b"\x81" + bytes(512), threshold_bytes=None)
    assert head.startswith(MAGIC_ZSTD)
    assert bytes(512) not in bytes(payload)
    head, _ = encode_block(b"\x81" + bytes(200) + b"\x01", threshold_bytes=None)
    assert head.startswith(MAGIC_PLAIN)
    for threshold in (None, 100):
        packed = 0
        for offset in range(1024):
            head, payload = encode_block(
                b"\x81" * 300 + bytes(100), threshold_bytes=threshold, offset=offset
            )
            packed += head.startswith(MAGIC_ZSTD)
            end = offset + len(head) + len(payload)
            part = bytes(payload)[-(end % 512) :] if end % 512 else b"x"
            assert part.count(0) < len(part)
        assert packed == (200 if threshold is None else 1024)


def test_a_flipped_bit_of_an_acknowledged_batch_is_never_an_ending() -> None:
    """Also in the last batch of a log that was not closed, whatever zeros its rows hold."""
    for seed in range(12):
        rng = random.Random(seed)
        disk = fresh_disk()
        written = Written()
        threshold = rng.choice((None, 2029))
        options = WriterOptions(
            compress_threshold_bytes=threshold,
            is_synced=True,
            write_ahead_bytes=rng.choice((0, 3000, 2**20)),
        )
        writer = open_writer(disk, written, options)
        for _ in range(3):
            write_batch(writer, written, rng)
            writer.sync()
        path = writer.path
        assert path is not None
        whole = disk.contents(path)
        for _ in range(60):
            at = rng.randrange(len(whole))
            bad = bytes((whole[at] ^ (1 << rng.randrange(8)),))
            disk.put(path, whole[:at] + bad + whole[at + 1 :])
            report = examine(FOLDER, filesystem=disk)
            if not report.blocking:
                assert rows_of(report) == written.rows, (seed, at)


def test_a_name_that_was_not_synced_may_be_lost_but_never_what_it_holds() -> None:
    """Both outcomes of a power cut between rename and directory sync open."""
    seen = set()
    for seed in range(40):
        disk = SimFileSystem(seed=seed)
        make_folders(disk, FOLDER)
        file = disk.create(FOLDER / "a.inprogress")
        file.write([b"content"])
        file.sync()
        disk.sync_directory(FOLDER)
        disk.rename(FOLDER / "a.inprogress", FOLDER / "a")
        after = disk.crash(seed=seed)
        names = after.list_directory(FOLDER)
        seen.add(tuple(names))
        for name in names:
            assert after.contents(FOLDER / name) == b"content"
    assert ("a",) in seen
    assert ("a.inprogress",) in seen
