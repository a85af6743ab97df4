"""Leases: files that somebody reads, copies or restores from are not collected under them.

A lease is a shared lock on a range of *signatures*: byte n of the lock file of a folder,
`logweir.lock`, stands for the log and the snapshot whose names are the number n. A reader locks the
bytes of the files that it needs, which takes no right to write; who removes a file locks its byte
for itself first, without waiting, and leaves the file where it is if that cannot be had. The system
takes the locks away when a process ends, however it ends.

What is used are open file description locks of Linux, since they also hold between two readers of
one process. Elsewhere, and where a folder has no lock file (nobody has written there, so nobody
collects) or where its disk keeps no locks, there is no lease: such a reader begins again when a
file goes. The locks are no data, so they do not go through the `FileSystem`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError
from logweir.wal.closing import Closable
from logweir.wal.filesystem import give_back

LOCK_NAME: Final = "logweir.lock"
_GET: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_SET_WAITING: Final[int | None] = getattr(fcntl, "F_OFD_SETLKW", None)
_FLOCK: Final = struct.Struct("hhqqi0q")
"""`struct flock`: type, whence, start, length (0: to the end of all), process."""
_LAST: Final = 2**63 - 2
_LOCKED: Final = (errno.EAGAIN, errno.EACCES)


class Lease(Closable):
    """What one reader holds in a folder. Made with nothing; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._fd = _open(directory, os.O_RDONLY)

    def close(self) -> None:
        """Give everything back. Twice: nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            give_back(fd)

    def hold(self, first: int, last: int | None = None) -> None:
        """Keep the files with numbers `first` … `last` (None: all later ones), no others. What was
        held before and is held after is held in between."""
        if self._fd < 0 or _SET is None or _SET_WAITING is None:
            return
        first = min(first, _LAST)
        length = 0 if last is None else max(min(last, _LAST) - first, 0) + 1
        try:
            _call(self._fd, _SET_WAITING, fcntl.F_RDLCK, first, length)
            if first:
                _call(self._fd, _SET, fcntl.F_UNLCK, 0, first)
            if length:
                _call(self._fd, _SET, fcntl.F_UNLCK, first + length, 0)
        except OSError:  # a disk that keeps no locks
            self.close()


@contextlib.contextmanager
def leased(*paths: str | Path) -> Iterator[None]:
    """Keep the logs and snapshots that stand in these folders now; of a file: that one. Raises
    `ConfigError` for what is no path."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            text = os.fspath(path) if isinstance(path, str | os.PathLike) else b""
            if not isinstance(text, str) or not text or "\0" in text:
                told = f"is {repr(path)[:80]}, which is no path and no URL"
                raise ConfigError(
                    "path", told, hint="name each folder or file as text or as a Path"
                )
            stack.enter_context(_lease_of_now(Path(text)))
        yield


def _lease_of_now(path: Path) -> Lease:
    number = path.name.partition(".")[0]
    if number.isdecimal() and not path.is_dir():
        lease = Lease(path.parent)
        lease.hold(int(number), int(number))
        return lease
    lease = Lease(path)
    lease.hold(0)
    with contextlib.suppress(OSError):
        numbers = [name.partition(".")[0] for name in os.listdir(path)]
        lease.hold(0, max((int(one) for one in numbers if one.isdecimal()), default=0))
    return lease


@contextlib.contextmanager
def unleased(directory: Path, number: int) -> Iterator[bool]:
    """Whether nobody holds the files of that number; nobody gets to, while the context is open."""
    fd = _open(directory, os.O_RDWR)
    try:
        yield fd < 0 or _SET is None or _try(fd, _SET, number)
    finally:
        if fd >= 0:
            give_back(fd)


def is_leased(directory: Path, first: int, last: int | None = None) -> bool:
    """Whether somebody holds one of these files."""
    fd = _open(directory, os.O_RDONLY)
    if fd < 0 or _GET is None:
        return False
    try:
        length = 0 if last is None else last - first + 1
        found = _call(fd, _GET, fcntl.F_WRLCK, min(first, _LAST), length)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        give_back(fd)


def holders(directory: Path) -> dict[int, int]:
    """The processes that hold something, as far as the system shows them to us, and the number of
    the oldest file that each may need."""
    found: dict[int, int] = {}
    if not is_leased(directory, 0):
        return found
    try:
        lock = os.stat(directory / LOCK_NAME)
    except OSError:
        return found
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # of somebody else, or closed by now
            at = os.stat(fd)
            if (at.st_dev, at.st_ino) == (lock.st_dev, lock.st_ino):
                _add_holder(found, fd.parent.parent, fd.name)
    return found


def _add_holder(found: dict[int, int], process: Path, fd: str) -> None:
    for line in (process / "fdinfo" / fd).read_text().splitlines():
        words = line.split()
        # lock: 1: OFDLCK ADVISORY READ -1 08:01:4711 168 EOF
        if words[:1] == ["lock:"] and "READ" in words and words[-2].isdecimal():
            pid = int(process.name)
            found[pid] = min(int(words[-2]), found.get(pid, _LAST))


def _open(directory: Path, flags: int) -> int:
    if _SET is None:
        return -1
    try:
        return os.open(directory / LOCK_NAME, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1


def _call(fd: int, command: int, kind: int, start: int, length: int) -> bytes:
    return fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _try(fd: int, command: int, number: int) -> bool:
    try:
        _call(fd, command, fcntl.F_WRLCK, min(number, _LAST), 1)
    except OSError as error:
        return error.errno not in _LOCKED
    return True
