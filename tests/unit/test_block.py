"""Blocks: fixheader, payload, EOF marker."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import mutate
from samples import GOOD, blocks, sample
from support.frames import frame as other_frame

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import BLOCK_STORED_BYTES
from logweir.wal import block
from logweir.wal.block import (
    EOF_MARKER,
    FIXHEADER_BYTES,
    MAGIC_PLAIN,
    MAGIC_ZSTD,
    FixHeader,
    decode_fixheader,
    decompress,
    encode_block,
    encode_fixheader,
)
from logweir.wal.crc32c import checksum
from logweir.wal.zstdlib import zstd

ROWS = bytes.fromhex(
    "840004020103010 4cb41dac02c85a0f9d5 8410cd0110150120 91a66d61785f6964 219193a12b0201".replace(
        " ", ""
    )
)
"""One row: UPDATE of space 272, as Tarantool 2.6.0 wrote it."""


def test_worked_block() -> None:
    """The header and the payload of a block that Tarantool 2.6.0 wrote."""
    header, payload = encode_block(ROWS)
    assert header.hex() == "d5ba0bab2800ce04934c16a700000000000000"
    assert payload == ROWS
    assert decode_fixheader(header) == FixHeader("plain", 40, 0x04934C16)
    assert EOF_MARKER.hex() == "d510aded"


@pytest.mark.parametrize("name", GOOD)
def test_blocks_of_the_samples(name: str) -> None:
    """Every block is where the independent decoder found it, and its header encodes alike."""
    for file in sample(name).files:
        data = file.path.read_bytes()
        found = list(blocks(file.path))
        assert [offset for offset, _ in found] == [block.offset for block in file.blocks]
        for (offset, rows), want in zip(found, file.blocks, strict=True):
            header = decode_fixheader(data[offset : offset + FIXHEADER_BYTES])
            assert header == FixHeader(header.kind, want.stored_bytes, int(want.crc, 16))
            assert header.kind == want.kind
            assert len(rows) == want.raw_bytes
            encoded = encode_fixheader(header.kind, header.stored_bytes, header.crc)
            assert encoded == data[offset : offset + FIXHEADER_BYTES]
            assert (want.raw_bytes >= 2029) == (want.kind == "zstd")
        end = file.blocks[-1].offset + 19 + file.blocks[-1].stored_bytes if file.blocks else None
        assert file.eof == data.endswith(EOF_MARKER)
        assert end is None or data[end:] == (EOF_MARKER if file.eof else b"")


@given(
    st.sampled_from(["plain", "zstd"]),
    st.integers(0, BLOCK_STORED_BYTES),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
def test_fixheader_round_trip(kind: object, stored_bytes: int, crc: int, unsynced: int) -> None:
    """Every header is 19 bytes long and reads back, from any kind of buffer."""
    assert kind in ("plain", "zstd")
    data = encode_fixheader(kind, stored_bytes, crc, unsynced)  # type: ignore[arg-type]
    assert len(data) == FIXHEADER_BYTES
    assert data[:4] == (MAGIC_PLAIN if kind == "plain" else MAGIC_ZSTD)
    want = FixHeader(kind, stored_bytes, crc, unsynced)  # type: ignore[arg-type]
    assert decode_fixheader(data) == want
    assert decode_fixheader(memoryview(data)) == want


@pytest.mark.parametrize(
    ("data", "header"),
    [
        ("d5ba0bab 28 00 ce04934c16 a700000000000000", FixHeader("plain", 40, 0x04934C16)),
        ("d5ba0bab cc80 00 ce04934c16 a6000000000000", FixHeader("plain", 128, 0x04934C16)),
        ("d5ba0bba ce00000028 ce00000007 ce00000005", FixHeader("zstd", 40, 5, 7)),
        ("d5ba0bab cf0000000000000028 00 05 a3000000", FixHeader("plain", 40, 5)),
        ("d5ba0bab ce80000000 00 05 a7" + "00" * 7, FixHeader("plain", 2**31, 5)),
        ("d5ba0bab 28 00 05 ab" + "00" * 11, FixHeader("plain", 40, 5)),
        ("d5ba0bab 28 00 05 c40a" + "00" * 10, FixHeader("plain", 40, 5)),
        ("d5ba0bab 28 00 05 9b" + "c0" * 11, FixHeader("plain", 40, 5)),
    ],
)
def test_headers_that_are_read(data: str, header: FixHeader) -> None:
    """Numbers of any width and any one value as padding, or none at all."""
    assert decode_fixheader(bytes.fromhex(data.replace(" ", ""))) == header


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("", 0),
        ("d5ba0b", 0),
        ("00" * 19, 0),
        ("d510aded" + "00" * 15, 0),
        ("d5ba0bab", 4),
        ("d5ba0bab2800ce04934c16a7000000000000", 18),
        ("d5ba0bab2800ce04934c16a70000000000000000", 20),
        ("d5ba0babff00ce04934c16a700000000000000", 4),
        ("d5ba0bab28c0ce04934c16a700000000000000", 5),
        ("d5ba0bab2800d204934c16a700000000000000", 6),
        ("d5ba0bab2800ce04934c16a600000000000000", 18),
        ("d5ba0bab2800ce04934c16a800000000000000", 19),
        ("d5ba0bab2800ce04934c16c100000000000000", 11),
        ("d5ba0bab2800ce04934c169800000000000000", 12),
        ("d5ba0babce8000000100ce04934c16a3000000", 4),
        ("d5ba0bab2800cf0000000100000000a3000000", 15),
        ("d5ba0babcf000000000000002800cf00000000", 14),
    ],
)
def test_headers_that_are_refused(data: str, offset: int) -> None:
    """Wrong magic, length, numbers, padding: refused at the byte."""
    with pytest.raises(DecodeError) as caught:
        decode_fixheader(bytes.fromhex(data))
    assert caught.value.offset == offset


def test_flipped_bits_of_a_header() -> None:
    """Each bit flipped gives an error or another header, never an accident."""
    header, _ = encode_block(ROWS)
    read = 0
    for bit in range(8 * FIXHEADER_BYTES):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_fixheader(bytes(damaged))
        except DecodeError:
            continue
        read += 1
        inside = bit >= 88  # the padding says nothing
        assert (found == decode_fixheader(header)) == inside
    assert read > 56


@pytest.mark.parametrize("size", [2028, 2029])
def test_compression_threshold(size: int) -> None:
    """Rows of 2029 bytes are compressed, 2028 are not, as Tarantool 2.6.0 does it."""
    header, payload = encode_block(b"x" * size)
    assert decode_fixheader(header).kind == ("zstd" if size == 2029 else "plain")
    assert decode_fixheader(header).crc == checksum(payload)
    assert decode_fixheader(header).stored_bytes == len(payload)
    plain, _ = encode_block(b"x" * size, threshold_bytes=None)
    assert decode_fixheader(plain) == FixHeader("plain", size, checksum(b"x" * size))


@pytest.fixture(
    params=[None, block.unpack] if block.unpack is not None else [None],
    ids=lambda unpack: "module" if unpack is None else "libzstd",
    scope="module",
    autouse=True,
)
def unpacking(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frames are unpacked by the module, and by libzstd where that was compiled."""
    chosen, block.unpack = block.unpack, request.param
    yield
    block.unpack = chosen


