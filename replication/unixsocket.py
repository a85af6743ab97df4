"""Unix sockets: files on which listeners are bound, and the way to those of others.

A socket's file that nobody listens on any more, as a crash leaves it, makes way; one on which
somebody listens, and a file that is no socket, stay where they are. The file is there for its owner
only unless `mode` in the listener's address says more, in octal digits as of chmod; nobody can
connect before its rights are set. The listener that made it removes it at its end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.urls import Url

_OWNER_ONLY: Final = 0o600


class SocketFile:
    """A bound unix socket that does not listen yet. `path`: its file; `mode`: its rights.

    Raises `OSError`.
    """

    def __init__(self, path: str, mode: int) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _make_way(path)
            self.socket.bind(path)
            os.chmod(path, mode)
            self._made = _identity(path)
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the file, if it is still the one that was made."""
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._made:
                os.unlink(self.path)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _make_way(path: str) -> None:
    """Remove a socket on which nobody listens. Raises `OSError` for anything else that is there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # more wait there than are taken
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def connect_file(path: str, timeout_seconds: float) -> socket.socket:
    """A connection to a unix socket, for programs without an event loop. Raises `OSError`."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(timeout_seconds)
        found.connect(path)
    except BaseException:
        found.close()
        raise
    return found


def mode_of(url: Url) -> int:
    """The rights that a listener's address gives its socket's file. Raises `ConfigError`."""
    text = url.option("mode")
    if not text and "mode" not in dict(url.options):
        return _OWNER_ONLY
    if len(text) not in (3, 4) or not set(text) <= set("01234567") or int(text, 8) > 0o777:
        raise ConfigError(
            "mode",
            f"{text!r} in {url}",
            origin="--listen",
            hint="write the file's rights as for chmod: mode=600 for its owner, 660 for its group",
        )
    return int(text, 8)


def socket_hint(error: OSError) -> str:
    """What to do about a unix socket that cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; stop it, or name another file"
    if error.errno == errno.EEXIST:
        return "remove it, or name another file"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "name a file in a folder in which this process may make one"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "make its folder first, or name a file in another one"
    return "name a shorter file, or one in the working folder: the system allows about 100 bytes"
