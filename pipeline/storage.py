"""Where files are: the local disk, or whatever `pyarrow.fs` or `fsspec` reaches by a URL.

Both look alike to the code above, as the `FileSystem` of `wal.filesystem`, so that one reader and
one index serve all. A URL's file system is opened where it is used, never sent to a worker.
"""

from __future__ import annotations

import contextlib
import errno
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from logweir.errors import ConfigError, WalError
from logweir.pipeline.options import ORIGIN, SERVERS, SPOOL, scheme_of, shown
from logweir.wal.filesystem import OS, AppendFile, FileSystem, ReadFile

SPOOL_PART: Final = re.compile(
    r"(\d{20}[.](?:xlog|snap))[.](\d{20})-(\d{20})[.]([0-9]{8}[0-9a-f]{16})"
)
"""The name of a part of a spool: see `spoolplace`."""
OWNERS: Final = "owners"
"""The folder in which those who follow into a spool write down their names."""
BEGUN: Final = ".begun"
"""How the name of what an owner took over ends."""
BEGUN_END: Final = "end"
"""Its last line: without it, it is not written yet, or was cut off."""
_RETRY_SECONDS: Final = 60  # Google's own client would ask again for a quarter of an hour
_HINT: Final = "look at the address, and at what its file system asks for (keys, region, host)"


def open_storage(location: str) -> tuple[FileSystem, Path]:
    """The file system that holds `location`, a path or URL, and the path in it.

    Raises `ConfigError` where no file system of that kind is known, `WalError` where it cannot be
    opened.
    """
    scheme = scheme_of(location)
    if not scheme:
        return OS, Path(location)
    if scheme == "file":
        return OS, Path(urllib.parse.unquote(urllib.parse.urlsplit(location).path))
    if scheme.startswith(SPOOL):
        filesystem, path = connect(location[len(SPOOL) :], scheme[len(SPOOL) :])
        return SpoolFileSystem(filesystem), Path(path)
    filesystem, path = connect(location, scheme)
    return UrlFileSystem(filesystem), Path(path)


def inside(location: str, name: str) -> str:
    """The location of a file of the folder `location`: in front of the options of a URL."""
    head, mark, options = location.partition("?") if scheme_of(location) else (location, "", "")
    return f"{head.rstrip('/')}/{name}{mark}{options}"


def connect(location: str, scheme: str) -> tuple[Any, str]:
    """The `pyarrow.fs.FileSystem` that a URL names, and the path in it. Raises as `open_storage`,
    and `ImportError` without pyarrow. No error has as its cause one that shows the whole URL."""
    from pyarrow import ArrowInvalid, fs

    if scheme in SERVERS:
        text = f"{shown(location)!r} is the address of a server, and no place of files"
        raise ConfigError("path", text, origin=ORIGIN, hint="give it as url, where that is read")
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in location:
        location += f"{'&' if '?' in location else '?'}retry_limit_seconds={_RETRY_SECONDS}"
    try:
        return _named(location, *fs.FileSystem.from_uri(location))
    except ArrowInvalid as error:
        if "Unrecognized filesystem" not in str(error):
            raise _unreadable(location, error) from None
    except OSError as error:
        raise WalError(f"{_told(location, error)}.", path=shown(location), hint=_HINT) from None
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            "path",
            f"no file system is known for {scheme}://",
            origin=ORIGIN,
            hint="pyarrow has s3, gs, abfs, hdfs and file; install fsspec for others",
        ) from None
    try:
        opened, path = fsspec.core.url_to_fs(location)
    except (ValueError, ImportError) as error:
        raise _unreadable(location, error) from None
    except OSError as error:  # some connect at once
        raise WalError(f"{_told(location, error)}.", path=shown(location), hint=_HINT) from None
    return _named(location, fs.PyFileSystem(_unremembered(opened)), path)


def _unremembered(opened: Any) -> Any:
    """What pyarrow asks a file system of fsspec by. Many of them keep listings for good, and would
    not see what other processes put."""
    from pyarrow import fs

    class Handler(fs.FSSpecHandler):  # type: ignore[misc]
        def get_file_info(self, paths: Any) -> Any:
            self.fs.invalidate_cache()
            return super().get_file_info(paths)

        def get_file_info_selector(self, selector: Any) -> Any:
            self.fs.invalidate_cache()
            return super().get_file_info_selector(selector)

    return Handler(opened)


def _named(location: str, filesystem: Any, path: str) -> tuple[Any, str]:
    if not path.strip("/"):
        text, hint = f"{shown(location)!r} names no folder of the place", "s3://bucket/folder"
        raise ConfigError("path", text, origin=ORIGIN, hint=hint)
    return filesystem, path


def _told(location: str, error: Exception) -> str:
    """What a file system says of an address, which it may quote."""
    return " ".join(str(error).split()).replace(location, shown(location))


def _unreadable(location: str, error: Exception) -> ConfigError:
    text = f"{shown(location)!r}: {_told(location, error)}"
    hint = _HINT + "; in a key or secret, / is %2F, @ is %40 and ? is %3F"
    return ConfigError("path", text, origin=ORIGIN, hint=hint)


