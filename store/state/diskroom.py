"""Whether the disk has room for what is about to be stored."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Final

from logweir.errors import WriteFailed
from logweir.wal.filesystem import FileSystem, explain
from logweir.wal.newfile import create_file

_KEPT_BYTES: Final = 128 * 1024
_PROBE_BYTES: Final = 64 * 1024
_SECONDS: Final = 0.1
_OTHERS_BYTES: Final = 4 * 1024 * 1024 * 1024  # more than others can write in that time


class DiskRoom:
    """The room where `directory` is. Where there is much it is asked for again after a while."""

    def __init__(self, directory: Path, filesystem: FileSystem) -> None:
        self._directory = directory
        self._filesystem = filesystem
        self._left = 0  # may be stored until then without asking the system again
        self._until = 0.0

    def check(self, wanted_bytes: int) -> None:
        """Raise `WriteFailed` if the disk has no room for that much and what goes with it.

        LMDB takes what it could not write for a broken disk, so that it must not come to it. Where
        the system does not say, as of a folder that was removed, nothing is refused.
        """
        now = time.monotonic()
        if wanted_bytes <= self._left and now < self._until:
            self._left -= wanted_bytes
            return
        try:
            free = self._filesystem.free_bytes(self._directory)
        except OSError:
            return
        if free is None:
            return
        left = free - wanted_bytes - _KEPT_BYTES
        self._left = left - _OTHERS_BYTES
        self._until = now + _SECONDS
        if left < 0:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise self._failed("cannot store the change", full)

    def check_file(self) -> None:
        """Raise `WriteFailed` if no file can be written there, as where a quota is used up."""
        path = self._directory / "probe.new"
        try:
            with contextlib.closing(create_file(self._filesystem, path)) as file:
                try:
                    file.write([bytes(_PROBE_BYTES)])
                finally:
                    self._filesystem.remove(path)
        except OSError as error:
            raise self._failed("cannot write a file", error) from error

    def _failed(self, what: str, error: OSError) -> WriteFailed:
        known = explain(error, "")
        return WriteFailed(
            f"{what}: {known.reason}",
            path=str(self._directory),
            errno=error.errno or 0,
            hint=known.hint,
        )
