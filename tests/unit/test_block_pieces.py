"""Blocks in pieces, and rows that are not worth compressing."""

from __future__ import annotations

import uuid
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.wal.block import (
    FIXHEADER_BYTES,
    Pieces,
    decode_fixheader,
    decompress,
    encode_block,
    encode_pieces,
)
from logweir.wal.crc32c import checksum, checksums, reference_checksum
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter

NOISE = Random(7).randbytes(200_000)


def pieces(*parts: bytes) -> Pieces:
    """Parts with their size."""
    return Pieces(parts, sum(map(len, parts)))


def rows_of(block: bytes) -> tuple[str, bytes]:
    """The kind of a block and its rows, after a look at its header."""
    header = decode_fixheader(block[:FIXHEADER_BYTES])
    payload = block[FIXHEADER_BYTES:]
    assert (header.stored_bytes, header.crc) == (len(payload), checksum(payload))
    return header.kind, decompress(payload) if header.kind == "zstd" else payload


def test_what_does_not_compress_is_stored_as_it_is() -> None:
    """From 64 KiB on samples tell; smaller rows and those that do compress are compressed."""
    assert decode_fixheader(encode_block(NOISE)[0]).kind == "plain"
    assert decode_fixheader(encode_block(NOISE[: 64 * 1024])[0]).kind == "plain"
    assert decode_fixheader(encode_block(NOISE[: 64 * 1024 - 1])[0]).kind == "zstd"
    assert decode_fixheader(encode_block(b"some text " * 20_000)[0]).kind == "zstd"
    half = NOISE[:50_000] + b"some text " * 5_000
    assert decode_fixheader(encode_block(half)[0]).kind == "zstd"


def test_pieces_that_do_not_compress_are_not_joined() -> None:
    """What is written are the buffers themselves, and the block is that of the joined rows."""
    parts = (b"\x85head", NOISE, b"\x85more", NOISE[:70_000])
    written = encode_pieces(pieces(*parts), unsynced_bytes=5)
    assert all(mine is given for mine, given in zip(written[1:], parts, strict=True))
    assert b"".join(written) == b"".join(encode_block(b"".join(parts), unsynced_bytes=5))


@pytest.mark.parametrize(
    "data",
    [b"text " * 20_000, NOISE + bytes(600) + NOISE, bytes(100_000), NOISE[:-300] + bytes(300)],
    ids=["text", "zeros inside", "zeros", "zeros at the end"],
)
def test_pieces_that_are_compressed_are_joined(data: bytes) -> None:
    """Text, and whatever would leave a sector of zeros, at any place in the file."""
    for offset in (0, 1, 211, 511):
        whole = pieces(b"\x85head", data)
        block = b"".join(encode_pieces(whole, offset=offset))
        assert rows_of(block)[1] == b"\x85head" + data
        assert block == b"".join(encode_block(b"\x85head" + data, offset=offset))


@given(
    st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5),
    st.sampled_from([None, 0, 2029]),
    st.integers(0, 600),
)
def test_pieces_give_the_block_of_the_joined_rows(
    parts: list[bytes], threshold: int | None, offset: int
) -> None:
    """Byte for byte, whatever the parts are."""
    parts = [b"\x85" + part for part in parts]
    written = encode_pieces(pieces(*parts), threshold_bytes=threshold, offset=offset)
    joined = encode_block(b"".join(parts), threshold_bytes=threshold, offset=offset)
    assert b"".join(written) == b"".join(joined)


def test_what_stopped_being_dense_is_compressed_again(tmp_path: Path) -> None:
    """Many dense blocks in a row are taken for dense without a look, but not for long."""
    text = b"some text " * 10_000
    writer = WalWriter(tmp_path, uuid.uuid4(), AppendPoint(VClock()))
    kinds = []
    for number, data in enumerate((*[NOISE] * 40, *[text] * 10, NOISE, text)):
        block = pieces(b"\x85head", data)
        writer.write([block], VClock({1: number + 1}))
        kinds.append("plain" if block.checksums else "zstd")
    writer.close()
    assert kinds[:40] == ["plain"] * 40
    changed = kinds[40:50]
    assert changed == sorted(changed)
    assert changed[-2:] == ["zstd", "zstd"]
    assert kinds[50:] == ["plain", "zstd"]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_checksums_of_parts_are_those_of_what_ends_there(parts: list[bytes]) -> None:
    """By the definition."""
    expected = [reference_checksum(b"".join(parts[: end + 1])) for end in range(len(parts))]
    assert checksums(parts, 301) == expected


@given(
    st.lists(st.lists(st.sampled_from([b"\0" * 7, b"\0", b"x"])).map(b"".join), min_size=1),
    st.integers(1, 20),
)
def test_parts_with_many_zeros_have_no_checksums(parts: list[bytes], zeros: int) -> None:
    """So many in a row, in one part."""
    has_many = any(b"\0" * zeros in part for part in parts)
    assert (checksums(parts, zeros) is None) == has_many


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksum_goes_on(one: bytes, other: bytes) -> None:
    """That of two parts is that of the whole, in both ways to compute it."""
    assert checksum(other, checksum(one)) == checksum(one + other)
    assert reference_checksum(other, reference_checksum(one)) == checksum(one + other)
