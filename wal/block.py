"""Blocks: the 19-byte fixheader, the payload, the EOF marker. Bytes ↔ values; no I/O.

=============================  ====================================================================
part                           encoding
=============================  ====================================================================
magic, 4 bytes                 `d5 ba 0b ab` rows as they are, `d5 ba 0b ba` rows in one zstd frame
length                         shortest MsgPack uint: bytes of the stored payload that follows
checksum of the block before   MsgPack uint; Tarantool writes 0 and every reader ignores it
checksum of this block         shortest MsgPack uint: `crc32c.checksum` of the stored payload
padding up to byte 19          k bytes left, k > 0: `a0 + (k - 1)` and k - 1 zeros
=============================  ====================================================================

A reader takes any one MsgPack value as padding that ends exactly at byte 19, or nothing. The length
is covered by no checksum: bound it, and never trust it after a checksum that does not match.
Not so rows of which samples come out as long as they went in: those are stored as they are.
logweir puts into the ignored field how many bytes before this block were written but not synced
(0: everything before is synced), so that recovery can tell a lost sync from corruption.
`d5 10 ad ed` is the EOF marker, the last 4 bytes of a file that was closed in order.
Rows of `limits.COMPRESS_THRESHOLD_BYTES` and more are compressed: one frame, read by streaming
only, with a cap on what comes out. Source: Tarantool 2.6.0, observed and `xlog.c`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import (
    BLOCK_RAW_BYTES,
    BLOCK_STORED_BYTES,
    COMPRESS_THRESHOLD_BYTES,
)
from logweir.wal import fillerkernel, kernel
from logweir.wal.crc32c import checksum, checksums
from logweir.wal.mp import decode_uint, skip
from logweir.wal.zstdlib import zstd

try:
    from logweir.wal.zstdkernel import unpack
except ImportError:  # what stands in `zstdlib` does the same
    unpack = None  # type: ignore[assignment]

Buffer = bytes | bytearray | memoryview
BlockKind = Literal["plain", "zstd"]

FIXHEADER_BYTES: Final = 19
MAGIC_PLAIN: Final = bytes.fromhex("d5ba0bab")
MAGIC_ZSTD: Final = bytes.fromhex("d5ba0bba")
EOF_MARKER: Final = bytes.fromhex("d510aded")
_SECTOR_BYTES: Final = 512
_LEVELS: Final = 5  # so many more ways to compress are tried if zeros remain
_LONG_RUN: Final = _SECTOR_BYTES - 8  # of zeros, in one part; the next may begin with some
_SAMPLE_BYTES: Final = 2048
_SAMPLED_BYTES: Final = 32 * _SAMPLE_BYTES  # smaller blocks are just compressed
_SAMPLED_PIECE_BYTES: Final = 4 * _SAMPLE_BYTES  # the same of what would have to be joined first


@dataclass(slots=True)
class Pieces:
    """The rows of one block in several buffers, one after the other.

    None may end with more than a few zeros if the next one begins with a zero. Once written as
    they are: `checksums`: of the rows up to the end of each part; `file`, `offset`: the number in
    the name of the file, and where the first part stands in it. If they were joined or
    compressed these stay empty.
    """

    parts: Sequence[Buffer]
    size_bytes: int
    checksums: Sequence[int] = ()
    file: int | None = None
    offset: int = 0

    def __len__(self) -> int:
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class FixHeader:
    """One decoded fixheader. `stored_bytes`: payload that follows; `crc`: its checksum;
    `unsynced_bytes`: what stands in the field for the checksum of the block before."""

    kind: BlockKind
    stored_bytes: int
    crc: int
    unsynced_bytes: int = 0


def _read_uint(data: bytes | memoryview, at: int, name: str) -> tuple[int, int]:
    read = decode_uint(data, at)
    if read is None:
        raise DecodeError(f"block header: {name} is not an unsigned integer", offset=at)
    return read


def encode_fixheader(
    kind: BlockKind, stored_bytes: int, crc: int, unsynced_bytes: int = 0
) -> bytearray:
    """The 19 bytes before a payload of `stored_bytes` bytes with checksum `crc`.

    `unsynced_bytes`: bytes written and not yet synced before this block. All three: 0 … 2^32-1.
    """
    out = bytearray(FIXHEADER_BYTES)
    last = MAGIC_PLAIN[3] if kind == "plain" else MAGIC_ZSTD[3]
    kernel.put_fixheader(last, stored_bytes, unsynced_bytes, crc, out)
    return out


_PADDING: Final = [
    bytes((0xA0 + left - 1,)) + bytes(left - 1) if left > 0 else b""
    for left in range(FIXHEADER_BYTES, -1, -1)
]
"""By the place where it begins."""


_UINT_BYTES: Final = {**dict.fromkeys(range(0x80), 0), 0xCC: 1, 0xCD: 2, 0xCE: 4}
"""By the first byte of a MsgPack uint of at most 32 bits: how many bytes follow it."""


def decode_fixheader(data: bytes | memoryview) -> FixHeader:
    """Read one fixheader. `data`: exactly 19 bytes. Raises `DecodeError`."""
    head = bytes(data)
    magic = head[:4]
    if magic not in (MAGIC_PLAIN, MAGIC_ZSTD):
        raise DecodeError(f"block magic is {magic.hex()}", offset=0)
    if len(head) != FIXHEADER_BYTES:
        raise DecodeError(f"block header has {len(head)} bytes, not 19", offset=len(head))
    kind: BlockKind = "plain" if magic == MAGIC_PLAIN else "zstd"
    fields: list[int] = []
    at = 4
    while len(fields) < 3 and (size := _UINT_BYTES.get(head[at])) is not None:
        start, at = at + (size > 0), at + 1 + size
        fields.append(int.from_bytes(head[start:at], "big"))
    if len(fields) == 3 and fields[0] <= BLOCK_STORED_BYTES and head[at:] == _PADDING[at]:
        return FixHeader(kind, fields[0], fields[2], fields[1])
    # What no known program writes, but every reader takes; or an error, to be named.
    stored_bytes, at = _read_uint(data, 4, "length")
    unsynced_bytes, at = _read_uint(data, at, "checksum of the block before")
    crc, at = _read_uint(data, at, "checksum")
    end = skip(data, at) if at < FIXHEADER_BYTES else at
    if end != FIXHEADER_BYTES:
        raise DecodeError("block header padding does not end at byte 19", offset=end)
    if stored_bytes > BLOCK_STORED_BYTES:
        raise DecodeError(f"block length {stored_bytes} is over 2^31", offset=4)
    if crc >> 32:
        raise DecodeError(f"block checksum {crc:x} has more than 32 bits", offset=at)
    return FixHeader(kind, stored_bytes, crc, unsynced_bytes)


_local = threading.local()


def _compress(rows: Buffer, level: int, *, with_checksum: bool = False) -> bytes:
    form = (level, with_checksum)
    if getattr(_local, "form", None) != form:
        _local.form = form
        _local.compressor = zstd.ZstdCompressor(
            options={
                zstd.CompressionParameter.compression_level: level,
                zstd.CompressionParameter.content_size_flag: False,
                zstd.CompressionParameter.checksum_flag: with_checksum,
            }
        )
    packed: bytes = _local.compressor.compress(rows, zstd.ZstdCompressor.FLUSH_FRAME)
    return packed


def _is_dense(rows: Buffer, level: int, least_bytes: int = _SAMPLED_BYTES) -> bool:
    """Whether compressing would be for nothing, as two samples of `rows` tell; not asked of less
    than `least_bytes`."""
    if len(rows) < least_bytes:
        return False
    view = memoryview(rows)
    quarter = len(rows) // 4
    samples = b"".join(view[at : at + _SAMPLE_BYTES] for at in (quarter, 3 * quarter))
    return len(_compress(samples, level)) >= len(samples) * 15 // 16


def _packed_forms(rows: Buffer, level: int) -> Iterator[bytes]:
    """The rows compressed in several ways, the wanted one first."""
    yield _compress(rows, level)
    for other in range(1, _LEVELS):
        yield _compress(rows, other, with_checksum=True)


def encode_block(
    rows: Buffer,
    *,
    threshold_bytes: int | None = COMPRESS_THRESHOLD_BYTES,
    level: int = 1,
    unsynced_bytes: int = 0,
    offset: int = 0,
) -> tuple[bytearray, Buffer]:
    """Frame `rows` (one or more whole transactions) as one block.

    `threshold_bytes`: compress from this size on, None never; `level`: of zstd, 1 … 22;
    `unsynced_bytes`: as in `encode_fixheader`; `offset`: where in its file the block will stand.
    On a disk zeros mean that a sector is missing, so what would leave one with zeros only is
    compressed in any case. Returns the fixheader and the payload, to be written one behind the
    other.
    """
    packs = (
        threshold_bytes is not None and len(rows) >= threshold_bytes and not _is_dense(rows, level)
    )
    if not packs:
        head = fillerkernel.block_head(MAGIC_PLAIN[3], checksum, rows, unsynced_bytes, offset)
        if head is not None:
            return head, rows
    for payload in _packed_forms(rows, level):
        head = fillerkernel.block_head(MAGIC_ZSTD[3], checksum, payload, unsynced_bytes, offset)
        if head is not None:
            return head, payload
    return encode_fixheader("zstd", len(payload), checksum(payload), unsynced_bytes), payload


def encode_pieces(
    rows: Pieces,
    *,
    threshold_bytes: int | None = COMPRESS_THRESHOLD_BYTES,
    level: int = 1,
    unsynced_bytes: int = 0,
    offset: int = 0,
    is_dense: bool = False,
) -> Sequence[Buffer]:
    """`encode_block` of rows in several buffers. Returns what is to be written.

    They are joined only if that makes the block smaller, or has to be. `is_dense`: it would not,
    which need not be looked at.
    """
    parts = rows.parts
    packs = not is_dense and threshold_bytes is not None and rows.size_bytes >= threshold_bytes
    if (packs and not _is_dense(max(parts, key=len), level, _SAMPLED_PIECE_BYTES)) or (
        fillerkernel.ends_in_zeros(
            parts[-1], offset + FIXHEADER_BYTES + rows.size_bytes - len(parts[-1])
        )
    ):
        found = None
    else:
        found = checksums(parts, _LONG_RUN)
    if found is None:
        return encode_block(
            b"".join(parts),
            threshold_bytes=threshold_bytes,
            level=level,
            unsynced_bytes=unsynced_bytes,
            offset=offset,
        )
    rows.checksums = found
    head = encode_fixheader("plain", rows.size_bytes, found[-1], unsynced_bytes)
    return (head, *parts)


def decompress(payload: bytes | memoryview, limit_bytes: int = BLOCK_RAW_BYTES) -> bytes:
    """Unpack one zstd payload.

    What a frame says of its size is not believed: memory is taken as bytes come out. Raises
    `LimitExceeded` when more than `limit_bytes` come out, `DecodeError` for anything that is not
    one whole frame.
    """
    found = None if unpack is None else unpack(payload, limit_bytes)
    if found is not None:
        return found
    unpacker = zstd.ZstdDecompressor()
    try:
        data: bytes = unpacker.decompress(payload, limit_bytes + 1)
    except zstd.ZstdError as error:
        raise DecodeError(f"zstd frame cannot be unpacked: {error}") from error
    if len(data) > limit_bytes:
        raise LimitExceeded(
            "BLOCK_RAW_BYTES",
            limit_bytes,
            len(data),
            hint="a block this large is not written by Tarantool; it may be a bomb",
        )
    if not unpacker.eof or unpacker.unused_data:
        raise DecodeError("zstd frame is cut short or followed by something", offset=len(payload))
    return data
