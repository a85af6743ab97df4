"""A disk in memory that forgets what was not synced.

Two states are kept of everything: what programs see, and what is on stable storage.

* `write` and `truncate` change what programs see; they become stable by `sync` of that file.
* `create`, `rename` and `remove` change the names that programs see; they become stable by
  `sync_directory`.
* `crash` gives a new disk as it is after a power cut. Each 512-byte sector of a file holds what it
  held at the last sync or after any later change of the file, whatever the other sectors hold: the
  system writes sectors back whenever it likes, in any order, a whole one at a time. The size is one
  that the file had at the last sync or since; what was never written is zero. Every name that was
  changed since the last sync of its folder is the old or the new one.
* After a sync that failed (`fail_sync`) what was to be synced is doubtful for ever: programs go on
  seeing it, but no later sync makes it stable. That is what Linux does (pages are marked clean).

Everything that a crash decides comes from one random generator, so a number repeats it exactly.
Paths are taken as they are; folders must be made before files in them. Locks are not crashed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logweir.errors import DirectoryLocked
from logweir.wal.filesystem import AppendFile, ReadFile

__all__ = ["SimFileSystem"]

SECTOR_BYTES: Final = 512

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class _Inode:
    """One file. `seen`: what programs see; `stable`: what survives for certain; `pending`: changes
    since then in order, (offset, bytes) of a write or (size, None) of a truncation; `doubtful`:
    those before them that a sync failed to save."""

    seen: bytearray = field(default_factory=bytearray)
    stable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        if self.doubtful:  # only sectors that were written to since then are saved again
            image = bytearray(self.stable[: len(self.seen)].ljust(len(self.seen), b"\0"))
            for offset, piece in self.pending:
                for start in _sectors(offset, offset + len(piece or b"")):
                    image[start : start + SECTOR_BYTES] = self.seen[start : start + SECTOR_BYTES]
            self.stable = bytes(image)
        else:
            self.stable = bytes(self.seen)
        self.pending.clear()

    def survivor(self, rng: random.Random) -> bytes:
        """What is on the disk after a power cut."""
        changes = [*self.doubtful, *self.pending]
        if not changes:
            return self.stable
        latest = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        image = bytearray(self.stable)
        sizes = [len(image)]
        sectors: dict[int, tuple[int, bytes]] = {}  # start: (when it was written, what it held)
        wanted: dict[int, int] = {}
        for now, (offset, piece) in enumerate(changes, 1):
            before = len(image)
            _apply(image, offset, piece)
            sizes.append(len(image))
            end = before if piece is None else offset + len(piece)
            for start in _sectors(offset, end):
                if start not in wanted:
                    last = len(changes)
                    wanted[start] = last if rng.random() < latest else rng.randint(0, last)
                if now <= wanted[start]:
                    sectors[start] = now, bytes(image[start : start + SECTOR_BYTES])
        data = bytearray(self.stable)
        for start, (_, held) in sorted(sectors.items()):
            _apply(data, start, held.ljust(min(SECTOR_BYTES, max(sizes) - start), b"\0"))
        size = rng.choice((rng.choice(sizes), sizes[-1], max(sizes)))
        return bytes(data[:size].ljust(size, b"\0"))


def _apply(data: bytearray, offset: int, piece: bytes | None) -> None:
    if piece is None:
        del data[offset:]
        return
    if len(data) < offset:
        data += bytes(offset - len(data))
    data[offset : offset + len(piece)] = piece


def _sectors(start: int, end: int) -> range:
    """Where the sectors begin that hold the bytes start … end - 1."""
    return range(start // SECTOR_BYTES * SECTOR_BYTES, end, SECTOR_BYTES)


class SimFile:
    """A file of a `SimFileSystem`, open for reading or for writing at its end."""

    def __init__(self, filesystem: SimFileSystem, path: Path, inode: _Inode) -> None:
        self.path = path
        self._filesystem = filesystem
        self._inode = inode
        self._is_open = True
        filesystem.open_files += 1

    def _data(self) -> bytearray:
        if not self._is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self._inode.seen

    def size(self) -> int:
        """Bytes in the file, as programs see it."""
        return len(self._data())

    def read(self, count: int, offset: int) -> bytes:
        """As `ReadFile.read`."""
        return bytes(self._data()[offset : offset + count])

    def write(self, parts: Sequence[Buffer]) -> None:
        """As `AppendFile.write`; one pending change for all parts."""
        data = self._data()
        piece = b"".join(parts)
        with self._filesystem.mutex:
            self._inode.pending.append((len(data), piece))
            data += piece

    def truncate(self, size: int) -> None:
        """As `AppendFile.truncate`."""
        data = self._data()
        with self._filesystem.mutex:
            self._inode.pending.append((size, None))
            del data[size:]

    def sync(self) -> None:
        """As `AppendFile.sync`."""
        self._data()
        with self._filesystem.mutex:
            self._inode.sync()

    def fail_sync(self) -> None:
        """What a sync that fails does: what was pending is doubtful from now on."""
        self._data()
        with self._filesystem.mutex:
            self._inode.doubtful += self._inode.pending
            self._inode.pending.clear()

    def close(self) -> None:
        """Close it. Twice: nothing."""
        if self._is_open:
            self._is_open = False
            self._filesystem.open_files -= 1


class SimFileSystem:
    """A disk in memory; see the module. `seed`: what `crash` decides by."""

    def __init__(self, *, seed: int = 0) -> None:
        self.mutex = threading.RLock()
        self.open_files = 0
        """Files that are open now: a test looks for leaks."""
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._seen: dict[Path, _Inode] = {}
        self._stable: dict[Path, _Inode] = {}
        self._folders: set[Path] = set()
        self._locks: set[Path] = set()

    # --- what `wal.filesystem.FileSystem` wants ---------------------------------------------------

    def open_read(self, path: Path) -> ReadFile:
        """As `FileSystem.open_read`."""
        return SimFile(self, path, self._find(path))

    def create(self, path: Path) -> AppendFile:
        """As `FileSystem.create`."""
        with self.mutex:
            self._want_folder(path.parent)
            if path in self._seen or path in self._folders:
                raise _error(errno.EEXIST, path)
            inode = self._seen[path] = _Inode()
        return SimFile(self, path, inode)

    def open_append(self, path: Path) -> AppendFile:
        """As `FileSystem.open_append`."""
        return SimFile(self, path, self._find(path))

    def rename(self, old: Path, new: Path) -> None:
        """As `FileSystem.rename`."""
        with self.mutex:
            self._want_folder(new.parent)
            inode = self._find(old)
            del self._seen[old]
            self._seen[new] = inode

    def remove(self, path: Path) -> None:
        """As `FileSystem.remove`."""
        with self.mutex:
            self._find(path)
            del self._seen[path]

    def make_directory(self, path: Path) -> None:
        """As `FileSystem.make_directory`; folders are stable at once."""
        with self.mutex:
            for folder in (path, *path.parents):
                if folder in self._seen:
                    raise _error(errno.ENOTDIR, folder)
                self._folders.add(folder)

    def list_directory(self, path: Path) -> list[str]:
        """As `FileSystem.list_directory`."""
        with self.mutex:
            self._want_folder(path)
            children = (*self._seen, *self._folders)
            return sorted({one.name for one in children if one.parent == path and one != path})

    def sync_file(self, path: Path) -> None:
        """As `FileSystem.sync_file`."""
        with contextlib.closing(SimFile(self, path, self._find(path))) as file:
            file.sync()

    def sync_directory(self, path: Path) -> None:
        """As `FileSystem.sync_directory`."""
        with self.mutex:
            self._want_folder(path)
            for one in [one for one in self._stable if one.parent == path]:
                del self._stable[one]
            self._stable |= {one: inode for one, inode in self._seen.items() if one.parent == path}

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """As `FileSystem.lock`."""
        with self.mutex:
            if path in self._locks:
                text = "the folder is in use by process unknown."
                raise DirectoryLocked(text, path=str(path.parent))
            self._locks.add(path)
        try:
            yield
        finally:
            with self.mutex:
                self._locks.discard(path)

    # --- what a test does with it -----------------------------------------------------------------

    def crash(self, *, seed: int | None = None) -> SimFileSystem:
        """The disk after a power cut now; this one is left as it is.

        `seed`: decides what survives; None: the next number of the disk's own generator.
        """
        with self.mutex:
            number = self._rng.getrandbits(64) if seed is None else seed
            rng = random.Random(number)  # noqa: S311 - repeatable, nothing secret
            after = SimFileSystem(seed=number)
            after._folders = set(self._folders)
            survivors: dict[int, _Inode] = {}
            for path in sorted({*self._seen, *self._stable}):
                seen, stable = self._seen.get(path), self._stable.get(path)
                inode = seen if seen is stable or rng.random() < 0.5 else stable
                if inode is None:
                    continue
                if id(inode) not in survivors:
                    survivors[id(inode)] = _settled(inode.survivor(rng))
                after._seen[path] = survivors[id(inode)]
            after._stable = dict(after._seen)
            return after

    def copy(self) -> SimFileSystem:
        """A disk with the same files, everything stable."""
        after = SimFileSystem(seed=self._rng.getrandbits(64))
        with self.mutex:
            after._folders = set(self._folders)
            after._seen = {path: _settled(bytes(one.seen)) for path, one in self._seen.items()}
        after._stable = dict(after._seen)
        return after

    def contents(self, path: Path) -> bytes:
        """What programs see in a file."""
        return bytes(self._find(path).seen)

    def put(self, path: Path, data: bytes) -> None:
        """Set a file's contents, stable at once; its folder is made."""
        self.make_directory(path.parent)
        with self.mutex:
            inode = _settled(data)
            self._seen[path] = inode
            self._stable[path] = inode

    # --- inside -----------------------------------------------------------------------------------

    def _find(self, path: Path) -> _Inode:
        with self.mutex:
            if path in self._folders:
                raise _error(errno.EISDIR, path)
            inode = self._seen.get(path)
            if inode is None:
                raise _error(errno.ENOENT, path)
            return inode

    def _want_folder(self, path: Path) -> None:
        if path not in self._folders:
            raise _error(errno.ENOTDIR if path in self._seen else errno.ENOENT, path)


def _settled(data: bytes) -> _Inode:
    return _Inode(bytearray(data), data)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