@contextlib.contextmanager
def asked(path: Path) -> Iterator[None]:
    """What a file system of `pyarrow.fs` raises is an `OSError` with the number of its kind: some
    of them raise Arrow's own errors, as that of Azure without a login."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        number = getattr(error, "errno", None) or (
            errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
        )
        raise OSError(number, " ".join(str(error).split()), str(path)) from error


class _UrlReadFile:
    def __init__(self, filesystem: Any, path: Path) -> None:
        self.path = path
        self._filesystem = filesystem
        self._file = filesystem.open_input_file(path.as_posix())
        self._size = int(self._file.size())

    def size(self) -> int:
        with asked(self.path):
            info = self._filesystem.get_file_info(self.path.as_posix())
        if info.size is not None and info.size != self._size:
            self._file.close()
            self._file = self._filesystem.open_input_file(self.path.as_posix())
            self._size = int(self._file.size())
        return self._size

    def read(self, count: int, offset: int) -> bytes:
        with asked(self.path):
            return bytes(self._file.read_at(min(count, max(self._size - offset, 0)), offset))

    def close(self) -> None:
        self._file.close()


class UrlFileSystem:
    """A `pyarrow.fs.FileSystem` for readers and the index of folders; it writes nothing.
    `targets` has one that does."""

    readers = 16  # an object store answers slowly, and many at a time

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def open_read(self, path: Path) -> ReadFile:
        """The file, which is read by ranges."""
        with asked(path):
            return _UrlReadFile(self._filesystem, path)

    def list_directory(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""
        from pyarrow import fs

        with asked(path):
            kind = self._filesystem.get_file_info(path.as_posix()).type
        if kind == fs.FileType.File:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        if kind == fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", str(path))
        with asked(path):
            found = self._filesystem.get_file_info(fs.FileSelector(path.as_posix()))
        return sorted(info.base_name for info in found)

    def has_name(self, path: Path) -> bool:
        """Whether something has the name."""
        from pyarrow import fs

        with asked(path):
            return bool(
                self._filesystem.get_file_info(path.as_posix()).type != fs.FileType.NotFound
            )

    def create(self, path: Path) -> AppendFile:
        """Refused."""
        raise self._read_only(path)

    def open_append(self, path: Path) -> AppendFile:
        """Refused."""
        raise self._read_only(path)

    def rename(self, old: Path, new: Path) -> None:
        """Refused."""
        raise self._read_only(new)

    def remove(self, path: Path) -> None:
        """Refused."""
        raise self._read_only(path)

    def make_directory(self, path: Path) -> None:
        """Refused."""
        raise self._read_only(path)

    def remove_directory(self, path: Path) -> None:
        """Refused."""
        raise self._read_only(path)

    def remove_tree(self, path: Path) -> None:
        """Refused."""
        raise self._read_only(path)

    def free_bytes(self, path: Path) -> int | None:
        """Not told."""
        return None

    def boot_id(self) -> str:
        """Not told."""
        return ""

    def sync_file(self, path: Path) -> None:
        """Nothing: what such a file system shows, it has stored."""

    def sync_directory(self, path: Path) -> None:
        """Nothing, as `sync_file`."""

    def lock(self, path: Path) -> contextlib.AbstractContextManager[FileSystem]:
        """Refused."""
        raise self._read_only(path)

    def _read_only(self, path: Path) -> OSError:
        return OSError(errno.EROFS, "is read by URL, which cannot be written here", str(path))


class CutFile:
    """A file as it was when the scan was planned: what was appended since is not there."""

    def __init__(self, file: ReadFile, size: int) -> None:
        self._file = file
        self._size = min(size, file.size())
        self.path = file.path

    def size(self) -> int:
        """Bytes in the file then; fewer where it was cut since."""
        return self._size

    def read(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`."""
        return self._file.read(min(count, max(self._size - offset, 0)), offset)

    def close(self) -> None:
        """Close it."""
        self._file.close()


