"""Making files whose names appear only when they are whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import AppendFile, FileSystem

__all__ = ["create_file", "replace_file"]


def create_file(filesystem: FileSystem, path: Path) -> AppendFile:
    """A new file; a leftover of the same temporary name, which nobody reads, is replaced."""
    try:
        return filesystem.create(path)
    except FileExistsError:
        filesystem.remove(path)
        return filesystem.create(path)


def replace_file(filesystem: FileSystem, path: Path, data: bytes, point: str = "") -> None:
    """Make `data` the durable contents of `path`: a crash leaves the old ones or the new ones.

    `point`: the failpoint in front of the rename, if there is one. Raises `OSError`.
    """
    temporary = path.with_name(path.name + ".new")
    with closing(create_file(filesystem, temporary)) as file:
        file.write([data])
        file.sync()
    if point:
        failpoint(point)
    filesystem.rename(temporary, path)
    filesystem.sync_directory(path.parent)
