"""Making files whose names appear only when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from logweir.errors import ConfigError
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, AppendFile, FileSystem, explain


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


def check_output(to: Path, filesystem: FileSystem = OS, shown: str = "") -> None:
    """Raise `ConfigError` if something has the name that a user gave for a new file, `WalError` if
    nobody can look. `shown`: its name in errors, if that is not its path."""
    name = shown or str(to)
    try:
        taken = filesystem.has_name(to)  # of a folder that is not there: who makes the file tells
    except OSError as error:
        raise explain(error, name) from error
    if taken:
        raise ConfigError("--output", f"{name} is there already.", hint="name a new file")


@contextmanager
def new_output(to: Path, filesystem: FileSystem = OS, shown: str = "") -> Iterator[Path]:
    """The temporary path at which the new file `to`, which a user asked for, is to be written. It
    has its name, and is durable, when the context ends well; else, and after a crash, no file has.

    `shown`: as `check_output`. Raises `WalError` for what the system says.
    """
    temporary = to.with_name(f".{to.name}.{os.getpid()}.new")
    try:
        yield temporary
        filesystem.sync_file(temporary)
        failpoint("output.before_rename")
        filesystem.rename(temporary, to)
        try:
            filesystem.sync_directory(to.parent)
        except PermissionError:
            # A folder that may be written and not read cannot be opened to be synced; disks that
            # keep a journal write the name with the file.
            filesystem.sync_file(to)
    except OSError as error:
        raise explain(error, shown or str(to)) from error
    finally:
        with suppress(OSError):
            filesystem.remove(temporary)  # nothing if it was renamed
