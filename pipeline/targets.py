"""Where jobs write: a folder, or a place that `pyarrow.fs` or `fsspec` reaches by a URL.

Both look alike, as the `FileSystem` of `wal.filesystem`, so that one way of publishing serves all:
write under a name that nobody reads, then rename. What has no folders in which to rename, as an
object store, copies by itself under the new name, where the object is whole or not at all, and the
old name goes after that. What a place of a URL has taken when a file is closed is taken to be
durable. Nothing there can be locked, or be appended to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logweir.pipeline.options import place_text, scheme_of, target_folder
from logweir.pipeline.storage import UrlFileSystem, asked, connect
from logweir.wal.filesystem import OS, AppendFile, Buffer, FileSystem


def open_target(key: str, to: str | Path) -> tuple[FileSystem, Path]:
    """The file system of a place to write, and the path in it. `key`: the option that names it.

    Raises `ConfigError` where no file system of that kind is known, `WalError` where it cannot be
    opened.
    """
    scheme = scheme_of(place_text(key, to))
    if scheme in ("", "file"):
        return OS, target_folder(key, to)
    filesystem, path = connect(str(to), scheme)
    return _UrlTarget(filesystem), Path(path)


class _UrlAppendFile:
    """A new file, which is there when it is closed."""

    def __init__(self, filesystem: Any, path: Path) -> None:
        self.path = path
        self._size = 0
        with asked(path):
            self._file = filesystem.open_output_stream(path.as_posix())

    def size(self) -> int:
        """See `AppendFile`."""
        return self._size

    def write(self, parts: Sequence[Buffer]) -> None:
        """See `AppendFile`."""
        with asked(self.path):
            for part in parts:
                self._file.write(part)
                self._size += memoryview(part).nbytes

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        """Refused."""
        raise NotImplementedError("a file at a URL is written from its begin to its end")

    def truncate(self, size: int) -> None:
        """Refused."""
        raise NotImplementedError("a file at a URL is written from its begin to its end")

    def sync(self) -> None:
        """Nothing: what is closed is durable."""

    def close(self) -> None:
        """Let it be there."""
        with asked(self.path):
            self._file.close()


class _UrlTarget(UrlFileSystem):
    """A `pyarrow.fs.FileSystem` in which new files are made."""

    def create(self, path: Path) -> AppendFile:
        """See `FileSystem`."""
        return _UrlAppendFile(self._filesystem, path)

    def rename(self, old: Path, new: Path) -> None:
        """See `FileSystem`; where it is a copy, `old` is there a moment longer."""
        self._ask("move", old, new)

    def remove(self, path: Path) -> None:
        """See `FileSystem`."""
        self._ask("delete_file", path)

    def make_directory(self, path: Path) -> None:
        """Make a folder and those above it, which may be there."""
        self._ask("create_dir", path)

    def remove_tree(self, path: Path) -> None:
        """See `FileSystem`."""
        with contextlib.suppress(FileNotFoundError):
            self._ask("delete_dir", path)

    def _ask(self, what: str, *paths: Path) -> None:
        with asked(paths[0]):
            getattr(self._filesystem, what)(*(path.as_posix() for path in paths))
