"""Folders for temporary files that are not left for good, however their process ends.

A process that is killed removes nothing. So each folder is locked as long as its maker lives, and
whoever makes the next one beside it removes those that nobody has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from logweir.wal.failpoint import failpoint

_PREFIX: Final = "logweir-scratch-"


@contextlib.contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A new folder in `parent`, or where temporary files are, removed in the end. Raises
    `OSError`."""
    place = Path(parent or tempfile.gettempdir())
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        while True:
            made = tempfile.TemporaryDirectory(
                prefix=_PREFIX, dir=place, ignore_cleanup_errors=True
            )
            failpoint("scratch.after_made")
            try:
                stack.enter_context(_locked(Path(made.name)))
                break
            except (FileNotFoundError, BlockingIOError):  # taken for one that was left
                made.cleanup()
        # In it, since a store locks its own folder.
        folder = Path(stack.enter_context(made)) / "files"
        folder.mkdir()
        yield folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder of this user. Raises `OSError` where somebody else has it, or where
    it is removed or another user's."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if not os.path.samestat(found, os.stat(path)) or found.st_uid != os.geteuid():
            raise FileNotFoundError(path)
        yield
    finally:
        os.close(fd)
