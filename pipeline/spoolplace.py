"""A spool in a place of a URL: an object store, or what else `pyarrow.fs` or `fsspec` writes.

Who follows the upstream has a copy of the spool on its own disk, as a store's folder. What is
*synced* of a log there is put at the place before the sync returns, and a snapshot or a new log
before it has its name: so what is acknowledged to the upstream, and what an offset names, is at the
place, and the copy may go with its machine. The next follower fetches it anew.

The place needs no rename, no lock and no append. Objects::

    00000000000000000513.xlog.BEGIN-END.OWNER     bytes of that file; BEGIN, END: 20 digits
    00000000000000000513.snap.BEGIN-END.OWNER
    owners/OWNER.claim                            somebody begins; OWNER: 8 digits and 16 of chance
    owners/OWNER.begun                            names of the parts that it found and took over,
                                                  whole if its last line says so

A part counts if it has the size that its name says, and is the highest owner's that has begun, or
one that this owner took over. What an owner puts that was overtaken therefore counts nowhere. An
owner *claims*, then looks what there is, then begins; and after each part it looks for a claim
higher than its own, and acknowledges nothing if there is one. So a part is either found by the
next owner, or was acknowledged to nobody.

When a log is closed its rows become one part, and the small ones go. What the store of the copy
removes goes at the place, too.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from logweir.errors import DirectoryLocked
from logweir.limits import PIPELINE_WINDOW_BYTES, READ_WINDOW_BYTES
from logweir.pipeline.options import scheme_of, shown
from logweir.pipeline.storage import (
    BEGUN,
    BEGUN_END,
    OWNERS,
    SPOOL_PART,
    SpoolFileSystem,
    SpoolPart,
    asked,
    connect,
)
from logweir.wal.block import EOF_MARKER
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import AppendFile, Buffer, OsFileSystem, ReadFile, each, explain
from logweir.wal.writer import INPROGRESS

_KEPT: Final = re.compile(r"\d{20}[.](?:xlog|snap)")
_CLAIM: Final = ".claim"


class SpoolPlace:
    """A spool in the place `location`, of which this process is the owner until it is overtaken.

    `lost`: set once it was. Raises `ConfigError` for an address that nobody knows, `WalError` where
    the place does not answer, `DirectoryLocked` where somebody else begins at the same moment.
    """

    def __init__(self, location: str) -> None:
        self.name = shown(location)
        self.lost: DirectoryLocked | None = None
        self._filesystem, path = connect(location, scheme_of(location))
        self._folder = Path(path)
        self._reading = SpoolFileSystem(self._filesystem)
        self._parts: dict[str, list[SpoolPart]] = {}
        self._guard = threading.Lock()  # held where `_parts` is changed
        with self._told():
            self._filesystem.create_dir((self._folder / OWNERS).as_posix())
            numbers = [int(name[:8]) for name in self._owners()]
            self._owner = f"{max(numbers, default=0) + 1:08d}{secrets.token_hex(8)}"
            self._write(f"{OWNERS}/{self._owner}{_CLAIM}", [b"claim\n"])
            failpoint("spool.after_claim")
            self._check_owner()

    def fetch(self, to: Path) -> None:
        """Make the copy in the empty folder `to`, and begin. Raises as the constructor."""
        with self._told():
            with contextlib.suppress(FileNotFoundError):
                self._parts = self._reading.chains(self._folder)
            for file, parts in self._parts.items():
                with open(to / file, "xb") as out:
                    for data in self._content(parts):
                        out.write(data)
            self._check_owner()
            names = [part.name for parts in self._parts.values() for part in parts]
            failpoint("spool.before_begun")
            told = [f"{one}\n".encode() for one in (*names, BEGUN_END)]
            self._write(f"{OWNERS}/{self._owner}{BEGUN}", told)
            failpoint("spool.after_begun")
            self._check_owner()
            failpoint("spool.before_sweep")
            for name in self._owners():
                if name[: len(self._owner)] < self._owner:
                    self._remove(f"{OWNERS}/{name}")
            for name in self._reading.sizes(self._folder):
                part = SPOOL_PART.fullmatch(name)
                if part and part[4] < self._owner and name not in names:
                    self._remove(name)

    def end(self, file: str) -> int | None:
        """How many bytes of a file are at the place, None if it is not there."""
        parts = self._parts.get(file)
        return None if parts is None else (parts[-1].end if parts else 0)

    def put(self, file: str, begin: int, end: int, pieces: Iterable[bytes]) -> None:
        """Put the bytes behind those that are there. When this returns they are durable, and this
        process is still the owner. Raises `OSError`."""
        part = SpoolPart(file, begin, end, self._owner)
        failpoint("spool.before_put")
        self._write(part.name, pieces)
        failpoint("spool.after_put")
        self._check_owner()
        with self._guard:
            self._parts[file] = [*(self._parts[file] if begin else ()), part]

    def cut(self, file: str, size: int) -> None:
        """Forget the parts that go beyond `size`: what an earlier owner put there, the EOF marker
        of a log that is gone on with. What is put there now counts instead."""
        with self._guard:
            self._parts[file] = [one for one in self._parts[file] if one.end <= size]

    def merge(self, file: str, end: int, pieces: Iterable[bytes]) -> None:
        """Put the file up to `end`, where a part ends, as one. Raises `OSError`."""
        small = [one for one in self._parts[file] if one.end <= end]
        if len(small) < 2:
            return
        whole = SpoolPart(file, 0, end, self._owner)
        failpoint("spool.before_merge")
        self._write(whole.name, pieces)
        failpoint("spool.after_merge")
        self._check_owner()
        with self._guard:
            self._parts[file] = [whole, *(one for one in self._parts[file] if one.end > end)]
        for one in small:
            self._remove(one.name)

    def remove(self, file: str) -> None:
        """Remove a file. Raises `OSError`."""
        self._check_owner()
        with self._guard:
            gone = self._parts.pop(file, [])
        for one in gone:
            self._remove(one.name)

    # --- inside -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.lost or explain(error, self.name) from error

    def _owners(self) -> list[str]:
        names = self._reading.sizes(self._folder / OWNERS)
        return [one for one in names if one.endswith((_CLAIM, BEGUN))]

    def _check_owner(self) -> None:
        """Raise `OSError` if somebody claimed the spool after this process."""
        if any(name[: len(self._owner)] > self._owner for name in self._owners()):
            self.lost = DirectoryLocked(
                "another query, or another run of this one, has taken the spool over.",
                path=self.name,
                hint="let one query at a time use a spool",
            )
        if self.lost is not None:
            raise OSError(errno.EBUSY, self.lost.reason, self.name)

    def _content(self, parts: Sequence[SpoolPart]) -> Iterator[bytes]:
        """What stands in these, of which little is in memory at a time."""
        step, many = PIPELINE_WINDOW_BYTES, self._reading.readers
        ranges = [(one, at) for one in parts for at in range(0, one.end - one.begin, step)]

        def read(range_: tuple[SpoolPart, int]) -> bytes:
            part, at = range_
            with self._reading.open_part(self._folder, part) as file:
                return bytes(file.read_at(min(step, part.end - part.begin - at), at))

        for first in range(0, len(ranges), many):
            yield from each(self._reading, read, ranges[first : first + many])

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        path = self._folder / name
        with asked(path), self._filesystem.open_output_stream(path.as_posix()) as out:
            for piece in pieces:
                out.write(piece)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file((self._folder / name).as_posix())


class CopyFileSystem(OsFileSystem):
    """The disk with the copy of a spool: what is synced of a log, or gets the name of one or of a
    snapshot, is at the place then."""

    def __init__(self, place: SpoolPlace) -> None:
        self._place = place

    def create(self, path: Path) -> AppendFile:
        """See `FileSystem`."""
        return _CopyFile(super().create(path), self._place, self)

    def open_append(self, path: Path) -> AppendFile:
        """See `FileSystem`."""
        return _CopyFile(super().open_append(path), self._place, self)

    def rename(self, old: Path, new: Path) -> None:
        """See `FileSystem`."""
        if _KEPT.fullmatch(new.name):
            with closing(self.open_read(old)) as file:
                self._place.put(new.name, 0, file.size(), pieces(file, 0, file.size()))
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        """See `FileSystem`."""
        super().remove(path)
        if _KEPT.fullmatch(path.name):
            self._place.remove(path.name)


class _CopyFile:
    """A file of the copy, to be written."""

    def __init__(self, file: AppendFile, place: SpoolPlace, filesystem: OsFileSystem) -> None:
        self._file, self._place, self._filesystem = file, place, filesystem
        self.path = file.path.with_name(file.path.name.removesuffix(INPROGRESS))
        self._syncing = threading.Lock()

    def size(self) -> int:
        """See `AppendFile`."""
        return self._file.size()

    def write(self, parts: Sequence[Buffer]) -> None:
        """See `AppendFile`."""
        self._file.write(parts)

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        """See `AppendFile`."""
        self._file.put(parts, offset)

    def truncate(self, size: int) -> None:
        """See `AppendFile`."""
        self._file.truncate(size)
        there = self._place.end(self.path.name)
        if there is not None and there > size:
            self._place.cut(self.path.name, size)

    def sync(self) -> None:
        """See `AppendFile`: what is new is at the place when this returns."""
        with self._syncing:
            begin, end = self._place.end(self.path.name), self._file.size()
            if begin is None or begin >= end:
                return
            with closing(self._filesystem.open_read(self.path)) as file:
                self._place.put(self.path.name, begin, end, pieces(file, begin, end))

    def close(self) -> None:
        """See `AppendFile`; of a log that is closed the parts become one."""
        self._file.close()
        there = self._place.end(self.path.name)
        if there is None or self._place.lost is not None:
            return
        with closing(self._filesystem.open_read(self.path)) as file:
            end = file.size() - len(EOF_MARKER)
            if there == file.size() and file.read(len(EOF_MARKER), end) == EOF_MARKER:
                self._place.merge(self.path.name, end, pieces(file, 0, end))


def pieces(file: ReadFile, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a range that is there."""
    while begin < end and (piece := file.read(min(READ_WINDOW_BYTES, end - begin), begin)):
        yield piece
        begin += len(piece)