class CutFileSystem(UrlFileSystem):
    """The same file system, with every file cut to `size`."""

    def __init__(self, filesystem: FileSystem, size: int) -> None:
        super().__init__(filesystem)
        self._size = size

    def open_read(self, path: Path) -> ReadFile:
        """The file, cut."""
        return CutFile(self._filesystem.open_read(path), self._size)

    def list_directory(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""
        names: list[str] = self._filesystem.list_directory(path)
        return names

    def has_name(self, path: Path) -> bool:
        """Whether something has the name."""
        return bool(self._filesystem.has_name(path))


# --- spools ---------------------------------------------------------------------------------------


class SpoolPart(NamedTuple):
    """Bytes `begin` … `end` - 1 of a file."""

    file: str
    begin: int
    end: int
    owner: str

    @property
    def name(self) -> str:
        return f"{self.file}.{self.begin:020d}-{self.end:020d}.{self.owner}"


def _part(name: str, size: int) -> SpoolPart | None:
    """The part of that name, None if it is none, or not whole."""
    found = SPOOL_PART.fullmatch(name)
    if found is None or not 0 < int(found[3]) - int(found[2]) == size:
        return None
    return SpoolPart(found[1], int(found[2]), int(found[3]), found[4])


def _chains(parts: Iterable[SpoolPart]) -> dict[str, list[SpoolPart]]:
    """The parts that make each file, from its first byte on; of several that begin at a place the
    highest owner's counts, and of these the longest."""
    best: dict[tuple[str, int], SpoolPart] = {}
    for one in parts:
        known = best.get((one.file, one.begin))
        if known is None or (one.owner, one.end) > (known.owner, known.end):
            best[one.file, one.begin] = one
    found: dict[str, list[SpoolPart]] = {}
    for file in sorted({file for file, begin in best if begin == 0}):
        chain, end = found.setdefault(file, []), 0
        while (following := best.get((file, end))) is not None:
            chain.append(following)
            end = following.end
    return found


class SpoolFileSystem(UrlFileSystem):
    """The logs and snapshots of a spool, as their parts make them, for readers."""

    def __init__(self, filesystem: Any) -> None:
        super().__init__(filesystem)
        self._begun: tuple[str, frozenset[str]] = ("", frozenset())

    def open_read(self, path: Path) -> ReadFile:
        """The file, which is read by ranges."""
        return _PartsFile(self, path)

    def list_directory(self, path: Path) -> list[str]:
        """The names of the files, sorted."""
        return sorted(self.chains(path))

    def has_name(self, path: Path) -> bool:
        """Whether there is such a file."""
        return path.name in self.chains(path.parent)

    def open_part(self, folder: Path, part: SpoolPart) -> Any:
        """A part, as pyarrow reads it."""
        return self._filesystem.open_input_file((folder / part.name).as_posix())

    def chains(self, folder: Path) -> dict[str, list[SpoolPart]]:
        """The parts that make each file. Raises `FileNotFoundError` where there is no spool."""
        self._look_for_owner(folder)
        owner, taken = self._begun
        found = (_part(name, size) for name, size in self.sizes(folder).items())
        return _chains(
            part for part in found if part and (part.owner == owner or part.name in taken)
        )

    def sizes(self, folder: Path) -> dict[str, int]:
        """The names of the objects of a folder and their sizes; none where it is not there."""
        from pyarrow import fs

        selector = fs.FileSelector(folder.as_posix(), allow_not_found=True)
        with asked(folder):
            found = self._filesystem.get_file_info(selector)
        return {one.base_name: one.size for one in found if one.is_file}

    def _look_for_owner(self, folder: Path) -> None:
        """Learn who began last, and what it took over."""
        while True:
            names = [one for one in self.sizes(folder / OWNERS) if one.endswith(BEGUN)]
            with contextlib.suppress(FileNotFoundError):  # a higher one has removed it
                found = self._newest(folder, sorted(names, reverse=True))
                break
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no spool", str(folder))
        self._begun = found

    def _newest(self, folder: Path, names: list[str]) -> tuple[str, frozenset[str]] | None:
        """Of the first one of these that is whole its owner, and what that took over."""
        for name in names:
            owner = name.removesuffix(BEGUN)
            if owner == self._begun[0]:
                return self._begun
            with self._filesystem.open_input_stream((folder / OWNERS / name).as_posix()) as file:
                *taken, last = file.read().decode().split() or [""]
            if last == BEGUN_END:
                return owner, frozenset(taken)
        return None


class _PartsFile:
    """A file of a spool that is read; its size is that of when it was last asked for."""

    def __init__(self, filesystem: SpoolFileSystem, path: Path) -> None:
        self.path = path
        self._filesystem = filesystem
        self._parts: list[SpoolPart] = []
        self._opened: tuple[SpoolPart, Any] | None = None
        self._last = (0, b"")
        self.size()

    def size(self) -> int:
        """See `ReadFile`. A file that was removed since has the size that it had."""
        found = self._filesystem.chains(self.path.parent).get(self.path.name)
        self._parts = found or self._parts
        if not self._parts:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(self.path))
        return self._parts[-1].end

    def read(self, count: int, offset: int) -> bytes:
        """See `ReadFile`. Where the file was removed meanwhile what was read last is known."""
        try:
            data = self._read(count, offset)
        except OSError:
            before, (at, known) = self._parts, self._last
            self.close()
            self.size()
            if self._parts != before:  # they became one
                data = self._read(count, offset)
            elif at <= offset and min(offset + count, before[-1].end) <= at + len(known):
                return known[offset - at : offset - at + count]
            else:
                raise
        self._last = offset, data
        return data

    def _read(self, count: int, offset: int) -> bytes:
        pieces = []
        for part in self._parts:
            wanted = min(part.end, offset + count) - offset
            if part.end <= offset or wanted <= 0:
                continue
            with asked(self.path):
                piece = bytes(self._open(part).read_at(wanted, offset - part.begin))
            pieces.append(piece)
            offset, count = offset + len(piece), count - len(piece)
        return b"".join(pieces)

    def _open(self, part: SpoolPart) -> Any:
        if self._opened is None or self._opened[0] != part:
            self.close()
            self._opened = part, self._filesystem.open_part(self.path.parent, part)
        return self._opened[1]

    def close(self) -> None:
        """See `ReadFile`."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None
