"""A disk in memory that forgets what was not synced.

Two states are kept of everything: what programs see, and what is on stable storage.

* `write` and `truncate` change what programs see; they become stable by `sync` of that file.
* `create`, `rename`, `remove`, `make_directory` and `remove_directory` change the names that
  programs see; they become stable by `sync_directory` of the folder that the name is in. A folder
  whose name is lost is lost with all that is in it, however well that was synced.
* `crash` gives a new disk as it is after a power cut. Each sector of a file (of 512 bytes, or of
  4096, one of the two for all of the file) holds what it held at the last sync or after any later
  change of the file, whatever the other sectors hold: the system writes sectors back whenever it
  likes, in any order, a whole one at a time, also over what was there. The size is one that the
  file had at the last sync or since; what was never written is zero. Every name that was changed
  since the last sync of its folder is the old or the new one.
* After a sync that failed (`fail_sync`) what was to be synced is doubtful for ever: programs go on
  seeing it, but no later sync makes it stable. That is what Linux does (pages are marked clean).

Everything that a crash decides comes from one random generator, so a number repeats it exactly.
Paths are taken as they are, relative ones beside absolute ones; "/" and "." are there from the
start, and "..", symbolic links and rights are not known. Nobody holds a lock after a crash.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from logweir.errors import DirectoryLocked
from logweir.wal.filesystem import AppendFile, FileSystem, FolderGone, ReadFile

__all__ = ["SimFileSystem"]

SECTOR_BYTES: Final = 512
LARGE_SECTOR_BYTES: Final = 4096

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True, eq=False)
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
        grain = rng.choice((SECTOR_BYTES, SECTOR_BYTES, LARGE_SECTOR_BYTES))
        image = bytearray(self.stable)
        sizes = [len(image)]
        sectors: dict[int, tuple[int, bytes]] = {}  # start: (when it was written, what it held)
        wanted: dict[int, int] = {}
        for now, (offset, piece) in enumerate(changes, 1):
            before = len(image)
            _apply(image, offset, piece)
            sizes.append(len(image))
            end = before if piece is None else offset + len(piece)
            for start in _sectors(offset, end, grain):
                if start not in wanted:
                    last = len(changes)
                    wanted[start] = last if rng.random() < latest else rng.randint(0, last)
                if now <= wanted[start]:
                    sectors[start] = now, bytes(image[start : start + grain])
        data = bytearray(self.stable)
        for start, (_, held) in sorted(sectors.items()):
            _apply(data, start, held.ljust(min(grain, max(sizes) - start), b"\0"))
        size = rng.choice((rng.choice(sizes), sizes[-1], max(sizes)))
        return bytes(data[:size].ljust(size, b"\0"))


@dataclass(slots=True, eq=False)
class _Folder:
    """One folder: the names that programs see, and those that are stable."""

    seen: dict[str, _Node] = field(default_factory=dict)
    stable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = _Inode | _Folder


@dataclass(slots=True)
class _Shared:
    """What all views of one disk have in common. `room_bytes`: how many more it takes."""

    root: _Folder
    room_bytes: int | None = None
    open_files: int = 0
    locks: list[_Folder] = field(default_factory=list)
    mutex: threading.RLock = field(default_factory=threading.RLock)


def _apply(data: bytearray, offset: int, piece: bytes | None) -> None:
    if piece is None:
        del data[offset:]
        return
    if len(data) < offset:
        data += bytes(offset - len(data))
    data[offset : offset + len(piece)] = piece


def _sectors(start: int, end: int, size: int = SECTOR_BYTES) -> range:
    """Where the sectors of `size` bytes begin that hold the bytes start … end - 1."""
    return range(start // size * size, end, size)


class SimFile:
    """A file of a `SimFileSystem`, open for reading."""

    def __init__(self, shared: _Shared, path: Path, inode: _Inode) -> None:
        self.path = path
        self._shared = shared
        self._inode = inode
        self._is_open = True
        shared.open_files += 1

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

    def sync(self) -> None:
        """As `AppendFile.sync`."""
        self._data()
        with self._shared.mutex:
            self._inode.sync()

    def fail_sync(self) -> None:
        """What a sync that fails does: what was pending is doubtful from now on."""
        self._data()
        with self._shared.mutex:
            self._inode.doubtful += self._inode.pending
            self._inode.pending.clear()

    def close(self) -> None:
        """Close it. Twice: nothing."""
        if self._is_open:
            self._is_open = False
            self._shared.open_files -= 1


class SimAppendFile(SimFile):
    """A file of a `SimFileSystem`, open for writing."""

    def __init__(self, shared: _Shared, path: Path, inode: _Inode) -> None:
        super().__init__(shared, path, inode)
        self._size = len(inode.seen)

    def size(self) -> int:
        """As `AppendFile.size`."""
        return self._size

    def write(self, parts: Sequence[Buffer]) -> None:
        """As `AppendFile.write`; one pending change for all parts."""
        self.put(parts, self._size)
        self._size += sum(map(len, parts))

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        """As `AppendFile.put`; one pending change for all parts."""
        data = self._data()
        piece = b"".join(parts)
        with self._shared.mutex:
            more = max(offset + len(piece) - len(data), 0)
            written = len(piece) - more + self._take_room(more)
            if written:
                self._inode.pending.append((offset, piece[:written]))
                _apply(data, offset, piece[:written])
            if written < len(piece):
                raise _error(errno.ENOSPC, self.path)

    def truncate(self, size: int) -> None:
        """As `AppendFile.truncate`."""
        data = self._data()
        with self._shared.mutex:
            self._take_room(size - len(data))
            self._inode.pending.append((size, None))
            del data[size:]
            self._size = size

    def _take_room(self, wanted: int) -> int:
        """How many of `wanted` bytes the disk takes; fewer than none are given back."""
        room = self._shared.room_bytes
        if room is None:
            return wanted
        taken = min(wanted, room)
        self._shared.room_bytes = room - taken
        return taken


class SimFileSystem:
    """A disk in memory; see the module. `seed`: what `crash` decides by; `room_bytes`: how many
    bytes the disk takes, None any number. Room is not given back by removing."""

    def __init__(self, *, seed: int = 0, room_bytes: int | None = None) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        slash = _Folder()
        self._shared = _Shared(_Folder({"/": slash}, {"/": slash}), room_bytes)
        self._held: tuple[Path, _Folder] | None = None

    @property
    def open_files(self) -> int:
        """Files that are open now: a test looks for leaks."""
        return self._shared.open_files

    @property
    def mutex(self) -> threading.RLock:
        """Held while anything changes."""
        return self._shared.mutex

    # --- what `wal.filesystem.FileSystem` wants ---------------------------------------------------

    def open_read(self, path: Path) -> ReadFile:
        """As `FileSystem.open_read`."""
        return SimFile(self._shared, path, self._file(path))

    def create(self, path: Path) -> AppendFile:
        """As `FileSystem.create`."""
        with self.mutex:
            if self._held is not None and path.is_relative_to(self._held[0]):
                self._check_place(path)
            folder = self._folder(path.parent)
            if path.name in folder.seen:
                raise _error(errno.EEXIST, path)
            inode = folder.seen[path.name] = _Inode()
        return SimAppendFile(self._shared, path, inode)

    def open_append(self, path: Path) -> AppendFile:
        """As `FileSystem.open_append`."""
        return SimAppendFile(self._shared, path, self._file(path))

    def rename(self, old: Path, new: Path) -> None:
        """As `FileSystem.rename`."""
        with self.mutex:
            source, target = self._folder(old.parent), self._folder(new.parent)
            node = self._node(old)
            there = target.seen.get(new.name)
            if isinstance(node, _Folder) and isinstance(there, _Inode):
                raise _error(errno.ENOTDIR, new)
            if isinstance(there, _Folder) and there is not node:
                if isinstance(node, _Inode):
                    raise _error(errno.EISDIR, new)
                if there.seen:
                    raise _error(errno.ENOTEMPTY, new)
            del source.seen[old.name]
            target.seen[new.name] = node

    def remove(self, path: Path) -> None:
        """As `FileSystem.remove`."""
        with self.mutex:
            self._file(path)
            del self._folder(path.parent).seen[path.name]

    def make_directory(self, path: Path) -> None:
        """As `FileSystem.make_directory`."""
        with self.mutex:
            if not path.name:
                raise _error(errno.EEXIST, path)
            folder = self._folder(path.parent)
            if path.name in folder.seen:
                raise _error(errno.EEXIST, path)
            folder.seen[path.name] = _Folder()

    def remove_directory(self, path: Path) -> None:
        """As `FileSystem.remove_directory`."""
        with self.mutex:
            if self._folder(path).seen:
                raise _error(errno.ENOTEMPTY, path)
            del self._folder(path.parent).seen[path.name]

    def remove_tree(self, path: Path) -> None:
        """As `FileSystem.remove_tree`; what a crash leaves of it is all or nothing."""
        with self.mutex, contextlib.suppress(FileNotFoundError):
            self._folder(path)
            del self._folder(path.parent).seen[path.name]

    def list_directory(self, path: Path) -> list[str]:
        """As `FileSystem.list_directory`."""
        with self.mutex:
            return sorted(self._folder(path).seen)

    def sync_file(self, path: Path) -> None:
        """As `FileSystem.sync_file`."""
        with contextlib.closing(SimFile(self._shared, path, self._file(path))) as file:
            file.sync()

    def sync_directory(self, path: Path) -> None:
        """As `FileSystem.sync_directory`."""
        with self.mutex:
            folder = self._folder(path)
            folder.stable = dict(folder.seen)

    def free_bytes(self, path: Path) -> int | None:
        """As `FileSystem.free_bytes`."""
        self._folder(path)
        return self._shared.room_bytes

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[FileSystem]:
        """As `FileSystem.lock`."""
        with self.mutex:
            folder = self._folder(path.parent)
            if any(one is folder for one in self._shared.locks):
                text = "the folder is in use by process unknown."
                raise DirectoryLocked(text, path=str(path.parent))
            self._shared.locks.append(folder)
        held = copy.copy(self)
        held._held = (path.parent, folder)
        try:
            yield held
        finally:
            with self.mutex:
                held._held = None
                self._shared.locks.remove(folder)

    # --- what a test does with it -----------------------------------------------------------------

    def crash(self, *, seed: int | None = None) -> SimFileSystem:
        """The disk after a power cut now; this one is left as it is.

        `seed`: decides what survives; None: the next number of the disk's own generator.
        """
        with self.mutex:
            number = self._rng.getrandbits(64) if seed is None else seed
            after = SimFileSystem(seed=number, room_bytes=self._shared.room_bytes)
            rng = random.Random(number)  # noqa: S311 - repeatable, nothing secret
            after._shared.root = _Survivors(rng, self._shared.root).root
            return after

    def copy(self) -> SimFileSystem:
        """A disk with the same files, everything stable."""
        after = SimFileSystem(seed=self._rng.getrandbits(64), room_bytes=self._shared.room_bytes)
        with self.mutex:
            after._shared.root = _settled_folder(self._shared.root)
        return after

    def contents(self, path: Path) -> bytes:
        """What programs see in a file."""
        return bytes(self._file(path).seen)

    def put(self, path: Path, data: bytes) -> None:
        """Set a file's contents, stable at once; its folders are made, and stable too."""
        with self.mutex:
            folder = self._shared.root
            for name in path.parent.parts:
                node = folder.seen.setdefault(name, _Folder())
                if isinstance(node, _Inode):
                    raise _error(errno.ENOTDIR, path)
                folder.stable[name] = node
                folder = node
            folder.seen[path.name] = folder.stable[path.name] = _settled(data)

    # --- inside -----------------------------------------------------------------------------------

    def _node(self, path: Path) -> _Node:
        """What programs see at that name: in the folder that is held, by what it is and not by its
        name."""
        with self.mutex:
            node: _Node = self._shared.root
            names = path.parts
            if self._held is not None and path.is_relative_to(self._held[0]):
                node = self._held[1]
                names = path.relative_to(self._held[0]).parts
            return _below(node, names, path)

    def _file(self, path: Path) -> _Inode:
        node = self._node(path)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._node(path)
        if isinstance(node, _Inode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _check_place(self, path: Path) -> None:
        """Raise `FolderGone` where the name of the folder that is held leads elsewhere."""
        assert self._held is not None
        place, folder = self._held
        try:
            there = _below(self._shared.root, place.parts, place)
        except FileNotFoundError:
            raise FolderGone(path) from None
        if there is not folder:
            raise FolderGone(path)


def _below(node: _Node, names: Sequence[str], path: Path) -> _Node:
    """What is at `names` below `node`. `path`: for the error."""
    for name in names:
        if isinstance(node, _Inode):
            raise _error(errno.ENOTDIR, path)
        found = node.seen.get(name)
        if found is None:
            raise _error(errno.ENOENT, path)
        node = found
    return node


class _Survivors:
    """What is left of a tree of folders after a power cut: `root`."""

    def __init__(self, rng: random.Random, root: _Folder) -> None:
        self._rng = rng
        self._made: dict[int, _Inode] = {}
        self._moved: dict[int, bool] = {}  # a folder that was renamed: whether that survives
        seen, stable = _places(root, is_stable=False), _places(root, is_stable=True)
        for number, place in sorted(stable.items(), key=lambda one: one[1]):
            if seen.get(number, place) != place:
                self._moved[number] = rng.random() < 0.5
        self.root = self._of(root)

    def _of(self, folder: _Folder) -> _Folder:
        after = _Folder()
        for name in sorted({*folder.seen, *folder.stable}):
            node = self._choice(folder.seen.get(name), folder.stable.get(name))
            if isinstance(node, _Folder):
                after.seen[name] = self._of(node)
            elif node is not None:
                if id(node) not in self._made:
                    self._made[id(node)] = _settled(node.survivor(self._rng))
                after.seen[name] = self._made[id(node)]
        after.stable = dict(after.seen)
        return after

    def _choice(self, seen: _Node | None, stable: _Node | None) -> _Node | None:
        if seen is stable:
            return seen
        left = None if self._moved.get(id(stable)) else stable
        if id(seen) in self._moved:
            return seen if self._moved[id(seen)] else left
        if id(stable) in self._moved and left is not None:
            return left
        return seen if self._rng.random() < 0.5 else left


def _places(folder: _Folder, *, is_stable: bool, path: str = "") -> dict[int, str]:
    """Where every folder below `folder` is, as programs see it or as it is stable."""
    found: dict[int, str] = {}
    for name, node in (folder.stable if is_stable else folder.seen).items():
        if isinstance(node, _Folder):
            found[id(node)] = f"{path}/{name}"
            found |= _places(node, is_stable=is_stable, path=f"{path}/{name}")
    return found


def _settled(data: bytes) -> _Inode:
    return _Inode(bytearray(data), data)


def _settled_folder(folder: _Folder) -> _Folder:
    seen: dict[str, _Node] = {
        name: _settled_folder(node) if isinstance(node, _Folder) else _settled(bytes(node.seen))
        for name, node in folder.seen.items()
    }
    return _Folder(seen, dict(seen))


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
