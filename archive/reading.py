"""Files as they are read to be archived: one held, one hashed, and the times of rows."""

from __future__ import annotations

import hashlib
from pathlib import Path

from logweir.limits import READ_WINDOW_BYTES
from logweir.pipeline.storage import UrlFileSystem
from logweir.wal.filesystem import ReadFile
from logweir.wal.reader import Block


class Times:
    """The earliest and the latest row of blocks."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None

    def __call__(self, block: Block) -> None:
        times = block.columns.timestamp
        first, last = min(times), max(times)
        self.first = first if self.first is None else min(first, self.first)
        self.last = last if self.last is None else max(last, self.last)


class OneFile(UrlFileSystem):
    """A file system that has one file, under every name."""

    def __init__(self, file: ReadFile) -> None:
        super().__init__(None)
        self._file = file

    def open_read(self, path: Path) -> ReadFile:
        """The file."""
        return self._file


class HeldFile:
    """The begin of a file, of which the bytes from `offset` on are held in memory."""

    def __init__(self, file: ReadFile, data: bytes, offset: int) -> None:
        self.path = file.path
        self._file, self._data, self._offset = file, data, offset

    def size(self) -> int:
        """Bytes up to where it is held."""
        return self._offset + len(self._data)

    def read(self, count: int, offset: int) -> bytes:
        """See `ReadFile`."""
        if offset < self._offset:
            return self._file.read(count, offset)  # its text header
        return self._data[offset - self._offset : offset - self._offset + count]

    def close(self) -> None:
        """Nothing: it is somebody else's."""


class HashedFile:
    """A file of which SHA-256 is taken as it is read, once, from its begin on."""

    def __init__(self, file: ReadFile) -> None:
        self.path = file.path
        self._file = file
        self._digest = hashlib.sha256()
        self._hashed = 0

    def size(self) -> int:
        """See `ReadFile`."""
        return self._file.size()

    def read(self, count: int, offset: int) -> bytes:
        """See `ReadFile`."""
        data = self._file.read(count, offset)
        new = offset + len(data) - self._hashed
        if offset <= self._hashed and new > 0:
            self._digest.update(data[-new:])
            self._hashed += new
        return data

    def close(self) -> None:
        """Nothing: it is somebody else's."""

    def sha256(self) -> str:
        """Of the whole file; what was not read yet is read now."""
        while self.read(READ_WINDOW_BYTES, self._hashed):
            pass
        return self._digest.hexdigest()
