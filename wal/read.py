"""Reading rows from files and folders without a store: nothing is locked, nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from logweir.errors import CorruptFile
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.lease import leased
from logweir.wal.reader import WalReader
from logweir.wal.xrow import Row

__all__ = ["read"]


def read(
    path: str | os.PathLike[str],
    *,
    on_damage: Callable[[Damage], None] | None = None,
    filesystem: FileSystem = OS,
) -> Iterator[Row]:
    """The rows of an xlog or snap file, or of all of a folder, oldest file first.

    `path`: a file or folder, ours or a Tarantool's; `on_damage`: called for each damaged place,
    and reading goes on behind it; without it `CorruptBlock` is raised there (an unfinished last
    write is an ending, not damage). Memory is constant. Raises `CorruptFile`, `WalError`.
    """
    start = Path(path)
    with leased(start):
        paths = [start]
        if _is_folder(start, filesystem):
            index = scan_directory(start, filesystem)
            for damage in index.damage:
                if on_damage is None:
                    raise CorruptFile(damage.message, path=damage.file, hint=damage.hint)
                on_damage(damage)
            paths = [file.path for file in index.files if file.suffix != "vylog"]
        for one in paths:
            with WalReader(one, filesystem=filesystem, skip_damage=on_damage is not None) as reader:
                for item in reader.blocks():
                    if not isinstance(item, Damage):
                        yield from item.rows()
                    elif on_damage is not None:
                        on_damage(item)
                    elif item.kind not in TAIL_KINDS:
                        raise item.to_error()


def _is_folder(path: Path, filesystem: FileSystem) -> bool:
    try:
        filesystem.list_directory(path)
    except OSError:
        return False  # a file, or something that opening it says more about
    return True
