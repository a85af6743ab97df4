"""Large tuples that the state does not hold: it says where they stand in the log.

A tuple that was written to the log as it is need not be written a second time. The entry of the
primary index then holds, instead of the tuple, a *reference* of 33 bytes, big-endian:

======  ======  ====================================================================================
at      type    holds
======  ======  ====================================================================================
0       u8      c1, which begins no MsgPack value and no entry of another index
1       u64     the log file: the number in its name
9       u64     the byte of that file where the tuple begins
17      u64     the length of the tuple
25      u32     the checksum (`wal.crc32c`) of the block's rows before the tuple
29      u32     the same behind it
======  ======  ====================================================================================

Who reads gets the tuple, checked. The named database `references` of the state has a key without a
value for each reference that was made: file u64, space id u32, key of the entry. That of an entry
which was changed or removed since stays until the file goes, and says nothing.

References stand in the layer of the same commit, and so later in the state; `unwritten` is there
until the log is written, which only the transaction itself sees. What is loaded from snapshots
and logs stands in the state itself. Before a log file is removed `move_in` puts what is still
referred to into the state; the file stays open while a view of the state from before that may be in
use. If a file that is referred to is missing when a folder is opened, the state is thrown away and
made anew.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from logweir.errors import CorruptBlock, WalError
from logweir.limits import LOG_FILES_OPEN, STATE_KEY_BYTES
from logweir.store.schema import largekernel
from logweir.store.schema.values import LargeTuple
from logweir.wal.block import Pieces
from logweir.wal.crc32c import checksum
from logweir.wal.filesystem import OS, FileSystem, ReadFile, explaining

REFERENCE: Final = 0xC1
REFERENCE_KEY_BYTES: Final = STATE_KEY_BYTES - 16
"""Longest key of an entry that may hold one: that in `references` says file and space, too."""
_FORM: Final = struct.Struct(">BQQQII")
_UNWRITTEN: Final = 2**64 - 1


def references(rows: Pieces) -> list[bytes] | None:
    """The references to the tuples of `rows`, as `largekernel.lay` puts them; None if they are
    not written as they are, or not yet."""
    if rows.file is None:
        return None
    return largekernel.references(REFERENCE, rows.file, rows.offset, rows.parts, rows.checksums)


def values_of(tuples: Sequence[LargeTuple], blocks: Sequence[Pieces]) -> list[bytes]:
    """What a primary index is to hold of tuples whose rows were written: references, or the whole
    of those that are not in the log as they are. `blocks`: of all of them."""
    found: list[bytes] = []
    for rows in blocks:
        end = len(found) + len(rows.parts) // 3
        found += references(rows) or [data.joined() for data in tuples[len(found) : end]]
    return found


def unwritten(first: int, count: int) -> list[bytes]:
    """In the place of references while the log has not the tuples yet: which of those of their
    transaction they are, from number `first` on."""
    begin, end = _FORM.pack(REFERENCE, _UNWRITTEN, 0, 0, 0, 0)[:9], bytes(16)
    return [begin + number.to_bytes(8, "big") + end for number in range(first, first + count)]


def unwritten_number(reference: bytes) -> int | None:
    """What `unwritten` says; None of a reference into the log."""
    _, file, number, *_ = _FORM.unpack(reference)
    return int(number) if file == _UNWRITTEN else None


def file_of(reference: bytes) -> int:
    """The number of the file that a reference is about."""
    return int(_FORM.unpack(reference)[1])


def file_part(reference: bytes) -> bytes:
    """The same as it stands there, in 8 bytes, big-endian."""
    return reference[1:9]


class LogFiles:
    """The log files that references are about; those that were read last are open. For all threads
    of a store."""

    def __init__(self, directory: Path, filesystem: FileSystem = OS) -> None:
        self._directory = directory
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._open: dict[int, ReadFile] = {}  # the one read last stands last
        self._held: dict[int, ReadFile] = {}
        self._retired: set[int] = set()

    def hold(self, number: int) -> None:
        """Keep the file open, as it is about to be removed. Raises `WalError`."""
        with self._lock:
            if number not in self._held:
                self._held[number] = self._taken(number)

    def _taken(self, number: int) -> ReadFile:
        """The file, no longer among those that were read last."""
        if number in self._open:
            return self._open.pop(number)
        path = self._directory / f"{number:020d}.xlog"
        with explaining(path):
            return self._filesystem.open_read(path)

    def _find(self, number: int) -> ReadFile:
        file = self._held.get(number)
        if file is None:
            self._open[number] = file = self._taken(number)
            if len(self._open) > LOG_FILES_OPEN:
                self._open.pop(next(iter(self._open))).close()
        return file

    def check(self, numbers: Iterable[int]) -> None:
        """Raise `WalError` if one of these files is not there."""
        wanted = {f"{number:020d}.xlog" for number in numbers}
        if not wanted:
            return
        with explaining(self._directory):
            missing = wanted.difference(self._filesystem.list_directory(self._directory))
        if missing:
            raise WalError(
                "the state refers to this log, which is not there.",
                path=str(self._directory / min(missing)),
            )

    def read(self, reference: bytes) -> bytes:
        """The tuple. Raises `WalError`, `CorruptBlock`."""
        _, number, offset, size, before, behind = _FORM.unpack(reference)
        with self._lock:  # so that nobody closes it meanwhile
            file = self._find(number)
            with explaining(file.path, offset):
                data = file.read(size, offset)
        if len(data) != size or checksum(data, before) != behind:
            raise CorruptBlock(
                f"the {size} bytes of a tuple that stood here are no longer the same.",
                path=str(file.path),
                offset=offset,
                hint="the log was changed or damaged; `logweir verify` tells more",
            )
        return data

    def retire(self, number: int) -> None:
        """Nobody asks for the file any more, but for those who have a view already."""
        if number in self._held:
            self._retired.add(number)  # again, where it was not removed then

    @property
    def has_retired(self) -> bool:
        """Whether there is something to be closed once there is no view."""
        return bool(self._retired)

    def close_retired(self) -> None:
        """There is no view."""
        with self._lock:
            while self._retired:
                self._held.pop(self._retired.pop()).close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self._retired.clear()
            for files in (self._open, self._held):
                while files:
                    files.popitem()[1].close()
