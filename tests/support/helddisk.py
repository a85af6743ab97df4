"""A disk that stands still while a test wants it to."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

from logweir.wal.filesystem import AppendFile, OsFileSystem

WAIT_SECONDS = 30.0


class HeldDisk(OsFileSystem):
    """Its syncs of logs wait while `go` is not set; writes fail while `is_full` is."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.waits = threading.Event()
        self.is_full = threading.Event()

    def create(self, path: Path) -> AppendFile:
        return self._held(super().create(path))

    def _held(self, file: AppendFile) -> AppendFile:
        sync, write = file.sync, file.write

        def slow() -> None:
            if not self.go.is_set():
                self.waits.set()
                assert self.go.wait(WAIT_SECONDS)
            sync()

        def full(*args: Any) -> None:
            if self.is_full.is_set():
                self.waits.set()
                assert self.go.wait(WAIT_SECONDS)
                raise OSError(errno.ENOSPC, "No space left on device")
            write(*args)

        file.sync, file.write = slow, full  # type: ignore[method-assign]
        return file
