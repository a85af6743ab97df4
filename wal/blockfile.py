"""One log file or snapshot by offset: its bytes through a window, the block at a place, or why none
can be read there.

What an unreadable place means is for `wal.endings`; going from block to block is for `wal.reader`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from logweir.errors import DecodeError, LimitExceeded, WalError
from logweir.limits import BLOCK_RAW_BYTES, READ_WINDOW_BYTES, VCLOCK_COMPONENTS
from logweir.wal.block import (
    EOF_MARKER,
    FIXHEADER_BYTES,
    MAGIC_PLAIN,
    MAGIC_ZSTD,
    FixHeader,
    decode_fixheader,
    decompress,
)
from logweir.wal.closing import Closable
from logweir.wal.columns import RowColumns
from logweir.wal.crc32c import checksum
from logweir.wal.damage import DamageKind
from logweir.wal.filesystem import OS, FileSystem, ReadFile, explain, explaining
from logweir.wal.filler import FILLER_BYTES, filler_before, filler_zeros, last_nonzero
from logweir.wal.settled import Settled
from logweir.wal.walk import Walked, walk_blocks
from logweir.wal.xrow import Row, Transaction

_NO_LSNS: Final = array("Q", bytes(8 * VCLOCK_COMPONENTS))
_PROBE_BYTES: Final = 64 * 1024 * 1024
_FIRST_WINDOW_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `offset`, `stored_bytes`: as in the file; `columns`: its rows."""

    path: str
    offset: int
    header: FixHeader
    columns: RowColumns

    @property
    def end(self) -> int:
        """Where the next block begins, in bytes."""
        return self.offset + FIXHEADER_BYTES + self.header.stored_bytes

    @property
    def data(self) -> bytes | bytearray | memoryview:
        """The rows' bytes, unpacked."""
        return self.columns.data

    def above(self, lsns: array[int]) -> Block | None:
        """The block with the rows above `lsns` only, None if there is none; see
        `RowColumns.above`."""
        columns = self.columns.above(lsns)
        if columns is self.columns:
            return self
        return replace(self, columns=columns) if len(columns) else None

    def first_rows(self, count: int) -> Block:
        """The block with its first rows only."""
        data = self.columns.data[: self.columns.row_offset[count]]
        return replace(self, columns=RowColumns.scan(data))

    def shown(self, settled: Settled) -> Block:
        """The block with a NOP in the place of each row that was undone."""
        columns = settled.shown(self.columns)
        return self if columns is self.columns else replace(self, columns=columns)

    def rows(self) -> Iterator[Row]:
        """The rows as objects."""
        return map(self.columns.row, range(len(self.columns)))

    def transactions(self) -> Iterator[Transaction]:
        """The block's transactions as objects."""
        for first, last in self.columns.transactions():
            rows = tuple(self.columns.row(i) for i in range(first, last))
            yield Transaction(rows, path=self.path, offset=self.offset)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why no block could be read at an offset."""

    kind: DamageKind
    message: str
    header: FixHeader | None = None


class FileCut(WalError):
    """The file became shorter while it was read."""

    def __init__(self, path: str, offset: int, got: str) -> None:
        super().__init__(
            f"the file became shorter while it was read: {got}.",
            path=path,
            offset=offset,
            hint="another program cut it; read it again",
        )


class BlockFile(Closable):
    """One file of blocks, open for reading at any offset.

    `path`: the file; `limit_bytes`: how large a block may be, stored and unpacked. Raises
    `WalError` if the file cannot be opened. Memory: one block and one window of
    `limits.READ_WINDOW_BYTES`, whatever the file's size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: FileSystem = OS,
        limit_bytes: int = BLOCK_RAW_BYTES,
    ) -> None:
        self.path = path if isinstance(path, Path) else Path(path)
        self.name = str(path)
        self.limit_bytes = limit_bytes
        try:
            self._file: ReadFile = filesystem.open_read(self.path)
        except OSError as error:
            raise explain(error, self.name) from error
        self._window = memoryview(b"")
        self._window_offset = 0
        self._window_bytes = READ_WINDOW_BYTES
        try:
            self._size = self._file.size()
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise explain(error, self.name, 0) from error
            raise
        self._probe_left = _PROBE_BYTES + 2 * self._size

    def close(self) -> None:
        """Close the file. Blocks that were read stay usable."""
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened, or at the last `refresh`."""
        return self._size

    @property
    def is_closed(self) -> bool:
        """Whether the EOF marker is the last thing in the file."""
        return self._size >= 4 and bytes(self.bytes_at(self._size - 4, 4)) == EOF_MARKER

    def refresh(self) -> None:
        """Forget what was read ahead and look at the file's size again: it may have grown. Little
        is read at a time at first: there may be nothing but zeros behind it."""
        self._window = memoryview(b"")
        self._window_bytes = _FIRST_WINDOW_BYTES
        with explaining(self.name):
            self._size = self._file.size()

    def block_at(self, offset: int) -> Block | Problem:
        """The block that begins at `offset`, or why there is none."""
        found = self.stored_at(offset)
        if isinstance(found, Problem):
            return found
        return self.open_block(offset, *found)

    def stored_at(self, offset: int) -> tuple[FixHeader, memoryview] | Problem:
        """Header and payload of the block at `offset`; its checksum is not looked at."""
        head = self.bytes_at(offset, FIXHEADER_BYTES)
        try:
            header = decode_fixheader(head)
        except DecodeError as error:
            magic = bytes(head[:4])
            if magic in (MAGIC_PLAIN, MAGIC_ZSTD):
                return Problem(DamageKind.BLOCK_HEADER, error.reason)
            return Problem(DamageKind.MAGIC, f"no block begins here: {error.reason}")
        if header.kind == "zstd" and self.is_filler_at(offset):
            return Problem(DamageKind.MAGIC, "a filler, not a block, begins here")
        start = offset + FIXHEADER_BYTES
        left = self._size - start
        if header.stored_bytes > left:
            text = (
                f"block length {header.stored_bytes} passes the file's end, {left} bytes are left"
            )
            return Problem(DamageKind.LENGTH, text, header)
        if header.stored_bytes > self.limit_bytes:
            text = f"block length {header.stored_bytes} is over the limit of {self.limit_bytes}"
            return Problem(DamageKind.TOO_LARGE, text, header)
        return header, self.bytes_at(start, header.stored_bytes)

    def walked(self, offset: int, most: int | None = None) -> Iterator[Walked]:
        """The blocks from the one at `offset` on, a window at a time, as far as they are whole and
        their headers in order. `most`: bytes of a window, see `walk_blocks`."""
        with explaining(self.name, offset):
            yield from walk_blocks(_Seen(self), offset, self._size, whole=True, most=most)

    def unpack(self, header: FixHeader, payload: memoryview) -> bytes | None:
        """The rows of a block, None if its checksum is wrong."""
        if checksum(payload) != header.crc:
            return None
        return decompress(payload, self.limit_bytes) if header.kind == "zstd" else bytes(payload)

    def open_block(self, offset: int, header: FixHeader, payload: memoryview) -> Block | Problem:
        """The block with this header and payload, or what is wrong with it."""
        try:
            data = self.unpack(header, payload)
            if data is None:
                found = checksum(payload)
                text = f"block checksum is {found:08x}, its header says {header.crc:08x}"
                return Problem(DamageKind.CHECKSUM, text, header)
            columns = RowColumns.scan(data)
            columns.transaction_ends()
            lsns = _NO_LSNS[:]
            columns.raise_lsns(lsns)
        except LimitExceeded as error:
            return Problem(DamageKind.TOO_LARGE, error.message, header)
        except DecodeError as error:
            kind = DamageKind.COMPRESSION if "zstd" in error.reason else DamageKind.ROWS
            return Problem(kind, f"checksum matches but {error.message}", header)
        if not len(columns) or max(lsns) >> 63:
            text = "checksum matches but the block holds no rows, or an lsn over 2^63-1"
            return Problem(DamageKind.ROWS, text, header)
        return Block(self.name, offset, header, columns)

    def is_filler_at(self, offset: int) -> bool:
        """Whether a filler begins at `offset`; what stands behind its head is not looked at."""
        return filler_zeros(self.bytes_at(offset, FILLER_BYTES)) is not None

    @property
    def data_end(self) -> int:
        """`size`, but for a filler and its zeros at the file's end."""
        filler = None if self.is_closed else self.ending()[1]
        return self._size if filler is None else filler

    def ending(self) -> tuple[int, int | None]:
        """Where the file's zeros begin, and the filler in front of them, if there is one."""
        with explaining(self.name):
            seen = _Seen(self)
            return last_nonzero(seen, self._size) + 1, filler_before(seen, self._size)

    def has_nonzero(self, start: int, stop: int) -> bool:
        """Whether a byte from `start` on and before `stop` is not zero."""
        while start < stop:
            piece = bytes(self.bytes_at(start, min(stop - start, READ_WINDOW_BYTES)))
            if piece.count(0) != len(piece):
                return True
            start += len(piece)
        return False

    def find_block(self, start: int) -> int | None:
        """The next place from `start` on where a valid block begins, or None. Not sure: a stored
        value may hold a whole block."""
        while start < self._size - FIXHEADER_BYTES:
            piece = bytes(self.bytes_at(start, READ_WINDOW_BYTES))
            at = piece.find(MAGIC_PLAIN[:3])
            while at >= 0:
                if self._is_valid_at(start + at):
                    return start + at
                at = piece.find(MAGIC_PLAIN[:3], at + 1)
            start += max(len(piece) - 3, 1)
        return None

    def _is_valid_at(self, offset: int) -> bool:
        head = self.bytes_at(offset, FIXHEADER_BYTES)
        try:
            header = decode_fixheader(head)
        except DecodeError:
            return False
        start = offset + FIXHEADER_BYTES
        if header.kind == "zstd" and self.is_filler_at(offset):
            return False
        if header.stored_bytes > min(self._size - start, self.limit_bytes):
            return False
        if self._probe_left < header.stored_bytes:
            return True  # a file made to be slow: call it valid, so that the damage is corruption
        self._probe_left -= header.stored_bytes
        return checksum(self.bytes_at(start, header.stored_bytes)) == header.crc

    def read(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`: from the window, where it has them. Raises
        `OSError`."""
        at = offset - self._window_offset
        if at >= 0 and at + count <= len(self._window):
            return bytes(self._window[at : at + count])
        return self._file.read(count, offset)

    def held(self, offset: int) -> bytes:
        """What is in memory of the file from `offset` on, which may be nothing."""
        at = offset - self._window_offset
        return bytes(self._window[at:]) if at >= 0 else b""

    def bytes_at(self, offset: int, count: int) -> memoryview:
        """Up to `count` bytes at `offset`, through the window."""
        count = min(count, self._size - offset)
        at = offset - self._window_offset
        if at >= 0 and at + count <= len(self._window):
            return self._window[at : at + count]
        try:
            piece = memoryview(self._file.read(max(count, self._window_bytes), offset))
            self._window_bytes = min(2 * self._window_bytes, READ_WINDOW_BYTES)
        except OSError as error:
            raise explain(error, self.name, offset) from error
        if len(piece) < count:
            raise FileCut(self.name, offset, f"{len(piece)} of {count} bytes")
        self._window, self._window_offset = piece, offset
        return piece[:count]


class _Seen:
    """The file of a reader, of the size that it had, read through its window."""

    def __init__(self, reader: BlockFile) -> None:
        self.path = reader.path
        self.read = reader.read
        self._size = reader.size

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing: it is the reader's."""
