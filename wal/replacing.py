"""All files of a folder replaced by one new one, at one moment.

The new file stands beside the old ones as `NAME.inprogress` until it is durable. Then a mark names
it and those it replaces, and its rename is the moment: from then on the old ones do not count,
whoever looks, also if they could not be removed any more; before it the new one does not. A mark
without its new file says nothing. Whoever has the folder's lock finishes what is left.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from logweir.errors import CorruptFile
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import FileSystem
from logweir.wal.newfile import replace_file

REPLACING_NAME: Final = "logweir.replacing"
_INPROGRESS: Final = ".inprogress"
_MARK_BYTES: Final = 64 * 1024 * 1024


def replacing(
    path: Path, old: Sequence[str], rename: Callable[[], None], filesystem: FileSystem
) -> None:
    """Let `rename` make `path`, whose bytes are durable under its temporary name, replace the files
    `old` of its folder. Raises `OSError`; the folder is then as it was or as it is to be."""
    text = json.dumps({"new": path.name, "old": sorted(set(old) - {path.name})})
    mark = path.parent / REPLACING_NAME
    replace_file(filesystem, mark, text.encode(), "pipeline.before_replacing")
    rename()
    failpoint("pipeline.after_replacing")
    finish_replacing(path.parent, filesystem)


def replaced(folder: Path, names: Collection[str], filesystem: FileSystem) -> frozenset[str]:
    """Those of `names`, all that stand in a folder, that do not count any more."""
    if REPLACING_NAME not in names:
        return frozenset()
    new, old = _read(folder / REPLACING_NAME, filesystem)
    if new not in names or new + _INPROGRESS in names:
        return frozenset()
    return frozenset(old)


def finish_replacing(folder: Path, filesystem: FileSystem) -> None:
    """Remove the files that do not count, and the mark. For who has the folder's lock."""
    names = filesystem.list_directory(folder)
    if REPLACING_NAME not in names:
        return
    for name in replaced(folder, names, filesystem):
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(folder / name)
    filesystem.sync_directory(folder)
    filesystem.remove(folder / REPLACING_NAME)
    filesystem.sync_directory(folder)


def _read(path: Path, filesystem: FileSystem) -> tuple[str, list[str]]:
    with closing(filesystem.open_read(path)) as file:
        data = file.read(_MARK_BYTES, 0)
    try:
        found = json.loads(data)
        new, old = found["new"], found["old"]
        if isinstance(new, str) and all(isinstance(name, str) and "/" not in name for name in old):
            return new, old
    except (ValueError, LookupError, TypeError):
        pass
    raise CorruptFile(
        "is no mark of ours.",
        path=str(path),
        hint="it names files that are replaced: remove it once the folder's logs are looked at",
    )
