"""The one seam through which the log touches a disk.

Everything in `wal`, `recovery` and `store` that reads or writes log files and snapshots does it
through a `FileSystem`, so that a test can put another one in its place: one that fails the k-th
call, one that forgets what was not synced. Calls raise `OSError` as the system does; `explain`
turns it into an error with the place and a hint.

What a caller may rely on: after `AppendFile.sync` returned, the bytes written to that file are on
stable storage; after `sync_directory`, the names in it are. Nothing else is durable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from logweir.errors import DirectoryLocked, WalError
from logweir.wal.process import OfProcess

__all__ = ["OS", "AppendFile", "FileSystem", "OsFileSystem", "ReadFile", "explain", "give_up"]

Buffer = bytes | bytearray | memoryview

_FILE_MODE: Final = 0o660
_PARTS_MAX: Final = 512  # of one writev call; the system allows 1024


_HINTS: Final = {
    errno.ENOENT: "look at the path: there is nothing of that name",
    errno.EEXIST: "something of that name is there already: look at the path",
    errno.EACCES: "give this user the right to it, or run as the user who owns it",
    errno.EPERM: "give this user the right to it, or run as the user who owns it",
    errno.ENOTDIR: "look at the path: a part of it is a file, not a folder",
    errno.EISDIR: "name a file in that folder",
    errno.EINVAL: "name an ordinary file",
    errno.ELOOP: "its symbolic links lead in a circle: name the real file",
    errno.ENOSPC: "the disk is full: free some room, then try again",
    errno.EDQUOT: "the quota is used up: free some room, then try again",
    errno.EFBIG: "the system allows this process no file as large as that (ulimit -f)",
    errno.EROFS: "the disk is read-only: use another folder, or a command that only reads",
    errno.EMFILE: "this process has too many files open: raise `ulimit -n`",
    errno.ENFILE: "the machine has too many files open",
    errno.EIO: "the disk failed: look at the system's log, and copy what can be read",
}


def explain(error: OSError, path: str, offset: int | None = None) -> WalError:
    """The typed error for what the system said about `path`, with what to do about it."""
    return WalError(
        f"{(error.strerror or str(error)).lower()}.",
        path=path,
        offset=offset,
        hint=_HINTS.get(error.errno or 0, ""),
    )


def give_up(file: ReadFile | AppendFile) -> None:
    """Close a file of which something failed already: what closing it says matters no more."""
    with contextlib.suppress(OSError):
        file.close()


def _give_back(fd: int) -> None:
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
        """Up to `count` bytes from `offset`; fewer only where the file ends."""

    def close(self) -> None: ...


class AppendFile(Protocol):
    """A file open for writing at its end. For one thread at a time, but for `sync`, which another
    one may call meanwhile: it is about what was written before."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Bytes in the file: where the next `write` begins."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Append all parts, one behind the other. After `OSError` some of them may be there."""

    def truncate(self, size: int) -> None:
        """Cut the file back to `size` bytes; the next `write` begins there."""

    def sync(self) -> None:
        """Return when everything written is on stable storage."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the log needs of a disk. Paths are absolute or relative to the current folder."""

    def open_read(self, path: Path) -> ReadFile: ...

    def create(self, path: Path) -> AppendFile:
        """A new, empty file; `FileExistsError` where the name is taken."""

    def open_append(self, path: Path) -> AppendFile:
        """An existing file, to go on at its end."""

    def rename(self, old: Path, new: Path) -> None:
        """Give `old` the name `new`, which is replaced where it exists. Atomic."""

    def remove(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Make the folder and its parents; it may exist."""

    def list_directory(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""

    def sync_file(self, path: Path) -> None:
        """Return when what is in the file is on stable storage, whoever wrote it."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the folder are on stable storage."""

    def lock(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Hold `path` as a lock file. Raises `DirectoryLocked` with the holder's process id."""


class _OsReadFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Without O_NONBLOCK opening a named pipe would wait for a writer.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(self._fd)
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what, str(path))

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        if len(data) == count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < count and (data := os.pread(self._fd, count - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            _give_back(fd)


class _OsAppendFile(OfProcess):
    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, _FILE_MODE)
        self._size = os.fstat(self._fd).st_size
        os.lseek(self._fd, self._size, os.SEEK_SET)
        self._belong()

    def size(self) -> int:
        return self._size

    def write(self, parts: Sequence[Buffer]) -> None:
        written = os.writev(self._fd, parts[:_PARTS_MAX])
        self._size += written
        if written < sum(map(len, parts)):
            self._write_rest(parts, written)

    def _write_rest(self, parts: Sequence[Buffer], written: int) -> None:
        """Go on behind the first `written` bytes."""
        views = [memoryview(part) for part in parts if len(part)]
        while True:
            while views and written >= len(views[0]):
                written -= len(views[0])
                del views[0]
            if not views:
                return
            views[0] = views[0][written:]
            written = os.writev(self._fd, views[:_PARTS_MAX])
            self._size += written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, size, os.SEEK_SET)
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

    def open_read(self, path: Path) -> ReadFile:
        return _OsReadFile(path)

    def create(self, path: Path) -> AppendFile:
        return _OsAppendFile(path, os.O_CREAT | os.O_EXCL)

    def open_append(self, path: Path) -> AppendFile:
        return _OsAppendFile(path, 0)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def sync_file(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _sync_data(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        # Tarantool locks the folder itself, so that is what is locked; the file names the holder.
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked(path) from None
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                shares = _Shares(folder, fd)
                yield
                del shares
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)  # the file stays, empty: nobody holds it
                with contextlib.suppress(OSError):
                    # A child that is being forked may have copies, which would keep it locked.
                    fcntl.flock(folder, fcntl.LOCK_UN)
            finally:
                _give_back(fd)
        finally:
            _give_back(folder)


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
def unopened(folder: Path) -> Iterator[None]:
    """Around reading what a process that has a folder of the real disk open for changes would
    change: nobody can open it meanwhile. Writes nothing. Raises `DirectoryLocked`, `OSError`."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked(folder / "logweir.lock") from None
        yield
    finally:
        os.close(held)


def _locked(path: Path) -> DirectoryLocked:
    """The error for a folder that somebody else holds, who may be named in the lock file."""
    try:
        text = path.read_bytes()[:32].strip()
    except OSError:
        text = b""
    pid = int(text) if text.isdigit() and _is_alive(int(text)) else 0
    who = f"process {pid}" if pid else "another process, such as a Tarantool"
    return DirectoryLocked(
        f"the folder is in use by {who}.",
        path=str(path.parent),
        pid=pid,
        hint="one process at a time may open it for writing: stop that one, or use "
        "`logweir.read`, `logweir cat` or `logweir verify`, which only read",
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


OS: Final = OsFileSystem()
"""The real disk, ready to use."""
