"""A disk in memory that forgets what was not synced.

Two states are kept of everything: what programs see, and what is on stable storage.

* `write` and `truncate` change what programs see; they become stable by `sync` of that file.
* `create`, `rename`, `remove`, `make_directory` and `remove_directory` change the names that
  programs see; they become stable by `sync_directory` of the folder that the name is in. A folder
  whose name is lost is lost with all that is in it, however well that was synced.
* `crash` gives a new disk as it is after a power cut: `surviving` says what that may be.

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

from logweir.errors import DirectoryLocked
from logweir.recovery.faults.surviving import Dice, Disk, Folder, Inode, Node, settled
from logweir.wal.filesystem import AppendFile, FileSystem, FolderGone, ReadFile

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class _Shared:
    """What all views of one disk have in common. `room_bytes`: how many more it takes."""

    disk: Disk = field(default_factory=Disk)
    room_bytes: int | None = None
    open_files: int = 0
    locks: list[Folder] = field(default_factory=list)
    mutex: threading.RLock = field(default_factory=threading.RLock)


class SimFile:
    """A file of a `SimFileSystem`, open for reading."""

    def __init__(self, shared: _Shared, path: Path, inode: Inode) -> None:
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
            self._shared.disk.sync(self._inode)

    def fail_sync(self) -> None:
        """What a sync that fails does: what was pending is doubtful from now on."""
        self._data()
        with self._shared.mutex:
            self._inode.fail_sync()

    def close(self) -> None:
        """Close it. Twice: nothing."""
        if self._is_open:
            self._is_open = False
            self._shared.open_files -= 1


class SimAppendFile(SimFile):
    """A file of a `SimFileSystem`, open for writing."""

    def __init__(self, shared: _Shared, path: Path, inode: Inode) -> None:
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
                self._shared.disk.write(self._inode, offset, piece[:written])
            if written < len(piece):
                raise _error(errno.ENOSPC, self.path)

    def truncate(self, size: int) -> None:
        """As `AppendFile.truncate`."""
        data = self._data()
        with self._shared.mutex:
            self._take_room(size - len(data))
            self._shared.disk.resize(self._inode, size)
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
        self._shared = _Shared(room_bytes=room_bytes)
        self._shared.disk.root.seen["/"] = self._shared.disk.folder()
        self._shared.disk.root.stable = dict(self._shared.disk.root.seen)
        self._held: tuple[Path, Folder] | None = None
        self._boot = 0

    @property
    def open_files(self) -> int:
        """Files that are open now: a test looks for leaks."""
        return self._shared.open_files

    @property
    def mutex(self) -> threading.RLock:
        """Held while anything changes."""
        return self._shared.mutex

    # --- what `wal.filesystem.FileSystem` wants ---------------------------------------------------

    readers = 1

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
            inode = self._shared.disk.file()
            self._shared.disk.name((folder, path.name, inode))
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
            if isinstance(node, Folder) and isinstance(there, Inode):
                raise _error(errno.ENOTDIR, new)
            if isinstance(there, Folder) and there is not node:
                if isinstance(node, Inode):
                    raise _error(errno.EISDIR, new)
                if there.seen:
                    raise _error(errno.ENOTEMPTY, new)
            if there is not node:
                flushed = node if isinstance(node, Inode) and there is not None else None
                changes = (source, old.name, None), (target, new.name, node)
                self._shared.disk.name(*changes, flushed=flushed)

    def remove(self, path: Path) -> None:
        """As `FileSystem.remove`."""
        with self.mutex:
            self._file(path)
            self._shared.disk.name((self._folder(path.parent), path.name, None))

    def make_directory(self, path: Path) -> None:
        """As `FileSystem.make_directory`."""
        with self.mutex:
            if not path.name:
                raise _error(errno.EEXIST, path)
            folder = self._folder(path.parent)
            if path.name in folder.seen:
                raise _error(errno.EEXIST, path)
            self._shared.disk.name((folder, path.name, self._shared.disk.folder()))

    def remove_directory(self, path: Path) -> None:
        """As `FileSystem.remove_directory`."""
        with self.mutex:
            if self._folder(path).seen:
                raise _error(errno.ENOTEMPTY, path)
            self._shared.disk.name((self._folder(path.parent), path.name, None))

    def remove_tree(self, path: Path) -> None:
        """As `FileSystem.remove_tree`; what a crash leaves of it is all or nothing."""
        with self.mutex, contextlib.suppress(FileNotFoundError):
            self._folder(path)
            self._shared.disk.name((self._folder(path.parent), path.name, None))

    def list_directory(self, path: Path) -> list[str]:
        """As `FileSystem.list_directory`."""
        with self.mutex:
            return sorted(self._folder(path).seen)

    def has_name(self, path: Path) -> bool:
        """As `FileSystem.has_name`."""
        with self.mutex:
            return path.name in self._folder(path.parent).seen

    def sync_file(self, path: Path) -> None:
        """As `FileSystem.sync_file`."""
        with contextlib.closing(SimFile(self._shared, path, self._file(path))) as file:
            file.sync()

    def sync_directory(self, path: Path) -> None:
        """As `FileSystem.sync_directory`."""
        with self.mutex:
            self._shared.disk.sync(self._folder(path))

    def free_bytes(self, path: Path) -> int | None:
        """As `FileSystem.free_bytes`."""
        self._folder(path)
        return self._shared.room_bytes

    def boot_id(self) -> str:
        """As `FileSystem.boot_id`: another one behind each `crash`, the same behind `killed`."""
        return f"boot {self._boot}"

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
            dice = Dice(number)
            root = self._shared.disk.crash(dice, grain=dice.grain)
            after._shared.disk.root = _anew(after._shared.disk, root)
            after._boot = self._boot + 1
            return after

    def copy(self) -> SimFileSystem:
        """A disk with the same files, everything stable."""
        after = SimFileSystem(seed=self._rng.getrandbits(64), room_bytes=self._shared.room_bytes)
        with self.mutex:
            after._shared.disk.root = _anew(after._shared.disk, self._shared.disk.root)
        after._boot = self._boot
        return after

    def killed(self) -> SimFileSystem:
        """The disk behind the end of all programs: the next ones see the same, and what was not
        synced is not stable yet. This one is left as it is."""
        after = SimFileSystem(seed=self._rng.getrandbits(64), room_bytes=self._shared.room_bytes)
        with self.mutex:
            after._shared.disk = copy.deepcopy(self._shared.disk)
        after._boot = self._boot
        return after

    def contents(self, path: Path) -> bytes:
        """What programs see in a file."""
        return bytes(self._file(path).seen)

    def files(self, folder: Path) -> list[tuple[str, bytes | None]]:
        """What programs see below a folder: path and contents, None for a folder; folders first."""
        with self.mutex:
            return list(settled(self._folder(folder)))

    def put(self, path: Path, data: bytes) -> None:
        """Set a file's contents, stable at once; its folders are made, and stable too."""
        with self.mutex:
            disk = self._shared.disk
            folder = disk.root
            for name in path.parent.parts:
                node = folder.seen.setdefault(name, disk.folder())
                if isinstance(node, Inode):
                    raise _error(errno.ENOTDIR, path)
                folder.stable[name] = node
                folder = node
            folder.seen[path.name] = folder.stable[path.name] = disk.file(data)

    # --- inside -----------------------------------------------------------------------------------

    def _node(self, path: Path) -> Node:
        """What programs see at that name: in the folder that is held, by what it is and not by its
        name."""
        with self.mutex:
            node: Node = self._shared.disk.root
            names = path.parts
            held = () if self._held is None else self._held[0].parts
            if self._held is not None and names[: len(held)] == held:
                node, names = self._held[1], names[len(held) :]
            return _below(node, names, path)

    def _file(self, path: Path) -> Inode:
        node = self._node(path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _check_place(self, path: Path) -> None:
        """Raise `FolderGone` where the name of the folder that is held leads elsewhere."""
        assert self._held is not None
        place, folder = self._held
        try:
            there = _below(self._shared.disk.root, place.parts, place)
        except FileNotFoundError:
            raise FolderGone(path) from None
        if there is not folder:
            raise FolderGone(path)


def _below(node: Node, names: Sequence[str], path: Path) -> Node:
    """What is at `names` below `node`. `path`: for the error."""
    for name in names:
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        found = node.seen.get(name)
        if found is None:
            raise _error(errno.ENOENT, path)
        node = found
    return node


def _anew(disk: Disk, folder: Folder) -> Folder:
    """What programs see below a folder, on another disk, everything stable."""
    after = disk.folder()
    made: dict[int, Inode] = {}
    for name, node in folder.seen.items():
        if isinstance(node, Folder):
            after.seen[name] = _anew(disk, node)
        else:
            if node.number not in made:
                made[node.number] = disk.file(bytes(node.seen))
            after.seen[name] = made[node.number]
    after.stable = dict(after.seen)
    return after


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
