"""zstd frames of other forms than those that we write."""

from __future__ import annotations

from logweir.wal.zstdlib import zstd


def frame(rows: bytes, *, level: int = 3, sized: bool = True, checked: bool = True) -> bytes:
    """One that says its size, or not, and has a checksum, or not."""
    options = {
        zstd.CompressionParameter.compression_level: level,
        zstd.CompressionParameter.content_size_flag: sized,
        zstd.CompressionParameter.checksum_flag: checked,
    }
    return zstd.compress(rows, options=options)