@given(st.binary(max_size=20_000), st.sampled_from([1, 3, 1, 9]), st.integers(0, 9))
def test_compressed_round_trip(rows: bytes, level: int, unsynced: int) -> None:
    """What is compressed unpacks, at any level, from any kind of buffer."""
    header, payload = encode_block(
        bytearray(rows), threshold_bytes=0, level=level, unsynced_bytes=unsynced
    )
    assert decode_fixheader(header).unsynced_bytes == unsynced
    assert decompress(bytes(payload)) == rows
    assert decompress(memoryview(payload)) == rows


def test_frames_are_as_tarantool_writes_them() -> None:
    """A frame has no content size and no checksum: its first bytes are those of 2.6.0."""
    _, payload = encode_block(bytes(range(256)) * 10, level=3)
    assert bytes(payload[:6]).hex().startswith("28b52ffd00")


def test_compressors_are_not_shared_between_threads() -> None:
    """Blocks that are compressed in several threads at once are whole."""
    sources = [Random(i).randbytes(50) * 400 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(lambda rows: bytes(encode_block(rows)[1]), sources))
    assert [decompress(payload) for payload in packed] == sources


def test_contexts_are_not_shared_between_threads() -> None:
    """Frames of any size that are unpacked in several threads at once are what was packed, and a
    damaged one among them spoils no other."""
    sources = [Random(i).randbytes(50) * (1 << i % 16) for i in range(48)]
    packed = [bytes(encode_block(rows, threshold_bytes=0)[1]) for rows in sources]
    packed[7] = packed[7][:-3]

    def unpack(payload: bytes) -> bytes:
        try:
            return decompress(payload)
        except DecodeError:
            return b"damaged"

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(unpack, packed * 8))
    assert found == [*sources[:7], b"damaged", *sources[8:]] * 8


