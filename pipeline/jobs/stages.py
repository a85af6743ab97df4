"""Folders in which a job puts what is not complete, by names that say whose they are: host, process
and time. A driver that is killed removes nothing, so the next job with such folders there does."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from pathlib import Path
from typing import Final

from logweir.wal.filesystem import FileSystem

_OWNER: Final = re.compile(r"(.+)-(\d+)-(\d+)-[0-9a-f]+")
_DAY_SECONDS: Final = 86_400


def stage_name(prefix: str) -> str:
    """A new name: `prefix`, host, process, time, and a number of its own."""
    return f"{prefix}{socket.gethostname()}-{os.getpid()}-{time.time():.0f}-{uuid.uuid4().hex}"


def sweep(filesystem: FileSystem, folder: Path, prefix: str) -> None:
    """Remove what killed drivers left: of a process of this host that is gone, or a day old. Raises
    `OSError` where the folder cannot be listed."""
    for name in filesystem.list_directory(folder):
        told = _OWNER.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if told is None:
            continue
        host, process, began = told.groups()
        is_gone = host == socket.gethostname() and not Path("/proc", process).exists()
        if is_gone or int(began) < time.time() - _DAY_SECONDS:
            with contextlib.suppress(OSError):  # it may be another user's
                filesystem.remove_tree(folder / name)
