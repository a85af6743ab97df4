"""A place in a folder's log or snapshot, with what tells whether a file still has it.

The block that ends there is named by where it begins and by its header, which holds the checksum of
its rows: another history has another block there, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from logweir.errors import DecodeError
from logweir.wal.block import FIXHEADER_BYTES, FixHeader, decode_fixheader, encode_fixheader
from logweir.wal.crc32c import checksum
from logweir.wal.filesystem import FileSystem
from logweir.wal.reader import Block
from logweir.wal.writer import Written


class Found(Enum):
    """What a folder has at a place."""

    SAME = "the block"
    OTHER = "another block"
    NOTHING = "no whole block"


class Place(NamedTuple):
    """`file`: its name; `offset`: the byte up to which it is applied, 0 for none to go on from;
    `block`, `head`: where the last block of which rows are applied begins, and its header."""

    file: str
    offset: int
    block: int
    head: bytes

    @classmethod
    def written(cls, last: Written) -> Place:
        """The place behind what a writer wrote."""
        path, offset, block, head = last
        return cls(path.name, offset, block, bytes(head[:FIXHEADER_BYTES]))

    @classmethod
    def read(cls, block: Block, offset: int) -> Place:
        """The place in, or behind, a block that was read."""
        header = block.header
        head = encode_fixheader(header.kind, header.stored_bytes, header.crc, header.unsynced_bytes)
        return cls(block.path.rpartition("/")[2], offset, block.offset, bytes(head))

    @classmethod
    def unpacked(cls, fields: Sequence[Any]) -> Place | None:
        """The place that was packed as a list; None for an empty one."""
        return cls(*fields) if fields else None

    @property
    def nowhere(self) -> Place:
        """The same block, but not to go on from."""
        return self._replace(offset=0)

    @property
    def is_in_log(self) -> bool:
        """Whether reading a log can go on there."""
        return self.offset > 0 and self.file.endswith(".xlog")


def find(place: Place, directory: Path, filesystem: FileSystem) -> Found:
    """Whether the folder has that place. Raises `OSError`."""
    try:
        file = filesystem.open_read(directory / place.file)
    except FileNotFoundError:
        return Found.NOTHING
    try:
        wanted = _header(place.head)
        found = _header(file.read(FIXHEADER_BYTES, place.block))
        if found is None or wanted is None:
            return Found.NOTHING
        begin = place.block + FIXHEADER_BYTES
        if begin + found.stored_bytes > file.size():
            return Found.NOTHING
        if _identity(found) == _identity(wanted):
            return Found.SAME
        rows = file.read(found.stored_bytes, begin)
        return Found.OTHER if checksum(rows) == found.crc else Found.NOTHING
    finally:
        file.close()


def _header(data: bytes) -> FixHeader | None:
    try:
        return decode_fixheader(data)
    except (DecodeError, IndexError):
        return None


def _identity(header: FixHeader) -> tuple[str, int, int]:
    return header.kind, header.stored_bytes, header.crc
