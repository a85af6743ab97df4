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
    write_batch,
)

from logweir.recovery import examine
from logweir.recovery.faults import SimFileSystem
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.damage import FileEnd
from logweir.wal.reader import WalReader

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


def test_rows_with_a_sector_of_zeros_are_packed() -> None:
    """On disk a run of 512 zeros means a missing sector, so no plain block may hold one."""
    rows = b"\x81" + bytes(512)
    head, payload = encode_block(rows, threshold_bytes=None)
    assert head.startswith(bytes.fromhex("d5ba0bba"))
    assert bytes(512) not in bytes(payload)
    head, _ = encode_block(b"\x81" + bytes(511), threshold_bytes=None)
    assert head.startswith(bytes.fromhex("d5ba0bab"))


def test_a_name_that_was_not_synced_may_be_lost_but_never_what_it_holds() -> None:
    """Both outcomes of a power cut between rename and directory sync open."""
    seen = set()
    for seed in range(40):
        disk = SimFileSystem(seed=seed)
        disk.make_directory(FOLDER)
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
