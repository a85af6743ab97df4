"""`wal.zstdkernel`, which unpacks a frame at once: it takes none that a stream refuses, and finds
in it what a stream does."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logweir.errors import DecodeError, LimitExceeded
from logweir.wal import block
from logweir.wal.zstdlib import zstd

zstdkernel = pytest.importorskip("logweir.wal.zstdkernel")

LIMIT = 1 << 20
MAGIC = bytes.fromhex("28b52ffd")
TEXT = b"".join(b"%d rows, " % (number * number) for number in range(9000))


class Part(NamedTuple):
    """A block of a frame: its kind (0 as it is, 1 one byte again and again, 2 compressed), the
    size that its header says, and what follows."""

    kind: int
    size: int
    data: bytes


def _blocks(frame: bytes) -> list[Part]:
    """Those of a frame without a size or a checksum, as it was written."""
    found, at, last = [], 6, 0
    while not last:
        header = int.from_bytes(frame[at : at + 3], "little")
        kind, size, last = header >> 1 & 3, header >> 3, header & 1
        end = at + 3 + (1 if kind == 1 else size)
        found.append(Part(kind, size, frame[at + 3 : end]))
        at = end
    assert at == len(frame)
    return found


OPTIONS = {zstd.CompressionParameter.content_size_flag: False}
PACKED = [_blocks(zstd.compress(TEXT[:size], options=OPTIONS)) for size in (40, 5000, 79000)]
SIZES = st.one_of(st.integers(0, 3000), st.sampled_from([1 << 17, (1 << 17) + 1, (1 << 18) + 5]))
PLAIN = SIZES.map(lambda size: Part(0, size, TEXT[:size].ljust(size)))
AGAIN = SIZES.map(lambda size: Part(1, size, b"a"))
ODD = st.builds(Part, st.integers(0, 3), st.integers(0, 40), st.binary(max_size=40))
OTHERS = st.lists(st.one_of(PLAIN, AGAIN, ODD), max_size=3)
PARTS = st.builds(lambda first, then: [*first, *then], st.sampled_from([[], *PACKED]), OTHERS)


def frame(told: int, head: bytes, parts: list[Part], behind: bytes) -> bytes:
    """A frame of these blocks. `told`: its first byte, `head`: what follows it."""
    out = MAGIC + bytes((told,)) + head
    for number, (kind, size, data) in enumerate(parts, 1):
        header = size << 3 | kind << 1 | (number == len(parts))
        out += (header & 0xFFFFFF).to_bytes(3, "little") + data
    return out + behind


def by_stream(payload: bytes) -> bytes | None:
    """What `decompress` finds without the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "unpack", None)
        try:
            return block.decompress(payload, LIMIT)
        except (DecodeError, LimitExceeded):
            return None


@given(
    st.sampled_from([0, 0x20, 0x04, 0x60, 0xA0, 0x40, 0x01, 0xE0]),
    st.one_of(
        st.integers(0, 255).map(lambda window: bytes((window,))), st.binary(min_size=1, max_size=8)
    ),
    PARTS,
    st.sampled_from([b"", b"", b"\0\0\0\0", b"\0"]),
)
@example(0, b"\x50", [Part(1, (1 << 17) + 1, b"a")], b"")  # a block of more than one may hold
@example(0, b"\x00", [Part(1, 1500, b"a")], b"")  # more than its window
@example(0, b"\x00", [Part(0, 1000, TEXT[:1000]), *PACKED[1]], b"")
def test_no_frame_is_taken_that_a_stream_refuses(
    told: int, head: bytes, parts: list[Part], behind: bytes
) -> None:
    """Of frames whose headers say too much, too little or nonsense."""
    payload = frame(told, head, parts, behind)
    found = zstdkernel.unpack(payload, LIMIT)
    if found is not None:
        assert found == by_stream(payload)


@pytest.mark.parametrize("size", [0, 1, 70, 5000, 1 << 17, (1 << 17) + 1, 400_000])
@pytest.mark.parametrize("is_told", [False, True])
def test_what_is_written_is_taken(size: int, is_told: bool) -> None:
    """Frames of every size, with and without their size and a checksum."""
    rows = (TEXT * 6)[:size]
    for level in (1, 3, 19):
        options = {
            zstd.CompressionParameter.compression_level: level,
            zstd.CompressionParameter.content_size_flag: is_told,
            zstd.CompressionParameter.checksum_flag: is_told,
        }
        packer = zstd.ZstdCompressor(options=options)
        assert zstdkernel.unpack(packer.compress(rows, packer.FLUSH_FRAME), LIMIT) == rows
