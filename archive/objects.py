"""Places that hold objects: a folder, or what `pyarrow.fs` and `fsspec` reach by a URL.

Little is asked of a place, so that every object store will do: an object is put whole, read, listed
and removed; nothing is renamed or changed. In a folder an object has its name only when it is
durable; of an object store it is taken that what it acknowledged is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from logweir.errors import ConfigError, CorruptFile, WalError
from logweir.limits import READ_WINDOW_BYTES
from logweir.pipeline.options import scheme_of, shown
from logweir.pipeline.storage import UrlFileSystem, connect
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, ReadFile, explain, make_folders
from logweir.wal.newfile import create_file

_NEW: Final = ".new"


class Objects(Protocol):
    """One place. Names are `FOLDER/NAME`. Every call raises `WalError` with the place's own."""

    @property
    def location(self) -> str:
        """What the place is called, without a password."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Store an object that is these pieces, or none of that name. When this returns it is
        durable."""

    def open(self, name: str) -> ReadFile:
        """An object, read by ranges; what it raises is a `WalError`, too."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if it is not there."""

    def settle(self, folder: str) -> None:
        """Have the names that stand in a folder durable: who put an object and was killed at it
        need not have."""

    def remove(self, name: str) -> None:
        """Remove an object; nothing if there is none."""


def open_objects(location: str) -> Objects:
    """The place at `location`: a folder, or a URL. Nothing is made there yet.

    Raises `ConfigError` if no place of that kind is known, `WalError` if it cannot be opened.
    """
    scheme = scheme_of(location)
    if scheme in ("", "file"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(location).path) if scheme else location
        if not path:
            raise ConfigError("place", f"{shown(location)!r} names no folder")
        return FolderObjects(Path(os.path.abspath(path)))
    try:
        filesystem, path = connect(location, scheme)
    except ImportError as error:
        hint = "pip install 'logweir[archive]'"
        raise ConfigError("place", f"{scheme}:// needs pyarrow", hint=hint) from error
    return UrlObjects(shown(location), filesystem, path.rstrip("/"))


def pieces_of(file: ReadFile, offset: int, end: int) -> Iterator[bytes]:
    """The bytes of a range, in pieces. Raises `CorruptFile` if the file ends before,
    `WalError`."""
    while offset < end:
        try:
            piece = file.read(min(READ_WINDOW_BYTES, end - offset), offset)
        except OSError as error:
            raise explain(error, str(file.path), offset) from error
        if not piece:
            text = f"it ends at byte {offset}, not {end}."
            raise CorruptFile(text, path=str(file.path), offset=offset)
        yield piece
        offset += len(piece)


def digest_of(pieces: Iterable[bytes]) -> str:
    """SHA-256 of these pieces, in hexadecimal digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class _Stored:
    """An object that is read; what the place says is told with its name."""

    def __init__(self, file: ReadFile, where: str) -> None:
        self.path = Path(where)
        self._file, self._where = file, where

    def size(self) -> int:
        """See `ReadFile`."""
        with _explained(self._where):
            return self._file.size()

    def read(self, count: int, offset: int) -> bytes:
        """See `ReadFile`."""
        with _explained(self._where):
            return self._file.read(count, offset)

    def close(self) -> None:
        """See `ReadFile`."""
        self._file.close()


class FolderObjects:
    """A folder of this machine, or of one that it has mounted."""

    def __init__(self, path: Path, filesystem: FileSystem = OS) -> None:
        self.path = path
        self._filesystem = filesystem

    @property
    def location(self) -> str:
        """See `Objects`."""
        return str(self.path)

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `Objects`."""
        target = self.path / name
        temporary = target.with_name(target.name + _NEW)
        with _explained(target):
            make_folders(self._filesystem, target.parent)
            with closing(create_file(self._filesystem, temporary)) as file:
                for piece in pieces:
                    file.write([piece])
                    failpoint("archive.in_put")
                file.sync()
            self._filesystem.rename(temporary, target)
            self._filesystem.sync_directory(target.parent)

    def open(self, name: str) -> ReadFile:
        """See `Objects`."""
        with _explained(self.path / name):
            return _Stored(self._filesystem.open_read(self.path / name), str(self.path / name))

    def names(self, folder: str) -> list[str]:
        """See `Objects`."""
        with _explained(self.path / folder), contextlib.suppress(FileNotFoundError):
            return self._filesystem.list_directory(self.path / folder)
        return []

    def settle(self, folder: str) -> None:
        """See `Objects`."""
        with _explained(self.path / folder), contextlib.suppress(FileNotFoundError):
            self._filesystem.sync_directory(self.path / folder)

    def remove(self, name: str) -> None:
        """See `Objects`."""
        with _explained(self.path / name), contextlib.suppress(FileNotFoundError):
            self._filesystem.remove(self.path / name)
            self._filesystem.sync_directory((self.path / name).parent)


class UrlObjects:
    """What a `pyarrow.fs.FileSystem` reaches."""

    def __init__(self, location: str, filesystem: Any, path: str) -> None:
        self.location = location
        self._filesystem = filesystem
        self._reading = UrlFileSystem(filesystem)
        self._path = path

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `Objects`. If it fails in the middle a part may be left, which has no entry."""
        with (
            _explained(f"{self.location}/{name}"),
            self._filesystem.open_output_stream(f"{self._path}/{name}") as out,
        ):
            for piece in pieces:
                out.write(piece)
                failpoint("archive.in_put")

    def open(self, name: str) -> ReadFile:
        """See `Objects`."""
        where = f"{self.location}/{name}"
        with _explained(where):
            return _Stored(self._reading.open_read(Path(f"{self._path}/{name}")), where)

    def names(self, folder: str) -> list[str]:
        """See `Objects`."""
        from pyarrow import fs

        with _explained(f"{self.location}/{folder}"):
            wanted = fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True)
            found = self._filesystem.get_file_info(wanted)
            return sorted(one.base_name for one in found if one.type == fs.FileType.File)

    def settle(self, folder: str) -> None:
        """See `Objects`: what is there was acknowledged, or never will be there."""

    def remove(self, name: str) -> None:
        """See `Objects`."""
        with _explained(f"{self.location}/{name}"), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._path}/{name}")


@contextlib.contextmanager
def _explained(where: Path | str) -> Iterator[None]:
    """Errors of the place as ours, with the place's name."""
    try:
        yield
    except WalError:
        raise
    except OSError as error:
        found = explain(error, str(where))
        if not found.hint:
            found = WalError(found.reason, path=str(where), hint=_HINT)
        raise found from error


_HINT: Final = "look at the address, its keys and the network; what was archived before stays"
