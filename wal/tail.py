# cython: annotation_typing=False
"""`Tail`: the file at the end of the log, and how blocks get into it.

They are appended, or written over zeros that stand behind the last one (`wal.filler`); then a new
filler follows them. `wal.writer` says which file it is, and what becomes of one where that fails.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `tail.pxd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logweir.wal.block import FIXHEADER_BYTES, MAGIC_PLAIN, Pieces, encode_block, encode_pieces
from logweir.wal.crc32c import checksum
from logweir.wal.filesystem import AppendFile
from logweir.wal.filler import FILLER_BYTES, encode_filler
from logweir.wal.fillerkernel import block_head
from logweir.wal.vclock import VClock

FIRST_AHEAD_BYTES: Final = 16 * 1024
"""A log has no more zeros than data, but for so many."""

_UNSYNCED_MAX = 2**32 - 1
_FILLER_BYTES = FILLER_BYTES
_PAGE_BYTES = 4096
"""A kill ends a write between two pages, not inside of one."""
_PLAIN: Final = MAGIC_PLAIN[3]
_DENSE_BLOCKS: Final = 8
"""After so many blocks of pieces in a row that could not be made smaller only each of so many is
looked at: trying takes as long as writing."""

Buffer = bytes | bytearray | memoryview


class Tail:
    """The file being written. `start`: the position where it begins; `synced`: bytes known to be on
    stable storage; `size`: bytes in it; `filled`: the same with what was written ahead, if anything
    was; `takes_zeros`: until they could not be written; `begin`, `head`: where the last block that
    was framed begins, and the first buffer of it."""

    def __init__(self, file: AppendFile, path: Path, start: VClock, synced: int) -> None:
        self.file = file
        self.path = path
        self.start = start
        self.synced = synced
        self.size = self.filled = file.size()
        self.takes_zeros = True
        self.begin = self.size
        self.head: Buffer = b""
        self._number = int(path.stem)
        self._dense = 0  # how many blocks of pieces in a row could not be made smaller

    def framed(
        self, blocks: Sequence[Buffer | Pieces], threshold_bytes: int | None, level: int
    ) -> tuple[list[Buffer], int]:
        """Rows as blocks that are to stand behind what is there: what is to be written, and where
        it ends. `threshold_bytes`, `level`: as of `encode_block`."""
        size = self.size
        parts: list[Buffer] = []
        for rows in blocks:
            unsynced = min(size - self.synced, _UNSYNCED_MAX)
            first, begin = len(parts), size
            if isinstance(rows, Pieces):
                parts += self._pieces(rows, threshold_bytes, level, unsynced, size)
            else:
                head = None
                if threshold_bytes is None or len(rows) < threshold_bytes:
                    head = block_head(_PLAIN, checksum, rows, unsynced, size)
                if head is not None:
                    parts.append(head)
                    parts.append(rows)
                else:
                    parts += encode_block(
                        rows,
                        threshold_bytes=threshold_bytes,
                        level=level,
                        unsynced_bytes=unsynced,
                        offset=size,
                    )
            for number in range(first, len(parts)):
                size += len(parts[number])
            self.begin, self.head = begin, parts[first]
        return parts, size

    def _pieces(
        self, rows: Pieces, threshold_bytes: int | None, level: int, unsynced: int, offset: int
    ) -> Sequence[Buffer]:
        """What came in several buffers is often like what came before it: see `_DENSE_BLOCKS`."""
        block = encode_pieces(
            rows,
            threshold_bytes=threshold_bytes,
            level=level,
            unsynced_bytes=unsynced,
            offset=offset,
            is_dense=self._dense >= _DENSE_BLOCKS and self._dense % _DENSE_BLOCKS > 0,
        )
        self._dense = self._dense + 1 if rows.checksums else 0
        if rows.checksums:
            rows.file, rows.offset = self._number, offset + FIXHEADER_BYTES
        return block

    def put(self, parts: list[Buffer], size: int) -> None:
        """Write what was framed; the file's data ends at `size` then. Raises `OSError`, and then
        some of it may be there."""
        if self.filled > self.size:
            self._overwrite(parts, size)
        else:
            self.file.write(parts)
        self.size = size

    def _overwrite(self, parts: list[Buffer], size: int) -> None:
        """Write over what was written ahead.

        What a killed process leaves ends in a whole filler, or in one that is longer than the file:
        where the write is not inside of one page, all but its first one is written before that.
        """
        before = self.size
        filled = max(self.filled, size + _FILLER_BYTES)
        self.filled = filled
        parts.append(encode_filler(filled - size - _FILLER_BYTES))
        border = (before + _FILLER_BYTES + _PAGE_BYTES - 1) // _PAGE_BYTES * _PAGE_BYTES
        if size + _FILLER_BYTES > border:
            front, behind = _split(parts, border - before)
            self.file.put([encode_filler(filled - before - _FILLER_BYTES + 1)], before)
            self.file.put(behind, border)
            self.file.put(front, before)
        else:
            self.file.put(parts, before)

    def sync(self) -> None:
        """Return when everything written is on stable storage. Raises `OSError`."""
        self.file.sync()
        self.synced = self.size

    def cut(self, size: int) -> None:
        """Cut the file back to `size` bytes, on stable storage. Raises `OSError`."""
        self.file.truncate(size)
        # A later crash could bring back whole blocks of a batch behind the next one's.
        self.file.sync()
        self.synced = self.size = self.filled = size

    def zeros_wanted(self, most_bytes: int) -> int:
        """So many zeros, at most `most_bytes`, are to stand behind what is there; 0: those that do
        are enough, or none can be written."""
        step = min(most_bytes, max(self.size, FIRST_AHEAD_BYTES))
        return step if self.filled - self.size < step // 2 and self.takes_zeros else 0


def _split(parts: Sequence[Buffer], count: int) -> tuple[list[Buffer], list[Buffer]]:
    """The first `count` bytes of `parts`, and the others."""
    front: list[Buffer] = []
    for number, part in enumerate(parts):
        if len(part) > count:
            view = memoryview(part)
            return [*front, view[:count]], [view[count:], *parts[number + 1 :]]
        front.append(part)
        count -= len(part)
    return front, []
