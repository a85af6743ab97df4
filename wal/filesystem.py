"""The one seam through which the log touches a disk.

Everything in `wal`, `recovery` and `store` that reads or writes log files and snapshots does it
through a `FileSystem`, so that a test can put another one in its place: one that fails the k-th
call, one that forgets what was not synced. Calls raise `OSError` as the system does; `explain`
turns it into an error with the place and a hint.

What a caller may rely on: after `AppendFile.sync` returned, the bytes written to that file are on
stable storage; after `sync_directory`, the names in it are. Nothing else is durable. A new folder
is a name in its parent: see `make_folders`.

Who holds a folder's lock gets a file system that looks names up in the folder itself, by its
descriptor (`FileSystem.lock`). So a folder that is renamed, removed or replaced while it is open
never makes its owner read or write another one; a new file in it is refused (`FolderGone`).

Files are made with mode 0640 and folders with 0750, whatever the umask. Only reading follows a
symbolic link: what is written, cut or locked must be a regular file of that name.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from logweir.errors import DirectoryLocked, WalError, WriteFailed
from logweir.wal.process import OfProcess

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
R = TypeVar("R")

FILE_MODE: Final = 0o640
NOT_NOW: Final = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
"""What the system says of itself or of this process, not of the file."""
_FOLDER_MODE: Final = 0o750
_PARTS_MAX: Final = 512  # of one writev call; the system allows 1024
_PLACE: Final = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)

_HINTS: Final = {
    errno.ENOENT: "look at the path: there is nothing of that name",
    errno.EEXIST: "something of that name is there already: look at the path",
    errno.EACCES: "give this user the right to it, or run as the user who owns it",
    errno.EPERM: "give this user the right to it, or run as the user who owns it",
    errno.ENOTDIR: "look at the path: a part of it is a file, not a folder",
    errno.EISDIR: "name a file in that folder",
    errno.EINVAL: "name an ordinary file",
    errno.ELOOP: "name the real file: symbolic links may lead in a circle, and what is written is "
    "not looked for through one",
    errno.ENOSPC: "the disk is full: free some room, then try again",
    errno.EDQUOT: "the quota is used up: free some room, then try again",
    errno.EFBIG: "the system allows this process no file as large as that (ulimit -f)",
    errno.EROFS: "the disk is read-only: use another folder, or a command that only reads",
    errno.EMFILE: "this process has too many files open: raise `ulimit -n`",
    errno.ENFILE: "the machine has too many files open",
    errno.EIO: "the disk failed: look at the system's log, and copy what can be read",
    errno.ESTALE: "close the log, bring the folder back to its name, and open it again",
}


class FolderGone(OSError):
    """A folder that is held is no longer what its name leads to: no new file is made in it."""

    def __init__(self, path: Path) -> None:
        text = "the open folder is no longer at its name: it was renamed, removed or replaced"
        super().__init__(errno.ESTALE, text, str(path))


def explain(error: OSError, path: str, offset: int | None = None) -> WalError:
    """The typed error for what the system said about `path`, with what to do about it."""
    number, hint = error.errno or 0, _HINTS.get(error.errno or 0, "")
    if isinstance(error, FolderGone):
        text = f"{error.strerror}."
        return WriteFailed(text, path=path, offset=offset, errno=number, hint=hint)
    text = f"{(error.strerror or str(error)).lower()}."
    return WalError(text, path=path, offset=offset, hint=hint)


@contextlib.contextmanager
def explaining(path: Path | str, offset: int | None = None) -> Iterator[None]:
    """Around what the system may refuse: an `OSError` becomes what `explain` makes of it."""
    try:
        yield
    except OSError as error:
        raise explain(error, str(path), offset) from error


def give_up(file: ReadFile | AppendFile) -> None:
    """Close a file of which something failed already: what closing it says matters no more."""
    with contextlib.suppress(OSError):
        file.close()


def give_back(fd: int) -> None:
    """Close a descriptor through which nothing was written that matters: so do errors of it."""
    with contextlib.suppress(OSError):
        os.close(fd)


class ReadFile(Protocol):
    """A file open for reading at any place. Safe to use from several threads."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Bytes in the file now (it may grow)."""

    def read(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only if the file ends."""

    def close(self) -> None: ...


class AppendFile(Protocol):
    """A file open for writing at its end. For one thread at a time, but for `sync`, which another
    one may call meanwhile: it is about what was written before."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Bytes in the file: where the next `write` begins."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append all parts, one after the other. After `OSError` some of them may be there."""

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts over what is there from `offset` on, or behind it; `size` and where the
        next `write` begins stay. After `OSError` some of them may be there."""

    def truncate(self, size: int) -> None:
        """Cut the file back to `size` bytes; the next `write` begins there."""

    def sync(self) -> None:
        """Return when everything written is on stable storage."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the log needs of a disk. Paths are absolute or relative to the current folder."""

    @property
    def readers(self) -> int:
        """How many files are best read at a time: more than one where each answer takes a while."""

    def open_read(self, path: Path) -> ReadFile: ...

    def create(self, path: Path) -> AppendFile:
        """A new, empty file; `FileExistsError` if the name is taken."""

    def open_append(self, path: Path) -> AppendFile:
        """An existing file, to go on at its end."""

    def rename(self, old: Path, new: Path) -> None:
        """Give `old` the name `new`, which is replaced where it exists. Atomic."""

    def remove(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Make a folder in one that is there; `FileExistsError` if the name is taken."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty folder."""

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all that is in it; nothing if there is none."""

    def list_directory(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""

    def has_name(self, path: Path) -> bool:
        """Whether something has the name, as the disk compares names: it may take those of other
        letters for the same. The folder need not be listable."""

    def sync_file(self, path: Path) -> None:
        """Return when what is in the file is on stable storage, whoever wrote it."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the folder are on stable storage."""

    def free_bytes(self, path: Path) -> int | None:
        """Bytes that may still be written where the folder is; None if that is not told."""

    def boot_id(self) -> str:
        """What each start of the machine changes; "" if not told. Raises `OSError` if refused."""

    def lock(self, path: Path) -> contextlib.AbstractContextManager[FileSystem]:
        """Hold `path` as a lock file. Raises `DirectoryLocked` with the holder's process id.

        Returns the file system for the time that it is held: the same one, in which names in that
        folder are looked up in the folder that was locked, wherever its name leads since. It makes
        no file in a folder that is gone from its name: `FolderGone`.
        """


def each(
    filesystem: FileSystem, read: Callable[[T], R], of: Sequence[T], *, at_once: int = 1
) -> Iterator[R]:
    """`read` of each, in their order; `filesystem.readers` of them at a time, or `at_once` where
    that is more. Raises what the first that fails raises; what was not begun then, or when nobody
    asks for more, is not."""
    threads = min(max(filesystem.readers, at_once), len(of))
    if threads <= 1:
        yield from map(read, of)
        return
    with ThreadPoolExecutor(threads, "logweir-read") as pool:
        yield from pool.map(read, of)


def make_folders(filesystem: FileSystem, path: Path) -> None:
    """Make a folder, and those of its parents that are missing; each is durable when this returns,
    since the folder that it was made in is synced. That one has to be readable for it: none is made
    in others. It may be there; an empty one may be what a process left that was killed before its
    sync, so that is done where it can be. Where the sync fails the folder is removed again."""
    try:
        if not filesystem.list_directory(path):
            with contextlib.suppress(PermissionError):
                filesystem.sync_directory(path.parent)
        return
    except FileNotFoundError:
        if path.parent == path:
            raise
    except NotADirectoryError:
        if filesystem.has_name(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        raise
    make_folders(filesystem, path.parent)
    is_ours = True
    try:
        filesystem.make_directory(path)
    except FileExistsError:  # somebody else makes it too
        is_ours = False
    try:
        filesystem.sync_directory(path.parent)
    except OSError:
        if is_ours:
            with contextlib.suppress(OSError):
                filesystem.remove_directory(path)
        raise


def _opened(path: Path | str, flags: int, folder: int | None) -> int:
    """Open a regular file. `folder`: the descriptor that `path` is relative to."""
    # Without O_NONBLOCK opening a named pipe would wait for who has its other end.
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            text = "is a symbolic link, which is not followed to write"
            raise OSError(errno.ELOOP, text, str(path)) from error
        raise
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what, str(path))
        if flags & os.O_CREAT:
            _set_mode(fd, mode, FILE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _set_mode(fd: int, mode: int, wanted: int) -> None:
    """Make the rights `wanted`, which the umask may have cut. Some file systems have no rights to
    set (FAT, some network drives): it is no error there."""
    if mode & 0o777 != wanted:
        with contextlib.suppress(OSError):
            os.fchmod(fd, mode & 0o7000 | wanted)


class _OsReadFile:
    def __init__(self, path: Path, name: Path, folder: int | None) -> None:
        self.path = path
        self._fd = _opened(name, os.O_RDONLY, folder)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        if len(data) == count or not data:
            return data
        parts, got = [data], len(data)
        while got < count and (data := os.pread(self._fd, count - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            give_back(fd)


class _OsAppendFile(OfProcess):
    def __init__(self, path: Path, name: Path, folder: int | None, flags: int) -> None:
        self.path = path
        self._fd = _opened(name, os.O_RDWR | os.O_NOFOLLOW | flags, folder)
        try:
            self._size = os.fstat(self._fd).st_size
        except BaseException:
            os.close(self._fd)
            raise
        self._belong()

    def size(self) -> int:
        return self._size

    def write(self, parts: Sequence[Buffer]) -> None:
        self.put(parts, self._size)
        self._size += sum(map(len, parts))

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        written = os.pwritev(self._fd, parts[:_PARTS_MAX], offset)
        if written < sum(map(len, parts)):
            self._put_rest(parts, offset, written)

    def _put_rest(self, parts: Sequence[Buffer], offset: int, written: int) -> None:
        """Go on behind the first `written` bytes."""
        views = [memoryview(part) for part in parts if len(part)]
        while True:
            offset += written
            while views and written >= len(views[0]):
                written -= len(views[0])
                del views[0]
            if not views:
                return
            views[0] = views[0][written:]
            written = os.pwritev(self._fd, views[:_PARTS_MAX], offset)
            if not written:
                raise OSError(errno.EIO, "the disk takes no more bytes of a write", str(self.path))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        _sync_data(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _left_behind(self) -> None:
        self.close()  # so that nothing that the child does can reach the file


_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: fsync alone leaves data in the drive's cache."""


def _full_sync(fd: int) -> None:
    assert _FULL_SYNC is not None
    fcntl.fcntl(fd, _FULL_SYNC)


_sync_data: Final[Callable[[int], None]] = os.fdatasync if _FULL_SYNC is None else _full_sync


class OsFileSystem:
    """The real disk."""

    readers = 1
    _folder_path: Path | None = None
    """The folder that is held, by the name it had then."""
    _folder_name = ""
    """The same, whatever the current folder is."""
    _folder_fd: int | None = None
    """Its descriptor; `_giving` is held where it is copied or given back."""
    _giving = threading.Lock()

    def open_read(self, path: Path) -> ReadFile:
        if self._folder_path is None:  # as `_at` says, in half of the time
            return _OsReadFile(path, path, None)
        with self._at(path) as (name, folder):
            return _OsReadFile(path, name, folder)

    def create(self, path: Path) -> AppendFile:
        with self._at(path) as (name, folder):
            if folder is not None:
                self._check_place(path, folder)
            return _OsAppendFile(path, name, folder, os.O_CREAT | os.O_EXCL)

    def open_append(self, path: Path) -> AppendFile:
        with self._at(path) as (name, folder):
            return _OsAppendFile(path, name, folder, 0)

    def rename(self, old: Path, new: Path) -> None:
        with self._at(old) as (source, old_folder), self._at(new) as (target, new_folder):
            os.replace(source, target, src_dir_fd=old_folder, dst_dir_fd=new_folder)

    def remove(self, path: Path) -> None:
        with self._at(path) as (name, folder):
            os.unlink(name, dir_fd=folder)

    def make_directory(self, path: Path) -> None:
        with self._at(path) as (name, folder):
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
        with contextlib.suppress(OSError), self._directory(path, os.O_NOFOLLOW) as fd:
            _set_mode(fd, os.fstat(fd).st_mode, _FOLDER_MODE)

    def remove_directory(self, path: Path) -> None:
        with self._at(path) as (name, folder):
            os.rmdir(name, dir_fd=folder)

    def remove_tree(self, path: Path) -> None:
        with self._at(path) as (name, folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=folder)

    def list_directory(self, path: Path) -> list[str]:
        with self._directory(path) as fd:
            return sorted(os.listdir(fd))

    def has_name(self, path: Path) -> bool:
        absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with absent, self._at(path) as (name, folder):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return True
        return False

    def sync_file(self, path: Path) -> None:
        with self._at(path) as (name, folder):
            fd = _opened(name, os.O_RDONLY, folder)
        try:
            _sync_data(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        with self._directory(path) as fd:
            os.fsync(fd)

    def free_bytes(self, path: Path) -> int | None:
        with self._directory(path) as fd:
            found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def boot_id(self) -> str:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return ""

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[FileSystem]:
        # Tarantool locks the folder itself, so that is what is locked; the file names the holder.
        with self._at(path.parent) as (name, at):
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked(path, folder) from None
            fd = _lock_file(path.name, folder)
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                shares = _Shares(folder, fd)
                held = copy.copy(self)
                held._folder_path, held._folder_name = path.parent, os.path.abspath(path.parent)
                held._folder_fd, held._giving = folder, threading.Lock()
                try:
                    yield held
                finally:
                    with held._giving:
                        held._folder_fd = None
                del shares
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)  # the file stays, empty: nobody holds it
                with contextlib.suppress(OSError):
                    # A child that is being forked may have copies, which would keep it locked.
                    fcntl.flock(folder, fcntl.LOCK_UN)
            finally:
                give_back(fd)
        finally:
            give_back(folder)

    # --- inside -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _at(self, path: Path) -> Iterator[tuple[Path, int | None]]:
        """The name to open and the descriptor that it is relative to: one of its own, since the
        folder may be given free meanwhile, and that number be another folder's then."""
        inside, fd = self._folder_path, None
        if inside is not None and path.is_relative_to(inside):
            with self._giving:
                if self._folder_fd is not None:
                    fd = os.open(".", _PLACE, dir_fd=self._folder_fd)  # a copy would lock it, too
        if inside is None or fd is None:
            yield path, None
            return
        try:
            yield path.relative_to(inside), fd
        finally:
            os.close(fd)

    def _check_place(self, path: Path, folder: int) -> None:
        """Raise `FolderGone` where the name of the folder that is held leads elsewhere."""
        try:
            there = os.stat(self._folder_name)
        except FileNotFoundError:
            raise FolderGone(path) from None
        if not os.path.samestat(there, os.fstat(folder)):
            raise FolderGone(path)

    @contextlib.contextmanager
    def _directory(self, path: Path, flags: int = 0) -> Iterator[int]:
        """A descriptor of a folder."""
        flags |= os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with self._at(path) as (name, folder):
            fd = os.open(name, flags, dir_fd=folder)
        try:
            yield fd
        finally:
            os.close(fd)


class _Shares(OfProcess):
    """Descriptors of which a child of `fork` must not keep its copies: a lock is held as long as
    there is one. Who holds them closes them."""

    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors
        self._belong()

    def _left_behind(self) -> None:
        for fd in self._descriptors:
            os.close(fd)


@contextlib.contextmanager
def unopened(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Around reading what who has a folder of the disk open would change: nobody can open it
    meanwhile, nor, `alone`, be here. Writes nothing. Raises `DirectoryLocked`, `OSError`."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if not os.path.samestat(os.stat(folder), os.fstat(held)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            raise _locked(folder / "logweir.lock", held) from None
        yield
    finally:
        os.close(held)


def _lock_file(name: str, folder: int) -> int:
    """Open the lock file, or make it; what is in it is left alone."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    with contextlib.suppress(FileExistsError):
        return _opened(name, flags | os.O_CREAT | os.O_EXCL, folder)
    return _opened(name, flags, folder)


def _locked(path: Path, folder: int) -> DirectoryLocked:
    """The error for a folder that somebody else holds, who may be named in the lock file."""
    text = b""
    with contextlib.suppress(OSError):
        fd = _opened(path.name, os.O_RDONLY | os.O_NOFOLLOW, folder)
        with open(fd, "rb") as file:
            text = file.read(32).strip()
    pid = int(text) if text.isdigit() and _is_alive(int(text)) else 0
    who = f"process {pid}" if pid else "another process, such as a Tarantool"
    return DirectoryLocked(
        f"the folder is in use by {who}.",
        path=str(path.parent),
        pid=pid,
        hint="one process at a time may open it for writing: if that is a server, give its address "
        "(tarantool://…) in place of the folder; else stop it, or use `logweir.read`, "
        "`logweir cat` or `logweir verify`, which only read",
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


OS: Final = OsFileSystem()
"""The real disk, ready to use."""