def test_other_frames_are_read() -> None:
    """Frames with content size and checksum are read too."""
    assert decompress(other_frame(ROWS * 100, level=9)) == ROWS * 100


def test_truncated_frames_are_refused() -> None:
    """A frame cut at any byte, followed by anything, empty, or two of them: refused."""
    frame = bytes(encode_block(ROWS * 60)[1])
    for size in range(len(frame)):
        with pytest.raises(DecodeError, match="zstd"):
            decompress(frame[:size])
    for tail in (b"\0", frame, b"x" * 20_000):
        with pytest.raises(DecodeError, match="zstd"):
            decompress(frame + tail)
        with pytest.raises(DecodeError, match="zstd"):
            decompress(frame + tail, limit_bytes=2 * 32768)


def test_mutated_frames_are_read_or_refused() -> None:
    """Damaged frames give bytes within the limit or our errors."""
    random = Random(5)
    frames = [bytes(encode_block(ROWS * n, level=level)[1]) for n in (60, 300) for level in (1, 9)]
    frames.append(other_frame(ROWS * 60))
    refused = 0
    for _ in range(3_000):
        try:
            assert len(decompress(mutate(random, random.choice(frames)), 50_000)) <= 50_000
        except (DecodeError, LimitExceeded):
            refused += 1
    assert 500 < refused < 3_000


def unpacked(unpack: Callable[[bytes], bytes], payload: bytes) -> bytes | str:
    try:
        return unpack(payload)
    except DecodeError:
        return "refused"


def streamed(payload: bytes) -> bytes:
    """Unpacked in small steps."""
    unpacker = zstd.ZstdDecompressor()
    parts = []
    for at in range(0, len(payload), 97):
        if unpacker.eof:
            raise DecodeError("something is behind the frame", offset=at)
        try:
            parts.append(unpacker.decompress(payload[at : at + 97]))
        except zstd.ZstdError as error:
            raise DecodeError("broken") from error
    if not unpacker.eof or unpacker.unused_data:
        raise DecodeError("no frame, or not one alone")
    return b"".join(parts)


def test_frames_unpacked_at_once_are_those_that_are_streamed() -> None:
    """Whole, cut, mutated or with something behind: both ways take the same frames as the same."""
    random = Random(7)
    sources = [b"", b"\0" * 200_000, ROWS * 900, random.randbytes(9000), random.randbytes(300_000)]
    forms = [(False, False), (True, False), (False, True), (True, True)]
    frames = [
        other_frame(rows, sized=sized, checked=checked)
        for rows in sources
        for sized, checked in forms
    ]
    taken = 0
    for frame in frames:
        changed = [mutate(random, frame[:3000] + frame[-20:]) for _ in range(60)]
        for payload in (frame, frame[:-1], frame + b"x", frame + frame, *changed):
            found = unpacked(decompress, payload)
            assert found == unpacked(streamed, payload)
            taken += found != "refused"
    assert taken > len(frames)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("raw_bytes", [1_000_000, 1_000_001, 50_000_000])
def test_bombs_cost_little(raw_bytes: int, sized: bool) -> None:
    """Output is counted as it comes: n bytes pass, n + 1 do not; memory stays near the limit."""
    bomb = other_frame(bytes(raw_bytes), sized=sized, checked=False)
    tracemalloc.start()
    try:
        if raw_bytes == 1_000_000:
            assert decompress(bomb, 1_000_000) == bytes(raw_bytes)
        else:
            with pytest.raises(LimitExceeded, match="BLOCK_RAW_BYTES is 1000000") as caught:
                decompress(bomb, 1_000_000)
            assert "bomb" in caught.value.hint
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


def test_a_frame_whose_size_cannot_be_told_is_refused() -> None:
    """Found by the fuzzer: the library raises its own error where it is asked for that size."""
    data = "28b52ffd00b0ad0100c402840003020103cd01b504cb41dac02c85a1d0408210cd02012192a462696731"
    data += "da27106162636465666768696a01001c38e54b19"
    with pytest.raises(DecodeError):
        decompress(bytes.fromhex(data))


def test_a_frame_that_lies_about_its_size_is_not_believed() -> None:
    """A content size of 2^60 in a frame's header takes no memory for it."""
    header = bytes.fromhex("28b52ffd") + bytes((0xC0, 0x58)) + (2**60).to_bytes(8, "little")
    tracemalloc.start()
    try:
        got = decompress(header + b"\x01\x00\x00")  # one last block, empty
    except DecodeError:
        got = b""  # some versions of zstd compare the sizes
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert got == b""
    assert peak < 1_000_000
