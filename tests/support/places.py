"""Small and read-only disks, and a process that may open few files. For Linux and root."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["few_files", "mounted", "remount_read_only"]

_READ_ONLY = 1
_REMOUNT = 32


def _mount(source: str, target: Path, flags: int, options: str = "") -> bool:
    """Mount a tmpfs; whether that worked."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    done = libc.mount(source.encode(), str(target).encode(), b"tmpfs", flags, options.encode())
    return int(done) == 0


@contextlib.contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A disk of that size on a new folder; skips the test where this user may not have one."""
    folder.mkdir()
    if not _mount("tmpfs", folder, 0, f"size={size_bytes}"):
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield folder
    finally:
        libc = ctypes.CDLL(ctypes.util.find_library("c"))
        libc.umount2(str(folder).encode(), 2)


def remount_read_only(folder: Path) -> None:
    """Take the right to write from a disk made by `mounted`."""
    if not _mount("tmpfs", folder, _READ_ONLY | _REMOUNT):
        pytest.skip("this user may not remount a tmpfs")


@contextlib.contextmanager
def few_files(spare: int) -> Iterator[None]:
    """Let this process open `spare` more files and no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
