"""A wrong bit in the length field, which no checksum covers, never loses rows in silence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from samples import damaged

from logweir.errors import RecoveryRefused
from logweir.recovery import examine, plan, replay
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader
from logweir.wal.meta import decode_meta
from logweir.wal.mp import decode_uint

ROWS = 115
END = bytes.fromhex("d510aded")


def length_fields(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of every block: its offset, and where its length field begins and ends."""
    _, at = decode_meta(data)
    while len(data) - at > FIXHEADER_BYTES:
        header = decode_fixheader(data[at : at + FIXHEADER_BYTES])
        field = decode_uint(data, at + 4)
        assert field is not None
        yield at, at + 4, field[1]
        at += FIXHEADER_BYTES + header.stored_bytes


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_flipped_bit_of_every_length_is_refused_and_named(
    number: int, closed: bool, tmp_path: Path
) -> None:
    """In older files and in the newest, closed or not; with force every row is kept."""
    folder = tmp_path / "log"
    shutil.copytree(damaged("u-three-logs-ok").folder, folder)
    path = sorted(folder.glob("*.xlog"))[number]
    good = path.read_bytes()
    if not closed:
        good = good[:-4]
    places = [*(offset for offset, _, _ in length_fields(good)), len(good.removesuffix(END))]
    blocks = {at: end - at for at, end in pairwise(places)}
    flips = named = 0
    for offset, first, end in length_fields(good):
        for bit in range(8 * (end - first)):
            bad = bytearray(good)
            bad[first + bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            report = examine(folder)
            with pytest.raises(RecoveryRefused) as caught:
                plan(report)
            assert caught.value.path == str(path)
            assert caught.value.offset == offset
            sizes = [one.size for file in report.files for one in file.damage if one.salvage[1]]
            assert set(sizes) <= {blocks[offset]}
            named += len(sizes)
            rows = sum(batch.last - batch.first for batch in replay(plan(report, force=True)))
            flips += 1
            assert rows == ROWS
    assert flips > 150
    assert named
